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
    fastest,
    single_choice,
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
from costmodels.sizes import is_array
from topology.base import InputError, unknown
from topology.base.values import dataclass
from topology.catalogue import Fabric, Moves

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_PRICINGS: Final = 4096  # remembered
_LARGE_BYTES: Final = 2.0**30  # B, whose bus bandwidth large messages keep
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
    if not is_array(message_bytes):
        size = _checked_size(message_bytes)  # type: ignore[arg-type]  # one number
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
    parsed_algorithm = _parsed_algorithm(algorithm)
    return isinstance(parsed_algorithm, str) or not parsed_algorithm.obstacle(read_op(op), fabric)


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
    model = _chosen_algorithm(op, message_bytes, fabric, algorithm, settings, calibration)
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
    model = _chosen_algorithm(op, message_bytes, fabric, algorithm, settings, calibration)
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
    parsed_algorithm = _parsed_algorithm(algorithm)
    return 0 if isinstance(parsed_algorithm, str) else parsed_algorithm.steps(read_op(op), fabric)


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
    size = _checked_size(message_bytes)
    if pricing is None:
        return Basis.MEASURED
    fitted = pricing.at(size).fitted
    if fitted.kind == "assumed" or size > fitted.largest * NEAR:
        return Basis.ASSUMED
    reach = 1.0 if fitted.own else _OCTAVE
    in_range = fitted.smallest / reach <= size <= fitted.largest * reach
    fit = Basis.CALIBRATED if in_range else Basis.EXTRAPOLATED
    if fitted.own:
        if fitted.covers(op, fabric):
            return Basis.MEASURED if in_range else fit
        shipped_basis = basis(op, size, fabric, algorithm=algorithm, settings=settings)
        return max(fit, shipped_basis)
    pace = pace_of(read_op(op), fabric)
    if pace is None and _varies_by_server(read_op(op), fabric):
        return Basis.ASSUMED
    pace_measured = pace is not None and pace.fabric.ranks == fabric.ranks
    measured = fitted.kind == "measured" and not fitted.carried and fitted.covers(op, fabric)
    return fit if pace_measured or measured else Basis.DATASHEET


def _varies_by_server(op: Op, fabric: Fabric) -> bool:
    """Whether servers of one kind are known to be far apart: exchanges through a host's tree.

    Eight L20 exchange at 1.2 GB/s each in one server (xDiT's PixArt) and at 6 in another
    (NVIDIA/nccl#1817).
    """
    shares_tree = fabric.link == "pcie" and fabric.local > 2
    return shares_tree and op == "all_to_all"


def _checked_size(message_bytes: float) -> float:
    size = float(message_bytes)
    if not 0 <= size < inf:
        raise InputError(f"message size: got {size:g}, wanted bytes, zero or more")
    return size


def _parsed_algorithm(algorithm: Named) -> Named:
    """Look up the algorithm of a name; ``auto`` and ``engine`` stay as they are."""
    if not isinstance(algorithm, str):
        return algorithm
    return BY_NAME.get(read_algorithm(algorithm), algorithm)


def _chosen_algorithm(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    algorithm: Named,
    settings: NcclSettings,
    calibration: Calibration,
) -> Algorithm | None:
    """Find the algorithm that a message of this size takes; None on one rank."""
    pricing = _pricing(op, fabric, algorithm, settings, calibration)
    size = _checked_size(message_bytes)
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
    parsed_op, parsed_algorithm = read_op(op), _parsed_algorithm(algorithm)
    return _priced(
        _Call(parsed_op, fabric, read_launch(launch), settings, calibration), parsed_algorithm
    )


