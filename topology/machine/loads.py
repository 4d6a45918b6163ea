"""What the messages of a group load: bytes over each link, in its direction."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import Final, NamedTuple, TypeVar

from topology.catalogue.moves import NOBODY, Moves
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


MEMORY: Final = "memory"
"""The end of links to the memory of a processor."""
Loads = defaultdict[Link, float]
"""Bytes over links."""
T = TypeVar("T")


def loads_of(survey: Survey, ranks: Sequence[int], moves: Moves) -> Loads:  # noqa: PLR0911  # one a route
    """Load the links that a message passes with what it brings there.

    ranks : numbers of GPUs, counting through one host, then the next.
    """
    sent, root = moves.sent, moves.root
    match moves.route:
        case "ring":
            return ring_loads(survey, ranks, sent, root, inward=moves.inward)
        case "tree" | "switched_tree":
            return tree_loads(survey, ranks, sent, switched=moves.route == "switched_tree")
        case "switch":
            return switch_loads(survey, ranks, sent, moves.received)
        case "doubling":
            return doubling_loads(survey, ranks, sent)
        case "exchange":
            if root == NOBODY:
                return exchange_loads(survey, ranks, sent)
            return rooted_loads(survey, ranks, sent, root, inward=moves.inward)
        case "stages":
            return stage_loads(survey, ranks, sent, moves.far)
        case "shift":
            return shift_loads(survey, ranks, sent, moves.offset, ends=moves.ends)


def ring_loads(
    survey: Survey, ranks: Sequence[int], sent: float, root: int = NOBODY, *, inward: bool = False
) -> Loads:
    """Load the links of a ring in which every rank passes `sent` bytes on.

    Inside a host it is the best ring there is; between hosts every GPU of the group puts an equal
    part of what leaves its host on the NICs beside it, and on the links there: rings on several
    channels leave a host by another GPU each. An NVLink domain counts as one host.

    Parameters
    ----------
    root : where it begins, or ends if it goes `inward`.

    Examples
    --------
    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> from topology.machine.survey import survey_of
    >>> two = survey_of(machine_of(find_hardware("h100-sxm"), nodes=2))
    >>> loads = ring_loads(two, range(16), 8.0)
    >>> {str(link): sent for link, sent in loads.items() if link.a == "host1/GPU3"}
    {'host1/GPU3 to NVLink': 7.0, 'host1/GPU3 to host1/switch3': 1.0}
    """
    paths = _GroupPaths(survey, ranks)
    start = None if root == NOBODY else paths.seats[ranks[root]]
    single_island = len(paths.islands) == 1
    for seats in paths.islands:
        ring_pairs = list(_ring_pairs(paths.best(seats)))
        if single_island and start is not None:
            ring_pairs = [pair for pair in ring_pairs if pair[not inward] != start]
        paths.add(ring_pairs, sent if single_island else sent * _chain_share(seats))
    for hosts in _ring_pairs(paths.islands):
        if start is None or start not in hosts[not inward]:
            paths.between(*hosts, sent)
    return paths.loads


def tree_loads(
    survey: Survey, ranks: Sequence[int], sent: float, *, switched: bool = False
) -> Loads:
    """Load the links of an all-reduce of `sent` bytes up two binary trees of hosts, and down again.

    Each tree has half of them; inside a host all of them go along a chain. Every channel has a
    chain that begins at another GPU, so that the GPUs of a host share what leaves it alike.

    Parameters
    ----------
    switched : inside a host they go through a switch that adds and replicates.

    References
    ----------
    NCCL src/graph/trees.cc: the second tree is the mirror of the first where hosts are even in
    number, else it is that tree one host further on.

    Examples
    --------
    >>> [sorted(tree) for tree in two_trees(4)]
    [[(1, 2), (2, 0), (3, 2)], [(0, 1), (1, 3), (2, 1)]]
    """
    paths = _GroupPaths(survey, ranks)
    for seats in paths.islands:
        if switched:
            paths.switched(seats, sent, sent)
        else:
            for pair in _ring_pairs(paths.best(seats)):
                paths.add((pair, pair[::-1]), sent * _chain_share(seats))
    for tree in two_trees(len(paths.islands)):
        for below, above in tree:
            paths.between(paths.islands[below], paths.islands[above], sent / 2)
            paths.between(paths.islands[above], paths.islands[below], sent / 2)
    return paths.loads


def two_trees(count: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Give the edges of both trees of so many hosts: each but the root, and the one above it."""
    edges = []
    for host in range(1, count):
        lowest_bit = host & -host
        above = (host ^ lowest_bit) | (lowest_bit << 1)
        edges.append((host, above if above < count else host ^ lowest_bit))
    if count % 2 == 0:
        return edges, [(count - 1 - a, count - 1 - b) for a, b in edges]
    return edges, [((a + 1) % count, (b + 1) % count) for a, b in edges]


