"""Try every plan there is, and rank those that run; why the others do not is kept beside."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from planner.lowering import lower
from planner.models import Model
from planner.request.plan import SEQUENCE, Plan
from planner.request.request import Request
from planner.scenario.deployment import Deployment
from planner.scenario.scenario import Scenario
from planner.search.clients import Point, Serving, wanted_of
from planner.search.estimate import Outcome, PlanEstimate, Rejected, worded
from planner.search.evaluate import Shared, evaluate
from planner.search.plan_memory import encoder_bytes, usable_bytes
from planner.search.plans import (
    LONGEST,
    illegal_axes,
    legal_plans,
    objections,
    plans,
    replacements,
    replica,
    replicated,
    turned,
)
from topology.base import InputError, counted, format_bytes
from topology.base.values import dataclass

Runs = Callable[[Plan], bool]
"""Whether a plan can be run by what a request names."""


def anything(plan: Plan) -> bool:  # noqa: ARG001  # whatever the plan
    """Take every plan for one that can be run."""
    return True


TIE: Final = 0.03
"""Fewer GPUs win when more gain less than this share of the time."""

MANY: Final = 64
"""Above so many GPUs plans are left out of which others are known to be as good."""
LONG: Final = 32768
"""Tokens from which plans that cut a prompt are judged though what was asked for runs none."""
MANY_OF_EXPERTS: Final = 16
"""The same of models with experts, which have more plans."""


def many(model: Model) -> int:
    """Count the GPUs above which not every plan of a model is judged."""
    return MANY_OF_EXPERTS if model.has_experts else MANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Every plan of a request, judged.

    plans : that run, best first. by_gpus : the same in no order, by number of GPUs; of fewer
    GPUs than were asked for too. baseline : one GPU, priced whether or not it fits.
    frontier : of a language model that is served, the plans and concurrencies that no other beats
    in both the time of a token and tokens/s a GPU.
    """

    request: Request
    plans: tuple[PlanEstimate, ...]
    by_gpus: Mapping[int, Sequence[PlanEstimate]]
    rejected: tuple[Rejected, ...]
    baseline: PlanEstimate | None
    frontier: tuple[Point, ...] = ()

    @property
    def scaling(self) -> tuple[PlanEstimate, ...]:
        """The best plan at every number of GPUs."""
        return tuple(rank(row, self.request)[0] for row in self.by_gpus.values() if row)

    def asks(self, gpus: int) -> bool:
        """Whether plans of so many GPUs are an answer."""
        return _is_asked(gpus, self.request)

    def judged(
        self,
        by_gpus: Mapping[int, Sequence[PlanEstimate]],
        rejected: Iterable[Rejected],
        frontier: tuple[Point, ...],
    ) -> "Ranking":
        """Rank the same plans again, of which more is known."""
        return replace(
            self,
            by_gpus=by_gpus,
            plans=_ranked(by_gpus, self.request),
            rejected=tuple(rejected),
            frontier=frontier,
        )

    def only(self, keep: Callable[[Plan], bool]) -> "Ranking":
        """Rank some of the plans alone."""
        by_gpus = {
            gpus: [estimate for estimate in row if keep(estimate.plan)]
            for gpus, row in self.by_gpus.items()
        }
        return replace(self, by_gpus=by_gpus, plans=_ranked(by_gpus, self.request))


def search(scenario: Scenario, shared: Shared | None = None, runs: Runs = anything) -> Ranking:
    """Judge all plans of a request, and rank those that are legal and fit.

    Parameters
    ----------
    runs : plans that can be run, which none that cannot replaces.
    """
    request, shared = scenario.request, shared or Shared()
    seen: dict[Plan, Outcome] = {}
    outcomes: dict[int, list[Outcome]] = {}
    for gpus in gpu_counts(scenario.deployment):
        outcomes[gpus] = list(outcomes_on(scenario.on(gpus), seen, shared, runs, others=True))
    by_gpus = {gpus: estimates(row) for gpus, row in outcomes.items()}
    illegal = any(objections(scenario.model, scenario.workload, Plan(), 1))
    return Ranking(
        request=request,
        plans=_ranked(by_gpus, request),
        by_gpus=by_gpus,
        rejected=_once(row for gpus, row in outcomes.items() if _is_asked(gpus, request)),
        baseline=None if illegal else price(scenario, Plan(), shared),
    )


