"""In what order the engines of a plan run, on which buffers, and which ranks talk to each other.

A call binds an engine's inputs and outputs to buffers, or to one place of a buffer that holds
several; a copy moves a buffer's contents to another, and a send to another of another rank.
Everything is the same on all ranks; `ranks` says where each differs, and `groups` which ranks run
an engine: all where it has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, cast

import numpy as np

from costmodels.program import Program
from planner.lowering import lower
from planner.lowering.conditioning import STEP_INPUTS, TURN
from planner.models import Model, latent_frames
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import pp
from planner.tensorrt.attention import with_multi_device_attention
from planner.tensorrt.cache import FILLED, PARTS, PROMPTED
from planner.tensorrt.from_program import SENT_PREFIX, Recipe, networks_of
from planner.tensorrt.network import EngineNetwork, LatentGrid, Value
from topology.base import InputError

Bind = dict[str, list[object]]
Call = dict[str, object]


_REPEATED_STAGES: Final = ("denoise", "decode")
"""Stages that run more than once."""
Buffers = dict[str, dict[str, object]]


def _add_buffer(
    buffers: Buffers, value: Value, name: str, given: dict[str, object] | None = None
) -> None:
    """Add a buffer of a value's shape; what one of that name starts with already stays."""
    given_source = buffers.get(name, {}).get("given")
    buffers[name] = {
        "shape": list(value.shape), "dtype": value.dtype, "given": given_source or given
    }  # fmt: skip


def written(
    model: Model, workload: Workload, plan: Plan, recipe: Recipe
) -> tuple[tuple[EngineNetwork, ...], dict[str, object]]:
    """Return a plan's networks, and in what order they run: the model's where it is computed.

    Raises `IllegalPlanError` if ranks pass messages that no TensorRT layer passes.
    """
    computes_model = recipe.numerics is not None
    if computes_model and model.latent is not None:
        recipe = replace(recipe, latents=latents_of(model, workload))
    programs = programs_of(model, workload, plan, whole=computes_model or model.kind == "decoder")
    networks = networks_of_stages(programs, recipe)
    return networks, schedule_of(networks, programs[0], workload, plan)


def programs_of(
    model: Model, workload: Workload, plan: Plan, *, whole: bool = False
) -> list[Program]:
    """Write down what a rank of each stage of a plan's pipeline does; of one where it has none."""
    stages = range(plan.degree(pp.AXIS)) if plan.degree(pp.AXIS) > 1 else [None]
    return [lower(model, workload, plan, stage, ordered=True, whole=whole) for stage in stages]


def spreads_attention(model: Model, workload: Workload, plan: Plan) -> bool:
    """Whether attention over several devices can take the place of gathers of a plan.

    >>> from planner.models import read_model
    >>> work = Workload(tokens=(("text", 512), ("image", 4096)), line=64)
    >>> spreads_attention(read_model("flux.1-dev"), work, Plan((("allgather_kv", 4),)))
    True
    >>> spreads_attention(read_model("flux.1-dev"), work, Plan((("ulysses", 4),)))
    False
    """
    programs = programs_of(model, workload, plan)
    return any(with_multi_device_attention(program)[1] for program in programs)


def networks_of_stages(programs: Sequence[Program], recipe: Recipe) -> tuple[EngineNetwork, ...]:
    """Write down every network of all stages' programs, each once, stage after stage.

    Raises `IllegalPlanError` if ranks pass messages that neither a TensorRT layer nor the runner
    passes.
    """
    many_stages, by_name = len(programs) > 1, dict[str, EngineNetwork]()
    for stage, program in enumerate(programs):
        for network in networks_of(program, recipe, stage if many_stages else None):
            by_name[network.name] = by_name.pop(network.name, network)  # combines behind all stages
    return tuple(by_name.values())