@lru_cache(maxsize=_MOST_PRICINGS)
def _priced(call: _Call, algorithm: Named) -> Pricing | None:
    op, fabric, settings = call.op, call.fabric, call.settings
    usable_engines = _engines(settings)
    if fabric.ranks == 1:
        return None
    if algorithm == "engine":
        return fastest([call.by_engine(engine) for engine in usable_engines])
    if isinstance(algorithm, str):
        return call.by_nccl(None)
    reason = algorithm.obstacle(op, fabric)
    if not reason and settings.nccl < algorithm.since:
        reason = "it needs NCCL {}.{} or newer".format(*algorithm.since)
    if reason:
        raise InputError(f"{op} by {algorithm.name}: {reason}")
    if not algorithm.engine:
        return call.by_nccl(algorithm)
    matching_engines = [
        engine for engine in usable_engines if algorithm.name in engine.kernels
    ] or usable_engines
    return call.by_kernel(
        algorithm, min(matching_engines, key=lambda engine: engine.extra_of(algorithm.name, fabric))
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
        op, fabric, calibration, call_costs = self.op, self.fabric, self.calibration, unrecorded()
        graph_pricing = self._kernel_pricing(algorithm, "graph")
        host_floor = 0.0
        if self.settings.launcher == "single":
            # sends and receives of the busiest rank are posted one by one
            posts = 2 if op == "send_recv" else 2 * (fabric.ranks - 1)
            host_floor = call_costs.launching(fabric, posts if op in PAIRWISE_OPS else 0)
        if self.launch == "graph":
            graph_pricing = self._with_mixing(graph_pricing)
            return Launched(way=graph_pricing, host=host_floor) if host_floor else graph_pricing
        stream_pricing = self._kernel_pricing(algorithm, "stream")
        if isinstance(stream_pricing, AsMeasured):
            return Launched(way=stream_pricing, host=host_floor)
        host = (
            call_costs.host if calibration is None or calibration.host is None else calibration.host
        )
        gap = call_costs.gap if calibration is None or calibration.gap is None else calibration.gap
        return Launched(way=graph_pricing, host=max(host_floor, host), gap=gap)

    def _with_mixing(self, pricing: Pricing) -> Pricing:
        """Add what graphs that may mix add; a machine's own curves and times have it in them."""
        calibration = self.calibration
        is_measured = calibration is not None and bool(calibration.curves or calibration.times)
        mixes = self.settings.graph_mixing and not is_measured
        return Mixed(way=pricing, added=mixing()) if mixes else pricing

    def _kernel_pricing(self, algorithm: type[Algorithm] | None, launch: Launch) -> Pricing:
        """Leave to NCCL what is not asked for; its own choice as measured, where it was here."""
        numbers, calibration = tuning().at(self.settings.nccl), self.calibration
        protocols = self.settings.protocols
        pricing = nccl_pricing(
            self.op, self.fabric, numbers, algorithm, calibration, protocols=protocols
        )
        pace = pace_of(self.op, self.fabric)
        if pace is not None:
            usual_pricing = nccl_pricing(pace.op, pace.fabric, numbers)
            expected = (
                bus_factor(pace.op, pace.fabric.ranks)
                * _LARGE_BYTES
                / usual_pricing.time(_LARGE_BYTES)
            )
            pricing = Paced(way=pricing, factor=expected / pace.bus)
        if calibration is None or algorithm is not None:
            return pricing
        times = calibration.times_of(self.op, self.fabric, launch)
        return pricing if times is None else AsMeasured(way=pricing, times=times)

    def by_kernel(self, algorithm: type[Algorithm], engine: EngineKernels) -> Pricing:
        """Price a kernel that a serving engine brings."""
        pricing = single_choice(build(algorithm, "Simple", self.op, self.fabric))
        unissued = Launched(way=pricing, gap=engine.extra_of(algorithm.name, self.fabric))
        return self._with_host_issue(unissued, engine.host_on(self.fabric))

    def by_engine(self, engine: EngineKernels) -> Pricing:
        """Take the fastest of an engine's kernels, each up to its limit, and NCCL."""
        fabric = self.fabric
        pricings = [self._with_host_issue(self._kernel_pricing(None, "graph"), engine.nccl_host)]
        limits = [inf]
        left_to_nccl = fabric.link == "pcie" and fabric.ranks > 2  # engines leave these to NCCL
        for name in engine.kernels:
            if not left_to_nccl and not BY_NAME[name].obstacle(self.op, fabric):
                pricings.append(self.by_kernel(BY_NAME[name], engine))
                limits.append(engine.limit_of(name, fabric))
        return Fastest(ways=tuple(pricings), limits=tuple(limits))

    def _with_host_issue(self, pricing: Pricing, host: float) -> Pricing:
        """Let an engine issue a call that no graph replays: it copies the input aside."""
        if self.launch == "graph":
            return pricing
        call_costs = unrecorded()
        copy = 1 / call_costs.copy_bandwidth(self.fabric)
        return Launched(way=pricing, host=host, gap=call_costs.gap, copy=copy)
