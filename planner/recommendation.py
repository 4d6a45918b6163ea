"""From a request to an answer: ranking, refusals, the plan to run, launch lines, advice."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodels.tables import profile_for
from planner.advice.advice import advice
from planner.advice.refusals import SIGN
from planner.advice.remedies import would_fit
from planner.engines.launch import Launch, launch_lines
from planner.engines.refusal import Refusal, refusal, refusals
from planner.engines.scenario import Scenario
from planner.request.plan import Plan, nearest
from planner.request.request import EXECUTOR, LARGEST, Request
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.evaluate import Shared
from planner.search.plans import LONGEST
from planner.search.search import MANY, Ranking, estimates, judge, outcomes_on, search
from planner.search.served import Point
from planner.serving.search import served_ranking, with_load
from planner.strategies import parse_plan
from topology.base import (
    IllegalPlanError,
    InputError,
    counted,
    format_bytes,
    format_interval,
    format_seconds,
    shown,
)
from topology.base.table import Table

NO_RINGS: Final = f"above {MANY} GPUs rings of more than {LONGEST} are left out"
NO_PIPELINES: Final = (
    f"above {MANY} GPUs pipelines deeper than it takes to fit are left out: replicas in their "
    "place are as fast"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Plans, best first; rejected plans with reasons; the best plan at every number of GPUs.

    lead : the plan to run, which all words are about: the first, or the first that a named engine
    can run. Such an engine's `scaling` has plans that it can run.
    baseline : one GPU, priced whether or not it fits. launch : how engines run the lead.
    notes : what was assumed about a machine that the request brings; kinds of plans left out.
    refusals : of plans that the engine or the runtime cannot run.
    """

    request: Request
    plans: tuple[PlanEstimate, ...]
    rejected: tuple[Rejected, ...]
    scaling: tuple[PlanEstimate, ...]
    baseline: PlanEstimate | None
    advice: tuple[str, ...] = ()
    launch: tuple[Launch, ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lead: PlanEstimate | None = None
    frontier: tuple[Point, ...] = ()

    def __repr__(self) -> str:
        first = f", {self.plans[0].plan} first" if self.plans else ""
        return f"<Recommendation: {counted(len(self.plans), 'plan')}{first}>"

    def _repr_html_(self) -> str:
        return self.table().html()

    def table(self, *, numbered: bool = True) -> Table:
        """Make a row of each plan, best first, and last of the one to run if it is none of them."""
        columns, listed = _columns(self), _listed(self)
        places = [str(number + 1) for number in range(len(self.plans))] + [".."]
        rows = [_cells(plan, self) for plan in listed]
        if not numbered:
            return Table(head=columns, rows=rows)
        return Table(
            head=["#", *columns],
            rows=[[place, *row] for place, row in zip(places, rows, strict=False)],
            align=">" + "".join("<" if name in ("plan", "bound by") else ">" for name in columns),
            fixed=2,  # a plan is not broken
            head_in="dim",
            rows_in={number: "bold" for number, plan in enumerate(listed) if plan is self.lead},
        )

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        refused = [refusal.to_dict() for refusal in self.refusals]
        return {
            "request": self.request.to_dict(),
            "plans": [plan.to_dict() for plan in self.plans],
            "recommended": None if self.lead is None else str(self.lead.plan),
            "rejected": [plan.to_dict() for plan in self.rejected],
            "scaling": [
                {"gpus": best.gpus, "plan": str(best.plan), "latency_s": best.latency_s}
                for best in self.scaling
            ],
            **({"frontier": [point.to_dict() for point in self.frontier]} if self.frontier else {}),
            "advice": list(self.advice),
            "launch": [launch.to_dict() for launch in self.launch],
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"marks": refused} if refused else {}),
        }


def _listed(answer: Recommendation) -> tuple[PlanEstimate, ...]:
    """Return the plans to show: the first ones, and the one to run where it is none of them."""
    lead = answer.lead
    return answer.plans if lead is None or lead in answer.plans else (*answer.plans, lead)


def _cells(one: PlanEstimate, answer: Recommendation) -> list[str]:
    """Write a row, with a sign at a plan that cannot be run."""
    name, *rest = _row(one, answer)
    barred = any(mark.plan == one.plan for mark in answer.refusals)
    return [f"{name} {SIGN}" if barred else name, *rest]


def _columns(answer: Recommendation) -> list[str]:
    """Name the columns: the usual ones, and what plans are ranked by if it is none of them."""
    request = answer.request
    goal = {"throughput": ["results/s"], "cost": ["GPU-s a result"]}.get(request.objective, [])
    counts = ["GPUs"] if request.at_most_gpus else []
    if _writes(answer):
        return ["plan", *counts, "latency", *_OF_TOKENS, "memory", "bound by"]
    usual = ["latency", "speed-up", "efficiency", "memory", "exposed comm", "bound by"]
    return ["plan", *counts, *goal, *usual]


def _writes(answer: Recommendation) -> bool:
    """Whether plans are of a language model."""
    return any("prefill" in plan.stages_s for plan in _listed(answer)[:1])


_OF_TOKENS: Final = ("at once", "TTFT", "TPOT", "tokens/s", "a GPU")


