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

_ORDER: Final[tuple[Architecture, ...]] = (
    "volta", "turing", "ampere", "ada", "hopper", "blackwell",
)  # fmt: skip

_ALL: Final = BytesPerSecond(float("inf"))

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
    group = _described(survey, ranks, beside)
    if not machine.reached or group.nodes > 1:
        return group
    return replace(group, paces=tuple(_pace(survey, one) for one in machine.reached))


@lru_cache(maxsize=256)
def _pace(survey: Survey, reached: Reached) -> Pace:
    """Tie a bus bandwidth that was measured on a machine to the links that it is of."""
    names = [gpu.name for gpu in survey.machine.gpus[: reached.gpus]]
    return Pace(op=reached.op, fabric=_local(survey, names, ()), bus=reached.bus)


def _described(survey: Survey, ranks: Sequence[int], beside: Sequence[Sequence[int]]) -> Fabric:
    """Describe the links of a group, whatever was measured."""
    machine = survey.machine
    if not beside and isinstance(ranks, range) and (whole := _of_whole_hosts(survey, ranks)):
        return whole
    if not ranks or len(set(ranks)) != len(ranks):
        raise TopologyError(f"a group needs different GPUs, got {list(ranks)[:16]}")
    islands = islands_of(machine, ranks)
    sizes = sorted(set(map(len, islands)))
    if len(sizes) > 1:
        raise TopologyError(
            f"the group has {sizes[0]} to {sizes[-1]} GPUs on its nodes: expected the same on each"
        )
    others = [_by_copy(machine, group) for group in beside]
    shapes = {
        (names, tuple(other[copy] for other in others if copy in other))
        for copy, names in _by_copy(machine, ranks).items()
    }
    local = [_local(survey, names, rest) for names, rest in sorted(shapes)]
    places = {(copy, gpu.host) for copy, gpu in map(machine.place, ranks)}
    hosts = max(1, len(places) // len(islands))
    network = None
    if len(islands) > 1:
        copies = {copy for copy, _ in places}
        across = [set(other) for other in others if len(other) > 1]
        sharing = 1 + max(sum(copy in other for other in across) for copy in copies)
        taken = _by_copy(machine, sorted({*ranks, *chain.from_iterable(beside)}))
        part = max(len(taken[copy]) for copy in copies) / len(machine.gpus)
        network = _network(machine, (min(copies), max(copies)), hosts, sharing, part)
    return _fabric(local, (len(ranks), len(islands), hosts), network)


def _fabric(
    parts: Sequence[Fabric], counts: tuple[int, int, int], network: Network | None
) -> Fabric:
    """Put the parts of a group together; `counts` are its ranks, its islands and their hosts."""
    ranks, islands, hosts = counts
    worst = min(parts, key=lambda part: part.bandwidth)
    architecture = min((part.architecture for part in parts), key=_ORDER.index)
    return replace(
        worst,
        architecture=architecture,
        ranks=ranks,
        nodes=islands,
        multicast=worst.link == "nvswitch"
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
        siblings=_least(part.siblings for part in parts),
    )


def _of_whole_hosts(survey: Survey, ranks: range) -> Fabric | None:
    """Describe all GPUs of hosts that are alike, and of their NVLink domains, by one host."""
    machine = survey.machine
    local, domain, count = len(machine.gpus), machine.domain_hosts, len(ranks)
    whole = local * (domain if count > local * domain else 1)
    alike = machine.described_hosts == 1 and ranks.step == 1 and count > 0
    if not alike or ranks.start % whole or count % whole or ranks.stop > machine.gpu_count:
        return None
    copies, first = count // local, ranks.start // local
    hosts = min(copies, domain)
    islands = copies // hosts
    network = _network(machine, (first, first + copies - 1), hosts, 1, 1) if islands > 1 else None
    part = _local(survey, [gpu.name for gpu in machine.gpus], ())
    return _fabric([part], (count, islands, hosts), network)


def islands_of(machine: Machine, ranks: Sequence[int]) -> list[list[Seat]]:
    """Split a group by host, or by NVLink domain where that spans hosts."""
    switches = _switches(machine)
    islands: dict[tuple[int, int | str], list[Seat]] = {}
    for rank in ranks:
        copy, gpu = machine.place(rank)
        inside = switches.get(gpu.name, gpu.host)
        islands.setdefault((copy // machine.domain_hosts, inside), []).append((copy, gpu.name))
    return list(islands.values())


def _switches(machine: Machine) -> dict[str, str]:
    """Name the NVSwitches each GPU hangs on, where the description has several hosts."""
    if machine.described_hosts == 1:
        return {}
    switches = {node.name for node in machine.nodes if node.kind == "nvswitch"}
    return {edge.a: edge.b for edge in machine.edges if edge.b in switches}


def _by_copy(machine: Machine, ranks: Sequence[int]) -> dict[int, tuple[str, ...]]:
    copies = gathered((copy, gpu.name) for copy, gpu in map(machine.place, ranks))
    return {copy: tuple(names) for copy, names in copies.items()}


def _local(survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]) -> Fabric:
    """Describe the links between the members of a group on one host."""
    machine, inside = survey.machine, set(names)
    members = [gpu for gpu in machine.gpus if gpu.name in inside]
    ports = [e for e in machine.edges if e.kind == "pcie" and (e.a in inside or e.b in inside)]
    link, bandwidth, chain = _link(survey, names)
    direct = direct_rate(survey, names) if link == "nvlink" and len(names) > 1 else 0.0
    alone = len(names) == 1 and not all(gpu.peer_to_peer for gpu in members)
    shared = link == "pcie" and len(names) > 2
    return Fabric(
        architecture=min((gpu.architecture for gpu in members), key=_ORDER.index),
        ranks=len(names),
        link=link,
        bandwidth=BytesPerSecond(bandwidth),
        peer_to_peer=link != "pcie" or not (alone or any(p <= inside for p in survey.refused)),
        crosses_sockets=len({survey.cpus[name] for name in names}) > 1,
        pcie_generation=min((port.generation for port in ports), default=0),
        exchange=BytesPerSecond(_exchange(survey, names) if shared else 0.0),
        direct=BytesPerSecond(direct if direct < _links_of(survey, members) else 0.0),
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
    local = group.local
    if group.link != "pcie" or local == 1 or island <= local:
        return None
    return _usual_siblings(hardware, local, stride, island)


@lru_cache(maxsize=1024)
def _usual_siblings(hardware: Hardware, local: int, stride: int, island: int) -> Siblings | None:
    survey = survey_of(machine_of(hardware))
    groups = [
        [f"GPU{first + offset + place * stride}" for place in range(local)]
        for first in range(0, island - local * stride + 1, local * stride)
        for offset in range(stride)
    ]  # those that lie on two hosts are left out
    return _least(
        _siblings(survey, one, [other for other in groups if other != one]) for one in groups
    )


def _siblings(
    survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]
) -> Siblings | None:
    """Say what links that groups of one host share leave to the first of them."""
    others = [other for other in beside if len(other) > 1]
    if len(names) < 2 or not others:
        return None
    passed, exchanged = rates_beside(survey, names, others)
    staged = any(pair <= set(names) for pair in survey.refused)
    copying = Counter(survey.cpus[name] for group in (names, *others) for name in group)
    staging = max(copying[survey.cpus[name]] for name in names) if staged else 0
    found = Siblings(passed=passed, exchanged=exchanged, staging=staging)
    return None if found == Siblings(passed=_ALL, exchanged=_ALL) else found


def _least(siblings: Iterable[Siblings | None]) -> Siblings | None:
    """Take the least that is left anywhere."""
    known = [one for one in siblings if one is not None]
    if not known:
        return None
    return Siblings(
        passed=min(one.passed for one in known),
        exchanged=min(one.exchanged for one in known),
        staging=max(one.staging for one in known),
    )


def _links_of(survey: Survey, members: Sequence[Gpu]) -> float:
    """Bytes per second of all NVLinks that each GPU has: those that are seen, or its kind's."""
    return min(
        max(
            survey.nvlink[gpu.name],
            find_hardware(gpu.hardware).link_bandwidth.value if gpu.hardware else 0.0,
        )
        for gpu in members
    )


def _exchange(survey: Survey, names: Sequence[str]) -> float:
    """Give what links leave when each sends to each, or what hosts of such GPUs are known to."""
    rate = exchange_rate(survey, names)
    if any(pair <= set(names) for pair in survey.refused):
        return rate  # staged copies share the memory of the host, which has a rate of its own
    kinds = {gpu.hardware for gpu in survey.machine.gpus if gpu.name in names} - {None}
    across = len({survey.cpus[name] for name in names}) > 1
    usual = [find_hardware(str(kind)).exchange_rate(len(names), across=across) for kind in kinds]
    return min([rate, *filter(None, usual)])


def _link(survey: Survey, names: Sequence[str]) -> tuple[LinkKind, float, float]:
    """Name the links of a group, and give what one GPU passes on in a ring and down a chain."""
    pairs = survey.pairs
    if len(names) == 1:
        return *_alone(survey, names[0]), 0.0
    inside = [pairs.get(ends) for ends in combinations(names, 2)]
    if all(pair is not None and pair.kind == "NVSWITCH" for pair in inside):
        given = [nominal_bandwidth(pair) for pair in inside if pair is not None and pair.is_given]
        return "nvswitch", min(given or (survey.nvlink[name] for name in names)), 0.0
    neighbours = {a: {b for b in names if b != a and is_nvlink(pairs.get((a, b)))} for a in names}
    if has_nvlink_ring(neighbours, names):
        rates = [sum(nominal_bandwidth(pairs[a, b]) for b in neighbours[a]) for a in names]
        return "nvlink", min(rates), 0.0
    rings = best_rings(survey, names)
    return "pcie", rings[0].rate, max(chain_rate(survey, ring.order) for ring in rings)


def _alone(survey: Survey, name: str) -> tuple[LinkKind, float]:
    """Describe a group of one by the links its GPU has."""
    machine, total = survey.machine, survey.nvlink[name]
    if total:
        switched = any(node.kind == "nvswitch" for node in machine.nodes) or any(
            a == name and pair.kind == "NVSWITCH" for (a, _), pair in survey.pairs.items()
        )
        return ("nvswitch" if switched else "nvlink"), total
    ports = [link.bandwidth.value for link in machine.links_of(name, "pcie")]
    return "pcie", max(ports, default=0.0)


def _network(
    machine: Machine, span: tuple[int, int], hosts: int, sharing: int, part: float
) -> Network:
    """Give what a node of `hosts` hosts can send and receive where `sharing` groups do at once.

    `span` is the first and the last host of the group: the NICs of each have their own pace, or
    what leaf switches leave of it where hosts hang on several. `part` of the GPUs is taken, and so
    much of the NICs, but one.
    """
    cluster, nics = machine.cluster, machine.usable_nics
    if cluster is None:
        raise TopologyError(f"{machine.name} has {machine.hosts} nodes and no network between them")
    count = max(1.0, len(nics) * part)
    rates = [rate for nic in nics if (rate := port_rate(machine, nic))]
    nic = sum(rates) / len(nics) if rates else cluster.nic_bandwidth.value
    node = nic * count
    per_leaf = cluster.hosts_per_leaf
    if per_leaf and span[0] // per_leaf != span[1] // per_leaf:
        node = min(node, leaf_rate(cluster, len(nics)))
    return Network(
        kind=cluster.kind,
        bandwidth=BytesPerSecond(node * hosts / sharing),
        nics=max(1, round(count * hosts / sharing)),
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
