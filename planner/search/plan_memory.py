"""Memory of a plan by part: weights, what a sequence keeps, the decode of its pixels, buffers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Final, cast

from costmodels import memory
from costmodels.formats import FORMATS
from costmodels.program import Program, Real, ceil_div
from costmodels.sizes import larger, largest, smaller
from costmodels.tables import communicator_bytes, headroom
from planner.lowering import lower_places
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.scenario import Scenario
from planner.search.speculation import draft_cache, draft_weights

Axes = tuple[tuple[str, int], ...]
PIXEL_BYTES: Final = 6
"""Bytes of a decoded pixel: three colours of 16 bits."""


def memory_of(scenario: Scenario, program: Program) -> tuple[dict[str, float], float, str]:
    """Whole bytes on the fullest GPU: by part, at the peak, and the stage where the peak is."""
    parts, groups = parts_of(scenario, program), memory.groups(program.transformer)
    return at_peak(scenario, program, as_run(scenario, program, parts, groups))


def as_run(
    scenario: Scenario, program: Program, parts: Mapping[str, Real], groups: int
) -> dict[str, Real]:
    """Return a program's parts with what depends on who runs it, and where.

    These are the bytes of its runtime, of what an engine holds, and of NCCL for each of the
    `groups` that it communicates in.
    """
    model, workload, runtime = scenario.model, scenario.workload, scenario.deployment.runtime
    held_per_row, held_bytes = workload.habits.held.get(runtime.name), cast(Real, 0.0)
    if held_per_row is not None:
        plan = Plan(program.axes)
        rows = ceil_div(sum(tokens for _, tokens in workload.tokens), plan.sequence_ranks)
        batch = ceil_div(workload.batch, plan.degree("dp"))
        if model.named_in(workload.habits.batched_guidance):
            batch = batch * (workload.passes // plan.degree("cfg"))
        held_bytes = held_per_row.value * batch * rows * model.main.hidden * FORMATS["bf16"].weights
    return {
        **parts,
        "activations": parts["activations"] + held_bytes,
        "buffers": groups * communicator_bytes(scenario.deployment.profile),
        "runtime": runtime.memory.value,
    }


def at_peak(
    scenario: Scenario, program: Program, amounts: Mapping[str, Real]
) -> tuple[dict[str, float], float, str]:
    """Round parts to whole bytes, and find what is held at the peak, and in which stage.

    Code that keeps one model on the GPU at a time has sent the transformer away at the decode.
    """
    parts: dict[str, float] = {name: round(largest(size)) for name, size in amounts.items()}
    decode = parts.pop("vae_decode")
    total = sum(parts.values())
    one_at_a_time = scenario.model.named_in(scenario.workload.habits.one_at_a_time)
    is_offloaded = scenario.request.offload and one_at_a_time
    freed = parts["activations"] + (parts["transformer_weights"] if is_offloaded else 0)
    peaks = {program.transformer[-1].name: total, "vae_decode": total - freed + decode}
    parts["vae_decode"] = decode
    stage = max(peaks, key=lambda name: peaks[name])
    return parts, peaks[stage], stage


def parts_of(
    scenario: Scenario, program: Program, bodies: memory.Bodies | None = None
) -> dict[str, Real]:
    """Bytes by part, numbers or arrays; the decode is not there when the activations are.

    What depends on where it runs is nothing yet (see `as_run`).
    """
    bodies = bodies or memory.Bodies()
    model, workload, stages = scenario.model, scenario.workload, program.transformer
    replicas = dict(program.axes).get("dp", 1)
    fixed = fixed_parts(scenario, program, bodies)
    draft, draft_kv = _draft_parts(scenario, program)
    return {
        "transformer_weights": fixed["transformer_weights"],
        "other_weights": fixed["other_weights"] + draft,
        "activations": reduce(larger, [memory.activations(stage, bodies) for stage in stages]),
        "kv": caches_of(model, workload, program, bodies) + draft_kv,
        "buffers": 0.0,
        "runtime": 0.0,
        "vae_decode": decode_bytes(model, workload, replicas),
    }


def _draft_parts(scenario: Scenario, program: Program) -> tuple[float, Real]:
    """Bytes of a draft's weights and of what it keeps; none where nothing is drafted."""
    workload = scenario.workload
    if workload.speculation is None:
        return 0.0, 0.0
    plan = Plan(program.axes)
    prompt = workload.length(scenario.model.streams[0].name)
    batch = larger(1, workload.batch // plan.replicas)
    length = prompt + workload.output_tokens
    return draft_weights(scenario, plan), batch * draft_cache(scenario, plan, length)


def caches_of(
    model: Model, workload: Workload, program: Program, bodies: memory.Bodies | None = None
) -> Real:
    """Bytes that are kept of sequences at the end of an answer; a prefill alone keeps none.

    Ranks that a sequence is cut over keep as many of its rows each; layers with a sliding window
    what it sees, or the share of a sequence that the engine has room for if that is more.
    """
    stages = program.transformer
    if model.kind != "decoder":
        return memory.caches(stages, bodies)
    plan = Plan(program.axes)
    length = workload.length(model.streams[0].name) + workload.output_tokens
    length = ceil_div(length, plan.sequence_ranks)
    degree = plan.degree("tp")
    towers = {block.name: block.towers[0] for block in model.blocks}
    room = workload.habits.window_room(model.family)
    total: Real = 0.0
    for tensor, layers in memory.stored(stages, bodies):
        layer_cache = towers[tensor.name.split(".")[1]].kept(degree)
        itemsize = int(tensor.itemsize)
        sequence_bytes = layer_cache.bytes(length, itemsize)
        if layer_cache.window and room:
            sequence_bytes = larger(
                sequence_bytes, room * replace(layer_cache, window=0).bytes(length, itemsize)
            )
        total = total + tensor.shape[0] * layers * sequence_bytes
    return total


def peak_of(scenario: Scenario, plan: Plan) -> float:
    """Count the bytes on the fullest GPU of a legal plan, without pricing its time."""
    return max(
        memory_of(scenario, program)[1]
        for program in lower_places(scenario.model, scenario.workload, plan)
    )


def fixed_parts(
    scenario: Scenario, program: Program, bodies: memory.Bodies | None = None
) -> dict[str, float]:
    """Bytes that do not depend on the size of the request."""
    model, itemsize = scenario.model, FORMATS["bf16"].weights
    parts, layer = memory.gathered_weights(program.transformer, bodies)
    blocks = memory.weights(program.transformer, bodies) * model.transformers / parts
    outer = outer_parameters(model, program.axes) * itemsize
    masters = model.own.masters if scenario.workload.habits.repository else ""
    widening = 2 if masters == "any" or (masters and parts > 1) else 1
    return {
        "transformer_weights": widening * (blocks + outer) + 2 * layer,
        "other_weights": _other_weights(scenario),
        "runtime": scenario.deployment.runtime.memory.value,
    }


def _other_weights(scenario: Scenario) -> float:
    """Bytes of the text encoders and the VAE."""
    model, precision = scenario.model, scenario.workload.precision
    encoders = 0.0 if scenario.request.offload else encoder_bytes(model, precision)
    vae = model.vae.parameters * FORMATS["bf16"].weights if model.vae else 0.0
    return encoders + vae


def least_bytes(scenario: Scenario, replicas: int) -> float:
    """Bytes that so many replicas take of each GPU at least, however one divides the transformer.

    These are there while pixels are decoded.
    """
    decode = decode_bytes(scenario.model, scenario.workload, replicas)
    return _other_weights(scenario) + largest(decode)


def encoder_bytes(model: Model, precision: str) -> float:
    """Bytes of the text encoders: in 16 bits, but for what they keep in 32 beside fp16."""
    wide_parameters = sum(encoder.kept for encoder in model.encoders) if precision == "fp16" else 0
    return (wide_parameters + sum(encoder.parameters for encoder in model.encoders)) * FORMATS[
        "bf16"
    ].weights


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
    frames, batch = workload.frames, larger(1, workload.batch // replicas)
    frames_together = smaller(frames, vae.frames_at_once) if vae.frames_at_once else frames
    area = workload.pixels / frames
    is_tiled = model.named_in(workload.habits.tiled_decode)
    if tile := vae.tile**2 or (vae.may_tile if is_tiled else 0):
        working = vae.peak_bytes_per_pixel * smaller(area, tile) * frames_together
    else:
        working = vae.peak_bytes_per_pixel * area * frames_together * batch
    total: Real = working + PIXEL_BYTES * workload.pixels * batch
    return total


def usable_bytes(scenario: Scenario) -> float:
    """Bytes of a GPU that a plan may use: what its engine is told to take, or all but a little.

    What an engine takes of that which weights leave is asked of a load alone.

    >>> from planner.scenario.scenario import resolve
    >>> from planner.request.request import Request
    >>> asked = {"model": "qwen3-8b", "hardware": "a100-sxm-80gb"}  # 80 GiB
    >>> for engine in ("", "sglang-llm"):
    ...     print(round(usable_bytes(resolve(Request(**asked, engine=engine))) / 2**30, 1))
    77.6
    67.2
    """
    gpu_bytes, deployment = scenario.deployment.hardware.device.memory.value, scenario.deployment
    scheduling, runner = deployment.scheduling, deployment.runner
    engine_decides = (
        scenario.model.kind == "decoder" and runner is not None and not scheduling.of_free
    )
    return gpu_bytes * (scheduling.memory if engine_decides else 1 - headroom())
