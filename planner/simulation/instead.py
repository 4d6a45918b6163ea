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
from planner.simulation.uneven import CUT_AXES, cuts
from topology.base import counted

Instead = tuple[str, Scenario, Plan, Disturbances]
"""What is done, and what is then run how."""
Of = TypeVar("Of")
OTHER_PLANS: Final = 3
"""Other plans of all GPUs."""


def instead(scenario: Scenario, plan: Plan, disturbed: Disturbances) -> Iterator[Instead]:
    """Name other seats of the GPU that differs, other plans of all GPUs, and of those that do not.

    None where all ranks and links are as they should be.
    """
    odd_ranks = sorted({*disturbed.slow, *disturbed.paused, *disturbed.mixed})
    slowed_links = disturbed.traffic or any(times < 1.0 for _, times in scenario.request.links)
    if plan.gpus == 1 or not (odd_ranks or slowed_links):
        return
    if len(odd_ranks) == 1:
        for seat in _distinct_seats(plan.without("dp"), odd_ranks[0]):
            words = f"the GPU of rank {odd_ranks[0]} as rank {seat}"
            yield words, scenario, plan, _swapped(disturbed, odd_ranks[0], seat)
    ranking = search(scenario, runs=lambda candidate: not refusal(scenario, candidate))
    other_plans = (
        candidate.plan for candidate in rank(ranking.by_gpus.get(plan.gpus, ()), scenario.request)
    )
    unusual_order = disturbed.order != USUAL_ORDER
    comparable = (
        candidate
        for candidate in other_plans
        if candidate != plan
        and candidate.degree("dp") == plan.degree("dp")
        and (cuts(candidate) or not unusual_order)
    )
    for other in islice(comparable, OTHER_PLANS):
        yield f"{other} in place of {plan}", scenario, other, disturbed
    yield from _smaller_plan(scenario, ranking, plan, disturbed)


def _distinct_seats(plan: Plan, odd_rank: int) -> Iterator[int]:
    """Name a rank of each kind that does something else: a place, an order of tokens, decoding."""
    roles = {_role(plan, odd_rank)}
    for seat in range(plan.gpus):
        if _role(plan, seat) not in roles:
            roles.add(_role(plan, seat))
            yield seat


def _role(plan: Plan, seat: int) -> tuple[object, ...]:
    indices = plan.index_of(seat)
    return seat == 0, *(indices.get(axis, 0) for axis in ("pp", *CUT_AXES))


def _swapped(disturbed: Disturbances, first_rank: int, second_rank: int) -> Disturbances:
    """Let two ranks change their GPUs, with all that is said of these."""
    swapped_ranks = {first_rank: second_rank, second_rank: first_rank}

    def moved(by_rank: Mapping[int, Of]) -> dict[int, Of]:
        return {swapped_ranks.get(seat, seat): value for seat, value in by_rank.items()}

    return replace(
        disturbed,
        slow=moved(disturbed.slow),
        paused=moved(disturbed.paused),
        mixed=moved(disturbed.mixed),
    )


def _smaller_plan(
    scenario: Scenario, ranking: Ranking, plan: Plan, disturbed: Disturbances
) -> Iterator[Instead]:
    """Take the best plan of fewer GPUs: without those that differ, or the best joined ones."""
    odd_ranks = {*disturbed.slow, *disturbed.paused, *disturbed.mixed}
    max_gpus = min(plan.gpus - 1, plan.gpus - len(odd_ranks) * plan.degree("dp"))
    rows = (row for gpus, row in ranking.by_gpus.items() if row and gpus <= max_gpus)
    smaller_plans = [rank(row, scenario.request)[0] for row in rows]
    if smaller_plans:
        best = min(smaller_plans, key=lambda estimate: estimate.latency_s)
        undisturbed = replace(disturbed, slow={}, paused={}, mixed={}, order=USUAL_ORDER)
        exclusion = f", without {ranks_named(odd_ranks)}" if odd_ranks else ""
        words = f"{best.plan} on {counted(best.gpus, 'GPU')}{exclusion}"
        yield words, scenario.on(best.gpus), best.plan, undisturbed
