"""A time, and how well it is known."""

from dataclasses import dataclass
from enum import IntEnum

from topology.base import Seconds


class Basis(IntEnum):
    """Ordered from best to worst, so that `max` is the weakest link.

    Extrapolated: by a measured or calibrated law, not far beyond the sizes it was held against.
    """

    MEASURED = 0
    CALIBRATED = 1
    EXTRAPOLATED = 2
    DATASHEET = 3
    ASSUMED = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates add like times; a sum is only as good as its worst part.

    >>> Estimate(Seconds(1.0), Basis.MEASURED) + Estimate(Seconds(2.0), Basis.DATASHEET)
    Estimate(time=3.0, basis=<Basis.DATASHEET: 3>)
    """

    time: Seconds = Seconds(0.0)
    basis: Basis = Basis.MEASURED

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(Seconds(self.time + other.time), max(self.basis, other.basis))
