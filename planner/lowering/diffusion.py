"""A diffusion transformer over all its steps, for one rank."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costmodels.program.emit import (
    Emits,
    collective,
    matmul,
    move,
    pointwise,
    split_rows,
)
from costmodels.program.ops import (
    Collective,
    Loop,
    Part,
    Pointwise,
    Rearrange,
    SendReceive,
    Span,
    Tensor,
    Weight,
)
from planner.lowering.blocks import State, block, repack, state_name
from planner.lowering.scene import Scene, context_name, context_widths, renamed
from planner.models.architecture import Block, Model, Stream, Tower
from planner.strategies import pipeline

Stage = Sequence[tuple[Block, int]]
"""Blocks of this rank, each with the number of its first layer."""

_TIME_VECTORS: Final = 1 + 6
"""The embedding; shifts, scales and gates of attention and feed-forward."""


def latent_stream(model: Model) -> Stream:
    """Return the stream that is denoised: the last one."""
    return model.streams[-1]


def tower_of(model: Model, stream: str) -> Tower:
    """Return the first tower that a stream passes."""
    return next(t for b in model.blocks for t in b.towers if stream in t.streams)


def inputs(scene: Scene) -> tuple[Tensor, ...]:
    """Whole tensors that every rank is given: latents, texts, conditioning rows."""
    model, batch = scene.model, scene.share.batch
    main = latent_stream(model)
    made = [latents(scene)]
    for stream in model.streams:
        tokens = scene.workload.length(stream.name)
        if stream.static:
            made += [
                Tensor(context_name(model, stream.name, width), (batch, tokens, width))
                for width in context_widths(model, stream.name)
            ]
        elif stream.name != main.name:
            hidden = tower_of(model, stream.name).hidden
            made.append(Tensor(f"input.{stream.name}", (batch, tokens, hidden)))
    towers = [t for b in model.blocks for t in b.towers]
    widths = sorted({t.modulation.inputs for t in towers if t.modulation})
    return (*made, *[Tensor(f"conditioning{width}", (batch, 1, width)) for width in widths])


def latents(scene: Scene) -> Tensor:
    """Name the noisy latents as tokens, ``[batch, tokens, features]``."""
    main = latent_stream(scene.model)
    shape = (scene.share.batch, scene.workload.length(main.name), scene.model.input_features)
    return Tensor(f"input.{main.name}", shape)


def denoise(scene: Scene, stage: Stage, index: int) -> Loop:
    """All steps: forwards, guidance, and the update of the latents.

    Parameters
    ----------
    stage, index : this rank's blocks, and its place in the pipeline.
    """
    share = scene.share
    turns = share.passes + share.stages - 1
    forward = Loop(name="forward", count=turns, body=tuple(_forward(scene, stage, index)))
    body = (forward, *_combine(scene))
    return Loop(name="denoise", count=scene.workload.steps, body=body)


def text_tower(scene: Scene) -> Loop:
    """Run the towers that do not depend on the step once, and keep their keys and values."""
    body = tuple(_text_layers(scene))
    return Loop(name="text_tower", count=scene.share.passes, body=body)


def _text_layers(scene: Scene) -> Emits[None]:
    state: State = {}
    for stream in scene.model.streams:
        if scene.cached(stream.name):
            state = {**state, **(yield from _enter(scene, stream))}
    for layer in scene.model.blocks:
        towers = tuple(t for t in layer.towers if all(scene.cached(s) for s in t.streams))
        if towers:
            alone = Block(name=layer.name, count=layer.count, towers=towers)
            yield Loop(
                name=layer.name,
                count=layer.count,
                body=tuple(block(replace(scene, memory="store"), alone, state)),
                layers=True,
            )


def _forward(scene: Scene, stage: Stage, index: int) -> Emits[None]:
    """One forward through this rank's layers."""
    share = scene.share
    if scene.workload.own and scene.model.own.token_modulation:
        yield from _modulate_tokens(scene)
    if index == 0:
        state = yield from _embed(scene)
    else:
        state = _arrived(scene)
    for layer, first in stage:
        state = yield from repack(scene, state, _live(scene, layer))
        body = tuple(block(scene, layer, state))
        yield Loop(name=layer.name, count=layer.count, body=body, layers=True, first=first)
    if index == share.stages - 1:
        yield from _predict(scene, state)
    if share.stages > 1:
        yield from _hand_on(scene, state)


def _modulate_tokens(scene: Scene) -> Emits[None]:
    """Project the time embedding of every token: to the hidden width, and to six vectors of it.

    In 32 bits, written as 16 bits of twice the width: tensor cores take twice as long for TF32.
    Priced, never run.
    """
    main = latent_stream(scene.model).name
    hidden = tower_of(scene.model, main).hidden
    x = Tensor("times", (scene.share.batch, scene.spans[main].tokens, hidden))
    columns = Part(_TIME_VECTORS * hidden, 2)
    weight = Weight(name="time", rows=(Part(hidden),), columns=(columns,), layered=False)
    yield from matmul(x, weight, "modulations")


