"""Why a measured collective is not what the model says: what else it looks like.

Each explanation is a changed machine, run or reading of the sizes. The one whose times come
nearest to the measured ones is named, where it explains most of what the plain model misses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives import (
    Calibration,
    NcclSettings,
    Op,
    collective_time,
    least_bytes,
    supports,
)
from topology.base import MIB, BytesPerSecond, format_bytes, format_seconds
from topology.base.values import dataclass
from topology.catalogue import Fabric, Network, NvlinkGeneration, link_rates, pcie_bandwidth

Array = NDArray[np.float64]

SMALL: Final = 64 * 1024  # B
FLOOR_MAX_SIZE: Final = MIB  # B, of the largest message that a floor may hold
MIN_ERROR: Final = 0.2  # relative error that asks for a reason
SIZES: Final = 0.3  # how much better than any path other sizes must explain the times
MAX_ERROR_LEFT: Final = 0.5  # share of an error that may be left by a reason
DISTURBED_RATIO: Final = 1.8  # a row this many times slower than a larger message was disturbed
RARER_RATIO: Final = (
    2.0  # how much better than the network a lost NVLink must explain a run over nodes
)
FLAT_RATIO: Final = 1.3  # slowest over fastest of sizes that a floor makes alike

_BRIDGES: Final[Mapping[str, tuple[NvlinkGeneration, int]]] = {
    "ampere": ("ga102", 4),  # A40, RTX A6000, RTX 3090; A100 has one in the catalogue
    "turing": ("turing", 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """What was measured: sizes and seconds of one collective, and what it is taken to run on.

    calibration : of the machine. sized : other columns of the log prove its sizes.
    """

    op: Op
    fabric: Fabric
    algorithm: str
    settings: NcclSettings
    sizes: Array
    seconds: Array
    calibration: Calibration = None
    sized: bool = False

    def times(self, factor: float = 1.0) -> Array:
        """Seconds by the model; `factor` scales the sizes."""
        supported = supports(self.op, self.algorithm, self.fabric)
        return collective_time(
            self.op,
            self.sizes * factor,
            self.fabric,
            algorithm=self.algorithm if supported else "auto",
            settings=self.settings,
            calibration=self.calibration,
        )

    def kept(self, which: NDArray[np.bool_]) -> "MeasuredCollective":
        """Keep some rows of a comparison."""
        return replace(self, sizes=self.sizes[which], seconds=self.seconds[which])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What may be the reason, and what it leaves of the distance: in large messages, and in all."""

    words: str
    large: float
    whole: float
    doubt: float = 1.0

    @property
    def left(self) -> float:
        """Distance that it leaves unexplained."""
        return self.large + self.whole


def disturbed(seconds: Array) -> NDArray[np.bool_]:
    """Mark rows that took much longer than a larger message did.

    >>> disturbed(np.array([1.0, 9.0, 1.0, 2.0])).tolist()
    [False, True, False, False]
    """
    least_later = np.minimum.accumulate(seconds[::-1])[::-1]
    marked: NDArray[np.bool_] = seconds > DISTURBED_RATIO * least_later
    return marked


def diagnose(run: MeasuredCollective) -> Iterator[str]:
    """Say where and why measured and modelled times part; nothing where they do not."""
    yield from disturbances(run)
    clean = run.kept(~disturbed(run.seconds))
    if clean.sizes.size:
        yield from _floor_reasons(clean)
        yield from _large_reasons(clean)


def disturbances(run: MeasuredCollective) -> Iterator[str]:
    """Say which rows something else disturbed."""
    marked = disturbed(run.seconds)
    count = int(marked.sum())
    if count:
        at_start = bool(marked[:count].all())
        row_text = f"{'the first ' if at_start else ''}{count} row{'s' if count > 1 else ''}"
        yield (
            f"{row_text} took over {DISTURBED_RATIO:g} times as long as larger messages "
            f"({'warm-up' if at_start else 'something else ran'}): left out of the reasons"
        )


def _log_distance(run: MeasuredCollective, factor: float = 1.0) -> float:
    """Typical distance between measured and modelled times, as a logarithm."""
    return float(np.median(np.abs(np.log(run.times(factor) / run.seconds))))


def _floor_reasons(run: MeasuredCollective) -> Iterator[str]:
    """Small messages that all take the same, and longer than modelled."""
    flat = _flat_rows(run)
    if flat.sizes.size < 3:
        return
    measured = float(np.median(flat.seconds))
    times = flat.times()
    modelled = float(np.median(times))
    if measured < (1 + MIN_ERROR) * modelled:
        return
    single = replace(flat, settings=replace(flat.settings, launcher="single"))
    single_s = float(np.median(single.times()))
    size_range = f"from {format_bytes(flat.sizes.min())} to {format_bytes(flat.sizes.max())}"
    fastest, slowest = format_seconds(float(times.min())), format_seconds(float(times.max()))
    reason = f"small messages take {format_seconds(measured)} whatever their size, {size_range}"
    reason += f", the model {fastest if fastest == slowest else f'{fastest} to {slowest}'}"
    if run.settings.launcher == "process" and abs(np.log(single_s / measured)) < np.log1p(
        MIN_ERROR
    ):
        yield f"{reason}: launch overhead, the floor of one process that launches all GPUs (-g)"
    elif run.fabric.nodes > 1:
        yield f"{reason}: every step to another node waits longer (a slower transport, or no RDMA)"
    else:
        yield f"{reason}: the host is the bound, a slow one, or calls that no graph replays"