def latents_of(model: Model, workload: Workload) -> LatentGrid:
    """Say where the rows of a model's latents stand.

    >>> from planner.models import read_model
    >>> work = Workload(tokens=(("text", 512), ("image", 4096)), line=64)
    >>> latents_of(read_model("flux.1-dev"), work)
    LatentGrid(stream='image', shape=(1, 64, 64), first=0, prompt=0)
    """
    latent, stream, numerics = model.latent, model.streams[-1].name, model.numerics
    assert latent is not None
    tokens, line = _single_size(workload.length(stream)), _single_size(workload.line)
    frames = -(-_single_size(latent_frames(latent, workload.frames)) // latent.patch_frames)
    first_frame = None if numerics is None else numerics.behind
    shape = (frames, -(-tokens // (frames * line)), line)
    if first_frame is None:
        return LatentGrid(stream, shape)
    return LatentGrid(
        stream, shape, first_frame, _single_size(workload.length(model.streams[0].name))
    )


def schedule_of(
    networks: Sequence[EngineNetwork], program: Program, workload: Workload, plan: Plan
) -> dict[str, object]:
    """Return calls, buffers, communicators and ranks as a document."""
    by_name = {network.name: network for network in networks}
    buffers: Buffers = {}
    passes = max(1, workload.passes // plan.degree("cfg"))
    steps = [
        _single_size(stage.count) for stage in program.stages if stage.name in _REPEATED_STAGES
    ]
    if "combine" in by_name:
        once, step_calls = _diffusion_calls(by_name, program, (plan, passes), buffers)
    else:
        once, step_calls = _decoder_calls(networks, program, plan, buffers)
    for name, buffer in buffers.items():
        if name.partition("#")[0] == PROMPTED:
            stream, tokens = workload.tokens[0]
            buffer |= {"start": _single_size(tokens), "counts": f"input.{stream}"}
    return {
        "steps": max(steps, default=1) or 1,
        "once": once,
        "each_step": step_calls,
        "output": program.output.name,
        "buffers": buffers,
        "groups": {
            network.name: groups(network, plan)
            for network in networks
            if network.ranks > 1 or network.stage is not None
        },
        "ranks": [_rank_document(rank, plan, workload, passes) for rank in range(plan.gpus)],
    }


def groups(network: EngineNetwork, plan: Plan) -> list[list[int]]:
    """Ranks of the plan that run one network together, each group in the order of its ranks.

    >>> from planner.strategies import parse_plan
    >>> network = EngineNetwork(name="forward", axes=(("tp", 2),), inputs=(), outputs=(),
    ...                         layers=(), constants={}, tables={})
    >>> groups(network, parse_plan("cfg2.tp2"))
    [[0, 1], [2, 3]]
    """
    network_axes = [name for name, _ in network.axes]
    by_outer_index: dict[tuple[tuple[str, int], ...], list[tuple[list[int], int]]] = {}
    for rank in _ranks(plan, network.stage):
        index = plan.index_of(rank)
        outer_index = tuple(
            (name, place) for name, place in index.items() if name not in network_axes
        )
        by_outer_index.setdefault(outer_index, []).append(
            ([index[name] for name in network_axes], rank)
        )
    return [[rank for _, rank in sorted(members)] for members in by_outer_index.values()]


def _ranks(plan: Plan, stage: int | None) -> list[int]:
    """List the ranks of a stage of the pipeline, or all."""
    all_ranks = range(plan.gpus)
    return [rank for rank in all_ranks if stage in (None, plan.index_of(rank).get(pp.AXIS))]


def _rank_document(rank: int, plan: Plan, workload: Workload, passes: int) -> dict[str, object]:
    """Where a rank's inputs lie: its first forward, its first sample, and of how many samples."""
    index, batch = plan.index_of(rank), _single_size(workload.batch)
    share = batch // plan.degree("dp") if batch > 1 else batch
    return {
        "rank": rank,
        "index": index,
        "forward": index.get("cfg", 0) * passes,
        "sample": index.get("dp", 0) * share if share < batch else 0,
        "samples": batch,
    }


def _single_size(size: object) -> int:
    if np.ndim(size):  # type: ignore[arg-type]  # numbers and arrays
        raise InputError("engines are written for one size: got several")
    return int(cast(int, size))


def _input_source(name: str, place: int | None) -> dict[str, object]:
    """Name an input, and of which of a rank's forwards it is; None for those of all."""
    return {"name": name, "forward": place}


def _diffusion_calls(
    networks: Mapping[str, EngineNetwork],
    program: Program,
    split: tuple[Plan, int],
    buffers: Buffers,
) -> tuple[list[Call], list[Call]]:
    """Text towers once; then forwards, what combines them, and the new latents in their place.

    split : the plan, and how many forwards of a step each rank has.
    """
    (plan, passes), main, combine = split, program.output.name, networks["combine"]
    stages = [network for name, network in networks.items() if name.startswith("forward")]
    prediction = dict(stages[-1].outputs)["prediction"]
    _add_buffer(buffers, replace(prediction, shape=(passes, *prediction.shape)), "predictions")
    input_names = {tensor.name for tensor in program.inputs}
    shared = {main, "predictions", TURN.name, *STEP_INPUTS, *_received_names(stages)}
    once: list[Call] = []
    step_calls: list[Call] = []
    for place in range(passes):
        if "text_tower" in networks:
            tower = networks["text_tower"]
            bind = dict(_bound_inputs(tower, place, shared, input_names, buffers))
            for name, value in tower.outputs:
                _add_buffer(buffers, value, f"{name}#{place}")
                bind[name] = [f"{name}#{place}", 0]
            once.append({"engine": "text_tower", "bind": bind})
    for turn in range(passes + len(stages) - 1):
        running = [number for number in range(len(stages)) if 0 <= turn - number < passes]
        for number in running:
            stage, place = stages[number], turn - number
            bind = dict(_bound_inputs(stage, place, shared, input_names, buffers))
            for name, value in stage.outputs:
                if name == "prediction":
                    bind[name] = ["predictions", place]
                else:
                    _add_buffer(buffers, value, name)
                    bind[name] = [name, 0]
            step_calls.append({"engine": stage.name, "bind": bind})
        step_calls += _stage_sends(stages, running, plan)
    if len(stages) > 1:
        step_calls.append(_send_to_all("predictions", plan))
    bind = dict(_bound_inputs(combine, 0, shared, input_names, buffers))
    for name, value in combine.outputs:
        _add_buffer(buffers, value, name)
        bind[name] = [name, 0]
    step_calls.append({"engine": "combine", "bind": bind})
    step_calls += [{"copy": [name, name.removeprefix("next.")]} for name, _ in combine.outputs]
    return once, step_calls


def _received_names(stages: Sequence[EngineNetwork]) -> set[str]:
    """Name what a stage before hands on and the next one reads, of any two."""
    return {
        value.name
        for sender, receiver in pairwise(stages)
        for value in receiver.inputs
        if f"{SENT_PREFIX}{value.name}" in dict(sender.outputs)
    }


def _stage_sends(
    stages: Sequence[EngineNetwork], running: Sequence[int], plan: Plan, own: str = ""
) -> Iterator[Call]:
    """Pass what stages that have run give to the next ones: each tensor of all at one time.

    own : what names of the buffers begin with.
    """
    for name in sorted(_received_names(stages)):
        pairs = [
            [*pair]
            for stage in running
            if name in _received_names(stages[stage : stage + 2])
            for pair in zip(_ranks(plan, stage), _ranks(plan, stage + 1), strict=True)
        ]
        if pairs:
            yield {"send": [f"{own}{SENT_PREFIX}{name}", f"{own}{name}"], "pairs": pairs}


def _send_to_all(name: str, plan: Plan) -> Call:
    """Pass a buffer of the last stage to all others."""
    last_stage = plan.degree(pp.AXIS) - 1
    pairs = [
        [*pair]
        for stage in range(last_stage)
        for pair in zip(_ranks(plan, last_stage), _ranks(plan, stage), strict=True)
    ]
    return {"send": [name, name], "pairs": pairs}


def _bound_inputs(
    network: EngineNetwork, place: int, shared: set[str], input_names: set[str], buffers: Buffers
) -> Iterator[tuple[str, list[object]]]:
    """Bind inputs: what all forwards share, what is given for this one, what was kept of it."""
    for value in network.inputs:
        for_all = value.name in shared
        name = value.name if for_all else f"{value.name}#{place}"
        source = _input_source(value.name, None if for_all else place)
        if name not in buffers or value.name != "predictions":
            _add_buffer(buffers, value, name, source if value.name in input_names else None)
        yield value.name, [name, 0]


def _decoder_calls(
    networks: Sequence[EngineNetwork], program: Program, plan: Plan, buffers: Buffers
) -> tuple[list[Call], list[Call]]:
    """Run the prompt once; then steps, which write into the caches that it has filled."""
    once, step_calls = (
        list(_decoder_stages(part, networks, (program, plan), buffers)) for part in PARTS
    )
    if FILLED in buffers:
        prompt = program.inputs[0]
        buffers[FILLED] |= {"start": _single_size(prompt.shape[1]), "counts": prompt.name}
    count: Call = {"copy": [f"next.{FILLED}", FILLED]}
    return once, [*step_calls, count] if step_calls else []


def _decoder_stages(
    network_kind: str,
    networks: Sequence[EngineNetwork],
    split: tuple[Program, Plan],
    buffers: Buffers,
) -> Iterator[Call]:
    """Run a decoder's stages one after another; all ranks get the scores, to go on from them."""
    program, plan = split
    stages = [network for network in networks if network.name.startswith(network_kind)]
    input_names, received = {tensor.name for tensor in program.inputs}, _received_names(stages)
    stage_tensors = {*received, *(f"{SENT_PREFIX}{name}" for name in received)}
    for place, network in enumerate(stages):
        bind: Bind = {}
        for name, value in [*((value.name, value) for value in network.inputs), *network.outputs]:
            buffer_name = (
                f"{network_kind}.{name}" if name in stage_tensors else name.removeprefix("new.")
            )
            _add_buffer(
                buffers, value, buffer_name, _input_source(name, 0) if name in input_names else None
            )
            bind[name] = [buffer_name, 0]
        yield {"engine": network.name, "bind": bind}
        yield from _stage_sends(stages, [place], plan, f"{network_kind}.")
    if len(stages) > 1:
        yield _send_to_all(program.output.name, plan)
