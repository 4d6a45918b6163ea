"""Who may run a request, each at its best plan, or why it has none.

That is TensorRT, by ``planner export``, and engines in each of their runtimes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Final

from planner.engines.engine import EAGER
from planner.engines.tables import allowed, engines
from planner.engines.tensorrt import dotted
from planner.models import Exports
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, Request
from planner.runners.launch import Launch, launched
from planner.runners.refusal import refuser
from planner.scenario.deployment import runtimes_of
from planner.scenario.scenario import Scenario
from planner.search.clients import Serving
from planner.search.estimate import PAIR_HALF_WIDTH, Outcome, PlanEstimate, Rejected
from planner.search.evaluate import Shared
from planner.search.judging import estimates, judge, outcomes_on
from planner.search.plans import legal_plans, unpiped
from planner.search.ranking import TIE, Ranking, goal, goal_distance, gpu_counts, near, rank
from topology.base import counted
from topology.base.values import dataclass

_NO_AXIS: Final = re.compile(r"has no \w+ axis")
_DIGITS: Final = re.compile(r"\d+")
_EXPORT_TEXTS: Final[Mapping[Exports, str]] = {
    "results": "planner export makes {made} by `python -m runner generate`",
    "numbers": "planner export computes the transformer, and makes no {made} yet",
    "times": "planner export writes networks that time the transformer and make no {made}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A request as an engine runs it in one of its runtimes, or as TensorRT does.

    estimate : of the best plan there, launch : what to type. reason : why there is none.
    nearest : what clients see of the plan that comes nearest, where all miss what is wanted.
    """

    scenario: Scenario
    estimate: PlanEstimate | None = None
    launch: Launch | None = None
    reason: str = ""
    nearest: Serving | None = None

    @property
    def title(self) -> str:
        """What runs it, as people read it."""
        return self.scenario.deployment.title

    @property
    def version(self) -> str:
        """The version that is known of what runs it."""
        runner = self.scenario.deployment.runner
        if runner is not None:
            return runner.version
        runs = allowed().running(self.scenario.request.tensorrt_version)
        return dotted(runs) if self.scenario.deployment.exported else ""

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        if self.estimate is None or self.launch is None:
            return {"engine": self.scenario.deployment.name, "reason": self.reason}
        serving = self.estimate.serving
        return {
            "engine": self.scenario.deployment.name,
            "version": self.version,
            "runtime": self.estimate.runtime,
            "plan": str(self.estimate.plan),
            "latency_s": self.estimate.latency_s,
            "memory_bytes": self.estimate.memory_bytes,
            **({} if serving is None else {"serving": serving.to_dict()}),
            "command": self.launch.line,
        }


def exported(scenario: Scenario) -> str:
    """Say what `planner export` gives, where a scenario is run by that; empty for engines."""
    if not scenario.deployment.exported:
        return ""
    model = scenario.model
    product = "videos" if model.defaults.frames > 1 else "pictures"
    sentence = _EXPORT_TEXTS[_output_of(scenario)].format(
        made="text" if model.kind == "decoder" else product
    )
    return f"{sentence}; nobody has run that on GPUs yet"


def _output_of(scenario: Scenario) -> Exports:
    """Say what a scenario gives where it is run: an engine gives results."""
    deployment, outputs = scenario.deployment, scenario.model.exports
    if not deployment.exported:
        return "results"
    split_hosts = outputs == "results" and deployment.hosts > 1  # its ranks are started on one
    return "numbers" if split_hosts else outputs


def runners(scenario: Scenario) -> Iterator[Scenario]:
    """Ask the same of everything that a request leaves open, in the order of lists.

    Of an engine's runtimes eager PyTorch comes last; of those that serve language models it is
    left out unless it is asked for, as they fuse there too, which the price does not know. A folder
    that `planner export` writes serves no language model. A runtime that no engine has is that of
    ``planner validate``.
    """
    request = scenario.request
    engine_names = [engine.name for engine in engines().of_kind(scenario.model.kind)]
    export_names = [""] if scenario.model.kind == "diffusion" else []
    pairs = [
        (name, runtime)
        for name in request.engines or (*export_names, *engine_names)
        for runtime in runtimes_of(name, scenario.model)
        if request.runtime == runtime
        or name == EXECUTOR
        or not (request.runtime or (runtime == EAGER and scenario.model.kind == "decoder"))
    ]
    for name, runtime in pairs or [(EXECUTOR, request.runtime)]:
        yield scenario.run_by(name, request.runtime if name == EXECUTOR else runtime)


