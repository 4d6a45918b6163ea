"""Linear attention and depthwise convolutions on PyTorch, in the types that SANA's own code has."""

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from costmodels.program.ops import Depthwise, LinearAttention
from costmodels.program.rows import positions
from validate.reference.functions import EPSILON
from validate.torch.setting import Bound, Setting, Values


def bind(op: LinearAttention, setting: Setting) -> Bound:
    """Make sums over keys, or what queries find in them, ready to run; sums are kept wide."""
    heads = (op.heads, op.size)

    def summed(inputs: Values) -> list[torch.Tensor]:
        key, value = (torch.unflatten(x, -1, heads).transpose(1, 2) for x in inputs)
        left = F.relu(key).to(setting.wide)
        right = F.pad(value.to(setting.wide), (0, 1), value=1.0)
        return [left.transpose(2, 3) @ right]

    def read(inputs: Values) -> list[torch.Tensor]:
        query = torch.unflatten(inputs[0], -1, heads).transpose(1, 2)
        found = F.relu(query).to(setting.wide) @ inputs[1]
        out = found[..., :-1] / (found[..., -1:] + EPSILON)
        return [out.transpose(1, 2).flatten(-2).to(inputs[0].dtype)]

    return Bound(summed if op.part == "sum" else read)


def bind_depthwise(op: Depthwise, setting: Setting) -> Bound:
    """Make a convolution ready to run: inputs are x and the weight ``[features, 9]``."""
    line, places = int(op.line), positions(op.span, setting.index)
    lines = int(op.halo) // line
    first, last = int(places[0]) == 0, int(places[-1]) == int(op.span.tokens) - 1
    start, stop = (lines if first else lines - 1), (lines if last else lines - 1)
    edges = (0, 0, int(first), int(last))

    def run(inputs: Values) -> list[torch.Tensor]:
        x, weight = inputs
        picture = torch.unflatten(x, 1, (-1, line)).permute(0, 3, 1, 2)
        kept = picture[:, :, start : picture.shape[2] - stop]
        kernels = weight.reshape(-1, 1, 3, 3)
        whole = F.pad(kept, edges) if first != last else kept
        padding = (1, 1) if first and last else (0, 1)
        out = F.conv2d(whole, kernels, padding=padding, groups=len(kernels))
        return [out.permute(0, 2, 3, 1).flatten(1, 2)]

    return Bound(run)
