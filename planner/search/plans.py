"""Which plans there are for a number of GPUs, what stands against each, and which are known.

The one home of the rule that degrees multiply to the GPUs.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Final

from planner.lowering import share_of
from planner.models import Ffn, Model, unsupported
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.deployment import Deployment
from planner.search.estimate import Outcome, PlanEstimate, Rejected
from planner.strategies import (
    Proposal,
    allgather_kv,
    fsdp,
    pipefusion,
    ring,
    ring_q,
    sequence,
    strategies,
    tp,
    uaa,
    ulysses,
)
from topology.base import TopologyError, counted

LONGEST_RING: Final = 32
"""Ranks of a ring, where GPUs are many; AllGather-KV moves the same keys in one message."""
_COUNTS: Final = 64
"""Numbers of GPUs whose plans are kept."""

_DECODER_ENGINES: Final = (
    ", as LMDeploy does; vLLM, SGLang on GPUs and TensorRT-LLM refuse widths that do not divide"
)
_DIFFUSION_ENGINES: Final = "; vLLM-Omni and SGLang refuse widths that do not divide"


def objections(model: Model, workload: Workload, plan: Plan, gpus: int) -> Iterator[str]:
    """Yield what stands against a plan, one clause each; nothing where it is legal."""
    if plan.gpus != gpus:
        product = " x ".join(str(degree) for _, degree in plan.axes) or "1"
        wanted = f"it takes --gpus {plan.gpus}"
        yield f"degrees multiply to {plan.gpus} ({product}), not to {gpus} GPUs: {wanted}"
        return
    if plan.vae > gpus:
        yield f"vae{plan.vae} needs more than {counted(gpus, 'GPU')}"
    if plan.vae > 1 and model.vae is None:
        yield f"vae{plan.vae}: {model.name} has no VAE to decode with"
    yield from unsupported(model)
    if workload.reuse is not None and plan.degree("pp") > 1:
        yield f"a cache of features ({workload.reuse.name}) over pipeline stages is not modelled"
    proposal = Proposal(model=model, workload=workload, share=share_of(workload, plan))
    if plan.patch > 1:
        yield from pipefusion.objections(proposal, plan)
    if plan.fsdp > 1:
        yield from fsdp.objections(proposal, plan)
    for name, degree in plan.axes:
        yield from strategies()[name].objections(proposal, degree)
    yield from _alternatives(plan.axes)
    yield from _experts(proposal, plan)


def _alternatives(axes: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield the axes that exclude each other, pair by pair."""
    for (axis, _), (other, _) in itertools.combinations(axes, 2):
        if other in strategies()[axis].excludes or axis in strategies()[other].excludes:
            yield f"{axis} and {other} are two ways to do the same: choose one"


def _experts(proposal: Proposal, plan: Plan) -> Iterator[str]:
    """Yield what stands against how a plan spreads the experts of a model.

    Groups have experts of their own, and each expert is cut over the ranks of its group as tensor
    parallelism cuts a FFN. Ranks that a sequence is cut over hold the same experts, as they hold
    the same weights, unless there are more groups than other ranks: then each has its own.
    """
    model, groups, ranks = proposal.model, plan.ep, plan.expert_ranks
    if groups > 1 and not model.has_experts:
        yield f"ep{groups}: {model.name} has no experts"
        return
    if ranks % groups:
        sequence_text = " x the sequence" if ranks > plan.degree("adp") * plan.degree("tp") else ""
        yield f"ep{groups} does not divide the {ranks} ranks of adp x tp{sequence_text}"
        return
    names = [name for name, _ in plan.axes]
    if "tp" in names and "adp" in names[names.index("tp") :]:
        yield "adp stands outside tp: its ranks hold the whole attention, cut by tp"
    for ffn in dict.fromkeys(t.ffn for t in model.towers if t.ffn is not None and t.ffn.experts):
        yield from dict.fromkeys(_spread(proposal, ffn, plan))


