"""What becomes of each plan: an estimate, or the reason why not; which plans are left out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from costmodels.sizes import largest
from planner.models import Model
from planner.request.plan import SEQUENCE, Plan
from planner.scenario.scenario import Scenario
from planner.search.estimate import Outcome, PlanEstimate, Rejected, worded
from planner.search.evaluate import Shared, price
from planner.search.plan_memory import encoder_bytes, usable_bytes
from planner.search.plans import (
    LONGEST_RING,
    illegal_axes,
    objections,
    plan_legality,
    plans,
    replacements,
    replica,
    replicated,
    reversed_nesting,
    ring_q_variant,
    uneven_variants,
)
from topology.base import format_bytes

Runs = Callable[[Plan], bool]
"""Whether a plan can be run by what a request names."""
MANY_GPUS: Final = 64
"""Above so many GPUs plans are left out of which others are known to be as good."""
LONG_PROMPT: Final = 32768
"""Tokens from which plans that cut a prompt are judged though what was asked for runs none."""
MANY_OF_EXPERTS: Final = 16
"""The same of models with experts, which have more plans."""


def any_plan(plan: Plan) -> bool:  # noqa: ARG001  # whatever the plan
    """Take every plan for one that can be run."""
    return True


def exhaustive_gpu_limit(model: Model) -> int:
    """Count the GPUs above which not every plan of a model is judged."""
    return MANY_OF_EXPERTS if model.has_experts else MANY_GPUS


def estimates(outcomes: Iterable[Outcome]) -> list[PlanEstimate]:
    """Keep the estimates among outcomes."""
    return [outcome for outcome in outcomes if isinstance(outcome, PlanEstimate)]


def outcomes_on(
    scenario: Scenario,
    seen: dict[Plan, Outcome],
    shared: Shared,
    runs: Runs = any_plan,
    *,
    others: bool = False,
) -> Iterator[Outcome]:
    """Judge the plans of a scenario's GPUs.

    Where they are many, a degree that no plan can have is rejected once, for all of them, and the
    shallowest pipelines come first.

    seen : what became of plans of fewer GPUs. shared : with them. Both are used and added to.
    runs : plans that can be run. others : whether the rest is judged too.
    """
    model, workload, gpus = scenario.model, scenario.workload, scenario.deployment.gpus
    short_prompt = _short_prompt(scenario)
    if scenario.request.gpus <= exhaustive_gpu_limit(model):
        listed_plans = plans(model, gpus) if others else filter(runs, _by_depth(model, gpus))
        for plan in (*listed_plans, *_unequal(scenario, runs)):
            if short_prompt and plan.sequence_ranks > 1 and not runs(plan):
                yield Rejected(plan=plan, reason=short_prompt)
                continue
            yield _outcome(scenario, plan, seen, shared)
        return
    barred = illegal_axes(model, workload, gpus)
    if short_prompt:
        degrees = (n for n in range(2, gpus + 1) if gpus % n == 0)
        ways = [(axis, degree) for degree in degrees for axis in SEQUENCE]
        barred = barred | {
            way: short_prompt for way in ways if way not in barred and not runs(Plan((way,)))
        }
    for axis, reason in barred.items():
        yield Rejected(plan=Plan((axis,)), reason=f"{reason}; so for every plan that has it")
    legal = {
        **plan_legality(model, workload, gpus),
        **dict.fromkeys(_unequal(scenario, runs), True),
    }
    for plan in sorted(legal, key=lambda plan: plan.degree("pp")):
        if not barred.keys().isdisjoint(plan.axes):
            continue
        can_run, is_legal = runs(plan), legal[plan]
        left_out = is_legal and _left_out(scenario, plan, seen, runs if can_run else any_plan)
        if (can_run or others) and not left_out:
            yield _outcome(scenario, plan, seen, shared, legal=is_legal)


def _unequal(scenario: Scenario, runs: Runs) -> Iterator[Plan]:
    """Yield plans that exchange pieces of any size, where equal pieces do not divide or run."""

    def able(plan: Plan) -> bool:
        return runs(plan) and not any(objections(scenario.model, scenario.workload, plan, gpus))

    gpus = scenario.deployment.gpus
    for plan in plans(scenario.model, gpus):
        yield from (other for other in uneven_variants(plan) if able(other) and not able(plan))


def _by_depth(model: Model, gpus: int) -> list[Plan]:
    """List all plans of a model, the shallowest pipelines first."""
    return sorted(plans(model, gpus), key=lambda plan: plan.degree("pp"))


def _short_prompt(scenario: Scenario) -> str:
    """Say that a language model's prompt is not worth cutting where nothing runs it; or nothing."""
    model = scenario.model
    if model.kind != "decoder":
        return ""
    tokens = int(largest(scenario.workload.length(model.streams[0].name)))
    if tokens >= LONG_PROMPT:
        return ""
    return f"cuts a prompt of {tokens:,} tokens, and is not run: judged from {LONG_PROMPT:,} on"


