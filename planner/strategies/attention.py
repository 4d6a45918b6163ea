"""Attention on one rank, by softmax or by sums over keys: where every exchange ends.

The state of linear attention is a sum over keys, so that ranks with different rows need not see
each other's keys: they can add up their states, which are the same size however long the sequence
is, as vLLM-Omni does for SANA-Video [1]_. xDiT's ring sends keys and values round and sums as they
arrive [2]_.

References
----------
.. [1] vLLM-Omni, vllm_omni/diffusion/models/sana_video/transformer_sana_video.py
.. [2] xDiT, xfuser/core/long_ctx_attention/ring/ring_flash_attn.py, for SANA
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodels.program import Attention, LinearAttention, Span, Tensor
from costmodels.program.emit import Emits, concat_rows, split_features, split_rows
from costmodels.sizes import largest
from planner.strategies.base import AttentionCall
from planner.strategies.sequence import is_cut
from topology.base.values import dataclass

STATE_BYTES = SUM_BYTES = 4
"""Bytes of a number of the state, and of a log-sum-exp, which are kept in 32 bits."""


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys with values of some entries, and the spans of their rows."""

    tensors: list[Tensor]
    spans: tuple[Span, ...]


def attend_here(call: AttentionCall) -> Emits[list[Tensor]]:
    """Emit attention over the rows that are here: where every exchange ends."""
    query, keys = yield from queries_and_keys(call)
    keys_values = yield from concat_rows(keys, f"{call.name}.kv")
    if call.linear:
        state = yield from sum_of_keys(call, keys_values, f"{call.name}.state")
        return (yield from read_sums(call, query, state))
    spans = tuple(span for entry in call.entries if entry.has_keys for span in entry.spans)
    out = yield from fused_attention(call, query, keys_values, query_spans(call), spans)
    return (yield from results_of(call, out))


def queries_and_keys(call: AttentionCall) -> Emits[tuple[Tensor, list[Tensor]]]:
    """Emit the queries of all rows as one tensor; and keys with values of each entry.

    Returns queries ``[batch, rows, heads * size]``, and ``[batch, rows, keys | values]`` an entry
    with keys.
    """
    queries: list[Tensor] = []
    keys: list[Tensor] = []
    for number, entry in enumerate(call.entries):
        name = f"{call.name}.{number}"
        key_value_width = 2 * call.key_value.units * call.key_value.size
        if entry.has_queries and entry.has_keys:
            widths = (call.query.units * call.query.size, key_value_width)
            query, key = yield from split_features(
                entry.tensor, widths, (f"{name}.q", f"{name}.kv")
            )
            queries.append(query)
            keys.append(key)
        elif entry.has_queries:
            queries.append(entry.tensor)
        else:
            keys.append(entry.tensor)
    query = yield from concat_rows(queries, f"{call.name}.q")
    return query, keys


def query_spans(call: AttentionCall) -> tuple[Span, ...]:
    """List the spans of the rows with queries, in order."""
    return tuple(span for entry in call.entries if entry.has_queries for span in entry.spans)


def keys_apart(call: AttentionCall, keys: Sequence[Tensor], axis: str) -> tuple[Keys, Keys]:
    """Tell the keys whose rows are cut along an axis from those that every rank has."""
    entries = [entry for entry in call.entries if entry.has_keys]
    cut, uncut = (
        Keys(
            tensors=[key for e, key in zip(entries, keys, strict=True) if is_cut(e, axis) is cut],
            spans=tuple(span for e in entries if is_cut(e, axis) is cut for span in e.spans),
        )
        for cut in (True, False)
    )
    return cut, uncut


def results_of(call: AttentionCall, out: Tensor) -> Emits[list[Tensor]]:
    """Give the entries with queries their part of the result, one tensor an entry."""
    query_entries = [entry for entry in call.entries if entry.has_queries]
    rows = [entry.tensor.shape[1] for entry in query_entries]
    names = [f"{call.name}.out{number}" for number in range(len(query_entries))]
    return (yield from split_rows(out, rows, names))