def _is_asked(gpus: int, request: Request) -> bool:
    """Whether plans of so many GPUs are an answer."""
    return request.at_most_gpus or gpus == request.gpus


def _ranked(
    by_gpus: Mapping[int, Sequence[PlanEstimate]], request: Request
) -> tuple[PlanEstimate, ...]:
    rows = (row for gpus, row in by_gpus.items() if _is_asked(gpus, request))
    return tuple(rank((estimate for row in rows for estimate in row), request))


def rank(estimates: Iterable[PlanEstimate], request: Request) -> list[PlanEstimate]:
    """Order plans by the objective; equal ones by fewer GPUs, then by latency, then by name.

    Those that nobody has told to be right stand behind all others.
    """
    ordered = sorted(
        estimates,
        key=lambda one: (
            one.unproven, goal(one, request), one.gpus, one.latency_s, str(one.plan),
        ),
    )  # fmt: skip
    if not request.at_most_gpus or not ordered:
        return ordered
    best = goal(ordered[0], request)
    near = best + TIE * abs(best)
    as_proven = (plan for plan in ordered if plan.unproven == ordered[0].unproven)
    close = [plan for plan in as_proven if goal(plan, request) <= near]
    first = min(close, key=lambda plan: (plan.gpus, goal(plan, request)))
    return [first, *[plan for plan in ordered if plan is not first]]


def goal(estimate: PlanEstimate, request: Request) -> float:
    """Give what a request wants least of: seconds, bytes, GPU-seconds, or fewer results."""
    if estimate.serving is not None and (request.loaded or request.objective != "latency"):
        return _served_goal(estimate, estimate.serving, request)
    match request.objective:
        case "latency":
            return estimate.latency_s
        case "throughput":
            return -estimate.throughput_per_s
        case "memory":
            return estimate.memory_bytes
        case "cost":
            return estimate.gpus / estimate.throughput_per_s


def _served_goal(estimate: PlanEstimate, serving: Serving, request: Request) -> float:
    match request.objective:
        case "latency":
            return serving.request.mean
        case "throughput":
            return -serving.tokens_per_s
        case "memory":
            return estimate.memory_bytes
        case "cost":
            return 1 / serving.tokens_per_s_per_gpu


def estimates(outcomes: Iterable[Outcome]) -> list[PlanEstimate]:
    """Keep what runs."""
    return [outcome for outcome in outcomes if isinstance(outcome, PlanEstimate)]


def _once(rows: Iterable[Iterable[Outcome]]) -> tuple[Rejected, ...]:
    """Keep one of the rows that say the same; a degree may be barred at several numbers of GPUs."""
    rejected = (outcome for row in rows for outcome in row if isinstance(outcome, Rejected))
    return tuple({(row.plan, row.reason): row for row in rejected}.values())


