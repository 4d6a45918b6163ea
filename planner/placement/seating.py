"""Which GPU of a machine each rank of a plan sits on, so that its messages cost least.

The messages of a program, by axis and size, are its traffic.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives import collective_time
from costmodels.program import Communication, Program, turns
from planner.placement.placement import Placement
from planner.request.plan import Plan
from planner.request.subset import Subset
from topology.base.values import dataclass
from topology.catalogue import Fabric
from topology.machine import Survey, fabric

Groups = tuple[tuple[int, ...], ...]
EXACT_RANKS: Final = 8  # ranks of a host up to which every order is tried
_GAIN_NEEDED: Final = 1 - 1e-3
"""An order must be cheaper by this to be taken before one that comes first."""


@dataclass(frozen=True, slots=True)
class RepeatedMessage:
    """A collective of `message_bytes`, run `times` times."""

    kind: str
    message_bytes: float
    times: int


Traffic = Mapping[str, tuple[RepeatedMessage, ...]]


def traffic_of(program: Program) -> Traffic:
    """Count the messages of a program along each axis."""
    counts: dict[str, Counter[tuple[str, float]]] = {}
    for stage in program.stages:
        for op, loops in stage.nested():
            if isinstance(op, Communication):
                size = float(np.max(op.message_bytes))
                counts.setdefault(op.axis, Counter())[op.kind, size] += turns(loops)
    return {
        axis: tuple(RepeatedMessage(kind, size, times) for (kind, size), times in messages.items())
        for axis, messages in counts.items()
    }


def seconds_on(messages: tuple[RepeatedMessage, ...], fabric: Fabric) -> float:
    """Add up the time of messages on one group's links.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(8)
    >>> once = seconds_on((RepeatedMessage("all_reduce", 2.0**20, 1),), node)
    >>> seconds_on((RepeatedMessage("all_reduce", 2.0**20, 3),), node) == 3 * once
    True
    """
    return sum(m.times * collective_time(m.kind, m.message_bytes, fabric) for m in messages)


def seat(
    plan: Plan, subset: Subset, traffic: Traffic, *, exact_up_to: int = EXACT_RANKS
) -> Placement:
    """Find the order of GPUs whose groups carry a plan's messages in the least time.

    The time of an axis is that of its slowest group while its other groups send too. Up to eight
    ranks a host every order that gives other groups is weighed: first each group alone, which no
    order can beat, then in that sequence with its neighbours, until none that is left could win;
    of orders in which every two ranks reach each other in the same way, only the first.
    Beyond, the axes are nested in every sequence over GPUs in the order of the machine and of
    its islands. All hosts are seated alike. Where any GPU may stand for any other, order is kept.

    subset : as many GPUs as the plan has ranks. exact_up_to : ranks of a host.
    """
    seating = _Seating(plan=plan, subset=subset, traffic=traffic)
    degrees, seats = seating.inner, len(subset.local)
    if _interchangeable(subset) or degrees is None:
        return seating.placement(tuple(range(seats)), exact=degrees is not None)
    if seats > exact_up_to:
        candidates = [
            tuple(base[i] for i in order) for base in _bases(subset) for order in nested(degrees)
        ]
        placements = [seating.placement(order, exact=False) for order in dict.fromkeys(candidates)]
        return min(placements, key=lambda placement: placement.seconds)
    return _best_order(seating, degrees)


def _best_order(seating: "_Seating", degrees: tuple[int, ...]) -> Placement:
    bounds = seating.bounds(degrees)
    table = orders(degrees)
    distinct = _distinct_orders(seating.subset, table)
    best: Placement | None = None
    for index in distinct[np.argsort(bounds[distinct], kind="stable")]:
        if best is not None and bounds[index] >= best.seconds * _GAIN_NEEDED:
            break
        placement = seating.placement(tuple(map(int, table[index])), exact=True)
        if best is None or placement.seconds < best.seconds * _GAIN_NEEDED:
            best = placement
    assert best is not None, "no order of no ranks"
    return best


def _distinct_orders(subset: Subset, table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep the first of the orders in which every two ranks reach each other in the same way."""
    names = [gpu.name for gpu in subset.chosen]
    labels = {(a, b): subset.survey.label(a, b) for a in names for b in names if a != b}
    codes = {label: number for number, label in enumerate(dict.fromkeys(labels.values()), 1)}
    ways = np.array([[codes[labels[a, b]] if a != b else 0 for b in names] for a in names])
    reach_codes = ways.astype(np.uint8)[table[:, :, None], table[:, None, :]].reshape(
        len(table), -1
    )
    rows = np.ascontiguousarray(reach_codes).view(f"V{reach_codes.shape[1]}").ravel()
    return np.sort(np.unique(rows, return_index=True)[1])


