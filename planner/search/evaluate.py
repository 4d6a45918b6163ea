"""Price one plan in full: time by stage and by class of work, beside its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from costmodels import memory
from costmodels.basis import Basis
from costmodels.price import Contents, FoundPrices, Target
from costmodels.program import Loop, Program, Real, ceil_div
from costmodels.sizes import Size, any_true, larger, largest, total
from costmodels.timeline import Cost, cost, sequential_cost
from planner.engines.tables import allowed
from planner.lowering import decode_steps, lower, lower_places
from planner.lowering.work import once
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.deployment import Deployment
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.search.plan_memory import as_run, at_peak, parts_of
from planner.search.plans import notes
from planner.search.speculation import gain_of, speculated_costs
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

if TYPE_CHECKING:  # only machines need it
    from planner.placement.seating import Traffic


"""Some of the requests of a sweep."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """The programs of a plan, one for each place that differs, and the memory of each by part.

    groups : of ranks that each communicates in.
    """

    places: Sequence[Program]
    parts: Sequence[Mapping[str, Real]]
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class Shared:
    """What estimates of one request have in common, whoever runs it on how many GPUs.

    contents : what programs are made of. prices : of operations, by device. programs : of plans
    without replicas. traffic : of these. bodies : of loops in them, by what they do to memory.
    estimates : of plans without replicas, by hardware, and what else they were priced on; engines
    that do nothing in another way, and replicas with such links, have the same.
    """

    contents: Contents = field(default_factory=Contents)
    prices: dict[str, FoundPrices] = field(default_factory=dict)
    programs: dict[tuple[Plan, Workload], Lowered] = field(default_factory=dict)
    traffic: dict[tuple[Plan, Workload], Traffic] = field(default_factory=dict)
    bodies: memory.Bodies = field(default_factory=memory.Bodies)
    estimates: dict[tuple[Plan, Workload, str], list[tuple[Target, PlanEstimate]]] = field(
        default_factory=dict
    )

    def lowered(self, scenario: Scenario, alone: Plan) -> Lowered:
        """Lower a plan without replicas once."""
        key = alone, scenario.workload.in_programs
        if key not in self.programs:
            self.programs[key] = lowered(scenario, alone, self.bodies)
        return self.programs[key]


def evaluate(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> PlanEstimate:
    """Price a legal plan; whether it fits is the caller's to judge.

    Replicas never meet: what is priced is one of them, with its part of the batch.

    scenario : whose deployment has the plan's GPUs, seated where a machine brings them.
    shared : with other estimates of the same request; it is used, and added to.
    """
    deployment, model = scenario.deployment, scenario.model
    shared = Shared() if shared is None else shared
    target = deployment.target(model, plan)
    replica_scenario, replica_plan = of_one_replica(scenario, plan)
    key = replica_plan, replica_scenario.workload.in_programs, deployment.hardware.name
    priced = shared.estimates.setdefault(key, [])
    estimate = next(
        (candidate for priced_target, candidate in priced if priced_target == target), None
    )
    if estimate is None:
        prices = shared.prices.setdefault(deployment.hardware.name, FoundPrices(shared.contents))
        estimate = _evaluate(
            replica_scenario,
            replica_plan,
            shared.lowered(replica_scenario, replica_plan),
            target,
            prices,
        )
        priced.append((target, estimate))
    return replace(
        estimate,
        plan=plan,
        gpus=plan.gpus,
        throughput_per_s=throughput(scenario.workload, plan, estimate.latency_s),
        notes=tuple(notes(model, scenario.workload, plan)),
        **_runner_fields(scenario, plan),
    )


def of_one_replica(scenario: Scenario, plan: Plan) -> tuple[Scenario, Plan]:
    """Ask of one replica its part of the batch; requests that come one by one are its own."""
    replicas, batch = plan.degree("dp"), scenario.workload.batch
    replica_plan = plan.without("dp") if replicas > 1 else plan
    if replicas == 1 or batch == 1:
        return scenario, replica_plan
    return replace(scenario, workload=_replica_share(scenario.workload, replicas)), replica_plan


@once
def _replica_share(workload: Workload, replicas: int) -> Workload:
    return replace(workload, batch=workload.batch // replicas)


def _runner_fields(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """Say who runs a plan, and where."""
    deployment, version = scenario.deployment, scenario.request.tensorrt_version
    return {
        "engine": deployment.engine,
        "placement": deployment.placed,
        "unproven": deployment.exported and allowed().unproven(plan, version),
    }


def lowered(
    scenario: Scenario,
    plan: Plan,
    bodies: memory.Bodies | None = None,
    which: Flags | None = None,
) -> Lowered:
    """Lower a plan, and count the memory of every place by part, but for where it runs.

    which : requests of a sweep that the program is of; all where left out.
    """
    bodies = bodies or memory.Bodies()
    places = lower_places(scenario.model, scenario.workload, plan, which)
    distinct = {id(program): program for program in places}
    parts = {number: parts_of(scenario, program, bodies) for number, program in distinct.items()}
    groups = {
        number: memory.groups(program.transformer, bodies) for number, program in distinct.items()
    }
    return Lowered(
        places=places,
        parts=[parts[id(program)] for program in places],
        groups=[groups[id(program)] for program in places],
    )


def _evaluate(
    scenario: Scenario, plan: Plan, programs: Lowered, target: Target, prices: FoundPrices
) -> PlanEstimate:
    model, workload, deployment = scenario.model, scenario.workload, scenario.deployment
    costs = costs_of(programs.places, workload, target, prices)
    if "text_tower" in costs:
        costs["text_encode"] = costs["text_encode"] + costs.pop("text_tower")
    if workload.speculation is not None:
        costs = _costs_with_drafts(scenario, plan, costs, target, prices)
    total_cost = reduce(add, costs.values())
    latency = sum(float(stage.time) for stage in costs.values())
    peaks = [
        at_peak(scenario, program, as_run(scenario, program, amounts, groups))
        for program, amounts, groups in zip(
            programs.places, programs.parts, programs.groups, strict=True
        )
    ]
    parts, peak, stage = max(peaks, key=lambda row: row[1])
    return PlanEstimate(
        model=model.name,
        hardware=deployment.hardware.name,
        gpus=plan.gpus,
        plan=plan,
        runtime=deployment.runtime.name,
        precision=workload.precision,
        latency_s=latency,
        step_s=_step_seconds(scenario, plan, target, costs, prices),
        stages_s={name: float(cost.time) for name, cost in costs.items()},
        breakdown_s=_breakdown(costs),
        communication_hidden_s=float(total_cost.hidden),
        memory_bytes=peak,
        memory_parts_bytes=parts,
        peak_stage=stage,
        throughput_per_s=throughput(workload, plan, latency),
        known=_bases(total_cost, costs),
        written=largest(workload.output_tokens),
        speculation=workload.speculation,
        hosted_s=sum(float(stage.time) for stage in costs.values() if stage.hosted),
    )


def _costs_with_drafts(
    scenario: Scenario,
    plan: Plan,
    costs: Mapping[str, Cost],
    target: Target,
    prices: FoundPrices,
) -> dict[str, Cost]:
    """Put steps that verify drafted tokens in place of those of a token each."""
    workload = scenario.workload
    prompt = workload.length(scenario.model.streams[0].name)
    context = prompt + workload.output_tokens // 2
    step, prompt_cost = speculated_costs(scenario, plan, (target, prices), context, prompt)
    steps = workload.output_tokens / gain_of(workload)
    return {**costs, "prefill": costs["prefill"] + prompt_cost, "decode": step.times(steps)}


def costs_of(
    places: Sequence[Program],
    workload: Workload,
    target: Target,
    prices: FoundPrices | None = None,
    which: Flags | None = None,
) -> dict[str, Cost]:
    """Price every stage of a request, and its ``output`` where a host takes its time over it.

    which : requests of a sweep that the programs are of; all where left out.
    """
    costs, runtime = _stages(places, target, prices, which), target.runtime
    images = ceil_div(workload.batch, dict(places[0].axes).get("dp", 1))
    host_seconds = images * workload.pixels * runtime.host_pixel
    host_seconds = host_seconds + runtime.host_rank * (target.ranks - 1)
    return {**costs, "output": Cost(host=host_seconds)} if any_true(host_seconds) else costs


def _stages(
    places: Sequence[Program], target: Target, prices: FoundPrices | None, which: Flags | None
) -> dict[str, Cost]:
    """Price every stage over the places of a pipeline.

    M forwards of a step, or pieces of all steps, pass P places one after another, and then wait
    for the slowest: the sum of one turn at each and M - 1 turns at the slowest. A program has
    M + P - 1 turns at its own. Of a decoder M is 1.
    """
    if places[0].stages[-1].name == "decode":
        rows = zip(*(program.stages for program in places), strict=True)
        return {row[0].name: _decoder_stage(row, target, prices) for row in rows}
    costs, degree = _by_stage(places[0], target, prices), dict(places[0].axes).get("pp", 1)
    if degree == 1:
        return costs
    loops = [[s for s in place.stages if s.name == "denoise"] for place in places]
    rows = zip(*(loops if len(loops) > 1 else loops * degree), strict=True)
    return {
        **costs,
        "denoise": reduce(add, [_pipelined_cost(row, target, prices, which) for row in rows]),
    }


def _pipelined_cost(
    places: Sequence[Loop], target: Target, prices: FoundPrices | None, which: Flags | None
) -> Cost:
    """Price a loop of which every place of a pipeline takes the same turns, one after another."""
    turns = sum(item.count for item in places[0].body if isinstance(item, Loop))
    turns = cast(Size, larger(turns, 1))
    loops = {id(place): replace(place, count=1) for place in places}
    steps = {number: cost(loop, target, prices) for number, loop in loops.items()}
    turn_costs = {place: step.times(1 / turns) for place, step in steps.items()}
    slowest = max(steps.values(), key=lambda step: total(step.time, which))
    pass_cost = sequential_cost([turn_costs[id(loop)] for loop in places])
    return (pass_cost + slowest.times((turns - len(places)) / turns)).times(places[0].count)


def _by_stage(program: Program, target: Target, prices: FoundPrices | None) -> dict[str, Cost]:
    """Price every stage, which may have several loops."""
    costs: dict[str, Cost] = {}
    for loop in program.stages:
        loop_cost = cost(loop, target, prices)
        costs[loop.name] = costs[loop.name] + loop_cost if loop.name in costs else loop_cost
    return costs


def _decoder_stage(places: Sequence[Loop], target: Target, prices: FoundPrices | None) -> Cost:
    """Price a decoder's stage: one turn at each place, and the scores of the last."""
    *earlier, last_place = places
    if not earlier:
        return cost(last_place, target, prices)
    forwards = [(place, place.body[0]) for place in earlier]
    loops = [
        replace(place, count=1, body=(replace(forward, count=1),))
        for place, forward in forwards
        if isinstance(forward, Loop)
    ]
    turns = [*loops, replace(last_place, count=1, body=last_place.body[1:])]
    return sequential_cost([cost(loop, target, prices) for loop in turns]).times(last_place.count)