def outcomes_on(
    scenario: Scenario,
    seen: dict[Plan, Outcome],
    shared: Shared,
    runs: Runs = anything,
    *,
    others: bool = False,
) -> Iterator[Outcome]:
    """Judge the plans of a scenario's GPUs.

    Where they are many, a degree that no plan can have is rejected once, for all of them, and the
    shallowest pipelines come first.

    Parameters
    ----------
    seen : what became of plans of fewer GPUs. shared : with them. Both are used and added to.
    runs : plans that can be run. others : whether the rest is judged too.
    """
    model, workload, gpus = scenario.model, scenario.workload, scenario.deployment.gpus
    short = _short_prompt(scenario)
    if scenario.request.gpus <= many(model):
        for plan in plans(model, gpus) if others else filter(runs, plans(model, gpus)):
            if short and plan.sequence_ranks > 1 and not runs(plan):
                yield Rejected(plan=plan, reason=short)
                continue
            yield _outcome(scenario, plan, seen, shared)
        return
    barred = illegal_axes(model, workload, gpus)
    if short:
        degrees = (n for n in range(2, gpus + 1) if gpus % n == 0)
        ways = [(axis, degree) for degree in degrees for axis in SEQUENCE]
        barred |= {way: short for way in ways if way not in barred and not runs(Plan((way,)))}
    for axis, reason in barred.items():
        yield Rejected(plan=Plan((axis,)), reason=f"{reason}; so for every plan that has it")
    legal = frozenset(legal_plans(model, workload, gpus))
    for plan in sorted(plans(model, gpus, barred), key=lambda plan: plan.degree("pp")):
        can = runs(plan)
        illegal = plan not in legal
        left_out = _left_out(scenario, plan, seen, runs if can else anything)
        if (can or others) and (illegal or not left_out):
            yield _outcome(scenario, plan, seen, shared)


def _short_prompt(scenario: Scenario) -> str:
    """Say that a language model's prompt is not worth cutting where nothing runs it; or nothing."""
    model = scenario.model
    if model.kind != "decoder":
        return ""
    tokens = int(np.max(scenario.workload.length(model.streams[0].name)))
    if tokens >= LONG:
        return ""
    return f"cuts a prompt of {tokens:,} tokens, and is not run: judged from {LONG:,} on"


def _left_out(scenario: Scenario, plan: Plan, seen: Mapping[Plan, Outcome], runs: Runs) -> bool:
    """Whether other plans that run are known to be as good, where GPUs are many."""
    if plan.degree("ring") > LONGEST:
        return True
    frugal = scenario.request.objective == "memory"
    return not frugal and any(map(runs, replacements(plan, scenario.workload.passes, seen)))


def _outcome(scenario: Scenario, plan: Plan, seen: dict[Plan, Outcome], shared: Shared) -> Outcome:
    """Judge a plan, or reuse what became of one of its replicas."""
    alone = replica(scenario.deployment, plan) if scenario.request.batch == 1 else None
    if alone is not None and alone in seen:
        seen[plan] = replicated(plan.degree("dp"), seen[alone])
        return seen[plan]
    outcome = judge(scenario, plan, shared)
    other = turned(scenario.deployment, plan)
    if other is not None:
        outcome = min(outcome, judge(scenario, other, shared), key=_latency)
    seen[plan] = outcome
    return outcome


def _latency(outcome: Outcome) -> float:
    return outcome.latency_s if isinstance(outcome, PlanEstimate) else float("inf")


