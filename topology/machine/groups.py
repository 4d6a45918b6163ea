"""From a machine to what one group of ranks talks over, for the cost models."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations
from typing import Final

from topology.base import BytesPerSecond, TopologyError
from topology.base.rows import gathered
from topology.catalogue import (
    Architecture,
    Fabric,
    Hardware,
    LinkKind,
    Network,
    Pace,
    Siblings,
    find_hardware,
)
from topology.machine.build import machine_of
from topology.machine.graph import Cluster, Gpu, Machine, Nic, Reached, is_nvlink
from topology.machine.rings import (
    best_rings,
    chain_rate,
    direct_rate,
    exchange_rate,
    has_nvlink_ring,
    rates_beside,
)
from topology.machine.survey import Survey, nominal_bandwidth, survey_of

_ARCHITECTURE_ORDER: Final[tuple[Architecture, ...]] = (
    "volta", "turing", "ampere", "ada", "hopper", "blackwell",
)  # fmt: skip

_UNLIMITED: Final = BytesPerSecond(float("inf"))

Seat = tuple[int, str]
"""A GPU: the number of its copy of a machine, and its name there."""


def fabric(
    machine: Machine,
    ranks: Sequence[int],
    beside: Sequence[Sequence[int]] = (),
    survey: Survey | None = None,
) -> Fabric:
    """Describe the links of a group of GPUs.

    Bandwidth is what one GPU puts on NVLink inside the group; where NVLink joins no ring through
    the group, it is what the best ring over PCIe gives each GPU while all of the group send, with
    uplinks shared, copies staged through the host where peers may not talk. A `range` over whole
    hosts is not walked.

    ranks : numbers of GPUs, counting through one host, then the next.
    beside : groups that send at the same time and share PCIe uplinks and NICs with this one.
    survey : that of the machine, where the caller has it.

    Raises TopologyError if a rank does not exist or comes twice, or hosts hold unequal shares.
    """
    survey = survey or survey_of(machine)
    group = _group_fabric(survey, ranks, beside)
    if not machine.reached or group.nodes > 1:
        return group
    return replace(group, paces=tuple(_pace(survey, reached) for reached in machine.reached))


@lru_cache(maxsize=256)
def _pace(survey: Survey, reached: Reached) -> Pace:
    """Tie a bus bandwidth that was measured on a machine to the links that it is of."""
    names = [gpu.name for gpu in survey.machine.gpus[: reached.gpus]]
    return Pace(op=reached.op, fabric=_host_fabric(survey, names, ()), bus=reached.bus)


def _group_fabric(survey: Survey, ranks: Sequence[int], beside: Sequence[Sequence[int]]) -> Fabric:
    """Describe the links of a group, whatever was measured."""
    machine = survey.machine
    if (
        not beside
        and isinstance(ranks, range)
        and (hosts_fabric := _whole_hosts_fabric(survey, ranks))
    ):
        return hosts_fabric
    if not ranks or len(set(ranks)) != len(ranks):
        raise TopologyError(f"a group needs different GPUs, got {list(ranks)[:16]}")
    islands = islands_of(machine, ranks)
    sizes = sorted(set(map(len, islands)))
    if len(sizes) > 1:
        raise TopologyError(
            f"the group has {sizes[0]} to {sizes[-1]} GPUs on its nodes: expected the same on each"
        )
    neighbour_groups = [_names_by_copy(machine, group) for group in beside]
    shapes = {
        (names, tuple(neighbour[copy] for neighbour in neighbour_groups if copy in neighbour))
        for copy, names in _names_by_copy(machine, ranks).items()
    }
    host_fabrics = [
        _host_fabric(survey, names, neighbour_names) for names, neighbour_names in sorted(shapes)
    ]
    places = {(copy, gpu.host) for copy, gpu in map(machine.place, ranks)}
    hosts = max(1, len(places) // len(islands))
    network = None
    if len(islands) > 1:
        copies = {copy for copy, _ in places}
        spanning_groups = [set(neighbour) for neighbour in neighbour_groups if len(neighbour) > 1]
        sharing = 1 + max(
            sum(copy in neighbour for neighbour in spanning_groups) for copy in copies
        )
        used_names = _names_by_copy(machine, sorted({*ranks, *chain.from_iterable(beside)}))
        used_share = max(len(used_names[copy]) for copy in copies) / len(machine.gpus)
        network = _network(machine, (min(copies), max(copies)), hosts, sharing, used_share)
    return _combined_fabric(host_fabrics, (len(ranks), len(islands), hosts), network)


def _combined_fabric(
    parts: Sequence[Fabric], counts: tuple[int, int, int], network: Network | None
) -> Fabric:
    """Put the parts of a group together; `counts` are its ranks, its islands and their hosts."""
    ranks, islands, hosts = counts
    slowest = min(parts, key=lambda part: part.bandwidth)
    architecture = min((part.architecture for part in parts), key=_ARCHITECTURE_ORDER.index)
    return replace(
        slowest,
        architecture=architecture,
        ranks=ranks,
        nodes=islands,
        multicast=slowest.link == "nvswitch"
        and architecture in ("hopper", "blackwell")
        and ranks // islands > 2,
        peer_to_peer=all(part.peer_to_peer for part in parts),
        crosses_sockets=hosts > 1 or any(part.crosses_sockets for part in parts),
        pcie_generation=min(filter(None, (part.pcie_generation for part in parts)), default=0),
        network=network,
        hosts=hosts,
        exchange=min(part.exchange for part in parts),
        direct=min(part.direct for part in parts),
        chain=min(part.chain for part in parts),
        siblings=_tightest_siblings(part.siblings for part in parts),
    )


def _whole_hosts_fabric(survey: Survey, ranks: range) -> Fabric | None:
    """Describe all GPUs of hosts that are alike, and of their NVLink domains, by one host."""
    machine = survey.machine
    gpus_per_host, domain, count = len(machine.gpus), machine.domain_hosts, len(ranks)
    unit_gpus = gpus_per_host * (domain if count > gpus_per_host * domain else 1)
    regular = machine.described_hosts == 1 and ranks.step == 1 and count > 0
    if (
        not regular
        or ranks.start % unit_gpus
        or count % unit_gpus
        or ranks.stop > machine.gpu_count
    ):
        return None
    copies, first_copy = count // gpus_per_host, ranks.start // gpus_per_host
    hosts = min(copies, domain)
    islands = copies // hosts
    network = (
        _network(machine, (first_copy, first_copy + copies - 1), hosts, 1, 1)
        if islands > 1
        else None
    )
    host_fabric = _host_fabric(survey, [gpu.name for gpu in machine.gpus], ())
    return _combined_fabric([host_fabric], (count, islands, hosts), network)


def islands_of(machine: Machine, ranks: Sequence[int]) -> list[list[Seat]]:
    """Split a group by host, or by NVLink domain where that spans hosts."""
    switches = _nvswitch_of_gpu(machine)
    islands: dict[tuple[int, int | str], list[Seat]] = {}
    for rank in ranks:
        copy, gpu = machine.place(rank)
        island_key = switches.get(gpu.name, gpu.host)
        islands.setdefault((copy // machine.domain_hosts, island_key), []).append((copy, gpu.name))
    return list(islands.values())


def _nvswitch_of_gpu(machine: Machine) -> dict[str, str]:
    """Name the NVSwitches each GPU hangs on, where the description has several hosts."""
    if machine.described_hosts == 1:
        return {}
    switches = {node.name for node in machine.nodes if node.kind == "nvswitch"}
    return {edge.a: edge.b for edge in machine.edges if edge.b in switches}


def _names_by_copy(machine: Machine, ranks: Sequence[int]) -> dict[int, tuple[str, ...]]:
    copies = gathered((copy, gpu.name) for copy, gpu in map(machine.place, ranks))
    return {copy: tuple(names) for copy, names in copies.items()}


def _host_fabric(survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]) -> Fabric:
    """Describe the links between the members of a group on one host."""
    machine, member_names = survey.machine, set(names)
    members = [gpu for gpu in machine.gpus if gpu.name in member_names]
    ports = [
        e
        for e in machine.edges
        if e.kind == "pcie" and (e.a in member_names or e.b in member_names)
    ]
    link, bandwidth, chain = _group_link(survey, names)
    direct = direct_rate(survey, names) if link == "nvlink" and len(names) > 1 else 0.0
    lone_no_peers = len(names) == 1 and not all(gpu.peer_to_peer for gpu in members)
    shares_pcie = link == "pcie" and len(names) > 2
    return Fabric(
        architecture=min((gpu.architecture for gpu in members), key=_ARCHITECTURE_ORDER.index),
        ranks=len(names),
        link=link,
        bandwidth=BytesPerSecond(bandwidth),
        peer_to_peer=link != "pcie"
        or not (lone_no_peers or any(p <= member_names for p in survey.refused)),
        crosses_sockets=len({survey.cpus[name] for name in names}) > 1,
        pcie_generation=min((port.generation for port in ports), default=0),
        exchange=BytesPerSecond(_exchange_bound(survey, names) if shares_pcie else 0.0),
        direct=BytesPerSecond(direct if direct < _nvlink_total(survey, members) else 0.0),
        chain=BytesPerSecond(chain if chain > bandwidth else 0.0),
        siblings=_siblings(survey, names, beside) if link == "pcie" else None,
    )


def usual_siblings(hardware: Hardware, group: Fabric, stride: int, island: int) -> Siblings | None:
    """Say what shared links of the usual node of `hardware` leave to the groups of one axis.

    group : of ranks that are `stride` apart on the GPUs of a node, in order. island : ranks of the
    whole job on one host.

    >>> cards = find_hardware("a100-pcie-80gb")  # two to a switch
    >>> pairs = cards.group(2, stride=2, island=4)
    >>> usual_siblings(cards, pairs, stride=2, island=4).passed / 31.5e9
    0.5
    """
    host_ranks = group.local
    if group.link != "pcie" or host_ranks == 1 or island <= host_ranks:
        return None
    return _usual_siblings(hardware, host_ranks, stride, island)


@lru_cache(maxsize=1024)
def _usual_siblings(
    hardware: Hardware, host_ranks: int, stride: int, island: int
) -> Siblings | None:
    survey = survey_of(machine_of(hardware))
    groups = [
        [f"GPU{block_start + offset + place * stride}" for place in range(host_ranks)]
        for block_start in range(0, island - host_ranks * stride + 1, host_ranks * stride)
        for offset in range(stride)
    ]  # those that lie on two hosts are left out
    return _tightest_siblings(
        _siblings(survey, group, [neighbour for neighbour in groups if neighbour != group])
        for group in groups
    )


def _siblings(
    survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]
) -> Siblings | None:
    """Say what links that groups of one host share leave to the first of them."""
    neighbours = [neighbour for neighbour in beside if len(neighbour) > 1]
    if len(names) < 2 or not neighbours:
        return None
    passed, exchanged = rates_beside(survey, names, neighbours)
    staged = any(pair <= set(names) for pair in survey.refused)
    copiers_per_cpu = Counter(survey.cpus[name] for group in (names, *neighbours) for name in group)
    staging = max(copiers_per_cpu[survey.cpus[name]] for name in names) if staged else 0
    siblings = Siblings(passed=passed, exchanged=exchanged, staging=staging)
    return None if siblings == Siblings(passed=_UNLIMITED, exchanged=_UNLIMITED) else siblings


def _tightest_siblings(siblings: Iterable[Siblings | None]) -> Siblings | None:
    """Take the least that is left anywhere."""
    bounds = [bound for bound in siblings if bound is not None]
    if not bounds:
        return None
    return Siblings(
        passed=min(bound.passed for bound in bounds),
        exchanged=min(bound.exchanged for bound in bounds),
        staging=max(bound.staging for bound in bounds),
    )


def _nvlink_total(survey: Survey, members: Sequence[Gpu]) -> float:
    """Bytes per second of all NVLinks that each GPU has: those that are seen, or its kind's."""
    return min(
        max(
            survey.nvlink[gpu.name],
            find_hardware(gpu.hardware).link_bandwidth.value if gpu.hardware else 0.0,
        )
        for gpu in members
    )


