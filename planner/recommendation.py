"""From a request to an answer: ranking, refusals, the plan to run, launch lines, advice."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from costmodels.tables import profile_for
from planner.advice.advice import advice, disaggregation, in_pieces
from planner.advice.remedies import Alternative, alternatives, would_fit
from planner.engines.tables import allowed
from planner.plan_table import numbered_table, plan_rows
from planner.request.plan import Plan, nearest
from planner.request.request import LARGEST, Request
from planner.runners.launch import Launch, launch_lines
from planner.runners.refusal import Refusal, footnotes, refusals, refuser
from planner.runners.runners import Contender, compare, runners
from planner.runners.worker_lines import worker_lines
from planner.scenario.scenario import Scenario
from planner.search.clients import Point
from planner.search.estimate import Outcome, PlanEstimate, Rejected, Splits
from planner.search.evaluate import Shared
from planner.search.judging import MANY_GPUS, estimates, exhaustive_gpu_limit, judge, outcomes_on
from planner.search.plans import LONGEST_RING, uneven_variants
from planner.search.ranking import TIE, Ranking, goal, hosts_in_words, search
from planner.strategies import parse_plan
from topology.base import (
    IllegalPlanError,
    InputError,
    counted,
    format_seconds,
    shown,
)
from topology.base.rows import as_frame, flat
from topology.base.table import Drawing, Table
from topology.base.values import dataclass

_CACHED_PLANS: Final = 256
"""Judged plans that are kept, for other loads of theirs."""
CHARTED_PLANS: Final = 8
"""Plans whose memory a notebook shows."""
EXPLAINED_PLANS: Final = 3
"""Plans that cannot be run, and would be better, of which it is said why."""
NO_RINGS: Final = f"above {MANY_GPUS} GPUs rings of more than {LONGEST_RING} are left out"
NO_PIPELINES: Final = (
    "above {} GPUs pipelines deeper than it takes to fit are left out: replicas in their place are "
    "as fast"
)
PIPELINE_CAVEAT: Final = (
    " for one request; with more room for keys and values pipelines may serve more"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Plans, best first; rejected plans with reasons; the best plan at every number of GPUs.

    scenario : the request as what was chosen runs it. lead : the plan to run, which all words are
    about; None where nothing runs any. plans : those that it can run first. scaling : of those.
    baseline : one GPU, priced whether or not it fits. runs : everything that may run the request,
    each at its best plan, the best first. alternatives : other requests, where this one does not
    fit, or not well.
    notes : what was assumed about a machine that the request brings; kinds of plans left out.
    priced : plans that it can run, of fewer GPUs too.
    refusals : of plans that it cannot run. frontier : see `Ranking`. splits : two pools of workers,
    where they are asked for.
    """

    scenario: Scenario
    plans: tuple[PlanEstimate, ...]
    rejected: tuple[Rejected, ...]
    scaling: tuple[PlanEstimate, ...]
    priced: tuple[PlanEstimate, ...] = ()
    baseline: PlanEstimate | None
    runs: tuple[Contender, ...] = ()
    advice: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lead: PlanEstimate | None = None
    frontier: tuple[Point, ...] = ()
    splits: Splits | None = None

    def __repr__(self) -> str:
        first = f", {self.plans[0].plan} first" if self.plans else ""
        return f"<Recommendation: {counted(len(self.plans), 'plan')}{first}>"

    def _repr_html_(self) -> str:
        from planner.plan_charts import cost_by_latency, frontier, memory  # noqa: PLC0415  # for notebooks
        from topology.base.page import notebook  # noqa: PLC0415  # alone

        first_chart = frontier("TPOT against tokens/s a GPU", self.frontier) or cost_by_latency(
            self.priced
        )
        charts = (first_chart, memory(self.plans[:CHARTED_PLANS]))
        return notebook([self.table(), *(Drawing(svg=svg) for svg in charts)])

    def rows(self) -> list[dict[str, object]]:
        """Return a row of each plan, best first; runs : whether it can be run."""
        runnable_plans = {plan.plan for plan in self.runnable}
        return [
            {**flat(plan.to_dict()), "runs": plan.plan in runnable_plans} for plan in self.plans
        ]

    def to_frame(self) -> Any:  # noqa: ANN401  # of whichever package is there
        """Return a data frame of pandas or polars; see `as_frame`."""
        return as_frame(self.rows())

    @property
    def request(self) -> Request:
        """What was asked, with what runs it filled in."""
        return self.scenario.resolved

    @property
    def launch(self) -> tuple[Launch, ...]:
        """How engines run the lead."""
        if self.lead is None:
            return ()
        settings = self.lead.told if self.scenario.ranked_under_load else None
        return launch_lines(self.scenario, self.lead.plan, self.lead.placement, settings)

    @property
    def fewer(self) -> PlanEstimate | None:
        """What to run on fewer GPUs for one result: a replica of the lead, or what is faster."""
        if self.lead is None or self.request.objective != "latency" or self.request.loaded:
            return None
        replica, lead_latency = self.lead.plan.without("dp"), self.lead.latency_s
        smaller_plans = [plan for plan in self.priced if plan.gpus < self.lead.gpus]
        as_fast = (
            estimate
            for estimate in smaller_plans
            if estimate.plan == replica and estimate.latency_s <= lead_latency * (1 + TIE)
        )
        faster = (
            estimate for estimate in smaller_plans if estimate.latency_s < lead_latency * (1 - TIE)
        )
        return next(as_fast, min(faster, key=lambda estimate: estimate.latency_s, default=None))

    @property
    def runnable(self) -> tuple[PlanEstimate, ...]:
        """The plans that can be run."""
        barred = {refused.plan for refused in self.refusals}
        return tuple(plan for plan in self.plans if plan.plan not in barred)

    def footnotes(self, shown: Sequence[PlanEstimate]) -> list[str]:
        """Say what to watch of the lead, and why plans that would be better cannot be run.

        Of the plans that are `shown` where nothing can be run.
        """
        if self.lead is None:
            return footnotes(self.scenario, shown, self.refusals)
        lead_goal = goal(self.lead, self.request)
        barred = () if self.scenario.ranked_under_load else self.plans[len(self.runnable) :]
        better = [plan for plan in barred if goal(plan, self.request) < lead_goal]
        lines = footnotes(self.scenario, [self.lead, *better[:EXPLAINED_PLANS]], self.refusals)
        return [*lines, *self._doubt_lines(shown)]

    def _doubt_lines(self, shown: Sequence[PlanEstimate]) -> list[str]:
        """Say why plans that TensorRT may not run right stand behind slower ones."""
        unproven_plans = [plan for plan in shown if plan.unproven]
        if not unproven_plans or (self.lead is not None and self.lead.unproven):
            return []
        names = ", ".join(plan.name for plan in unproven_plans)
        version = self.request.tensorrt_version
        caution = next(allowed().cautions(self.scenario.model, unproven_plans[0].plan, version))
        return [f"{names} {'stand' if len(unproven_plans) > 1 else 'stands'} last: {caution}"]

    @property
    def runs_something(self) -> bool:
        """Whether a plan, or two pools of workers, can be run and do what is wanted."""
        return self.lead is not None or (self.splits is not None and self.splits.best is not None)

    def table(self) -> Table:
        """Make a row of each plan, best first, with a sign at those that cannot be run."""
        barred = {refused.plan for refused in self.refusals}
        where = partial(hosts_in_words, self.scenario.deployment)
        rows = plan_rows(self.plans, self.request, self.baseline, barred, where)
        return numbered_table(rows, self.plans, self.lead)

    def splits_table(self) -> Table:
        """Make a row of each split of the GPUs into two pools, best first."""
        plans = () if self.splits is None else self.splits.plans
        rows = plan_rows(plans, self.request, None, ())
        return replace(rows, align="<" + ">" * 7 + "<", fixed=len(rows.head), head_in="dim")

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        data: dict[str, object] = {
            "request": self.request.to_dict(),
            "plans": _dicts(self.plans),
            "recommended": None if self.lead is None else str(self.lead.plan),
            "rejected": _dicts(self.rejected),
            "engines": _dicts(self.runs),
            "scaling": [
                {"gpus": best.gpus, "plan": str(best.plan), "latency_s": best.latency_s}
                for best in self.scaling
            ],
        }
        if self.frontier:
            data["frontier"] = _dicts(self.frontier)
        if self.splits:
            launch = _dicts(split_lines(self))
            data["disaggregated"] = {**self.splits.to_dict(self.lead), "launch": launch}
        data |= {"advice": list(self.advice), "launch": _dicts(self.launch)}
        extra_lists: dict[str, list[object]] = {
            "alternatives": _dicts(self.alternatives), "notes": list(self.notes),
            "marks": _dicts(self.refusals),
        }  # fmt: skip
        return data | {name: rows for name, rows in extra_lists.items() if rows}


