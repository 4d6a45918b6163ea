"""How every two devices of a host reach each other, worked out from its links."""

import math
from itertools import pairwise

from topology.base import BytesPerSecond
from topology.machine.graph import Machine, Pair
from topology.machine.routes import CLIMB, NVLINK, Adjacency, adjacency, path_kind, reach


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
        paths = best_paths(graph, gpu.name)
        others = [peer.name for peer in machine.gpus[index + 1 :]]
        others += [nic.name for nic in machine.nics]
        pairs += [
            _pair(graph, paths[other], ports.get(other, math.inf))
            for other in others
            if other in paths and (hosts[other] == gpu.host or path_is_nvlink(graph, paths[other]))
        ]
    return tuple(pairs)


def path_is_nvlink(graph: Adjacency, path: tuple[str, ...]) -> bool:
    """Tell whether a path stays on NVLink."""
    return path_kind(graph, path) in ("NVLINK", "NVSWITCH")


def best_paths(graph: Adjacency, start: str) -> dict[str, tuple[str, ...]]:
    """Find the way to every device of the host: NVLink first, then what climbs least."""
    found: dict[str, tuple[str, ...]] = {}
    for level in (NVLINK, *CLIMB[:-1]):
        found = reach(graph, start, level) | found
    return found


def _pair(graph: Adjacency, path: tuple[str, ...], port: float) -> Pair:
    kind = path_kind(graph, path)
    nvlink = kind in ("NVLINK", "NVSWITCH")
    edges = [graph.edge(a, b) for a, b in pairwise(path)]
    return Pair(
        a=path[0],
        b=path[-1],
        kind=kind,
        count=min(edge.count for edge in edges) if nvlink else 1,
        bandwidth=BytesPerSecond(min(port, graph.bandwidth(path))),
    )
