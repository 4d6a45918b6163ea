"""What one machine measured: times of whole collectives, and curves before the shipped ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Final, cast

from costmodels.collectives.operations import Amount, Op, read_op
from costmodels.collectives.parameters import Fitted, Library, link_class
from costmodels.collectives.settings import Launch, read_launch
from costmodels.collectives.tables import library
from costmodels.sizes import interp, larger
from topology.base import BytesPerSecond, CatalogueError, Kind, Seconds, parse
from topology.base.values import dataclass
from topology.catalogue import Fabric

if TYPE_CHECKING:
    pass

_MOST_MACHINES: Final = 16  # remembered
_BANDWIDTH_TOLERANCE: Final = 0.01  # of two bandwidths that are the same link
_KEYS: Final = frozenset(
    {"kind", "source", "ranks", "bandwidth", "sizes", "seconds", "median_error", "worst_error"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    r"""What one collective took on one machine, at rising sizes.

    Between two sizes the time is linear in the bytes, as a start-up and a rate of its own:

    .. math:: t(m) = t_i + (m - m_i) (t_{i+1} - t_i) / (m_{i+1} - m_i)

    Fewer bytes than the smallest take as long as that one; more than the largest go on at the
    rate of the last two sizes.

    architecture, link : of the GPUs, as in a curve's name. bandwidth : B/s, the nominal one.
    ranks : how many took part, all in one node. launch : how the calls were issued.
    sizes : B, rising. seconds : s, never falling, one a size.
    median_error, worst_error : relative, of the rows that shaped it.

    10 us at 1 MB and 30 us at 3 MB: 20 us at 2 MB, 10 us for less, 40 us at 4 MB.

    >>> seen = Times(
    ...     op="all_reduce", architecture="hopper", link="nvlink", ranks=2, launch="graph",
    ...     bandwidth=BytesPerSecond(450e9), sizes=(1e6, 3e6), seconds=(1e-5, 3e-5), source="",
    ... )
    >>> [f"{seen.time(size) * 1e6:.0f} us" for size in (2e6, 1e3, 4e6)]
    ['20 us', '10 us', '40 us']
    """

    op: Op
    architecture: str
    link: str
    ranks: int
    launch: Launch
    bandwidth: BytesPerSecond
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    source: str
    kind: Kind = "measured"
    median_error: float = nan
    worst_error: float = nan

    @property
    def place(self) -> str:
        """Its name in a profile, such as ``hopper.nvlink.all_reduce.graph``."""
        return f"{self.architecture}.{self.link}.{self.op}.{self.launch}"

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a message of `message_bytes`."""
        (previous_time, last_time), (previous_size, last_size) = self.seconds[-2:], self.sizes[-2:]
        extra_time = (
            larger(message_bytes - last_size, 0.0)
            * (last_time - previous_time)
            / (last_size - previous_size)
        )
        return cast(Amount, interp(message_bytes, self.sizes, self.seconds) + extra_time)

    def serves(self, op: Op, fabric: Fabric, launch: Launch) -> bool:
        """Whether it is this collective on as many GPUs over the same links."""
        return (
            (self.op, self.launch, self.ranks) == (op, launch, fabric.ranks)
            and fabric.nodes == 1
            and (self.architecture, self.link) == (fabric.architecture, link_class(fabric))
            and abs(fabric.bandwidth - self.bandwidth) <= _BANDWIDTH_TOLERANCE * self.bandwidth
        )


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
        return next((times for times in self.times if times.serves(op, fabric, launch)), None)


Calibration = CurveCalibration | None


@lru_cache(maxsize=_MOST_MACHINES)
def library_of(calibration: Calibration) -> Library:
    """Put a machine's curves over the shipped ones."""
    shipped = library()
    if calibration is None:
        return shipped
    own_curves = {name: replace(fitted, own=True) for name, fitted in calibration.curves}
    return Library(curves={**shipped.curves, **own_curves}, like=shipped.like)


def read_times(place: str, row: Mapping[str, object]) -> Times:
    """Read one table of a profile, ``[times.hopper.nvlink.all_reduce.graph]``."""
    missing, unexpected = _KEYS - set(row), set(row) - _KEYS
    if missing or unexpected:
        raise CatalogueError(f"{place}: missing {sorted(missing)}, unexpected {sorted(unexpected)}")
    architecture, link, op, launch = place.split(".")
    sizes, seconds = _numbers(row["sizes"], "B"), _numbers(row["seconds"], "s")
    rising = all(a < b for a, b in pairwise(sizes))
    steady = all(a <= b for a, b in pairwise(seconds))
    if not 2 <= len(sizes) == len(seconds) or not rising or not steady or seconds[0] <= 0:
        raise CatalogueError(f"{place}: sizes and seconds do not go together")
    return Times(
        op=read_op(op),
        architecture=architecture,
        link=link,
        ranks=int(str(row["ranks"])),
        launch=read_launch(launch),
        bandwidth=BytesPerSecond(parse(str(row["bandwidth"]), "B/s")),
        sizes=sizes,
        seconds=seconds,
        source=str(row["source"]),
        kind=cast(Kind, row["kind"]),
        **{key: parse(str(row[key]), "1") for key in ("median_error", "worst_error")},
    )


def _numbers(entries: object, unit: str) -> tuple[float, ...]:
    return tuple(parse(str(entry), unit) for entry in cast(Sequence[object], entries))
