"""The public face: how long a collective takes, by which algorithm, and how well that is known."""

from functools import lru_cache
from typing import Final, assert_never, overload

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives.build import build, obstacle, symmetric_kernels
from costmodels.collectives.calibration import Calibration
from costmodels.collectives.choice import Fastest, Priced, one
from costmodels.collectives.engines import Engine
from costmodels.collectives.launch import Launched
from costmodels.collectives.operations import PAIRWISE_OPS, Op, read_op, refuse
from costmodels.collectives.order import ordered_plan
from costmodels.collectives.settings import (
    DEFAULT,
    Algorithm,
    Launch,
    Settings,
    read_algorithm,
    read_launch,
)
from costmodels.collectives.tables import eager, engines, tuning
from costmodels.collectives.timed import Timed
from costmodels.estimate import Basis
from costmodels.kernels.parameters import NEAR
from topology.base import InputError, Seconds, unknown
from topology.catalogue import Fabric

_KERNELS: Final = ("oneshot", "twoshot", "multishot")
_WAYS: Final = 4096  # cached
_OCTAVE: Final = 2.0  # public tables have one size an octave; their range reaches as far


@overload
def collective_time(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    *,
    algorithm: str = "auto",
    launch: str = "graph",
    settings: Settings = DEFAULT,
    calibration: Calibration = None,
) -> float: ...
@overload
def collective_time(
    op: str,
    message_bytes: NDArray[np.floating] | NDArray[np.integer],
    fabric: Fabric,
    *,
    algorithm: str = "auto",
    launch: str = "graph",
    settings: Settings = DEFAULT,
    calibration: Calibration = None,
) -> NDArray[np.float64]: ...
def collective_time(  # noqa: PLR0913  # how a library is run
    op: str,
    message_bytes: float | NDArray[np.floating] | NDArray[np.integer],
    fabric: Fabric,
    *,
    algorithm: str = "auto",
    launch: str = "graph",
    settings: Settings = DEFAULT,
    calibration: Calibration = None,
) -> float | NDArray[np.float64]:
    """Seconds that a collective takes on all ranks of a fabric.

    Parameters
    ----------
    op : ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``,
        ``reduce``, ``gather``, ``scatter`` or ``send_recv`` (each rank to the next).
    message_bytes : what nccl-tests prints as size, the larger of one rank's two buffers; a
        number, or an array of any shape.
    fabric : the ranks and what they talk over.
    algorithm : ``auto`` is what NCCL takes at that size; ``engine`` the best of NCCL and the
        kernels of serving engines; or one by name.
    launch : ``graph`` is replayed, ``stream`` issued by PyTorch call by call.
    settings : NCCL release, launcher, engine.
    calibration : curves of this very machine.

    Raises
    ------
    InputError
        If a name is unknown, a size is negative, or the algorithm cannot serve `op` here.

    Examples
    --------
    1 GiB over eight H100, at 470 GB/s of bus bandwidth, is about 4 ms.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> f"{collective_time('all_reduce', 2.0**30, node) * 1e3:.0f} ms"
    '4 ms'
    >>> collective_time("all_reduce", 2.0**30, find_hardware("h100-sxm").fabric(1))
    0.0
    """
    way = _way(
        read_op(op), fabric, read_algorithm(algorithm), read_launch(launch), settings, calibration
    )
    if isinstance(message_bytes, np.ndarray):
        sizes = np.asarray(message_bytes, dtype=np.float64)
        if not np.all((sizes >= 0) & np.isfinite(sizes)):
            raise InputError("message size: got a negative or infinite one, wanted bytes")
        return np.zeros_like(sizes) if way is None else way.time(sizes.ravel()).reshape(sizes.shape)
    size = _checked(message_bytes)
    return 0.0 if way is None else float(way.time(size))


def supports(op: str, algorithm: str, fabric: Fabric) -> bool:
    """Whether `algorithm` can run `op` on `fabric`.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> supports("all_reduce", "nvls", node), supports("all_to_all", "nvls", node)
    (True, False)
    """
    name = read_algorithm(algorithm)
    return name in ("auto", "engine") or not obstacle(name, read_op(op), fabric)


