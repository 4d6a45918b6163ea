"""Element-wise functions as layers; sums and roots in 32 bits."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.program import Pointwise
from costmodels.program.rows import Index, positions, rotary_angles
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
    return _route(draft, op, inputs[0]) if op.function == "route" else [_made(draft, op, inputs)]


def _made(  # noqa: C901, PLR0911, PLR0912  # one case a function
    draft: Draft, op: Pointwise, inputs: Values
) -> Value:
    x, name = inputs[0], op.outputs[0].name
    match op.function:
        case "norm":
            normed = _normed(draft, draft.wide(x), name, of_norm(draft, op, x))
            return draft.cast(normed, x.dtype, name)
        case "modulated_norm":
            return _modulated_norm(draft, op, x, inputs[1])
        case "head_norm":
            shape = (*x.shape[:2], -(-x.shape[2] // op.size), op.size)
            normed = _normed(draft, draft.wide(draft.shuffle(x, shape, f"{name}.heads")), name)
            return draft.shuffle(draft.cast(normed, x.dtype, f"{name}.cast"), x.shape, name)
        case "residual":
            return draft.elementwise("SUM", x, inputs[1], name)
        case "gated_residual":
            gate = _vector(draft, x, inputs[2], 3 * op.place + 2)
            gated = draft.elementwise("PROD", inputs[1], gate, f"{name}.gated")
            return draft.elementwise("SUM", x, gated, name)
        case "gelu":
            return draft.activation("GELU_TANH", x, name)
        case "silu":
            half = draft.activation("SIGMOID", x, f"{name}.sigmoid")
            return draft.elementwise("PROD", x, half, name)
        case "relu2":
            kept = draft.activation("RELU", x, f"{name}.kept")
            return draft.elementwise("PROD", kept, kept, name)
        case "silu_gated":
            return _silu_gated(draft, x, name)
        case "rotary":
            return _rotary(draft, op, x)
        case "combine":
            return _combine(draft, x, inputs[1], name)
        case "guidance":
            return _guidance(draft, x, name)
        case "step":
            return _step(draft, x, inputs[1], name)
        case "cast":
            return draft.cast(x, draft.dtype(op.outputs[0]), name)
        case "scale":
            return draft.elementwise("DIV", x, draft.scalar(op.place, x, f"{name}.by"), name)
    raise AssertionError(f"no layers for {op.function}")


def _normed(draft: Draft, x: Value, hint: str, learned: Sequence[Learned] = ()) -> Value:
    """Divide rows of 32-bit numbers by their root mean square; what is learned may follow."""
    square = draft.elementwise("PROD", x, x, f"{hint}.square")
    mean = draft.reduce("AVG", square, -1, f"{hint}.mean")
    least = draft.numerics.epsilon if draft.numerics else TINY
    kept = draft.elementwise("SUM", mean, draft.scalar(least, mean, "tiny"), f"{hint}.kept")
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


def _modulated_norm(draft: Draft, op: Pointwise, x: Value, row: Value) -> Value:
    name = op.outputs[0].name
    shift, scale = (
        draft.wide(_vector(draft, x, row, 3 * op.place + number)) for number in range(2)
    )
    more = draft.elementwise("SUM", scale, draft.scalar(1.0, scale, "one"), f"{name}.scale")
    normed = _normed(draft, draft.wide(x), name)
    product = draft.elementwise("PROD", normed, more, f"{name}.scaled")
    moved = draft.elementwise("SUM", product, shift, f"{name}.shifted")
    return draft.cast(moved, x.dtype, name)


def _silu_gated(draft: Draft, x: Value, name: str) -> Value:
    half = x.shape[-1] // 2
    gate = draft.take(x, 0, half, -1, f"{name}.gate")
    up = draft.take(x, half, half, -1, f"{name}.up")
    sigmoid = draft.activation("SIGMOID", gate, f"{name}.sigmoid")
    silu = draft.elementwise("PROD", gate, sigmoid, f"{name}.silu")
    return draft.elementwise("PROD", silu, up, name)


def _rotary(draft: Draft, op: Pointwise, x: Value) -> Value:
    """Norm of every head of q and k, unless the model has none, and turn its halves; v as it is."""
    name, count, half = op.outputs[0].name, sum(op.heads), op.size // 2
    heads = draft.shuffle(x, (*x.shape[:2], x.shape[2] // op.size, op.size), f"{name}.heads")
    both = draft.take(heads, 0, count, 2, f"{name}.both")
    normed = draft.wide(both)
    if draft.numerics is None or draft.numerics.normed:
        normed = _normed(draft, normed, name, of_heads(draft, op))
    cos, sin = _angles(draft, op)
    low = draft.take(normed, 0, half, 3, f"{name}.low")
    high = draft.take(normed, half, half, 3, f"{name}.high")
    low_cos = draft.elementwise("PROD", low, cos, f"{name}.low.cos")
    high_sin = draft.elementwise("PROD", high, sin, f"{name}.high.sin")
    first = draft.elementwise("SUB", low_cos, high_sin, f"{name}.first")
    low_sin = draft.elementwise("PROD", low, sin, f"{name}.low.sin")
    high_cos = draft.elementwise("PROD", high, cos, f"{name}.high.cos")
    second = draft.elementwise("SUM", low_sin, high_cos, f"{name}.second")
    turned = draft.concat((first, second), 3, f"{name}.turned")
    parts = [draft.cast(turned, x.dtype, f"{name}.narrow")]
    rest = heads.shape[2] - count
    if rest:
        parts.append(draft.take(heads, count, rest, 2, f"{name}.values"))
    return draft.shuffle(draft.concat(parts, 2, f"{name}.joined"), x.shape, name)


def _angles(draft: Draft, op: Pointwise) -> tuple[Value, Value]:
    """Cosines and sines of every row's angles, ``[1, rows, 1, size / 2]``; each rank its rows."""
    key = ("angles", op.spans, op.size)
    if (*key, "cos") not in draft.made:
        axes = [axis for span in op.spans for axis, _ in span.axes]
        places = [tuple(index[axis] for axis in axes) for index in draft.indices]
        angles = {
            place: _angle(draft, op, index)  # ranks at the same place have the same rows
            for place, index in dict(zip(places, draft.indices, strict=True)).items()
        }
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            tables = {
                place: function(angle).astype(np.float32)[None, :, None]
                for place, angle in angles.items()
            }
            draft.made[*key, name] = draft.table([tables[place] for place in places], name)
    return draft.made[*key, "cos"], draft.made[*key, "sin"]


