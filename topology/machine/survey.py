"""What is asked of a machine again and again, worked out once: its pairs, paths and processors."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

from topology.base import TopologyError
from topology.machine.graph import Machine, Pair, pair_table
from topology.machine.measured import is_known, measured_capacity
from topology.machine.paths import processor_of, refused_pairs
from topology.machine.routes import (
    NVLINK,
    Adjacency,
    Hop,
    adjacency,
    hops,
    host_route,
    host_routes,
    routes,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Survey:
    """One host of a machine, indexed.

    refused : pairs of GPUs without peer access. cpus : the processor of each GPU. trails : the
    parts between a GPU and its processor, outermost first. nvlink : B/s of
    all NVLinks of each GPU. paths : the links a copy from one GPU to another crosses over PCIe
    (NVLink where it joins the two). capacity : B/s of those links.
    """

    machine: Machine
    graph: Adjacency
    pairs: Mapping[tuple[str, str], Pair]
    refused: frozenset[frozenset[str]]
    cpus: Mapping[str, str | None]
    trails: Mapping[str, tuple[str, ...]]
    nvlink: Mapping[str, float]
    paths: Mapping[tuple[str, str], tuple[Hop, ...]]
    capacity: Mapping[Hop, float]

    def path(self, a: str, b: str) -> tuple[Hop, ...]:
        """Give the links that a copy from one GPU to another crosses.

        Raises
        ------
        TopologyError
            If nothing joins the two.
        """
        if (a, b) not in self.paths:
            raise TopologyError(f"no path from {a} to {b}")
        return self.paths[a, b]

    def label(self, a: str, b: str) -> tuple[object, ...]:
        """Say how two GPUs reach each other, in a form that can be compared."""
        pair = self.pairs.get((a, b))
        known = (pair.kind, pair.count, pair.bandwidth, pair.basis) if pair else ()
        return (*known, frozenset((a, b)) in self.refused)

    @property
    def uniform(self) -> bool:
        """Whether any GPU may stand for any other: every two reach each other in the same way.

        >>> from topology.catalogue import find_hardware
        >>> from topology.machine.node import machine_of
        >>> [survey(machine_of(find_hardware(name))).uniform for name in ("h100-sxm", "h100-nvl")]
        [True, False]
        """
        names = [gpu.name for gpu in self.machine.gpus]
        kinds = {gpu.hardware for gpu in self.machine.gpus}
        labels = {self.label(a, b) for i, a in enumerate(names) for b in names[i + 1 :]}
        return len(labels) <= 1 and len(kinds) == 1


def survey(machine: Machine) -> Survey:
    """Index one host of a machine."""
    graph, pairs = adjacency(machine), pair_table(machine)
    refused = frozenset(frozenset(pair[:2]) for pair in refused_pairs(machine))
    cpus = processor_of(machine)
    paths, capacity = _measured(pairs, graph, _paths(machine, graph, pairs, refused, cpus))
    return Survey(
        machine=machine,
        graph=graph,
        pairs=pairs,
        refused=refused,
        cpus=cpus,
        trails={name: _trail(graph, name, cpu) for name, cpu in cpus.items()},
        nvlink={gpu.name: nvlink_bandwidth(machine, gpu.name) for gpu in machine.gpus},
        paths=paths,
        capacity=capacity,
    )


def _measured(
    pairs: Mapping[tuple[str, str], Pair],
    graph: Adjacency,
    paths: dict[tuple[str, str], tuple[Hop, ...]],
) -> tuple[dict[tuple[str, str], tuple[Hop, ...]], dict[Hop, float]]:
    """Give the ways between GPUs and what their links carry, as far as measured, else nominal."""
    nominal = {hop: graph.edge(*hop).bandwidth.value for path in paths.values() for hop in path}
    if not any(map(is_known, pairs.values())):
        return paths, nominal
    return measured_capacity(pairs, paths, nominal)


def _trail(graph: Adjacency, name: str, cpu: str | None) -> tuple[str, ...]:
    return (name,) if cpu is None else tuple(reversed(host_route(graph, name, cpu)))


def nvlink_bandwidth(machine: Machine, name: str) -> float:
    """Bytes per second each way of all NVLinks of a GPU."""
    return sum(
        edge.bandwidth.value
        for edge in machine.edges
        if edge.kind == "nvlink" and name in (edge.a, edge.b)
    )


def is_nvlink(pair: Pair | None) -> bool:
    """Tell whether two GPUs reach each other by NVLink."""
    return pair is not None and pair.kind in ("NVLINK", "NVSWITCH")


def _paths(
    machine: Machine,
    graph: Adjacency,
    pairs: Mapping[tuple[str, str], Pair],
    refused: frozenset[frozenset[str]],
    cpus: Mapping[str, str | None],
) -> dict[tuple[str, str], tuple[Hop, ...]]:
    """Find the way from every GPU to every other, searching once from each part."""
    starts = dict.fromkeys([*cpus, *filter(None, cpus.values())])
    over_host = {start: host_routes(graph, start, starts) for start in starts}
    nvlink = {gpu.name: routes(graph, gpu.name, NVLINK) for gpu in machine.gpus}
    found: dict[tuple[str, str], tuple[Hop, ...]] = {}
    for a, b in permutations(machine.gpus, 2):
        ends, near = (a.name, b.name), cpus[a.name]
        joined = is_nvlink(pairs.get(ends))
        if a.host != b.host and not joined:
            continue
        path = nvlink[a.name].get(b.name) if joined else None
        if path is None and near is not None and frozenset(ends) in refused:
            up, down = over_host[a.name].get(near), over_host[near].get(b.name)
            path = up + down[1:] if up and down else None
        elif path is None:
            path = over_host[a.name].get(b.name)
        if path is not None:
            found[ends] = hops(path)
    return found
