"""AllGather-KV: queries stay, every rank gathers all keys and values once a layer.

One collective of the keys and values, packed; with grouped queries it can move fewer bytes than
Ulysses. Llama 3 was trained so [1]_, and TensorRT's own context parallelism works so. Of linear
attention the sums over keys and values are added up instead, by an all-reduce that is the same
size however long the sequence is.

References
----------
.. [1] Grattafiori et al., "The Llama 3 Herd of Models", 2024, arXiv:2407.21783, section 3.3.2
"""

from collections.abc import Iterator
from dataclasses import replace

from costmodels.program import Span, Tensor
from costmodels.program.emit import Emits, collective, concat_rows, move, total_rows
from planner.strategies.attention import (
    Keys,
    fused_attention,
    keys_apart,
    queries_and_keys,
    query_spans,
    read_sums,
    results_of,
    sum_of_keys,
)
from planner.strategies.base import Attend, AttentionCall, Proposal, SequenceStrategy, Share
from planner.strategies.sequence import is_cut, sequence_objections

AXIS = "allgather_kv"


class AllGatherKV(SequenceStrategy):
    """Cut the sequence; gather keys and values before attention."""

    axis = AXIS
    nesting = 5

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, sequence=((AXIS, degree), *share.sequence), zigzag=True)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to tokens that do not divide by the ranks."""
        yield from sequence_objections(proposal, degree, AXIS)

    def attend(self, call: AttentionCall, degree: int, inner: Attend) -> Emits[list[Tensor]]:
        """Emit the gather and one attention to all keys."""
        del inner  # what is left after the gather is plain attention of other rows to all keys
        query, keys = yield from queries_and_keys(call)
        if call.linear:
            return (yield from _linear(call, query, keys, degree))
        cut, uncut = keys_apart(call, keys, AXIS)
        gathered, spans = yield from _gather(call, cut, degree)
        keys_values = yield from concat_rows([gathered, *uncut.tensors], f"{call.name}.kv")
        key_spans = (*spans, *uncut.spans)
        out = yield from fused_attention(call, query, keys_values, query_spans(call), key_spans)
        return (yield from results_of(call, out))


STRATEGY = AllGatherKV()


def _linear(
    call: AttentionCall, query: Tensor, keys: list[Tensor], degree: int
) -> Emits[list[Tensor]]:
    """Add up the states of all ranks; all rows are cut, so that none is counted twice."""
    assert all(is_cut(entry, AXIS) for entry in call.entries if entry.has_keys)
    keys_values = yield from concat_rows(keys, f"{call.name}.kv")
    state = yield from sum_of_keys(call, keys_values, f"{call.name}.state")
    summed = yield from collective("all_reduce", state, AXIS, degree, f"{call.name}.states")
    return (yield from read_sums(call, query, summed))


def _gather(call: AttentionCall, cut: Keys, degree: int) -> Emits[tuple[Tensor, tuple[Span, ...]]]:
    name = f"{call.name}.gather"
    local = yield from concat_rows(cut.tensors, f"{name}.mine")
    stacked = Tensor(f"{name}.stacked", (1, *local.shape), local.itemsize)
    yield from move("stack", [local], stacked, axis=AXIS, degree=degree)
    received = yield from collective("all_gather", stacked, AXIS, degree, f"{name}.received")
    joined = tuple(span.within(AXIS) for span in cut.spans)
    out = Tensor(name, (local.shape[0], total_rows(joined), local.shape[2]), local.itemsize)
    yield from move("unpack_rows", [received], out, axis=AXIS, degree=degree, spans=cut.spans)
    return out, joined