def keys_and_values(call: AttentionCall, both: Tensor) -> Emits[Sequence[Tensor]]:
    """Emit keys and values apart, which lie side by side in `both`, or are made of its rows."""
    if call.answers is not None:
        return (yield from call.answers(both))
    width = call.key_value.units * call.key_value.size
    return (yield from split_features(both, (width, width), (f"{both.name}.k", f"{both.name}.v")))


def fused_attention(
    call: AttentionCall, query: Tensor, both: Tensor, asking: Spans, answering: Spans
) -> Emits[Tensor]:
    """Emit one fused attention of `query` over keys and values lying side by side in `both`."""
    op = yield from attention_over(call, query, both, asking, answering)
    yield op
    return op.out


def attention_over(
    call: AttentionCall, query: Tensor, both: Tensor, asking: Spans, answering: Spans
) -> Emits[Attention]:
    """Build that attention, to be emitted as it is or changed; emit what it reads."""
    key, value = yield from keys_and_values(call, both)
    split = any(span.axes for span in asking)
    return Attention(
        q=query,
        k=key,
        v=value,
        out=Tensor(
            f"{call.name}.out", (*query.shape[:2], call.heads * call.value_size), query.itemsize
        ),
        heads=call.heads,
        key_value_heads=call.key_value_heads,
        size=call.size,
        values=call.values,
        scaled=call.scaled,
        query_spans=asking,
        key_spans=answering,
        causal=call.causal,
        window=call.window,
        pairs=pairs_of(call, asking, answering) if split else 1.0,
    )


def partial_attention(
    call: AttentionCall, query: Tensor, keys: Keys, turn: tuple[str, int], *, asks: bool = False
) -> Emits[tuple[Tensor, Tensor]]:
    """Emit attention to the keys of one rank, with the log-sum-exp that a merge needs.

    turn : an axis, and how many steps along it the keys came; or the queries, where it `asks`.
    """
    (keys_values,), step = keys.tensors, turn[1]
    attention = yield from attention_over(call, query, keys_values, query_spans(call), keys.spans)
    out = replace(attention.out, name=f"{call.name}.part{step}")
    total = Tensor(f"{call.name}.lse{step}", (*query.shape[:2], call.heads), SUM_BYTES)
    pairs = pairs_of(call, attention.query_spans, keys.spans)
    yield replace(attention, out=out, turn=turn, asks=asks, pairs=pairs, log_sum_exp=total)
    return out, total


def pairs_of(call: AttentionCall, asking: Spans, answering: Spans) -> float:
    """Give the share of pairs that a rank computes where causal work is even.

    Queries see all of what was before them, and half of what came with them.
    """
    if not call.causal:
        return 1.0
    query_tokens, key_tokens = (
        sum(int(largest(span.tokens)) for span in spans) for spans in (asking, answering)
    )
    return 1.0 - 0.5 * query_tokens / key_tokens


def sum_of_keys(call: AttentionCall, both: Tensor, name: str) -> Emits[Tensor]:
    """Emit the state of keys and values that lie side by side in `both`."""
    key, value = yield from keys_and_values(call, both)
    shape = (both.shape[0], call.key_value_heads, call.size, call.size + 1)
    out = Tensor(name, shape, STATE_BYTES)
    yield LinearAttention(
        part="sum", inputs=(key, value), out=out, heads=call.key_value_heads, size=call.size
    )
    return out


def read_sums(call: AttentionCall, query: Tensor, state: Tensor) -> Emits[list[Tensor]]:
    """Emit what the queries find in a state; one result for every entry with queries."""
    out = Tensor(f"{call.name}.out", query.shape, query.itemsize)
    yield LinearAttention(
        part="read", inputs=(query, state), out=out, heads=call.heads, size=call.size
    )
    return (yield from results_of(call, out))