def _row(one: PlanEstimate, answer: Recommendation) -> list[str]:
    baseline, request = answer.baseline, answer.request
    counts = [str(one.gpus)] if request.at_most_gpus else []
    bound = one.bound_by.replace(" of the time", "")
    if _writes(answer):
        return [str(one.plan), *counts, *_of_tokens(one), format_bytes(one.memory_bytes), bound]
    speed = baseline.latency_s / one.latency_s if baseline else 0.0
    exposed = one.breakdown_s.get("communication_exposed", 0.0)
    goal = {
        "throughput": [f"{one.throughput_per_s:.3g}"],
        "cost": [cost(one)],
    }.get(request.objective, [])
    return [
        str(one.plan),
        *counts,
        *goal,
        format_interval(one.latency_s, one.half_width_s),
        f"{speed:.2f}x" if baseline else "-",
        f"{100 * speed / one.gpus:.0f} %" if baseline else "-",
        format_bytes(one.memory_bytes),
        f"{format_seconds(exposed)} ({100 * exposed / one.latency_s:.0f} %)",
        bound,
    ]


def _of_tokens(one: PlanEstimate) -> list[str]:
    """Write the latency of a request alone, and what clients see with as many at once."""
    ttft, tpot, rate = one.tokens
    serving = one.serving
    together = serving.concurrency if serving else one.throughput_per_s * one.latency_s
    return [
        format_interval(one.latency_s, one.half_width_s),
        f"{together:,.3g}",
        format_seconds(ttft),
        format_seconds(tpot),
        f"{rate:,.0f}",
        f"{rate / one.gpus:,.0f}",
    ]


def cost(plan: PlanEstimate) -> str:
    """Write the GPU-seconds of a result."""
    value = plan.gpus / plan.throughput_per_s
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def recommend_plans(scenario: Scenario) -> Recommendation:
    """Search all plans of a request, and say which to run, how, and why."""
    ranking = search(scenario)
    if scenario.model.kind == "decoder" and scenario.request.batch == 1:
        ranking = served_ranking(scenario, ranking)
    runnable = _runnable(scenario, ranking)
    lead = next(iter(runnable.plans or ranking.plans), None)
    lines = () if lead is None else launch_lines(scenario, lead.plan, lead.placement)
    return Recommendation(
        request=scenario.request,
        plans=ranking.plans,
        rejected=ranking.rejected,
        scaling=runnable.scaling,
        baseline=ranking.baseline,
        advice=tuple(advice(scenario, ranking, runnable, lead, lines)),
        launch=lines,
        notes=tuple(_notes(scenario)),
        refusals=refusals(scenario, [estimate.plan for estimate in ranking.plans]),
        lead=lead,
        frontier=ranking.frontier,
    )


def _runnable(scenario: Scenario, ranking: Ranking) -> Ranking:
    """Rank the plans that the engine of a request can run.

    All stay where the request names no engine, or the engine can run none of them.
    """
    if scenario.deployment.engine in ("", EXECUTOR):
        return ranking
    runnable = ranking.only(lambda plan: not refusal(scenario, plan))
    return runnable if any(runnable.by_gpus.values()) else ranking


def _notes(scenario: Scenario) -> Iterator[str]:
    """Yield what was assumed about a machine, and which plans were left out."""
    request, deployment = scenario.request, scenario.deployment
    profile = deployment.profile
    if deployment.subset is not None:
        yield from deployment.subset.notes()
    if profile is not None and request.detect and not request.profile:
        own = profile != profile_for(deployment.hardware.name)
        whose = "this machine's own profile" if own else "the shipped profile"
        yield f"priced with {whose} of {profile.date}"
    if request.gpus > MANY:
        yield NO_RINGS
        if request.objective != "memory":
            yield NO_PIPELINES


def shortened(answer: Recommendation, count: int) -> Recommendation:
    """Return the same answer with its first `count` plans."""
    if not 1 <= count <= LARGEST["top"]:
        raise InputError(f"top: got {count}, wanted a whole number from 1 to {LARGEST['top']}")
    return replace(answer, plans=answer.plans[:count])


def estimate_plan(scenario: Scenario, text: str | Plan | None) -> PlanEstimate:
    """Estimate the one plan that was asked for.

    Raises
    ------
    IllegalPlanError
        If it cannot run or does not fit: the reason, and the nearest plans that can.
    """
    gpus = scenario.request.gpus
    if text is None and gpus > 1:
        raise InputError(f"a plan is needed for {gpus} GPUs, such as tp{gpus}")
    if not isinstance(text, str | Plan | None):
        raise InputError(f"plan: got {shown(text)}, wanted axes and degrees such as cfg2.ulysses4")
    plan = parse_plan("single" if text is None else str(text))
    outcome = judge(scenario, plan)
    if isinstance(outcome, PlanEstimate):
        return with_load(scenario, outcome)
    raise IllegalPlanError(f"plan {plan}: {outcome.reason}; {_instead(scenario, outcome)}")


def _instead(scenario: Scenario, rejected: Rejected) -> str:
    """Say what to do in place of a plan: its remedy, the nearest that run, or what would fit."""
    outcomes = list(outcomes_on(scenario, {}, Shared()))
    plans = [estimate.plan for estimate in estimates(outcomes)]
    if plans:
        near = ", ".join(map(str, nearest(rejected.plan, plans)))
        nearby = f"nearest that can on {counted(scenario.request.gpus, 'GPU')}: {near}"
        return "; ".join(filter(None, (rejected.remedy, nearby)))
    short = [row.short for row in outcomes if isinstance(row, Rejected) and row.short is not None]
    return would_fit(scenario, short, rejected.plan)
