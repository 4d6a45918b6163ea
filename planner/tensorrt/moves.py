"""Rearrangements as layers: shuffles and slices where neighbours stay neighbours, else gathers."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.program import Rearrange
from costmodels.program.rows import (
    Numbers,
    chunk_of,
    joined_rows,
    latest_rank,
    positions_of,
    row_sources,
)
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Value
from planner.tensorrt.runner.weights import own_features

Values = Sequence[Value]


def rearrange(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Write a move; one value for every output."""
    return _MOVES[op.move](draft, op, inputs)


def pick(draft: Draft, x: Value, wanted: Sequence[Numbers], axis: int, hint: str) -> Value:
    """Pick places along an axis, each rank its own; -1 stands for padding, whose value is free."""
    first = wanted[0]
    if all(np.array_equal(first, other) for other in wanted[1:]):
        start = int(first[0]) if len(first) else 0
        if start >= 0 and np.array_equal(first, np.arange(start, start + len(first))):
            return draft.take(x, start, len(first), axis, hint)
    places = [np.maximum(places_of_rank, 0).astype(np.int32) for places_of_rank in wanted]
    return draft.gather(x, draft.table(places, f"{hint}.places"), axis, hint)


def _split_features(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return _cut(draft, op, inputs[0], -1)


def _split_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return _cut(draft, op, inputs[0], 1)


def _cut(draft: Draft, op: Rearrange, x: Value, axis: int) -> list[Value]:
    made, start = [], 0
    for out in op.outputs:
        count = int(out.shape[axis])
        made.append(draft.take(x, start, count, axis, out.name))
        start += count
    return made


def _concat_features(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [draft.concat(inputs, -1, op.outputs[0].name)]


def _concat_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [draft.concat(inputs, 1, op.outputs[0].name)]


def _shard(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    wanted = [positions_of(op.spans, index) for index in draft.indices]
    return [pick(draft, inputs[0], wanted, 1, op.outputs[0].name)]


def _heads(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    parts = [(part.units, part.size) for part in op.parts]
    wanted = [own_features(parts, op.degree, index[op.axis]) for index in draft.indices]
    return [pick(draft, inputs[0], wanted, 2, op.outputs[0].name)]


def _pack_heads(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Lay rows end to end, and put the heads of each rank in front: ``[degree, b, r, f]``."""
    name = op.outputs[0].name
    rows = draft.concat(inputs, 1, f"{name}.rows")
    batch, count = rows.shape[:2]
    pieces, start = [], 0
    for number, part in enumerate(op.parts):
        width = part.units * part.size
        piece = draft.take(rows, start, width, 2, f"{name}.part{number}")
        shape = (batch, count, op.degree, width // op.degree)
        pieces.append(draft.shuffle(piece, shape, f"{name}.heads{number}"))
        start += width
    joined = draft.concat(pieces, 3, f"{name}.joined")
    return [draft.shuffle(joined, joined.shape, name, second=(2, 0, 1, 3))]


def _unpack_heads(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Lay the features that each rank computed side by side, part by part."""
    (x,), name = inputs, op.outputs[0].name
    pieces, start = [], 0
    for number, part in enumerate(op.parts):
        width = part.local(op.degree)
        piece = draft.take(x, start, width, -1, f"{name}.part{number}")
        shape = (*x.shape[1:-1], op.degree * width)
        turned = (1, 2, 0, 3)
        pieces.append(draft.shuffle(piece, shape, f"{name}.heads{number}", first=turned))
        start += width
    return [draft.concat(pieces, -1, name)]


def _unpack_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Lay the rows of all ranks end to end, and put them in the order of their streams."""
    (x,), name = inputs, op.outputs[0].name
    degree, batch, rows, width = x.shape
    flat = draft.shuffle(x, (batch, degree * rows, width), f"{name}.flat", first=(1, 0, 2, 3))
    wanted = [row_sources(op.spans, op.axis, op.degree, index) for index in draft.indices]
    return [pick(draft, flat, wanted, 1, name)]


def _pack_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    (x,), name = inputs, op.outputs[0].name
    wanted = [
        joined_rows(op.spans, op.axis, op.degree, index).reshape(-1) for index in draft.indices
    ]
    flat = pick(draft, x, wanted, 1, f"{name}.flat")
    batch, rows, width = flat.shape
    shape = (batch, op.degree, rows // op.degree, width)
    return [draft.shuffle(flat, shape, name, second=(1, 0, 2, 3))]


def _regroup(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    out = op.outputs[0]
    return [draft.shuffle(inputs[0], tuple(int(size) for size in out.shape), out.name)]


def _stack(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [draft.shuffle(inputs[0], (1, *inputs[0].shape), op.outputs[0].name)]


def _unstack(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [draft.shuffle(inputs[0], inputs[0].shape[1:], op.outputs[0].name)]


def _last(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    wanted = [np.array([np.argmax(positions_of(op.spans, index))]) for index in draft.indices]
    return [pick(draft, inputs[0], wanted, 1, op.outputs[0].name)]


def _latest(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Keep the row of the rank whose rows reach furthest."""
    (x,), name = inputs, op.outputs[0].name
    (span,) = op.spans
    wanted = [np.array([latest_rank(span, op.axis, op.degree, index)]) for index in draft.indices]
    row = pick(draft, x, wanted, 0, f"{name}.row")
    return [draft.shuffle(row, x.shape[1:], name)]


def _hop(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Keep the chunk of a rank before this one."""
    (x,), name = inputs, op.outputs[0].name
    wanted = [np.array([(index[op.axis] - op.turn) % op.degree]) for index in draft.indices]
    chunk = pick(draft, x, wanted, 0, f"{name}.chunk")
    return [draft.shuffle(chunk, x.shape[1:], name)]


def _borders(draft: Draft, op: Rearrange, inputs: Sequence[Value]) -> list[Value]:
    """Lay the rows at both ends side by side."""
    (x,), (out,) = inputs, op.outputs
    halo = int(out.shape[2]) // 2
    ends = [
        draft.take(x, start, halo, 1, f"{out.name}.end{start}") for start in (0, x.shape[1] - halo)
    ]
    both = draft.concat(ends, 1, f"{out.name}.ends")
    return [draft.shuffle(both, (1, *both.shape), out.name)]


def _surround(draft: Draft, op: Rearrange, inputs: Sequence[Value]) -> list[Value]:
    """Lay the neighbours' rows around those here; zeros where there is no neighbour."""
    x, edges = inputs
    name, (ranks, batch, both, features) = op.outputs[0].name, edges.shape
    halo = both // 2
    flat = draft.shuffle(
        edges, (batch, ranks * both, features), f"{name}.edges", first=(1, 0, 2, 3)
    )
    none = np.zeros((batch, halo, features), np.float32)
    zeros = draft.cast(draft.constant(none, "none"), x.dtype, f"{name}.none")
    every = draft.concat((flat, zeros), 1, f"{name}.every")
    places = [chunk_of(op.spans[0], index) for index in draft.indices]
    sides = [
        [_neighbour(place + step, ranks, halo, first=step > 0) for place in places]
        for step in (-1, 1)
    ]
    before, after = (
        draft.gather(every, draft.table(wanted, f"{name}.from"), 1, f"{name}.side{number}")
        for number, wanted in enumerate(sides)
    )
    return [draft.concat((before, x, after), 1, name)]


def _neighbour(
    rank: int, ranks: int, halo: int, *, first: bool
) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Where the first or last rows of a rank stand among all edges; behind them for none."""
    start = rank * 2 * halo + (0 if first else halo)
    start = start if 0 <= rank < ranks else ranks * 2 * halo
    return np.arange(start, start + halo, dtype=np.int32)


_MOVES: Final[dict[str, Callable[[Draft, Rearrange, Values], list[Value]]]] = {
    "split_features": _split_features,
    "split_rows": _split_rows,
    "concat_features": _concat_features,
    "concat_rows": _concat_rows,
    "append": _concat_rows,
    "shard": _shard,
    "heads": _heads,
    "pack_heads": _pack_heads,
    "unpack_heads": _unpack_heads,
    "unpack_rows": _unpack_rows,
    "pack_rows": _pack_rows,
    "regroup": _regroup,
    "stack": _stack,
    "unstack": _unstack,
    "last": _last,
    "latest": _latest,
    "hop": _hop,
    "borders": _borders,
    "surround": _surround,
}
