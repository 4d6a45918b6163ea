"""Moves of data on PyTorch: a view where there is one, else a single pass over the bytes."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import torch

from costmodels.program import Part, Rearrange
from costmodels.program.rows import Numbers, joined_rows, latest_rank, positions, row_sources
from validate.reference.run import shape_of
from validate.reference.weights import own_features
from validate.torch.setting import Bound, Kernel, Setting, Values

Tensors = list[torch.Tensor]

Run = tuple[int, int, int]
"""Neighbouring rows: the block they lie in, and from where to where. Block -1 stands for zeros."""


def runs(blocks: Numbers, rows: Numbers) -> list[Run]:
    """Join rows that follow each other within a block.

    >>> runs(np.array([0, 0, 1, -1, -1]), np.array([4, 5, 0, -1, -1]))
    [(0, 4, 6), (1, 0, 1), (-1, 0, 2)]
    """
    if not len(rows):
        return []
    follows = (np.diff(blocks) == 0) & ((np.diff(rows) == 1) | (blocks[1:] < 0))
    starts = [0, *(np.flatnonzero(~follows) + 1).tolist()]
    stops = [*starts[1:], len(rows)]
    joined = []
    for start, stop in zip(starts, stops, strict=True):
        first_row = max(int(rows[start]), 0)
        joined.append((int(blocks[start]), first_row, first_row + stop - start))
    return joined


def from_rows(rows: Numbers) -> list[Run]:
    """Join rows of one block; -1 is a row of zeros."""
    return runs(np.where(rows < 0, -1, 0), rows)


def join(blocks: Sequence[torch.Tensor], wanted: Sequence[Run], dim: int) -> torch.Tensor:
    """Lay runs end to end along `dim`: a view where there is one, else one copy."""
    pieces = []
    for block, start, stop in wanted:
        if block >= 0:
            pieces.append(blocks[block].narrow(dim, start, stop - start))
        else:
            shape = list(blocks[0].shape)
            shape[dim] = stop - start
            pieces.append(blocks[0].new_zeros(shape))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


RUNNER_MOVES: Final = ("store", "load", "append", "collect", "keep", "recall")
"""Moves that reach beyond one operation; whoever runs the program does them."""


def bind(op: Rearrange, setting: Setting) -> Bound:
    """Make a move ready to run."""
    if op.move == "unpack_heads":
        return _unpack_heads(op, setting)
    return Bound(_kernel(op, setting))


def _kernel(op: Rearrange, setting: Setting) -> Kernel:  # noqa: C901, PLR0911, PLR0912  # one case a move
    dim = -1 if op.move.endswith("features") else 1
    match op.move:
        case "split_features" | "split_rows":
            sizes = [shape_of(out)[dim] for out in op.outputs]
            return lambda inputs: list(torch.split(inputs[0], sizes, dim))
        case "concat_features" | "concat_rows":
            return lambda inputs: [torch.cat(list(inputs), dim)]
        case "concat_heads":
            return partial(_concat_heads, op.parts[0])
        case "regroup":
            shape = shape_of(op.outputs[0])
            return lambda inputs: [inputs[0].reshape(shape)]
        case "stack":
            return lambda inputs: [inputs[0].contiguous()[None]]
        case "unstack":
            return lambda inputs: [inputs[0][0]]
        case "borders":
            halo = shape_of(op.outputs[0])[2] // 2
            return lambda inputs: [torch.cat([inputs[0][:, :halo], inputs[0][:, -halo:]], 1)[None]]
        case "surround":
            return _surround(op, setting)
        case "shard":
            rows = from_rows(positions(op.spans[0], setting.index))
            return lambda inputs: [join(inputs, rows, 1)]
        case "heads":
            own_runs = from_rows(own_features(op.parts, op.degree, setting.index[op.axis]))
            return lambda inputs: [join(inputs, own_runs, -1)]
        case "pack_heads":
            return partial(_pack_heads, op, setting)
        case "pack_rows":
            return _pack_rows(op, setting)
        case "unpack_rows":
            return _unpack_rows(op, setting)
        case "hop":
            chunk = (setting.index[op.axis] - op.turn) % op.degree
            return lambda inputs: [inputs[0][chunk]]
        case "homeward":
            steps = [(setting.index[op.axis] - rank) % op.degree for rank in range(op.degree)]
            return lambda inputs: [torch.stack([inputs[step] for step in steps])]
        case "last":
            row = int(np.argmax(positions(op.spans[0], setting.index)))
            return lambda inputs: [inputs[0][:, row : row + 1]]
        case "latest":
            rank = latest_rank(op.spans[0], op.axis, op.degree, setting.index)
            return lambda inputs: [inputs[0][rank]]
        case _:
            raise AssertionError(f"{op.move} is the runner's")


def _concat_heads(part: Part, inputs: Values) -> Tensors:
    """Lay features that all heads share behind those of each."""
    head_features = torch.unflatten(inputs[0], -1, (-1, part.size))
    shared = inputs[1][:, :, None].expand(-1, -1, head_features.shape[2], -1)
    return [torch.cat([head_features, shared], -1).flatten(-2)]


def _surround(op: Rearrange, setting: Setting) -> Kernel:
    """Lay the neighbours' rows around those here; zeros where there is no neighbour."""
    place = 0
    for axis, degree in op.spans[0].axes:
        place = place * degree + setting.index[axis]
    ranks, _, border_rows, _ = shape_of(op.inputs[1])
    halo = border_rows // 2

    def run(inputs: Values) -> Tensors:
        x, edges = inputs
        no_rows = torch.zeros_like(x[:, :halo])
        before = edges[place - 1, :, halo:] if place else no_rows
        after = edges[place + 1, :, :halo] if place + 1 < ranks else no_rows
        return [torch.cat([before, x, after], 1)]

    return run


