"""Rearrangements as layers: shuffles and slices where neighbours stay neighbours, else gathers."""

from collections.abc import Sequence

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
from planner.tensorrt.cache import last_filled
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Value
from planner.tensorrt.runner.weights import own_features

Values = Sequence[Value]


def rearrange(draft: Draft, op: Rearrange, inputs: Values) -> list[Value]:
    """Write a move; one value for every output."""
    match op.move:
        case "split_features" | "split_rows":
            return _cut_outputs(draft, op, inputs[0], -1 if op.move == "split_features" else 1)
        case "concat_features" | "concat_rows":
            axis = -1 if op.move == "concat_features" else 1
            return [draft.concat(inputs, axis, op.outputs[0].name)]
        case "turn":
            return [draft.row(inputs[0], inputs[1], op.outputs[0].name)]
        case "pack_heads":
            return [_pack_heads(draft, op, inputs)]
        case "surround":
            return [_surround(draft, op, *inputs)]
    return [_moved_value(draft, op, inputs[0])]


def _moved_value(  # noqa: C901, PLR0911, PLR0912  # one case a move
    draft: Draft, op: Rearrange, x: Value
) -> Value:
    name, rank_indices = op.outputs[0].name, draft.indices
    match op.move:
        case "shard":
            return pick(
                draft, x, [positions_of(op.spans, index) for index in rank_indices], 1, name
            )
        case "heads":
            parts = [(part.units, part.size) for part in op.parts]
            rank_features = [
                own_features(parts, op.degree, index[op.axis]) for index in rank_indices
            ]
            return pick(draft, x, rank_features, 2, name)
        case "unpack_heads":
            return _unpack_heads(draft, op, x)
        case "unpack_rows":
            return _unpack_rows(draft, op, x)
        case "pack_rows":
            return _pack_rows(draft, op, x)
        case "regroup":
            return draft.shuffle(x, tuple(int(size) for size in op.outputs[0].shape), name)
        case "interleave":
            points = (*x.shape[:2], op.degree, x.shape[2] // op.degree)
            turned = draft.shuffle(x, points, f"{name}.points", second=(0, 1, 3, 2))
            return draft.shuffle(turned, x.shape, name)
        case "stack":
            return draft.shuffle(x, (1, *x.shape), name)
        case "unstack":
            return draft.shuffle(x, x.shape[1:], name)
        case "last" if draft.filled is not None and not draft.moving:
            return last_filled(draft, x, name)
        case "last":
            last_positions = [
                np.array([np.argmax(positions_of(op.spans, index))]) for index in rank_indices
            ]
            return pick(draft, x, last_positions, 1, name)
        case "latest":  # the row of the rank whose rows reach furthest
            ranks = [latest_rank(op.spans[0], op.axis, op.degree, index) for index in rank_indices]
            return _rank_chunk(draft, x, ranks, f"{name}.row", name)
        case "hop":  # the chunk of a rank before this one
            ranks = [(index[op.axis] - op.turn) % op.degree for index in rank_indices]
            return _rank_chunk(draft, x, ranks, f"{name}.chunk", name)
        case "borders":
            return _borders(draft, op, x)
    raise AssertionError(f"no layers for {op.move}")


def _rank_chunk(draft: Draft, x: Value, ranks: Sequence[int], hint: str, name: str) -> Value:
    """Keep what one rank has sent, each rank its own choice."""
    chunk = pick(draft, x, [np.array([rank]) for rank in ranks], 0, hint)
    return draft.shuffle(chunk, x.shape[1:], name)


def pick(draft: Draft, x: Value, wanted: Sequence[Numbers], axis: int, hint: str) -> Value:
    """Pick places along an axis, each rank its own; -1 stands for padding, whose value is free."""
    first_wanted = wanted[0]
    if all(np.array_equal(first_wanted, next_wanted) for next_wanted in wanted[1:]):
        start = int(first_wanted[0]) if len(first_wanted) else 0
        if start >= 0 and np.array_equal(first_wanted, np.arange(start, start + len(first_wanted))):
            return draft.take(x, start, len(first_wanted), axis, hint)
    places = [np.maximum(places_of_rank, 0).astype(np.int32) for places_of_rank in wanted]
    return draft.gather(x, draft.table(places, f"{hint}.places"), axis, hint)


def _cut_outputs(draft: Draft, op: Rearrange, x: Value, axis: int) -> list[Value]:
    pieces, start = [], 0
    for out in op.outputs:
        count = int(out.shape[axis])
        pieces.append(draft.take(x, start, count, axis, out.name))
        start += count
    return pieces


def _pack_heads(draft: Draft, op: Rearrange, inputs: Values) -> Value:
    """Lay rows end to end, and put the heads of each rank in front: ``[degree, b, r, f]``."""
    name = op.outputs[0].name
    rows = draft.concat(inputs, 1, f"{name}.rows")
    pieces, start = [], 0
    for number, part in enumerate(op.parts):
        width = part.units * part.size
        piece = draft.take(rows, start, width, 2, f"{name}.part{number}")
        shape = (*rows.shape[:2], op.degree, width // op.degree)
        pieces.append(draft.shuffle(piece, shape, f"{name}.heads{number}"))
        start += width
    joined = draft.concat(pieces, 3, f"{name}.joined")
    return draft.shuffle(joined, joined.shape, name, second=(2, 0, 1, 3))


def _unpack_heads(draft: Draft, op: Rearrange, x: Value) -> Value:
    """Lay the features that each rank computed side by side, part by part."""
    name, ranks_inward = op.outputs[0].name, (1, 2, 0, 3)
    pieces, start = [], 0
    for number, part in enumerate(op.parts):
        width = part.local(op.degree)
        piece = draft.take(x, start, width, -1, f"{name}.part{number}")
        shape = (*x.shape[1:-1], op.degree * width)
        pieces.append(draft.shuffle(piece, shape, f"{name}.heads{number}", first=ranks_inward))
        start += width
    return draft.concat(pieces, -1, name)


def _unpack_rows(draft: Draft, op: Rearrange, x: Value) -> Value:
    """Lay the rows of all ranks end to end, and put them in the order of their streams."""
    name, (degree, batch, rows, width) = op.outputs[0].name, x.shape
    flat = draft.shuffle(x, (batch, degree * rows, width), f"{name}.flat", first=(1, 0, 2, 3))
    row_order = [row_sources(op.spans, op.axis, op.degree, index) for index in draft.indices]
    return pick(draft, flat, row_order, 1, name)


def _pack_rows(draft: Draft, op: Rearrange, x: Value) -> Value:
    name = op.outputs[0].name
    rows = [joined_rows(op.spans, op.axis, op.degree, index) for index in draft.indices]
    flat = pick(draft, x, [rank_rows.reshape(-1) for rank_rows in rows], 1, f"{name}.flat")
    batch, count, width = flat.shape
    shape = (batch, op.degree, count // op.degree, width)
    return draft.shuffle(flat, shape, name, second=(1, 0, 2, 3))


def _borders(draft: Draft, op: Rearrange, x: Value) -> Value:
    """Lay the rows at both ends side by side."""
    out = op.outputs[0]
    halo = int(out.shape[2]) // 2
    starts = (0, x.shape[1] - halo)
    ends = [draft.take(x, start, halo, 1, f"{out.name}.end{start}") for start in starts]
    joined_ends = draft.concat(ends, 1, f"{out.name}.ends")
    return draft.shuffle(joined_ends, (1, *joined_ends.shape), out.name)


def _surround(draft: Draft, op: Rearrange, x: Value, edges: Value) -> Value:
    """Add the layers that lay neighbours' rows around those here, zeros at the ends."""
    name, (ranks, batch, edge_rows, features) = op.outputs[0].name, edges.shape
    halo, shape = edge_rows // 2, (batch, ranks * edge_rows, features)
    flat = draft.shuffle(edges, shape, f"{name}.edges", first=(1, 0, 2, 3))
    zero_rows = np.zeros((batch, halo, features), np.float32)
    zeros = draft.cast(draft.constant(zero_rows, "none"), x.dtype, f"{name}.none")
    edges_and_zeros = draft.concat((flat, zeros), 1, f"{name}.every")
    places = [chunk_of(op.spans[0], index) for index in draft.indices]
    sides = [
        [_neighbour_rows(place + step, ranks, halo, first=step > 0) for place in places]
        for step in (-1, 1)
    ]
    before_rows, after_rows = (
        draft.gather(
            edges_and_zeros, draft.table(source_rows, f"{name}.from"), 1, f"{name}.side{number}"
        )
        for number, source_rows in enumerate(sides)
    )
    return draft.concat((before_rows, x, after_rows), 1, name)


def _neighbour_rows(
    rank: int, ranks: int, halo: int, *, first: bool
) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Where the first or last rows of a rank stand among all edges; behind them for none."""
    start = rank * 2 * halo + (0 if first else halo)
    start = start if 0 <= rank < ranks else ranks * 2 * halo
    return np.arange(start, start + halo, dtype=np.int32)
