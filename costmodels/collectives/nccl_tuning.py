"""Which algorithm and protocol NCCL takes: its own arithmetic, on its own numbers.

NCCL prices every (algorithm, protocol) as latency + bytes / bandwidth with built-in constants
and takes the cheapest. Those prices miss measured times by tens of percent, so we never use
them as times; but the *choice* follows from them, and measured times jump exactly where the
choice changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from costmodels.collectives.operations import PROTOCOLS, WireProtocol
from costmodels.collectives.transports import FEW_RINGS, usable_bandwidth
from topology.base import parse
from topology.base.values import dataclass
from topology.catalogue import Fabric

if TYPE_CHECKING:
    pass

Numbers = Mapping[str, tuple[float, ...]]

_UNITS: Final = {"latency": "s", "bandwidth": "B/s", "size": "B", "ratio": "1"}
_GENERATION: Final = {"turing": "volta", "ada": "ampere"}
_MOST_CHANNELS: Final = 64
_SMALLEST_CORRECTED: Final = 64  # B; the table of corrections has one value an octave from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """NCCL's constants: the newest, and for older releases what differed, oldest last."""

    newest: Numbers
    before: tuple[tuple[tuple[int, int], Numbers], ...]

    def at(self, release: tuple[int, int]) -> Numbers:
        """Constants of one release, such as (2, 29)."""
        numbers = dict(self.newest)
        for until, changed in self.before:
            if release < until:
                numbers |= changed
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An algorithm in one protocol, as NCCL sees it."""

    protocol: WireProtocol
    latency: float  # s
    per_byte: float  # s
    correction: tuple[float, ...] = ()  # what is left of the bandwidth, an octave each

    def price(self, size: float) -> float:
        """Give NCCL's own estimate for a message of `size` bytes, in seconds."""
        octave = int(math.log2(max(size / _SMALLEST_CORRECTED, 1.0)))
        latency, per_byte = self.line(octave)
        return latency + size * per_byte

    def line(self, octave: int) -> tuple[float, float]:
        """Give NCCL's own estimate in an octave of sizes: its latency, and seconds a byte."""
        kept_share = self.correction[octave] if octave < len(self.correction) else 1.0
        return self.latency, self.per_byte / kept_share


def cheapest(candidates: Sequence[Candidate]) -> Iterator[tuple[float, int]]:
    """Yield which candidate NCCL takes, and from which size on, in order of sizes.

    >>> near, far = (Candidate(protocol="LL", latency=s, per_byte=1 / s) for s in (1.0, 2.0))
    >>> list(cheapest([near, far]))
    [(0.0, 0), (2.0, 1)]
    """
    octaves = max(len(candidate.correction) for candidate in candidates)
    starts = [0.0, *(_SMALLEST_CORRECTED * 2.0**octave for octave in range(1, octaves + 1))]
    current = -1
    for octave, (start, end) in enumerate(pairwise([*starts, math.inf])):
        for size, winner in _lower_envelope(
            [candidate.line(octave) for candidate in candidates], start
        ):
            if size < end and winner != current:
                yield size, winner
                current = winner


def _lower_envelope(
    lines: Sequence[tuple[float, float]], start: float
) -> Iterator[tuple[float, int]]:
    """Yield which of several lines is the lowest, and from where on, from `start`."""
    size, winner = start, min(range(len(lines)), key=lambda i: lines[i][0] + start * lines[i][1])
    while size < math.inf:
        yield size, winner
        intercept, slope = lines[winner]
        crossings = [
            ((other_intercept - intercept) / (slope - other_slope), other_slope, i)
            for i, (other_intercept, other_slope) in enumerate(lines)
            if other_slope < slope
        ]
        size, _, winner = min(crossings, default=(math.inf, 0.0, winner))


def load_tuning(tables: Mapping[str, Any]) -> Tuning:
    """Read the constants by which NCCL chooses algorithm and protocol."""
    changes = sorted(tables["before"], key=lambda change: _release(change["until"]))
    return Tuning(
        newest=_numbers(tables),
        before=tuple((_release(change["until"]), _numbers(change)) for change in changes[::-1]),
    )


