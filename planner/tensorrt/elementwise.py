"""Element-wise functions as layers; sums and roots in 32 bits."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from costmodels.program import Pointwise
from costmodels.program.rows import rotary_angles
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Value
from planner.tensorrt.products import Learned, of_heads, of_norm

Values = Sequence[Value]
GUIDANCE: Final = 3.0
STEP: Final = 0.1
TINY: Final = 10.0**-12
"""Keeps the norm of a row of zeros finite."""


def pointwise(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    """Write an element-wise function; one value for every output."""
    return _FUNCTIONS[op.function](draft, op, inputs)


def _normed(draft: Draft, x: Value, hint: str, learned: Sequence[Learned] = ()) -> Value:
    """Divide rows of 32-bit numbers by their root mean square; what is learned may follow."""
    square = draft.elementwise("PROD", x, x, f"{hint}.square")
    mean = draft.reduce("AVG", square, -1, f"{hint}.mean")
    kept = draft.elementwise("SUM", mean, draft.scalar(TINY, mean, "tiny"), f"{hint}.kept")
    root = draft.unary("SQRT", kept, f"{hint}.root")
    more = {"learned": list(learned)} if learned else {}
    return draft.add(
        "elementwise", (x, root), x.shape, x.dtype, f"{hint}.normed", operation="DIV", **more
    )


def _vector(draft: Draft, x: Value, row: Value, place: int) -> Value:
    """One of a conditioning row's vectors, which repeat where there are too few."""
    width = x.shape[-1]
    first = place % (row.shape[-1] // width) * width
    return draft.take(row, first, width, -1, f"{row.name}.vector{first // width}")


def _norm(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    normed = _normed(draft, draft.wide(x), name, of_norm(draft, op, x))
    return [draft.cast(normed, x.dtype, name)]


def _modulated_norm(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    shift, scale = (
        draft.wide(_vector(draft, x, inputs[1], 3 * op.place + number)) for number in range(2)
    )
    more = draft.elementwise("SUM", scale, draft.scalar(1.0, scale, "one"), f"{name}.scale")
    normed = _normed(draft, draft.wide(x), name)
    product = draft.elementwise("PROD", normed, more, f"{name}.scaled")
    moved = draft.elementwise("SUM", product, shift, f"{name}.shifted")
    return [draft.cast(moved, x.dtype, name)]


def _head_norm(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    heads = draft.shuffle(x, (*x.shape[:2], -(-x.shape[2] // op.size), op.size), f"{name}.heads")
    normed = draft.cast(_normed(draft, draft.wide(heads), name), x.dtype, f"{name}.cast")
    return [draft.shuffle(normed, x.shape, name)]


def _residual(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    return [draft.elementwise("SUM", inputs[0], inputs[1], op.outputs[0].name)]


def _gated_residual(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, y, row = inputs
    name = op.outputs[0].name
    gate = _vector(draft, x, row, 3 * op.place + 2)
    gated = draft.elementwise("PROD", y, gate, f"{name}.gated")
    return [draft.elementwise("SUM", x, gated, name)]


def _gelu(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    return [draft.activation("GELU_TANH", inputs[0], op.outputs[0].name)]


def _silu(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    half = draft.activation("SIGMOID", x, f"{name}.sigmoid")
    return [draft.elementwise("PROD", x, half, name)]


def _relu2(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    name = op.outputs[0].name
    kept = draft.activation("RELU", inputs[0], f"{name}.kept")
    return [draft.elementwise("PROD", kept, kept, name)]


def _silu_gated(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    name, half = op.outputs[0].name, inputs[0].shape[-1] // 2
    gate = draft.take(inputs[0], 0, half, -1, f"{name}.gate")
    up = draft.take(inputs[0], half, half, -1, f"{name}.up")
    silu = draft.elementwise(
        "PROD", gate, draft.activation("SIGMOID", gate, f"{name}.sigmoid"), f"{name}.silu"
    )
    return [draft.elementwise("PROD", silu, up, name)]


def _rotary(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    """Norm of every head of q and k, and the turn of its halves; v as it is."""
    x, name, count = inputs[0], op.outputs[0].name, sum(op.heads)
    lead, half = x.shape[:2], op.size // 2
    heads = draft.shuffle(x, (*lead, x.shape[2] // op.size, op.size), f"{name}.heads")
    both = draft.take(heads, 0, count, 2, f"{name}.both")
    normed = _normed(draft, draft.wide(both), name, of_heads(draft, op))
    cos, sin = _angles(draft, op)
    low = draft.take(normed, 0, half, 3, f"{name}.low")
    high = draft.take(normed, half, half, 3, f"{name}.high")
    first = draft.elementwise(
        "SUB",
        draft.elementwise("PROD", low, cos, f"{name}.low.cos"),
        draft.elementwise("PROD", high, sin, f"{name}.high.sin"),
        f"{name}.first",
    )
    second = draft.elementwise(
        "SUM",
        draft.elementwise("PROD", low, sin, f"{name}.low.sin"),
        draft.elementwise("PROD", high, cos, f"{name}.high.cos"),
        f"{name}.second",
    )
    turned = draft.concat((first, second), 3, f"{name}.turned")
    parts = [draft.cast(turned, x.dtype, f"{name}.narrow")]
    rest = heads.shape[2] - count
    if rest:
        parts.append(draft.take(heads, count, rest, 2, f"{name}.values"))
    return [draft.shuffle(draft.concat(parts, 2, f"{name}.joined"), x.shape, name)]


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
    scores, (route, gates) = draft.wide(inputs[0]), op.outputs
    shape = tuple(int(size) for size in route.shape)
    top = Value(draft.name(f"{gates.name}.top"), shape, "fp32")
    chosen = Value(draft.name(route.name), shape, "int32")
    draft.put("topk", (scores,), (top, chosen), {"count": shape[-1], "axis": len(shape) - 1})
    soft = draft.add("softmax", (top,), shape, "fp32", f"{gates.name}.soft", axis=len(shape) - 1)
    return [chosen, draft.cast(soft, inputs[0].dtype, gates.name)]


def _combine(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    back, gates = inputs
    name = op.outputs[0].name
    each = draft.shuffle(gates, (*gates.shape, 1), f"{name}.gates")
    weighed = draft.elementwise("PROD", back, each, f"{name}.weighed")
    total = draft.reduce("SUM", weighed, 2, f"{name}.total")
    return [draft.shuffle(total, (*back.shape[:2], back.shape[3]), name)]


def _guidance(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, name = inputs[0], op.outputs[0].name
    with_text = draft.take(x, 0, 1, 0, f"{name}.with")
    if x.shape[0] > 1:
        without = draft.take(x, 1, 1, 0, f"{name}.without")
        apart = draft.elementwise("SUB", with_text, without, f"{name}.apart")
        far = draft.scaled(apart, GUIDANCE, f"{name}.far")
        with_text = draft.elementwise("SUM", without, far, f"{name}.guided")
    return [draft.shuffle(with_text, x.shape[1:], name)]


def _step(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    x, noise = inputs
    name, width = op.outputs[0].name, min(inputs[0].shape[-1], inputs[1].shape[-1])
    first = draft.take(x, 0, width, -1, f"{name}.first")
    change = draft.scaled(draft.take(noise, 0, width, -1, f"{name}.noise"), STEP, f"{name}.change")
    moved = draft.elementwise("SUM", first, change, f"{name}.moved")
    rest = x.shape[-1] - width
    kept = [draft.take(x, width, rest, -1, f"{name}.rest")] if rest else []
    return [draft.concat((moved, *kept), -1, f"{name}.stepped")]


def _cast(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    return [draft.cast(inputs[0], draft.dtype(op.outputs[0]), op.outputs[0].name)]


def _scale(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    name = op.outputs[0].name
    by = draft.scalar(op.place, inputs[0], f"{name}.by")
    return [draft.elementwise("DIV", inputs[0], by, name)]


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
