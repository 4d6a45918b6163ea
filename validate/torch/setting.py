"""Where and in which type a rank computes, and what an operation is turned into."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from costmodels.program import Tensor, Weight
from topology.base.values import dataclass

Values = Sequence[torch.Tensor]
Kernel = Callable[[Values], list[torch.Tensor]]
"""From an operation's inputs, and its tables behind them, to its outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A rank's device, its type for activations, and its index along every axis.

    replica : its part of the batch.
    traced : written for a compiler that fuses, rather than for kernels that are called one by one.
    quantised : layers' weights have 8 bits, and so have the rows that meet them.
    """

    device: torch.device
    dtype: torch.dtype
    index: Mapping[str, int]
    replica: int = 0
    traced: bool = False
    quantised: bool = False

    @property
    def wide(self) -> torch.dtype:
        """Type in which sums are kept."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def dtype_of(self, tensor: Tensor) -> torch.dtype:
        """Type of a tensor of the program: 4 bytes an element stand for the wide one."""
        return self.wide if tensor.itemsize == 4 else self.dtype

    def is_quantised(self, weight: Weight) -> bool:
        """Whether a weight has 8 bits: those of layers whose sides suit the tensor cores."""
        sides = (weight.local_rows, weight.local_columns)
        dense = weight.layered and weight.experts == 1
        return self.quantised and dense and not any(side % 16 for side in sides)

    def table(
        self, numbers: NDArray[np.float64] | NDArray[np.int64], dtype: torch.dtype
    ) -> torch.Tensor:
        """Put constant numbers on the device."""
        return torch.as_tensor(numbers).to(device=self.device, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Bound:
    """An operation made ready to run: all that is known beforehand is worked out."""

    run: Kernel
    tables: tuple[torch.Tensor, ...] = ()