def _release(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _numbers(tables: Mapping[str, Mapping[str, list[str]]]) -> Numbers:
    """Read NCCL's constants of one release by name, each with the unit of its section."""
    return {
        key: tuple(parse(value, unit) for value in values)
        for section, unit in _UNITS.items()
        for key, values in tables.get(section, {}).items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclView:
    """What NCCL makes of a fabric, and the constants it rates it by."""

    fabric: Fabric
    numbers: Numbers

    @property
    def generation(self) -> str:
        name = self.fabric.architecture
        return _GENERATION.get(name, name)

    @property
    def link(self) -> str:
        return "pcie" if self.fabric.link == "pcie" else "nvlink"

    @property
    def nodes(self) -> int:
        """What NCCL calls nodes: GPUs that NVLink joins, of however many hosts (src/init.cc)."""
        return self.fabric.nodes

    @property
    def local(self) -> int:
        return self.fabric.ranks // self.nodes

    @property
    def bus(self) -> float:
        """Bandwidth of all rings together, B/s."""
        fabric = self.fabric
        if fabric.network is None:
            return self.inside
        outside = usable_bandwidth(fabric, fabric.network)
        return outside if self.local == 1 else min(self.inside, outside)

    @property
    def inside(self) -> float:
        """Bandwidth of all rings together inside a node, B/s."""
        crossed = self.link == "pcie" and self.fabric.crosses_sockets
        share = self.first(f"{self.link}_bus")
        return self.fabric.bandwidth * share * (self.first("pcie_cross") if crossed else 1.0)

    @property
    def chain(self) -> tuple[float, float]:
        """Bandwidth of trees, B/s, and their channels.

        On two nodes NCCL rates a tree by its chains inside them, with a channel a NIC; over PCIe
        these share the way of the NICs.
        """
        network = self.fabric.network
        rated_by_chains = self.nodes == 2 and self.local > 1 and self.link == "nvlink"
        if not rated_by_chains or network is None:
            return self.bus, self.channels
        return self.inside, network.nics

    @property
    def channels(self) -> float:
        return max(1.0, self.bus / self.first(f"{self.generation}_channel"))

    @property
    def pair_channels(self) -> int:
        """Channels that a pair of ranks on two nodes gets, fewer where there are many ranks.

        NCCL takes as many as one NIC needs, a power of two, and halves them until all ranks fit
        on the channels of its rings, several to one (src/graph/paths.cc).
        """
        network, fabric = self.fabric.network, self.fabric
        if network is None:
            return 1
        nic = network.pace
        rate = self.first("pair_channel")
        needed = math.ceil(nic / rate) if rate else 1
        channels = _power_of_two(max(needed, int(self.first("pair_channels"))))
        ring_channels = self._ring_channels(nic, usable_bandwidth(fabric, network))
        while (
            channels > 1
            and channels * math.ceil(fabric.ranks / self.first("pair_peers")) > ring_channels
        ):
            channels //= 2
        return channels

    def _ring_channels(self, nic: float, usable: float) -> int:
        """Channels of rings between nodes: one a NIC, more where few are fast, twice as many."""
        rings = max(1, round(usable / nic))
        is_recent = self.generation in ("hopper", "blackwell")
        doubled = nic >= self.first("pair_doubled") and not (is_recent and rings > FEW_RINGS)
        return min(_MOST_CHANNELS, _power_of_two(2 * rings * (2 if doubled else 1)))

    def protocols(self) -> Iterator[tuple[int, WireProtocol]]:
        """Yield the protocols of these links, with their places in tables."""
        for index, protocol in enumerate(PROTOCOLS):
            if protocol != "LL128" or self.link != "pcie":
                yield index, protocol

    def first(self, key: str) -> float:
        return self.numbers[key][0]

    def cap(self, key: str) -> float:
        """Ceiling of this generation: one node, two nodes, more."""
        return self.numbers[f"{self.generation}_{key}"][min(self.nodes, 3) - 1]

    def step(self, algorithm: str, protocol: int) -> tuple[float, float]:
        """Latency of a step inside a node, and to another."""
        inner_step = self.numbers[f"{self.link}_{algorithm}"][protocol]
        network = algorithm if self.local > 1 else "tree"
        outer_step = self.numbers[f"network_{network}"][protocol]
        if self.nodes > 1 and algorithm == "ring":
            inner_step = max(inner_step, self.numbers["network_overhead"][protocol])
        return inner_step, outer_step


def _power_of_two(count: int) -> int:
    """Round up to a power of two."""
    return 1 << (count - 1).bit_length()
