"""Try every plan there is, and say which is best and why the others are not."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from costmodels.price import Known
from costmodels.tables import profile_for
from planner.engines.deployment import Site, site_of
from planner.engines.launch import Launch, launches
from planner.engines.tables import engines
from planner.engines.told import asked_of, hosts_of
from planner.lowering.lower import lower
from planner.models import read_model
from planner.models.architecture import Model
from planner.placement.placement import visible
from planner.request.plan import Plan, parse_plan
from planner.request.request import EXECUTOR, LARGEST, Request
from planner.request.workload import Workload
from planner.search.alike import LONGEST, replaceable, replica, replicated, turned
from planner.search.counts import of_count, worth_a_look
from planner.search.evaluate import encoder_bytes, evaluate, room, workload_of
from planner.search.outcome import Mark, Outcome, PlanEstimate, Rejected, worded
from planner.search.plans import hopeless, nearest, objections, plans
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
class Question:
    """A request with everything it names looked up."""

    request: Request
    model: Model
    workload: Workload
    site: Site


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


def question_of(request: Request) -> Question:
    """Look up the model and the hardware of a request, and turn its sizes into tokens."""
    model, site = read_model(request.model), site_of(request)
    _check_kind(model, site.engine)
    return Question(
        request=request, model=model, workload=workload_of(model, request, site), site=site
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


def search(question: Question, gpus: int, known: Known | None = None) -> Iterator[Outcome]:
    """Judge every plan of `gpus` GPUs; `known` prices are used and added to."""
    found: Known = {} if known is None else known
    for plan in plans(question.model, gpus):
        yield judge(question, plan, gpus, found)


def judge(question: Question, plan: Plan, gpus: int, known: Known | None = None) -> Outcome:
    """Estimate a plan, or say why it cannot run."""
    reasons = list(objections(question.model, question.workload, plan, gpus))
    if not reasons and question.site.ground is not None:
        try:
            question = replace(question, site=question.site.on(gpus, question.request.precision))
        except TopologyError as error:
            return Rejected(plan=plan, reason=str(error))
        reasons = [clause for clause in [_apart(question.site)] if clause]
    if reasons:
        return Rejected(plan=plan, reason="; ".join(reasons))
    found = price(question, plan, known)
    missing = found.memory_bytes - room(question.site, question.model.kind)
    if missing > 0:
        remedy = _remedy(question, missing)
        return Rejected(plan=plan, reason=_short(found, missing), short=found, remedy=remedy)
    return found


def price(question: Question, plan: Plan, known: Known | None = None) -> PlanEstimate:
    """Estimate a legal plan, whether or not it fits, on the best seats of a machine.

    Parameters
    ----------
    plan : legal (see `objections`), of any number of GPUs that the site has.
    known : prices of other plans of the same question; used, and added to.

    Raises
    ------
    TopologyError
        If the site has fewer GPUs, or its nodes would hold unequal shares.
    UncalibratedError
        If there are no kernel parameters for the device.
    """
    site = seated(question, plan)
    found = evaluate(
        question.model,
        question.workload,
        plan,
        site,
        offload=question.request.offload,
        known=known,
    )
    return replace(found, placement=site.placed)


def _apart(site: Site) -> str:
    return "" if site.ground is None else site.ground.obstacle()


def seated(question: Question, plan: Plan) -> Site:
    """Find the best seats for a plan on the machine that the request brings, if it brings one."""
    site = question.site.on(plan.gpus, question.request.precision)
    if site.ground is None:
        return site
    from planner.placement.seating import seat  # noqa: PLC0415  # only machines need it
    from planner.placement.traffic import traffic_of  # noqa: PLC0415

    sent = traffic_of(lower(question.model, question.workload, plan))
    return replace(site, placed=seat(plan, site.ground, sent))


def _short(found: PlanEstimate, missing: float) -> str:
    usable = found.memory_bytes - missing
    return (
        f"needs {format_bytes(found.memory_bytes)} of {format_bytes(usable)} a GPU, "
        f"{format_bytes(missing)} short, at {worded(found.peak_stage)}"
    )


def _remedy(question: Question, missing: float) -> str:
    """Say that a plan would fit if the text encoders left the GPU, where it would."""
    can = not question.request.offload and missing <= encoder_bytes(question.model)
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


def find(question: Question) -> Recommendation:
    """Search all plans of a request and rank them."""
    from planner.advice.explain import advice  # noqa: PLC0415  # explanations build on the search
    from planner.advice.refusals import marks_of, runnable  # noqa: PLC0415  # as explanations do

    request = question.request
    known: Known = {}
    by_count: dict[int, list[Outcome]] = {}
    seen: dict[Plan, Outcome] = {}
    for gpus in worth_a_look(request.gpus, question.site, MANY):
        if question.site.ground is not None:
            known = {}  # another number of GPUs may be of another kind
        by_count[gpus] = list(_outcomes(_of_count(question, gpus), gpus, seen, known))
    counts = [gpus for gpus in by_count if request.at_most_gpus or gpus == request.gpus]
    outcomes = [one for gpus in counts for one in by_count[gpus]]
    ranked = rank(_estimates(outcomes), request)
    able = runnable(question, {gpus: _estimates(found) for gpus, found in by_count.items()})
    asked = rank([one for gpus in counts for one in able[gpus]], request)
    lead = next(iter(asked or ranked), None)
    answer = Recommendation(
        request=request,
        plans=tuple(ranked),
        rejected=tuple(_once(outcomes)),
        scaling=tuple(rank(found, request)[0] for found in able.values() if found),
        baseline=_baseline(question),
        launch=() if lead is None else launch_of(question, lead),
        notes=tuple(_notes(question)),
        marks=marks_of(question, ranked),
        lead=lead,
    )
    return replace(answer, advice=tuple(advice(question, answer)))


def _of_count(question: Question, gpus: int) -> Question:
    """Ask about another number of GPUs."""
    return replace(question, site=of_count(question.request.gpus, question.site, gpus))


def launch_of(question: Question, found: PlanEstimate) -> tuple[Launch, ...]:
    """Say how engines run a plan, on the GPUs it was seated on."""
    where = found.placement
    hosts = hosts_of(found.plan.gpus, _of_count(question, found.plan.gpus).site, where)
    asked = asked_of(question.request, question.model, question.workload, hosts)
    lines = launches(engines(), question.model, found.plan, asked)
    ground = question.site.ground
    if where is None or ground is None or where.devices == tuple(range(len(ground.machine.gpus))):
        return tuple(lines)
    before = visible(where.devices)
    return tuple(
        one if one.reason else replace(one, command=f"{before} {one.command}") for one in lines
    )


def _notes(question: Question) -> Iterator[str]:
    if question.site.ground is not None:
        yield from question.site.ground.notes()
    asked, profile = question.request, question.site.profile
    if profile is not None and asked.detect and not asked.profile:
        own = profile != profile_for(question.site.hardware.name)
        whose = "this machine's own profile" if own else "the shipped profile"
        yield f"priced with {whose} of {profile.date}"
    if question.request.gpus > MANY:
        yield NO_RINGS
        if question.request.objective != "memory":
            yield NO_PIPELINES


def _outcomes(
    question: Question, gpus: int, seen: dict[Plan, Outcome], known: Known
) -> Iterator[Outcome]:
    """Judge the plans of one number of GPUs.

    Where they are many, a degree that no plan can have is rejected once, for all of them, and the
    shallowest pipelines come first.
    """
    model = question.model
    if question.request.gpus <= MANY:
        yield from (_outcome(question, plan, seen, known) for plan in plans(model, gpus))
        return
    barred = hopeless(model, question.workload, gpus)
    for axis, reason in barred.items():
        yield Rejected(plan=Plan((axis,)), reason=f"{reason}; so for every plan that has it")
    for plan in sorted(plans(model, gpus, barred), key=lambda plan: plan.degree("pp")):
        if not (_left_out(question, plan, seen) and _legal(question, plan)):
            yield _outcome(question, plan, seen, known)


def _left_out(question: Question, plan: Plan, seen: Mapping[Plan, Outcome]) -> bool:
    """Whether other plans are known to be as good, where GPUs are many."""
    if plan.degree("ring") > LONGEST:
        return True
    frugal = question.request.objective == "memory"
    return not frugal and replaceable(plan, question.workload.passes, seen)


def _legal(question: Question, plan: Plan) -> bool:
    return not any(objections(question.model, question.workload, plan, plan.gpus))


def _outcome(question: Question, plan: Plan, seen: dict[Plan, Outcome], known: Known) -> Outcome:
    """Judge a plan, or reuse what became of one of its replicas."""
    one = replica(question.site, plan) if question.request.batch == 1 else None
    if one is not None and one in seen:
        seen[plan] = replicated(plan.degree("dp"), seen[one])
        return seen[plan]
    found = judge(question, plan, plan.gpus, known)
    other = turned(question.site, plan)
    if other is not None:
        found = min(found, judge(question, other, plan.gpus, known), key=_latency)
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


def _baseline(question: Question) -> PlanEstimate | None:
    if any(objections(question.model, question.workload, Plan(), 1)):
        return None
    return price(replace(question, site=replace(question.site, nodes=0)), Plan())


def single_plan(question: Question, text: str | None) -> PlanEstimate:
    """Estimate the one plan that was asked for.

    Raises
    ------
    IllegalPlanError
        If it cannot run or does not fit: the reason, and the nearest plans that can.
    """
    request = question.request
    if text is None and request.gpus > 1:
        raise InputError(f"a plan is needed for {request.gpus} GPUs, such as tp{request.gpus}")
    if not isinstance(text, str | Plan | None):
        raise InputError(f"plan: got {shown(text)}, wanted axes and degrees such as cfg2.ulysses4")
    plan = parse_plan("single" if text is None else str(text))
    outcome = judge(question, plan, request.gpus)
    if isinstance(outcome, PlanEstimate):
        return outcome
    raise IllegalPlanError(f"plan {plan}: {outcome.reason}; {_instead(question, outcome)}")


def _instead(question: Question, bad: Rejected) -> str:
    from planner.advice.remedies import would_fit  # noqa: PLC0415  # remedies build on the search

    gpus = question.request.gpus
    found = list(_outcomes(question, gpus, {}, {}))
    able = [one.plan for one in _estimates(found)]
    if able:
        near = ", ".join(str(one) for one in nearest(bad.plan, able))
        nearby = f"nearest that can on {counted(gpus, 'GPU')}: {near}"
        return "; ".join(filter(None, (bad.remedy, nearby)))
    short = [one.short for one in found if isinstance(one, Rejected) and one.short is not None]
    return would_fit(question, short, bad.plan)


def shortened(answer: Recommendation, count: int) -> Recommendation:
    """Return the same answer with its first `count` plans."""
    if not 1 <= count <= LARGEST["top"]:
        raise InputError(f"top: got {count}, wanted a whole number from 1 to {LARGEST['top']}")
    return replace(answer, plans=answer.plans[:count])
