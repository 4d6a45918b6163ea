"""The public face: how long a collective takes, by which algorithm, and how well that is known."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from costmodels.basis import Basis
from costmodels.collectives.algorithms import BY_NAME, Algorithm
from costmodels.collectives.choice import build, nccl_pricing
from costmodels.collectives.engines import EngineKernels
from costmodels.collectives.measured import Calibration
from costmodels.collectives.operations import (
    PAIRWISE_OPS,
    Op,
    bus_factor,
    pace_of,
    read_op,
)
from costmodels.collectives.pricing import (
    AsMeasured,
    Fastest,
    Launched,
    Mixed,
    Paced,
    Pricing,
    always,
    fastest,
)
from costmodels.collectives.settings import (
    DEFAULT,
    Launch,
    NcclSettings,
    read_algorithm,
    read_launch,
)
from costmodels.collectives.tables import engines, mixing, tuning, unrecorded
from costmodels.kernels.parameters import NEAR
from costmodels.sizes import several
from topology.base import InputError, unknown
from topology.base.values import dataclass
from topology.catalogue import Fabric, Moves

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRICINGS: Final = 4096  # remembered
_LARGE: Final = 2.0**30  # B, whose bus bandwidth large messages keep
_OCTAVE: Final = 2.0  # public tables have one size an octave; their range reaches as far

Sizes = TypeVar("Sizes", float, "NDArray[Any]")
Named = str | type[Algorithm]
"""An algorithm by its name, ``auto``, ``engine``, or an algorithm of one's own."""


def collective_time(  # noqa: PLR0913  # how a library is run
    op: str,
    message_bytes: Sizes,
    fabric: Fabric,
    *,
    algorithm: Named = "auto",
    launch: str = "graph",
    settings: NcclSettings = DEFAULT,
    calibration: Calibration = None,
) -> Sizes:
    """Seconds that a collective takes on all ranks of a fabric.

    op : ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``,
        ``reduce``, ``gather``, ``scatter`` or ``send_recv`` (each rank to the next).
    message_bytes : what nccl-tests prints as size, the larger of one rank's two buffers; a
        number, or an array of any shape.
    fabric : the ranks and what they talk over.
    algorithm : ``auto`` is what NCCL takes at that size; ``engine`` the best of NCCL and the
        kernels of serving engines; or one by name, or an `Algorithm` of one's own.
    launch : ``graph`` is replayed, ``stream`` issued by PyTorch call by call.
    settings : NCCL release, launcher, engine.
    calibration : curves of this very machine.

    Raises InputError if a name is unknown, a size is negative, or the algorithm cannot serve `op`
    here.

    1 GiB over eight H100, at 470 GB/s of bus bandwidth, is about 4 ms.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> f"{collective_time('all_reduce', 2.0**30, node) * 1e3:.0f} ms"
    '4 ms'
    >>> collective_time("all_reduce", 2.0**30, find_hardware("h100-sxm").fabric(1))
    0.0
    """
    pricing = _pricing(op, fabric, algorithm, settings, calibration, launch)
    if not several(message_bytes):
        size = _checked(message_bytes)  # type: ignore[arg-type]  # one number
        return 0.0 if pricing is None else float(pricing.time(size))  # type: ignore[return-value]
    sizes = np.asarray(message_bytes, dtype=np.float64)
    if not np.all((sizes >= 0) & np.isfinite(sizes)):
        raise InputError("message size: got a negative or infinite one, wanted bytes")
    if pricing is None:
        return cast(Sizes, np.zeros_like(sizes))
    return cast(Sizes, pricing.time(sizes.ravel()).reshape(sizes.shape))


def supports(op: str, algorithm: Named, fabric: Fabric) -> bool:
    """Whether `algorithm` can run `op` on `fabric`.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> supports("all_reduce", "nvls", node), supports("all_to_all", "nvls", node)
    (True, False)
    """
    read = _read(algorithm)
    return isinstance(read, str) or not read.obstacle(read_op(op), fabric)


def choose(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    *,
    algorithm: Named = "auto",
    settings: NcclSettings = DEFAULT,
    calibration: Calibration = None,
) -> tuple[str, str]:
    """Algorithm and protocol that a message of this size gets.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> choose("all_reduce", 65536.0, node), choose("all_reduce", 2.0**30, node)
    (('ring', 'LL'), ('nvls', 'Simple'))
    """
    model = _taken(op, message_bytes, fabric, algorithm, settings, calibration)
    return ("none", "none") if model is None else (model.name, model.protocol)


