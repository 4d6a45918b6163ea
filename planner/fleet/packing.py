"""Replicas of several demands on the same nodes: which kind serves each, and which lie together.

A node of a kind is filled by one of the ways to fill it (a pattern: so many replicas of each size).
How many nodes there are of each way, and which kind of hardware serves each demand, is one integer
program (cutting stock: Gilmore and Gomory 1961), solved by HiGHS in scipy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from topology.base.values import dataclass

MOST_PATTERNS: Final = 5000
LONGEST_S: Final = 5.0
"""Of the search; what takes longer has no answer."""

Sort = tuple[int, int, str]
"""Replicas that are alike to a node: their GPUs, how many it may hold, and whose where not all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pile:
    """Replicas of a demand on one kind of hardware.

    gpus : of each, or of its part on a node. most : that a node may hold of this demand alone;
    0 for as many as it has room for.
    """

    demand: str
    hardware: str
    gpus: int
    count: int
    most: int = 0

    @property
    def sort(self) -> Sort:
        return self.gpus, self.most, self.demand if self.most else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledNode:
    """So many nodes that hold the same: replicas by demand."""

    hardware: str
    count: int
    holds: Mapping[str, int]


def pack(
    piles: Sequence[Pile], sizes: Mapping[str, int], costs: Mapping[str, float]
) -> list[FilledNode] | None:
    """Choose a pile of each demand, and put all on nodes that cost the least together.

    sizes, costs : GPUs of a node and what it costs, by hardware.

    Returns None where there are too many ways to look through.

    >>> piles = [Pile(demand="a", hardware="x", gpus=2, count=3),
    ...          Pile(demand="b", hardware="x", gpus=1, count=2)]
    >>> pack(piles, {"x": 8}, {"x": 1.0})
    [FilledNode(hardware='x', count=1, holds={'a': 3, 'b': 2})]
    """
    sorts = {(pile.hardware, pile.sort): None for pile in piles}
    ways: list[tuple[str, dict[Sort, int]]] = []
    for hardware in sizes:
        kind_sorts = [sort for name, sort in sorts if name == hardware]
        for way in _node_patterns(kind_sorts, sizes[hardware]):
            if len(ways) == MOST_PATTERNS:
                return None
            ways.append((hardware, way))
    solution = _cheapest_nodes(piles, [*sorts], ways, [costs[hardware] for hardware, _ in ways])
    if solution is None:
        return None
    chosen_piles, nodes = solution
    return _filled_nodes(
        chosen_piles, [way for way, count in zip(ways, nodes, strict=True) for _ in range(count)]
    )


def _node_patterns(sorts: Sequence[Sort], room: int) -> Iterator[dict[Sort, int]]:
    """Yield the ways to fill a node, none of which leaves room for one more of the last sort.

    >>> [*_node_patterns([(4, 0, ""), (3, 1, "a")], 8)]
    [{(4, 0, ''): 2}, {(4, 0, ''): 1, (3, 1, 'a'): 1}, {(3, 1, 'a'): 1}]
    """
    if not sorts:
        yield {}
        return
    (first_sort, *other_sorts), (gpus, max_count, _) = sorts, sorts[0]
    max_fitting = min(room // gpus, max_count or room)
    for count in range(max_fitting, -1 if other_sorts else max_fitting - 1, -1):
        for rest_of_node in _node_patterns(other_sorts, room - count * gpus):
            yield ({first_sort: count} if count else {}) | rest_of_node


def _cheapest_nodes(
    piles: Sequence[Pile],
    sorts: Sequence[tuple[str, Sort]],
    ways: Sequence[tuple[str, Mapping[Sort, int]]],
    costs: Sequence[float],
) -> tuple[list[Pile], list[int]] | None:
    """Solve the integer program: the piles that are taken, and the nodes of each way."""
    from scipy import optimize  # type: ignore[import-untyped]  # noqa: PLC0415  # slow to load

    demands = [*dict.fromkeys(pile.demand for pile in piles)]
    demand_matrix = np.array(
        [[pile.demand == name for pile in piles] for name in demands], dtype=float
    )
    room = [
        [way.get(sort, 0) if hardware == name else 0 for hardware, way in ways]
        for name, sort in sorts
    ]
    replica_counts = [
        [pile.count if (pile.hardware, pile.sort) == pile_sort else 0 for pile in piles]
        for pile_sort in sorts
    ]
    one_pile_each = np.hstack([demand_matrix, np.zeros((len(demands), len(ways)))])
    holds = np.hstack([-np.array(replica_counts, dtype=float), np.array(room, dtype=float)])
    upper = np.concatenate([np.ones(len(piles)), np.full(len(ways), np.inf)])
    solution = optimize.milp(
        np.concatenate([np.zeros(len(piles)), costs]),
        integrality=np.ones(len(piles) + len(ways)),
        bounds=optimize.Bounds(0, upper),
        constraints=[
            optimize.LinearConstraint(one_pile_each, 1, 1),
            optimize.LinearConstraint(holds, 0, np.inf),
        ],
        options={"time_limit": LONGEST_S, "mip_rel_gap": 0.0},
    )
    if solution.status != 0:
        return None
    counts = [round(value) for value in solution.x]
    chosen = [pile for pile, count in zip(piles, counts, strict=False) if count]
    return chosen, counts[len(piles) :]


def _filled_nodes(
    piles: Sequence[Pile], nodes: Sequence[tuple[str, Mapping[Sort, int]]]
) -> list[FilledNode]:
    """Put the replicas of piles on nodes, each of which has room for some of each sort."""
    replicas_left = {pile: pile.count for pile in piles}
    node_counts: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
    for hardware, way in nodes:
        holds: dict[str, int] = {}
        for pile in piles:
            free_places = way.get(pile.sort, 0) if pile.hardware == hardware else 0
            free_places -= sum(holds.get(p.demand, 0) for p in piles if p.sort == pile.sort)
            count = min(free_places, replicas_left[pile])
            if count > 0:
                holds[pile.demand] = count
                replicas_left[pile] -= count
        key = (hardware, tuple(holds.items()))
        node_counts[key] = node_counts.get(key, 0) + 1
    return [
        FilledNode(hardware=hardware, count=count, holds=dict(holds))
        for (hardware, holds), count in node_counts.items()
    ]