def choose(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    *,
    algorithm: str = "auto",
    settings: Settings = DEFAULT,
    calibration: Calibration = None,
) -> tuple[str, str]:
    """Algorithm and protocol that a message of this size gets.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> choose("all_reduce", 65536.0, node), choose("all_reduce", 2.0**30, node)
    (('ring', 'LL'), ('nvls', 'Simple'))
    """
    way = _way(read_op(op), fabric, read_algorithm(algorithm), "graph", settings, calibration)
    size = _checked(message_bytes)
    if way is None:
        return "none", "none"
    found = way.at(size)
    return found.algorithm, found.protocol


def basis(
    op: str,
    message_bytes: float,
    fabric: Fabric,
    *,
    algorithm: str = "auto",
    settings: Settings = DEFAULT,
    calibration: Calibration = None,
) -> Basis:
    """How well the time is known.

    MEASURED where a curve was fitted on this very machine, for this operation, number of ranks and
    size; CALIBRATED where it was for this generation and link; EXTRAPOLATED up to four times the
    largest size of either; DATASHEET where it is carried over by its mechanism; ASSUMED for sizes
    or curves that nobody measured.

    >>> from topology.catalogue import find_hardware
    >>> basis("all_gather", 1e6, find_hardware("h100-sxm").fabric(4)).name
    'CALIBRATED'
    >>> basis("all_gather", 1e6, find_hardware("v100-sxm").fabric(4)).name
    'DATASHEET'
    """
    name = read_op(op)
    way = _way(name, fabric, read_algorithm(algorithm), "graph", settings, calibration)
    size = _checked(message_bytes)
    if way is None:
        return Basis.MEASURED
    found = way.at(size).fitted
    if found.kind == "assumed" or size > found.largest * NEAR:
        return Basis.ASSUMED
    reach = found.largest if found.own else found.largest * _OCTAVE
    if size > reach:
        inside = basis(
            op, found.largest, fabric, algorithm=algorithm, settings=settings,
            calibration=calibration,
        )  # fmt: skip
        return max(Basis.EXTRAPOLATED, inside)
    if found.own:
        if found.covers(name, fabric):
            return Basis.MEASURED
        shipped = basis(op, size, fabric, algorithm=algorithm, settings=settings)
        return max(Basis.CALIBRATED, shipped)
    measured = found.kind == "measured" and not found.carried
    return Basis.CALIBRATED if measured and found.covers(name, fabric) else Basis.DATASHEET


def _checked(message_bytes: float) -> float:
    size = float(message_bytes)
    if not 0 <= size < np.inf:
        raise InputError(f"message size: got {size:g}, wanted bytes, zero or more")
    return size


@lru_cache(maxsize=_WAYS)
def _way(
    op: Op,
    fabric: Fabric,
    algorithm: Algorithm,
    launch: Launch,
    settings: Settings,
    calibration: Calibration,
) -> Priced | None:
    """Everything that does not depend on the size; None on one rank."""
    chosen = _engines(settings)
    if fabric.ranks == 1:
        return None
    if algorithm not in ("auto", "engine"):
        reason = obstacle(algorithm, op, fabric)
        if not reason and algorithm == "symmetric" and settings.nccl < (2, 27):
            reason = "it needs NCCL 2.27 or newer"
        if reason:
            raise refuse(algorithm, op, reason)
    if algorithm == "engine":
        ways = [_engine_way(engine, op, fabric, launch, settings, calibration) for engine in chosen]
        return Fastest(ways=tuple(ways), limits=(np.inf,) * len(ways))
    if algorithm in _KERNELS:
        able = [engine for engine in chosen if algorithm in engine.kernels] or chosen
        leanest = min(able, key=lambda engine: engine.extra_on(fabric))
        return _kernel(algorithm, leanest, op, fabric, launch)
    return _nccl_way(op, fabric, algorithm, launch, settings, calibration)


