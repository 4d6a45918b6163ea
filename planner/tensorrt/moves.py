"""Rearrangements as layers: shuffles and slices where neighbours stay neighbours, else gathers."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.program.ops import Rearrange
from costmodels.program.rows import Numbers, joined_rows, latest_rank, positions_of, row_sources
from planner.tensorrt.linear import borders, surround
from planner.tensorrt.runner.shares import own_features
from planner.tensorrt.sheet import Draft, Value
from planner.tensorrt.write import concat, gather, shuffle, take

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
            return take(draft, x, start, len(first), axis, hint)
    places = [np.maximum(one, 0).astype(np.int32) for one in wanted]
    return gather(draft, x, draft.table(places, f"{hint}.places"), axis, hint)


def _split_features(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return _cut(draft, op, inputs[0], -1)


def _split_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return _cut(draft, op, inputs[0], 1)


def _cut(draft: Draft, op: Rearrange, x: Value, axis: int) -> list[Value]:
    made, start = [], 0
    for out in op.outputs:
        count = int(out.shape[axis])
        made.append(take(draft, x, start, count, axis, out.name))
        start += count
    return made


def _concat_features(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [concat(draft, inputs, -1, op.outputs[0].name)]


def _concat_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [concat(draft, inputs, 1, op.outputs[0].name)]


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
    rows = concat(draft, inputs, 1, f"{name}.rows")
    batch, count = rows.shape[:2]
    pieces, start = [], 0
    for number, part in enumerate(op.parts):
        width = part.units * part.size
        piece = take(draft, rows, start, width, 2, f"{name}.part{number}")
        shape = (batch, count, op.degree, width // op.degree)
        pieces.append(shuffle(draft, piece, shape, f"{name}.heads{number}"))
        start += width
    joined = concat(draft, pieces, 3, f"{name}.joined")
    return [shuffle(draft, joined, joined.shape, name, second=(2, 0, 1, 3))]


def _unpack_heads(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Lay the features that each rank computed side by side, part by part."""
    (x,), name = inputs, op.outputs[0].name
    pieces, start = [], 0
    for number, part in enumerate(op.parts):
        width = part.local(op.degree)
        piece = take(draft, x, start, width, -1, f"{name}.part{number}")
        shape = (*x.shape[1:-1], op.degree * width)
        turned = (1, 2, 0, 3)
        pieces.append(shuffle(draft, piece, shape, f"{name}.heads{number}", first=turned))
        start += width
    return [concat(draft, pieces, -1, name)]


def _unpack_rows(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Lay the rows of all ranks end to end, and put them in the order of their streams."""
    (x,), name = inputs, op.outputs[0].name
    degree, batch, rows, width = x.shape
    flat = shuffle(draft, x, (batch, degree * rows, width), f"{name}.flat", first=(1, 0, 2, 3))
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
    return [shuffle(draft, flat, shape, name, second=(1, 0, 2, 3))]


def _stack(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [shuffle(draft, inputs[0], (1, *inputs[0].shape), op.outputs[0].name)]


def _unstack(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    return [shuffle(draft, inputs[0], inputs[0].shape[1:], op.outputs[0].name)]


def _last(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    wanted = [np.array([np.argmax(positions_of(op.spans, index))]) for index in draft.indices]
    return [pick(draft, inputs[0], wanted, 1, op.outputs[0].name)]


def _latest(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Keep the row of the rank whose rows reach furthest."""
    (x,), name = inputs, op.outputs[0].name
    (span,) = op.spans
    wanted = [np.array([latest_rank(span, op.axis, op.degree, index)]) for index in draft.indices]
    row = pick(draft, x, wanted, 0, f"{name}.row")
    return [shuffle(draft, row, x.shape[1:], name)]


def _hop(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Keep the chunk of a rank before this one."""
    (x,), name = inputs, op.outputs[0].name
    wanted = [np.array([(index[op.axis] - op.turn) % op.degree]) for index in draft.indices]
    chunk = pick(draft, x, wanted, 0, f"{name}.chunk")
    return [shuffle(draft, chunk, x.shape[1:], name)]


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
    "stack": _stack,
    "unstack": _unstack,
    "last": _last,
    "latest": _latest,
    "hop": _hop,
    "borders": borders,
    "surround": surround,
}
