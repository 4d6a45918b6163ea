"""From a request to an answer: ranking, refusals, the plan to run, launch lines, advice."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodels.tables import profile_for
from planner.advice.advice import advice
from planner.advice.compare import Contender, compare
from planner.advice.refusals import SIGN
from planner.advice.remedies import Alternative, alternatives, would_fit
from planner.engines.launch import Launch, launch_lines
from planner.engines.refusal import Refusal, refusal, refusals
from planner.engines.scenario import Scenario
from planner.engines.workers import worker_lines
from planner.request.plan import Plan, nearest
from planner.request.request import LARGEST, Request
from planner.search.clients import Point
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.evaluate import Shared
from planner.search.plans import LONGEST
from planner.search.ranking import MANY, estimates, judge, many, outcomes_on, search
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
    "above {} GPUs pipelines deeper than it takes to fit are left out: replicas in their place are "
    "as fast"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Plans, best first; rejected plans with reasons; the best plan at every number of GPUs.

    scenario : the request as what was chosen runs it. lead : the plan to run, which all words are
    about; None where nothing runs any. plans : those that it can run first. scaling : of those.
    baseline : one GPU, priced whether or not it fits. runs : everything that may run the request,
    each at its best plan, the best first. launch : how engines run the lead.
    alternatives : other requests, where this one does not fit, or not well.
    notes : what was assumed about a machine that the request brings; kinds of plans left out.
    refusals : of plans that it cannot run. frontier : see `Ranking`.
    """

    scenario: Scenario
    plans: tuple[PlanEstimate, ...]
    rejected: tuple[Rejected, ...]
    scaling: tuple[PlanEstimate, ...]
    baseline: PlanEstimate | None
    runs: tuple[Contender, ...] = ()
    advice: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
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

    @property
    def request(self) -> Request:
        """What was asked, with what runs it filled in."""
        return self.scenario.resolved

    @property
    def runnable(self) -> tuple[PlanEstimate, ...]:
        """The plans that can be run."""
        barred = {refused.plan for refused in self.refusals}
        return tuple(plan for plan in self.plans if plan.plan not in barred)

    def table(self, *, numbered: bool = True) -> Table:
        """Make a row of each plan, best first, with a sign at those that cannot be run."""
        columns = _columns(self)
        barred = {refused.plan for refused in self.refusals}
        rows = []
        for plan in self.plans:
            name, *rest = _row(plan, self)
            rows.append([f"{name} {SIGN}" if plan.plan in barred else name, *rest])
        if not numbered:
            return Table(head=columns, rows=rows)
        return Table(
            head=["#", *columns],
            rows=[[str(number + 1), *row] for number, row in enumerate(rows)],
            align=">" + "".join("<" if name in ("plan", "bound by") else ">" for name in columns),
            fixed=2,  # a plan is not broken
            head_in="dim",
            rows_in={number: "bold" for number, plan in enumerate(self.plans) if plan is self.lead},
        )

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        refused = [refusal.to_dict() for refusal in self.refusals]
        instead = [other.to_dict() for other in self.alternatives]
        return {
            "request": self.request.to_dict(),
            "plans": [plan.to_dict() for plan in self.plans],
            "recommended": None if self.lead is None else str(self.lead.plan),
            "rejected": [plan.to_dict() for plan in self.rejected],
            "engines": [run.to_dict() for run in self.runs],
            "scaling": [
                {"gpus": best.gpus, "plan": str(best.plan), "latency_s": best.latency_s}
                for best in self.scaling
            ],
            **({"frontier": [point.to_dict() for point in self.frontier]} if self.frontier else {}),
            "advice": list(self.advice),
            "launch": [launch.to_dict() for launch in self.launch],
            **({"alternatives": instead} if instead else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"marks": refused} if refused else {}),
        }


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
    return any("prefill" in plan.stages_s for plan in answer.plans[:1])


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


