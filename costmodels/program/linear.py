"""Operations of transformers with linear attention: sums over keys, and neighbours in a grid."""

from dataclasses import dataclass
from typing import Literal

from costmodels.program.tensors import Real, Size, Span, Tensor, Weight

__all__ = ["Depthwise", "LinearAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    r"""Attention without softmax, through one small state a head in place of all its keys [1]_.

    .. math:: S = relu(K)^T [V | 1], \qquad O = relu(Q) S_V / relu(Q) S_1

    With `part` ``sum`` the inputs are keys and values ``[batch, rows, heads * size]`` and the
    result is S, ``[batch, heads, size, size + 1]``: sums over rows, so that those of ranks with
    different rows add up. ``read`` has queries and S, and gives O ``[batch, rows, heads * size]``.

    References
    ----------
    .. [1] Xie et al., "SANA: Efficient High-Resolution Image Synthesis with Linear Diffusion
       Transformers", 2024, arXiv:2410.10629, section 2.2
    """

    part: Literal["sum", "read"]
    inputs: tuple[Tensor, ...]
    out: Tensor
    heads: int
    size: int
    stream: Literal["compute", "comm"] = "compute"

    @property
    def flop(self) -> Real:
        """A product of ``size`` by ``size + 1`` numbers for every row and head."""
        batch, rows, _ = self.inputs[0].shape
        return 2.0 * self.heads * self.size * (self.size + 1) * batch * rows

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        return sum((tensor.bytes for tensor in self.inputs), start=self.out.bytes)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depthwise:
    """A 3 x 3 convolution of every feature by itself; rows are the points of a grid, line by line.

    x ``[batch, halo + rows + halo, features]``, `weight` ``[9, features]``, out ``[batch, rows,
    features]``. line : points of a line. halo : neighbours' rows before and after those of
    `span`, whole lines that are one at least where the grid is cut. What lies outside the grid
    counts as zero.
    """

    x: Tensor
    weight: Weight
    out: Tensor
    span: Span
    line: Size
    halo: Size = 0
    stream: Literal["compute", "comm"] = "compute"

    @property
    def flop(self) -> Real:
        return 2.0 * self.weight.local_rows * self.out.elements

    @property
    def traffic(self) -> Real:
        """Bytes read and written once."""
        return self.x.bytes + self.out.bytes + self.weight.bytes

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.out,)
