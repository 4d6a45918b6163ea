"""A cluster written out: every copy of the host, and the network between them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from topology.base import Sourced
from topology.machine.graph import Cluster, Edge, Machine, Nic, NodeKind, full_name, kinds_of

if TYPE_CHECKING:
    import networkx as nx  # type: ignore[import-untyped]


def all_edges(machine: Machine) -> tuple[Edge, ...]:
    """Write out the links of every copy and of the network between them."""
    if machine.copies == 1 and machine.cluster is None:
        return machine.edges
    kinds = kinds_of(machine)
    return (
        *(
            _moved(machine, kinds, copy, edge)
            for copy in range(machine.copies)
            for edge in machine.edges
        ),
        *network_edges(machine),
    )


def network_edges(machine: Machine) -> tuple[Edge, ...]:
    """Write out the links from NICs to leaf switches and from leaves to the spine."""
    cluster = machine.cluster
    if cluster is None or machine.hosts == 1:
        return ()
    nics = usable_nics(machine)
    per_leaf = cluster.hosts_per_leaf or machine.copies
    leaves = -(-machine.copies // per_leaf)
    down = tuple(
        Edge(
            a=full_name(machine, copy, nic.name),
            b=f"leaf{copy // per_leaf}.rail{index % cluster.rails}",
            kind="network",
            bandwidth=nic.bandwidth or cluster.nic_bandwidth,
            latency=cluster.latency,
        )
        for copy in range(machine.copies)
        for index, nic in enumerate(nics)
    )
    up = tuple(
        Edge(
            a=f"leaf{leaf}.rail{rail}",
            b="spine",
            kind="network",
            bandwidth=uplink(cluster, per_leaf, len(nics)),
            latency=cluster.latency,
        )
        for leaf in range(leaves)
        for rail in range(cluster.rails)
        if leaves > 1 or cluster.rails > 1
    )
    return down + up


def uplink(cluster: Cluster, hosts_per_leaf: int, nics: int) -> Sourced:
    """Bandwidth out of one leaf switch of one rail, each way."""
    into = hosts_per_leaf * max(1, nics // cluster.rails) * cluster.nic_bandwidth.value
    return Sourced(
        value=into / cluster.oversubscription,
        kind="derived",
        source=f"{hosts_per_leaf} hosts a leaf, oversubscription {cluster.oversubscription:g}",
    )


def usable_nics(machine: Machine) -> tuple[Nic, ...]:
    """Keep the NICs that collectives use: real ports, those near a GPU if any are."""
    real = tuple(nic for nic in machine.nics if not nic.virtual)
    gpus = {gpu.name for gpu in machine.gpus}
    near = {
        name
        for pair in machine.pairs
        if pair.kind in ("PIX", "PXB", "C2C") and len({pair.a, pair.b} & gpus) == 1
        for name in (pair.a, pair.b)
    }
    return tuple(nic for nic in real if nic.name in near) or real or machine.nics


def to_networkx(machine: Machine) -> "nx.Graph[str]":
    """Build the undirected graph: `kind` on nodes; `kind`, `bandwidth`, `latency` on edges."""
    import networkx as nx  # noqa: PLC0415  # slow to import, and rarely needed

    graph: nx.Graph[str] = nx.Graph()
    kinds = kinds_of(machine)
    for copy in range(machine.copies):
        for name, kind in kinds.items():
            graph.add_node(_moved_name(machine, kinds, copy, name), kind=kind)
    for edge in all_edges(machine):
        for name in (edge.a, edge.b):
            if name not in graph:
                graph.add_node(name, kind="switch")
        graph.add_edge(
            edge.a,
            edge.b,
            kind=edge.kind,
            bandwidth=edge.bandwidth.value,
            latency=edge.latency.value,
            source=edge.bandwidth.source,
        )
    return graph


def _moved(machine: Machine, kinds: Mapping[str, NodeKind], copy: int, edge: Edge) -> Edge:
    return Edge(
        a=_moved_name(machine, kinds, copy, edge.a),
        b=_moved_name(machine, kinds, copy, edge.b),
        kind=edge.kind,
        count=edge.count,
        generation=edge.generation,
        bandwidth=edge.bandwidth,
        latency=edge.latency,
    )


def _moved_name(machine: Machine, kinds: Mapping[str, NodeKind], copy: int, name: str) -> str:
    """Name a part of one copy; the NVLink switches of a rack belong to several copies."""
    domain = machine.cluster.domain_hosts if machine.cluster else 1
    if domain > 1 and kinds[name] == "nvswitch":
        return f"domain{copy // domain}/{name}"
    return full_name(machine, copy, name)
