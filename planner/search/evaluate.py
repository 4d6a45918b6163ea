"""Price one plan in full: time by stage and by class of work, memory by part."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add
from typing import Final

import numpy as np

from costmodels import memory
from costmodels.basis import Basis
from costmodels.formats import FORMATS
from costmodels.price import Prices, Target
from costmodels.program import Loop, Program, Real, ceil_div
from costmodels.tables import communicator_bytes, headroom
from costmodels.timeline import Cost, cost
from planner.engines.tables import allowed
from planner.lowering import decode_steps, lower, lower_places
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.search.plans import notes
from planner.search.speculation import draft_cache, draft_weights, gain_of, speculated
from topology.base.values import dataclass

Axes = tuple[tuple[str, int], ...]
PIXEL_BYTES: Final = 6
"""Bytes of a decoded pixel: three colours of 16 bits."""


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

    prices : of operations, by device. programs : of plans. bodies : of loops in these, by what they
    do to memory. estimates : of plans, by what they were priced on; engines that do nothing in
    another way have the same.
    """

    prices: dict[str, Prices] = field(default_factory=dict)
    programs: dict[tuple[Plan, Workload], Lowered] = field(default_factory=dict)
    bodies: memory.Bodies = field(default_factory=memory.Bodies)
    estimates: dict[tuple[Plan, Workload], list[tuple[Target, PlanEstimate]]] = field(
        default_factory=dict
    )


def evaluate(scenario: Scenario, plan: Plan, shared: Shared | None = None) -> PlanEstimate:
    """Price a legal plan; whether it fits is the caller's to judge.

    Parameters
    ----------
    scenario : whose deployment has the plan's GPUs, seated where a machine brings them.
    shared : with other estimates of the same request; it is used, and added to.
    """
    deployment, workload = scenario.deployment, scenario.workload
    shared = Shared() if shared is None else shared
    target = deployment.target(scenario.model, plan)
    key = plan, replace(workload, habits=workload.habits.in_programs)
    known = shared.estimates.setdefault(key, [])
    for other, estimate in known:
        if other == target:
            return _of(scenario, estimate)
    if key not in shared.programs:
        shared.programs[key] = lowered(scenario, plan, shared.bodies)
    prices = shared.prices.setdefault(deployment.hardware.name, {})
    estimate = _evaluate(scenario, plan, shared.programs[key], target, prices)
    known.append((target, estimate))
    return _of(scenario, estimate)


def _of(scenario: Scenario, estimate: PlanEstimate) -> PlanEstimate:
    """Say of a price who runs the plan, and where."""
    return replace(
        estimate,
        engine=scenario.deployment.engine,
        placement=scenario.deployment.placed,
        unproven=scenario.deployment.exported
        and allowed().unproven(estimate.plan, scenario.request.tensorrt_version),
    )


def lowered(scenario: Scenario, plan: Plan, bodies: memory.Bodies | None = None) -> Lowered:
    """Lower a plan, and count the memory of every place by part; but the runtime's."""
    bodies = bodies or memory.Bodies()
    places = every_place(scenario, plan)
    distinct = {id(program): program for program in places}
    parts = {number: parts_of(scenario, program, bodies) for number, program in distinct.items()}
    groups = {number: memory.groups(running(program)) for number, program in distinct.items()}
    return Lowered(
        places=places,
        parts=[parts[id(program)] for program in places],
        groups=[groups[id(program)] for program in places],
    )


