"""From a machine to what one group of ranks talks over, for the cost models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topology.base import BytesPerSecond, TopologyError
from topology.catalogue import Architecture, Fabric, LinkKind, Network, find_hardware
from topology.machine.graph import Cluster, Gpu, Machine, Nic, is_nvlink
from topology.machine.rings import best_ring, chain_rate, exchange_rate, has_nvlink_ring, load_of
from topology.machine.survey import Survey, nominal_bandwidth, survey_of

_ORDER: Final[tuple[Architecture, ...]] = (
    "volta", "turing", "ampere", "ada", "hopper", "blackwell",
)  # fmt: skip


def fabric(
    machine: Machine,
    ranks: Sequence[int],
    beside: Sequence[Sequence[int]] = (),
    survey: Survey | None = None,
) -> Fabric:
    """Describe the links of a group of GPUs.

    Bandwidth is what one GPU puts on NVLink inside the group; where NVLink joins no ring through
    the group, it is what the best ring over PCIe gives each GPU while all of them send, with
    uplinks shared, copies staged through the host where peers may not talk. A `range` over whole
    hosts is not walked.

    Parameters
    ----------
    ranks : numbers of GPUs, counting through one host, then the next.
    beside : groups that send at the same time and share PCIe uplinks and NICs with this one.
    survey : that of the machine, where the caller has it.

    Raises
    ------
    TopologyError
        If a rank does not exist or comes twice, or hosts hold unequal shares.
    """
    survey = survey or survey_of(machine)
    if not beside and isinstance(ranks, range) and _whole_hosts(machine, ranks):
        return _of_whole_hosts(survey, ranks)
    islands = _islands(machine, ranks)
    others = [_by_copy(machine, group) for group in beside]
    shapes = {
        (names, tuple(other[copy] for other in others if copy in other))
        for copy, names in _by_copy(machine, ranks).items()
    }
    local = [_local(survey, names, rest) for names, rest in sorted(shapes)]
    members = [machine.place(rank)[1] for rank in ranks]
    hosts = max(1, _hosts_in(machine, ranks) // len(islands))
    network = _network(machine, ranks, len(islands), others) if len(islands) > 1 else None
    return _fabric(survey, local, members, (len(ranks), len(islands), hosts), network)


def _fabric(
    survey: Survey,
    local: Sequence["_Local"],
    members: Sequence[Gpu],
    counts: tuple[int, int, int],
    network: Network | None,
) -> Fabric:
    """Put the parts of a group together; `counts` are its ranks, its islands and their hosts."""
    ranks, islands, hosts = counts
    worst = min(local, key=lambda part: part.bandwidth)
    architecture = min((gpu.architecture for gpu in members), key=_ORDER.index)
    return Fabric(
        architecture=architecture,
        ranks=ranks,
        nodes=islands,
        link=worst.link,
        bandwidth=BytesPerSecond(worst.bandwidth),
        multicast=worst.link == "nvswitch"
        and architecture in ("hopper", "blackwell")
        and ranks // islands > 2,
        peer_to_peer=all(part.peer_to_peer for part in local),
        crosses_sockets=hosts > 1 or any(part.crosses_sockets for part in local),
        pcie_generation=_generation(survey.machine, members),
        network=network,
        hosts=hosts,
        exchange=BytesPerSecond(min(part.exchange for part in local)),
        chain=BytesPerSecond(min(part.chain for part in local)),
    )


def _whole_hosts(machine: Machine, ranks: range) -> bool:
    """Whether a range holds all GPUs of hosts that are alike, and of their NVLink domains."""
    local = len(machine.gpus)
    domain = machine.domain_hosts
    whole = local * (domain if len(ranks) > local * domain else 1)
    return (
        machine.described_hosts == 1
        and ranks.step == 1
        and len(ranks) > 0
        and ranks.start % whole == 0
        and len(ranks) % whole == 0
        and ranks.stop <= machine.gpu_count
    )


def _of_whole_hosts(survey: Survey, ranks: range) -> Fabric:
    """Describe a group of whole hosts by one of them."""
    machine = survey.machine
    copies = len(ranks) // len(machine.gpus)
    hosts = min(copies, machine.domain_hosts)
    islands = copies // hosts
    network = None
    if islands > 1:
        first = ranks.start // len(machine.gpus)
        node = _node_bandwidth(machine, first, first + copies - 1)
        network = _shared(machine, node, hosts, 1)
    local = [_local(survey, [gpu.name for gpu in machine.gpus], ())]
    return _fabric(survey, local, machine.gpus, (len(ranks), islands, hosts), network)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Local:
    link: LinkKind
    bandwidth: float
    peer_to_peer: bool
    crosses_sockets: bool
    exchange: float = 0.0
    chain: float = 0.0


def _islands(machine: Machine, ranks: Sequence[int]) -> list[list[tuple[int, str]]]:
    """Split a group by host, or by NVLink domain where that spans hosts."""
    if not ranks or len(set(ranks)) != len(ranks):
        raise TopologyError(f"a group needs different GPUs, got {list(ranks)[:16]}")
    switches = _switches(machine)
    islands: dict[tuple[int, int | str], list[tuple[int, str]]] = {}
    for rank in ranks:
        copy, gpu = machine.place(rank)
        inside = switches.get(gpu.name, gpu.host)
        islands.setdefault((copy // machine.domain_hosts, inside), []).append((copy, gpu.name))
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


def _local(survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]) -> _Local:
    """Describe the links between the members of a group on one host."""
    gpus = survey.machine.gpus
    link, bandwidth, chain = _link(survey, names, beside)
    alone = len(names) == 1 and not all(gpu.peer_to_peer for gpu in gpus if gpu.name in names)
    return _Local(
        link=link,
        bandwidth=bandwidth,
        peer_to_peer=link != "pcie" or not (alone or any(p <= set(names) for p in survey.refused)),
        crosses_sockets=len({survey.cpus[name] for name in names}) > 1,
        exchange=_exchange(survey, names, beside) if link == "pcie" and len(names) > 2 else 0.0,
        chain=chain if chain > bandwidth else 0.0,
    )


def _exchange(survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]) -> float:
    """Give what links leave when each sends to each, or what hosts of such GPUs are known to."""
    rate = exchange_rate(survey, names, beside)
    if any(pair <= set(names) for pair in survey.refused):
        return rate  # staged copies share the memory of the host, which has a rate of its own
    kinds = {gpu.hardware for gpu in survey.machine.gpus if gpu.name in names} - {None}
    across = len({survey.cpus[name] for name in names}) > 1
    usual = [find_hardware(str(kind)).exchange_rate(len(names), across=across) for kind in kinds]
    return min([rate, *filter(None, usual)])


def _link(
    survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]
) -> tuple[LinkKind, float, float]:
    """Name the links of a group, and give what one GPU passes on in a ring and down a chain."""
    pairs = survey.pairs
    if len(names) == 1:
        return *_alone(survey, names[0]), 0.0
    inside = [pairs.get((a, b)) for i, a in enumerate(names) for b in names[i + 1 :]]
    if all(pair is not None and pair.kind == "NVSWITCH" for pair in inside):
        given = [nominal_bandwidth(pair) for pair in inside if pair is not None and pair.is_given]
        return "nvswitch", min(given or (survey.nvlink[name] for name in names)), 0.0
    neighbours = {a: {b for b in names if b != a and is_nvlink(pairs.get((a, b)))} for a in names}
    if has_nvlink_ring(neighbours, names):
        rates = [sum(nominal_bandwidth(pairs[a, b]) for b in neighbours[a]) for a in names]
        return "nvlink", min(rates), 0.0
    load = load_of(survey, beside)
    ring = best_ring(survey, names, load)
    return "pcie", ring.rate, chain_rate(survey, ring.order, load)


def _alone(survey: Survey, name: str) -> tuple[LinkKind, float]:
    """Describe a group of one by the links its GPU has."""
    machine, total = survey.machine, survey.nvlink[name]
    if total:
        switched = any(
            a == name and pair.kind == "NVSWITCH" for (a, _), pair in survey.pairs.items()
        )
        behind = any(node.kind == "nvswitch" for node in machine.nodes)
        return ("nvswitch" if switched or behind else "nvlink"), total
    ports = [link.bandwidth.value for link in machine.links_of(name, "pcie")]
    return "pcie", max(ports, default=0.0)


def _generation(machine: Machine, members: Sequence[Gpu]) -> int:
    names = {gpu.name for gpu in members}
    ports = [edge for edge in machine.edges if edge.kind == "pcie" and {edge.a, edge.b} & names]
    return min((port.generation for port in ports), default=0)


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
    hosts = max(1, _hosts_in(machine, ranks) // islands)
    copies = {machine.place(rank)[0] for rank in ranks}
    node = _node_bandwidth(machine, min(copies), max(copies))
    across = [set(other) for other in others if len(other) > 1]
    sharing = 1 + max(sum(copy in other for other in across) for copy in copies)
    return _shared(machine, node, hosts, sharing)


def _node_bandwidth(machine: Machine, first: int, last: int) -> float:
    """Bytes a second of the NICs of one host, or what leaf switches leave of it between hosts."""
    cluster, nics = _cluster(machine), machine.usable_nics
    node = sum(_port(machine, nic, cluster) for nic in nics) or cluster.nic_bandwidth.value
    per_leaf = cluster.hosts_per_leaf
    if per_leaf and first // per_leaf != last // per_leaf:
        node = min(node, cluster.rails * cluster.uplink(per_leaf, len(nics)).value)
    return node


def _cluster(machine: Machine) -> Cluster:
    if machine.cluster is None:
        raise TopologyError(f"{machine.name} has {machine.hosts} nodes and no network between them")
    return machine.cluster


def _shared(machine: Machine, node: float, hosts: int, sharing: int) -> Network:
    """Give one group's part of the NICs of `hosts` hosts, of `node` bytes a second each."""
    return Network(
        kind=_cluster(machine).kind,
        bandwidth=BytesPerSecond(node * hosts / sharing),
        nics=max(1, len(machine.usable_nics) * hosts // sharing),
    )


def _port(machine: Machine, nic: Nic, cluster: Cluster) -> float:
    """Bytes per second of a NIC: its own speed or that of its PCIe link."""
    speed = (nic.bandwidth or cluster.nic_bandwidth).value
    return min([speed, *(link.bandwidth.value for link in machine.links_of(nic.name))])
