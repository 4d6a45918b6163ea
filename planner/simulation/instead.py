"""What to do about a rank, a host or a link that is not as it should be: what else would run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from planner.request.plan import Plan
from planner.runners.refusal import refusal
from planner.scenario.scenario import Scenario
from planner.search.ranking import Ranking, rank, search
from planner.simulation.disturbances import USUAL_ORDER, Disturbances, ranks_named
from planner.simulation.uneven import CUT, cuts
from topology.base import counted

Instead = tuple[str, Scenario, Plan, Disturbances]
"""What is done, and what is then run how."""
Of = TypeVar("Of")
TRIED: Final = 3
"""Other plans of all GPUs."""


def instead(scenario: Scenario, plan: Plan, disturbed: Disturbances) -> Iterator[Instead]:
    """Name other seats of the GPU that differs, other plans of all GPUs, and of those that do not.

    None where all ranks and links are as they should be.
    """
    differ = sorted({*disturbed.slow, *disturbed.paused, *disturbed.mixed})
    held_up = disturbed.traffic or any(times < 1.0 for _, times in scenario.request.links)
    if plan.gpus == 1 or not (differ or held_up):
        return
    if len(differ) == 1:
        for seat in _seats(plan.without("dp"), differ[0]):
            words = f"the GPU of rank {differ[0]} as rank {seat}"
            yield words, scenario, plan, _swapped(disturbed, differ[0], seat)
    ranking = search(scenario, runs=lambda one: not refusal(scenario, one))
    others = (one.plan for one in rank(ranking.by_gpus.get(plan.gpus, ()), scenario.request))
    ordered = disturbed.order != USUAL_ORDER
    alike = (
        one
        for one in others
        if one != plan and one.degree("dp") == plan.degree("dp") and (cuts(one) or not ordered)
    )
    for other in islice(alike, TRIED):
        yield f"{other} in place of {plan}", scenario, other, disturbed
    yield from _fewer(scenario, ranking, plan, disturbed)


def _seats(plan: Plan, differs: int) -> Iterator[int]:
    """Name a rank of each kind that does something else: a place, an order of tokens, decoding."""
    seen = {_does(plan, differs)}
    for one in range(plan.gpus):
        if _does(plan, one) not in seen:
            seen.add(_does(plan, one))
            yield one


def _does(plan: Plan, one: int) -> tuple[object, ...]:
    at = plan.index_of(one)
    return one == 0, *(at.get(axis, 0) for axis in ("pp", *CUT))


def _swapped(disturbed: Disturbances, one: int, other: int) -> Disturbances:
    """Let two ranks change their GPUs, with all that is said of these."""
    to = {one: other, other: one}

    def moved(said: Mapping[int, Of]) -> dict[int, Of]:
        return {to.get(at, at): value for at, value in said.items()}

    return replace(
        disturbed,
        slow=moved(disturbed.slow),
        paused=moved(disturbed.paused),
        mixed=moved(disturbed.mixed),
    )


def _fewer(
    scenario: Scenario, ranking: Ranking, plan: Plan, disturbed: Disturbances
) -> Iterator[Instead]:
    """Take the best plan of fewer GPUs: without those that differ, or the best joined ones."""
    differ = {*disturbed.slow, *disturbed.paused, *disturbed.mixed}
    most = min(plan.gpus - 1, plan.gpus - len(differ) * plan.degree("dp"))
    rows = (row for gpus, row in ranking.by_gpus.items() if row and gpus <= most)
    fewer = [rank(row, scenario.request)[0] for row in rows]
    if fewer:
        best = min(fewer, key=lambda one: one.latency_s)
        rest = replace(disturbed, slow={}, paused={}, mixed={}, order=USUAL_ORDER)
        without = f", without {ranks_named(differ)}" if differ else ""
        words = f"{best.plan} on {counted(best.gpus, 'GPU')}{without}"
        yield words, scenario.on(best.gpus), best.plan, rest
