"""Price one plan in full: time by stage and by class of work, memory by part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Final

import numpy as np

from costmodels import memory
from costmodels.estimate import Basis
from costmodels.price import Known, Target
from costmodels.program.ops import Loop, Program, Real
from costmodels.tables import communicator_bytes, headroom
from costmodels.timeline import Cost, cost
from planner.engines.deployment import Deployment
from planner.lowering import WEIGHT_BYTES, decode_step, lower
from planner.models.architecture import Kind, Model
from planner.models.tokens import lengths, line_of
from planner.request.plan import Plan
from planner.request.request import Request
from planner.request.workload import Workload
from planner.search.outcome import PlanEstimate
from planner.search.remarks import remarks
from topology.base import InputError

Axes = tuple[tuple[str, int], ...]
INPUT_TOKENS: Final = 2048
OUTPUT_TOKENS: Final = 128
FOREIGN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "decoder": ("height", "width", "frames", "steps", "text_tokens", "text_tower", "offload"),
    "diffusion": ("input_tokens", "output_tokens"),
}
"""What a kind of model does not have."""

PIXEL_BYTES: Final = 6
"""Bytes of a decoded pixel: three colours of 16 bits."""


def workload_of(model: Model, request: Request, deployment: Deployment) -> Workload:
    """Turn sizes into sequence lengths, with the model's usual ones where none were asked for.

    Raises
    ------
    InputError
        If a size is one that the kind of model does not have, or that the model cannot take.
    """
    _check_kind(model, request)
    usual = model.defaults
    if model.kind == "decoder":
        prompt = request.input_tokens or INPUT_TOKENS
        output = OUTPUT_TOKENS if request.output_tokens is None else request.output_tokens
        return Workload(
            tokens=tuple((stream.name, prompt) for stream in model.streams),
            batch=request.batch,
            output_tokens=output,
            precision=request.precision,
            kv_repeat=request.kv_repeat,
            wide_collectives=request.wide_collectives,
            scattered_inputs=request.scattered_inputs,
        )
    height, width = request.height or usual.height, request.width or usual.width
    frames = request.frames or usual.frames
    found = lengths(model, height, width, frames, request.text_tokens)
    return Workload(
        tokens=tuple(found.items()),
        batch=request.batch,
        steps=request.steps or usual.steps,
        passes=usual.passes,
        pixels=height * width * frames,
        frames=frames,
        line=line_of(model.latent, width) if model.latent else 0,
        precision=request.precision,
        text_tower=deployment.text_tower,
        kv_repeat=request.kv_repeat,
        wide_collectives=request.wide_collectives,
        scattered_inputs=request.scattered_inputs,
        own=deployment.own,
        slow_decoder=deployment.slow_decoder,
        gathered_rings=deployment.runner is not None and deployment.runner.gathered_rings,
    )


def _check_kind(model: Model, request: Request) -> None:
    """Refuse what pictures have for language models, and numbers of tokens for others."""
    language = model.kind == "decoder"
    for name in FOREIGN.get(model.kind, ()):
        value = getattr(request, name)
        if value is not None and value is not False:
            what = "a language model" if language else "no language model"
            raise InputError(f"{name}: got {value}, wanted none: {model.name} is {what}")


def evaluate(
    model: Model,
    workload: Workload,
    plan: Plan,
    deployment: Deployment,
    *,
    offload: bool = False,
    known: Known | None = None,
) -> PlanEstimate:
    """Price a legal plan; whether it fits is the caller's to judge.

    Parameters
    ----------
    known : prices found for other plans on the same deployment (see `costmodels.price.recall`).
    """
    places = every_place(model, workload, plan)
    target = deployment.target(model, plan, workload.precision)
    costs = costs_of(places, workload, target, known)
    if "text_tower" in costs:
        costs["text_encode"] = costs["text_encode"] + costs.pop("text_tower")
    total = reduce(add, costs.values(), Cost())
    latency = sum(float(part.time) for part in costs.values())
    held = [memory_of(model, workload, one, deployment, offload=offload) for one in places]
    parts, peak, stage = max(held, key=lambda found: found[1])
    return PlanEstimate(
        model=model.name,
        hardware=deployment.hardware.name,
        gpus=plan.gpus,
        plan=plan,
        runtime=deployment.runtime.name,
        engine=deployment.engine,
        precision=workload.precision,
        latency_s=latency,
        step_s=_step(model, workload, plan, deployment, costs),
        stages_s={name: float(part.time) for name, part in costs.items()},
        breakdown_s=_breakdown(costs),
        communication_hidden_s=float(total.hidden),
        memory_bytes=peak,
        memory_parts_bytes=parts,
        peak_stage=stage,
        throughput_per_s=_throughput(workload, plan, latency),
        known=_known(total, costs),
        remarks=tuple(remarks(model, plan)),
    )


def every_place(model: Model, workload: Workload, plan: Plan) -> list[Program]:
    """Lower a plan for every place of its pipeline; for the heaviest where they are alike.

    Of a decoder only the last place has the scores, which read all of the vocabulary.
    """
    differ = len(model.blocks) > 1 or model.kind == "decoder"
    places = plan.degree("pp") if differ else 1
    if places == 1:
        return [lower(model, workload, plan)]
    return [lower(model, workload, plan, place) for place in range(places)]


def costs_of(
    places: Sequence[Program], workload: Workload, target: Target, known: Known | None = None
) -> dict[str, Cost]:
    """Price every stage of a request over the places of a pipeline.

    M forwards of a step pass P places one after another, and then wait for the slowest: the sum
    of one turn at each and M - 1 turns at the slowest. A program has M + P - 1 turns at its own.
    Of a decoder M is 1.
    """
    if places[0].stages[-1].name == "decode":
        rows = zip(*(program.stages for program in places), strict=True)
        return {row[0].name: cost(_in_turn(row), target, known) for row in rows}
    costs = [
        {stage.name: cost(stage, target, known) for stage in program.stages} for program in places
    ]
    if len(places) == 1:
        return costs[0]
    own = [one["denoise"] for one in costs]
    passes = max(1, workload.passes // dict(places[0].axes).get("cfg", 1))
    turns = passes + len(places) - 1
    slowest = max(own, key=lambda one: float(np.sum(one.time)))
    once, again = reduce(add, own).times(1 / turns), slowest.times((passes - 1) / turns)
    return {**costs[0], "denoise": once + again}


def _in_turn(places: Sequence[Loop]) -> Loop:
    """Put a decoder's stage together: one turn at each place, and the scores of the last."""
    *before, last = places
    if not before:
        return last
    forwards = (place.body[0] for place in before)
    turns = tuple(replace(one, count=1) for one in forwards if isinstance(one, Loop))
    return replace(last, body=(*turns, *last.body[1:]))


