"""Products on PyTorch: matrices, linear attention, and depthwise convolutions."""

from math import sqrt
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from costmodels.program import Depthwise, HeadProduct, LinearAttention, Matmul, Weight
from costmodels.program.rows import positions
from validate.reference.functions import EPSILON
from validate.torch.setting import Bound, Setting, Values

FP8_DTYPE: Final = torch.float8_e4m3fn
FP8_MAX: Final = 448.0
"""Largest number of that type."""
SPREAD: Final = 64.0
"""What one standard deviation of a weight becomes: the largest of many are five times as large."""


def bind(op: Matmul, setting: Setting) -> Bound:
    """Make a product ready to run: inputs are x and the weight ``[columns, rows]``."""
    assert op.route is None, "a product of experts stands in a layer of them"
    if not setting.is_quantised(op.weight):
        return Bound(lambda inputs: [F.linear(inputs[0], inputs[1])])
    unit = torch.ones((), dtype=torch.float32, device=setting.device)
    weight_scale = unit / scale_of(op.weight)

    def run(inputs: Values) -> list[torch.Tensor]:
        x, weight = inputs
        rows = x.flatten(0, -2).clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE)
        out = torch._scaled_mm(  # noqa: SLF001  # the only one there is
            rows,
            weight.t(),
            scale_a=unit,
            scale_b=weight_scale,
            out_dtype=x.dtype,
            use_fast_accum=True,
        )
        return [torch.unflatten(out, 0, x.shape[:-1])]

    return Bound(run)


def bind_heads(op: HeadProduct, setting: Setting) -> Bound:
    """Make a product a head ready to run: inputs are x and the weight ``[columns, rank]``."""
    widths = [part.local(op.weight.degree) for part in op.weight.columns]
    start, width = sum(widths[: op.part]), widths[op.part]

    def run(inputs: Values) -> list[torch.Tensor]:
        x = torch.unflatten(inputs[0], -1, (op.heads, -1))
        weight = inputs[1].to(setting.dtype)
        if setting.is_quantised(op.weight):
            weight = weight / scale_of(op.weight)
        head_weights = torch.unflatten(weight.narrow(0, start, width), 0, (op.heads, -1))
        matrices = head_weights if op.turned else head_weights.transpose(1, 2)
        product = torch.einsum("brhk,hkn->brhn", x[..., : op.k], matrices)
        return [torch.cat([product, x[..., op.k :]], -1).flatten(-2)]

    return Bound(run)


def scale_of(weight: Weight) -> float:
    """By what a weight, whose spread is one over the root of its rows, is scaled to 8 bits."""
    return SPREAD * sqrt(sum(part.units * part.size for part in weight.rows))


def quantise(share: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Scale a weight and round it to 8 bits."""
    return (share * scale_of(weight)).clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE)


def bind_linear(op: LinearAttention, setting: Setting) -> Bound:
    """Make sums over keys, or what queries find in them, ready to run; sums are kept wide."""
    heads = (op.heads, op.size)

    def summed(inputs: Values) -> list[torch.Tensor]:
        key, value = (torch.unflatten(x, -1, heads).transpose(1, 2) for x in inputs)
        left = F.relu(key).to(setting.wide)
        right = F.pad(value.to(setting.wide), (0, 1), value=1.0)
        return [left.transpose(2, 3) @ right]

    def read(inputs: Values) -> list[torch.Tensor]:
        query = torch.unflatten(inputs[0], -1, heads).transpose(1, 2)
        sums = F.relu(query).to(setting.wide) @ inputs[1]
        out = sums[..., :-1] / (sums[..., -1:] + EPSILON)
        return [out.transpose(1, 2).flatten(-2).to(inputs[0].dtype)]

    return Bound(summed if op.part == "sum" else read)


def bind_depthwise(op: Depthwise, setting: Setting) -> Bound:
    """Make a convolution ready to run: inputs are x and the weight ``[features, 9]``."""
    line, places = int(op.line), positions(op.span, setting.index)
    lines = int(op.halo) // line
    is_first, is_last = int(places[0]) == 0, int(places[-1]) == int(op.span.tokens) - 1
    start, stop = (lines if is_first else lines - 1), (lines if is_last else lines - 1)
    edges = (0, 0, int(is_first), int(is_last))

    def run(inputs: Values) -> list[torch.Tensor]:
        x, weight = inputs
        image = torch.unflatten(x, 1, (-1, line)).permute(0, 3, 1, 2)
        cropped = image[:, :, start : image.shape[2] - stop]
        kernels = weight.reshape(-1, 1, 3, 3)
        padded = F.pad(cropped, edges) if is_first != is_last else cropped
        padding = (1, 1) if is_first and is_last else (0, 1)
        out = F.conv2d(padded, kernels, padding=padding, groups=len(kernels))
        return [out.permute(0, 2, 3, 1).flatten(1, 2)]

    return Bound(run)