def recommend_plans(scenario: Scenario, shared: Shared | None = None) -> Recommendation:
    """Compare what may run a request, search all plans as the best does, and say how and why.

    Parameters
    ----------
    shared : with answers for the same model and number of GPUs of other kinds; it is added to.
    """
    shared = Shared() if shared is None else shared
    runs = compare(scenario, shared)
    chosen = runs[0].scenario if runs and (runs[0].estimate or runs[0].nearest) else scenario
    ranking = search(chosen, shared, lambda plan: not refusal(chosen, plan))
    refused = refusals(chosen, [estimate.plan for estimate in ranking.plans])
    barred = {row.plan for row in refused}
    runnable = ranking.only(lambda plan: not refusal(chosen, plan))
    if chosen.served:
        from planner.serving.loaded_plans import served_ranking  # noqa: PLC0415  # slow to load

        runnable = served_ranking(chosen, runnable)
    lead = next(iter(runnable.plans), None)
    instead = tuple(alternatives(scenario, ranking, lead))
    return Recommendation(
        scenario=chosen,
        plans=(*runnable.plans, *(plan for plan in ranking.plans if plan.plan in barred)),
        rejected=runnable.rejected,
        scaling=runnable.scaling,
        baseline=ranking.baseline,
        runs=runs,
        advice=tuple(advice(chosen, runnable, refused, lead, instead)),
        alternatives=instead,
        launch=()
        if lead is None
        else launch_lines(
            chosen, lead.plan, lead.placement, lead.told if chosen.ranked_under_load else None
        ),
        notes=tuple(_notes(chosen)),
        refusals=refused,
        lead=lead,
        frontier=runnable.frontier,
    )


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
    if request.gpus > many(scenario.model) and request.objective != "memory":
        yield NO_PIPELINES.format(many(scenario.model))


def shortened(answer: Recommendation, count: int) -> Recommendation:
    """Return the same answer with its first `count` plans."""
    if not 1 <= count <= LARGEST["top"]:
        raise InputError(f"top: got {count}, wanted a whole number from 1 to {LARGEST['top']}")
    return replace(answer, plans=answer.plans[:count])


def lines_of(scenario: Scenario, estimate: PlanEstimate) -> tuple[Launch, ...]:
    """Say how engines run an estimated plan, or every worker of two pools."""
    pair = estimate.disaggregated
    if pair is None:
        return launch_lines(scenario, estimate.plan, estimate.placement, estimate.told)
    told = {"prefill": pair.prefill.told, "decode": pair.decode.told}
    return worker_lines(scenario, pair.pools, told)


def estimate_plan(scenario: Scenario, text: str | Plan | None) -> PlanEstimate:
    """Estimate the one plan that was asked for.

    Raises
    ------
    IllegalPlanError
        If it cannot run or does not fit: the reason, and the nearest plans that can.
    """
    gpus = scenario.request.gpus
    if scenario.request.two_pools:
        if text is not None:
            raise InputError(f"plan: got {shown(text)} beside prefill_plan, wanted one of the two")
        from planner.serving.disaggregated import estimate_pools  # noqa: PLC0415  # slow to load

        return estimate_pools(scenario)
    if text is None and gpus > 1:
        raise InputError(f"a plan is needed for {gpus} GPUs, such as tp{gpus}")
    if not isinstance(text, str | Plan | None):
        raise InputError(f"plan: got {shown(text)}, wanted axes and degrees such as cfg2.ulysses4")
    plan = parse_plan("single" if text is None else str(text))
    outcome = judge(scenario, plan)
    if isinstance(outcome, PlanEstimate):
        if not scenario.request.loaded:
            _check_unloaded(scenario.request)
            return outcome
        from planner.serving.loaded_plans import with_load  # noqa: PLC0415  # slow to load

        return with_load(scenario, outcome)
    raise IllegalPlanError(f"plan {plan}: {outcome.reason}; {_instead(scenario, outcome)}")


def _check_unloaded(request: Request) -> None:
    """Refuse to be told how soon tokens are wanted, and not of what load."""
    for name in ("slo_ttft", "slo_tpot"):
        if limit := getattr(request, name):
            raise InputError(
                f"{name}: got {format_seconds(limit)} of no load, wanted a concurrency, a rate or "
                "arrivals beside it (recommend searches one)"
            )


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
