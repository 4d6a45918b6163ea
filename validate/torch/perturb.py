"""How far may rounding bring two right results apart? A step is taken again, rounded otherwise.

Two programs that compute the same round every result they make, each by a part u of it at most, and
so may part there by 2 u. How such gaps grow on the way to the end is the model's own: it says so
itself where each result of a step is moved by a part drawn between -2 u and 2 u [1]_. In layers
whose outputs are normalised after sums that nearly cancel, as heads of gated delta rules are, gaps
grow from layer to layer; near a tie among experts they let a row choose another one.

References
----------
.. [1] Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic", 1997
"""

from collections import Counter
from dataclasses import replace
from typing import Final

import torch

from costmodels.price import Class
from validate.reference.run import Here
from validate.torch.rank_state import RankState, Step

UNITS: Final = {
    torch.bfloat16: 1 / 2**8,
    torch.float16: 1 / 2**11,
    torch.float32: 1 / 2**24,
    torch.float64: 1 / 2**53,
}
"""Largest part of a number that rounding to a type takes or adds."""
EXACT_CLASSES: Final[tuple[Class, ...]] = ("layout", "communication")
"""What moves numbers and rounds none, or as its neighbours do."""


def perturbed(state: RankState, seed: int) -> RankState:
    """Return the same rank, each of whose results is moved as far as rounding may; drawn.

    All ranks draw the same numbers, so that those which have the same result still do.
    """
    dtype, wide = state.setting.dtype, state.setting.wide
    reach, values = 2 * UNITS[dtype], state.values
    draw = torch.Generator(state.setting.device).manual_seed(seed)

    def moved(value: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(value)
        for source_row, target_row in zip(
            value, out, strict=True
        ):  # wide numbers of one sample at a time
            factor = torch.rand(source_row.shape, generator=draw, device=value.device, dtype=wide)
            target_row.copy_(factor.mul_(2 * reach).add_(1 - reach).mul_(source_row))
        return out

    def around(step: Step, kind: Class, stream: str) -> Step:
        del stream
        if kind in EXACT_CLASSES:
            return step

        def then_moved(position: Here) -> None:
            old_values = dict(values)
            step(position)
            for name, value in values.items():
                if value is not old_values.get(name) and value.dtype == dtype:
                    values[name] = moved(value)

        return then_moved

    return replace(state, fuser=None, around=around, counts=Counter())
