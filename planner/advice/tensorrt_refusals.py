"""Which plans of a recommendation TensorRT cannot run, why, and what it can instead."""

from collections.abc import Sequence
from typing import Final

from planner.advice.refusals import barred
from planner.advice.refusals import footnotes as marked_footnotes
from planner.engines.tensorrt import cautions, nearest_that_run, obstacles
from planner.request.plan import Plan
from planner.search.outcome import Mark, PlanEstimate
from planner.search.plans import objections, plans
from planner.search.search import Scenario
from topology.base import IllegalPlanError

GOOD: Final = 32
"""First plans that run, among which the nearest to one that does not is looked for."""


def marks(scenario: Scenario, found: Sequence[PlanEstimate], version: str = "") -> tuple[Mark, ...]:
    """Return a mark for every plan that TensorRT cannot run.

    Parameters
    ----------
    found : plans, best first; the nearest that run are chosen among the first of them.
    version : of TensorRT, such as ``11.2.1.2``; the newest known where left out.
    """
    model, hardware = scenario.model, scenario.deployment.hardware
    precision = scenario.workload.precision
    reasons = [
        "; ".join(obstacles(model, one.plan, hardware, version, precision=precision))
        for one in found
    ]
    return barred(found, reasons, lambda plan, able: nearest_that_run(plan, able[:GOOD]))


def instead(scenario: Scenario, plan: Plan, version: str = "") -> list[Plan]:
    """Return the plans most like one that TensorRT cannot run, of all that are legal and run.

    Whether they fit in memory, and how fast they are, is not looked at.
    """
    model, work, hardware = scenario.model, scenario.workload, scenario.deployment.hardware
    able = (
        other
        for other in plans(model, plan.gpus)
        if not any(objections(model, work, other, plan.gpus))
        and not any(obstacles(model, other, hardware, version, precision=work.precision))
    )
    return nearest_that_run(plan, able)


def refuse_barred(scenario: Scenario, plan: Plan, version: str = "") -> None:
    """Refuse a plan that TensorRT cannot run.

    Raises
    ------
    IllegalPlanError
        With the reasons, and the plans most like it that TensorRT runs.
    """
    model, precision = scenario.model, scenario.workload.precision
    why = "; ".join(
        obstacles(model, plan, scenario.deployment.hardware, version, precision=precision)
    )
    if why:
        near = ", ".join(map(str, instead(scenario, plan, version)))
        raise IllegalPlanError(
            f"plan {plan}: {why}" + (f"; nearest that run: {near}" if near else "")
        )


def footnotes(
    scenario: Scenario, found: Sequence[PlanEstimate], marked: Sequence[Mark], version: str = ""
) -> list[str]:
    """Return what stands below a table of plans: reasons, once each, then what to watch."""
    unable = {one.plan for one in marked}
    running = [one for one in found if one.plan not in unable]
    watch = [
        f"TensorRT: {s}" for one in running for s in cautions(scenario.model, one.plan, version)
    ]
    return [*marked_footnotes("TensorRT", found, marked), *dict.fromkeys(watch)]
