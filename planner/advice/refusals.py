"""Plans that an engine or TensorRT cannot run, in words, and what it can instead."""

from collections.abc import Callable, Sequence
from typing import Final

from planner.advice.advice import length_notes, variable_notes
from planner.engines.tables import allowed
from planner.request.plan import Plan, nearest
from planner.runners.refusal import (
    Refusal,
    refusals,
    runner_of,
    tensorrt_refusal,
)
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.search.plans import objections, plans
from topology.base import IllegalPlanError, format_seconds

SIGN: Final = "!"
"""Stands behind a plan's name in a table; the reason follows below."""


def instead(scenario: Scenario, plan: Plan, refuses: Callable[[Plan], str]) -> str:
    """Name the plans most like one that is refused, of all that are legal and are not.

    Whether they fit in memory, and how fast they are, is not looked at.
    """
    model, work = scenario.model, scenario.workload
    legal = (
        other
        for other in plans(model, plan.gpus)
        if not any(objections(model, work, other, plan.gpus))
    )
    near = ", ".join(map(str, nearest(plan, (other for other in legal if not refuses(other)))))
    return f"; nearest that run: {near}" if near else ""


def check_tensorrt(scenario: Scenario, plan: Plan) -> None:
    """Refuse a plan that TensorRT cannot run.

    Raises
    ------
    IllegalPlanError
        With the reasons, and the plans most like it that TensorRT runs.
    """
    reason = tensorrt_refusal(scenario, plan)
    if reason:
        near = instead(scenario, plan, lambda other: tensorrt_refusal(scenario, other))
        raise IllegalPlanError(f"plan {plan}: {reason}{near}")


def notes_on(scenario: Scenario, estimate: PlanEstimate) -> list[str]:
    """Say what to know of a plan: what is done to make it legal, and who cannot run it."""
    beyond = length_notes(scenario.model, scenario.workload)
    refused = refusals(scenario, [estimate.plan])
    variables = variable_notes(scenario, estimate)
    return [*estimate.notes, *beyond, *variables, *footnotes(scenario, [estimate], refused)]


def footnotes(
    scenario: Scenario, shown: Sequence[PlanEstimate], refused: Sequence[Refusal]
) -> list[str]:
    """Return what stands below plans: reasons of those that cannot run, and what to watch."""
    runner = runner_of(scenario)
    if not runner:
        return []
    reasons = {row.plan: row for row in refused}
    barred = [(plan, reasons[plan.plan]) for plan in shown if plan.plan in reasons]
    lines = [
        _line(runner, [pair for pair in barred if pair[1].reason == reason], len(shown))
        for reason in dict.fromkeys(row.reason for _, row in barred)
    ]
    if runner != "TensorRT":
        return lines
    able = [plan.plan for plan in shown if plan.plan not in reasons]
    version = scenario.request.tensorrt_version
    watch = [
        f"TensorRT: {line}"
        for plan in able
        for line in allowed().cautions(scenario.model, plan, version)
    ]
    return [*lines, *dict.fromkeys(watch)]


def _line(runner: str, same: Sequence[tuple[PlanEstimate, Refusal]], shown: int) -> str:
    """Say a reason of several plans once, with the plan that is nearest to each."""
    near = list(dict.fromkeys(str(plan) for _, row in same for plan in row.nearest[:1]))
    each = [f"{plan.plan} ({format_seconds(plan.latency_s)})" for plan, _ in same]
    names = "any of these" if len(same) == shown > 1 else ", ".join(each)
    rest = f"; nearest that it can: {', '.join(near)}" if near else ""
    return f"{SIGN} not with {runner}: {names}: {same[0][1].reason}{rest}"
