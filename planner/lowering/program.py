"""From a model, a request and a plan to the program of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from costmodels.program import Loop, Program, Real, Tensor
from costmodels.program.emit import total_rows
from costmodels.sizes import is_array
from planner.lowering.blocks import layer_body, state_name
from planner.lowering.decoder import (
    decode,
    decoder_inputs,
    engine_step,
    last_length,
    mean_length,
    prefill,
    step_input,
)
from planner.lowering.diffusion import (
    denoise,
    diffusion_inputs,
    latents,
    text_encode,
    text_tower,
    vae_decode,
)
from planner.lowering.variants import as_run
from planner.lowering.work import Chunk, Layers, RankWork, once, rank_work
from planner.models import Block, Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import pp

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")


def lower(
    model: Model,
    workload: Workload,
    plan: Plan,
    stage: int | None = None,
    *,
    ordered: bool = False,
    whole: bool = False,
) -> Program:
    """Write down what one rank does.

    plan : legal for this model and request (see `planner.search.plans.objections`).
    stage : of the pipeline; the heaviest one where it is left out.
    ordered : layers follow one another as in the model, to be run; else all of a kind are taken
        together, which costs the same.
    whole : what a model that can be computed has around its layers is there too; it is not priced.
        A decoder's step is its last one, over all that its cache ever holds.
    """
    work = rank_work(model, workload, plan)
    work = replace(work, whole=True) if whole else work
    return _rank_program(_with_layers(work, stage, ordered=ordered), plan)


def lower_places(
    model: Model, workload: Workload, plan: Plan, which: NDArray[np.bool_] | None = None
) -> list[Program]:
    """Write down what a rank at every place of a pipeline does, to be priced.

    which : requests of a sweep for which layers are cut into stages; all where left out.

    Places that do the same, if of other layers, share the program of the first of them. The first
    place of a decoder, which embeds, and the last, which scores, are like no other. Of a diffusion
    model with layers of one kind the heaviest place stands for all.
    """
    differ = len(model.blocks) > 1 or model.kind == "decoder"
    if not differ or plan.degree("pp") == 1:
        return [lower(model, workload, plan)]
    work = rank_work(model, workload, plan)
    return _at_every_place(work, lambda place: _rank_program(place, plan), which)


def decode_steps(model: Model, workload: Workload, plan: Plan) -> list[Loop]:
    """Write down one step of a decoder at every place, over a cache as long as the prompt."""
    length = workload.length(model.streams[0].name)
    work = rank_work(model, workload, plan)
    return _at_every_place(work, lambda place: decode(place, length))


def alike_places(model: Model, workload: Workload, plan: Plan) -> list[int]:
    """Give for every place of a pipeline the first one that has as much of every layer."""
    if plan.degree(pp.AXIS) == 1:
        return [0]
    return _matching_places(_cuts(rank_work(model, workload, plan))[0])


def cuts_of_requests(model: Model, workload: Workload, plan: Plan, count: int) -> NDArray[np.intp]:
    """Give each of `count` requests of a sweep the number of the cut of its layers into stages."""
    work = rank_work(model, workload, plan)
    if work.share.stages == 1 or len(model.blocks) == 1:
        return np.zeros(count, np.intp)
    costs = [np.broadcast_to(_cost(work, layer), (count,)) for layer in model.blocks]
    return pp.cut_numbers(model.kinds, costs, work.share.stages)


def _matching_places(cuts: Sequence[Layers]) -> list[int]:
    ends = 0, len(cuts) - 1
    kinds = [
        (place if place in ends else -1, [(layer.name, layer.count) for layer, _ in cut])
        for place, cut in enumerate(cuts)
    ]
    return [kinds.index(kind) for kind in kinds]


def _at_every_place(
    work: RankWork, write: Callable[[RankWork], T], which: NDArray[np.bool_] | None = None
) -> list[T]:
    """Give what is written for every place of a pipeline, once for those that do the same."""
    if work.share.stages == 1:
        return [write(_with_layers(work, None))]
    cuts, _ = _cuts(work, which=which)
    matching_places = _matching_places(cuts)
    written = {
        place: write(replace(work, layers=cuts[place], stage=place))
        for place in sorted(set(matching_places))
    }
    return [written[place] for place in matching_places]


def _rank_program(work: RankWork, plan: Plan) -> Program:
    model = work.model
    loops: tuple[Loop, ...]
    if model.kind == "decoder":
        length = last_length(work) if work.whole else mean_length(work)
        loops = (prefill(work), decode(work, length))
        inputs = decoder_inputs(work)
        output = Tensor("output", (work.share.batch, 1, model.vocabulary))
    else:
        loops = _diffusion(work, decode_ranks(work.model, work.workload, plan))
        inputs = diffusion_inputs(work)
        output = latents(work)
    program = Program(axes=plan.axes, stages=loops, inputs=inputs, output=output)
    return as_run(program, work.workload.habits)


def lower_steps(
    model: Model,
    workload: Workload,
    plan: Plan,
    steps: Sequence[Sequence[Chunk]],
    place: int = 0,
    *,
    ordered: bool = False,
) -> Program:
    """Write down steps of an engine, one after another: what each runs of which sequences.

    plan : of tensor and pipeline parallelism; replicas are engines of their own.
    steps : chunks of each; those of one name continue the same sequences.
    place : of the pipeline. ordered : layers follow one another as in the model, as in `lower`.
    """
    work = _with_layers(rank_work(model, workload, plan), place, ordered=ordered)
    loops, inputs = [], []
    for number, chunks in enumerate(steps):
        name = f"step{number}" if len(steps) > 1 else "step"
        loops.append(engine_step(work, tuple(chunks), name))
        inputs.append(step_input(work, chunks, name))
    scored = sum(chunk.scores for chunk in steps[-1])
    output = Tensor("output", (1, scored, model.vocabulary))
    return Program(axes=plan.axes, stages=tuple(loops), inputs=tuple(inputs), output=output)


def one_turn(program: Program, place: int) -> Loop:
    """Keep of a step what its place of a pipeline does itself: one turn of the forward.

    Every place but the last hands on what it has done; the last one goes on to the scores. In the
    other turns of the forward a rank waits, or runs another batch.
    """
    (step,) = program.stages
    stages = dict(program.axes).get(pp.AXIS, 1)
    if stages == 1:
        return step
    forward, *scoring_ops = step.body
    assert isinstance(forward, Loop)
    turn_ops = tuple(scoring_ops) if place == stages - 1 else (replace(forward, count=1),)
    return replace(step, body=turn_ops)


def decode_ranks(model: Model, workload: Workload, plan: Plan) -> int:
    """Count the ranks that decode an image: those of the plan, or all where an engine does so."""
    engine_splits = model.named_in(workload.habits.parallel_decode)
    all_ranks = engine_splits and model.vae is not None and model.vae.parallel
    return plan.gpus // plan.degree("dp") if all_ranks else plan.vae


def _diffusion(work: RankWork, vae: int) -> tuple[Loop, ...]:
    has_text_tower = any(work.cached(stream.name) for stream in work.model.streams)
    return (
        text_encode(work),
        *([text_tower(work)] if has_text_tower else []),
        *denoise(work),
        vae_decode(work, vae),
    )


def _with_layers(work: RankWork, stage: int | None, *, ordered: bool = False) -> RankWork:
    """Give a rank the layers of its stage of the pipeline."""
    model = work.model
    if work.share.stages > 1:
        cuts, heaviest = _cuts(work, ordered=ordered)
        index = heaviest if stage is None else stage
        return replace(work, layers=cuts[index], stage=index)
    if ordered:
        return replace(work, layers=pp.runs(model.blocks, model.kinds, 0, len(model.kinds)))
    return replace(work, layers=[(layer, 0) for layer in model.blocks])


def _cuts(
    work: RankWork, *, ordered: bool = False, which: NDArray[np.bool_] | None = None
) -> tuple[Sequence[Layers], int]:
    """Cut the layers into stages of like work, and give the number of the heaviest."""
    costs = tuple(_mean(_cost(work, layer), which) for layer in work.model.blocks)
    return _balanced(work.model, costs, work.share.stages, ordered)


def _mean(cost: Real, which: NDArray[np.bool_] | None) -> float:
    """Average a cost over some requests of a sweep, or over all."""
    if not is_array(cost):
        return float(cost)
    return float(np.mean(cost if which is None else np.broadcast_to(cost, which.shape)[which]))


@once
def _balanced(
    model: Model,
    costs: Sequence[float],
    degree: int,
    ordered: bool,  # noqa: FBT001  # to be kept by
) -> tuple[Sequence[Layers], int]:
    blocks = model.blocks
    cuts = pp.stages(model, costs, degree)
    cost_of = {layer.name: cost for layer, cost in zip(blocks, costs, strict=True)}
    loads = [sum(layer.count * cost_of[layer.name] for layer, _ in cut) for cut in cuts]
    heaviest = max(range(len(loads)), key=loads.__getitem__)
    return cuts if ordered else [pp.merged_kinds(model, cut) for cut in cuts], heaviest


def _cost(work: RankWork, layer: Block) -> Real:
    """Count the arithmetic of one layer, for balancing stages."""
    return _arithmetic(work.of_a_layer(), layer)


@once
def _arithmetic(work: RankWork, layer: Block) -> Real:
    state = {}
    for tower in layer.towers:
        rows = total_rows([work.spans[stream] for stream in tower.streams])
        shape = (work.share.batch, rows, tower.hidden)
        state[tower.streams] = Tensor(state_name(tower.streams), shape)
    body = Loop(name=layer.name, count=1, body=layer_body(work, layer, state))
    return sum((getattr(op, "flop", 0.0) for op in body.walk()), start=0.0)
