"""Try every plan there is, and say which is best and why the others are not."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from costmodels.price import Known
from costmodels.tables import profile_for
from planner.engines.deployment import Deployment, deployment_of
from planner.engines.launch import Launch, launches
from planner.engines.tables import engines
from planner.engines.told import asked_of, hosts_of
from planner.lowering import lower
from planner.models import read_model
from planner.models.architecture import Model
from planner.placement.placement import visible
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, LARGEST, Request
from planner.request.workload import Workload
from planner.search.alike import LONGEST, replaceable, replica, replicated, turned
from planner.search.counts import of_count, worth_a_look
from planner.search.evaluate import encoder_bytes, evaluate, room, workload_of
from planner.search.outcome import Mark, Outcome, PlanEstimate, Rejected, worded
from planner.search.plans import hopeless, nearest, objections, plans
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError, TopologyError, counted, format_bytes, shown

TIE: Final = 0.03
"""Fewer GPUs win when more gain less than this share of the time."""

MANY: Final = 64
"""Above so many GPUs plans are left out of which others are known to be as good."""

NO_RINGS: Final = f"above {MANY} GPUs rings of more than {LONGEST} are left out"
NO_PIPELINES: Final = (
    f"above {MANY} GPUs pipelines deeper than it takes to fit are left out: replicas in their "
    "place are as fast"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A request with everything it names looked up."""

    request: Request
    model: Model
    workload: Workload
    deployment: Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Plans, best first; rejected plans with reasons; the best plan at every number of GPUs.

    lead : the plan to run, which all words are about: the first, or the first that a named engine
    can run. Such an engine's `scaling` has plans that it can run.
    baseline : one GPU, priced whether or not it fits. launch : how engines run the lead.
    notes : what was assumed about a machine that the request brings; kinds of plans left out.
    marks : plans that the engine or the runtime cannot run.
    """

    request: Request
    plans: tuple[PlanEstimate, ...]
    rejected: tuple[Rejected, ...]
    scaling: tuple[PlanEstimate, ...]
    baseline: PlanEstimate | None
    advice: tuple[str, ...] = ()
    launch: tuple[Launch, ...] = ()
    notes: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    lead: PlanEstimate | None = None

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "request": asdict(self.request),
            "plans": [plan.to_dict() for plan in self.plans],
            "recommended": None if self.lead is None else str(self.lead.plan),
            "rejected": [one.to_dict() for one in self.rejected],
            "scaling": [
                {"gpus": one.gpus, "plan": str(one.plan), "latency_s": one.latency_s}
                for one in self.scaling
            ],
            "advice": list(self.advice),
            "launch": [one.to_dict() for one in self.launch],
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"marks": [one.to_dict() for one in self.marks]} if self.marks else {}),
        }


def resolve(request: Request) -> Scenario:
    """Look up the model and the hardware of a request, and turn its sizes into tokens."""
    model, deployment = read_model(request.model), deployment_of(request)
    _check_kind(model, deployment.engine)
    return Scenario(
        request=request,
        model=model,
        workload=workload_of(model, request, deployment),
        deployment=deployment,
    )


def _check_kind(model: Model, engine: str) -> None:
    """Refuse an engine of models of another kind."""
    if engine in ("", EXECUTOR):
        return
    known = engines().engines
    able = [one.name for one in known if one.kind == model.kind]
    if engine not in able:
        raise InputError(
            f"engine: got {engine}, which does not run {model.kind} models such as {model.name}: "
            f"wanted one of {', '.join([*able, EXECUTOR])}"
        )


def search(scenario: Scenario, gpus: int, known: Known | None = None) -> Iterator[Outcome]:
    """Judge every plan of `gpus` GPUs; `known` prices are used and added to."""
    found: Known = {} if known is None else known
    for plan in plans(scenario.model, gpus):
        yield judge(scenario, plan, gpus, found)


def judge(scenario: Scenario, plan: Plan, gpus: int, known: Known | None = None) -> Outcome:
    """Estimate a plan, or say why it cannot run."""
    reasons = list(objections(scenario.model, scenario.workload, plan, gpus))
    if not reasons and scenario.deployment.subset is not None:
        try:
            scenario = replace(
                scenario, deployment=scenario.deployment.on(gpus, scenario.request.precision)
            )
        except TopologyError as error:
            return Rejected(plan=plan, reason=str(error))
        reasons = [clause for clause in [_apart(scenario.deployment)] if clause]
    if reasons:
        return Rejected(plan=plan, reason="; ".join(reasons))
    found = price(scenario, plan, known)
    missing = found.memory_bytes - room(scenario.deployment, scenario.model.kind)
    if missing > 0:
        remedy = _remedy(scenario, missing)
        return Rejected(plan=plan, reason=_short(found, missing), short=found, remedy=remedy)
    return found


def price(scenario: Scenario, plan: Plan, known: Known | None = None) -> PlanEstimate:
    """Estimate a legal plan, whether or not it fits, on the best seats of a machine.

    Parameters
    ----------
    plan : legal (see `objections`), of any number of GPUs that the deployment has.
    known : prices of other plans of the same scenario; used, and added to.

    Raises
    ------
    TopologyError
        If the deployment has fewer GPUs, or its nodes would hold unequal shares.
    UncalibratedError
        If there are no kernel parameters for the device.
    """
    deployment = seated(scenario, plan)
    found = evaluate(
        scenario.model,
        scenario.workload,
        plan,
        deployment,
        offload=scenario.request.offload,
        known=known,
    )
    return replace(found, placement=deployment.placed)


def _apart(deployment: Deployment) -> str:
    return "" if deployment.subset is None else deployment.subset.obstacle()


def seated(scenario: Scenario, plan: Plan) -> Deployment:
    """Find the best seats for a plan on the machine that the request brings, if it brings one."""
    deployment = scenario.deployment.on(plan.gpus, scenario.request.precision)
    if deployment.subset is None:
        return deployment
    from planner.placement.seating import seat  # noqa: PLC0415  # only machines need it
    from planner.placement.traffic import traffic_of  # noqa: PLC0415

    sent = traffic_of(lower(scenario.model, scenario.workload, plan))
    return replace(deployment, placed=seat(plan, deployment.subset, sent))


def _short(found: PlanEstimate, missing: float) -> str:
    usable = found.memory_bytes - missing
    return (
        f"needs {format_bytes(found.memory_bytes)} of {format_bytes(usable)} a GPU, "
        f"{format_bytes(missing)} short, at {worded(found.peak_stage)}"
    )


def _remedy(scenario: Scenario, missing: float) -> str:
    """Say that a plan would fit if the text encoders left the GPU, where it would."""
    can = not scenario.request.offload and missing <= encoder_bytes(scenario.model)
    return "would fit with --offload" if can else ""


def rank(found: Iterable[PlanEstimate], request: Request) -> list[PlanEstimate]:
    """Order plans by the objective; equal ones by fewer GPUs, then by latency, then by name."""
    ordered = sorted(
        found, key=lambda one: (_goal(one, request), one.gpus, one.latency_s, str(one.plan))
    )
    if not request.at_most_gpus or not ordered:
        return ordered
    best = _goal(ordered[0], request)
    close = [one for one in ordered if _goal(one, request) <= best + TIE * abs(best)]
    first = min(close, key=lambda one: (one.gpus, _goal(one, request)))
    return [first, *[one for one in ordered if one is not first]]


def _goal(one: PlanEstimate, request: Request) -> float:
    match request.objective:
        case "latency":
            return one.latency_s
        case "throughput":
            return -one.throughput_per_s
        case "memory":
            return one.memory_bytes
        case "cost":
            return one.gpus / one.throughput_per_s


def find(scenario: Scenario) -> Recommendation:
    """Search all plans of a request and rank them."""
    from planner.advice.explain import advice  # noqa: PLC0415  # explanations build on the search
    from planner.advice.refusals import marks_of, runnable  # noqa: PLC0415  # as explanations do

    request = scenario.request
    known: Known = {}
    by_count: dict[int, list[Outcome]] = {}
    seen: dict[Plan, Outcome] = {}
    for gpus in worth_a_look(request.gpus, scenario.deployment, MANY):
        if scenario.deployment.subset is not None:
            known = {}  # another number of GPUs may be of another kind
        by_count[gpus] = list(_outcomes(_of_count(scenario, gpus), gpus, seen, known))
    counts = [gpus for gpus in by_count if request.at_most_gpus or gpus == request.gpus]
    outcomes = [one for gpus in counts for one in by_count[gpus]]
    ranked = rank(_estimates(outcomes), request)
    able = runnable(scenario, {gpus: _estimates(found) for gpus, found in by_count.items()})
    asked = rank([one for gpus in counts for one in able[gpus]], request)
    lead = next(iter(asked or ranked), None)
    answer = Recommendation(
        request=request,
        plans=tuple(ranked),
        rejected=tuple(_once(outcomes)),
        scaling=tuple(rank(found, request)[0] for found in able.values() if found),
        baseline=_baseline(scenario),
        launch=() if lead is None else launch_of(scenario, lead),
        notes=tuple(_notes(scenario)),
        marks=marks_of(scenario, ranked),
        lead=lead,
    )
    return replace(answer, advice=tuple(advice(scenario, answer)))


def _of_count(scenario: Scenario, gpus: int) -> Scenario:
    """Ask about another number of GPUs."""
    return replace(scenario, deployment=of_count(scenario.request.gpus, scenario.deployment, gpus))


def launch_of(scenario: Scenario, found: PlanEstimate) -> tuple[Launch, ...]:
    """Say how engines run a plan, on the GPUs it was seated on."""
    where = found.placement
    hosts = hosts_of(found.plan.gpus, _of_count(scenario, found.plan.gpus).deployment, where)
    asked = asked_of(scenario.request, scenario.model, scenario.workload, hosts)
    lines = launches(engines(), scenario.model, found.plan, asked)
    subset = scenario.deployment.subset
    if where is None or subset is None or where.devices == tuple(range(len(subset.machine.gpus))):
        return tuple(lines)
    before = visible(where.devices)
    return tuple(
        one if one.reason else replace(one, command=f"{before} {one.command}") for one in lines
    )


def _notes(scenario: Scenario) -> Iterator[str]:
    if scenario.deployment.subset is not None:
        yield from scenario.deployment.subset.notes()
    asked, profile = scenario.request, scenario.deployment.profile
    if profile is not None and asked.detect and not asked.profile:
        own = profile != profile_for(scenario.deployment.hardware.name)
        whose = "this machine's own profile" if own else "the shipped profile"
        yield f"priced with {whose} of {profile.date}"
    if scenario.request.gpus > MANY:
        yield NO_RINGS
        if scenario.request.objective != "memory":
            yield NO_PIPELINES


def _outcomes(
    scenario: Scenario, gpus: int, seen: dict[Plan, Outcome], known: Known
) -> Iterator[Outcome]:
    """Judge the plans of one number of GPUs.

    Where they are many, a degree that no plan can have is rejected once, for all of them, and the
    shallowest pipelines come first.
    """
    model = scenario.model
    if scenario.request.gpus <= MANY:
        yield from (_outcome(scenario, plan, seen, known) for plan in plans(model, gpus))
        return
    barred = hopeless(model, scenario.workload, gpus)
    for axis, reason in barred.items():
        yield Rejected(plan=Plan((axis,)), reason=f"{reason}; so for every plan that has it")
    for plan in sorted(plans(model, gpus, barred), key=lambda plan: plan.degree("pp")):
        if not (_left_out(scenario, plan, seen) and _legal(scenario, plan)):
            yield _outcome(scenario, plan, seen, known)


def _left_out(scenario: Scenario, plan: Plan, seen: Mapping[Plan, Outcome]) -> bool:
    """Whether other plans are known to be as good, where GPUs are many."""
    if plan.degree("ring") > LONGEST:
        return True
    frugal = scenario.request.objective == "memory"
    return not frugal and replaceable(plan, scenario.workload.passes, seen)


def _legal(scenario: Scenario, plan: Plan) -> bool:
    return not any(objections(scenario.model, scenario.workload, plan, plan.gpus))


def _outcome(scenario: Scenario, plan: Plan, seen: dict[Plan, Outcome], known: Known) -> Outcome:
    """Judge a plan, or reuse what became of one of its replicas."""
    one = replica(scenario.deployment, plan) if scenario.request.batch == 1 else None
    if one is not None and one in seen:
        seen[plan] = replicated(plan.degree("dp"), seen[one])
        return seen[plan]
    found = judge(scenario, plan, plan.gpus, known)
    other = turned(scenario.deployment, plan)
    if other is not None:
        found = min(found, judge(scenario, other, plan.gpus, known), key=_latency)
    seen[plan] = found
    return found


def _latency(one: Outcome) -> float:
    return one.latency_s if isinstance(one, PlanEstimate) else float("inf")


def _once(outcomes: Iterable[Outcome]) -> Iterable[Rejected]:
    """Keep one of the rows that say the same; a degree may be barred at several numbers of GPUs."""
    rejected = (one for one in outcomes if isinstance(one, Rejected))
    return {(one.plan, one.reason): one for one in rejected}.values()


def _estimates(outcomes: Iterable[Outcome]) -> list[PlanEstimate]:
    return [one for one in outcomes if isinstance(one, PlanEstimate)]


def _baseline(scenario: Scenario) -> PlanEstimate | None:
    if any(objections(scenario.model, scenario.workload, Plan(), 1)):
        return None
    return price(replace(scenario, deployment=replace(scenario.deployment, nodes=0)), Plan())


def single_plan(scenario: Scenario, text: str | None) -> PlanEstimate:
    """Estimate the one plan that was asked for.

    Raises
    ------
    IllegalPlanError
        If it cannot run or does not fit: the reason, and the nearest plans that can.
    """
    request = scenario.request
    if text is None and request.gpus > 1:
        raise InputError(f"a plan is needed for {request.gpus} GPUs, such as tp{request.gpus}")
    if not isinstance(text, str | Plan | None):
        raise InputError(f"plan: got {shown(text)}, wanted axes and degrees such as cfg2.ulysses4")
    plan = parse_plan("single" if text is None else str(text))
    outcome = judge(scenario, plan, request.gpus)
    if isinstance(outcome, PlanEstimate):
        return outcome
    raise IllegalPlanError(f"plan {plan}: {outcome.reason}; {_instead(scenario, outcome)}")


def _instead(scenario: Scenario, bad: Rejected) -> str:
    from planner.advice.remedies import would_fit  # noqa: PLC0415  # remedies build on the search

    gpus = scenario.request.gpus
    found = list(_outcomes(scenario, gpus, {}, {}))
    able = [one.plan for one in _estimates(found)]
    if able:
        near = ", ".join(str(one) for one in nearest(bad.plan, able))
        nearby = f"nearest that can on {counted(gpus, 'GPU')}: {near}"
        return "; ".join(filter(None, (bad.remedy, nearby)))
    short = [one.short for one in found if isinstance(one, Rejected) and one.short is not None]
    return would_fit(scenario, short, bad.plan)


def shortened(answer: Recommendation, count: int) -> Recommendation:
    """Return the same answer with its first `count` plans."""
    if not 1 <= count <= LARGEST["top"]:
        raise InputError(f"top: got {count}, wanted a whole number from 1 to {LARGEST['top']}")
    return replace(answer, plans=answer.plans[:count])