@lru_cache(maxsize=64)
def _interchangeable(subset: Subset) -> bool:
    """Whether any GPU in use may stand for any other."""
    names = [gpu.name for gpu in subset.chosen]
    labels = {subset.survey.label(a, b) for i, a in enumerate(names) for b in names[i + 1 :]}
    return len(labels) <= 1


def _bases(subset: Subset) -> list[list[int]]:
    """List GPUs in the order of the machine, and so that those joined best are neighbours."""
    pairs, chosen = subset.survey.pairs, subset.chosen
    unplaced = list(range(len(chosen)))
    ordered = [unplaced.pop(0)]
    while unplaced:
        last_name = chosen[ordered[-1]].name
        links = {i: pairs.get((last_name, chosen[i].name)) for i in unplaced}
        nearest = max(unplaced, key=lambda i: (pair.bandwidth if (pair := links[i]) else 0.0, -i))
        ordered.append(nearest)
        unplaced.remove(nearest)
    return [list(range(len(chosen))), ordered]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seating:
    """A plan on some GPUs, and what it sends."""

    plan: Plan
    subset: Subset
    traffic: Traffic

    @property
    def inner(self) -> tuple[int, ...] | None:
        """Degrees of the axes within one host, outermost first; None where they do not fit it.

        An axis that spans hosts counts with its ranks on one.
        """
        free_seats, degrees = len(self.subset.local), list[int]()
        for _, degree in reversed(self.plan.axes):
            local_degree = min(degree, free_seats)
            if degree % local_degree or free_seats % local_degree:
                return None
            degrees.insert(0, local_degree)
            free_seats //= local_degree
        return tuple(degrees)

    def placement(self, order: tuple[int, ...], *, exact: bool) -> Placement:
        """Seat the ranks of every host in this order of its GPUs in use."""
        slowest: dict[str, Fabric] = {}
        total = 0.0
        for number, (name, _) in enumerate(self.plan.axes):
            groups = self._groups(number, order)
            slowest[name], time = _slowest(self.subset.survey, groups, self.traffic.get(name, ()))
            total += time
        return Placement(
            devices=tuple(self.subset.local[i] for i in order),
            hosts=self.subset.hosts,
            fabrics=slowest,
            seconds=total,
            exact=exact,
        )

    def _groups(self, axis: int, order: tuple[int, ...]) -> Groups:
        """List the groups along an axis that have a rank on the first host."""
        local, host_gpus = self.subset.local, len(self.subset.machine.gpus)
        seats = len(local)
        degrees = tuple(degree for _, degree in self.plan.axes)
        rows = group_ranks(degrees, axis)
        near_rows = rows[np.any(rows < seats, axis=1)]
        devices = np.array([local[i] for i in order])
        ranks = near_rows // seats * host_gpus + devices[near_rows % seats]
        return tuple(sorted(tuple(sorted(row)) for row in ranks.tolist()))

    def bounds(self, degrees: tuple[int, ...]) -> NDArray[np.float64]:
        """Give the seconds that no order can beat: along each axis the slowest group, alone."""
        total = np.zeros(len(orders(degrees)))
        for number, (name, degree) in enumerate(self.plan.axes):
            messages = self.traffic.get(name, ())
            if messages and degrees[number] == degree > 1:  # within one host
                masks = group_masks(degrees, number)
                total += np.max(self._lone_seconds(masks, messages), axis=1)
        return total

    def _lone_seconds(
        self, masks: NDArray[np.int64], messages: tuple[RepeatedMessage, ...]
    ) -> NDArray[np.float64]:
        local = self.subset.local
        table = np.zeros(1 << len(local))
        for mask in np.unique(masks):
            group = tuple(seat for i, seat in enumerate(local) if int(mask) >> i & 1)
            table[mask] = _slowest(self.subset.survey, (group,), messages)[1]
        return table[masks]


