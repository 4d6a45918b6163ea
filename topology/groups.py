"""From a machine to what one group of ranks talks over, for the cost models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topology.devices import Architecture
from topology.errors import TopologyError
from topology.expand import uplink, usable_nics
from topology.fabric import Fabric, LinkKind, Network
from topology.graph import Cluster, Gpu, Machine, Nic, Pair, pair_table
from topology.paths import processor_of, refused_pairs
from topology.rings import best_ring, has_nvlink_ring, is_nvlink
from topology.units import BytesPerSecond

_ORDER: Final[tuple[Architecture, ...]] = (
    "volta", "turing", "ampere", "ada", "hopper", "blackwell",
)  # fmt: skip


def fabric(machine: Machine, ranks: Sequence[int], beside: Sequence[Sequence[int]] = ()) -> Fabric:
    """Describe the links of a group of GPUs.

    Bandwidth is what one GPU puts on NVLink inside the group; where NVLink joins no ring through
    the group, it is what the best ring over PCIe gives each GPU while all of them send, with
    uplinks shared, copies staged through the host where peers may not talk.

    Parameters
    ----------
    ranks : numbers of GPUs, counting through one host, then the next.
    beside : groups that send at the same time and share PCIe uplinks and NICs with this one.

    Raises
    ------
    TopologyError
        If a rank does not exist or comes twice, or hosts hold unequal shares.
    """
    islands = _islands(machine, ranks)
    others = [_by_copy(machine, group) for group in beside]
    shapes = {
        (names, tuple(other[copy] for other in others if copy in other))
        for copy, names in _by_copy(machine, ranks).items()
    }
    local = [_local(machine, names, rest) for names, rest in sorted(shapes)]
    worst = min(local, key=lambda part: part.bandwidth)
    members = [machine.place(rank)[1] for rank in ranks]
    architecture = min((gpu.architecture for gpu in members), key=_ORDER.index)
    hosts = max(1, _hosts_in(machine, ranks) // len(islands))
    return Fabric(
        architecture=architecture,
        ranks=len(ranks),
        nodes=len(islands),
        link=worst.link,
        bandwidth=BytesPerSecond(worst.bandwidth),
        multicast=worst.link == "nvswitch"
        and architecture in ("hopper", "blackwell")
        and len(islands[0]) > 2,
        peer_to_peer=all(part.peer_to_peer for part in local),
        crosses_sockets=hosts > 1 or any(part.crosses_sockets for part in local),
        pcie_generation=_generation(machine, members),
        network=_network(machine, ranks, len(islands), others) if len(islands) > 1 else None,
        hosts=hosts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Local:
    link: LinkKind
    bandwidth: float
    peer_to_peer: bool
    crosses_sockets: bool


def _islands(machine: Machine, ranks: Sequence[int]) -> list[list[tuple[int, str]]]:
    """Split a group by host, or by NVLink domain where that spans hosts."""
    if not ranks or len(set(ranks)) != len(ranks):
        raise TopologyError(f"a group needs different GPUs, got {list(ranks)[:16]}")
    domain = machine.cluster.domain_hosts if machine.cluster else 1
    switches = _switches(machine)
    islands: dict[tuple[int, int | str], list[tuple[int, str]]] = {}
    for rank in ranks:
        copy, gpu = machine.place(rank)
        inside = switches.get(gpu.name, gpu.host)
        islands.setdefault((copy // domain, inside), []).append((copy, gpu.name))
    sizes = sorted({len(members) for members in islands.values()})
    if len(sizes) > 1:
        raise TopologyError(
            f"the group has {sizes[0]} to {sizes[-1]} GPUs on its nodes: expected the same on each"
        )
    return list(islands.values())


def _switches(machine: Machine) -> dict[str, str]:
    """Name the NVSwitches each GPU hangs on, where the description has several hosts."""
    if machine.described_hosts == 1:
        return {}
    switches = {node.name for node in machine.nodes if node.kind == "nvswitch"}
    return {edge.a: edge.b for edge in machine.edges if edge.b in switches}


def _by_copy(machine: Machine, ranks: Sequence[int]) -> dict[int, tuple[str, ...]]:
    copies: dict[int, list[str]] = {}
    for rank in ranks:
        copy, gpu = machine.place(rank)
        copies.setdefault(copy, []).append(gpu.name)
    return {copy: tuple(names) for copy, names in copies.items()}


def _local(machine: Machine, names: Sequence[str], beside: Sequence[Sequence[str]]) -> _Local:
    """Describe the links between the members of a group on one host."""
    cpus = processor_of(machine)
    refused = {frozenset(pair[:2]) for pair in refused_pairs(machine)}
    link, bandwidth = _link(machine, names, beside)
    alone = len(names) == 1 and not all(
        gpu.peer_to_peer for gpu in machine.gpus if gpu.name in names
    )
    return _Local(
        link=link,
        bandwidth=bandwidth,
        peer_to_peer=link != "pcie" or not (alone or any(p <= set(names) for p in refused)),
        crosses_sockets=len({cpus[name] for name in names}) > 1,
    )


def _link(
    machine: Machine, names: Sequence[str], beside: Sequence[Sequence[str]]
) -> tuple[LinkKind, float]:
    pairs = pair_table(machine)
    if len(names) == 1:
        return _alone(machine, pairs, names[0])
    inside = [pairs.get((a, b)) for i, a in enumerate(names) for b in names[i + 1 :]]
    if all(pair is not None and pair.kind == "NVSWITCH" for pair in inside):
        return "nvswitch", min(nvlink_bandwidth(machine, name) for name in names)
    neighbours = {a: {b for b in names if b != a and is_nvlink(pairs.get((a, b)))} for a in names}
    if has_nvlink_ring(neighbours, names):
        return "nvlink", min(sum(pairs[a, b].bandwidth for b in neighbours[a]) for a in names)
    return "pcie", best_ring(machine, names, beside).rate


def _alone(
    machine: Machine, pairs: Mapping[tuple[str, str], Pair], name: str
) -> tuple[LinkKind, float]:
    """Describe a group of one by the links its GPU has."""
    total = nvlink_bandwidth(machine, name)
    if total:
        switched = any(a == name and pair.kind == "NVSWITCH" for (a, _), pair in pairs.items())
        behind = any(node.kind == "nvswitch" for node in machine.nodes)
        return ("nvswitch" if switched or behind else "nvlink"), total
    ports = [
        edge.bandwidth.value
        for edge in machine.edges
        if edge.kind == "pcie" and name in (edge.a, edge.b)
    ]
    return "pcie", max(ports, default=0.0)


def nvlink_bandwidth(machine: Machine, name: str) -> float:
    """Bytes per second each way of all NVLinks of a GPU."""
    return sum(
        edge.bandwidth.value
        for edge in machine.edges
        if edge.kind == "nvlink" and name in (edge.a, edge.b)
    )


def _generation(machine: Machine, members: Sequence[Gpu]) -> int:
    names = {gpu.name for gpu in members}
    return min(
        (
            edge.generation
            for edge in machine.edges
            if edge.kind == "pcie" and {edge.a, edge.b} & names
        ),
        default=0,
    )


def _hosts_in(machine: Machine, ranks: Sequence[int]) -> int:
    places = [machine.place(rank) for rank in ranks]
    return len({(copy, gpu.host) for copy, gpu in places})


def _network(
    machine: Machine,
    ranks: Sequence[int],
    islands: int,
    others: Sequence[Mapping[int, Sequence[str]]],
) -> Network:
    """Give what one node (or NVLink domain) of a group can send and receive at once."""
    cluster = machine.cluster
    if cluster is None:
        raise TopologyError(f"{machine.name} has {machine.hosts} nodes and no network between them")
    hosts = max(1, _hosts_in(machine, ranks) // islands)
    nics = usable_nics(machine)
    node = sum(_port(machine, nic, cluster) for nic in nics) or cluster.nic_bandwidth.value
    copies = [machine.place(rank)[0] for rank in ranks]
    per_leaf = cluster.hosts_per_leaf
    if per_leaf and len({copy // per_leaf for copy in copies}) > 1:
        node = min(node, cluster.rails * uplink(cluster, per_leaf, len(nics)).value)
    across = [set(other) for other in others if len(other) > 1]
    sharing = 1 + max(sum(copy in other for other in across) for copy in set(copies))
    return Network(
        kind=cluster.kind,
        bandwidth=BytesPerSecond(node * hosts / sharing),
        nics=max(1, len(nics) * hosts // sharing),
    )


def _port(machine: Machine, nic: Nic, cluster: Cluster) -> float:
    """Bytes per second of a NIC: its own speed or that of its PCIe link."""
    speed = (nic.bandwidth or cluster.nic_bandwidth).value
    ports = [edge.bandwidth.value for edge in machine.edges if nic.name in (edge.a, edge.b)]
    return min([speed, *ports])
