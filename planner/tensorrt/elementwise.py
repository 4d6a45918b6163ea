"""Element-wise functions as layers; sums and roots in 32 bits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.program import Pointwise, Span
from costmodels.program.rows import Index, Numbers, positions, rotary_angles
from planner.models import Numerics
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Value
from planner.tensorrt.products import Learned, of_heads, of_norm, of_row

Values = Sequence[Value]
GUIDANCE: Final = 3.0
STEP: Final = 0.1
FREQUENCY_FALL: Final = 10_000
"""First frequency of the waves that stand for a number, over the last."""
TINY: Final = 10.0**-12
"""Keeps the norm of a row of zeros finite."""


def pointwise(draft: Draft, op: Pointwise, inputs: Values) -> list[Value]:
    """Write an element-wise function; one value for every output."""
    return (
        _route_experts(draft, op, inputs[0])
        if op.function == "route"
        else [_function_value(draft, op, inputs)]
    )


def _function_value(  # noqa: C901, PLR0911, PLR0912  # one case a function
    draft: Draft, op: Pointwise, inputs: Values
) -> Value:
    x, name = inputs[0], op.outputs[0].name
    match op.function:
        case "norm":
            normed = _normed_rows(draft, x, name, of_norm(draft, op, x), op.epsilon)
            return draft.cast(normed, x.dtype, name)
        case "modulated_norm":
            return _modulated_norm(draft, op, x, inputs[1])
        case "head_norm":
            shape = (*x.shape[:2], -(-x.shape[2] // op.size), op.size)
            normed = _normed_by_rms(
                draft, draft.wide(draft.shuffle(x, shape, f"{name}.heads")), name
            )
            return draft.shuffle(draft.cast(normed, x.dtype, f"{name}.cast"), x.shape, name)
        case "residual":
            return draft.elementwise("SUM", x, inputs[1], name)
        case "gated_residual":
            return _gated_residual(draft, op, *inputs)
        case "gelu" | "gelu_erf":
            kind = "GELU_TANH" if op.function == "gelu" else "GELU_ERF"
            return draft.activation(kind, x, name)
        case "silu":
            half = draft.activation("SIGMOID", x, f"{name}.sigmoid")
            return draft.elementwise("PROD", x, half, name)
        case "relu2":
            positive = draft.activation("RELU", x, f"{name}.kept")
            return draft.elementwise("PROD", positive, positive, name)
        case "silu_gated":
            return _silu_gated(draft, x, name)
        case "rotary":
            return _rotary(draft, op, x)
        case "combine":
            return _combine_experts(draft, x, inputs[1], name)
        case "guidance":
            return draft.cast(_guidance(draft, inputs, name), draft.dtype(op.outputs[0]), name)
        case "step":
            return _sampler_step(draft, inputs, name)
        case "count":
            return draft.elementwise("SUM", x, draft.scalar(1.0, x, "one"), name)
        case "squares":
            return _head_squares(draft, op, x)
        case "across_norm":
            return _across_norm(draft, op, x, inputs[1])
        case "waves":
            return _sinusoids(draft, op, x)
        case "offset":
            attributes = {"learned": [of_row(draft, op, x)]}
            return draft.add("cast", (x,), x.shape, "fp32", name, **attributes)
        case "cast":
            return draft.cast(x, draft.dtype(op.outputs[0]), name)
        case "scale":
            return draft.elementwise("DIV", x, draft.scalar(op.place, x, f"{name}.by"), name)
    raise AssertionError(f"no layers for {op.function}")


def _normed_by_rms(
    draft: Draft, x: Value, hint: str, learned: Sequence[Learned] = (), epsilon: float = 0.0
) -> Value:
    """Divide rows of 32-bit numbers by their root mean square; what is learned may follow."""
    square = draft.elementwise("PROD", x, x, f"{hint}.square")
    mean = draft.reduce("AVG", square, -1, f"{hint}.mean")
    return _divided_by_root(draft, x, mean, hint, learned, epsilon)


def _divided_by_root(
    draft: Draft,
    x: Value,
    mean: Value,
    hint: str,
    learned: Sequence[Learned] = (),
    epsilon: float = 0.0,
) -> Value:
    """Divide by the root of mean squares; what is learned may follow."""
    smallest = epsilon or (draft.numerics.epsilon if draft.numerics else TINY)
    safe_mean = draft.elementwise("SUM", mean, draft.scalar(smallest, mean, "tiny"), f"{hint}.kept")
    root = draft.unary("SQRT", safe_mean, f"{hint}.root")
    attributes = {"learned": list(learned)} if learned else {}
    return draft.add(
        "elementwise", (x, root), x.shape, x.dtype, f"{hint}.normed", operation="DIV", **attributes
    )


def _normed_rows(
    draft: Draft, x: Value, name: str, learned: Sequence[Learned] = (), epsilon: float = 0.0
) -> Value:
    """Norm rows; the mean is taken off where the model does so."""
    wide = draft.wide(x)
    if draft.numerics is not None and draft.numerics.centred:
        mean = draft.reduce("AVG", wide, -1, f"{name}.centre")
        wide = draft.elementwise("SUB", wide, mean, f"{name}.centred")
    return _normed_by_rms(draft, wide, name, learned, epsilon)


def _joined_heads(draft: Draft, op: Pointwise, x: Value) -> Value:
    """Lay the heads of queries, and of keys, side by side in 32 bits: ``[b, r, groups, f]``."""
    groups = [count for count in op.heads if count]
    assert len({*groups}) == 1, f"{op.heads}: as many heads of queries as of keys"
    width = groups[0] * op.size
    queries_keys = draft.take(x, 0, len(groups) * width, 2, f"{x.name}.both")
    return draft.wide(
        draft.shuffle(queries_keys, (*x.shape[:2], len(groups), width), f"{x.name}.groups")
    )


def _head_squares(draft: Draft, op: Pointwise, x: Value) -> Value:
    name, heads = op.outputs[0].name, _joined_heads(draft, op, x)
    square = draft.elementwise("PROD", heads, heads, f"{name}.each")
    total = draft.reduce("SUM", square, -1, f"{name}.total")
    return draft.shuffle(total, heads.shape[:3], name)


def _across_norm(draft: Draft, op: Pointwise, x: Value, sums: Value) -> Value:
    """Divide heads by the root of the mean square of all ranks'."""
    name, heads = op.outputs[0].name, _joined_heads(draft, op, x)
    shape = (*heads.shape[:3], 1)
    total = draft.shuffle(sums, shape, f"{name}.total")
    mean = draft.scaled(total, 1 / (heads.shape[3] * op.place), f"{name}.mean")
    learned = [
        {**learned_gain, "shape": [1, 1, *heads.shape[2:]]} for learned_gain in of_heads(draft, op)
    ]
    normed = _divided_by_root(draft, heads, mean, name, learned)
    width = heads.shape[2] * heads.shape[3]
    parts = [draft.shuffle(draft.cast(normed, x.dtype, name), (*x.shape[:2], width), name)]
    if x.shape[2] > width:
        parts.append(draft.take(x, width, x.shape[2] - width, 2, f"{name}.values"))
    return draft.concat(parts, 2, f"{name}.joined")


