"""Attention as layers: TensorRT's fused one, on one device or several, and sums over keys.

The fused layer has heads in front and scaled queries. A mask is written only where one is needed,
and is computed inside the engine from the positions of rows and keys, which are inputs where ranks
hold different rows.

TensorRT's attention can be told its number of ranks; each gives its own keys and values and asks
with its own queries. That stands for AllGather-KV where every row of keys is cut, nothing is
masked, and no other axis meets in the same engine.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.program import (
    Attention,
    Collective,
    LinearAttention,
    Loop,
    Op,
    Program,
    Rearrange,
)
from costmodels.program.rows import Numbers, attention_positions, positions
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Value

NOWHERE: Final = 2**30
"""Position of a key that nobody sees."""
EVERYWHERE: Final = NOWHERE - 1
"""Position of a query that sees every key there is."""
TINY: Final = 10.0**-12
"""Keeps a quotient finite where no key looks like the query."""
AXIS: Final = "allgather_kv"
Item = Op | Loop
Places = Sequence[tuple[Numbers, Numbers]]
"""Positions of queries and of keys, of every rank; -1 for padding."""


def attend(draft: Draft, op: Attention, inputs: Sequence[Value], ranks: int = 1) -> Value:
    """Write one attention.

    ranks : of a multi-device attention, each of which holds as many of the keys; else 1.
    """
    q, k, v = inputs
    name = op.out.name
    scaled_query = draft.scaled(q, float(1 / np.sqrt(op.size)), f"{name}.scaled")
    query = _as_heads(draft, scaled_query, op.heads, op.size)
    key, value = (_as_heads(draft, x, op.key_value_heads, op.size) for x in (k, v))
    position_pairs = [attention_positions(op, index) for index in draft.indices]
    plain_causal = _is_plain_causal(op, position_pairs)
    mask = [] if plain_causal or ranks > 1 else _visible_mask(draft, op, position_pairs)
    inputs, attributes = (query, key, value, *mask), {"causal": plain_causal, "ranks": ranks}
    out = draft.add("attention", inputs, query.shape, query.dtype, f"{name}.heads", **attributes)
    return draft.shuffle(out, q.shape, name, first=(0, 2, 1, 3))


def _as_heads(draft: Draft, value: Value, count: int, size: int) -> Value:
    """Turn ``[b, r, heads * size]`` into ``[b, heads, r, size]``; a cache lies so already."""
    if ("heads", value.name) in draft.made:
        return draft.made["heads", value.name]
    shape = (*value.shape[:2], count, size)
    return draft.shuffle(value, shape, f"{value.name}.heads", second=(0, 2, 1, 3))


def _is_plain_causal(op: Attention, places: Places) -> bool:
    """Whether every rank's queries and keys are the same rows in order."""
    ordered = all(
        len(queries) == len(keys) and np.array_equal(queries, keys) and np.all(np.diff(keys) > 0)
        for queries, keys in places
    )
    return op.causal and not op.window and ordered


def _visible_mask(draft: Draft, op: Attention, places: Places) -> list[Value]:
    """Write what each query may see, where that is not everything."""
    hides_later = op.causal and (
        draft.moving
        or any(keys.max() > _valid_positions(queries).min() for queries, keys in places)
    )
    padded = any(np.any(keys < 0) for _, keys in places)
    hides_early = bool(op.window) and any(
        _valid_positions(keys).min() <= queries.max() - op.window for queries, keys in places
    )
    name, visible_masks = op.out.name, _prompt_seen(draft, op)
    if not (hides_later or padded or hides_early):
        return visible_masks
    tables = [np.where(keys < 0, NOWHERE, keys).astype(np.int32) for _, keys in places]
    key = draft.table([table[None, None, None, :] for table in tables], f"{name}.keys")
    if hides_later or padded:
        query = _last_seen_keys(draft, op, places)
        hidden = draft.elementwise("GREATER", key, query, f"{name}.hidden")
        visible_masks.append(draft.unary("NOT", hidden, f"{name}.seen"))
    if hides_early:
        lowest_seen = _last_seen_keys(draft, op, places, op.window)
        visible_masks.append(draft.elementwise("GREATER", key, lowest_seen, f"{name}.near"))
    visible = visible_masks[0]
    for next_mask in visible_masks[1:]:
        visible = draft.elementwise("AND", visible, next_mask, f"{name}.visible")
    return [visible]


def _prompt_seen(draft: Draft, op: Attention) -> list[Value]:
    """Write which keys of a prompt there are, where it may have fewer than its engine takes."""
    latents = draft.latents
    if draft.prompted is None or latents is None:
        return []
    tables = [
        np.concatenate([
            positions(span, index) if span.stream != latents.stream
            else np.full(len(positions(span, index)), -1)
            for span in op.key_spans
        ]).astype(np.int32)[None, None, None, :]
        for index in draft.indices
    ]  # fmt: skip
    places = draft.table(tables, f"{op.out.name}.prompt")
    rows = draft.prompted.shape[0]
    number = draft.place(draft.prompted, latents.prompt + 1, (rows, 1, 1, 1))
    return [draft.elementwise("GREATER", number, places, f"{op.out.name}.prompted")]


def _last_seen_keys(draft: Draft, op: Attention, places: Places, window: int = 0) -> Value:
    """Give the last key that each query may see, or so many before it."""
    name = f"{op.out.name}.{'lows' if window else 'queries'}"
    if draft.moving and draft.filled is not None:
        last_filled = draft.place(draft.filled, draft.room, (draft.filled.shape[0], 1, 1, 1))
        if not window:
            return last_filled
        return draft.elementwise(
            "SUB", last_filled, draft.scalar(window, last_filled, "window"), name
        )
    causal = op.causal or bool(window)
    tops = [_seen_limits(queries, causal=causal) - np.int32(window) for queries, _ in places]
    return draft.table(tops, name)