def _flat_rows(run: MeasuredCollective) -> MeasuredCollective:
    """Keep the smallest messages up to the first that takes longer than a floor explains."""
    small = run.kept(run.sizes <= FLOOR_MAX_SIZE)
    if not small.sizes.size:
        return small
    level = float(np.median(small.seconds[:3]))
    slower = np.flatnonzero(small.seconds > FLAT_RATIO * level)
    end = float(small.sizes[slower[0]]) if slower.size else np.inf
    return small.kept(small.sizes < end)


def _large_reasons(run: MeasuredCollective) -> Iterator[str]:
    """Large messages on another path than the machine has, or of another size than printed."""
    subsets = (run.kept(run.sizes >= least) for least in (16 * MIB, MIB, 0))
    large = next(subset for subset in subsets if subset.sizes.size)  # where bandwidth rules, if any
    model_distance = _log_distance(large)
    if model_distance < np.log1p(MIN_ERROR):
        return
    ratio = float(np.median(large.seconds / large.times()))
    reason = f"large messages take {ratio:.2f} times as long as modelled"
    paths = [
        Cause(
            words=words,
            large=_log_distance(replace(large, fabric=links)),
            whole=_log_distance(replace(run, fabric=links)),
            doubt=RARER_RATIO if run.fabric.nodes > 1 and links.link != run.fabric.link else 1.0,
        )
        for words, links in _paths(run.fabric)
    ]
    sizes = [
        Cause(words=words, large=_log_distance(large, factor), whole=_log_distance(run, factor))
        for words, factor in _conventions(run)
    ]
    path = min(paths, key=lambda cause: cause.left * cause.doubt)
    size = min(sizes, key=lambda cause: cause.left, default=path)
    likely = size if size.left < SIZES * path.left else path  # a path is the likelier cause
    if likely.large < MAX_ERROR_LEFT * model_distance:
        yield f"{reason}: it looks as if {likely.words}"
    elif _beats_links(large):
        alternatives = "other links" if run.sized else "other links, or other sizes"
        yield f"{reason}, faster than the links can move them: {alternatives}"
    else:
        why = "other traffic, or a broken link" if ratio > 1 else "links are better than modelled"
        yield f"{reason}, and no cause that was tried explains it: {why}"


def _beats_links(run: MeasuredCollective) -> bool:
    """Whether messages took less time than the links of one node need for the least bytes."""
    min_seconds = np.asarray(least_bytes(run.op, run.sizes, run.fabric)) / run.fabric.bandwidth
    return run.fabric.nodes == 1 and bool(np.median(run.seconds - min_seconds) < 0)


def _conventions(run: MeasuredCollective) -> Iterator[tuple[str, float]]:
    """Yield other ways to count sizes, in words, and bytes over printed bytes."""
    if run.sized:
        return
    units = {run.fabric.ranks: "one rank's part of the whole", 2: "16-bit elements"}
    for factor, unit in ({4: "32-bit elements"} | units).items():
        yield f"sizes count {unit}: bytes are {factor} times the printed sizes", float(factor)
        yield f"sizes are {factor} times what nccl-tests would print", 1 / factor


def _paths(fabric: Fabric) -> Iterator[tuple[str, Fabric]]:
    """Yield what could be wrong with links, in words, and the links that would be left."""
    generation = fabric.pcie_generation or 4
    slot = BytesPerSecond(pcie_bandwidth(generation))
    pcie_links = fabric.over_pcie(slot)
    staged_links = pcie_links.with_peers(on=False)
    if fabric.multicast:
        yield "NVLink SHARP (NVLS) is off", fabric.without_multicast()
    if fabric.link != "pcie":
        yield "NVLink is not used, and peers talk over PCIe", pcie_links
        yield "peer access is off: copies are staged through the host", staged_links
    elif fabric.peer_to_peer:
        yield "peer access is off (IOMMU or ACS, or P2P disabled): copies are staged", staged_links
    else:
        peer_links = pcie_links.with_peers(on=True)
        yield "peer access works, which the driver refuses on such cards by default", peer_links
    if fabric.link == "pcie":
        yield from _bridges(fabric)
        crosses = not fabric.crosses_sockets
        where = "the GPUs sit on two sockets" if crosses else "the GPUs share a socket"
        yield where, fabric.across_sockets(on=crosses)
        for divisor in (2, 4):
            yield (
                f"each GPU has 1/{divisor} of its lanes (degraded or shared)",
                fabric.narrowed(divisor),
            )
    if fabric.network is not None:
        for words, network in _networks(fabric.network):
            yield words, fabric.over_network(network)


def _bridges(fabric: Fabric) -> Iterator[tuple[str, Fabric]]:
    """Yield the NVLink bridge that two cards of a generation may carry."""
    bridge = _BRIDGES.get(fabric.architecture)
    if bridge and fabric.ranks == 2 * fabric.nodes:
        generation, links = bridge
        bandwidth = BytesPerSecond(links * link_rates().nvlink_rate(generation).value)
        joined = fabric.over_nvlink(bandwidth)
        yield "an NVLink bridge joins the two GPUs (describe them with --topology)", joined


def _networks(network: Network) -> Iterator[tuple[str, Network]]:
    for nics in {network.nics - 1, network.nics // 2, network.nics // 4, 1}:
        if 0 < nics < network.nics:
            yield f"{nics} of {network.nics} NICs carry the traffic", network.on_nics(nics)
    for divisor in (2, 4):
        yield f"NICs run at 1/{divisor} of their rate", network.scaled(1 / divisor)
        yield f"NICs are {divisor} times as fast as assumed", network.scaled(divisor)
    if network.kind == "ethernet":
        yield "RDMA carries the traffic, not TCP sockets", network.over("roce")
    else:
        sockets = network.over("ethernet")
        yield "traffic takes TCP sockets instead of RDMA", sockets
        yield "traffic takes TCP sockets on one NIC", sockets.on_nics(1)