def _sinusoids(draft: Draft, op: Pointwise, x: Value) -> Value:
    """Cosines, then sines of numbers by frequencies that fall to a ten thousandth.

    Exponents are rounded to 32 bits as they are there: numbers of steps are large.

    References
    ----------
    diffusers models/embeddings.py, `get_timestep_embedding`, flipped and without shift
    """
    name, half_size = op.outputs[0].name, op.size // 2
    powers = (
        np.float32(-np.log(FREQUENCY_FALL))
        * np.arange(half_size, dtype=np.float32)
        / np.float32(half_size)
    )
    frequency_table = np.exp(powers.astype(np.float64)).astype(np.float32)
    number = draft.wide(x) if op.factor == 1 else draft.scaled(draft.wide(x), op.factor, name)
    frequencies = draft.constant(frequency_table[None, None], f"{name}.frequencies")
    angles = draft.elementwise("PROD", number, frequencies, f"{name}.angles")
    waves = [draft.unary(function, angles, f"{name}.{function}") for function in ("COS", "SIN")]
    return draft.cast(draft.concat(waves, -1, f"{name}.both"), draft.dtype(op.outputs[0]), name)


def _row_vector(draft: Draft, x: Value, row: Value, place: int) -> Value:
    """One of a conditioning row's vectors, which repeat where there are too few."""
    width = x.shape[-1]
    start = place % (row.shape[-1] // width) * width
    return draft.take(row, start, width, -1, f"{row.name}.vector{start // width}")


def _modulated_norm(draft: Draft, op: Pointwise, x: Value, row: Value) -> Value:
    name = op.outputs[0].name
    shift, scale = (
        draft.wide(_row_vector(draft, x, row, 3 * op.place + number)) for number in range(2)
    )
    scale_plus_one = draft.elementwise(
        "SUM", scale, draft.scalar(1.0, scale, "one"), f"{name}.scale"
    )
    normed = _normed_rows(draft, x, name)
    product = draft.elementwise("PROD", normed, scale_plus_one, f"{name}.scaled")
    shifted = draft.elementwise("SUM", product, shift, f"{name}.shifted")
    return draft.cast(shifted, x.dtype, name)


def _gated_residual(draft: Draft, op: Pointwise, x: Value, y: Value, row: Value) -> Value:
    """Add what is gated, in the type of the gate."""
    name = op.outputs[0].name
    gate = _row_vector(draft, x, row, 3 * op.place + 2)
    left, right = (draft.cast(value, gate.dtype, f"{value.name}.wide") for value in (x, y))
    gated = draft.elementwise("PROD", right, gate, f"{name}.gated")
    return draft.cast(draft.elementwise("SUM", left, gated, name), x.dtype, f"{name}.narrow")


def _silu_gated(draft: Draft, x: Value, name: str) -> Value:
    half = x.shape[-1] // 2
    gate = draft.take(x, 0, half, -1, f"{name}.gate")
    up = draft.take(x, half, half, -1, f"{name}.up")
    sigmoid = draft.activation("SIGMOID", gate, f"{name}.sigmoid")
    silu = draft.elementwise("PROD", gate, sigmoid, f"{name}.silu")
    return draft.elementwise("PROD", silu, up, name)


def _rotary(draft: Draft, op: Pointwise, x: Value) -> Value:
    """Norm of every head of q and k, unless the model has none, and turn it; v as it is."""
    name, count = op.outputs[0].name, sum(op.heads)
    heads = draft.shuffle(x, (*x.shape[:2], x.shape[2] // op.size, op.size), f"{name}.heads")
    queries_keys = draft.take(heads, 0, count, 2, f"{name}.both")
    normed = draft.wide(queries_keys)
    if draft.numerics is None or draft.numerics.normed == "head":
        normed = _normed_by_rms(draft, normed, name, of_heads(draft, op))
    turned = _turned_pairs(draft, op, normed)
    parts = [draft.cast(turned, x.dtype, f"{name}.narrow")]
    value_heads = heads.shape[2] - count
    if value_heads:
        parts.append(draft.take(heads, count, value_heads, 2, f"{name}.values"))
    return draft.shuffle(draft.concat(parts, 2, f"{name}.joined"), x.shape, name)


def _turned_pairs(draft: Draft, op: Pointwise, heads: Value) -> Value:
    """Turn pairs of features, ``[b, r, heads, f]``: of both halves, or neighbours."""
    name, half, pairs = op.outputs[0].name, op.size // 2, heads.shape
    cos, sin = _cos_sin(draft, op)
    count, axis = half, 3
    if draft.numerics is not None and draft.numerics.adjacent:
        pairs, count, axis = (*heads.shape[:3], half, 2), 1, 4
        heads = draft.shuffle(heads, pairs, f"{name}.pairs")
        cos, sin = (draft.shuffle(x, (*x.shape, 1), f"{x.name}.pairs") for x in (cos, sin))
    low = draft.take(heads, 0, count, axis, f"{name}.low")
    high = draft.take(heads, count, count, axis, f"{name}.high")
    low_cos = draft.elementwise("PROD", low, cos, f"{name}.low.cos")
    high_sin = draft.elementwise("PROD", high, sin, f"{name}.high.sin")
    turned_low = draft.elementwise("SUB", low_cos, high_sin, f"{name}.first")
    low_sin = draft.elementwise("PROD", low, sin, f"{name}.low.sin")
    high_cos = draft.elementwise("PROD", high, cos, f"{name}.high.cos")
    turned_high = draft.elementwise("SUM", low_sin, high_cos, f"{name}.second")
    turned = draft.concat((turned_low, turned_high), axis, f"{name}.turned")
    return draft.shuffle(turned, (*pairs[:3], op.size), f"{name}.heads")


def _cos_sin(draft: Draft, op: Pointwise) -> tuple[Value, Value]:
    """Cosines and sines of every row's angles, ``[1, rows, 1, size / 2]``; each rank its rows.

    Of a row that a step writes behind those of a cache, those at its place there.
    """
    key = ("angles", op.spans, op.size)
    if draft.moving:
        span_with_room = tuple(replace(span, tokens=draft.room, start=0) for span in op.spans)
        op = replace(op, spans=span_with_room)
    if (*key, "cos") not in draft.made:
        axes = [axis for span in op.spans for axis, _ in span.axes]
        places = [tuple(index[axis] for axis in axes) for index in draft.indices]
        angles = {
            place: _rank_angles(draft, op, index)  # ranks at the same place have the same rows
            for place, index in dict(zip(places, draft.indices, strict=True)).items()
        }
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            tables = {
                place: function(angle).astype(np.float32)[None, :, None]
                for place, angle in angles.items()
            }
            table = draft.table([tables[place] for place in places], name)
            if draft.moving and draft.filled is not None:
                table = draft.row(table, draft.filled, f"{name}.here")
            draft.made[*key, name] = table
        latents = draft.latents
        if draft.prompted is not None and latents and op.spans[0].stream == latents.stream:
            cos_sin = draft.made[*key, "cos"], draft.made[*key, "sin"]
            prompt_cos_sin = _prompt_cos_sin(draft, latents.prompt, op.size, draft.prompted)
            draft.made[*key, "cos"], draft.made[*key, "sin"] = _angle_sums(
                draft, cos_sin, prompt_cos_sin
            )
    return draft.made[*key, "cos"], draft.made[*key, "sin"]


def _prompt_cos_sin(draft: Draft, max_rows: int, size: int, prompted: Value) -> tuple[Value, Value]:
    """Cosines and sines of what frames turn further by the rows of a prompt."""
    numerics = draft.numerics
    assert numerics is not None
    frequencies, axis = _frequencies(numerics, size)
    turns = np.arange(max_rows + 1)[:, None] * np.where(axis == 0, frequencies, 0)
    cos, sin = (
        draft.constant(function(turns).astype(np.float32)[None, :, None], f"{name}.prompt")
        for name, function in (("cos", np.cos), ("sin", np.sin))
    )
    return draft.row(cos, prompted, "cos.behind"), draft.row(sin, prompted, "sin.behind")


def _angle_sums(
    draft: Draft, turned: tuple[Value, Value], more: tuple[Value, Value]
) -> tuple[Value, Value]:
    """Cosines and sines of sums of angles."""

    def product(left: Value, right: Value) -> Value:
        return draft.elementwise("PROD", left, right, f"{left.name}.{right.name}")

    (cos, sin), (by_cos, by_sin) = turned, more
    sides = product(cos, by_cos), product(sin, by_sin), product(sin, by_cos), product(cos, by_sin)
    return (
        draft.elementwise("SUB", sides[0], sides[1], "cos.further"),
        draft.elementwise("SUM", sides[2], sides[3], "sin.further"),
    )


def _rank_angles(draft: Draft, op: Pointwise, index: Index) -> NDArray[np.float64]:
    """Find what a rank's heads are turned by, ``[rows, size / 2]``.

    References
    ----------
    Su et al., "RoFormer", arXiv:2104.09864, section 3.2.2; what Llama 3.1 slows: transformers
    modeling_rope_utils.py, ``llama3``.
    """
    numerics, half = draft.numerics, op.size // 2
    if numerics is None:
        return rotary_angles(op, index)
    if numerics.axes:
        return _angle_along_axes(draft, numerics, op, index)
    frequencies = numerics.theta ** -(np.arange(half) / half)
    turns = numerics.context * frequencies / (2 * np.pi)
    unslowed = np.clip((turns - numerics.few) / (numerics.many - numerics.few), 0, 1)
    places = np.concatenate([positions(span, index) for span in op.spans])
    return np.asarray(places[:, None] * frequencies * (unslowed + (1 - unslowed) / numerics.slower))


def _angle_along_axes(
    draft: Draft, numerics: Numerics, op: Pointwise, index: Index
) -> NDArray[np.float64]:
    """Find what heads are turned by where frames, rows and columns turn features of their own.

    References
    ----------
    diffusers: FluxPosEmbed, WanRotaryPosEmbed; Cosmos3VLTextRotaryEmbedding, where axes alternate
    """
    frequencies, axis = _frequencies(numerics, op.size)
    places = np.concatenate([_grid_positions(draft, numerics, span, index) for span in op.spans])
    return np.asarray(places[:, axis] * frequencies)


def _frequencies(numerics: Numerics, size: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Find how fast each pair of features of a head turns, and along which axis."""
    half, axes = size // 2, range(len(numerics.axes))
    counts = [features // 2 for features in numerics.axes]
    if numerics.alternating:
        turn = np.arange(half) % len(axes)
        axis = np.where(np.arange(half) < len(axes) * np.asarray(counts)[turn], turn, 0)
        return numerics.theta ** -(np.arange(half) / half), axis
    by_pair = np.concatenate([numerics.theta ** -(np.arange(n) / n) for n in counts])
    return by_pair, np.repeat(axes, counts)


def _grid_positions(draft: Draft, numerics: Numerics, span: Span, index: Index) -> Numbers:
    """Find frame, row and column of every row of a span; a prompt's are all its number, or 0."""
    rows, latents = positions(span, index), draft.latents
    if latents is None or span.stream != latents.stream:
        return np.stack([rows if numerics.behind is not None else 0 * rows] * 3, axis=-1)
    frame, row, column = np.unravel_index(np.maximum(rows, 0), latents.shape)
    return np.stack([frame + latents.first, row, column], axis=-1)


def _route_experts(draft: Draft, op: Pointwise, x: Value) -> list[Value]:
    scores, (route, gates) = draft.wide(x), op.outputs
    shape = tuple(int(size) for size in route.shape)
    top = Value(draft.name(f"{gates.name}.top"), shape, "fp32")
    experts = Value(draft.name(route.name), shape, "int32")
    draft.put("topk", (scores,), (top, experts), {"count": shape[-1], "axis": len(shape) - 1})
    softened = draft.add(
        "softmax", (top,), shape, "fp32", f"{gates.name}.soft", axis=len(shape) - 1
    )
    return [experts, draft.cast(softened, x.dtype, gates.name)]


def _combine_experts(draft: Draft, back: Value, gates: Value, name: str) -> Value:
    gate_column = draft.shuffle(gates, (*gates.shape, 1), f"{name}.gates")
    weighed = draft.elementwise("PROD", back, gate_column, f"{name}.weighed")
    total = draft.reduce("SUM", weighed, 2, f"{name}.total")
    return draft.shuffle(total, (*back.shape[:2], back.shape[3]), name)


def _guidance(draft: Draft, inputs: Values, name: str) -> Value:
    """Go beyond what is predicted without the prompt, so far as is given."""
    x, *scale = inputs
    with_text = draft.take(x, 0, 1, 0, f"{name}.with")
    if x.shape[0] > 1:
        without_text = draft.take(x, 1, 1, 0, f"{name}.without")
        difference = draft.elementwise("SUB", with_text, without_text, f"{name}.apart")
        scaled_difference = _multiplied(draft, difference, scale, GUIDANCE, f"{name}.far")
        without_text = draft.cast(without_text, scaled_difference.dtype, f"{name}.wide")
        with_text = draft.elementwise("SUM", without_text, scaled_difference, f"{name}.guided")
    return draft.shuffle(with_text, x.shape[1:], name)


def _multiplied(draft: Draft, x: Value, factors: Values, default_factor: float, hint: str) -> Value:
    """Multiply by a number of each sample that is given, else by the usual one."""
    if not factors:
        return draft.scaled(x, default_factor, hint)
    (number,) = factors
    shape = (*([1] * (len(x.shape) - 3)), *number.shape)
    factor = draft.shuffle(number, shape, f"{hint}.by")
    return draft.elementwise("PROD", draft.cast(x, number.dtype, f"{hint}.wide"), factor, hint)


def _sampler_step(draft: Draft, inputs: Values, name: str) -> Value:
    x, noise, *change = inputs
    width = min(x.shape[-1], noise.shape[-1])
    stepped_part = draft.take(x, 0, width, -1, f"{name}.first")
    predicted = draft.take(noise, 0, width, -1, f"{name}.noise")
    moved = draft.elementwise(
        "SUM",
        stepped_part,
        _multiplied(draft, predicted, change, STEP, f"{name}.change"),
        f"{name}.moved",
    )
    untouched_width = x.shape[-1] - width
    untouched = (
        [draft.take(x, width, untouched_width, -1, f"{name}.rest")] if untouched_width else []
    )
    return draft.concat((moved, *untouched), -1, f"{name}.stepped")