def _dicts(values: Iterable[Any]) -> list[object]:
    return [value.to_dict() for value in values]


def recommend_plans(
    scenario: Scenario, shared: Shared | None = None, simulated: int | None = None
) -> Recommendation:
    """Compare what may run a request, search all plans as the best does, and say how and why.

    shared : with answers for the same model and number of GPUs of other kinds; it is added to.
    simulated : so many of the first plans are ranked again, by events.
    """
    _check_burst(scenario.request)
    shared = Shared() if shared is None else shared
    runs = compare(scenario, shared)
    chosen = runs[0].scenario
    refuses = refuser(chosen)
    ranking = search(chosen, shared, lambda plan: not refuses(plan))
    plan_refusals = refusals(chosen, [estimate.plan for estimate in ranking.plans])
    runnable = ranking.only(lambda plan: not refuses(plan))
    barred = replace(ranking.only(lambda plan: bool(refuses(plan))), rejected=())
    if chosen.served:
        from planner.serving.serving import served_ranking  # noqa: PLC0415  # slow to load

        runnable = served_ranking(chosen, runnable)
        if chosen.ranked_under_load:
            barred = served_ranking(chosen, barred)
    if simulated is not None:
        from planner.simulation.reranked import reranked  # noqa: PLC0415  # few ask for it

        runnable = replace(runnable, plans=reranked(chosen, runnable.plans, simulated))
    barred_plans = {estimate.plan for estimate in barred.plans}
    splits = _splits(chosen, runnable)
    lead = next(iter(runnable.plans), None)
    other_requests = tuple(alternatives(scenario, ranking, lead))
    return Recommendation(
        scenario=chosen,
        plans=(*runnable.plans, *barred.plans),
        rejected=(*runnable.rejected, *(replace(row, nearest=None) for row in barred.rejected)),
        scaling=runnable.scaling,
        priced=tuple(plan for row in runnable.by_gpus.values() for plan in row),
        baseline=ranking.baseline,
        runs=runs,
        advice=(
            *advice(chosen, runnable, plan_refusals, lead, other_requests),
            *in_pieces(scenario, runnable),
            *disaggregation(splits, lead),
        ),
        alternatives=other_requests,
        notes=tuple(_notes(chosen)),
        refusals=tuple(row for row in plan_refusals if row.plan in barred_plans),
        lead=lead,
        frontier=_frontier(runnable, splits),
        splits=splits,
    )