def _engines(settings: Settings) -> list[Engine]:
    known = engines()
    if settings.engine == "best":
        return list(known.values())
    if settings.engine not in known:
        raise unknown("engine", settings.engine, ["best", *known])
    return [known[settings.engine]]


def _nccl_way(
    op: Op,
    fabric: Fabric,
    algorithm: Algorithm,
    launch: Launch,
    settings: Settings,
    calibration: Calibration,
) -> Priced:
    way: Priced
    if algorithm == "symmetric":
        kernels = tuple(map(one, symmetric_kernels(op, fabric, calibration)))
        way = Fastest(ways=kernels, limits=(np.inf,) * len(kernels))
    elif algorithm == "auto":
        way = _own_choice(op, fabric, "graph", settings, calibration)
    else:
        way = _ordered(op, fabric, settings, algorithm, calibration)
    floor = 0.0
    if settings.launcher == "single":
        floor = eager().launching(fabric, _posts(op, fabric))
    match launch:
        case "graph":
            return Launched(way=way, host=floor) if floor else way
        case "stream":
            called = _own_choice(op, fabric, "stream", settings, calibration)
            if algorithm == "auto" and isinstance(called, Timed):
                return Launched(way=called, host=floor)
            host, gap = _calls(calibration)
            return Launched(way=way, host=max(floor, host), gap=gap)
        case _:
            assert_never(launch)


def _own_choice(
    op: Op, fabric: Fabric, launch: Launch, settings: Settings, calibration: Calibration
) -> Priced:
    """Leave algorithm and protocol to NCCL; as measured, where this machine was."""
    way = _ordered(op, fabric, settings, "", calibration)
    times = None if calibration is None else calibration.times_of(op, fabric, launch)
    return way if times is None else Timed(way=way, times=times)


def _ordered(
    op: Op, fabric: Fabric, settings: Settings, algorithm: str, calibration: Calibration
) -> Priced:
    numbers = tuning().at(settings.nccl)
    return ordered_plan(op, fabric, numbers, algorithm, calibration, protocols=settings.protocols)


def _posts(op: Op, fabric: Fabric) -> int:
    """Count the sends and receives of the busiest rank that the library posts one by one."""
    if op not in PAIRWISE_OPS:
        return 0
    return 2 if op == "send_recv" else 2 * (fabric.ranks - 1)


def _calls(calibration: Calibration) -> tuple[Seconds, Seconds]:
    """Seconds that a call which no graph replays takes of the host, and loses on the GPU."""
    known = eager()
    if calibration is None:
        return known.host, known.gap
    return (
        known.host if calibration.host is None else calibration.host,
        known.gap if calibration.gap is None else calibration.gap,
    )


def _kernel(name: str, engine: Engine, op: Op, fabric: Fabric, launch: Launch) -> Priced:
    bare = Launched(way=one(build(name, "Simple", op, fabric)), gap=engine.extra_on(fabric))
    return bare if launch == "graph" else _eager(bare, engine.host_on(fabric), fabric)


def _engine_way(
    engine: Engine,
    op: Op,
    fabric: Fabric,
    launch: Launch,
    settings: Settings,
    calibration: Calibration,
) -> Priced:
    """Take the fastest of an engine's kernels, each up to its limit, and NCCL."""
    nccl = _own_choice(op, fabric, "graph", settings, calibration)
    ways = [nccl if launch == "graph" else _eager(nccl, engine.nccl_host, fabric)]
    limits = [np.inf]
    crowded = fabric.link == "pcie" and fabric.ranks > 2  # engines leave these to NCCL
    for name in engine.kernels:
        if not crowded and not obstacle(name, op, fabric):
            ways.append(_kernel(name, engine, op, fabric, launch))
            limits.append(engine.limit_of(name, fabric))
    return Fastest(ways=tuple(ways), limits=tuple(limits))


def _eager(way: Priced, host: float, fabric: Fabric) -> Priced:
    copy = 1 / eager().copy_bandwidth(fabric)
    return Launched(way=way, host=host, gap=eager().gap, copy=copy)