def _evaluate(
    scenario: Scenario, plan: Plan, programs: Lowered, target: Target, prices: Prices
) -> PlanEstimate:
    model, workload, deployment = scenario.model, scenario.workload, scenario.deployment
    costs = costs_of(programs.places, workload, target, prices)
    if "text_tower" in costs:
        costs["text_encode"] = costs["text_encode"] + costs.pop("text_tower")
    if workload.speculation is not None:
        costs = _drafted(scenario, plan, costs, prices)
    total = reduce(add, costs.values(), Cost())
    latency = sum(float(stage.time) for stage in costs.values())
    runtime = {"runtime": deployment.runtime.memory.value}
    held = [
        _peak(program, {**amounts, **runtime})
        for program, amounts in zip(programs.places, programs.parts, strict=True)
    ]
    parts, peak, stage = max(held, key=lambda row: row[1])
    return PlanEstimate(
        model=model.name,
        hardware=deployment.hardware.name,
        gpus=plan.gpus,
        plan=plan,
        runtime=deployment.runtime.name,
        precision=workload.precision,
        latency_s=latency,
        step_s=_step(scenario, plan, target, costs, prices),
        stages_s={name: float(cost.time) for name, cost in costs.items()},
        breakdown_s=_breakdown(costs),
        communication_hidden_s=float(total.hidden),
        memory_bytes=peak,
        memory_parts_bytes=parts,
        peak_stage=stage,
        throughput_per_s=throughput(workload, plan, latency),
        known=_bases(total, costs),
        notes=tuple(notes(model, plan)),
        written=float(np.max(workload.output_tokens)),
        speculation=workload.speculation,
    )


def _drafted(
    scenario: Scenario, plan: Plan, costs: Mapping[str, Cost], prices: Prices
) -> dict[str, Cost]:
    """Put steps that verify drafted tokens in place of those of a token each."""
    workload = scenario.workload
    prompt = workload.length(scenario.model.streams[0].name)
    half = np.asarray(workload.output_tokens) // 2
    context = prompt + (int(half) if half.ndim == 0 else half)
    step, read = speculated(scenario, plan, prices, context, prompt)
    steps = np.asarray(workload.output_tokens) / gain_of(workload)
    count = float(steps) if steps.ndim == 0 else steps
    return {**costs, "prefill": costs["prefill"] + read, "decode": step.times(count)}


def every_place(scenario: Scenario, plan: Plan) -> list[Program]:
    """Lower a plan for every place of its pipeline; for the heaviest where they are alike.

    Of a decoder only the last place has the scores, which read all of the vocabulary. Places that
    do the same are one program.
    """
    model, workload = scenario.model, scenario.workload
    differ = len(model.blocks) > 1 or model.kind == "decoder"
    if differ and plan.degree("pp") > 1:
        return lower_places(model, workload, plan)
    return [lower(model, workload, plan)]


