"""From a model, a request and a plan to the program of one rank."""

from collections.abc import Sequence

import numpy as np

from costmodels.program.emit import total_rows
from costmodels.program.ops import Loop, Program, Tensor
from planner.lowering import decoder, diffusion, stages
from planner.lowering.blocks import block, state_name
from planner.lowering.diffusion import Stage
from planner.lowering.scene import Scene, make_scene
from planner.lowering.variants import (
    with_gathered_rings,
    with_scattered_inputs,
    with_wide_collectives,
)
from planner.models.architecture import Block, Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import pipeline


def lower(model: Model, workload: Workload, plan: Plan, place: int | None = None) -> Program:
    """Write down what one rank does.

    Parameters
    ----------
    plan : legal for this model and request (see `planner.search.plans.objections`).
    place : the rank's place in the pipeline; the heaviest one where it is left out.
    """
    scene = make_scene(model, workload, plan)
    stage, index = _stage(scene, place)
    if model.kind == "decoder":
        loops = _decoder(scene, stage, index)
        given = decoder.inputs(scene)
        output = Tensor("output", (scene.share.batch, 1, model.vocabulary))
    else:
        loops = _diffusion(scene, stage, index, plan.vae)
        given = diffusion.inputs(scene)
        output = diffusion.latents(scene)
    program = Program(axes=plan.axes, stages=loops, inputs=given, output=output)
    if workload.scattered_inputs:
        program = with_scattered_inputs(program)
    if workload.gathered_rings:
        program = with_gathered_rings(program)
    return with_wide_collectives(program) if workload.wide_collectives else program


def decode_step(model: Model, workload: Workload, plan: Plan, place: int) -> Loop:
    """One step of a decoder over a cache as long as the prompt, at a place of a pipeline."""
    scene = make_scene(model, workload, plan)
    stage, index = _stage(scene, place)
    return decoder.decode(scene, stage, index, workload.length(model.streams[0].name))


def _decoder(scene: Scene, stage: Stage, index: int) -> tuple[Loop, ...]:
    length = decoder.mean_length(scene)
    return (
        decoder.prefill(scene, stage, index),
        decoder.decode(scene, stage, index, length),
    )


def _diffusion(scene: Scene, stage: Stage, index: int, vae: int) -> tuple[Loop, ...]:
    ahead = []
    if any(scene.cached(stream.name) for stream in scene.model.streams):
        ahead.append(diffusion.text_tower(scene))
    return (
        stages.text_encode(scene),
        *ahead,
        diffusion.denoise(scene, stage, index),
        stages.vae_decode(scene, vae),
    )


def _stage(scene: Scene, place: int | None) -> tuple[Stage, int]:
    """Blocks of one pipeline stage, and which stage it is."""
    blocks, degree = scene.model.blocks, scene.share.stages
    if degree == 1:
        return [(layer, 0) for layer in blocks], 0
    costs = [_cost(scene, layer) for layer in blocks]
    cuts = [pipeline.stage(blocks, costs, degree, index) for index in range(degree)]
    index = _heaviest(cuts, blocks, costs) if place is None else place
    return cuts[index], index


def _heaviest(cuts: Sequence[Stage], blocks: Sequence[Block], costs: Sequence[float]) -> int:
    cost_of = {layer.name: cost for layer, cost in zip(blocks, costs, strict=True)}
    loads = [sum(layer.count * cost_of[layer.name] for layer, _ in cut) for cut in cuts]
    return max(range(len(loads)), key=loads.__getitem__)


def _cost(scene: Scene, layer: Block) -> float:
    """Arithmetic of one layer, for balancing stages."""
    state = {}
    for tower in layer.towers:
        rows = total_rows([scene.spans[stream] for stream in tower.streams])
        shape = (scene.share.batch, rows, tower.hidden)
        state[tower.streams] = Tensor(state_name(tower.streams), shape)
    body = Loop(name=layer.name, count=1, body=tuple(block(scene, layer, state)))
    return float(sum(np.mean(getattr(op, "flop", 0.0)) for op in body.walk()))
