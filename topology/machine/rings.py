"""Rings through the GPUs of one host: which order lets each GPU pass most to the next."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, permutations, product
from math import factorial, fsum, prod
from typing import Final

from topology.base import BytesPerSecond
from topology.base.values import dataclass
from topology.machine.graph import Pair, is_nvlink
from topology.machine.routes import Hop, components
from topology.machine.survey import Survey, nominal_bandwidth

_EXACT: Final = 8  # GPUs up to which every ring is tried
_WAYS: Final = 2000  # to pass NVLink islands whole, up to which all are compared
_SEARCHED: Final = 10  # GPUs up to which a ring over NVLink is looked for


@dataclass(frozen=True, slots=True)
class GpuRing:
    """An order of GPUs and the bytes per second each can pass to the next, all at once."""

    order: tuple[str, ...]
    rate: BytesPerSecond


def best_ring(survey: Survey, names: Sequence[str]) -> GpuRing:
    """Find the ring through GPUs of one host that lets each pass most to the next.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> from topology.machine.survey import survey_of
    >>> host = survey_of(machine_of(find_hardware("h100-nvl")))
    >>> best_ring(host, ["GPU0", "GPU2", "GPU1", "GPU3"]).order
    ('GPU0', 'GPU1', 'GPU2', 'GPU3')
    """
    return best_rings(survey, names)[0]


def best_rings(survey: Survey, names: Sequence[str]) -> list[GpuRing]:
    """Find the rings that are equally good, of which nobody knows which one is taken.

    Every ring is tried up to eight GPUs, those cut short that can gain nothing on an order by
    locality; beyond, rings by locality and by NVLink only. Of equally fast ones they are those
    that take least of links.
    """
    if len(names) < 2:
        return [GpuRing(order=tuple(names), rate=BytesPerSecond(float("inf")))]
    islands = nvlink_islands(survey.pairs, names)
    best = _least_taking(survey, _orders(survey, names, islands))
    if best[0].rate >= _bound(survey, names, islands) or len(names) > _EXACT:
        return best
    found = _search(survey, best[0])
    return best if found is best[0] else [found]


def _least_taking(survey: Survey, orders: Iterable[Sequence[str]]) -> list[GpuRing]:
    """Take the fastest rings, and of those the ones that take least of links."""
    best: list[GpuRing] = []
    most = (0.0, 0.0)
    for order in orders:
        own = crossings(survey, _around(order))
        rate = _slowest(survey, own)
        merit = rate, -fsum(users / survey.capacity[hop] for hop, users in own.items())
        if merit >= most or not best:
            best = [*(best if merit == most else ()), GpuRing(tuple(order), rate)]
            most = merit
    return best


def crossings(survey: Survey, ways: Iterable[tuple[str, str]]) -> Counter[Hop]:
    """Count how often copies between pairs of GPUs cross each link."""
    return Counter(hop for a, b in ways for hop in survey.path(a, b))


def _around(order: Sequence[str]) -> Iterable[tuple[str, str]]:
    return pairwise((*order, order[0]))


def chain_rate(survey: Survey, order: Sequence[str]) -> BytesPerSecond:
    """Bytes per second that each can pass to the next in a ring that is open where it is best."""
    opened = ((*order[at:], *order[:at]) for at in range(len(order)))
    return max(_slowest(survey, crossings(survey, pairwise(chain))) for chain in opened)


def _slowest(survey: Survey, own: Mapping[Hop, int]) -> BytesPerSecond:
    """Bytes per second over the busiest link of one's own."""
    return BytesPerSecond(min(survey.capacity[hop] / users for hop, users in own.items()))


def rates_beside(
    survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]
) -> tuple[BytesPerSecond, BytesPerSecond]:
    """Bytes per second that links leave each GPU which groups `beside` its own pass as well.

    The first while all go around their best rings, the second while all exchange among themselves;
    infinite where no link is shared.
    """
    groups = [tuple(group) for group in (names, *beside) if len(group) > 1]
    rings = [_around_best(survey, group) for group in groups]
    pairs = [crossings(survey, permutations(group, 2)) for group in groups]
    sent = _shared(survey, rings), _shared(survey, pairs) * (len(names) - 1)
    return BytesPerSecond(sent[0]), BytesPerSecond(sent[1])


def _shared(survey: Survey, crossed: Sequence[Counter[Hop]]) -> float:
    """Bytes per second over the busiest link of the first that others cross, too."""
    own, every = crossed[0], sum(crossed, Counter())
    shared = (survey.capacity[hop] / every[hop] for hop in own if every[hop] > own[hop])
    return min(shared, default=float("inf"))


@lru_cache(maxsize=4096)
def _around_best(survey: Survey, names: tuple[str, ...]) -> Counter[Hop]:
    """Count how often links are crossed by whichever ring it is, either way round."""
    crossed: Counter[Hop] = Counter()
    for ring in best_rings(survey, names):
        for order in (ring.order, ring.order[::-1]):
            crossed |= crossings(survey, _around(order))
    return crossed