def _spread(proposal: Proposal, ffn: Ffn, plan: Plan) -> Iterator[str]:
    copies = f" and {ffn.copies} copies" if ffn.copies else ""
    if ffn.copies and plan.ep == 1:
        yield f"{ffn.copies} copies of experts need experts in groups (ep)"
    if (ffn.experts + ffn.copies) % plan.ep:
        yield f"{ffn.experts} experts{copies} do not divide by ep{plan.ep}"
    cut = plan.expert_ranks // plan.ep
    ranks = f"the {cut} ranks of an expert" if plan.ep > 1 or plan.degree("adp") > 1 else f"tp{cut}"
    yield from tp.no_column(ffn.width, cut, ranks)
    yield from tp.parted_scales(proposal, tp.ffn_cuts(ffn.width, "experts"), cut, ranks)


def notes(model: Model, workload: Workload, plan: Plan) -> Iterator[str]:
    """Yield what is done beside the model's own work, and who else does so, a sentence each."""
    if workload.reuse is not None:
        steps, skipped = workload.steps, workload.skipped
        yield f"{workload.reuse.name}: {skipped} of {steps} steps reuse features of another step"
    if plan.patch > 1 and workload.warmup < workload.steps:
        yield (
            f"{plan}: {workload.warmup} of {workload.steps} steps are exact; in the others a piece "
            "of the latents sees the others as they were up to a step before"
        )
    for width, (padded, degree) in tp.padded_widths(model, plan).items():
        engines_text = _DECODER_ENGINES if model.kind == "decoder" else _DIFFUSION_ENGINES
        ranks = (
            f"tp{degree}" if degree == plan.degree(tp.AXIS) else f"the {degree} ranks of an expert"
        )
        yield f"the FFN width {width} is padded with zeros to {padded} for {ranks}{engines_text}"
    yield from sequence.whole_notes(model, workload, share_of(workload, plan).grain)
    gathers = plan.degree(allgather_kv.AXIS) > 1
    if gathers and any(tower.mixer == "relu_linear" for tower in model.towers):
        yield (
            "allgather_kv of linear attention adds up sums over keys and values by an all-reduce, "
            "as vLLM-Omni does for SANA-Video; xDiT has ring and ulysses"
        )


def plans(model: Model, gpus: int, without: Iterable[tuple[str, int]] = ()) -> tuple[Plan, ...]:
    """List every plan of `gpus` GPUs that the model's kind of request can use, legal or not.

    without : axes with degrees that are left out (see `illegal_axes`).
    """
    return _plans(model, gpus, tuple(_names(model)), frozenset(without))


@lru_cache(maxsize=_COUNTS)
def _plans(
    model: Model, gpus: int, names: Sequence[str], without: frozenset[tuple[str, int]]
) -> tuple[Plan, ...]:
    axis_plans = (Plan(axes) for axes in _axes(gpus, names, without))
    return tuple(
        plan if groups == plan.ep else replace(plan, ep=groups)
        for plan in axis_plans
        for groups in _groups(model, plan)
    )


@cache
def _never_beside(name: str) -> frozenset[str]:
    """Name the axes that the search does not put beside one."""
    strategy = strategies()[name]
    excluding = [
        other for other, way in strategies().items() if name in (*way.excludes, *way.untried)
    ]
    return frozenset((*strategy.excludes, *strategy.untried, *excluding))


def plan_legality(model: Model, workload: Workload, gpus: int) -> Mapping[Plan, bool]:
    """List plans without the axes that none can have, and whether nothing stands against each."""
    return _plan_legality(model, workload.in_programs, gpus, tuple(_names(model)))


@lru_cache(maxsize=_COUNTS)
def _plan_legality(
    model: Model, workload: Workload, gpus: int, _: Sequence[str]
) -> Mapping[Plan, bool]:
    candidates = plans(model, gpus, illegal_axes(model, workload, gpus))
    return {plan: not any(objections(model, workload, plan, gpus)) for plan in candidates}