def _valid_positions(positions: Numbers) -> Numbers:
    """Positions that are not padding; zero where all are."""
    unpadded = positions[positions >= 0]
    return unpadded if len(unpadded) else np.zeros(1, np.int64)


def _seen_limits(
    queries: Numbers, *, causal: bool
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    """Last key that each query may see; a row of padding sees what the first row does."""
    tops = np.maximum(queries, 0) if causal else np.full(len(queries), EVERYWHERE)
    return tops.astype(np.int32)[None, None, :, None]


def linear_attention(draft: Draft, op: LinearAttention, inputs: Sequence[Value]) -> Value:
    """Write sums over keys, or what queries find in them."""
    return _linear_sum(draft, op, inputs) if op.part == "sum" else _linear_read(draft, op, inputs)


def _linear_sum(draft: Draft, op: LinearAttention, inputs: Sequence[Value]) -> Value:
    """``[b, h, size, rows]`` times ``[b, h, rows, size + 1]``."""
    key, value = inputs
    name = op.out.name
    turned_key = _linear_heads(draft, _positive_part(draft, key), op, (0, 2, 3, 1))
    wide_value = _linear_heads(draft, draft.wide(value), op, (0, 2, 1, 3))
    ones = draft.constant(np.ones((*wide_value.shape[:3], 1), np.float32), "ones")
    return draft.matmul(turned_key, draft.concat((wide_value, ones), 3, f"{name}.values"), name)


def _linear_read(draft: Draft, op: LinearAttention, inputs: Sequence[Value]) -> Value:
    query, state = inputs
    name = op.out.name
    sums = draft.matmul(
        _linear_heads(draft, _positive_part(draft, query), op, (0, 2, 1, 3)), state, f"{name}.found"
    )
    total = draft.take(sums, op.size, 1, 3, f"{name}.total")
    tiny = draft.scalar(TINY, total, "tiny")
    safe = draft.elementwise("SUM", total, tiny, f"{name}.safe")
    values = draft.take(sums, 0, op.size, 3, f"{name}.sums")
    mean = draft.elementwise("DIV", values, safe, f"{name}.mean")
    rows = draft.shuffle(mean, query.shape, f"{name}.rows", first=(0, 2, 1, 3))
    return draft.cast(rows, query.dtype, name)


def _positive_part(draft: Draft, x: Value) -> Value:
    """Keep what is above zero, in 32 bits."""
    return draft.wide(draft.activation("RELU", x, f"{x.name}.kept"))


def _linear_heads(draft: Draft, x: Value, op: LinearAttention, turn: Sequence[int]) -> Value:
    shape = (*x.shape[:2], op.heads, op.size)
    return draft.shuffle(x, shape, f"{x.name}.heads", second=turn)


def with_multi_device_attention(program: Program) -> tuple[Program, frozenset[str]]:
    """Leave out the gathers that attention over several devices makes needless.

    Returns the program, and the names of the results of attentions that run on several devices.
    """
    other_axes = [name for name, _ in program.axes if name in ("tp", "ulysses", "ring", "pp")]
    if other_axes or AXIS not in dict(program.axes):
        return program, frozenset()
    names = set[str]()
    stages = tuple(_without_gathers(loop, names) for loop in program.stages)
    return replace(program, stages=stages), frozenset(names)


def _without_gathers(loop: Loop, names: set[str]) -> Loop:
    body = [_without_gathers(item, names) if isinstance(item, Loop) else item for item in loop.body]
    ops = [item for item in body if not isinstance(item, Loop)]
    makers = {tensor.name: op for op in ops for tensor in op.writes}
    for attention in [op for op in ops if isinstance(op, Attention)]:
        chain = _gather_chain(attention, makers)
        if chain:
            names.add(attention.out.name)
            body = _without_chain(body, attention, chain)
    return replace(loop, body=tuple(body))


def _gather_chain(op: Attention, makers: dict[str, Op]) -> list[Rearrange | Collective]:
    """Return the cut, the unpacking, the gather and the stacking behind keys, if that is all."""
    chain: list[Rearrange | Collective] = []
    name = op.k.name
    for move in ("split_features", "unpack_rows", "", "stack"):
        item = makers.get(name)
        if not isinstance(item, Rearrange | Collective):
            return []
        if isinstance(item, Rearrange) and item.move != move:
            return []
        if isinstance(item, Collective) and (move or item.axis != AXIS):
            return []
        chain.append(item)
        name = item.reads[0].name
    unpack = chain[1]
    assert isinstance(unpack, Rearrange)
    padded = any(int(span.padded) != int(span.tokens) for span in unpack.spans)
    return [] if padded or op.causal or op.window else chain


def _without_chain(
    body: list[Item], attention: Attention, chain: list[Rearrange | Collective]
) -> list[Item]:
    split, unpack, gather, stack = chain
    assert isinstance(split, Rearrange)
    assert isinstance(unpack, Rearrange)
    local, spans = stack.reads[0], unpack.spans
    parts = tuple(replace(part, shape=(*local.shape[:2], part.shape[2])) for part in split.outputs)
    new_split = replace(split, inputs=(local,), outputs=parts)
    new_attention = replace(attention, k=parts[0], v=parts[1], key_spans=spans)
    removed_ids = (id(unpack), id(gather), id(stack))
    swaps: dict[int, Item] = {id(split): new_split, id(attention): new_attention}
    return [swaps.get(id(item), item) for item in body if id(item) not in removed_ids]