@lru_cache(maxsize=16384)
def _fabrics(survey: Survey, groups: Groups) -> tuple[Fabric, ...]:
    """Describe the links of groups that send at the same time."""
    return tuple(
        fabric(survey.machine, group, [other for other in groups if other != group], survey)
        for group in groups
    )


@lru_cache(maxsize=16384)
def _slowest(
    survey: Survey, groups: Groups, messages: tuple[RepeatedMessage, ...]
) -> tuple[Fabric, float]:
    """Find the group that takes longest for its messages, and the seconds."""
    links = _fabrics(survey, groups)
    times = {link: seconds_on(messages, link) for link in links}
    slowest = max(links, key=lambda link: (times[link], -link.bandwidth))
    return slowest, times[slowest]


@lru_cache(maxsize=256)
def group_ranks(degrees: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """List the groups along one axis, one a row, of ranks counted with the last axis fastest.

    >>> group_ranks((2, 2), 0).tolist(), group_ranks((2, 2), 1).tolist()
    ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """
    ranks = np.arange(int(np.prod(degrees, initial=1))).reshape(degrees)
    return np.moveaxis(ranks, axis, -1).reshape(-1, degrees[axis])


@lru_cache(maxsize=64)
def orders(degrees: tuple[int, ...]) -> NDArray[np.int64]:
    """List the orders of GPUs that give different groups, in lexical order; one a row.

    Swapping two indices along an axis changes no group, so that rank 0 may sit on GPU 0 and GPUs
    may rise along each axis: n! / (d_1! d_2! ...) orders of n ranks are left.

    >>> orders((2, 2))[2].tolist()
    [0, 2, 1, 3]
    >>> [len(orders(degrees)) for degrees in ((2, 2), (2, 4), (2, 2, 2), (8,))]
    [6, 840, 5040, 1]
    """
    count = int(np.prod(degrees, initial=1))
    tails = np.array(list(permutations(range(1, count))), dtype=np.int64).reshape(-1, count - 1)
    candidates = np.hstack([np.zeros((len(tails), 1), dtype=np.int64), tails])
    rising = np.ones(len(candidates), dtype=bool)
    for axis in range(len(degrees)):
        line = group_ranks(degrees, axis)[0]  # from rank 0 on
        rising &= np.all(np.diff(candidates[:, line], axis=1) > 0, axis=1)
    return candidates[rising]


@lru_cache(maxsize=64)
def group_masks(degrees: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """Give the GPUs of each group along an axis as bits, for every order of `orders`."""
    seats = orders(degrees)[:, group_ranks(degrees, axis)]
    masks: NDArray[np.int64] = np.bitwise_or.reduce(1 << seats, axis=2)
    return masks


def nested(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the orders that nest the axes in every sequence, neighbours on the innermost.

    >>> nested((2, 2))
    [(0, 1, 2, 3), (0, 2, 1, 3)]
    """
    count = int(np.prod(degrees, initial=1))
    orderings = []
    for sequence in permutations(range(len(degrees))):
        inner = np.arange(count).reshape([degrees[axis] for axis in sequence])
        orderings.append(tuple(map(int, np.moveaxis(inner, range(len(degrees)), sequence).ravel())))
    return list(dict.fromkeys(orderings))


def pairs_of(plan: Plan, devices: Sequence[int]) -> Iterator[str]:
    """Say which GPUs of a host the groups of each axis join, where they are on one host.

    >>> list(pairs_of(Plan((("pp", 2), ("tp", 2))), (0, 2, 1, 3)))
    ['pp 0-1 2-3', 'tp 0-2 1-3']
    """
    if plan.gpus != len(devices):
        return
    degrees = tuple(degree for _, degree in plan.axes)
    for number, (name, _) in enumerate(plan.axes):
        groups = np.array(devices)[group_ranks(degrees, number)]
        yield f"{name} " + " ".join("-".join(map(str, group)) for group in groups)