def _has_own_units(part: Part, degree: int) -> bool:
    """Whether each rank has features of its own, side by side."""
    return part.units % degree == 0


def _pack_heads(op: Rearrange, setting: Setting, inputs: Values) -> Tensors:
    """From ``[b, r, f]`` to ``[degree, b, r, f / degree]``, part by part."""
    blocks = [_views_by_rank(op, x) for x in inputs]
    if setting.traced or len(blocks) * len(op.parts) == 1:
        joined = [torch.cat(parts, -1) if len(parts) > 1 else parts[0] for parts in blocks]
        return [(torch.cat(joined, 2) if len(joined) > 1 else joined[0]).contiguous()]
    out = inputs[0].new_empty(shape_of(op.outputs[0]))
    row = 0
    for block in blocks:
        column, rows = 0, block[0].shape[2]
        for part in block:
            columns = part.shape[3]
            out[:, :, row : row + rows, column : column + columns].copy_(part)
            column += columns
        row += rows
    return [out]


def _views_by_rank(op: Rearrange, x: torch.Tensor) -> Tensors:
    """Cut features into views ``[degree, b, r, w]``, one a part."""
    widths = [part.units * part.size for part in op.parts]
    views = []
    for part, features in zip(op.parts, torch.split(x, widths, -1), strict=True):
        if _has_own_units(part, op.degree):
            views.append(torch.unflatten(features, -1, (op.degree, -1)).permute(2, 0, 1, 3))
        else:
            ranks = range(op.degree)
            rank_runs = [from_rows(own_features((part,), op.degree, rank)) for rank in ranks]
            views.append(torch.stack([join([features], runs, -1) for runs in rank_runs]))
    return views


def _unpack_heads(op: Rearrange, setting: Setting) -> Bound:
    """From ``[degree, b, r, f]`` to ``[b, r, features]``, each where its part has it."""

    def straight(inputs: Values) -> Tensors:
        return [inputs[0].permute(1, 2, 0, 3).flatten(-2)]

    if len(op.parts) == 1 and _has_own_units(op.parts[0], op.degree):
        return Bound(straight)
    width = sum(part.units * part.size for part in op.parts)
    sources = np.zeros(width, np.int64)
    for rank in range(op.degree):
        features = own_features(op.parts, op.degree, rank)
        sources[features] = rank * len(features) + np.arange(len(features))
    table = setting.table(sources, torch.int64)
    return Bound(lambda inputs: [straight(inputs)[0].index_select(-1, inputs[1])], (table,))


def _unpack_rows(op: Rearrange, setting: Setting) -> Kernel:
    """From ``[degree, b, r, f]`` to ``[b, rows, f]``: free for one sample with rows in order."""
    sources = row_sources(op.spans, op.axis, op.degree, setting.index)
    rows, rank_rows = len(sources), shape_of(op.inputs[0])[2]
    in_order = np.array_equal(sources, np.arange(rows))
    source_runs = runs(sources // rank_rows, np.where(sources < 0, -1, sources % rank_rows))

    def run(inputs: Values) -> Tensors:
        x = inputs[0]
        if in_order:
            return [x.transpose(0, 1).flatten(1, 2).narrow(1, 0, rows)]
        return [join(list(x), source_runs, 1)]

    return run


def _pack_rows(op: Rearrange, setting: Setting) -> Kernel:
    """From ``[b, rows, f]`` to ``[degree, b, r, f]``, the way back of `_unpack_rows`."""
    targets = joined_rows(op.spans, op.axis, op.degree, setting.index)
    all_runs = from_rows(targets.reshape(-1))
    rank_runs = [from_rows(rows) for rows in targets]

    def run(inputs: Values) -> Tensors:
        x = inputs[0]
        if x.shape[0] == 1:
            return [torch.unflatten(join([x], all_runs, 1), 1, (op.degree, -1)).transpose(0, 1)]
        return [torch.stack([join([x], runs, 1) for runs in rank_runs])]

    return run