def _angle(draft: Draft, op: Pointwise, index: Index) -> NDArray[np.float64]:
    """Find what a rank's heads are turned by, ``[rows, size / 2]``.

    References
    ----------
    Su et al., "RoFormer", arXiv:2104.09864, section 3.2.2; what Llama 3.1 slows: transformers
    modeling_rope_utils.py, ``llama3``.
    """
    known, half = draft.numerics, op.size // 2
    if known is None:
        return rotary_angles(op, index)
    each = known.theta ** -(np.arange(half) / half)
    turns = known.context * each / (2 * np.pi)
    kept = np.clip((turns - known.few) / (known.many - known.few), 0, 1)
    places = np.concatenate([positions(span, index) for span in op.spans])
    return np.asarray(places[:, None] * each * (kept + (1 - kept) / known.slower))


def _route(draft: Draft, op: Pointwise, x: Value) -> list[Value]:
    scores, (route, gates) = draft.wide(x), op.outputs
    shape = tuple(int(size) for size in route.shape)
    top = Value(draft.name(f"{gates.name}.top"), shape, "fp32")
    chosen = Value(draft.name(route.name), shape, "int32")
    draft.put("topk", (scores,), (top, chosen), {"count": shape[-1], "axis": len(shape) - 1})
    soft = draft.add("softmax", (top,), shape, "fp32", f"{gates.name}.soft", axis=len(shape) - 1)
    return [chosen, draft.cast(soft, x.dtype, gates.name)]


def _combine(draft: Draft, back: Value, gates: Value, name: str) -> Value:
    each = draft.shuffle(gates, (*gates.shape, 1), f"{name}.gates")
    weighed = draft.elementwise("PROD", back, each, f"{name}.weighed")
    total = draft.reduce("SUM", weighed, 2, f"{name}.total")
    return draft.shuffle(total, (*back.shape[:2], back.shape[3]), name)


def _guidance(draft: Draft, x: Value, name: str) -> Value:
    with_text = draft.take(x, 0, 1, 0, f"{name}.with")
    if x.shape[0] > 1:
        without = draft.take(x, 1, 1, 0, f"{name}.without")
        apart = draft.elementwise("SUB", with_text, without, f"{name}.apart")
        far = draft.scaled(apart, GUIDANCE, f"{name}.far")
        with_text = draft.elementwise("SUM", without, far, f"{name}.guided")
    return draft.shuffle(with_text, x.shape[1:], name)


def _step(draft: Draft, x: Value, noise: Value, name: str) -> Value:
    width = min(x.shape[-1], noise.shape[-1])
    first = draft.take(x, 0, width, -1, f"{name}.first")
    change = draft.scaled(draft.take(noise, 0, width, -1, f"{name}.noise"), STEP, f"{name}.change")
    moved = draft.elementwise("SUM", first, change, f"{name}.moved")
    rest = x.shape[-1] - width
    kept = [draft.take(x, width, rest, -1, f"{name}.rest")] if rest else []
    return draft.concat((moved, *kept), -1, f"{name}.stepped")
