"""In what order the engines of a plan run, on which buffers, and which ranks talk to each other.

A call binds an engine's inputs and outputs to buffers, or to one place of a buffer that holds
several; a copy moves a buffer's contents to another. Everything is the same on all ranks; `ranks`
says where each differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np

from costmodels.program import Program
from planner.lowering import lower
from planner.lowering.conditioning import OF_STEPS, TURN
from planner.models import Model, latent_frames
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.tensorrt.cache import FILLED
from planner.tensorrt.from_program import Recipe, networks_of
from planner.tensorrt.network import EngineNetwork, LatentGrid, Value
from topology.base import InputError

Bind = dict[str, list[object]]
Call = dict[str, object]


_STEPS: Final = ("denoise", "decode")
"""Stages that run more than once."""
Buffers = dict[str, dict[str, object]]


def _add(buffers: Buffers, value: Value, name: str, given: dict[str, object] | None = None) -> None:
    """Add a buffer of a value's shape; what one of that name starts with already stays."""
    started = buffers.get(name, {}).get("given")
    buffers[name] = {
        "shape": list(value.shape), "dtype": value.dtype, "given": started or given
    }  # fmt: skip


def written(
    model: Model, workload: Workload, plan: Plan, recipe: Recipe
) -> tuple[tuple[EngineNetwork, ...], dict[str, object]]:
    """Return a plan's networks, and in what order they run: the model's where it is computed.

    Raises `IllegalPlanError` if ranks pass messages that no TensorRT layer passes.
    """
    whole = recipe.numerics is not None
    program = lower(model, workload, plan, ordered=True, whole=whole or model.kind == "decoder")
    if whole and model.latent is not None:
        recipe = replace(recipe, latents=latents_of(model, workload))
    networks = networks_of(program, recipe)
    return networks, schedule_of(networks, program, workload, plan)


