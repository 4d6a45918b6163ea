"""How much a machine can move from half to half."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.machine.graph import Machine

if TYPE_CHECKING:
    import networkx as nx  # type: ignore[import-untyped]

_EXHAUSTIVE_GPUS: Final = 10  # GPUs up to which every split into halves is tried
_EXPLICIT_HOSTS: Final = 4  # hosts up to which the network is written out


def bisection_bandwidth(machine: Machine) -> float:
    """Bytes per second each way between the two halves of the GPUs that are worst joined.

    Exact up to ten GPUs (minimum cut over every split); beyond, over splits of neighbours, and
    for a cluster over halves of the hosts. Where NVLink joins all GPUs, copies between them take
    no other way, and PCIe and the link between sockets add nothing. One GPU has no halves: 0.
    """
    if machine.gpu_count < 2:
        return 0.0
    if machine.hosts > _EXPLICIT_HOSTS:
        return _cluster_bisection(machine)
    import networkx as nx  # noqa: PLC0415  # slow to import

    gpus = [
        machine.full_name(copy, gpu.name) for copy in range(machine.copies) for gpu in machine.gpus
    ]
    graph = to_networkx(machine)
    nvlinks = ((a, b) for a, b, kind in graph.edges(data="kind") if kind == "nvlink")
    nvlink_graph = graph.edge_subgraph(nvlinks)
    if gpus[0] in nvlink_graph and set(gpus) <= nx.node_connected_component(nvlink_graph, gpus[0]):
        graph = nvlink_graph
    return min(
        _min_cut(graph, half, [gpu for gpu in gpus if gpu not in half]) for half in _halves(gpus)
    )


def to_networkx(machine: Machine) -> "nx.Graph[str]":
    """Build the undirected graph: `kind` on nodes, `kind` and `bandwidth` on edges."""
    import networkx as nx  # noqa: PLC0415  # slow to import

    graph: nx.Graph[str] = nx.Graph()
    for copy in range(machine.copies):
        for name, kind in machine.part_kinds.items():
            graph.add_node(machine.cluster_name(copy, name, kind), kind=kind)
    for edge in machine.all_edges():
        for name in (edge.a, edge.b):
            if name not in graph:
                graph.add_node(name, kind="switch")
        graph.add_edge(edge.a, edge.b, kind=edge.kind, bandwidth=edge.bandwidth.value)
    return graph


def _halves(gpus: list[str]) -> Iterator[list[str]]:
    size = len(gpus) // 2
    if len(gpus) <= _EXHAUSTIVE_GPUS:
        yield from ([gpus[0], *partners] for partners in combinations(gpus[1:], size - 1))
        if len(gpus) % 2:
            yield from (list(half) for half in combinations(gpus[1:], size))
        return
    for stride in (1, 2, 4):
        order = [gpu for start in range(stride) for gpu in gpus[start::stride]]
        yield from (sorted(order[start : start + size]) for start in range(0, len(gpus), size or 1))


def _min_cut(graph: "nx.Graph[str]", sources: Sequence[str], sinks: Sequence[str]) -> float:
    """Capacity of the smallest cut between two groups."""
    import networkx as nx  # noqa: PLC0415  # slow to import

    cut_graph = nx.Graph(graph)
    for end, group in (("source", sources), ("sink", sinks)):
        cut_graph.add_edges_from((end, gpu) for gpu in group)
    return float(nx.minimum_cut_value(cut_graph, "source", "sink", capacity="bandwidth"))


def _cluster_bisection(machine: Machine) -> float:
    cluster = machine.cluster
    if cluster is None:
        return 0.0
    nics = max(1, len(machine.usable_nics))
    half = machine.hosts // 2
    if cluster.domain_hosts >= machine.copies:
        return half * sum(e.bandwidth.value for e in machine.edges if e.kind == "nvlink")
    per_leaf = cluster.hosts_per_leaf or machine.copies
    ports = half * nics * cluster.nic_bandwidth.value
    if per_leaf >= machine.copies:
        return ports
    leaves = max(1, (machine.copies // per_leaf) // 2)
    return min(ports, leaves * cluster.rails * cluster.uplink(per_leaf, nics).value)