def switch_loads(survey: Survey, ranks: Sequence[int], sent: float, received: float) -> Loads:
    """Load the links of GPUs to a switch that adds and replicates, up and down.

    What leaves a host, whose GPUs share it, is added and replicated by switches of the network.
    """
    paths = _GroupPaths(survey, ranks)
    for seats in paths.islands:
        paths.switched(seats, sent, received)
        if len(paths.islands) > 1:
            for seat in seats:
                paths.load(paths.nics(seat, out=True), sent / len(seats))
                paths.load(paths.nics(seat, out=False), received / len(seats))
    leaves = {paths.leaf(seat) for seat in paths.seats.values()}
    for leaf in leaves if len(leaves) > 1 else ():
        for link, loaded_bytes in zip(paths.spine(leaf), (sent, received), strict=False):
            paths.load({link: 1.0}, loaded_bytes)
    return paths.loads


def doubling_loads(survey: Survey, ranks: Sequence[int], sent: float) -> Loads:
    """Load the links of binomial trees from every rank to all others, `sent` bytes from each rank.

    A tree of n ranks has an edge over a distance of 2^k for every odd multiple of that below n.
    """
    paths, count, distance = _GroupPaths(survey, ranks), len(ranks), 1
    seats = list(paths.seats.values())
    while distance < count:
        edges = len(range(distance, count, 2 * distance))
        partners = [*seats[distance:], *seats[:distance]]
        paths.add(zip(seats, partners, strict=True), sent * edges / (count - 1))
        distance *= 2
    return paths.loads


def shift_loads(
    survey: Survey, ranks: Sequence[int], sent: float, offset: int = 1, *, ends: bool = False
) -> Loads:
    """Load the links where every rank sends `sent` bytes to the rank `offset` further on.

    ends : the last ones send nothing; else they send to the first.
    """
    paths = _GroupPaths(survey, ranks)
    seats = list(paths.seats.values())
    paths.add(zip(seats, [*seats[offset:], *([] if ends else seats[:offset])], strict=False), sent)
    return paths.loads


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
    paths, sent_each = _GroupPaths(survey, ranks), sent / (len(ranks) - 1)
    paths.exchange(sent_each, sent_each)
    return paths.loads


def stage_loads(survey: Survey, ranks: Sequence[int], sent: float, far: float) -> Loads:
    """Load the links where every rank sends `far` bytes to other hosts and `sent` inside its own.

    Of what comes to a host, `sent` has what is passed on there.
    """
    paths = _GroupPaths(survey, ranks)
    island_ranks = len(ranks) / len(paths.islands)
    near_bytes = sent / (island_ranks - 1) if island_ranks > 1 else 0.0
    paths.exchange(near_bytes, far / (len(ranks) - island_ranks) if far else 0.0)
    return paths.loads


def rooted_loads(
    survey: Survey, ranks: Sequence[int], sent: float, root: int, *, inward: bool
) -> Loads:
    """Load the links where one rank sends `sent` bytes, to all others alike, or gets them."""
    paths = _GroupPaths(survey, ranks)
    start = paths.seats[ranks[root]]
    peers = [seat for seat in paths.seats.values() if seat != start]
    pairs = [(seat, start) if inward else (start, seat) for seat in peers]
    paths.add(pairs, sent / len(peers))
    return paths.loads


