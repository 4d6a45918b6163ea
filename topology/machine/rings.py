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

_EXHAUSTIVE_GPUS: Final = 8  # GPUs up to which every ring is tried
_MOST_ORDERS: Final = 2000  # to pass NVLink islands whole, up to which all are compared
_RING_SEARCH_GPUS: Final = 10  # GPUs up to which a ring over NVLink is looked for


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
    best = _fastest_rings(survey, _likely_orders(survey, names, islands))
    if best[0].rate >= _ring_rate_bound(survey, names, islands) or len(names) > _EXHAUSTIVE_GPUS:
        return best
    improved_ring = _improved_ring(survey, best[0])
    return best if improved_ring is best[0] else [improved_ring]


def _fastest_rings(survey: Survey, orders: Iterable[Sequence[str]]) -> list[GpuRing]:
    """Take the fastest rings, and of those the ones that take least of links."""
    best: list[GpuRing] = []
    best_merit = (0.0, 0.0)
    for order in orders:
        usage = crossings(survey, _ring_pairs(order))
        rate = _bottleneck_rate(survey, usage)
        merit = rate, -fsum(users / survey.capacity[hop] for hop, users in usage.items())
        if merit >= best_merit or not best:
            best = [*(best if merit == best_merit else ()), GpuRing(tuple(order), rate)]
            best_merit = merit
    return best


def crossings(survey: Survey, ways: Iterable[tuple[str, str]]) -> Counter[Hop]:
    """Count how often copies between pairs of GPUs cross each link."""
    return Counter(hop for a, b in ways for hop in survey.path(a, b))


def _ring_pairs(order: Sequence[str]) -> Iterable[tuple[str, str]]:
    return pairwise((*order, order[0]))


def chain_rate(survey: Survey, order: Sequence[str]) -> BytesPerSecond:
    """Bytes per second that each can pass to the next in a ring that is open where it is best."""
    chains = ((*order[at:], *order[:at]) for at in range(len(order)))
    return max(_bottleneck_rate(survey, crossings(survey, pairwise(chain))) for chain in chains)


def _bottleneck_rate(survey: Survey, usage: Mapping[Hop, int]) -> BytesPerSecond:
    """Bytes per second over the busiest link of one's own."""
    return BytesPerSecond(min(survey.capacity[hop] / users for hop, users in usage.items()))


def rates_beside(
    survey: Survey, names: Sequence[str], beside: Sequence[Sequence[str]]
) -> tuple[BytesPerSecond, BytesPerSecond]:
    """Bytes per second that links leave each GPU which groups `beside` its own pass as well.

    The first while all go around their best rings, the second while all exchange among themselves;
    infinite where no link is shared.
    """
    groups = [tuple(group) for group in (names, *beside) if len(group) > 1]
    ring_usages = [_best_ring_usage(survey, group) for group in groups]
    exchange_usages = [crossings(survey, permutations(group, 2)) for group in groups]
    rates = (
        _shared_link_rate(survey, ring_usages),
        _shared_link_rate(survey, exchange_usages) * (len(names) - 1),
    )
    return BytesPerSecond(rates[0]), BytesPerSecond(rates[1])


def _shared_link_rate(survey: Survey, usages: Sequence[Counter[Hop]]) -> float:
    """Bytes per second over the busiest link of the first that others cross, too."""
    own_usage, total_usage = usages[0], sum(usages, Counter())
    shared_rates = (
        survey.capacity[hop] / total_usage[hop]
        for hop in own_usage
        if total_usage[hop] > own_usage[hop]
    )
    return min(shared_rates, default=float("inf"))


@lru_cache(maxsize=4096)
def _best_ring_usage(survey: Survey, names: tuple[str, ...]) -> Counter[Hop]:
    """Count how often links are crossed by whichever ring it is, either way round."""
    usage: Counter[Hop] = Counter()
    for ring in best_rings(survey, names):
        for order in (ring.order, ring.order[::-1]):
            usage |= crossings(survey, _ring_pairs(order))
    return usage


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
    usage = crossings(survey, permutations(names, 2))
    return BytesPerSecond((len(names) - 1) * _bottleneck_rate(survey, usage))


def _ring_rate_bound(
    survey: Survey, names: Sequence[str], islands: Sequence[frozenset[str]]
) -> float:
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


def _improved_ring(survey: Survey, best: GpuRing) -> GpuRing:
    """Try every ring from the first GPU on; drop a beginning as slow as the best ring so far."""
    order, remaining = [best.order[0]], set(best.order[1:])
    used: dict[Hop, int] = {}

    def rate_with(path: Sequence[Hop]) -> float:
        for hop in path:
            used[hop] = used.get(hop, 0) + 1
        return min(survey.capacity[hop] / used[hop] for hop in path)

    def extend(rate: float) -> None:
        nonlocal best
        for name in sorted(remaining) if remaining else [order[0]]:
            path = survey.path(order[-1], name)
            new_rate = min(rate, rate_with(path))
            if new_rate > best.rate and remaining:
                order.append(name)
                remaining.discard(name)
                extend(new_rate)
                remaining.add(order.pop())
            elif new_rate > best.rate:
                best = GpuRing(order=tuple(order), rate=BytesPerSecond(new_rate))
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
    if len(names) > _RING_SEARCH_GPUS:
        return all(2 * len(reachable) >= len(names) for reachable in neighbours.values())

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
        fast_neighbours = {a: {b for b in names if rates.get((a, b), 0.0) >= rate} for a in names}
        if has_nvlink_ring(fast_neighbours, names):
            return BytesPerSecond(rate)
    return BytesPerSecond(0.0)


def nvlink_islands(
    pairs: Mapping[tuple[str, str], Pair], names: Sequence[str]
) -> list[frozenset[str]]:
    """Split GPUs into those that NVLink joins."""
    joined = (ends for ends in combinations(names, 2) if is_nvlink(pairs.get(ends)))
    return list(map(frozenset, components(names, joined)))


def _likely_orders(
    survey: Survey, names: Sequence[str], islands: Sequence[frozenset[str]]
) -> Iterator[Sequence[str]]:
    """Yield likely rings: near things together; and NVLink islands whole, in all ways if few."""
    local_order = sorted(names, key=lambda name: survey.trails[name])
    yield local_order
    if len(islands) == len(names):
        return
    first_island, *other_islands = (sorted(island, key=local_order.index) for island in islands)
    inner_order_count = prod(factorial(len(island)) for island in islands)
    if (
        len(names) > _EXHAUSTIVE_GPUS
        or inner_order_count * factorial(len(other_islands)) > _MOST_ORDERS
    ):
        yield [name for island in (first_island, *other_islands) for name in island]
        return
    for island_order in permutations(other_islands):
        for inner_orders in product(*map(permutations, (first_island, *island_order))):
            yield [name for island in inner_orders for name in island]