def _live(scene: Scene, layer: Block) -> list[Tower]:
    return [t for t in layer.towers if not all(scene.cached(s) for s in t.streams)]


def _single(scene: Scene, state: State) -> Emits[list[Tensor]]:
    """State of every moving stream on its own, as it is handed from stage to stage."""
    singles: list[Tensor] = []
    for streams, x in state.items():
        names = [state_name((stream,)) for stream in streams]
        pieces = yield from split_rows(x, [scene.spans[s].rows for s in streams], names)
        singles += [renamed(p, n) for p, n in zip(pieces, names, strict=True)]
    return singles


def _hand_on(scene: Scene, state: State) -> Emits[None]:
    singles = yield from _single(scene, state)
    for x in sorted(singles, key=lambda tensor: tensor.name):
        yield SendReceive(
            x=x,
            out=x,
            axis=pipeline.AXIS,
            degree=scene.share.stages,
            ends=True,
            stream="compute",
        )


def _moving(scene: Scene) -> list[Stream]:
    return [s for s in scene.model.streams if not s.static and not scene.cached(s.name)]


def _arrived(scene: Scene) -> State:
    return {(s.name,): _state(scene, s) for s in _moving(scene)}


def _state(scene: Scene, stream: Stream) -> Tensor:
    hidden = tower_of(scene.model, stream.name).hidden
    shape = (scene.share.batch, scene.spans[stream.name].rows, hidden)
    return Tensor(state_name((stream.name,)), shape)


def _embed(scene: Scene) -> Emits[State]:
    """Take this rank's rows, and project the latents."""
    state: State = {}
    for stream in _moving(scene):
        state = {**state, **(yield from _enter(scene, stream))}
    return state


def _enter(scene: Scene, stream: Stream) -> Emits[State]:
    span, main = scene.spans[stream.name], latent_stream(scene.model).name
    hidden = tower_of(scene.model, stream.name).hidden
    features = scene.model.input_features if stream.name == main else hidden
    whole = Tensor(f"input.{stream.name}", (scene.share.batch, span.tokens, features))
    x = yield from _shard(whole, span)
    name = state_name((stream.name,))
    if stream.name != main:
        out = Tensor(name, x.shape)
        yield Pointwise(function="cast", inputs=(x,), outputs=(out,))
        return {(stream.name,): out}
    weight = Weight(name="embed", rows=(Part(features),), columns=(Part(hidden),), layered=False)
    out = yield from matmul(x, weight, name)
    return {(stream.name,): out}


def _shard(x: Tensor, span: Span) -> Emits[Tensor]:
    if not span.axes:
        return x
    out = Tensor(f"here.{span.stream}", (x.shape[0], span.rows, x.shape[2]), x.itemsize)
    result = yield from move("shard", [x], out, axis="", degree=span.parts, spans=(span,))
    return result


def _predict(scene: Scene, state: State) -> Emits[None]:
    """Norm and project the latent rows, and gather those of the other ranks."""
    model, main = scene.model, latent_stream(scene.model).name
    singles = yield from _single(scene, state)
    x = next(t for t in singles if t.name == state_name((main,)))
    h = yield from pointwise("norm", (x,), "final")
    weight = Weight(
        name="head",
        rows=(Part(tower_of(model, main).hidden),),
        columns=(Part(model.output_features),),
        layered=False,
    )
    out = yield from matmul(h, weight, "predicted")
    span = scene.spans[main]
    for axis, degree in reversed(span.axes):
        stacked = Tensor(f"{out.name}.{axis}", (1, *out.shape))
        yield from move("stack", [out], stacked, axis=axis, degree=degree, view=True)
        gathered = yield from collective("all_gather", stacked, axis, degree, f"{axis}.gathered")
        joined = span.within(axis)
        out = Tensor(f"{out.name}.all", (out.shape[0], joined.rows, out.shape[2]))
        yield from move("unpack_rows", [gathered], out, axis=axis, degree=degree, spans=(span,))
        span = joined
    shape = (scene.share.passes, *out.shape)
    yield Rearrange(
        move="collect", inputs=(out,), outputs=(Tensor("predictions", shape),), view=True
    )


def _combine(scene: Scene) -> Emits[None]:
    """Bring the step's predictions together, and update the latents."""
    share, main = scene.share, latents(scene)
    shape = (*main.shape[:2], scene.model.output_features)
    predictions = Tensor("predictions", (share.passes, *shape))
    if share.stages > 1:
        yield Collective(
            kind="broadcast",
            x=predictions,
            out=predictions,
            axis=pipeline.AXIS,
            degree=share.stages,
            root=share.stages - 1,
        )
    both = yield from collective(
        "all_gather", predictions, "cfg", share.guidance, "predictions.all"
    )
    noise = Tensor("noise", shape)
    yield Pointwise(function="guidance", inputs=(both,), outputs=(noise,))
    yield Pointwise(function="step", inputs=(main, noise), outputs=(main,))