def compare(scenario: Scenario, shared: Shared | None = None) -> tuple[Contender, ...]:
    """Find the best plan of everything that a request leaves open to run it.

    Those that can come first, the best by the objective of the request, which makes the result if
    one that does is as good; of others one row each.
    """
    shared, request = shared or Shared(), scenario.request

    def order(run: Contender) -> tuple[float, float]:
        """Put what nobody has told to be right last; else by the goal, or what is missed."""
        if run.estimate is not None:
            return run.estimate.unproven, goal(run.estimate, request)
        return (inf, inf) if run.nearest is None else goal_distance(run.nearest, request)

    rows: list[Contender] = []
    unable_by_name: dict[str, Contender] = {}
    for _, runs in groupby(runners(scenario), key=lambda each: each.deployment.name):
        contenders = list(_contenders_of(list(runs), shared))
        rows += [run for run in contenders if run.estimate is not None]
        unable_by_name |= {
            run.scenario.deployment.name: run for run in contenders if run.estimate is None
        }
    rows = _results_first(sorted(rows, key=order), request)
    names = {run.scenario.deployment.name for run in rows}
    unable = [run for name, run in unable_by_name.items() if name not in names]
    return (*rows, *sorted(unable, key=order))


def _results_first(runs: list[Contender], request: Request) -> list[Contender]:
    """Let the fastest that makes the result lead, where what makes none is as good as it."""
    goals = [goal(run.estimate, request) for run in runs if run.estimate is not None]
    for run, run_goal in zip(runs, goals, strict=True):
        if run_goal > goals[0] + PAIR_HALF_WIDTH * abs(goals[0]):
            break
        if _output_of(run.scenario) == "results":
            return [run, *(other for other in runs if other is not run)]
    return runs


def _contenders_of(scenarios: Sequence[Scenario], shared: Shared) -> Iterator[Contender]:
    """Find the best plan of an engine in each of its runtimes, the fastest of which comes first.

    No plan is faster in a later one than in the first. Under load that one alone is looked at.
    """
    fastest, *slower = scenarios
    outcomes = list(_outcomes(fastest, shared))
    if fastest.ranked_under_load:
        yield _best_contender(fastest, _served_outcomes(fastest, outcomes))
        return
    yield _best_contender(fastest, outcomes)
    for scenario in slower:
        yield _best_contender(
            scenario, list(_promising_outcomes(scenario, estimates(outcomes), shared)) or outcomes
        )


