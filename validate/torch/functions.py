"""Element-wise functions on PyTorch: what the reference says in numpy, in few kernels."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from costmodels.program import Pointwise
from costmodels.program.rows import rotary_angles
from validate.reference.functions import EPSILON, GUIDANCE, STEP
from validate.reference.run import shape_of
from validate.torch.setting import Bound, Kernel, Setting, Values

Tensors = list[torch.Tensor]


def bind(op: Pointwise, setting: Setting) -> Bound:
    """Make an element-wise function ready to run."""
    if op.function in ("rotary", "rotary_tail", "latent"):
        return _rotary(op, setting)
    return Bound(_kernel(op, setting))


def _kernel(  # noqa: C901, PLR0911, PLR0912  # one case a function
    op: Pointwise, setting: Setting
) -> Kernel:
    match op.function:
        case "norm":
            return lambda inputs: [rms_norm(inputs[0], setting)]
        case "modulated_norm":
            return partial(_modulated_norm, op, setting)
        case "head_norm":
            shape = (-1, op.size)
            return lambda inputs: [
                rms_norm(torch.unflatten(inputs[0], -1, shape), setting).flatten(-2)
            ]
        case "residual":
            return lambda inputs: [inputs[0] + inputs[1]]
        case "difference":
            return lambda inputs: [inputs[0] - inputs[1]]
        case "gated_residual":
            place = 3 * op.place + 2
            return lambda inputs: [
                torch.addcmul(inputs[0], _vector(inputs[0], inputs[2], place), inputs[1])
            ]
        case "gelu":
            return lambda inputs: [F.gelu(inputs[0], approximate="tanh")]
        case "silu":
            return lambda inputs: [F.silu(inputs[0])]
        case "relu2":
            return lambda inputs: [F.relu(inputs[0]).square()]
        case "silu_gated":
            return _silu_gated
        case "gated":
            return lambda inputs: [inputs[0] * torch.sigmoid(inputs[1])]
        case "gated_norm":
            groups = (-1, op.size)
            return lambda inputs: [
                rms_norm(torch.unflatten(inputs[0], -1, groups), setting).flatten(-2)
                * F.silu(inputs[1])
            ]
        case "merge":
            return partial(_merge, op, setting)
        case "merge_all":
            return partial(_merge_all, op, setting)
        case "route":
            return partial(_route, op, setting)
        case "guidance":
            return _guidance
        case "step":
            return _step
        case "cast":
            dtype = setting.dtype_of(op.outputs[0])
            return lambda inputs: [inputs[0].to(dtype)]
        case "scale":
            return lambda inputs: [inputs[0] / op.place]
        case "combine":
            raise AssertionError("the sum over experts stands in a layer of them")
        case "rotary" | "rotary_tail" | "latent":
            raise AssertionError(f"{op.function} has tables")
        case _:
            raise AssertionError(f"{op.function} is written in networks alone")


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
    start = place % (row.shape[-1] // width) * width
    return row[..., start : start + width]


def _modulated_norm(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    x, row = inputs
    shift, scale = (_vector(x, row, 3 * op.place + i) for i in range(2))
    if not setting.traced:
        return [torch.addcmul(shift, rms_norm(x, setting), 1 + scale)]
    wide = x.to(setting.wide)
    return [(wide * _inverse_root(wide) * (1 + scale) + shift).to(x.dtype)]


def _silu_gated(inputs: Values) -> Tensors:
    gate, up = inputs[0].chunk(2, dim=-1)
    return [F.silu(gate) * up]


def _merge(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    """Weigh two attention parts by their log-sum-exps ``[batch, rows, heads]``."""
    left, left_sum, right, right_sum = inputs
    share = torch.nan_to_num(torch.sigmoid(right_sum - left_sum))  # 0 where neither has keys
    left_heads, right_heads = (
        torch.unflatten(part, -1, (op.heads[0], op.size)).to(setting.wide) for part in (left, right)
    )
    merged = torch.lerp(left_heads, right_heads, share[..., None])
    total = torch.logaddexp(left_sum, right_sum)
    return [merged.flatten(-2).to(setting.dtype_of(op.outputs[0])), total]


def _merge_all(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    """Weigh the parts of all ranks by their log-sum-exps, which stand behind them."""
    outs, sums = torch.split(inputs[0], [op.heads[0] * op.size, op.heads[0]], dim=-1)
    shares = torch.nan_to_num(torch.softmax(sums, dim=0))[..., None]  # 0 where none has keys
    out = (torch.unflatten(outs, -1, (op.heads[0], op.size)) * shares).sum(dim=0)
    total = torch.logsumexp(sums, dim=0)
    return [out.flatten(-2).to(setting.dtype_of(op.outputs[0])), total]


def _route(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    top = torch.topk(inputs[0], shape_of(op.outputs[0])[-1], dim=-1)
    gates = torch.softmax(top.values.to(setting.wide), dim=-1)
    return [top.indices.to(torch.int32), gates.to(inputs[0].dtype)]


def _guidance(inputs: Values) -> Tensors:
    if len(inputs[0]) == 1:
        return [inputs[0][0]]
    return [torch.lerp(inputs[0][1], inputs[0][0], GUIDANCE)]


def _step(inputs: Values) -> Tensors:
    x, noise = inputs
    width = min(x.shape[-1], noise.shape[-1])
    stepped = torch.add(x[..., :width], noise[..., :width], alpha=STEP)
    return [stepped if width == x.shape[-1] else torch.cat([stepped, x[..., width:]], dim=-1)]


def _rotary(op: Pointwise, setting: Setting) -> Bound:
    """Norm of q and k, and their turn by ``x cos + swap(x) sin``, whose signs the table has."""
    angle = rotary_angles(op, setting.index)
    dtype = setting.wide if setting.traced else setting.dtype
    tables = (
        setting.table(np.tile(np.cos(angle), 2)[:, None], dtype),
        setting.table(np.concatenate([-np.sin(angle), np.sin(angle)], axis=1)[:, None], dtype),
    )
    if op.function == "rotary":
        return Bound(partial(_turn_traced if setting.traced else _turn, op, setting), tables)
    return Bound(partial(_turn_tail, op, setting), tables)


def _turn_tail(op: Pointwise, setting: Setting, inputs: Values) -> Tensors:
    """Turn the last features of every head; of a latent row the others are normed."""
    x, cos, sin = inputs
    heads = torch.unflatten(x, -1, (-1, op.size))
    head, tail = heads[..., : -op.turned], heads[..., -op.turned :]
    if op.function == "latent":
        head = rms_norm(head, setting)
    swapped = torch.unflatten(tail, -1, (2, op.turned // 2)).flip(-2).flatten(-2)
    turned = torch.addcmul(tail * cos, swapped, sin).to(x.dtype)
    return [torch.cat([head, turned], -1).flatten(-2)]


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