def moves(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    *,
    algorithm: Named = "auto",
    settings: NcclSettings = DEFAULT,
    calibration: Calibration = None,
) -> Moves:
    """Say what a message of this size brings to the links of its group, by its algorithm.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> small, large = (moves("all_reduce", size, node) for size in (2.0**13, 2.0**30))
    >>> (small.route, small.sent), (large.route, large.sent)
    (('ring', 14336.0), ('switch', 1073741824.0))
    """
    model = _taken(op, message_bytes, fabric, algorithm, settings, calibration)
    if model is None:
        return Moves(sent=0.0)
    return replace(model.moves(message_bytes), staging=model.curve.pool)


def steps(op: str, fabric: Fabric, algorithm: Named) -> int:
    """Count the steps of an algorithm that wait for each other; 0 where they are not counted.

    >>> from topology.catalogue import find_hardware
    >>> fabric = find_hardware("h100-sxm").fabric(8)
    >>> steps("all_reduce", fabric, "ring"), steps("all_reduce", fabric, "multishot")
    (14, 2)
    """
    way = _read(algorithm)
    return 0 if isinstance(way, str) else way.steps(read_op(op), fabric)


def basis(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    *,
    algorithm: Named = "auto",
    settings: NcclSettings = DEFAULT,
    calibration: Calibration = None,
) -> Basis:
    """How well the time is known.

    MEASURED where a curve was fitted on this very machine, for this operation, number of ranks and
    size; CALIBRATED where it was for this generation and link; EXTRAPOLATED below the smallest size
    of either and up to four times the largest; DATASHEET where it is carried over by its mechanism;
    ASSUMED for sizes or curves that nobody measured, and for exchanges of several GPUs over PCIe on
    a server that nobody measured: servers of one kind differ.

    >>> from topology.catalogue import find_hardware
    >>> basis("all_gather", 1e6, find_hardware("h100-sxm").fabric(4)).name
    'CALIBRATED'
    >>> basis("all_gather", 1e6, find_hardware("v100-sxm").fabric(4)).name
    'DATASHEET'
    """
    pricing = _pricing(op, fabric, algorithm, settings, calibration)
    size = _checked(message_bytes)
    if pricing is None:
        return Basis.MEASURED
    fitted = pricing.at(size).fitted
    if fitted.kind == "assumed" or size > fitted.largest * NEAR:
        return Basis.ASSUMED
    beyond = 1.0 if fitted.own else _OCTAVE
    inside = fitted.smallest / beyond <= size <= fitted.largest * beyond
    fit = Basis.CALIBRATED if inside else Basis.EXTRAPOLATED
    if fitted.own:
        if fitted.covers(op, fabric):
            return Basis.MEASURED if inside else fit
        shipped = basis(op, size, fabric, algorithm=algorithm, settings=settings)
        return max(fit, shipped)
    pace = pace_of(read_op(op), fabric)
    if pace is None and _differs(read_op(op), fabric):
        return Basis.ASSUMED
    there = pace is not None and pace.fabric.ranks == fabric.ranks
    measured = fitted.kind == "measured" and not fitted.carried and fitted.covers(op, fabric)
    return fit if there or measured else Basis.DATASHEET


def _differs(op: Op, fabric: Fabric) -> bool:
    """Whether servers of one kind are known to be far apart: exchanges through a host's tree.

    Eight L20 exchange at 1.2 GB/s each in one server (xDiT's PixArt) and at 6 in another
    (NVIDIA/nccl#1817).
    """
    shared = fabric.link == "pcie" and fabric.local > 2
    return shared and op == "all_to_all"


def _checked(message_bytes: float) -> float:
    size = float(message_bytes)
    if not 0 <= size < inf:
        raise InputError(f"message size: got {size:g}, wanted bytes, zero or more")
    return size


def _read(algorithm: Named) -> Named:
    """Look up the algorithm of a name; ``auto`` and ``engine`` stay as they are."""
    if not isinstance(algorithm, str):
        return algorithm
    return BY_NAME.get(read_algorithm(algorithm), algorithm)


def _taken(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    algorithm: Named,
    settings: NcclSettings,
    calibration: Calibration,
) -> Algorithm | None:
    """Find the algorithm that a message of this size takes; None on one rank."""
    pricing = _pricing(op, fabric, algorithm, settings, calibration)
    size = _checked(message_bytes)
    return None if pricing is None else pricing.at(size).model


def _pricing(
    op: str,
    fabric: Fabric,
    algorithm: Named,
    settings: NcclSettings,
    calibration: Calibration,
    launch: str = "graph",
) -> Pricing | None:
    """Price every size of a call; None on one rank."""
    read, kind = read_op(op), _read(algorithm)
    return _priced(_Call(read, fabric, read_launch(launch), settings, calibration), kind)