def _breakdown(costs: Mapping[str, Cost]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for one in costs.values():
        for kind, seconds in one.classes.items():
            if kind != "communication":
                parts[kind] = parts.get(kind, 0.0) + float(seconds)
    exposed = sum(float(one.exposed) for one in costs.values())
    launch = sum(float(one.launch) for one in costs.values())
    waiting = sum(float(one.waiting) for one in costs.values())
    parts |= {"waiting": waiting} if waiting else {}
    always = {"gemm": 0.0, "attention": 0.0, "pointwise": 0.0}
    return {**always, **parts, "communication_exposed": exposed, "launch": launch}


def _known(total: Cost, costs: Mapping[str, Cost]) -> dict[str, Basis]:
    known = {str(kind): basis for kind, basis in total.basis.items()}
    if "communication" in known:
        known["communication_exposed"] = known.pop("communication")
    # the spread of GPUs and the pace of hosts were measured on a few machines
    elsewhere = {
        "waiting": total.waiting,
        "launch": sum(float(one.launch) for one in costs.values()),
    }
    return {**known, **{name: Basis.EXTRAPOLATED for name, part in elsewhere.items() if part}}


def _step(
    model: Model, workload: Workload, plan: Plan, deployment: Deployment, costs: Mapping[str, Cost]
) -> float:
    """One denoising step with all its forwards, or one decode step at the prompt's length."""
    if model.kind == "diffusion":
        return float(costs["denoise"].time) / float(np.max(workload.steps))
    if any(name in dict(plan.axes) for name in ("ring", "allgather_kv", "ulysses")):
        return float(costs["prefill"].time)
    once = replace(workload, output_tokens=1)
    target = deployment.target(model, plan, workload.precision)
    places = [decode_step(model, once, plan, place) for place in range(plan.degree("pp"))]
    return float(cost(_in_turn(places), target).time)


def _throughput(workload: Workload, plan: Plan, latency: float) -> float:
    """Results a second: the batch, or one request on every replica."""
    batch = float(np.max(workload.batch))
    results = batch if batch > 1 else float(plan.degree("dp"))
    return results / latency if latency else 0.0


def memory_of(
    model: Model, workload: Workload, program: Program, deployment: Deployment, *, offload: bool
) -> tuple[dict[str, float], float, str]:
    """Whole bytes on the fullest GPU: by part, at the peak, and the stage where the peak is."""
    stages = running(program)
    held = fixed_parts(model, program, deployment, offload=offload)
    replicas = dict(program.axes).get("dp", 1)
    decode = round(float(np.max(decode_bytes(model, workload, replicas))))
    amounts = {
        "transformer_weights": held["transformer_weights"],
        "other_weights": held["other_weights"],
        "activations": max(float(np.max(memory.activations(stage))) for stage in stages),
        "kv": float(np.max(caches_of(model, workload, stages))),
        "buffers": memory.messages(stages) * communicator_bytes(deployment.profile),
        "runtime": held["runtime"],
    }
    parts: dict[str, float] = {name: round(size) for name, size in amounts.items()}
    whole = sum(parts.values())
    peaks = {stages[-1].name: whole, "vae_decode": whole - parts["activations"] + decode}
    parts["vae_decode"] = decode
    stage = max(peaks, key=lambda name: peaks[name])
    return parts, peaks[stage], stage


def caches_of(model: Model, workload: Workload, stages: Sequence[Loop]) -> Real:
    """Bytes of keys and values at the end of an answer; a prefill alone stores the prompt's."""
    stored = memory.caches(stages)
    if model.kind != "decoder":
        return stored
    prompt = np.asarray(workload.length(model.streams[0].name), float)
    grown: Real = stored * (prompt + np.asarray(workload.output_tokens)) / prompt
    return grown


def peak_of(
    model: Model, workload: Workload, plan: Plan, deployment: Deployment, *, offload: bool = False
) -> float:
    """Bytes on the fullest GPU of a legal plan, without its time."""
    places = every_place(model, workload, plan)
    return max(memory_of(model, workload, one, deployment, offload=offload)[1] for one in places)


def running(program: Program) -> list[Loop]:
    """Return the stages of the transformer itself."""
    return [s for s in program.stages if s.name not in ("text_encode", "vae_decode")]


def fixed_parts(
    model: Model, program: Program, deployment: Deployment, *, offload: bool
) -> dict[str, float]:
    """Bytes that do not depend on the size of the request."""
    itemsize = WEIGHT_BYTES["bf16"]
    encoders = 0.0 if offload else encoder_bytes(model)
    vae = model.vae.parameters * itemsize if model.vae else 0.0
    blocks = memory.weights(running(program)) * model.transformers
    return {
        "transformer_weights": blocks + outer_parameters(model, program.axes) * itemsize,
        "other_weights": encoders + vae,
        "runtime": deployment.runtime.memory.value,
    }


def encoder_bytes(model: Model) -> float:
    """Bytes of the text encoders, which stay in 16 bits."""
    return sum(encoder.parameters for encoder in model.encoders) * WEIGHT_BYTES["bf16"]


def outer_parameters(model: Model, axes: Axes) -> float:
    """Weights outside the blocks on one rank.

    A language model's embedding and head are cut by vocabulary over the ranks that share a layer,
    as its program multiplies by the head; a diffusion model's projections are whole on every rank.
    """
    cut = dict(axes).get("tp", 1) if model.kind == "decoder" else 1
    return model.outer_parameters / cut


def fixed_bytes(model: Model, program: Program, deployment: Deployment, *, offload: bool) -> float:
    """Sum of `fixed_parts`."""
    return sum(fixed_parts(model, program, deployment, offload=offload).values())


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
    if vae.tile:
        working = vae.peak_bytes_per_pixel * np.minimum(area, vae.tile**2) * together
    else:
        working = vae.peak_bytes_per_pixel * area * together * batch
    total: Real = working + PIXEL_BYTES * workload.pixels * batch
    return total


def room(deployment: Deployment, kind: Kind) -> float:
    """Bytes of a GPU that a plan may use, for a kind of model.

    >>> from planner.request.request import Request
    >>> from planner.engines.deployment import deployment_of
    >>> deployment = deployment_of(Request(model="flux.1-dev", hardware="a100-sxm-80gb"))  # 80 GiB
    >>> round(room(deployment, "decoder") / 2**30, 2)
    72.0
    """
    return deployment.hardware.device.memory.value * (1 - headroom(kind))