def costs_of(
    places: Sequence[Program], workload: Workload, target: Target, prices: Prices | None = None
) -> dict[str, Cost]:
    """Price every stage of a request over the places of a pipeline.

    M forwards of a step pass P places one after another, and then wait for the slowest: the sum
    of one turn at each and M - 1 turns at the slowest. A program has M + P - 1 turns at its own.
    Of a decoder M is 1.
    """
    if places[0].stages[-1].name == "decode":
        rows = zip(*(program.stages for program in places), strict=True)
        return {row[0].name: cost(_in_turn(row), target, prices) for row in rows}
    costs = [
        {stage.name: cost(stage, target, prices) for stage in program.stages} for program in places
    ]
    if len(places) == 1:
        return costs[0]
    steps = [stages["denoise"] for stages in costs]
    passes = max(1, workload.passes // dict(places[0].axes).get("cfg", 1))
    turns = passes + len(places) - 1
    slowest = max(steps, key=lambda step: float(np.sum(step.time)))
    once, again = reduce(add, steps).times(1 / turns), slowest.times((passes - 1) / turns)
    return {**costs[0], "denoise": once + again}


def _in_turn(places: Sequence[Loop]) -> Loop:
    """Put a decoder's stage together: one turn at each place, and the scores of the last."""
    *before, last = places
    if not before:
        return last
    forwards = (place.body[0] for place in before)
    turns = tuple(replace(loop, count=1) for loop in forwards if isinstance(loop, Loop))
    return replace(last, body=(*turns, *last.body[1:]))


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
    always = {"gemm": 0.0, "attention": 0.0, "pointwise": 0.0}
    return {**always, **parts, "communication_exposed": exposed, "launch": launch}


def _bases(total: Cost, costs: Mapping[str, Cost]) -> dict[str, Basis]:
    """Say how well each part of the time is known."""
    bases = {str(kind): basis for kind, basis in total.basis.items()}
    if "communication" in bases:
        bases["communication_exposed"] = bases.pop("communication")
    # the spread of GPUs and the pace of hosts were measured on a few machines
    elsewhere = {
        "waiting": total.waiting,
        "launch": sum(float(stage.launch) for stage in costs.values()),
    }
    return {**bases, **{name: Basis.EXTRAPOLATED for name, part in elsewhere.items() if part}}


def _step(
    scenario: Scenario, plan: Plan, target: Target, costs: Mapping[str, Cost], prices: Prices
) -> float:
    """One denoising step with all its forwards, or one decode step at the prompt's length."""
    model, workload = scenario.model, scenario.workload
    if model.kind == "diffusion":
        return float(costs["denoise"].time) / float(np.max(workload.steps))
    if workload.speculation is not None:
        prompt = workload.length(model.streams[0].name)
        return float(speculated(scenario, plan, prices, prompt, prompt)[0].time)
    once = replace(workload, output_tokens=1)
    return float(cost(_in_turn(decode_steps(model, once, plan)), target, prices).time)


def throughput(workload: Workload, plan: Plan, latency: float) -> float:
    """Results a second: the batch, or one request on every replica."""
    batch = float(np.max(workload.batch))
    results = batch if batch > 1 else float(plan.replicas)
    return results / latency if latency else 0.0


def memory_of(scenario: Scenario, program: Program) -> tuple[dict[str, float], float, str]:
    """Whole bytes on the fullest GPU: by part, at the peak, and the stage where the peak is."""
    return _peak(program, parts_of(scenario, program))


def _peak(program: Program, amounts: Mapping[str, Real]) -> tuple[dict[str, float], float, str]:
    parts: dict[str, float] = {name: round(float(np.max(size))) for name, size in amounts.items()}
    decode = parts.pop("vae_decode")
    whole = sum(parts.values())
    peaks = {
        running(program)[-1].name: whole,
        "vae_decode": whole - parts["activations"] + decode,
    }
    parts["vae_decode"] = decode
    stage = max(peaks, key=lambda name: peaks[name])
    return parts, peaks[stage], stage


def parts_of(
    scenario: Scenario, program: Program, bodies: memory.Bodies | None = None
) -> dict[str, Real]:
    """Bytes by part, numbers or arrays; the decode is not there when the activations are."""
    bodies = bodies or memory.Bodies()
    model, workload, stages = scenario.model, scenario.workload, running(program)
    replicas = dict(program.axes).get("dp", 1)
    fixed = fixed_parts(scenario, program, bodies)
    draft, kept = _draft_parts(scenario, program)
    return {
        "transformer_weights": fixed["transformer_weights"],
        "other_weights": fixed["other_weights"] + draft,
        "activations": reduce(np.maximum, [memory.activations(stage, bodies) for stage in stages]),
        "kv": caches_of(model, workload, program, bodies) + kept,
        "buffers": memory.groups(stages) * communicator_bytes(scenario.deployment.profile),
        "runtime": fixed["runtime"],
        "vae_decode": decode_bytes(model, workload, replicas),
    }


def _draft_parts(scenario: Scenario, program: Program) -> tuple[float, Real]:
    """Bytes of a draft's weights and of what it keeps; none where nothing is drafted."""
    workload = scenario.workload
    if workload.speculation is None:
        return 0.0, 0.0
    plan = Plan(program.axes)
    prompt = workload.length(scenario.model.streams[0].name)
    batch = np.maximum(1, np.asarray(workload.batch) // plan.replicas)
    whole = prompt + np.asarray(workload.output_tokens)
    return draft_weights(scenario, plan), batch * draft_cache(scenario, plan, whole)


def caches_of(
    model: Model, workload: Workload, program: Program, bodies: memory.Bodies | None = None
) -> Real:
    """Bytes that are kept of sequences at the end of an answer; a prefill alone keeps none.

    Ranks that a sequence is cut over keep as many of its rows each; layers with a sliding window
    what it sees, where the engine's cache knows of windows.
    """
    stages = running(program)
    if model.kind != "decoder":
        return memory.caches(stages, bodies)
    plan = Plan(program.axes)
    whole = workload.length(model.streams[0].name) + np.asarray(workload.output_tokens)
    whole = ceil_div(whole, plan.sequence_ranks)
    degree = plan.degree("tp")
    towers = {block.name: block.towers[0] for block in model.blocks}
    total: Real = 0.0
    for tensor, layers in memory.stored(stages, bodies):
        kept = towers[tensor.name.split(".")[1]].kept(degree)
        if not workload.habits.windowed_cache:
            kept = replace(kept, window=0)
        total = total + tensor.shape[0] * layers * kept.bytes(whole, int(tensor.itemsize))
    return total


def peak_of(scenario: Scenario, plan: Plan) -> float:
    """Bytes on the fullest GPU of a legal plan, without its time."""
    return max(memory_of(scenario, program)[1] for program in every_place(scenario, plan))


def running(program: Program) -> list[Loop]:
    """Return the stages of the transformer itself."""
    return [s for s in program.stages if s.name not in ("text_encode", "vae_decode")]


def fixed_parts(
    scenario: Scenario, program: Program, bodies: memory.Bodies | None = None
) -> dict[str, float]:
    """Bytes that do not depend on the size of the request."""
    model, itemsize = scenario.model, FORMATS["bf16"].weights
    encoders = 0.0 if scenario.request.offload else encoder_bytes(model)
    vae = model.vae.parameters * itemsize if model.vae else 0.0
    blocks = memory.weights(running(program), bodies) * model.transformers
    return {
        "transformer_weights": blocks + outer_parameters(model, program.axes) * itemsize,
        "other_weights": encoders + vae,
        "runtime": scenario.deployment.runtime.memory.value,
    }


def encoder_bytes(model: Model) -> float:
    """Bytes of the text encoders, which stay in 16 bits."""
    return sum(encoder.parameters for encoder in model.encoders) * FORMATS["bf16"].weights


def outer_parameters(model: Model, axes: Axes) -> float:
    """Weights outside the blocks on one rank.

    A language model's embedding and head are cut by vocabulary over the ranks that share a layer,
    as its program multiplies by the head; a diffusion model's projections are whole on every rank.
    """
    cut = dict(axes).get("tp", 1) if model.kind == "decoder" else 1
    return model.outer_parameters / cut


def decode_bytes(model: Model, workload: Workload, replicas: int) -> Real:
    """Memory of the VAE at its widest: one tile or frame, of the frames decoded at once; results.

    Samples of a batch are decoded one after another where the frame is cut into tiles, and
    together where it is not; the pixels of all of them are kept.
    """
    vae = model.vae
    if vae is None:
        return 0.0
    frames, batch = workload.frames, np.maximum(1, np.asarray(workload.batch) // replicas)
    together = np.minimum(frames, vae.frames_at_once) if vae.frames_at_once else frames
    area = workload.pixels / frames
    chosen = model.named_in(workload.habits.tiled_decode)
    if tile := vae.tile**2 or (vae.may_tile if chosen else 0):
        working = vae.peak_bytes_per_pixel * np.minimum(area, tile) * together
    else:
        working = vae.peak_bytes_per_pixel * area * together * batch
    total: Real = working + PIXEL_BYTES * workload.pixels * batch
    return total


def usable_bytes(scenario: Scenario) -> float:
    """Bytes of a GPU that a plan may use, for a kind of model.

    >>> from planner.scenario.scenario import resolve
    >>> from planner.request.request import Request
    >>> request = Request(model="qwen3-8b", hardware="a100-sxm-80gb")  # 80 GiB
    >>> round(usable_bytes(resolve(request)) / 2**30, 2)
    72.0
    """
    held = scenario.deployment.hardware.device.memory.value
    return held * (1 - headroom(scenario.model.kind))