def exchange_rate(survey: Survey, names: Sequence[str]) -> BytesPerSecond:
    r"""Bytes per second each GPU can send while every one sends to every other at the same pace.

    .. math:: r = (n - 1) \min_l c_l / f_l

    with c the capacity of a link and f the pairs whose way crosses it.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> from topology.machine.survey import survey_of
    >>> pairs = survey_of(machine_of(find_hardware("a100-pcie-80gb")))
    >>> exchange_rate(pairs, ["GPU0", "GPU1", "GPU2", "GPU3"]) / 31.5e9  # two to a switch
    0.75
    """
    own = crossings(survey, permutations(names, 2))
    return BytesPerSecond((len(names) - 1) * _slowest(survey, own))


def _bound(survey: Survey, names: Sequence[str], islands: Sequence[frozenset[str]]) -> float:
    """No ring passes more than the best way out of the island that is worst off."""
    if len(islands) == 1:
        return float("inf")
    return min(
        max(
            min(survey.capacity[hop] for hop in survey.path(a, b))
            for a in island
            for b in names
            if b not in island
        )
        for island in islands
    )


def _search(survey: Survey, best: GpuRing) -> GpuRing:
    """Try every ring from the first GPU on; drop a beginning as slow as the best ring so far."""
    order, rest = [best.order[0]], set(best.order[1:])
    used: dict[Hop, int] = {}

    def rate_with(path: Sequence[Hop]) -> float:
        for hop in path:
            used[hop] = used.get(hop, 0) + 1
        return min(survey.capacity[hop] / used[hop] for hop in path)

    def extend(rate: float) -> None:
        nonlocal best
        for name in sorted(rest) if rest else [order[0]]:
            path = survey.path(order[-1], name)
            now = min(rate, rate_with(path))
            if now > best.rate and rest:
                order.append(name)
                rest.discard(name)
                extend(now)
                rest.add(order.pop())
            elif now > best.rate:
                best = GpuRing(order=tuple(order), rate=BytesPerSecond(now))
            for hop in path:
                used[hop] -= 1

    extend(float("inf"))
    return best


def has_nvlink_ring(neighbours: Mapping[str, set[str]], names: Sequence[str]) -> bool:
    """Tell whether links lead through all of `names` and back.

    Searched depth first up to ten GPUs; beyond, only where every GPU reaches half of the others,
    which is enough for a ring (Dirac 1952).
    """
    if len(names) == 2:
        return names[1] in neighbours[names[0]]
    if len(names) > _SEARCHED:
        return all(2 * len(near) >= len(names) for near in neighbours.values())

    def extend(path: list[str]) -> bool:
        if len(path) == len(names):
            return names[0] in neighbours[path[-1]]
        return any(extend([*path, to]) for to in sorted(neighbours[path[-1]] - set(path)))

    return all(neighbours.values()) and extend([names[0]])


def direct_rate(survey: Survey, names: Sequence[str]) -> BytesPerSecond:
    """Bytes per second that each can send to the next in a ring of direct NVLinks, the best one.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> from topology.machine.survey import survey_of
    >>> cube = survey_of(machine_of(find_hardware("v100-sxm")))
    >>> direct_rate(cube, [f"GPU{i}" for i in range(8)]) / 1e9  # two links of four rings
    50.0
    """
    rates = {
        ends: nominal_bandwidth(pair)
        for ends in permutations(names, 2)
        if is_nvlink(pair := survey.pairs.get(ends)) and pair is not None
    }
    for rate in sorted(set(rates.values()), reverse=True):
        fast = {a: {b for b in names if rates.get((a, b), 0.0) >= rate} for a in names}
        if has_nvlink_ring(fast, names):
            return BytesPerSecond(rate)
    return BytesPerSecond(0.0)


def nvlink_islands(
    pairs: Mapping[tuple[str, str], Pair], names: Sequence[str]
) -> list[frozenset[str]]:
    """Split GPUs into those that NVLink joins."""
    joined = (ends for ends in combinations(names, 2) if is_nvlink(pairs.get(ends)))
    return list(map(frozenset, components(names, joined)))


def _orders(
    survey: Survey, names: Sequence[str], islands: Sequence[frozenset[str]]
) -> Iterator[Sequence[str]]:
    """Yield likely rings: near things together; and NVLink islands whole, in all ways if few."""
    near = sorted(names, key=lambda name: survey.trails[name])
    yield near
    if len(islands) == len(names):
        return
    first, *others = (sorted(island, key=near.index) for island in islands)
    inside = prod(factorial(len(island)) for island in islands)
    if len(names) > _EXACT or inside * factorial(len(others)) > _WAYS:
        yield [name for island in (first, *others) for name in island]
        return
    for ordered in permutations(others):
        for ways in product(*map(permutations, (first, *ordered))):
            yield [name for island in ways for name in island]
