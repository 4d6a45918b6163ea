"""Ways through a machine: which parts a copy from one device to another passes."""

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise
from typing import Final

from topology.base import BytesPerSecond, TopologyError
from topology.base.values import dataclass
from topology.machine.graph import Edge, EdgeKind, Machine, NodeKind, Pair, PairKind

Hop = tuple[str, str]  # one link in one direction


@dataclass(frozen=True, slots=True)
class Level:
    """How far a route may climb: links it may use and parts it may pass."""

    edges: AbstractSet[EdgeKind]
    through: AbstractSet[NodeKind]


NVLINK: Final = Level({"nvlink"}, {"nvswitch"})
SWITCHES: Final = Level({"pcie"}, {"pcie_switch"})
ROOT: Final = Level({"pcie", "host"}, {"pcie_switch", "root"})
PROCESSOR: Final = Level({"pcie", "host", "c2c"}, {"pcie_switch", "root", "cpu"})
SYSTEM: Final = Level({"pcie", "host", "c2c", "socket"}, PROCESSOR.through)
NETWORK: Final = Level(SYSTEM.edges | {"network"}, SYSTEM.through | {"nic", "switch"})
CLIMB: Final = (SWITCHES, ROOT, PROCESSOR, SYSTEM, NETWORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjacency:
    """Links by the part they leave, the widest between two neighbours, and what each part is."""

    links: Mapping[str, tuple[tuple[str, Edge], ...]]
    widest: Mapping[Hop, Edge]
    kinds: Mapping[str, NodeKind]

    def kind(self, name: str) -> NodeKind:
        """Tell what `name` is."""
        return self.kinds.get(name, "switch")

    def steps(self, name: str, level: Level) -> Iterator[tuple[str, Edge]]:
        """Yield the links out of `name` that `level` allows."""
        return ((to, edge) for to, edge in self.links.get(name, ()) if edge.kind in level.edges)

    def edge(self, a: str, b: str) -> Edge:
        """Look up the widest link between two neighbours."""
        return self.widest[a, b]

    def bandwidth(self, path: Sequence[str]) -> float:
        """Bytes per second of the narrowest link on a path; infinite for a path of one part."""
        return min(
            (self.edge(a, b).bandwidth.value for a, b in pairwise(path)), default=float("inf")
        )


def adjacency(machine: Machine) -> Adjacency:
    """Index the links of one copy."""
    links: dict[str, list[tuple[str, Edge]]] = {}
    widest: dict[Hop, Edge] = {}
    for edge in machine.edges:
        for a, b in ((edge.a, edge.b), (edge.b, edge.a)):
            links.setdefault(a, []).append((b, edge))
            if edge.bandwidth.value > widest.setdefault((a, b), edge).bandwidth.value:
                widest[a, b] = edge
    return Adjacency(
        links={name: tuple(out) for name, out in links.items()},
        widest=widest,
        kinds=machine.part_kinds,
    )


def routes(graph: Adjacency, start: str, level: Level) -> dict[str, tuple[str, ...]]:
    """Find the widest path that `level` allows to every part in reach, the shortest of those.

    One search finds the widths, then one for each width the links.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> graph = adjacency(machine_of(find_hardware("h100-sxm")))
    >>> routes(graph, "GPU0", NVLINK)["GPU5"]
    ('GPU0', 'NVSwitch', 'GPU5')
    """
    widths = _widths(graph, start, level)
    widest_paths: dict[str, tuple[str, ...]] = {start: (start,)}
    for width in set(widths.values()) - {widths[start]}:
        paths = reach(graph, start, level, width)
        widest_paths |= {end: path for end, path in paths.items() if widths[end] == width}
    return widest_paths


def host_routes(graph: Adjacency, start: str, ends: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Find the paths over PCIe that climb least, to all of `ends` that are in reach.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> graph = adjacency(machine_of(find_hardware("l40s")))
    >>> len(host_routes(graph, "GPU0", ["GPU1"])["GPU1"])
    5
    """
    paths: dict[str, tuple[str, ...]] = {}
    for level in CLIMB:
        if paths.keys() >= set(ends):
            break
        paths = routes(graph, start, level) | paths
    return paths


def host_route(graph: Adjacency, a: str, b: str) -> tuple[str, ...]:
    """Find the path over PCIe that climbs least."""
    path = host_routes(graph, a, [b]).get(b)
    if path is None:
        raise TopologyError(f"no path from {a} to {b}")
    return path


def nearest(graph: Adjacency, name: str, kind: NodeKind) -> str | None:
    """Find the closest part of a kind, over PCIe."""
    return next(
        (node for node, _ in _breadth_first(graph, name, SYSTEM) if graph.kind(node) == kind), None
    )


def reach(
    graph: Adjacency, start: str, level: Level, width: float = 0.0
) -> dict[str, tuple[str, ...]]:
    """Find a path of fewest links from `start` to every device that `level` lets it reach.

    Links carry at least `width` bytes a second.
    """
    paths: dict[str, tuple[str, ...]] = {start: (start,)}
    for node, previous in _breadth_first(graph, start, level, width):
        paths[node] = (*paths[previous], node)
    return paths


def path_kind(graph: Adjacency, path: Sequence[str]) -> PairKind:
    """Name a path as ``nvidia-smi topo`` would: by the highest thing it passes."""
    edges = {graph.edge(a, b).kind for a, b in pairwise(path)}
    inner_kinds = [graph.kind(name) for name in path[1:-1]]
    if "network" in edges:
        return "NET"
    if edges == {"nvlink"}:
        return "NVSWITCH" if "nvswitch" in inner_kinds else "NVLINK"
    if edges == {"c2c"} and not inner_kinds:
        return "C2C"
    return "SYS" if "socket" in edges else _host_kind(inner_kinds)


def _host_kind(inner_kinds: Sequence[NodeKind]) -> PairKind:
    """Name a path that stays on one processor; a processor without roots is its own bridge."""
    if "cpu" in inner_kinds and "root" in inner_kinds:
        return "NODE"
    if "cpu" in inner_kinds or "root" in inner_kinds:
        return "PHB"
    return "PXB" if inner_kinds.count("pcie_switch") > 1 else "PIX"


def _breadth_first(
    graph: Adjacency, start: str, level: Level, width: float = 0.0
) -> Iterator[tuple[str, str]]:
    """Yield every part in reach with the part before it, nearest first."""
    visited, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        if node != start and graph.kind(node) not in level.through:
            continue
        for neighbour, edge in graph.steps(node, level):
            if neighbour not in visited and edge.bandwidth.value >= width:
                visited.add(neighbour)
                queue.append(neighbour)
                yield neighbour, node


def _widths(graph: Adjacency, start: str, level: Level) -> dict[str, float]:
    """Bandwidth of the widest path to every part in reach (Dijkstra with min for +)."""
    widest = {start: float("inf")}
    heap = [(-widest[start], start)]
    while heap:
        width, node = heapq.heappop(heap)
        if -width < widest[node] or (node != start and graph.kind(node) not in level.through):
            continue
        for neighbour, edge in graph.steps(node, level):
            path_width = min(-width, edge.bandwidth.value)
            if path_width > widest.get(neighbour, 0.0):
                widest[neighbour] = path_width
                heapq.heappush(heap, (-path_width, neighbour))
    return widest


def graph_pairs(machine: Machine) -> tuple[Pair, ...]:
    """Name the way between every two GPUs of a host, and between each GPU and NIC.

    NVLink counts first, then the way over PCIe that climbs least.
    """
    graph = adjacency(machine)
    hosts = {gpu.name: gpu.host for gpu in machine.gpus}
    hosts |= {nic.name: nic.host for nic in machine.nics}
    ports = {nic.name: nic.bandwidth.value for nic in machine.nics if nic.bandwidth}
    pairs: list[Pair] = []
    for index, gpu in enumerate(machine.gpus):
        paths: dict[str, tuple[str, ...]] = {}
        for level in (NVLINK, *CLIMB[:-1]):
            paths = reach(graph, gpu.name, level) | paths
        peer_names = [peer.name for peer in machine.gpus[index + 1 :]]
        peer_names += [nic.name for nic in machine.nics]
        candidates = (
            _pair_of_path(graph, paths[peer_name], ports.get(peer_name, math.inf))
            for peer_name in peer_names
            if peer_name in paths
        )
        pairs += [pair for pair in candidates if hosts[pair.b] == gpu.host or pair.is_nvlink]
    return tuple(pairs)


def _pair_of_path(graph: Adjacency, path: tuple[str, ...], port_rate: float) -> Pair:
    width = BytesPerSecond(min(port_rate, graph.bandwidth(path)))
    pair = Pair(a=path[0], b=path[-1], kind=path_kind(graph, path), bandwidth=width)
    links = min(graph.edge(a, b).count for a, b in pairwise(path))
    return replace(pair, count=links) if pair.is_nvlink else pair


def components(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Join paired names into groups (union-find), in the order of `names`.

    >>> components("abcd", [("d", "b")])
    [['a'], ['b', 'd'], ['c']]
    """
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for a, b in pairs:
        parent[root(a)] = root(b)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(root(name), []).append(name)
    return list(groups.values())