def legal_plans(model: Model, workload: Workload, gpus: int) -> tuple[Plan, ...]:
    """List the plans of `gpus` GPUs that nothing stands against."""
    return tuple(plan for plan, legal in plan_legality(model, workload, gpus).items() if legal)


def illegal_axes(model: Model, workload: Workload, gpus: int) -> dict[tuple[str, int], str]:
    """Axes with degrees that no plan of `gpus` GPUs can have, and why.

    What stands against a degree alone, such as heads that it does not divide, stands against it
    beside any others.
    """
    barred = {}
    for axis in itertools.product(_names(model), _divisors(gpus)[1:]):
        single_plans = [Plan((axis,)), *([Plan((axis,), ep=axis[1])] if model.has_experts else [])]
        reasons = [list(objections(model, workload, plan, axis[1])) for plan in single_plans]
        if all(reasons):
            barred[axis] = "; ".join(dict.fromkeys(reasons[0]))
    return barred


def _groups(model: Model, plan: Plan) -> list[int]:
    """List the groups of experts that are tried: every rank has its own, or all ranks share all.

    Ranks with tokens of their own have experts of their own too: cut thinner they read as much.
    """
    if not model.has_experts:
        return [1]
    ranks = plan.expert_ranks
    return sorted({1 if plan.degree("adp") == 1 else ranks, ranks, ranks * plan.sequence_ranks})


def _names(model: Model) -> list[str]:
    """Name the axes that a model can have, outermost first."""
    return [axis for axis, strategy in strategies().items() if strategy.suits(model)]


def unpiped(plan: Plan, passes: int) -> Plan | None:
    """Use the GPUs of a pipeline for the forwards of a step side by side, and for replicas.

    M forwards pass P stages in (M + P - 1) / P times the time of one on a replica, so that M
    replicas which share them (one turn) are never slower: a pipeline gains nothing but memory.
    None where the forwards do not divide the stages, or cannot be shared out.

    passes : forwards a step.

    >>> str(unpiped(Plan((("pp", 8), ("tp", 2))), passes=2))
    'dp4.cfg2.tp2'
    """
    degrees = dict(plan.axes)
    depth, (forwards, remainder) = degrees.pop("pp", 1), divmod(passes, plan.degree("cfg"))
    if remainder or depth % forwards:
        return None
    degrees["cfg"] = plan.degree("cfg") * forwards
    degrees["dp"] = plan.degree("dp") * depth // forwards
    return _ordered(degrees, plan)


def shallower(plan: Plan) -> Iterator[Plan]:
    """Yield the same GPUs with fewer pipeline stages and replicas of them.

    >>> [str(other) for other in shallower(Plan((("pp", 8),)))]
    ['dp4.pp2', 'dp2.pp4']
    """
    depth = plan.degree("pp")
    for stages in range(2, depth):
        if depth % stages == 0:
            replicas = plan.degree("dp") * depth // stages
            yield _ordered({**dict(plan.axes), "pp": stages, "dp": replicas}, plan)


def _ordered(degrees: Mapping[str, int], plan: Plan) -> Plan:
    """Give a plan other axes, in their usual order, without those of one rank."""
    return plan.along((name, degrees[name]) for name in strategies() if degrees.get(name, 1) > 1)