@lru_cache(maxsize=_PRICINGS)
def _priced(call: _Call, algorithm: Named) -> Pricing | None:
    op, fabric, settings = call.op, call.fabric, call.settings
    allowed = _engines(settings)
    if fabric.ranks == 1:
        return None
    if algorithm == "engine":
        return fastest([call.by_engine(engine) for engine in allowed])
    if isinstance(algorithm, str):
        return call.by_nccl(None)
    reason = algorithm.obstacle(op, fabric)
    if not reason and settings.nccl < algorithm.since:
        reason = "it needs NCCL {}.{} or newer".format(*algorithm.since)
    if reason:
        raise InputError(f"{op} by {algorithm.name}: {reason}")
    if not algorithm.engine:
        return call.by_nccl(algorithm)
    having = [engine for engine in allowed if algorithm.name in engine.kernels] or allowed
    return call.by_kernel(
        algorithm, min(having, key=lambda engine: engine.extra_of(algorithm.name, fabric))
    )


def _engines(settings: NcclSettings) -> list[EngineKernels]:
    shipped = engines()
    if settings.engine == "best":
        return list(shipped.values())
    if settings.engine not in shipped:
        raise unknown("engine", settings.engine, ["best", *shipped])
    return [shipped[settings.engine]]


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective on its ranks, and how it is run: all but its size and its algorithm."""

    op: Op
    fabric: Fabric
    launch: Launch
    settings: NcclSettings
    calibration: Calibration

    def by_nccl(self, algorithm: type[Algorithm] | None) -> Pricing:
        """Price a call of NCCL, which chooses the algorithm where that is None."""
        op, fabric, own, shipped = self.op, self.fabric, self.calibration, unrecorded()
        replayed = self._kernels(algorithm, "graph")
        floor = 0.0
        if self.settings.launcher == "single":
            # sends and receives of the busiest rank are posted one by one
            posts = 2 if op == "send_recv" else 2 * (fabric.ranks - 1)
            floor = shipped.launching(fabric, posts if op in PAIRWISE_OPS else 0)
        if self.launch == "graph":
            replayed = self._in_a_graph(replayed)
            return Launched(way=replayed, host=floor) if floor else replayed
        called = self._kernels(algorithm, "stream")
        if isinstance(called, AsMeasured):
            return Launched(way=called, host=floor)
        host = shipped.host if own is None or own.host is None else own.host
        gap = shipped.gap if own is None or own.gap is None else own.gap
        return Launched(way=replayed, host=max(floor, host), gap=gap)

    def _in_a_graph(self, way: Pricing) -> Pricing:
        """Add what graphs that may mix add; a machine's own curves and times have it in them."""
        own = self.calibration
        measured = own is not None and bool(own.curves or own.times)
        mixes = self.settings.graph_mixing and not measured
        return Mixed(way=way, added=mixing()) if mixes else way

    def _kernels(self, algorithm: type[Algorithm] | None, launch: Launch) -> Pricing:
        """Leave to NCCL what is not asked for; its own choice as measured, where it was here."""
        numbers, own = tuning().at(self.settings.nccl), self.calibration
        protocols = self.settings.protocols
        way = nccl_pricing(self.op, self.fabric, numbers, algorithm, own, protocols=protocols)
        pace = pace_of(self.op, self.fabric)
        if pace is not None:
            usual = nccl_pricing(pace.op, pace.fabric, numbers)
            expected = bus_factor(pace.op, pace.fabric.ranks) * _LARGE / usual.time(_LARGE)
            way = Paced(way=way, factor=expected / pace.bus)
        if own is None or algorithm is not None:
            return way
        times = own.times_of(self.op, self.fabric, launch)
        return way if times is None else AsMeasured(way=way, times=times)

    def by_kernel(self, algorithm: type[Algorithm], engine: EngineKernels) -> Pricing:
        """Price a kernel that a serving engine brings."""
        way = always(build(algorithm, "Simple", self.op, self.fabric))
        bare = Launched(way=way, gap=engine.extra_of(algorithm.name, self.fabric))
        return self._issued(bare, engine.host_on(self.fabric))

    def by_engine(self, engine: EngineKernels) -> Pricing:
        """Take the fastest of an engine's kernels, each up to its limit, and NCCL."""
        fabric = self.fabric
        ways = [self._issued(self._kernels(None, "graph"), engine.nccl_host)]
        limits = [inf]
        crowded = fabric.link == "pcie" and fabric.ranks > 2  # engines leave these to NCCL
        for name in engine.kernels:
            if not crowded and not BY_NAME[name].obstacle(self.op, fabric):
                ways.append(self.by_kernel(BY_NAME[name], engine))
                limits.append(engine.limit_of(name, fabric))
        return Fastest(ways=tuple(ways), limits=tuple(limits))

    def _issued(self, way: Pricing, host: float) -> Pricing:
        """Let an engine issue a call that no graph replays: it copies the input aside."""
        if self.launch == "graph":
            return way
        shipped = unrecorded()
        copy = 1 / shipped.copy_bandwidth(self.fabric)
        return Launched(way=way, host=host, gap=shipped.gap, copy=copy)