def _served_outcomes(scenario: Scenario, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Serve the load of a request with the plans that fit."""
    from planner.serving.serving import served_ranking  # noqa: PLC0415  # slow to load

    by_gpus: dict[int, list[PlanEstimate]] = {}
    for estimate in estimates(outcomes):
        by_gpus.setdefault(estimate.gpus, []).append(estimate)
    rejected = tuple(outcome for outcome in outcomes if isinstance(outcome, Rejected))
    ranking = Ranking(
        request=scenario.request, plans=(), by_gpus=by_gpus, rejected=rejected, baseline=None
    )
    ranking = served_ranking(scenario, ranking)
    return (*ranking.plans, *ranking.rejected)


def _outcomes(scenario: Scenario, shared: Shared) -> Iterator[Outcome]:
    """Judge the plans that it can run, of fewer GPUs too where the request may have fewer.

    Pipelines known not to be the best are left out.
    """
    deployment, request = scenario.deployment, scenario.request
    judged: dict[Plan, Outcome] = {}
    single_requests = scenario.served and not (scenario.ranked_under_load or request.at_most_gpus)
    stages_in_turn = single_requests and deployment.runtime.launch == "graph"
    refuses = refuser(scenario)

    def runs(plan: Plan) -> bool:
        return not refuses(plan) and not (stages_in_turn and _known_slower(plan, judged))

    counts = gpu_counts(deployment) if request.at_most_gpus else [deployment.gpus]
    for gpus in counts:
        yield from outcomes_on(scenario.on(gpus), judged, shared, runs)


def _known_slower(plan: Plan, judged: Mapping[Plan, Outcome]) -> bool:
    """Whether a pipeline of a language model is known to answer one request later than another.

    Its stages take turns, so that replicas in their place are as fast: each runs the same layers.
    Where hosts launch every kernel it is otherwise, as those of all stages begin at once.
    """
    unpiped_outcome = judged.get(unpiped(plan, passes=1) or plan) if plan.degree("pp") > 1 else None
    priced = unpiped_outcome.short if isinstance(unpiped_outcome, Rejected) else unpiped_outcome
    if priced is None:
        return False
    return any(other.latency_s < priced.latency_s for other in estimates(judged.values()))


def _promising_outcomes(
    scenario: Scenario, bounds: Iterable[PlanEstimate], shared: Shared
) -> Iterator[Outcome]:
    """Judge plans while they may be the best.

    bounds : the same plans, none of them worse than it will be here.
    """
    request, best = scenario.request, inf
    for bound in sorted(bounds, key=lambda bound: goal(bound, request)):
        if goal(bound, request) >= best + TIE * abs(best) * request.at_most_gpus:
            return
        outcome = judge(scenario.on(bound.gpus), bound.plan, shared)
        if isinstance(outcome, PlanEstimate):
            best = min(best, goal(outcome, request))
        yield outcome


def _best_contender(scenario: Scenario, outcomes: Sequence[Outcome]) -> Contender:
    """Take the best of the plans that it can run, or say why there is none."""
    fitting = rank(estimates(outcomes), scenario.request)
    if not fitting:
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
        nearest = next((served for _, served in near(rejected, scenario.request)), None)
        return Contender(scenario=scenario, reason=why_none(scenario, outcomes), nearest=nearest)
    best = fitting[0]
    launch = launched(scenario, best.plan, best.placement, best.told)
    return Contender(scenario=scenario, estimate=best, launch=launch)


def why_none(scenario: Scenario, outcomes: Iterable[Outcome]) -> str:
    """Say why nothing can run: memory of what could, or what stands against most plans.

    That an engine has not an axis of some plans says least, and more if it has none for a model.
    Reasons that differ in a number count together.
    """
    rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    missed_goal = missed(rejected, scenario.request)
    shortfalls = [row for row in rejected if row.short is not None]
    if missed_goal or shortfalls:
        return missed_goal or closest(shortfalls)
    model, gpus = scenario.model, scenario.deployment.gpus
    legal = legal_plans(model, scenario.workload, gpus)
    reasons = Counter(map(refuser(scenario), legal))
    if "" in reasons:  # it runs, and serves no request
        return next((row.reason for row in reversed(rejected) if row.plan in legal), "")
    if not reasons:
        return f"the model has no plan of {counted(gpus, 'GPU')}"
    if all(_NO_AXIS.fullmatch(reason) for reason in reasons):
        return f"has no axis that spreads it over {counted(gpus, 'GPU')}"
    reason_kinds = Counter(_DIGITS.sub("", reason) for reason in reasons.elements())

    return max(
        reasons,
        key=lambda reason: (
            " axis" not in reason, " axis for " in reason,
            reason_kinds[_DIGITS.sub("", reason)], reasons[reason],
        ),
    )  # fmt: skip


def closest(short: Iterable[Rejected]) -> str:
    """Say which plan lacks the least memory, and how much.

    short : plans that do not fit, at least one.
    """
    closest_row = min(short, key=lambda row: row.short.memory_bytes if row.short else 0.0)
    return f"{closest_row.plan} is closest to fitting: {closest_row.reason}"


def missed(rejected: Sequence[Rejected], request: Request) -> str:
    """Say that no plan does what is wanted, and which comes nearest; empty where none was tried."""
    for row, _ in near(rejected, request)[:1]:
        return f"no plan meets what is wanted: {row.plan} comes nearest, {row.reason}"
    return ""
