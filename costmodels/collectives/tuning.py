"""Which algorithm and protocol NCCL takes: its own arithmetic, on its own numbers.

NCCL prices every (algorithm, protocol) as latency + bytes / bandwidth with built-in constants
and takes the cheapest. Those prices miss measured times by tens of percent, so we never use
them as times; but the *choice* follows from them, and measured times jump exactly where the
choice changes.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives.network import usable_bandwidth
from costmodels.collectives.operations import PROTOCOLS, Op, WireProtocol, ring_steps
from topology.base import parse
from topology.catalogue import Fabric

Numbers = Mapping[str, tuple[float, ...]]

_UNITS: Final = {"latency": "s", "bandwidth": "B/s", "size": "B", "ratio": "1"}
_GENERATION: Final = {"turing": "volta", "ada": "ampere"}
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
    """One (algorithm, protocol) as NCCL sees it."""

    algorithm: str
    protocol: WireProtocol
    latency: float  # s
    per_byte: float  # s
    correction: tuple[float, ...] = ()  # what is left of the bandwidth, an octave each

    def price(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """NCCL's own estimate for messages of `sizes` bytes, in seconds."""
        per_byte = np.full_like(sizes, self.per_byte)
        if self.correction:
            octave = np.log2(np.maximum(sizes, _SMALLEST_CORRECTED) / _SMALLEST_CORRECTED)
            left = np.array([*self.correction, 1.0])
            per_byte /= left[np.minimum(octave.astype(int), len(self.correction))]
        return self.latency + sizes * per_byte


def load_tuning(text: str) -> Tuning:
    """Read NCCL's constants from TOML `text`; the caller does the file I/O."""
    tables = tomllib.loads(text)
    changes = sorted(tables.pop("before"), key=lambda change: _release(change["until"]))
    return Tuning(
        newest=_numbers(tables),
        before=tuple((_release(change["until"]), _numbers(change)) for change in changes[::-1]),
    )


