"""Linear attention and convolutions over a picture as layers; sums over keys in 32 bits."""

from collections.abc import Sequence

import numpy as np

from costmodels.program.ops import Depthwise, LinearAttention, Rearrange
from costmodels.program.rows import chunk_of
from planner.tensorrt.products import named_weight
from planner.tensorrt.sheet import Draft, Value
from planner.tensorrt.write import (
    activation,
    cast,
    concat,
    elementwise,
    gather,
    matmul,
    scalar,
    shuffle,
    take,
    wide,
)

TINY = 10.0**-12
"""Keeps a quotient finite where no key looks like the query."""
SIDE = 3
"""Points a side of a convolution's kernel."""


def linear_attention(draft: Draft, op: LinearAttention, inputs: Sequence[Value]) -> Value:
    """Write sums over keys, or what queries find in them."""
    return _sum(draft, op, inputs) if op.part == "sum" else _read(draft, op, inputs)


def _sum(draft: Draft, op: LinearAttention, inputs: Sequence[Value]) -> Value:
    """``[b, h, size, rows]`` times ``[b, h, rows, size + 1]``."""
    key, value = inputs
    name = op.out.name
    turned = _heads(draft, _kept(draft, key), op, (0, 2, 3, 1))
    wider = _heads(draft, wide(draft, value), op, (0, 2, 1, 3))
    ones = draft.constant(np.ones((*wider.shape[:3], 1), np.float32), "ones")
    return matmul(draft, turned, concat(draft, (wider, ones), 3, f"{name}.values"), name)


def _read(draft: Draft, op: LinearAttention, inputs: Sequence[Value]) -> Value:
    query, state = inputs
    name = op.out.name
    found = matmul(
        draft, _heads(draft, _kept(draft, query), op, (0, 2, 1, 3)), state, f"{name}.found"
    )
    total = take(draft, found, op.size, 1, 3, f"{name}.total")
    tiny = scalar(draft, TINY, total, "tiny")
    safe = elementwise(draft, "SUM", total, tiny, f"{name}.safe")
    values = take(draft, found, 0, op.size, 3, f"{name}.sums")
    mean = elementwise(draft, "DIV", values, safe, f"{name}.mean")
    rows = shuffle(draft, mean, query.shape, f"{name}.rows", first=(0, 2, 1, 3))
    return cast(draft, rows, query.dtype, name)


def _kept(draft: Draft, x: Value) -> Value:
    """Keep what is above zero, in 32 bits."""
    return wide(draft, activation(draft, "RELU", x, f"{x.name}.kept"))


def _heads(draft: Draft, x: Value, op: LinearAttention, turn: Sequence[int]) -> Value:
    shape = (*x.shape[:2], op.heads, op.size)
    return shuffle(draft, x, shape, f"{x.name}.heads", second=turn)


def depthwise(draft: Draft, op: Depthwise, x: Value, layer: int) -> Value:
    """Write a convolution; lines from neighbours stand in for padding.

    Where there is no neighbour their lines are zeros, and still are behind a product and a SiLU.
    """
    line, name = int(op.line), op.out.name
    batch, rows, features = x.shape
    picture = shuffle(
        draft, x, (batch, rows // line, line, features), f"{name}.in", second=(0, 3, 1, 2)
    )
    kernels = named_weight(draft, op.weight, layer)
    taps = shuffle(
        draft,
        kernels,
        (features, 1, SIDE, SIDE),
        f"{name}.kernels",
        first=(2, 0, 1),
    )
    lines = int(op.out.shape[1]) // line
    padding = [0 if op.halo else 1, 1]
    out = draft.add(
        "convolution",
        (picture, taps),
        (batch, features, lines, line),
        x.dtype,
        f"{name}.picture",
        padding=padding,
        groups=features,
    )
    return shuffle(draft, out, (batch, lines * line, features), name, first=(0, 2, 3, 1))


def borders(draft: Draft, op: Rearrange, inputs: Sequence[Value]) -> list[Value]:
    """Lay the rows at both ends side by side."""
    (x,), (out,) = inputs, op.outputs
    halo = int(out.shape[2]) // 2
    ends = [
        take(draft, x, start, halo, 1, f"{out.name}.end{start}") for start in (0, x.shape[1] - halo)
    ]
    both = concat(draft, ends, 1, f"{out.name}.ends")
    return [shuffle(draft, both, (1, *both.shape), out.name)]


def surround(draft: Draft, op: Rearrange, inputs: Sequence[Value]) -> list[Value]:
    """Lay the neighbours' rows around those here; zeros where there is no neighbour."""
    x, edges = inputs
    name, (ranks, batch, both, features) = op.outputs[0].name, edges.shape
    halo = both // 2
    flat = shuffle(
        draft, edges, (batch, ranks * both, features), f"{name}.edges", first=(1, 0, 2, 3)
    )
    none = np.zeros((batch, halo, features), np.float32)
    zeros = cast(draft, draft.constant(none, "none"), x.dtype, f"{name}.none")
    every = concat(draft, (flat, zeros), 1, f"{name}.every")
    places = [chunk_of(op.spans[0], index) for index in draft.indices]
    sides = [
        [_neighbour(place + step, ranks, halo, first=step > 0) for place in places]
        for step in (-1, 1)
    ]
    before, after = (
        gather(draft, every, draft.table(wanted, f"{name}.from"), 1, f"{name}.side{number}")
        for number, wanted in enumerate(sides)
    )
    return [concat(draft, (before, x, after), 1, name)]


def _neighbour(
    rank: int, ranks: int, halo: int, *, first: bool
) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Where the first or last rows of a rank stand among all edges; behind them for none."""
    start = rank * 2 * halo + (0 if first else halo)
    start = start if 0 <= rank < ranks else ranks * 2 * halo
    return np.arange(start, start + halo, dtype=np.int32)
