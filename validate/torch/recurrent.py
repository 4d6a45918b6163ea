"""Recurrences on PyTorch, a token after another: right on any device, and fast on none."""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from costmodels.program import CausalConvolution, Recurrence
from validate.reference.functions import EPSILON
from validate.torch.setting import Bound, Setting, Values

Tensors = list[torch.Tensor]


def bind_convolution(op: CausalConvolution) -> Bound:
    """Make a convolution ready to run: inputs are x, the weight ``[features, taps]``, rows kept."""
    taps = op.weight.local_rows

    def run(inputs: Values) -> Tensors:
        x, weight, before = inputs
        rows = torch.cat([before, x], 1)
        out = F.conv1d(rows.transpose(1, 2), weight[:, None], groups=len(weight))
        return [F.silu(out.transpose(1, 2)), rows[:, rows.shape[1] - taps + 1 :]]

    return Bound(run)


def bind(op: Recurrence, setting: Setting) -> Bound:
    """Make a recurrence ready to run: inputs are features, the weight, gates and the state."""
    return Bound(partial(_recurrence, op, setting))


def _recurrence(op: Recurrence, setting: Setting, inputs: Values) -> Tensors:
    features, weight, gates, state = (x.to(setting.wide) for x in inputs)
    keys, value = _parts(op, features)
    left, right = keys
    step = F.softplus(gates[..., -op.heads :] + weight[:, 1])
    decay = torch.exp(-torch.exp(weight[:, 0]) * step)
    outs = []
    for row in range(features.shape[1]):
        state = state * decay[:, row, :, None, None]
        if op.kind == "delta":
            query, key = _unit(left[:, row]) / op.key**0.5, _unit(right[:, row])
            size = torch.sigmoid(gates[:, row, : op.heads])[..., None]
            change = size * (value[:, row] - torch.einsum("bhkv,bhk->bhv", state, key))
        else:
            query, key = right[:, row], left[:, row]
            change = step[:, row, :, None] * value[:, row]
        state = state + key[..., None] * change[:, :, None]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, query))
    return [torch.stack(outs, 1).flatten(-2).to(inputs[0].dtype), state]


def _parts(op: Recurrence, features: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Cut features into the two that groups of heads share, and the values."""
    shared, own = op.groups * op.key, op.heads * op.value
    widths = [shared, shared, own] if op.kind == "delta" else [own, shared, shared]
    parts = list(torch.split(features, widths, -1))
    value = parts.pop(2 if op.kind == "delta" else 0)
    keys = [
        torch.unflatten(part, -1, (op.groups, op.key)).repeat_interleave(op.heads // op.groups, 2)
        for part in parts
    ]
    return keys, torch.unflatten(value, -1, (op.heads, op.value))


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)
