"""Row-wise functions on PyTorch: what the reference says in numpy, in few kernels."""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from costmodels.program.ops import Pointwise
from costmodels.program.rows import rotary_angles
from validate.reference.functions import EPSILON, GUIDANCE, STEP
from validate.torch.setting import Bound, Setting, Values, shape_of

Tensors = list[torch.Tensor]


def bind(op: Pointwise, setting: Setting) -> Bound:
    """Make a row-wise function ready to run."""
    if op.function == "rotary":
        return _rotary(op, setting)
    return Bound(partial(_FUNCTIONS[op.function], op, setting))


def rms_norm(x: torch.Tensor, setting: Setting) -> torch.Tensor:
    """Divide every row by its root mean square."""
    if not setting.traced:
        return F.rms_norm(x, x.shape[-1:], eps=EPSILON)
    wide = x.to(setting.wide)
    return (wide * _inverse_root(wide)).to(x.dtype)


def _inverse_root(wide: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPSILON)


def _vector(x: torch.Tensor, row: torch.Tensor, place: int) -> torch.Tensor:
    """One of a conditioning row's vectors, which repeat where there are too few."""
    width = x.shape[-1]
    first = place % (row.shape[-1] // width) * width
    return row[..., first : first + width]


def _norm(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op
    return [rms_norm(inputs[0], setting)]


def _modulated_norm(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    x, row = inputs
    shift, scale = (_vector(x, row, 3 * op.place + i) for i in range(2))
    if not setting.traced:
        return [torch.addcmul(shift, rms_norm(x, setting), 1 + scale)]
    wide = x.to(setting.wide)
    return [(wide * _inverse_root(wide) * (1 + scale) + shift).to(x.dtype)]


def _head_norm(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    return [rms_norm(torch.unflatten(inputs[0], -1, (-1, op.size)), setting).flatten(-2)]


def _residual(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    return [inputs[0] + inputs[1]]


def _gated_residual(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del setting
    x, y, row = inputs
    return [torch.addcmul(x, _vector(x, row, 3 * op.place + 2), y)]


def _gelu(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    return [F.gelu(inputs[0], approximate="tanh")]


def _silu(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    return [F.silu(inputs[0])]


def _relu2(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    return [F.relu(inputs[0]).square()]


def _silu_gated(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    gate, up = inputs[0].chunk(2, dim=-1)
    return [F.silu(gate) * up]


def _merge(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    heads = (op.heads[0], op.size)
    left, left_sum, right, right_sum = inputs
    parts = [
        (torch.unflatten(part, -1, heads), total)
        for part, total in ((left, left_sum), (right, right_sum))
    ]
    merged, total = merge(parts[0], parts[1], setting)
    return [merged.flatten(-2).to(setting.dtype_of(op.outputs[0])), total]


def merge(
    left: tuple[torch.Tensor, torch.Tensor],
    right: tuple[torch.Tensor, torch.Tensor],
    setting: Setting,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weigh two attention parts by their sums.

    Parameters
    ----------
    left, right : results ``[batch, rows, heads, size]`` and log-sum-exps ``[batch, rows, heads]``
    """
    share = torch.nan_to_num(torch.sigmoid(right[1] - left[1]))  # 0 where neither has keys
    before, after = (part.to(setting.wide) for part in (left[0], right[0]))
    return torch.lerp(before, after, share[..., None]), torch.logaddexp(left[1], right[1])


def _route(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    chosen = torch.topk(inputs[0], shape_of(op.outputs[0])[-1], dim=-1)
    gates = torch.softmax(chosen.values.to(setting.wide), dim=-1)
    return [chosen.indices.to(torch.int32), gates.to(inputs[0].dtype)]


def _combine(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    return [(inputs[0] * inputs[1][..., None]).sum(dim=2)]


def _guidance(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    if len(inputs[0]) == 1:
        return [inputs[0][0]]
    return [torch.lerp(inputs[0][1], inputs[0][0], GUIDANCE)]


def _step(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del op, setting
    x, noise = inputs
    width = min(x.shape[-1], noise.shape[-1])
    moved = torch.add(x[..., :width], noise[..., :width], alpha=STEP)
    return [moved if width == x.shape[-1] else torch.cat([moved, x[..., width:]], dim=-1)]


def _cast(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    return [inputs[0].to(setting.dtype_of(op.outputs[0]))]


def _scale(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    del setting
    return [inputs[0] / op.place]


_FUNCTIONS: Final[dict[str, Callable[[Pointwise, Setting, Values], Tensors]]] = {
    "norm": _norm,
    "modulated_norm": _modulated_norm,
    "head_norm": _head_norm,
    "residual": _residual,
    "gated_residual": _gated_residual,
    "gelu": _gelu,
    "silu": _silu,
    "relu2": _relu2,
    "silu_gated": _silu_gated,
    "merge": _merge,
    "route": _route,
    "combine": _combine,
    "guidance": _guidance,
    "step": _step,
    "cast": _cast,
    "scale": _scale,
}


def _rotary(op: Pointwise, setting: Setting) -> Bound:
    """Norm of q and k, and their turn by ``x cos + swap(x) sin``, whose signs the table has."""
    angle = rotary_angles(op, setting.index)
    dtype = setting.wide if setting.traced else setting.dtype
    tables = (
        setting.table(np.tile(np.cos(angle), 2)[:, None], dtype),
        setting.table(np.concatenate([-np.sin(angle), np.sin(angle)], axis=1)[:, None], dtype),
    )
    return Bound(partial(_turn_traced if setting.traced else _turn, op, setting), tables)


def _turn(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    x, cos, sin = inputs
    rows = torch.unflatten(x, -1, (-1, op.size))
    normed = rms_norm(rows[:, :, : sum(op.heads)], setting)
    turned = torch.addcmul(normed * cos, torch.roll(normed, op.size // 2, -1), sin)
    return [torch.cat([turned, rows[:, :, sum(op.heads) :]], dim=2).flatten(-2)]


def _turn_traced(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    x, cos, sin = inputs
    rows = torch.unflatten(x, -1, (-1, op.size))
    wide = rows[:, :, : sum(op.heads)].to(setting.wide)
    swapped = torch.unflatten(wide, -1, (2, op.size // 2)).flip(-2).flatten(-2)
    turned = ((wide * cos + swapped * sin) * _inverse_root(wide)).to(x.dtype)
    return [torch.cat([turned, rows[:, :, sum(op.heads) :]], dim=2).flatten(-2)]