class _GroupPaths:
    """The ways between the GPUs of a group, and their loads.

    islands : its GPUs, by host or NVLink domain.
    """

    def __init__(self, survey: Survey, ranks: Sequence[int]) -> None:
        self.survey, self.machine = survey, survey.machine
        self.islands = islands_of(self.machine, ranks)
        self.seats = {rank: self._seat(rank) for rank in ranks}
        self.island = {seat: place for place, seats in enumerate(self.islands) for seat in seats}
        self.loads: Loads = defaultdict(float)
        self.nvlink = [
            _joined_by_nvlink(survey, tuple(name for _, name in island)) for island in self.islands
        ]

    def _seat(self, rank: int) -> Seat:
        copy, gpu = self.machine.place(rank)
        return copy, gpu.name

    def best(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """Put the GPUs of an island in the order of its best ring."""
        if len(seats) < 3 or self.nvlink[self.island[seats[0]]]:
            return seats
        by_name = {name: (copy, name) for copy, name in seats}
        return [by_name[name] for name in _best_order(self.survey, tuple(by_name))]

    def add(self, pairs: Iterable[tuple[Seat, Seat]], sent: float) -> None:
        """Load the ways between some pairs of GPUs with `sent` bytes each."""
        for a, b in pairs:
            self.load(self._path_links(a, b), sent)

    def load(self, links: Mapping[Link, float], sent: float) -> None:
        """Load links with their parts of `sent` bytes."""
        for link, share in links.items() if sent else ():
            self.loads[link] += sent * share

    def between(self, hosts: Sequence[Seat], others: Sequence[Seat], sent: float) -> None:
        """Load the ways from a host to another with `sent` bytes, alike from and to its GPUs."""
        self.add(product(hosts, others), sent / len(hosts) / len(others))

    def switched(self, seats: Sequence[Seat], sent: float, received: float) -> None:
        """Load the NVLinks of GPUs up and down, where there are several."""
        for seat in seats if len(seats) > 1 else ():
            self.load({self._nvlink(seat, out=True): 1.0}, sent)
            self.load({self._nvlink(seat, out=False): 1.0}, received)

    def exchange(self, near: float, far: float) -> None:
        """Load all ways between two GPUs, on one host with `near` bytes, else with `far`."""
        ranks = len(self.seats)
        for seats in self.islands:
            self.add(permutations(seats, 2), near)
            for seat, out in product(seats, (True, False)):
                self.load(self.nics(seat, out=out), far * (ranks - len(seats)))
        members = Counter(self.leaf(seat) for seat in self.seats.values())
        for leaf, count in members.items():
            self.load(dict.fromkeys(self.spine(leaf), 1.0), far * count * (ranks - count))

    def _nvlink(self, seat: Seat, *, out: bool) -> Link:
        ends = self.machine.full_name(*seat), "NVLink"
        return Link(*(ends if out else ends[::-1]), self.survey.nvlink[seat[1]])

    def _path_links(self, a: Seat, b: Seat) -> Mapping[Link, float]:
        if self.island[a] == self.island[b]:
            return dict.fromkeys(self._host_links(a, b), 1.0)
        leaf_a, leaf_b = self.leaf(a), self.leaf(b)
        spine = (self.spine(leaf_a)[0], self.spine(leaf_b)[1]) if leaf_a != leaf_b else ()
        return {**self.nics(a, out=True), **dict.fromkeys(spine, 1.0), **self.nics(b, out=False)}

    def _host_links(self, a: Seat, b: Seat) -> Iterator[Link]:
        (copy, start), (_, end) = a, b
        full_name, survey = self.machine.full_name, self.survey
        if self.nvlink[self.island[a]] or is_nvlink(survey.pairs.get((start, end))):
            yield self._nvlink(a, out=True)
            yield self._nvlink(b, out=False)
            return
        for hop_start, hop_end in survey.path(start, end):
            yield Link(
                full_name(copy, hop_start),
                full_name(copy, hop_end),
                survey.capacity[hop_start, hop_end],
            )
        if frozenset((start, end)) in survey.refused:
            yield Link(full_name(copy, survey.cpus[start] or "host"), MEMORY, 0.0)

    def nics(self, seat: Seat, *, out: bool) -> Mapping[Link, float]:
        """Give the links from a GPU to the network, and the part of its bytes that each carries."""
        copy, name = seat
        ports, full_name = _ports(self.survey, name), self.machine.full_name
        shares: Loads = defaultdict(float)
        for port, rate in ports.items():
            ends = (full_name(copy, port), "network")
            shares[Link(*(ends if out else ends[::-1]), rate, far=True)] += 1 / len(ports)
            for (a, b), width in _hops(self.survey, name, port):
                ends = full_name(copy, a), full_name(copy, b)
                shares[Link(*(ends if out else ends[::-1]), width)] += 1 / len(ports)
        return shares

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
        return tuple(Link(*pair, rate, far=True, shared=True) for pair in ends)


@lru_cache(maxsize=4096)
def _best_order(survey: Survey, names: tuple[str, ...]) -> tuple[str, ...]:
    return best_ring(survey, names).order


@lru_cache(maxsize=4096)
def _joined_by_nvlink(survey: Survey, names: tuple[str, ...]) -> bool:
    """Tell whether NVLink joins GPUs of one name, or of several."""
    unique_names = sorted(set(names))
    if len(unique_names) == 1:
        return survey.nvlink[unique_names[0]] > 0
    neighbours = {
        a: {b for b in unique_names if b != a and is_nvlink(survey.pairs.get((a, b)))}
        for a in unique_names
    }
    return has_nvlink_ring(neighbours, unique_names) and all(
        survey.nvlink[name] for name in unique_names
    )


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
    first_nic, last_nic = (position * count // len(gpus) for position in (place, place + 1))
    return {
        nic.name: port_rate(machine, nic) for nic in nics[first_nic : max(last_nic, first_nic + 1)]
    }


@lru_cache(maxsize=4096)
def _hops(survey: Survey, gpu: str, port: str) -> tuple[tuple[Hop, float], ...]:
    """Give the links over PCIe from a GPU to a NIC, and what each carries."""
    path = host_routes(survey.graph, gpu, [port]).get(port, ())
    return tuple((hop, survey.graph.edge(*hop).bandwidth.value) for hop in pairwise(path))


def _chain_share(seats: Sequence[Seat]) -> float:
    """Give the part of the ways around some GPUs that is in use where every channel leaves one."""
    return 1 - 1 / len(seats)


def _ring_pairs(order: Sequence[T]) -> Iterator[tuple[T, T]]:
    return pairwise((*order, order[0])) if len(order) > 1 else iter(())