def _breakdown(costs: Mapping[str, Cost]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for stage in costs.values():
        for kind, seconds in stage.classes.items():
            if kind != "communication":
                parts[kind] = parts.get(kind, 0.0) + float(seconds)
    exposed = sum(float(stage.exposed) for stage in costs.values())
    launch = sum(float(stage.launch) for stage in costs.values())
    waiting = sum(float(stage.waiting) for stage in costs.values())
    parts |= {"waiting": waiting} if waiting else {}
    usual_classes = {"gemm": 0.0, "attention": 0.0, "pointwise": 0.0}
    return {**usual_classes, **parts, "communication_exposed": exposed, "launch": launch}


def _bases(total: Cost, costs: Mapping[str, Cost]) -> dict[str, Basis]:
    """Say how well each part of the time is known."""
    bases = {str(kind): basis for kind, basis in total.basis.items()}
    if "communication" in bases:
        bases["communication_exposed"] = bases.pop("communication")
    # the spread of GPUs and the pace of hosts were measured on a few machines
    extrapolated = {
        "waiting": total.waiting,
        "launch": sum(float(stage.launch) for stage in costs.values()),
    }
    return {**bases, **{name: Basis.EXTRAPOLATED for name, part in extrapolated.items() if part}}


def _step_seconds(
    scenario: Scenario, plan: Plan, target: Target, costs: Mapping[str, Cost], prices: FoundPrices
) -> float:
    """One denoising step with all its forwards, or one decode step at the prompt's length."""
    model, workload = scenario.model, scenario.workload
    if model.kind == "diffusion":
        return float(costs["denoise"].time) / largest(workload.steps)
    if workload.speculation is not None:
        prompt = workload.length(model.streams[0].name)
        return float(speculated_costs(scenario, plan, (target, prices), prompt, prompt)[0].time)
    one_token = replace(workload, output_tokens=1)
    return float(_decoder_stage(decode_steps(model, one_token, plan), target, prices).time)


def throughput(workload: Workload, plan: Plan, latency: float) -> float:
    """Results a second: the batch, or one request on every replica."""
    batch = largest(workload.batch)
    results = batch if batch > 1 else float(plan.replicas)
    return results / latency if latency else 0.0


def price(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> PlanEstimate:
    """Estimate a legal plan, whether or not it fits, on the best seats of a machine.

    plan : legal (see `planner.search.plans.objections`), of no more GPUs than the deployment's.
    shared : with other estimates of the same request; it is used, and added to.

    Raises `TopologyError` if the deployment has fewer GPUs, or its nodes would hold unequal shares,
    or `UncalibratedError` if there are no kernel parameters for the device.
    """
    shared = Shared() if shared is None else shared
    deployment = seated(scenario, plan, shared)
    if deployment is not scenario.deployment:
        scenario = replace(scenario, deployment=deployment)
    return evaluate(scenario, plan, shared)


def seated(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> Deployment:
    """Find the best seats for a plan on the machine that the request brings, if it brings one."""
    deployment = scenario.deployment.on(plan.gpus)
    if deployment.subset is None:
        return deployment
    from planner.placement.seating import seat  # noqa: PLC0415  # only machines need it

    traffic = _traffic(*of_one_replica(scenario, plan), Shared() if shared is None else shared)
    return replace(deployment, placed=seat(plan, deployment.subset, traffic))


def _traffic(scenario: Scenario, plan: Plan, shared: Shared) -> Traffic:
    """Count the messages of a plan without replicas, on the heaviest of its places."""
    from planner.placement.seating import traffic_of  # noqa: PLC0415  # as above

    model, workload = scenario.model, scenario.workload
    key = plan, workload.in_programs
    if key not in shared.traffic:
        places = shared.lowered(scenario, plan).places
        heaviest = places[0] if len(places) == 1 else lower(model, workload, plan)
        shared.traffic[key] = traffic_of(heaviest)
    return shared.traffic[key]