def _axes(
    number: int,
    names: Sequence[str],
    without: Collection[tuple[str, int]] = (),
    never: frozenset[str] = frozenset(),
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Write a number as a product of degrees of axes, in every way.

    without : axes with degrees that are left out. never : axes that are.

    >>> list(_axes(4, ["dp", "tp"]))
    [(('tp', 4),), (('dp', 2), ('tp', 2)), (('dp', 4),)]
    """
    if not names:
        yield ()
        return
    first_name, *inner_names = names
    for degree in _divisors(number) if inner_names else (number,):
        if (first_name, degree) in without or (degree > 1 and first_name in never):
            continue
        own_axis = ((first_name, degree),) if degree > 1 else ()
        excluded = never | _never_beside(first_name) if own_axis else never
        yield from (
            (*own_axis, *inner_axes)
            for inner_axes in _axes(number // degree, inner_names, without, excluded)
        )


@cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(degree for degree in range(1, number + 1) if number % degree == 0)


def replicated(replicas: int, outcome: Outcome) -> Outcome:
    """Turn what became of one replica into what becomes of several.

    With a batch of one each replica serves a request of its own: nothing changes but throughput.
    """
    plan = replace(outcome.plan, axes=(("dp", replicas), *outcome.plan.axes))
    if isinstance(outcome, PlanEstimate):
        rate = outcome.throughput_per_s * replicas
        return replace(outcome, plan=plan, gpus=plan.gpus, throughput_per_s=rate)
    short_estimate = None if outcome.short is None else replicated(replicas, outcome.short)
    assert not isinstance(short_estimate, Rejected)
    return replace(outcome, plan=plan, short=short_estimate)


def replica(deployment: Deployment, plan: Plan) -> Plan | None:
    """Return the plan of one replica, where its links are the same alone as beside others."""
    replica_plan = plan.without("dp")
    if deployment.subset is not None or deployment.nodes or plan.vae > 1 or replica_plan == plan:
        return None
    return replica_plan if _same_links(deployment, plan, replica_plan) else None


def _same_links(deployment: Deployment, plan: Plan, replica_plan: Plan) -> bool:
    """Whether a replica has the same links alone as beside others, which may share some."""
    try:
        replica_links, shared_links = deployment.fabrics(replica_plan), deployment.fabrics(plan)
    except TopologyError:
        return False
    return all(shared_links[axis] == fabric for axis, fabric in replica_links.items())


def reversed_nesting(deployment: Deployment, plan: Plan) -> Plan | None:
    """Nest the two ways to cut a sequence the other way round, where a plan spans hosts.

    On one host the seats of a machine's GPUs do as much.
    """
    names = [name for name, _ in plan.axes]
    inner = next((names.index(name) for name in ("ring", "allgather_kv") if name in names), None)
    if "ulysses" not in names or inner is None or not _spans_hosts(deployment, plan.gpus):
        return None
    axes, outer = list(plan.axes), names.index("ulysses")
    axes[outer], axes[inner] = axes[inner], axes[outer]
    return replace(plan, axes=tuple(axes))


def ring_q_variant(workload: Workload, plan: Plan) -> Plan | None:
    """Let queries pass round a ring in place of keys and values, where some of a prompt is cached.

    Which of the two is faster depends on how much is: both are judged.
    """
    if plan.degree(ring.AXIS) == 1 or not workload.prefixed:
        return None
    names = {ring.AXIS: ring_q.AXIS}
    return replace(plan, axes=tuple((names.get(name, name), n) for name, n in plan.axes))


def uneven_variants(plan: Plan) -> Iterator[Plan]:
    """Yield the plan that exchanges pieces of any size, where one exchanges equal pieces.

    It is the same where all divides.

    >>> [str(other) for other in uneven_variants(Plan((("cfg", 2), ("ulysses", 5))))]
    ['cfg2.uaa5']
    """
    if plan.degree(ulysses.AXIS) > 1 and plan.degree(uaa.AXIS) == 1:
        names = {ulysses.AXIS: uaa.AXIS}
        yield replace(plan, axes=tuple((names.get(name, name), n) for name, n in plan.axes))


def _spans_hosts(deployment: Deployment, gpus: int) -> bool:
    try:
        if deployment.subset is not None:
            return deployment.on(gpus).hosts > 1
        return deployment.hardware.island(gpus, deployment.nodes) < gpus
    except TopologyError:
        return False


def replacements(plan: Plan, passes: int, seen: Mapping[Plan, Outcome]) -> Iterator[Plan]:
    """Yield the plans with fewer stages, known to fit, that a pipeline can give way to.

    passes : forwards a step. seen : what became of the plans with fewer stages.
    """
    if plan.degree("pp") > 1:
        for other in (unpiped(plan, passes), *shallower(plan)):
            if other is not None and isinstance(seen.get(other), PlanEstimate):
                yield other
