"""Products with weights as layers: matrices and convolutions, and what a checkpoint adds to them.

Quantised products are written as TensorRT wants them: values that are quantised and dequantised
again in front of a product, which the builder fuses. FP8 and INT8 have one scale a tensor, NVFP4
one for every 16 neighbours along the inner axis and one for all.

A program counts matrices alone. What a checkpoint has beside them, biases and norms, is little work
and changes no message: it is added behind a layer when a network is assembled, if its numbers are
given, and left out if they are not.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

import numpy as np

from costmodels.program import Depthwise, Matmul, Part, Pointwise, Weight
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Dtype, Value
from planner.tensorrt.runner.weights import named
from topology.base.values import dataclass

REACH: Final = 16.0
"""Largest activation that products of few bits hold without clipping, where none was measured."""
BLOCK: Final = 16
"""Neighbours that share a scale in NVFP4."""
LARGEST: Final = {"fp8": 448.0, "int8": 127.0, "nvfp4": 448.0 * 6.0}
"""Largest number of a format; of NVFP4 with the largest scale of a block."""
_TYPES: Final[dict[str, Dtype]] = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}

SIDE: Final = 3
"""Points a side of a convolution's kernel."""
Learned = Mapping[str, object]
"""``kind`` of numbers, the ``name`` they are known by and their ``layer``; the ``parts`` that
``degree`` ranks cut, or that one rank of them adds (``once``); and the ``shape`` they are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A weight of a layer, and how this network holds it."""

    weight: Weight
    layer: int
    encoding: str


def product(draft: Draft, op: Matmul, inputs: list[Value], layer: int) -> Value:
    """Write a product with this layer's weight, or with the experts that each row names."""
    share = _Share(
        weight=op.weight, layer=layer if op.weight.layered else 0, encoding=_encoding(draft, op)
    )
    if op.route is not None:
        return _expert_products(draft, op, inputs, share)
    return _product_of(draft, inputs[0], share, op.out.name)


def _encoding(draft: Draft, op: Matmul) -> str:
    """How a weight is held: matrices that the planner counts with fewer bytes, in fewer bits."""
    is_narrow = op.weight.itemsize < 2 and draft.precision in _TYPES
    uneven_blocks = draft.precision == "nvfp4" and op.weight.local_rows % BLOCK
    return draft.precision if is_narrow and not uneven_blocks else "plain"


def _product_of(draft: Draft, x: Value, share: _Share, hint: str) -> Value:
    learned = bias(share.weight, share.layer, len(x.shape))
    if share.encoding == "plain":
        values = _weight(draft, share, "values", draft.compute)
        return draft.matmul(x, values, hint, learned=learned)
    if share.encoding == "nvfp4":
        left, right = (
            _blocked_activations(draft, x, _reach(draft, share)),
            _narrow_weight(draft, share),
        )
        return draft.matmul(left, right, hint, transpose=True, learned=learned)
    scale = _reach(draft, share)
    dtype = _TYPES[share.encoding]
    packed = draft.add("quantize", (x, scale), x.shape, dtype, f"{x.name}.packed")
    dequantized = draft.add("dequantize", (packed, scale), x.shape, x.dtype, f"{x.name}.back")
    values = _weight(draft, share, "values", dtype)
    scales = _weight(draft, share, "scale", "fp32")
    wide_weight = draft.add(
        "dequantize", (values, scales), values.shape, draft.compute, f"{values.name}.opened"
    )
    return draft.matmul(dequantized, wide_weight, hint, learned=learned)


def _reach(draft: Draft, share: _Share) -> Value:
    """Scale of a product's activations, one number; a checkpoint may know it where it is made."""
    weight, layer = share.weight.name, share.layer if share.weight.layered else -1
    key = ("reach", weight, layer)
    if key not in draft.made:
        name = named(weight, layer)
        draft.made[key] = draft.add(
            "reach",
            (),
            (),
            "fp32",
            f"reach.{weight}",
            weight=weight,
            layer=layer,
            largest=draft.reaches.get(name, REACH),
            measured=name in draft.reaches,
            top=LARGEST[share.encoding],
        )
    return draft.made[key]


