"""What one machine measured: it stands before the shipped curves where a caller passes it."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from costmodels.collectives.operations import Op
from costmodels.collectives.parameters import Fitted, Library
from costmodels.collectives.settings import Launch
from costmodels.collectives.tables import library
from costmodels.collectives.times import Times
from topology.base import Seconds
from topology.catalogue import Fabric

_MACHINES: Final = 16  # remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveCalibration:
    """Curves and times of one machine; what is absent is taken from the shipped tables.

    identity : a name that no other calibration has; lookups are remembered by it.
    curves : by generation, link and protocol, such as ``hopper.nvlink.ring_ll``.
    host, gap : s of a collective call that no graph replays: of the host, and on the GPU; None
        where they were not measured.
    times : of whole collectives, for groups like the measured one.
    """

    identity: str
    curves: tuple[tuple[str, Fitted], ...] = ()
    host: Seconds | None = None
    gap: Seconds | None = None
    times: tuple[Times, ...] = ()

    def __hash__(self) -> int:
        return hash(self.identity)

    def times_of(self, op: Op, fabric: Fabric, launch: Launch) -> Times | None:
        """Find what `op` took on groups like `fabric`; None where that was not measured."""
        return next((one for one in self.times if one.serves(op, fabric, launch)), None)


Calibration = CurveCalibration | None


@lru_cache(maxsize=_MACHINES)
def library_of(calibration: Calibration) -> Library:
    """Put a machine's curves over the shipped ones."""
    shipped = library()
    if calibration is None:
        return shipped
    own = {name: replace(fitted, own=True) for name, fitted in calibration.curves}
    return Library(curves={**shipped.curves, **own}, like=shipped.like)
