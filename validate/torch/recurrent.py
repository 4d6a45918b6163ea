r"""Recurrences on PyTorch: prompts in chunks, as products of matrices; a new token by itself.

In a chunk that starts from a state S, with :math:`\gamma_t` the decay from its start to token t,
changes u solve a triangular system, and all rows and the state that is left follow from them:

.. math::
    u_t = s_t (v_t - \gamma_t S^T k_t) - \sum_{j<t} s_t \frac{\gamma_t}{\gamma_j} (k_t k_j) u_j,
    \quad
    o_t = \gamma_t S^T q_t + \sum_{j \le t} \frac{\gamma_t}{\gamma_j} (q_t k_j) u_j, \quad
    S \to \gamma S + \sum_j \frac{\gamma}{\gamma_j} k_j u_j^T

(Mamba-2: :math:`u_t = s_t v_t`.) The state after a chunk is an affine map of the one before, so
that all but that map's chain is done for all chunks at once [1]_ [2]_.

References
----------
.. [1] Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv:2412.06464
.. [2] Dao and Gu, "Transformers are SSMs", 2024, arXiv:2405.21060
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it

from costmodels.program import CausalConvolution, Recurrence
from topology.base.values import dataclass
from validate.reference.functions import EPSILON
from validate.torch.setting import Bound, Setting, Values

Tensors = list[torch.Tensor]

CHUNKS_AT_ONCE: Final = 64
"""Chunks that are worked on at once: what lies between them takes memory."""


def bind_convolution(op: CausalConvolution) -> Bound:
    """Make a convolution ready to run: inputs are x, the weight ``[features, taps]``, rows kept."""
    taps = op.weight.local_rows

    def run(inputs: Values) -> Tensors:
        x, weight, old_rows = inputs
        rows = torch.cat([old_rows, x], 1)
        out = F.conv1d(rows.transpose(1, 2), weight[:, None], groups=len(weight))
        return [F.silu(out.transpose(1, 2)), rows[:, rows.shape[1] - taps + 1 :]]

    return Bound(run)


def bind(op: Recurrence, setting: Setting) -> Bound:
    """Make a recurrence ready to run: inputs are features, the weight, gates and the state."""
    return Bound(partial(_recurrence, op, setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What rows bring to a recurrence, all ``[batch, heads, rows, ...]``.

    query, key : ``[..., key]``. value : ``[..., value]``, in Mamba-2 times the step. fall :
    logarithm of the decay. size : of the step, of the delta rule alone.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    fall: torch.Tensor
    size: torch.Tensor | None

    def padded(self, more: int) -> "_Rows":
        """Add rows that change nothing."""
        row_pad, scalar_pad = (0, 0, 0, more), (0, more)
        return _Rows(
            query=F.pad(self.query, row_pad), key=F.pad(self.key, row_pad),
            value=F.pad(self.value, row_pad), fall=F.pad(self.fall, scalar_pad),
            size=None if self.size is None else F.pad(self.size, scalar_pad),
        )  # fmt: skip

    def part(self, start: int, end: int) -> "_Rows":
        """Take some of the rows."""
        return _Rows(
            query=self.query[:, :, start:end], key=self.key[:, :, start:end],
            value=self.value[:, :, start:end], fall=self.fall[:, :, start:end],
            size=None if self.size is None else self.size[:, :, start:end],
        )  # fmt: skip

    def chunked(self, length: int) -> "_Rows":
        """Cut the rows into chunks, ``[batch, heads, chunks, length, ...]``."""
        shape = (-1, length)
        return _Rows(
            query=self.query.unflatten(2, shape), key=self.key.unflatten(2, shape),
            value=self.value.unflatten(2, shape), fall=self.fall.unflatten(2, shape),
            size=None if self.size is None else self.size.unflatten(2, shape),
        )  # fmt: skip


def _recurrence(op: Recurrence, setting: Setting, inputs: Values) -> Tensors:
    features, weight, gates, state = (x.to(setting.wide) for x in inputs)
    rows, count = _rows(op, features, weight, gates), features.shape[1]
    if count == 1:
        out, state = _token(rows, state)
    else:
        with _rounding(setting):
            out, state = _prompt(rows, state, 1 << (min(count, op.chunk) - 1).bit_length())
    return [out.transpose(1, 2).flatten(-2).to(inputs[0].dtype), state]


@contextmanager
def _rounding(setting: Setting) -> Iterator[None]:
    """Let products round their inputs to 11 bits where these come from 16-bit numbers."""
    products = torch.backends.cuda.matmul
    old_setting = products.allow_tf32
    products.allow_tf32 = setting.dtype.itemsize == 2
    try:
        yield
    finally:
        products.allow_tf32 = old_setting


def _prompt(rows: _Rows, state: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Take many tokens of each sequence, in chunks of `length`."""
    count = rows.fall.shape[-1]
    rows, outs = rows.padded(-count % length), []
    for start in range(0, count, CHUNKS_AT_ONCE * length):
        part = rows.part(start, start + CHUNKS_AT_ONCE * length)
        out, state = _chunks(part.chunked(length), state)
        outs.append(out)
    return torch.cat(outs, 2)[:, :, :count], state


