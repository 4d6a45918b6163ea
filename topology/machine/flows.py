"""How flows that run at once share links, and how much a machine can move from half to half."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.machine.expand import to_networkx, uplink, usable_nics
from topology.machine.graph import Machine, full_name
from topology.machine.routes import Adjacency, Hop, hops

if TYPE_CHECKING:
    import networkx as nx  # type: ignore[import-untyped]

_EXACT: Final = 10  # GPUs up to which every split into halves is tried
_HOSTS: Final = 4  # hosts up to which the network is written out


def max_min_rates(
    capacity: Mapping[Hop, float], flows: Sequence[Sequence[Hop]]
) -> tuple[float, ...]:
    r"""Share links among flows so that none can gain but from a slower one (progressive filling).

    .. math:: r_f = \min_{l \in f} (c_l - \sum_{done} r) / n_l

    where :math:`c_l` is the capacity of link :math:`l` and :math:`n_l` counts the flows that still
    grow on it; the link with the smallest share fills first and fixes the flows that cross it [1]_.

    Parameters
    ----------
    capacity : bytes per second of each link and direction.
    flows : the links each flow crosses; a link that is crossed twice counts twice.

    Returns
    -------
    rates : bytes per second of each flow; infinite for a flow that crosses nothing.

    References
    ----------
    .. [1] Bertsekas and Gallager, Data Networks, second edition, section 6.5.2.

    Examples
    --------
    Two flows meet on a link of 10; one of them also crosses a link of 2.

    >>> ab, bc = ("a", "b"), ("b", "c")
    >>> max_min_rates({ab: 10.0, bc: 2.0}, [[ab], [ab, bc]])
    (8.0, 2.0)
    """
    rates = [float("inf")] * len(flows)
    crossing = _crossings(flows)
    left = {link: capacity[link] for link in crossing}
    growing = {index for index, flow in enumerate(flows) if flow}
    while growing:
        link = min(crossing, key=lambda name: left[name] / sum(crossing[name].values()))
        share = left[link] / sum(crossing[link].values())
        for index in tuple(crossing[link]):
            rates[index] = share
            growing.discard(index)
            for other in set(flows[index]):
                left[other] = max(0.0, left[other] - share * crossing[other].pop(index))
        crossing = {name: users for name, users in crossing.items() if users}
    return tuple(rates)


def _crossings(flows: Sequence[Sequence[Hop]]) -> dict[Hop, dict[int, int]]:
    crossing: dict[Hop, dict[int, int]] = {}
    for index, flow in enumerate(flows):
        for link in flow:
            users = crossing.setdefault(link, {})
            users[index] = users.get(index, 0) + 1
    return crossing


def flow_rates(graph: Adjacency, paths: Sequence[Sequence[str]]) -> tuple[float, ...]:
    """Bytes per second of copies that run at once along `paths`."""
    flows = [hops(path) for path in paths]
    capacity = {hop: graph.edge(*hop).bandwidth.value for flow in flows for hop in flow}
    return max_min_rates(capacity, flows)


def bisection_bandwidth(machine: Machine) -> float:
    """Bytes per second each way between the two halves of the GPUs that are worst joined.

    Exact up to ten GPUs (minimum cut over every split); beyond, over splits of neighbours, and
    for a cluster over halves of the hosts. Where NVLink joins all GPUs, copies between them take
    no other way, and PCIe and the link between sockets add nothing. One GPU has no halves: 0.
    """
    if machine.gpu_count < 2:
        return 0.0
    if machine.hosts > _HOSTS:
        return _cluster_bisection(machine)
    gpus = [
        full_name(machine, copy, gpu.name) for copy in range(machine.copies) for gpu in machine.gpus
    ]
    graph = _taken(to_networkx(machine), gpus)
    return min(
        _cut(graph, half, [gpu for gpu in gpus if gpu not in half]) for half in _halves(gpus)
    )


def _taken(graph: "nx.Graph[str]", gpus: Sequence[str]) -> "nx.Graph[str]":
    """Keep the links that copies between GPUs take: NVLink alone where it joins them all."""
    import networkx as nx  # noqa: PLC0415  # slow to import

    joined = graph.edge_subgraph(
        (a, b) for a, b, kind in graph.edges(data="kind") if kind == "nvlink"
    )
    whole = gpus[0] in joined and set(gpus) <= nx.node_connected_component(joined, gpus[0])
    return joined if whole else graph


def _halves(gpus: list[str]) -> Iterator[list[str]]:
    size = len(gpus) // 2
    if len(gpus) <= _EXACT:
        yield from ([gpus[0], *rest] for rest in combinations(gpus[1:], size - 1))
        if len(gpus) % 2:
            yield from (list(half) for half in combinations(gpus[1:], size))
        return
    for stride in (1, 2, 4):
        order = [gpu for start in range(stride) for gpu in gpus[start::stride]]
        yield from (sorted(order[start : start + size]) for start in range(0, len(gpus), size or 1))


def _cut(graph: "nx.Graph[str]", first: Sequence[str], second: Sequence[str]) -> float:
    """Capacity of the smallest cut between two groups."""
    import networkx as nx  # noqa: PLC0415  # slow to import

    joined = nx.Graph(graph)
    for end, group in (("source", first), ("sink", second)):
        joined.add_edges_from((end, gpu) for gpu in group)
    return float(nx.minimum_cut_value(joined, "source", "sink", capacity="bandwidth"))


def _cluster_bisection(machine: Machine) -> float:
    cluster = machine.cluster
    if cluster is None:
        return 0.0
    nics = max(1, len(usable_nics(machine)))
    half = machine.hosts // 2
    if cluster.domain_hosts >= machine.copies:
        return half * sum(e.bandwidth.value for e in machine.edges if e.kind == "nvlink")
    per_leaf = cluster.hosts_per_leaf or machine.copies
    ports = half * nics * cluster.nic_bandwidth.value
    if per_leaf >= machine.copies:
        return ports
    leaves = max(1, (machine.copies // per_leaf) // 2)
    return min(ports, leaves * cluster.rails * uplink(cluster, per_leaf, nics).value)