def judge(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> Outcome:
    """Estimate a plan of all GPUs, or say why it cannot run."""
    deployment = scenario.deployment
    reasons = list(objections(scenario.model, scenario.workload, plan, deployment.gpus))
    if not reasons and deployment.subset is not None:
        reasons = [reason for reason in [deployment.subset.obstacle()] if reason]
    if reasons:
        return Rejected(plan=plan, reason="; ".join(reasons))
    estimate = price(scenario, plan, shared)
    missing = estimate.memory_bytes - usable_bytes(scenario)
    if missing > 0:
        return Rejected(
            plan=plan,
            reason=_too_large(estimate, missing),
            short=estimate,
            remedy=_remedy(scenario, missing),
        )
    return estimate


def judge_all(scenario: Scenario) -> Iterator[Outcome]:
    """Judge every plan of all GPUs by itself."""
    shared = Shared()
    for plan in plans(scenario.model, scenario.deployment.gpus):
        yield judge(scenario, plan, shared)


def price(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> PlanEstimate:
    """Estimate a legal plan, whether or not it fits, on the best seats of a machine.

    Parameters
    ----------
    plan : legal (see `objections`), of any number of GPUs that the deployment has.
    shared : with other estimates of the same request; it is used, and added to.

    Raises
    ------
    TopologyError
        If the deployment has fewer GPUs, or its nodes would hold unequal shares.
    UncalibratedError
        If there are no kernel parameters for the device.
    """
    return evaluate(replace(scenario, deployment=seated(scenario, plan)), plan, shared)


def seated(scenario: Scenario, plan: Plan) -> Deployment:
    """Find the best seats for a plan on the machine that the request brings, if it brings one."""
    deployment = scenario.deployment.on(plan.gpus)
    if deployment.subset is None:
        return deployment
    from planner.placement.seating import seat, traffic_of  # noqa: PLC0415  # only machines need it

    sent = traffic_of(lower(scenario.model, scenario.workload, plan))
    return replace(deployment, placed=seat(plan, deployment.subset, sent))


def _too_large(estimate: PlanEstimate, missing: float) -> str:
    usable = estimate.memory_bytes - missing
    return (
        f"needs {format_bytes(estimate.memory_bytes)} of {format_bytes(usable)} a GPU, "
        f"{format_bytes(missing)} short, at {worded(estimate.peak_stage)}"
    )


def _remedy(scenario: Scenario, missing: float) -> str:
    """Say that a plan would fit if the text encoders left the GPU, where it would."""
    can = not scenario.request.offload and missing <= encoder_bytes(scenario.model)
    return "would fit with --offload" if can else ""


def gpu_counts(deployment: Deployment) -> list[int]:
    """List the GPUs that were asked for, and the smaller numbers that sit evenly on their hosts."""
    counts = counts_up_to(deployment.gpus, many=MANY)
    return [count for count in counts if count == deployment.gpus or _evenly(deployment, count)]


def counts_up_to(gpus: int, many: int) -> list[int]:
    """List powers of two up to `gpus`, and divisors where these are not many.

    >>> counts_up_to(12, many=64), counts_up_to(96, many=64)
    ([1, 2, 3, 4, 6, 8, 12], [1, 2, 4, 8, 16, 32, 64, 96])
    """
    powers = {2**power for power in range(gpus.bit_length()) if 2**power <= gpus}
    divisors = range(1, gpus + 1) if gpus <= many else ()
    return sorted(powers | {gpus} | {count for count in divisors if gpus % count == 0})


def _evenly(deployment: Deployment, count: int) -> bool:
    nodes = deployment.nodes
    try:
        part = deployment.on(count)
        if part.subset is None:
            each = deployment.gpus // (nodes or 1)
            part.hardware.island(count, part.nodes)
            return not nodes or count <= each or count % each == 0
    except InputError:
        return False
    return True


def hosts_in_words(deployment: Deployment, count: int) -> str:
    """Say the hosts of some of the GPUs of a deployment that do not fill theirs; empty elsewhere.

    >>> from planner.scenario.scenario import resolve
    >>> apart = resolve(Request(model="flux.1-dev", gpus=16, nodes=16)).deployment
    >>> full = resolve(Request(model="flux.1-dev", gpus=16)).deployment
    >>> hosts_in_words(apart, 8), hosts_in_words(full, 8)
    (' on 8 hosts', '')
    """
    gpus, hardware = deployment.gpus, deployment.hardware
    alone = deployment.subset is not None or count == 1
    if alone or gpus == deployment.hosts * hardware.gpus:
        return ""
    if hardware.island(gpus, deployment.nodes) == gpus:
        return ""
    return f" on {counted(deployment.on(count).hosts, 'host')}"


def near(rejected: Sequence[Rejected], request: Request) -> list[tuple[Rejected, Serving]]:
    """List the plans that run but miss what is wanted, with what they do, the nearest first."""
    tried = [(row, row.nearest) for row in rejected if row.nearest is not None]
    return sorted(tried, key=lambda pair: (apart(pair[1], request), str(pair[0].plan)))


def apart(served: Serving, request: Request) -> tuple[float, float]:
    """Say how far from what is wanted something is served: more is further."""
    over = served.beyond(wanted_of(request))
    return (-served.requests_per_s if served.overloaded else -inf), over