def _release(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _numbers(tables: Mapping[str, Mapping[str, list[str]]]) -> Numbers:
    return {
        key: tuple(parse(value, unit) for value in values)
        for section, unit in _UNITS.items()
        for key, values in tables.get(section, {}).items()
    }


def candidates(op: Op, fabric: Fabric, numbers: Numbers) -> list[Candidate]:
    """Everything NCCL would consider for `op` on `fabric`."""
    view = _View(fabric=fabric, numbers=numbers)
    found = list(_ring(op, view))
    if op == "all_reduce":
        found += _tree(view)
    if fabric.multicast and op in ("all_reduce", "all_gather", "reduce_scatter"):
        found += _nvls(op, view)
    if fabric.nodes == fabric.ranks > 1 and op in ("all_gather", "reduce_scatter"):
        found += _pat(view)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What NCCL makes of a fabric."""

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
    def hosts(self) -> int:
        """What NCCL calls nodes: machines, even where NVLink joins them."""
        return self.fabric.nodes * self.fabric.hosts

    @property
    def local(self) -> int:
        return max(1, self.fabric.ranks // self.hosts)

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
        joined = self.hosts == 2 and self.local > 1 and self.link == "nvlink"
        if not joined or network is None:
            return self.bus, self.channels
        return self.inside, network.nics

    @property
    def channels(self) -> float:
        return max(1.0, self.bus / self.first(f"{self.generation}_channel"))

    def first(self, key: str) -> float:
        return self.numbers[key][0]

    def cap(self, key: str) -> float:
        """Ceiling of this generation: one node, two nodes, more."""
        return self.numbers[f"{self.generation}_{key}"][min(self.hosts, 3) - 1]

    def step(self, algorithm: str, protocol: int) -> tuple[float, float]:
        """Latency of a step inside a node, and to another."""
        inside = self.numbers[f"{self.link}_{algorithm}"][protocol]
        network = algorithm if self.local > 1 else "tree"
        outside = self.numbers[f"network_{network}"][protocol]
        if self.hosts > 1 and algorithm == "ring":
            inside = max(inside, self.numbers["network_overhead"][protocol])
        return inside, outside


def _ring(op: Op, view: _View) -> Iterator[Candidate]:
    ranks, hosts = view.fabric.ranks, view.hosts
    steps = ranks if op in ("broadcast", "reduce") else ring_steps(op, ranks)
    crossings = ring_steps(op, hosts)
    bus = view.bus
    ceilings = (
        min(view.cap("ll"), view.first("ring_ll") * bus),
        min(view.channels * view.cap("ring_ll128"), view.first("ring_ll128") * bus),
        bus,
    )
    for index, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and view.link == "pcie":
            continue
        inside, outside = view.step("ring", index)
        latency = view.numbers["base_ring"][index]
        travel = (steps - crossings) * inside + crossings * outside
        if protocol == "Simple" and hosts > 1 and op == "all_reduce":
            travel *= view.first("plateau")
        yield Candidate(
            algorithm="ring",
            protocol=protocol,
            latency=latency + travel,
            per_byte=steps / ranks / ceilings[index],
        )


def _tree(view: _View) -> Iterator[Candidate]:
    hosts = view.hosts
    inside, channels = view.chain
    bus = min(view.first("tree") * inside, channels * view.cap("tree"))
    ll128 = view.numbers["tree_ll128"][min(hosts, 2) - 1]
    ceilings = (
        min(view.first("tree_ll") * bus, view.cap("ll")),
        min(ll128 * bus, channels * view.cap("tree_ll128")),
        bus,
    )
    for index, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and view.link == "pcie":
            continue
        inside, outside = view.step("tree", index)
        travel = 2 * ((view.local - 1) * inside + math.floor(math.log2(hosts)) * outside)
        yield Candidate(
            algorithm="tree",
            protocol=protocol,
            latency=view.numbers["base_tree"][index] + travel,
            per_byte=2 / ceilings[index],
            correction=view.numbers[f"correction_{protocol.lower()}"],
        )


def _nvls(op: Op, view: _View) -> Iterator[Candidate]:
    fabric, ranks = view.fabric, view.fabric.ranks
    local = ranks // fabric.nodes
    key = f"{view.generation}_nvls"
    if key not in view.numbers or local < 3:
        return
    total = fabric.bandwidth * view.first("nvls_bus") * local / (local - 1)
    speeds = view.numbers[f"{key}_channel"]
    speed = next((s for s in speeds if s * local <= total), speeds[-1])
    inside = speed * view.first(key) * (local - 1) / local
    latency = view.first("nvlink_nvls")
    if op == "all_reduce" and fabric.nodes > 1 and fabric.network is not None:
        hop = view.first("network_nvls_tree")
        network = usable_bandwidth(fabric, fabric.network) / local * (2 if fabric.nodes == 2 else 1)
        channel = min(2 * inside, network, view.cap("nvls_tree"))
        yield Candidate(
            algorithm="nvls_tree",
            protocol="Simple",
            latency=latency + 2 * math.floor(math.log2(fabric.nodes)) * hop,
            per_byte=ring_steps(op, ranks) / ranks / (channel * local),
        )
    elif fabric.nodes == 1:
        channel = inside * (2 if op == "all_reduce" else (local - 1) / local)
        yield Candidate(
            algorithm="nvls",
            protocol="Simple",
            latency=latency,
            per_byte=ring_steps(op, ranks) / ranks / (channel * local),
        )


def _pat(view: _View) -> Iterator[Candidate]:
    ranks = view.fabric.ranks
    travel = math.log2(ranks) * view.numbers["network_tree"][2] / 3.5
    yield Candidate(
        algorithm="pat",
        protocol="Simple",
        latency=view.first("base_pat") + travel + ranks * view.first("pat_rank"),
        per_byte=(ranks - 1) / ranks / (view.first("pat") * view.bus),
    )