def _rows(
    op: Recurrence, features: torch.Tensor, weight: torch.Tensor, gates: torch.Tensor
) -> _Rows:
    key_width, value_width = op.groups * op.key, op.heads * op.value
    step = F.softplus(gates[..., -op.heads :] + weight[:, 1]).transpose(1, 2)
    fall = -torch.exp(weight[:, 0])[:, None] * step
    if op.kind == "delta":
        query, key, value = torch.split(features, [key_width, key_width, value_width], -1)
        return _Rows(
            query=_unit(_per_head(op, query)) / op.key**0.5, key=_unit(_per_head(op, key)),
            value=_heads(value, op.heads), fall=fall,
            size=torch.sigmoid(gates[..., : op.heads]).transpose(1, 2),
        )  # fmt: skip
    value, key, query = torch.split(features, [value_width, key_width, key_width], -1)
    return _Rows(
        query=_per_head(op, query), key=_per_head(op, key), fall=fall, size=None,
        value=_heads(value, op.heads) * step[..., None],
    )  # fmt: skip


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _per_head(op: Recurrence, x: torch.Tensor) -> torch.Tensor:
    """Give every head what its group shares."""
    return _heads(x, op.groups).repeat_interleave(op.heads // op.groups, 1)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def _token(rows: _Rows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one token of each sequence."""
    state = state * torch.exp(rows.fall)[..., None]
    change = rows.value
    if rows.size is not None:
        change = rows.size[..., None] * (rows.value - rows.key @ state)
    state = state + rows.key.transpose(-1, -2) * change
    return rows.query @ state, state


def _chunks(rows: _Rows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take chunks one after another, but for what they have in common."""
    total = torch.cumsum(rows.fall, -1)
    length = total.shape[-1]
    is_causal = torch.ones(length, length, dtype=torch.bool, device=total.device).tril()
    log_decays = (total[..., :, None] - total[..., None, :]).masked_fill(~is_causal, -torch.inf)
    decays, start_decays = torch.exp(log_decays), torch.exp(total)[..., None]
    end_keys = rows.key * torch.exp(total[..., -1:] - total)[..., None]  # by a chunk's end
    change, state_change = rows.value, None
    if rows.size is not None:
        scores = rows.key @ rows.key.transpose(-1, -2)
        solved = inverse((rows.size[..., None] * decays * scores).tril(-1))
        solved = solved * rows.size[..., None, :]
        change, state_change = solved @ rows.value, solved @ (rows.key * start_decays)
    states, state = _chain(rows, end_keys, (change, state_change), total[..., -1], state)
    if state_change is not None:
        change = change - state_change @ states
    chunk_out = (decays * (rows.query @ rows.key.transpose(-1, -2))) @ change
    return (chunk_out + (rows.query * start_decays) @ states).flatten(2, 3), state


def _chain(
    rows: _Rows,
    end_keys: torch.Tensor,
    changes: tuple[torch.Tensor, torch.Tensor | None],
    fall: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Follow the state from chunk to chunk: what each starts from, and the last one's end."""
    change, state_change = changes
    added = end_keys.transpose(-1, -2) @ change
    carry = torch.exp(fall)[..., None, None]
    if state_change is not None:
        identity = torch.eye(rows.key.shape[-1], dtype=state.dtype, device=state.device)
        carry = carry * identity - end_keys.transpose(-1, -2) @ state_change
    starts = []
    for chunk in range(added.shape[2]):
        starts.append(state)
        added_state, factor = added[:, :, chunk], carry[:, :, chunk]
        if state_change is None:
            state = torch.addcmul(added_state, factor, state)
        else:
            all_heads = (part.flatten(0, 1) for part in (added_state, factor, state))
            state = torch.baddbmm(*all_heads).view_as(state)
    return torch.stack(starts, 2), state


def inverse(below: torch.Tensor) -> torch.Tensor:
    """Invert I + `below`, which is 0 on and over its diagonal, and whose sides are a power of 2.

    From single rows to pairs, fours and so on, as substitution has it, so that no power of the
    matrix is taken, which could be large.

    >>> inverse(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([[ 1.,  0.],
            [-3.,  1.]])
    """
    side, blocks = 1, torch.ones_like(below[..., :1])[..., None]
    while side < below.shape[-1]:
        pairs = below.unflatten(-1, (-1, 2 * side)).unflatten(-3, (-1, 2 * side))
        corners = pairs.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., side:, :side]
        upper, lower = blocks[..., 0::2, :, :], blocks[..., 1::2, :, :]
        corner = -(lower @ corners @ upper)
        above = torch.cat([upper, torch.zeros_like(upper)], -1)
        blocks = torch.cat([above, torch.cat([corner, lower], -1)], -2)
        side *= 2
    return blocks[..., 0, :, :]
