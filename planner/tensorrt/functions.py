"""Row-wise functions as layers; sums and roots in 32 bits."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.program.ops import Pointwise, Tensor
from costmodels.program.rows import rotary_angles
from planner.tensorrt.learned import Learned, of_heads, of_norm
from planner.tensorrt.sheet import Draft, Dtype, Value
from planner.tensorrt.write import (
    activation,
    cast,
    concat,
    elementwise,
    reduce,
    scalar,
    scaled,
    shuffle,
    take,
    unary,
    wide,
)

Values = Sequence[Value]
GUIDANCE: Final = 3.0
STEP: Final = 0.1
TINY: Final = 10.0**-12
"""Keeps the norm of a row of zeros finite."""


def dtype_of(draft: Draft, tensor: Tensor) -> Dtype:
    """Type of a program's tensor: what it holds in 32 bits stays wide."""
    return "fp32" if tensor.itemsize >= 4 else draft.compute


def pointwise(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    """Write a row-wise function; one value for every output."""
    return _FUNCTIONS[op.function](draft, op, inputs)


def _normed(draft: Draft, x: Value, hint: str, learned: Sequence[Learned] = ()) -> Value:
    """Divide rows of 32-bit numbers by their root mean square; what is learned may follow."""
    square = elementwise(draft, "PROD", x, x, f"{hint}.square")
    mean = reduce(draft, "AVG", square, -1, f"{hint}.mean")
    kept = elementwise(draft, "SUM", mean, scalar(draft, TINY, mean, "tiny"), f"{hint}.kept")
    root = unary(draft, "SQRT", kept, f"{hint}.root")
    more = {"learned": list(learned)} if learned else {}
    return draft.add(
        "elementwise", (x, root), x.shape, x.dtype, f"{hint}.normed", operation="DIV", **more
    )


def _vector(draft: Draft, x: Value, row: Value, place: int) -> Value:
    """One of a conditioning row's vectors, which repeat where there are too few."""
    width = x.shape[-1]
    first = place % (row.shape[-1] // width) * width
    return take(draft, row, first, width, -1, f"{row.name}.vector{first // width}")


def _norm(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    normed = _normed(draft, wide(draft, x), name, of_norm(draft, op, x))
    return [cast(draft, normed, x.dtype, name)]


def _modulated_norm(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    shift, scale = (
        wide(draft, _vector(draft, x, inputs[1], 3 * op.place + number)) for number in range(2)
    )
    more = elementwise(draft, "SUM", scale, scalar(draft, 1.0, scale, "one"), f"{name}.scale")
    normed = _normed(draft, wide(draft, x), name)
    product = elementwise(draft, "PROD", normed, more, f"{name}.scaled")
    moved = elementwise(draft, "SUM", product, shift, f"{name}.shifted")
    return [cast(draft, moved, x.dtype, name)]


def _head_norm(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    heads = shuffle(draft, x, (*x.shape[:2], -(-x.shape[2] // op.size), op.size), f"{name}.heads")
    normed = cast(draft, _normed(draft, wide(draft, heads), name), x.dtype, f"{name}.cast")
    return [shuffle(draft, normed, x.shape, name)]


def _residual(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    return [elementwise(draft, "SUM", inputs[0], inputs[1], op.outputs[0].name)]


def _gated_residual(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, y, row = inputs
    name = op.outputs[0].name
    gate = _vector(draft, x, row, 3 * op.place + 2)
    gated = elementwise(draft, "PROD", y, gate, f"{name}.gated")
    return [elementwise(draft, "SUM", x, gated, name)]


def _gelu(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    return [activation(draft, "GELU_TANH", inputs[0], op.outputs[0].name)]


def _silu(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    half = activation(draft, "SIGMOID", x, f"{name}.sigmoid")
    return [elementwise(draft, "PROD", x, half, name)]


def _relu2(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    name = op.outputs[0].name
    kept = activation(draft, "RELU", inputs[0], f"{name}.kept")
    return [elementwise(draft, "PROD", kept, kept, name)]


def _silu_gated(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    name, half = op.outputs[0].name, inputs[0].shape[-1] // 2
    gate = take(draft, inputs[0], 0, half, -1, f"{name}.gate")
    up = take(draft, inputs[0], half, half, -1, f"{name}.up")
    silu = elementwise(
        draft, "PROD", gate, activation(draft, "SIGMOID", gate, f"{name}.sigmoid"), f"{name}.silu"
    )
    return [elementwise(draft, "PROD", silu, up, name)]


def _rotary(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    """Norm of every head of q and k, and the turn of its halves; v as it is."""
    x, name, count = inputs[0], op.outputs[0].name, sum(op.heads)
    lead, half = x.shape[:2], op.size // 2
    heads = shuffle(draft, x, (*lead, x.shape[2] // op.size, op.size), f"{name}.heads")
    both = take(draft, heads, 0, count, 2, f"{name}.both")
    normed = _normed(draft, wide(draft, both), name, of_heads(draft, op))
    cos, sin = _angles(draft, op)
    low = take(draft, normed, 0, half, 3, f"{name}.low")
    high = take(draft, normed, half, half, 3, f"{name}.high")
    first = elementwise(
        draft,
        "SUB",
        elementwise(draft, "PROD", low, cos, f"{name}.low.cos"),
        elementwise(draft, "PROD", high, sin, f"{name}.high.sin"),
        f"{name}.first",
    )
    second = elementwise(
        draft,
        "SUM",
        elementwise(draft, "PROD", low, sin, f"{name}.low.sin"),
        elementwise(draft, "PROD", high, cos, f"{name}.high.cos"),
        f"{name}.second",
    )
    turned = concat(draft, (first, second), 3, f"{name}.turned")
    parts = [cast(draft, turned, x.dtype, f"{name}.narrow")]
    rest = heads.shape[2] - count
    if rest:
        parts.append(take(draft, heads, count, rest, 2, f"{name}.values"))
    return [shuffle(draft, concat(draft, parts, 2, f"{name}.joined"), x.shape, name)]


def _angles(draft: Draft, op: Pointwise) -> tuple[Value, Value]:
    """Cosines and sines of every row's angles, ``[1, rows, 1, size / 2]``; each rank its rows."""
    key = ("angles", op.spans, op.size)
    if (*key, "cos") not in draft.known:
        angles = [rotary_angles(op, index) for index in draft.indices]
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            tables = [function(angle).astype(np.float32)[None, :, None] for angle in angles]
            draft.known[*key, name] = draft.table(tables, name)
    return draft.known[*key, "cos"], draft.known[*key, "sin"]


def _route(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    scores, (route, gates) = wide(draft, inputs[0]), op.outputs
    shape = tuple(int(size) for size in route.shape)
    top = Value(draft.name(f"{gates.name}.top"), shape, "fp32")
    chosen = Value(draft.name(route.name), shape, "int32")
    draft.put("topk", (scores,), (top, chosen), {"count": shape[-1], "axis": len(shape) - 1})
    soft = draft.add("softmax", (top,), shape, "fp32", f"{gates.name}.soft", axis=len(shape) - 1)
    return [chosen, cast(draft, soft, inputs[0].dtype, gates.name)]


def _combine(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    back, gates = inputs
    name = op.outputs[0].name
    each = shuffle(draft, gates, (*gates.shape, 1), f"{name}.gates")
    weighed = elementwise(draft, "PROD", back, each, f"{name}.weighed")
    total = reduce(draft, "SUM", weighed, 2, f"{name}.total")
    return [shuffle(draft, total, (*back.shape[:2], back.shape[3]), name)]


def _guidance(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    with_text = take(draft, x, 0, 1, 0, f"{name}.with")
    if x.shape[0] > 1:
        without = take(draft, x, 1, 1, 0, f"{name}.without")
        apart = elementwise(draft, "SUB", with_text, without, f"{name}.apart")
        far = scaled(draft, apart, GUIDANCE, f"{name}.far")
        with_text = elementwise(draft, "SUM", without, far, f"{name}.guided")
    return [shuffle(draft, with_text, x.shape[1:], name)]


def _step(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, noise = inputs
    name, width = op.outputs[0].name, min(inputs[0].shape[-1], inputs[1].shape[-1])
    first = take(draft, x, 0, width, -1, f"{name}.first")
    change = scaled(
        draft, take(draft, noise, 0, width, -1, f"{name}.noise"), STEP, f"{name}.change"
    )
    moved = elementwise(draft, "SUM", first, change, f"{name}.moved")
    rest = x.shape[-1] - width
    kept = [take(draft, x, width, rest, -1, f"{name}.rest")] if rest else []
    return [concat(draft, (moved, *kept), -1, f"{name}.stepped")]


def _cast(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    return [cast(draft, inputs[0], dtype_of(draft, op.outputs[0]), op.outputs[0].name)]


def _scale(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    name = op.outputs[0].name
    by = scalar(draft, op.place, inputs[0], f"{name}.by")
    return [elementwise(draft, "DIV", inputs[0], by, name)]


_FUNCTIONS: Final[dict[str, Callable[[Draft, Pointwise, Values], list[Value]]]] = {
    "norm": _norm,
    "modulated_norm": _modulated_norm,
    "head_norm": _head_norm,
    "residual": _residual,
    "gated_residual": _gated_residual,
    "gelu": _gelu,
    "silu": _silu,
    "relu2": _relu2,
    "silu_gated": _silu_gated,
    "rotary": _rotary,
    "route": _route,
    "combine": _combine,
    "guidance": _guidance,
    "step": _step,
    "cast": _cast,
    "scale": _scale,
}