def _blocked_activations(draft: Draft, x: Value, tensor_scale: Value) -> Value:
    """Quantise rows to FP4 with the scales that their blocks need; give back what that leaves."""
    axis = len(x.shape) - 1
    blocks = (*x.shape[:-1], x.shape[-1] // BLOCK)
    packed = Value(draft.name(f"{x.name}.packed"), x.shape, "fp4")
    scales = Value(draft.name(f"{x.name}.scales"), blocks, "fp8")
    draft.put(
        "dynamic_quantize", (x, tensor_scale), (packed, scales), {"axis": axis, "block": BLOCK}
    )
    wide_scales = draft.add(
        "dequantize", (scales, tensor_scale), blocks, x.dtype, f"{scales.name}.opened"
    )
    return draft.add(
        "dequantize",
        (packed, wide_scales),
        x.shape,
        x.dtype,
        f"{x.name}.back",
        axis=axis,
        block=BLOCK,
    )


def _narrow_weight(draft: Draft, share: _Share) -> Value:
    """Hold a weight in FP4, ``[experts, columns, rows]`` so that blocks lie along the rows."""
    values = _weight(draft, share, "values", "fp4")
    scales = _weight(draft, share, "scales", "fp8")
    tensor_scale = _weight(draft, share, "scale", "fp32")
    wide_scales = draft.add(
        "dequantize", (scales, tensor_scale), scales.shape, draft.compute, f"{scales.name}.opened"
    )
    return draft.add(
        "dequantize",
        (values, wide_scales),
        values.shape,
        draft.compute,
        f"{values.name}.opened",
        axis=2,
        block=BLOCK,
    )


def _weight(draft: Draft, share: _Share, part: str, dtype: Dtype) -> Value:
    """Name a weight, or what belongs to it; its numbers are looked up when it is assembled."""
    weight, key = share.weight, ("weight", share.weight.name, share.layer, part)
    if key not in draft.made:
        suffix = "" if part == "values" else f".{part}"
        draft.made[key] = draft.add(
            "weight",
            (),
            _weight_shape(share, part),
            dtype,
            f"weight.{weight.name}{suffix}",
            weight=weight.name,
            layer=share.layer if weight.layered else -1,
            rows=listed(weight.rows),
            columns=listed(weight.columns),
            split=weight.split if weight.degree > 1 else "none",
            degree=weight.degree,
            experts=weight.experts,
            encoding=share.encoding,
            part=part,
        )
    return draft.made[key]


def _weight_shape(share: _Share, part: str) -> tuple[int, ...]:
    weight = share.weight
    experts, rows, columns = weight.experts, weight.local_rows, weight.local_columns
    if part == "scale":
        return ()
    if part == "scales":
        return (experts, columns, rows // BLOCK)
    return (experts, columns, rows) if share.encoding == "nvfp4" else (experts, rows, columns)


def _expert_products(draft: Draft, op: Matmul, inputs: list[Value], share: _Share) -> Value:
    """Let every expert take every row, and pick the results that the route names.

    TensorRT's own mixture-of-experts layer is not built for every GPU; this is, and does the work
    of all experts instead of the active ones.
    """
    x, route = inputs
    rows = prod(x.shape[:-1])
    flat = draft.shuffle(x, (1, rows, x.shape[-1]), f"{x.name}.flat")
    all_results = _product_of(draft, flat, share, f"{op.out.name}.every")
    experts, width = all_results.shape[0], all_results.shape[2]
    stacked = draft.shuffle(all_results, (experts * rows, width), f"{op.out.name}.stacked")
    if experts == 1:
        block_starts = draft.constant(np.zeros((1, 1, 1), np.int32), "first")
    else:
        block_rows = draft.scalar(rows, route, "rows")
        block_starts = draft.elementwise("PROD", route, block_rows, f"{route.name}.block")
    row_shape = x.shape[:3] if len(x.shape) == 4 else (*x.shape[:2], 1)
    numbers = draft.constant(np.arange(rows, dtype=np.int32).reshape(row_shape), "numbers")
    places = draft.elementwise("SUM", block_starts, numbers, f"{op.out.name}.places")
    return draft.gather(stacked, places, 0, op.out.name)


def depthwise(draft: Draft, op: Depthwise, x: Value, layer: int) -> Value:
    """Write a convolution; lines from neighbours stand in for padding.

    Where there is no neighbour their lines are zeros, and still are behind a product and a SiLU.
    """
    line, name = int(op.line), op.out.name
    batch, rows, features = x.shape
    lines = (batch, rows // line, line, features)
    image = draft.shuffle(x, lines, f"{name}.in", second=(0, 3, 1, 2))
    share = _Share(weight=op.weight, layer=layer if op.weight.layered else 0, encoding="plain")
    kernels = _weight(draft, share, "values", draft.compute)
    taps = draft.shuffle(kernels, (features, 1, SIDE, SIDE), f"{name}.kernels", first=(2, 0, 1))
    shape = (batch, features, int(op.out.shape[1]) // line, line)
    attributes = {"padding": [0 if op.halo else 1, 1], "groups": features}
    out = draft.add("convolution", (image, taps), shape, x.dtype, f"{name}.picture", **attributes)
    return draft.shuffle(out, (batch, shape[2] * line, features), name, first=(0, 2, 3, 1))


def bias(weight: Weight, layer: int, dimensions: int) -> list[Learned]:
    """Bias behind a product; where ranks add their products up, the first of them alone adds it."""
    if weight.experts > 1:
        return []
    shape = [1] * (dimensions - 1) + [weight.local_columns]
    cut = weight.degree if weight.split == "columns" else 1
    adds_once = weight.split == "rows" and weight.degree > 1
    number = layer if weight.layered else -1
    return [
        _learned_numbers(
            "bias", weight.name, number, listed(weight.columns), cut, shape, once=adds_once
        )
    ]


def of_norm(draft: Draft, op: Pointwise, x: Value) -> list[Learned]:
    """Factors and offsets behind the norm of whole rows."""
    shape = [1] * (len(x.shape) - 1) + [x.shape[-1]]
    name, layer = op.outputs[0].name, draft.scope.get("layer", -1)
    return [
        _learned_numbers(kind, name, layer, [[x.shape[-1], 1]], 1, shape)
        for kind in ("gain", "bias")
    ]


def of_row(draft: Draft, op: Pointwise, x: Value) -> Learned:
    """Numbers of their own that are added to a row."""
    shape, name = [1] * (len(x.shape) - 1) + [x.shape[-1]], op.outputs[0].name
    return _learned_numbers(
        "bias", name, draft.scope.get("layer", -1), [[x.shape[-1], 1]], 1, shape
    )


def of_heads(draft: Draft, op: Pointwise) -> list[Learned]:
    """Factors behind the norms of the heads of queries and keys, which ranks along tp share."""
    degree = 1 + max(index.get("tp", 0) for index in draft.indices)
    parts = [[count * degree, op.size] for count in op.heads if count]
    shape = [1, 1, sum(op.heads), op.size]
    name, layer = op.outputs[0].name, draft.scope.get("layer", -1)
    return [_learned_numbers("gain", name, layer, parts, degree, shape)]


def _learned_numbers(  # noqa: PLR0913  # what the numbers are known by, and how they are held
    kind: str,
    name: str,
    layer: int,
    parts: list[list[int]],
    degree: int,
    shape: list[int],
    *,
    once: bool = False,
) -> Learned:
    return {
        "kind": kind,
        "name": name,
        "layer": layer,
        "parts": parts,
        "degree": degree,
        "once": once,
        "shape": shape,
    }


def listed(parts: tuple[Part, ...]) -> list[list[int]]:
    """Write parts of a weight as units and sizes."""
    return [[part.units, part.size] for part in parts]
