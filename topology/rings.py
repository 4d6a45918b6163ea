"""Rings through the GPUs of one host: which order lets each GPU pass most to the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from topology.graph import Machine, Pair, pair_table
from topology.paths import refused_pairs
from topology.routes import (
    NVLINK,
    Adjacency,
    Hop,
    adjacency,
    hops,
    host_route,
    nearest,
    route,
    staged_route,
)
from topology.units import BytesPerSecond

_EXACT: Final = 8  # GPUs up to which every ring is tried
_SEARCHED: Final = 10  # GPUs up to which a ring over NVLink is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """An order of GPUs and the bytes per second each can pass to the next, all at once."""

    order: tuple[str, ...]
    rate: BytesPerSecond


def best_ring(machine: Machine, names: Sequence[str], beside: Sequence[Sequence[str]] = ()) -> Ring:
    """Find the ring through GPUs of one host that lets each pass most to the next.

    Groups `beside` it send around rings of their own at the same time and share its links.
    Every ring is tried up to eight GPUs unless an order by locality already fills the slowest
    port; beyond, rings by locality and by NVLink only.

    >>> from topology.catalogue import hardware
    >>> from topology.machines import machine_of
    >>> best_ring(machine_of(hardware("h100-nvl")), ["GPU0", "GPU2", "GPU1", "GPU3"]).order
    ('GPU0', 'GPU1', 'GPU2', 'GPU3')
    """
    if len(names) < 2:
        return Ring(order=tuple(names), rate=BytesPerSecond(float("inf")))
    table = _Flows.of(machine, names, _load(machine, beside))
    best = max((table.ring(order) for order in _orders(machine, names)), key=lambda ring: ring.rate)
    islands = nvlink_islands(pair_table(machine), names)
    if best.rate >= table.bound(islands) or len(names) > _EXACT:
        return best
    rest = tuple(best.order[1:])
    rings = (table.ring((best.order[0], *order)) for order in permutations(rest))
    return max([best, *rings], key=lambda ring: ring.rate)


def _load(machine: Machine, groups: Sequence[Sequence[str]]) -> dict[Hop, int]:
    """Count how often the best rings of `groups` cross each link."""
    crossed: dict[Hop, int] = {}
    for names in groups:
        if len(names) > 1:
            table = _Flows.of(machine, names, {})
            for hop, users in table.crossings(best_ring(machine, names).order).items():
                crossed[hop] = crossed.get(hop, 0) + users
    return crossed


@dataclass(frozen=True, slots=True)
class _Flows:
    """The links that a copy between any two of a few GPUs crosses."""

    paths: Mapping[tuple[str, str], tuple[Hop, ...]]
    capacity: Mapping[Hop, float]
    load: Mapping[Hop, int]

    @classmethod
    def of(cls, machine: Machine, names: Sequence[str], load: Mapping[Hop, int]) -> "_Flows":
        graph = adjacency(machine)
        pairs = pair_table(machine)
        refused = {frozenset(pair[:2]) for pair in refused_pairs(machine)}
        paths: dict[tuple[str, str], tuple[Hop, ...]] = {}
        for a in names:
            for b in names:
                if a == b:
                    continue
                if is_nvlink(pairs.get((a, b))):
                    path = route(graph, a, b, NVLINK) or host_route(graph, a, b)
                elif frozenset((a, b)) in refused:
                    path = staged_route(graph, a, b)
                else:
                    path = host_route(graph, a, b)
                paths[a, b] = hops(path)
        capacity = {
            hop: graph.edge(*hop).bandwidth.value for path in paths.values() for hop in path
        }
        return cls(paths, capacity, load)

    def crossings(self, order: Sequence[str]) -> dict[Hop, int]:
        """Count how often a ring crosses each link."""
        crossed: dict[Hop, int] = {}
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            for hop in self.paths[a, b]:
                crossed[hop] = crossed.get(hop, 0) + 1
        return crossed

    def ring(self, order: Sequence[str]) -> Ring:
        """Rate a ring: the busiest link sets the pace of all."""
        rate = min(
            self.capacity[hop] / (users + self.load.get(hop, 0))
            for hop, users in self.crossings(order).items()
        )
        return Ring(order=tuple(order), rate=BytesPerSecond(rate))

    def bound(self, islands: Sequence[frozenset[str]]) -> float:
        """No ring passes more than the best way out of the island that is worst off."""
        if len(islands) == 1:
            return float("inf")
        return min(
            max(
                min(self.capacity[hop] for hop in path)
                for (a, b), path in self.paths.items()
                if a in island and b not in island
            )
            for island in islands
        )


def is_nvlink(pair: Pair | None) -> bool:
    """Tell whether two GPUs reach each other by NVLink."""
    return pair is not None and pair.kind in ("NVLINK", "NVSWITCH")


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


def nvlink_islands(
    pairs: Mapping[tuple[str, str], Pair], names: Sequence[str]
) -> list[frozenset[str]]:
    """Split GPUs into those that NVLink joins."""
    left, islands = list(names), []
    while left:
        island, queue = {left[0]}, [left[0]]
        while queue:
            a = queue.pop()
            new = {b for b in left if b not in island and is_nvlink(pairs.get((a, b)))}
            island |= new
            queue += sorted(new)
        islands.append(frozenset(island))
        left = [name for name in left if name not in island]
    return islands


def _orders(machine: Machine, names: Sequence[str]) -> list[list[str]]:
    """Guess good rings: NVLink islands whole, near things together."""
    graph = adjacency(machine)
    pairs = pair_table(machine)
    trail = {name: list(reversed(_up(graph, name))) for name in names}
    near = sorted(names, key=lambda name: trail[name])
    islands = sorted(
        nvlink_islands(pairs, near), key=lambda island: min(near.index(name) for name in island)
    )
    whole = [name for island in islands for name in sorted(island, key=near.index)]
    return [whole, near, list(names)]


def _up(graph: Adjacency, name: str) -> tuple[str, ...]:
    cpu = nearest(graph, name, "cpu")
    return (name,) if cpu is None else host_route(graph, name, cpu)
