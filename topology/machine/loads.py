"""What the messages of a group load: bytes over each link, in its direction."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import NamedTuple, TypeVar

from topology.machine.graph import is_nvlink
from topology.machine.groups import Seat, islands_of, leaf_rate, port_rate
from topology.machine.rings import best_ring, has_nvlink_ring
from topology.machine.routes import Hop, host_routes
from topology.machine.survey import Survey


class Link(NamedTuple):
    """A link in one direction.

    rate : B/s, nominal; 0 of a processor's memory, where that depends on who copies. far : it leads
    to other hosts. shared : by several of them.
    """

    a: str
    b: str
    rate: float
    far: bool = False
    shared: bool = False

    def __str__(self) -> str:
        return f"{self.a} to {self.b}"


Loads = defaultdict[Link, float]
"""Bytes over links."""
T = TypeVar("T")


def ring_loads(survey: Survey, ranks: Sequence[int], sent: float) -> Loads:
    """Load the links of a ring in which every rank passes `sent` bytes on.

    Inside a host it is the best ring there is; between hosts every GPU of the group puts an equal
    part of what leaves its host on the NICs beside it, and on the links there. An NVLink domain
    counts as one host.

    Parameters
    ----------
    ranks : numbers of GPUs, counting through one host, then the next.

    Examples
    --------
    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> from topology.machine.survey import survey_of
    >>> two = survey_of(machine_of(find_hardware("h100-sxm"), nodes=2))
    >>> loads = ring_loads(two, range(16), 8.0)
    >>> {str(link): sent for link, sent in loads.items() if link.a == "host1/GPU3"}
    {'host1/GPU3 to NVLink': 8.0, 'host1/GPU3 to host1/switch3': 1.0}
    """
    ways = _Ways(survey, ranks)
    for seats in ways.islands:
        ways.add(_around(ways.best(seats)), sent)
    for seats, following in _around(ways.islands):
        ways.add(product(seats, following), sent / len(seats) / len(following))
    return ways.loads


def shift_loads(
    survey: Survey, ranks: Sequence[int], sent: float, offset: int = 1, *, ends: bool = False
) -> Loads:
    """Load the links where every rank sends `sent` bytes to the rank `offset` further on.

    ends : the last ones send nothing; else they send to the first.
    """
    ways = _Ways(survey, ranks)
    seats = list(ways.seats.values())
    ways.add(zip(seats, [*seats[offset:], *([] if ends else seats[:offset])], strict=False), sent)
    return ways.loads


def exchange_loads(survey: Survey, ranks: Sequence[int], sent: float) -> Loads:
    """Load the links of an exchange in which every rank sends `sent` bytes, to all others alike.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> from topology.machine.survey import survey_of
    >>> pairs = survey_of(machine_of(find_hardware("a100-pcie-80gb")))
    >>> loads = exchange_loads(pairs, range(4), 3.0)
    >>> [sent for link, sent in loads.items() if (link.a, link.b) == ("switch0", "root0")]
    [4.0]
    """
    ways, part = _Ways(survey, ranks), sent / (len(ranks) - 1)
    for seats in ways.islands:
        ways.add(permutations(seats, 2), part)
        for seat in seats:
            for out in (True, False):
                ways.load(ways.nics(seat, out=out), part * (len(ranks) - len(seats)))
    members = Counter(ways.leaf(seat) for seat in ways.seats.values())
    for leaf, count in members.items():
        ways.load(dict.fromkeys(ways.spine(leaf), 1.0), part * count * (len(ranks) - count))
    return ways.loads


class _Ways:
    """The ways between the GPUs of a group, and their loads.

    islands : its GPUs, by host or NVLink domain.
    """

    def __init__(self, survey: Survey, ranks: Sequence[int]) -> None:
        self.survey, self.machine = survey, survey.machine
        self.islands = islands_of(self.machine, ranks)
        self.seats = {rank: self._seat(rank) for rank in ranks}
        self.island = {seat: place for place, seats in enumerate(self.islands) for seat in seats}
        self.loads: Loads = defaultdict(float)
        self.nvlink = [_by_nvlink(survey, tuple(name for _, name in one)) for one in self.islands]

    def _seat(self, rank: int) -> Seat:
        copy, gpu = self.machine.place(rank)
        return copy, gpu.name

    def best(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """Put the GPUs of an island in the order of its best ring."""
        if len(seats) < 3 or self.nvlink[self.island[seats[0]]]:
            return seats
        by_name = {name: (copy, name) for copy, name in seats}
        return [by_name[name] for name in _ring(self.survey, tuple(by_name))]

    def add(self, pairs: Iterable[tuple[Seat, Seat]], sent: float) -> None:
        """Load the ways between some pairs of GPUs with `sent` bytes each."""
        for a, b in pairs:
            self.load(self._way(a, b), sent)

    def load(self, links: Mapping[Link, float], sent: float) -> None:
        """Load links with their parts of `sent` bytes."""
        for link, share in links.items() if sent else ():
            self.loads[link] += sent * share

    def _way(self, a: Seat, b: Seat) -> Mapping[Link, float]:
        if self.island[a] == self.island[b]:
            return dict.fromkeys(self._inside(a, b), 1.0)
        one, other = self.leaf(a), self.leaf(b)
        spine = (self.spine(one)[0], self.spine(other)[1]) if one != other else ()
        return {**self.nics(a, out=True), **dict.fromkeys(spine, 1.0), **self.nics(b, out=False)}

    def _inside(self, a: Seat, b: Seat) -> Iterator[Link]:
        (copy, start), (there, end) = a, b
        name, known = self.machine.full_name, self.survey
        if self.nvlink[self.island[a]] or is_nvlink(known.pairs.get((start, end))):
            yield Link(name(copy, start), "NVLink", known.nvlink[start])
            yield Link("NVLink", name(there, end), known.nvlink[end])
            return
        for one, other in known.path(start, end):
            yield Link(name(copy, one), name(copy, other), known.capacity[one, other])
        if frozenset((start, end)) in known.refused:
            yield Link(name(copy, known.cpus[start] or "host"), "memory", 0.0)

    def nics(self, seat: Seat, *, out: bool) -> Mapping[Link, float]:
        """Give the links from a GPU to the network, and the part of its bytes that each carries."""
        copy, name = seat
        ports, full = _ports(self.survey, name), self.machine.full_name
        parts: Loads = defaultdict(float)
        for port, rate in ports.items():
            ends = (full(copy, port), "network")
            parts[Link(*(ends if out else ends[::-1]), rate, far=True)] += 1 / len(ports)
            for (a, b), width in _hops(self.survey, name, port):
                ends = full(copy, a), full(copy, b)
                parts[Link(*(ends if out else ends[::-1]), width)] += 1 / len(ports)
        return parts

    def leaf(self, seat: Seat) -> int:
        """Give the number of the leaf switches that a host hangs on."""
        cluster = self.machine.cluster
        return seat[0] // cluster.hosts_per_leaf if cluster and cluster.hosts_per_leaf else 0

    def spine(self, leaf: int) -> tuple[Link, ...]:
        """Give the links from leaf switches up and down; none where there is one leaf."""
        cluster = self.machine.cluster
        if cluster is None or not cluster.hosts_per_leaf:
            return ()
        rate = leaf_rate(cluster, len(self.machine.usable_nics))
        name = f"leaf{leaf}"
        ends = ((name, "spine"), ("spine", name))
        return tuple(Link(*one, rate, far=True, shared=True) for one in ends)


@lru_cache(maxsize=4096)
def _ring(survey: Survey, names: tuple[str, ...]) -> tuple[str, ...]:
    return best_ring(survey, names).order


@lru_cache(maxsize=4096)
def _by_nvlink(survey: Survey, names: tuple[str, ...]) -> bool:
    """Tell whether NVLink joins GPUs of one name, or of several."""
    local = sorted(set(names))
    if len(local) == 1:
        return survey.nvlink[local[0]] > 0
    near = {a: {b for b in local if b != a and is_nvlink(survey.pairs.get((a, b)))} for a in local}
    return has_nvlink_ring(near, local) and all(survey.nvlink[name] for name in local)


@lru_cache(maxsize=4096)
def _ports(survey: Survey, name: str) -> Mapping[str, float]:
    """Give the rates of the NICs that a GPU uses: an equal part of those of its host."""
    machine = survey.machine
    host = next(gpu.host for gpu in machine.gpus if gpu.name == name)
    gpus = [gpu.name for gpu in machine.gpus if gpu.host == host]
    nics = [nic for nic in machine.usable_nics if nic.host == host]
    if not nics:
        return {"NIC": machine.cluster.nic_bandwidth.value} if machine.cluster else {}
    place, count = gpus.index(name), len(nics)
    first, last = (at * count // len(gpus) for at in (place, place + 1))
    return {nic.name: port_rate(machine, nic) for nic in nics[first : max(last, first + 1)]}


@lru_cache(maxsize=4096)
def _hops(survey: Survey, gpu: str, port: str) -> tuple[tuple[Hop, float], ...]:
    """Give the links over PCIe from a GPU to a NIC, and what each carries."""
    path = host_routes(survey.graph, gpu, [port]).get(port, ())
    return tuple((hop, survey.graph.edge(*hop).bandwidth.value) for hop in pairwise(path))


def _around(order: Sequence[T]) -> Iterator[tuple[T, T]]:
    return pairwise((*order, order[0])) if len(order) > 1 else iter(())
