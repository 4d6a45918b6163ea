"""What is asked of a machine again and again, worked out once: its pairs, paths and processors."""

from collections.abc import Mapping
from itertools import combinations, pairwise, permutations

from topology.base import BytesPerSecond, TopologyError
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import link_rates
from topology.machine.graph import Machine, Pair, is_nvlink
from topology.machine.paths import processor_of, refused_pairs
from topology.machine.routes import (
    NVLINK,
    Adjacency,
    Hop,
    adjacency,
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
        """Give the links that a copy from one GPU to another crosses."""
        if (a, b) not in self.paths:
            raise TopologyError(f"no path from {a} to {b}")
        return self.paths[a, b]

    def label(self, a: str, b: str) -> tuple[object, ...]:
        """Say how two GPUs reach each other, in a form that can be compared."""
        pair = self.pairs.get((a, b))
        links = (pair.kind, pair.count, pair.bandwidth, pair.basis) if pair else ()
        return (*links, frozenset((a, b)) in self.refused)

    @property
    def uniform(self) -> bool:
        """Whether any GPU may stand for any other: every two reach each other in the same way.

        >>> from topology.catalogue import find_hardware
        >>> from topology.machine.build import machine_of
        >>> nodes = map(machine_of, map(find_hardware, ("h100-sxm", "h100-nvl")))
        >>> [survey_of(node).uniform for node in nodes]
        [True, False]
        """
        kinds = {gpu.hardware for gpu in self.machine.gpus}
        labels = {self.label(a.name, b.name) for a, b in combinations(self.machine.gpus, 2)}
        return len(labels) <= 1 and len(kinds) == 1


def survey_of(machine: Machine) -> Survey:
    """Index one host of a machine."""
    graph, pairs = adjacency(machine), machine.pairs_by_ends
    refused = frozenset(frozenset(pair[:2]) for pair in refused_pairs(machine))
    cpus = processor_of(machine)
    starts = dict.fromkeys([*cpus, *filter(None, cpus.values())])
    over_host = {start: host_routes(graph, start, starts) for start in starts}
    nvlink = {gpu.name: routes(graph, gpu.name, NVLINK) for gpu in machine.gpus}
    paths: dict[tuple[str, str], tuple[Hop, ...]] = {}
    for a, b in permutations(machine.gpus, 2):
        ends, near_cpu = (a.name, b.name), cpus[a.name]
        by_nvlink = is_nvlink(pairs.get(ends))
        if a.host != b.host and not by_nvlink:
            continue
        path = nvlink[a.name].get(b.name) if by_nvlink else None
        if path is None and near_cpu is not None and frozenset(ends) in refused:
            up, down = over_host[a.name].get(near_cpu), over_host[near_cpu].get(b.name)
            path = up + down[1:] if up and down else None
        elif path is None:
            path = over_host[a.name].get(b.name)
        if path is not None:
            paths[ends] = tuple(pairwise(path))
    capacity = {hop: graph.edge(*hop).bandwidth.value for path in paths.values() for hop in path}
    if any(pair.is_given for pair in pairs.values()):
        paths, capacity = _given_capacity(pairs, paths, capacity)
    return Survey(
        machine=machine,
        graph=graph,
        pairs=pairs,
        refused=refused,
        cpus=cpus,
        trails={
            name: (name,) if cpu is None else host_route(graph, name, cpu)[::-1]
            for name, cpu in cpus.items()
        },
        nvlink={
            gpu.name: sum(link.bandwidth.value for link in machine.links_of(gpu.name, "nvlink"))
            for gpu in machine.gpus
        },
        paths=paths,
        capacity=capacity,
    )


def nominal_bandwidth(pair: Pair) -> BytesPerSecond:
    """Bytes a second that the links between two GPUs must be nominally good for."""
    if pair.basis != "measured":
        return pair.bandwidth
    return BytesPerSecond(pair.bandwidth / link_rates().copy.value)


def _given_capacity(
    pairs: Mapping[tuple[str, str], Pair],
    paths: Mapping[tuple[str, str], tuple[Hop, ...]],
    nominal: Mapping[Hop, float],
) -> tuple[dict[tuple[str, str], tuple[Hop, ...]], dict[Hop, float]]:
    """Let what is known of pairs rule the links between them; give ways and capacities then.

    No link on the way of a copy is slower than that copy was. A GPU's own port is as fast as the
    fastest of its copies, where all of them were measured; and a pair that is slower than its
    links are has a bound of its own.
    """
    extended_paths, capacity = dict(paths), dict(nominal)
    given_rates = {ends: nominal_bandwidth(pairs[ends]) for ends in paths if pairs[ends].is_given}
    rates_by_hop = gathered(
        (hop, given_rates.get(ends)) for ends, path in paths.items() for hop in path
    )
    gpus = {name for ends in paths for name in ends}
    for hop, rates in rates_by_hop.items():
        known_rates = [value for value in rates if value is not None]
        if len(known_rates) == len(rates) and not gpus.isdisjoint(hop):
            capacity[hop] = max(known_rates)
        elif known_rates:
            capacity[hop] = max(capacity[hop], *known_rates)
    for (a, b), value in given_rates.items():
        pair_hop = (a, f"{b} (measured)")
        extended_paths[a, b] = (*paths[a, b], pair_hop)
        capacity[pair_hop] = value
    return extended_paths, capacity