def _splits(scenario: Scenario, ranking: Ranking) -> Splits | None:
    """Search two pools of workers where they are asked for; `ranking` is of what can be run."""
    if not scenario.request.disaggregate:
        return None
    from planner.serving.splits import best_splits  # noqa: PLC0415  # slow to load

    return best_splits(scenario, ranking)


def _frontier(ranking: Ranking, splits: Splits | None) -> tuple[Point, ...]:
    """Put the frontier of plans and of splits together."""
    if splits is None:
        return ranking.frontier
    from planner.serving.serving import frontier  # noqa: PLC0415  # slow to load

    return frontier([*ranking.frontier, *splits.points])


def _notes(scenario: Scenario) -> Iterator[str]:
    """Yield what was assumed about a model or a machine, and which plans were left out."""
    request, deployment = scenario.request, scenario.deployment
    profile = deployment.profile
    yield from (f"assumed: {line}" for line in scenario.model.assumed)
    if deployment.subset is not None:
        yield from deployment.subset.notes()
    if profile is not None and request.detect and not request.profile:
        from_machine = profile != profile_for(deployment.hardware.name)
        whose = "this machine's own profile" if from_machine else "the shipped profile"
        yield f"priced with {whose} of {profile.date}"
    if request.gpus > MANY_GPUS:
        yield NO_RINGS
    if request.gpus > exhaustive_gpu_limit(scenario.model) and request.objective != "memory":
        yield NO_PIPELINES.format(exhaustive_gpu_limit(scenario.model)) + (
            PIPELINE_CAVEAT if scenario.served else ""
        )


def shortened(answer: Recommendation, count: int) -> Recommendation:
    """Return the same answer with its first `count` plans."""
    if not 1 <= count <= LARGEST["top"]:
        raise InputError(f"top: got {count}, wanted a whole number from 1 to {LARGEST['top']}")
    return replace(answer, plans=answer.plans[:count])


