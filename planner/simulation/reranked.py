"""Plans in the order in which they end as events, not by the closed form."""

from collections.abc import Sequence
from dataclasses import replace

from planner.request.request import LARGEST
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.simulation.simulation import simulated_stages_s
from topology.base import InputError


def reranked(
    scenario: Scenario, plans: Sequence[PlanEstimate], count: int
) -> tuple[PlanEstimate, ...]:
    """Simulate the first `count` plans, and put them in the order of what they take then.

    Raises `InputError` if plans are not ranked by latency, or one is too large to simulate.
    """
    if not 1 <= count <= LARGEST["top"]:
        raise InputError(f"simulate: got {count}, wanted a whole number from 1 to {LARGEST['top']}")
    if scenario.request.objective != "latency":
        expected = (
            f"objective latency, not {scenario.request.objective}: events say how long plans take"
        )
        raise InputError(f"simulate: got {count}, wanted {expected}")
    simulated = [
        replace(plan, simulated_s=sum(simulated_stages_s(scenario.on(plan.gpus), plan).values()))
        for plan in plans[:count]
    ]
    return (*sorted(simulated, key=lambda plan: plan.simulated_s or 0.0), *plans[count:])