def latents_of(model: Model, workload: Workload) -> LatentGrid:
    """Say where the rows of a model's latents stand.

    >>> from planner.models import read_model
    >>> work = Workload(tokens=(("text", 512), ("image", 4096)), line=64)
    >>> latents_of(read_model("flux.1-dev"), work)
    LatentGrid(stream='image', shape=(1, 64, 64), first=0)
    """
    latent, stream, known = model.latent, model.streams[-1].name, model.numerics
    assert latent is not None
    tokens, line = _number(workload.length(stream)), _number(workload.line)
    frames = -(-_number(latent_frames(latent, workload.frames)) // latent.patch_frames)
    behind = None if known is None else known.behind
    first = 0 if behind is None else behind + _number(workload.length(model.streams[0].name))
    return LatentGrid(stream, (frames, -(-tokens // (frames * line)), line), first)


def schedule_of(
    networks: Sequence[EngineNetwork], program: Program, workload: Workload, plan: Plan
) -> dict[str, object]:
    """Return calls, buffers, communicators and ranks as a document."""
    by_name = {network.name: network for network in networks}
    buffers: Buffers = {}
    passes = max(1, workload.passes // plan.degree("cfg"))
    steps = [_number(stage.count) for stage in program.stages if stage.name in _STEPS]
    if "forward" in by_name:
        once, each = _diffusion(by_name, program, passes, buffers)
    else:
        once, each = _decoder(by_name, program, buffers)
    return {
        "steps": max(steps, default=1) or 1,
        "once": once,
        "each_step": each,
        "output": program.output.name,
        "buffers": buffers,
        "groups": {
            network.name: groups(network, plan) for network in networks if network.ranks > 1
        },
        "ranks": [_rank(rank, plan, workload, passes) for rank in range(plan.gpus)],
    }


def groups(network: EngineNetwork, plan: Plan) -> list[list[int]]:
    """Ranks of the plan that run one network together, each group in the order of its ranks.

    >>> from planner.strategies import parse_plan
    >>> network = EngineNetwork(name="forward", axes=(("tp", 2),), inputs=(), outputs=(),
    ...                         layers=(), constants={}, tables={})
    >>> groups(network, parse_plan("cfg2.tp2"))
    [[0, 1], [2, 3]]
    """
    inside = [name for name, _ in network.axes]
    by_outer_index: dict[tuple[tuple[str, int], ...], list[tuple[list[int], int]]] = {}
    for rank in range(plan.gpus):
        index = plan.index_of(rank)
        apart = tuple((name, place) for name, place in index.items() if name not in inside)
        by_outer_index.setdefault(apart, []).append(([index[name] for name in inside], rank))
    return [[rank for _, rank in sorted(members)] for members in by_outer_index.values()]


def _rank(rank: int, plan: Plan, workload: Workload, passes: int) -> dict[str, object]:
    """Where a rank's inputs lie: its first forward, its first sample, and of how many samples."""
    index, batch = plan.index_of(rank), _number(workload.batch)
    share = batch // plan.degree("dp") if batch > 1 else batch
    return {
        "rank": rank,
        "index": index,
        "forward": index.get("cfg", 0) * passes,
        "sample": index.get("dp", 0) * share if share < batch else 0,
        "samples": batch,
    }


def _number(size: object) -> int:
    if np.ndim(size):  # type: ignore[arg-type]  # numbers and arrays
        raise InputError("engines are written for one size: got several")
    return int(cast(int, size))


def _given(name: str, place: int | None) -> dict[str, object]:
    """Name an input, and of which of a rank's forwards it is; None for those of all."""
    return {"name": name, "forward": place}


def _diffusion(
    networks: Mapping[str, EngineNetwork], program: Program, passes: int, buffers: Buffers
) -> tuple[list[Call], list[Call]]:
    """Text towers once; then forwards, what combines them, and the new latents in their place."""
    main, forward, combine = program.output.name, networks["forward"], networks["combine"]
    prediction = dict(forward.outputs)["prediction"]
    _add(buffers, replace(prediction, shape=(passes, *prediction.shape)), "predictions")
    given = {tensor.name for tensor in program.inputs}
    once: list[Call] = []
    each: list[Call] = []
    for place in range(passes):
        if "text_tower" in networks:
            tower = networks["text_tower"]
            bind = dict(_bound(tower, place, main, given, buffers))
            for name, value in tower.outputs:
                _add(buffers, value, f"{name}#{place}")
                bind[name] = [f"{name}#{place}", 0]
            once.append({"engine": "text_tower", "bind": bind})
        bind = dict(_bound(forward, place, main, given, buffers))
        bind["prediction"] = ["predictions", place]
        each.append({"engine": "forward", "bind": bind})
    bind = dict(_bound(combine, 0, main, given, buffers))
    for name, value in combine.outputs:
        _add(buffers, value, name)
        bind[name] = [name, 0]
    each.append({"engine": "combine", "bind": bind})
    each += [{"copy": [name, name.removeprefix("next.")]} for name, _ in combine.outputs]
    return once, each


def _bound(
    network: EngineNetwork, place: int, main: str, given: set[str], buffers: Buffers
) -> Iterator[tuple[str, list[object]]]:
    """Bind inputs: what all forwards share, what is given for this one, what was kept of it."""
    shared = (main, "predictions", TURN.name, *OF_STEPS)
    for value in network.inputs:
        once = value.name in shared
        name = value.name if once else f"{value.name}#{place}"
        source = _given(value.name, None if once else place)
        if name not in buffers or value.name != "predictions":
            _add(buffers, value, name, source if value.name in given else None)
        yield value.name, [name, 0]


def _decoder(
    networks: Mapping[str, EngineNetwork], program: Program, buffers: Buffers
) -> tuple[list[Call], list[Call]]:
    """Run the prompt once; then steps, which write into the caches that it has filled."""
    given = {tensor.name for tensor in program.inputs}
    prompt = _number(program.inputs[0].shape[1])
    calls: dict[str, Call] = {}
    for network in networks.values():
        bind: Bind = {}
        for value in network.inputs:
            name = value.name
            _add(buffers, value, name, _given(name, 0) if name in given else None)
            bind[name] = [name, 0]
        for name, value in network.outputs:
            held = name.removeprefix("new.")
            _add(buffers, value, held)
            bind[name] = [held, 0]
        calls[network.name] = {"engine": network.name, "bind": bind}
    if FILLED in buffers:
        buffers[FILLED]["start"] = prompt
    count: Call = {"copy": [f"next.{FILLED}", FILLED]}
    return [calls["prefill"]], [calls["decode"], count] if "decode" in calls else []
