"""Curves fitted on one machine: they stand before the shipped ones where a caller passes them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from costmodels.collectives.catalogue import library
from costmodels.collectives.parameters import Fitted, Library
from topology.units import Seconds

_MACHINES: Final = 16  # remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveCalibration:
    """Curves of one machine; what is absent is taken from the shipped tables.

    identity : a name that no other calibration has; lookups are remembered by it.
    curves : by generation, link and protocol, such as ``hopper.nvlink.ring_ll``.
    host, gap : s of a collective call that no graph replays: of the host, and on the GPU; None
        where they were not measured.
    """

    identity: str
    curves: tuple[tuple[str, Fitted], ...] = ()
    host: Seconds | None = None
    gap: Seconds | None = None

    def __hash__(self) -> int:
        return hash(self.identity)


Calibration = CurveCalibration | None


@lru_cache(maxsize=_MACHINES)
def library_of(calibration: Calibration) -> Library:
    """Put a machine's curves over the shipped ones."""
    shipped = library()
    if calibration is None:
        return shipped
    own = {name: replace(fitted, own=True) for name, fitted in calibration.curves}
    return Library(curves={**shipped.curves, **own}, like=shipped.like)
