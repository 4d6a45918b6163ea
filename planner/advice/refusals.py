"""Plans of a recommendation that its engine cannot run: why, and what it can instead."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from planner.engines.tables import engine as find_engine
from planner.request.plan import Plan
from planner.request.request import EXECUTOR
from planner.search.outcome import Mark, PlanEstimate
from planner.search.plans import nearest
from planner.search.search import Scenario, launch_of
from topology.base import format_seconds

Choose = Callable[[Plan, list[Plan]], Sequence[Plan]]

SIGN: Final = "!"
"""Stands behind a plan's name in a table; the reason follows below."""


def marks_of(scenario: Scenario, ranked: Sequence[PlanEstimate]) -> tuple[Mark, ...]:
    """Return a mark for every plan that the engine or the runtime of a request cannot run."""
    if scenario.deployment.engine not in ("", EXECUTOR):
        return engine_marks(scenario, ranked)
    if scenario.deployment.runtime.name != "tensorrt":
        return ()
    from planner.advice.tensorrt_refusals import marks  # noqa: PLC0415  # TensorRT's build on these

    return marks(scenario, ranked)


def runnable(
    scenario: Scenario, found: Mapping[int, list[PlanEstimate]]
) -> Mapping[int, list[PlanEstimate]]:
    """Keep, of the plans by number of GPUs, those that the engine of a request can run.

    All stay where the request names no engine, or the engine can run none of them.
    """
    able = {n: [one for one in some if not refusal(scenario, one)] for n, some in found.items()}
    return able if any(able.values()) else found


def refusal(scenario: Scenario, one: PlanEstimate) -> str:
    """Say why the engine that a request names cannot run a plan; empty where it can."""
    if scenario.deployment.engine in ("", EXECUTOR):
        return ""
    title = find_engine(scenario.deployment.engine).title
    return next(launch.reason for launch in launch_of(scenario, one) if launch.engine == title)


def engine_marks(scenario: Scenario, found: Sequence[PlanEstimate]) -> tuple[Mark, ...]:
    """Return a mark for every plan that the engine of a request cannot run.

    Parameters
    ----------
    found : plans, best first.
    """
    return barred(found, [refusal(scenario, one) for one in found], nearest)


def barred(
    found: Sequence[PlanEstimate], reasons: Sequence[str], choose: Choose
) -> tuple[Mark, ...]:
    """Return a mark for every plan that has a reason not to be run.

    Parameters
    ----------
    reasons : of each plan, empty where it runs. choose : those most like a plan, among plans of as
        many GPUs that run.
    """
    able = [one.plan for one, why in zip(found, reasons, strict=True) if not why]
    return tuple(
        Mark(
            plan=one.plan,
            reason=why,
            nearest=tuple(choose(one.plan, [p for p in able if p.gpus == one.plan.gpus])),
        )
        for one, why in zip(found, reasons, strict=True)
        if why
    )


def footnotes(
    title: str,
    found: Sequence[PlanEstimate],
    marked: Sequence[Mark],
    lead: PlanEstimate | None = None,
) -> list[str]:
    """Return what stands below a table of plans: reasons, once each, and the first that runs.

    Parameters
    ----------
    lead : the first that runs, where it may be none of `found`.
    """
    shown = {one.plan for one in found}
    below = [one for one in marked if one.plan in shown]
    lines = [
        _line(title, [one for one in below if one.reason == reason], len(found))
        for reason in dict.fromkeys(one.reason for one in below)
    ]
    unable = {one.plan for one in below}
    running = [one for one in (*([lead] if lead else []), *found) if one.plan not in unable]
    first = [
        f"the first that {title} can run is {one.plan}, {format_seconds(one.latency_s)}"
        for one in running[:1]
        if one != found[0]
    ]
    return [*lines, *first]


def _line(title: str, same: Sequence[Mark], shown: int) -> str:
    """Say a reason of several plans once, with the plan that is nearest to each."""
    instead = list(dict.fromkeys(str(plan) for one in same for plan in one.nearest[:1]))
    names = "any of these" if len(same) == shown > 1 else ", ".join(str(one.plan) for one in same)
    near = f"; nearest that it can: {', '.join(instead)}" if instead else ""
    return f"{SIGN} not with {title}: {names}: {same[0].reason}{near}"