def _exchange_bound(survey: Survey, names: Sequence[str]) -> float:
    """Give what links leave when each sends to each, or what hosts of such GPUs are known to."""
    rate = exchange_rate(survey, names)
    if any(pair <= set(names) for pair in survey.refused):
        return rate  # staged copies share the memory of the host, which has a rate of its own
    kinds = {gpu.hardware for gpu in survey.machine.gpus if gpu.name in names} - {None}
    cross_sockets = len({survey.cpus[name] for name in names}) > 1
    usual_rates = [
        find_hardware(str(kind)).exchange_rate(len(names), across=cross_sockets) for kind in kinds
    ]
    return min([rate, *filter(None, usual_rates)])


def _group_link(survey: Survey, names: Sequence[str]) -> tuple[LinkKind, float, float]:
    """Name the links of a group, and give what one GPU passes on in a ring and down a chain."""
    pairs = survey.pairs
    if len(names) == 1:
        return *_single_gpu_link(survey, names[0]), 0.0
    inner_pairs = [pairs.get(ends) for ends in combinations(names, 2)]
    if all(pair is not None and pair.kind == "NVSWITCH" for pair in inner_pairs):
        given_rates = [
            nominal_bandwidth(pair) for pair in inner_pairs if pair is not None and pair.is_given
        ]
        return "nvswitch", min(given_rates or (survey.nvlink[name] for name in names)), 0.0
    neighbours = {a: {b for b in names if b != a and is_nvlink(pairs.get((a, b)))} for a in names}
    if has_nvlink_ring(neighbours, names):
        rates = [sum(nominal_bandwidth(pairs[a, b]) for b in neighbours[a]) for a in names]
        return "nvlink", min(rates), 0.0
    rings = best_rings(survey, names)
    return "pcie", rings[0].rate, max(chain_rate(survey, ring.order) for ring in rings)