def _left_out(scenario: Scenario, plan: Plan, judged: Mapping[Plan, Outcome], runs: Runs) -> bool:
    """Whether other plans that run are known to be as good, where GPUs are many."""
    if plan.degree("ring") > LONGEST_RING:
        return True
    frugal = scenario.request.objective == "memory"
    return not frugal and any(map(runs, replacements(plan, scenario.workload.passes, judged)))


def _outcome(
    scenario: Scenario,
    plan: Plan,
    judged: dict[Plan, Outcome],
    shared: Shared,
    *,
    legal: bool = False,
) -> Outcome:
    """Judge a plan, which may be known to be legal, or reuse what became of one of its replicas."""
    replica_plan = replica(scenario.deployment, plan) if scenario.request.batch == 1 else None
    if replica_plan is not None and replica_plan in judged:
        judged[plan] = replicated(plan.degree("dp"), judged[replica_plan])
        return judged[plan]
    outcome = (_fitting_outcome if legal else judge)(scenario, plan, shared)
    variants = reversed_nesting(scenario.deployment, plan), ring_q_variant(scenario.workload, plan)
    for variant in filter(None, variants):
        outcome = min(outcome, judge(scenario, variant, shared), key=_latency)
    judged[plan] = outcome
    return outcome


def _latency(outcome: Outcome) -> float:
    return outcome.latency_s if isinstance(outcome, PlanEstimate) else float("inf")


def judge(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> Outcome:
    """Estimate a plan of all GPUs, or say why it cannot run."""
    return _illegal_outcome(scenario, plan) or _fitting_outcome(scenario, plan, shared)


def _illegal_outcome(scenario: Scenario, plan: Plan) -> Rejected | None:
    """Say what stands against a plan of all GPUs; None where nothing does."""
    gpus = scenario.deployment.gpus
    reasons = "; ".join(dict.fromkeys(objections(scenario.model, scenario.workload, plan, gpus)))
    return Rejected(plan=plan, reason=reasons) if reasons else None


def _fitting_outcome(scenario: Scenario, plan: Plan, shared: Shared | None) -> Outcome:
    """Estimate a legal plan, or say that the machine has no links for it, or no memory."""
    subset = scenario.deployment.subset
    if subset is not None and (obstacle := subset.obstacle()):
        return Rejected(plan=plan, reason=obstacle)
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


def judge_undivided(scenario: Scenario, shared: Shared, runs: Runs) -> Iterator[Outcome]:
    """Judge the plans of all GPUs that can be run, but replicas; `shared` is used and added to."""
    for plan in filter(runs, plans(scenario.model, scenario.deployment.gpus)):
        if plan.degree("dp") == 1:
            yield judge(scenario, plan, shared)


def _too_large(estimate: PlanEstimate, missing: float) -> str:
    usable = estimate.memory_bytes - missing
    return (
        f"needs {format_bytes(estimate.memory_bytes)} of {format_bytes(usable)} a GPU, "
        f"{format_bytes(missing)} short, at {worded(estimate.peak_stage)}"
    )


def _remedy(scenario: Scenario, missing: float) -> str:
    """Say that a plan would fit if the text encoders left the GPU, where it would."""
    encoders = encoder_bytes(scenario.model, scenario.workload.precision)
    helps = not scenario.request.offload and missing <= encoders
    return "would fit with --offload" if helps else ""