def split_lines(answer: Recommendation) -> tuple[Launch, ...]:
    """Say what to type for the best split, with the engine that was priced or all that can."""
    best_split = None if answer.splits is None else answer.splits.best
    if best_split is None:
        return ()
    lines = [line for line in lines_of(answer.scenario, best_split) if not line.reason]
    title = answer.scenario.deployment.title
    priced_lines = tuple(line for line in lines if line.engine.partition(",")[0] == title)
    return priced_lines or tuple(lines)


def lines_of(scenario: Scenario, estimate: PlanEstimate) -> tuple[Launch, ...]:
    """Say how engines run an estimated plan, or every worker of two pools."""
    pair = estimate.disaggregated
    if pair is None:
        return launch_lines(scenario, estimate.plan, estimate.placement, estimate.told)
    settings = {"prefill": pair.prefill.told, "decode": pair.decode.told}
    return worker_lines(scenario, pair.pools, settings)


def estimate_plan(scenario: Scenario, text: str | Plan | None) -> PlanEstimate:
    """Estimate the one plan that was asked for.

    Raises `IllegalPlanError` if it cannot run or does not fit: the reason, and the nearest plans
    that can.
    """
    gpus, loaded = scenario.request.gpus, scenario.request.loaded
    if not loaded:
        _check_unloaded(scenario.request)
    _check_burst(scenario.request)
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
    outcome = _cached_outcome(scenario.unloaded, plan) if loaded else judge(scenario, plan)
    if isinstance(outcome, PlanEstimate):
        if not loaded:
            return outcome
        from planner.serving.serving import with_load  # noqa: PLC0415  # slow to load

        return with_load(scenario, _detached_copy(outcome))
    raise IllegalPlanError(
        f"plan {plan}: {outcome.reason}; {_replacement_advice(scenario, outcome)}"
    )


@lru_cache(maxsize=_CACHED_PLANS)
def _cached_outcome(scenario: Scenario, plan: Plan) -> Outcome:
    """Judge a plan once for all loads."""
    return judge(scenario, plan)


def _detached_copy(estimate: PlanEstimate) -> PlanEstimate:
    """Give an estimate mappings of its own, so that who alters them alters no kept one."""
    return replace(
        estimate,
        stages_s=dict(estimate.stages_s),
        breakdown_s=dict(estimate.breakdown_s),
        memory_parts_bytes=dict(estimate.memory_parts_bytes),
        known=dict(estimate.known),
    )


def _check_unloaded(request: Request) -> None:
    """Refuse to be told what only a load has to do with, and not of what load."""
    for name in ("slo_ttft", "slo_tpot", "spread"):
        if value := getattr(request, name):
            got = format_seconds(value) if name.startswith("slo") else f"{value:g}"
            raise InputError(
                f"{name}: got {got} of no load, wanted a concurrency, a rate or arrivals beside it "
                "(recommend searches one)"
            )


def _check_burst(request: Request) -> None:
    """Refuse to be told how requests come that are sent as others are done, or are timed."""
    if request.burst != 1 and not request.rate:
        raise InputError(f"burst: got {request.burst:g} of no rate, wanted a rate beside it")


def _plans_run_by_any(scenario: Scenario, plans: Sequence[Plan]) -> list[Plan]:
    """Keep the plans that what is asked for runs, or those of anything else if it runs none."""
    all_runners = list(runners(scenario))
    requested_runners = [
        runner for runner in all_runners if runner.deployment.name == scenario.deployment.name
    ]
    for group in (requested_runners, all_runners):
        refusers = [refuser(runner) for runner in group]
        runnable = [plan for plan in plans if not all(refuses(plan) for refuses in refusers)]
        if runnable:
            return runnable
    return []


def _replacement_advice(scenario: Scenario, rejected: Rejected) -> str:
    """Say what to do in place of a plan: its remedy, the nearest that run, or what would fit."""
    outcomes = list(outcomes_on(scenario, {}, Shared()))
    plans = [estimate.plan for estimate in estimates(outcomes)]
    uneven = [plan for plan in plans if plan in {*uneven_variants(rejected.plan)}]
    runnable = dict.fromkeys(
        [*(_plans_run_by_any(scenario, plans) or plans), *_plans_run_by_any(scenario, uneven)]
    )
    if runnable:
        nearest_names = ", ".join(map(str, nearest(rejected.plan, runnable)))
        nearest_text = (
            f"nearest that can on {counted(scenario.request.gpus, 'GPU')}: {nearest_names}"
        )
        return "; ".join(filter(None, (rejected.remedy, nearest_text)))
    shortfalls = [
        row.short for row in outcomes if isinstance(row, Rejected) and row.short is not None
    ]
    return would_fit(scenario, shortfalls, rejected.plan)