def _single_gpu_link(survey: Survey, name: str) -> tuple[LinkKind, float]:
    """Describe a group of one by the links its GPU has."""
    machine, nvlink_rate = survey.machine, survey.nvlink[name]
    if nvlink_rate:
        switched = any(node.kind == "nvswitch" for node in machine.nodes) or any(
            a == name and pair.kind == "NVSWITCH" for (a, _), pair in survey.pairs.items()
        )
        return ("nvswitch" if switched else "nvlink"), nvlink_rate
    ports = [link.bandwidth.value for link in machine.links_of(name, "pcie")]
    return "pcie", max(ports, default=0.0)


def _network(
    machine: Machine, host_span: tuple[int, int], hosts: int, sharing: int, used_share: float
) -> Network:
    """Give what a node of `hosts` hosts can send and receive where `sharing` groups do at once.

    `host_span` is the first and the last host of the group: the NICs of each have their own pace,
    or what leaf switches leave of it where hosts hang on several. `used_share` of the GPUs is
    taken, and so much of the NICs, but one.
    """
    cluster, nics = machine.cluster, machine.usable_nics
    if cluster is None:
        raise TopologyError(f"{machine.name} has {machine.hosts} nodes and no network between them")
    nic_count = max(1.0, len(nics) * used_share)
    rates = [rate for nic in nics if (rate := port_rate(machine, nic))]
    nic = sum(rates) / len(nics) if rates else cluster.nic_bandwidth.value
    node_rate = nic * nic_count
    per_leaf = cluster.hosts_per_leaf
    if per_leaf and host_span[0] // per_leaf != host_span[1] // per_leaf:
        node_rate = min(node_rate, leaf_rate(cluster, len(nics)))
    return Network(
        kind=cluster.kind,
        bandwidth=BytesPerSecond(node_rate * hosts / sharing),
        nics=max(1, round(nic_count * hosts / sharing)),
        nic=BytesPerSecond(nic),
    )


def port_rate(machine: Machine, nic: Nic) -> float:
    """Bytes per second of a NIC: its own speed or that of its PCIe link."""
    speed = nic.bandwidth or (machine.cluster.nic_bandwidth if machine.cluster else None)
    links = [link.bandwidth.value for link in machine.links_of(nic.name)]
    return min([*links, *([speed.value] if speed else [])], default=0.0)


def leaf_rate(cluster: Cluster, nics: int) -> float:
    """Bytes per second out of the leaf switches of all rails beside some hosts."""
    return cluster.rails * cluster.uplink(cluster.hosts_per_leaf, nics).value
