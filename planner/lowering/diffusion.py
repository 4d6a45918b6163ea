"""A diffusion pipeline for one rank: text encoders, all steps of the transformer, the VAE."""

from dataclasses import replace
from typing import Final, cast

from costmodels.program import (
    Collective,
    Convolve,
    Loop,
    Matmul,
    Op,
    Part,
    Pointwise,
    Rearrange,
    SendReceive,
    Size,
    Span,
    Tensor,
    Weight,
)
from costmodels.program.emit import (
    Emits,
    collected_items,
    collective,
    matmul,
    move,
    pointwise,
    split_rows,
)
from costmodels.sizes import smaller
from planner.lowering.blocks import State, layer_body, live_towers, repack, state_name
from planner.lowering.conditioning import (
    TURN,
    condition_inputs,
    conditions,
    embedded,
    final_norm,
    latent_features,
    row_name,
    rows_of,
    scale_of,
    step_value,
    timed_rows,
)
from planner.lowering.work import (
    Layers,
    RankWork,
    context_name,
    context_widths,
    in_pieces,
    once,
)
from planner.models import Block, Encoder, Model, Stream, Tower
from planner.strategies import fsdp, pipefusion, pp
from planner.strategies.base import Share

SERIAL_SHARE: Final = 0.2
"""Part of a VAE decode that does not split over GPUs: overlaps of tiles, joining, the first layers.

Published decodes reach 1.6 to 1.75 times on 2 GPUs and at most 3.3 on 8 (TensorRT-LLM's and
SGLang's reports), which a fifth reproduces: 1.67, 3.33.
"""
_PIECE_PREDICTIONS: Final = "piece.predictions"
_TIME_VECTORS: Final = 1 + 6
"""The embedding; shifts, scales and gates of attention and feed-forward."""


def latent_stream(model: Model) -> Stream:
    """Return the stream that is denoised: the last one."""
    return model.streams[-1]


def tower_of(model: Model, stream: str) -> Tower:
    """Return the first tower that a stream passes."""
    return next(tower for tower in model.towers if stream in tower.streams)


def diffusion_inputs(work: RankWork) -> tuple[Tensor, ...]:
    """List the whole tensors that every rank is given: latents, texts, conditioning rows."""
    model, batch = work.model, work.share.batch
    main, condition_tensors = latent_stream(model), condition_inputs(work)
    inputs, input_names = (
        [latents(work), *condition_tensors],
        {tensor.name for tensor in condition_tensors},
    )
    for stream in model.streams:
        if f"input.{stream.name}" in input_names:
            continue
        tokens = work.workload.length(stream.name)
        if stream.static:
            inputs += [
                Tensor(context_name(model, stream.name, width), (batch, tokens, width))
                for width in context_widths(model, stream.name)
            ]
        elif stream.name != main.name:
            hidden = tower_of(model, stream.name).hidden
            inputs.append(Tensor(f"input.{stream.name}", (batch, tokens, hidden)))
    if work.numerics is not None:
        return tuple(inputs)
    widths = sorted({tower.modulation.inputs for tower in model.towers if tower.modulation})
    return (*inputs, *[Tensor(row_name(width), (batch, 1, width)) for width in widths])


def latents(work: RankWork) -> Tensor:
    """Name the noisy latents as tokens, ``[batch, tokens, features]``; computed in 32 bits."""
    main = latent_stream(work.model)
    shape = (work.share.batch, work.workload.length(main.name), work.model.input_features)
    return Tensor(f"input.{main.name}", shape, 2 if work.numerics is None else 4)


def denoise(work: RankWork) -> tuple[Loop, ...]:
    """Run all steps: forwards, guidance, and the update of the latents.

    Those that reuse features stand behind the others.
    """
    batched = _batched_forwards(work)
    passes, steps = batched.share.passes, work.workload.steps
    turns = passes + batched.share.stages - 1

    def loop(count: Size, forward: Emits[None]) -> Loop:
        forwards = Loop(name="forward", count=turns, body=tuple(forward), keeps=passes)
        return Loop(name="denoise", count=count, body=(forwards, *_combining_ops(work)))

    if work.share.pieces > 1:
        exact_steps = cast(Size, smaller(steps, work.workload.warmup))
        return loop(exact_steps, _forward(batched)), _in_pieces(work, batched, steps - exact_steps)
    skipped = work.workload.skipped
    full_steps = loop(steps - skipped, _forward(batched))
    if work.workload.reuse is None:
        return (full_steps,)
    return full_steps, loop(skipped, _forward(batched, reusing=True))


def _in_pieces(work: RankWork, batched: RankWork, steps: Size) -> Loop:
    """Let the pieces of the latents follow one another through the stages, step after step.

    In the first turns no piece has reached the last stage.
    """
    pieces, filling_turns = work.share.pieces, work.share.stages - 1
    forward = tuple(_forward(in_pieces(batched, pieces)))
    filling = Loop(name="piece", count=filling_turns, body=forward)
    shared_predictions = _from_last(_predictions(work, pieces), work.share.stages)
    body = (*forward, *shared_predictions, *_combine(work, pieces))
    steady = Loop(name="piece", count=steps * pieces, body=body, first=filling_turns)
    return Loop(name="denoise", count=1, body=(filling, steady))


def _batched_forwards(work: RankWork) -> RankWork:
    """Make the forwards of a step one, where whoever runs the model does."""
    share, habits = work.share, work.workload.habits
    if (share.stages > 1 and share.pieces == 1) or not work.model.named_in(habits.batched_guidance):
        return work
    return replace(work, share=replace(share, batch=share.batch * share.passes, passes=1))


def text_tower(work: RankWork) -> Loop:
    """Run the towers that do not depend on the step once, and keep their keys and values."""
    passes = work.share.passes
    return Loop(name="text_tower", count=passes, body=_text_body(_text_work(work)), keeps=passes)


def _text_work(work: RankWork) -> RankWork:
    """Leave out what no tower that is run ahead depends on, such as how other streams are cut."""
    spans = {name: span for name, span in work.spans.items() if work.cached(name)}
    layer = work.of_a_layer().share
    share = layer if work.model.has_experts else replace(layer, sequence=(), zigzag=False)
    return replace(work, share=share, spans=spans, layers=(), stage=0)


@once
def _text_body(work: RankWork) -> tuple[Op | Loop, ...]:
    return tuple(_text_layers(work))


def _text_layers(work: RankWork) -> Emits[None]:
    state: State = {}
    for stream in work.model.streams:
        if work.cached(stream.name):
            state = {**state, **(yield from _enter(work, stream))}
    for layer in work.model.blocks:
        towers = tuple(t for t in layer.towers if all(work.cached(s) for s in t.streams))
        if towers:
            text_block = Block(name=layer.name, count=layer.count, towers=towers)
            body = layer_body(replace(work, memory="store"), text_block, state)
            yield Loop(name=layer.name, count=layer.count, body=body, layers=True)


def _forward(work: RankWork, *, reusing: bool = False) -> Emits[None]:
    """Emit one forward through this rank's layers, and hand on what came of it.

    reusing : of layers that a cache of features skips the change is that of a step before.
    """
    if work.share.shards[1] > 1 or work.workload.reuse is not None:  # how many there are matters
        items, handed_on = _turn(replace(work, layers=tuple(work.layers)), reusing)
        yield from items
    else:
        items, handed_on = _turn(work.of_a_turn(), reusing)
        layers = iter(work.layers)
        for item in items:
            if isinstance(item, Loop):
                layer, first = next(layers)
                yield replace(item, count=layer.count, first=first)
            else:
                yield item
    for x in handed_on:
        yield _send(x, work.share.stages)


@once
def _turn(
    work: RankWork,
    reusing: bool,  # noqa: FBT001  # to be kept by
) -> tuple[tuple[Op | Loop, ...], list[Tensor]]:
    """Write down what a rank does in one forward, and name what it hands on."""
    return collected_items(_through_stage(work, reusing=reusing))


def _through_stage(work: RankWork, *, reusing: bool) -> Emits[list[Tensor]]:
    habits = work.workload.habits
    own_modulation = habits.repository and work.model.own.token_modulation
    if own_modulation or work.model.named_in(habits.token_modulation):
        yield from _modulate_tokens(work)
    yield from conditions(work, tower_of(work.model, latent_stream(work.model).name).hidden)
    state: State = {}
    if work.stage == 0:  # this rank's rows, and the latents projected
        for stream in _moving_streams(work):
            state = {**state, **(yield from _enter(work, stream))}
    else:
        state = _received_state(work)
    reuse = work.workload.reuse
    first_layers, later_layers = _split_layers(work.layers, 0 if reuse is None else reuse.layers)
    state = yield from _run_layers(work, state, first_layers)
    if reusing:
        state = yield from _recall_change(work, state)
    else:
        entering = None
        if reuse is not None:
            x = yield from _latent_rows(work, state)
            entering = yield from pointwise("cast", (x,), f"entering.{x.name}")
        state = yield from _run_layers(work, state, later_layers)
        if entering is not None:
            yield from _keep_change(work, entering, state)
    if work.is_last:
        yield from _predict(work, state)
    if work.share.stages == 1:
        return []
    singles = yield from _single_streams(work, state)
    return sorted(singles, key=lambda tensor: tensor.name)


def _split_layers(layers: Layers, count: int) -> tuple[Layers, Layers]:
    """Part the first `count` layers from those behind them."""
    if not count:
        return (), layers
    leading, following = list[tuple[Block, int]](), list[tuple[Block, int]]()
    for layer, start in layers:
        leading_count = min(layer.count, count)
        count -= leading_count
        if leading_count:
            leading.append((replace(layer, count=leading_count), start))
        if layer.count > leading_count:
            following.append(
                (replace(layer, count=layer.count - leading_count), start + leading_count)
            )
    return leading, following


def _run_layers(work: RankWork, state: State, layers: Layers) -> Emits[State]:
    for layer, first in layers:
        state = yield from repack(work, state, live_towers(work, layer))
        body = layer_body(work, layer, state)
        if work.share.shards[1] > 1:
            yield from _sharded_layers(work, layer, first, body)
            continue
        yield Loop(name=layer.name, count=layer.count, body=body, layers=True, first=first)
    return state


def _sharded_layers(
    work: RankWork, layer: Block, first: int, body: tuple[Op | Loop, ...]
) -> Emits[None]:
    """Emit layers whose weights are gathered, the first one's ahead, others' beside a layer."""
    shards, last_layer = work.share.shards, first + layer.count - 1
    first_gather = fsdp.gather(layer.name, body, shards, beside=False)
    yield Loop(name="fetch", count=1, body=(first_gather,), layers=True, first=first)
    next_gather = fsdp.gather(layer.name, body, shards, beside=True)
    overlapped = (next_gather, *body)
    yield Loop(name=layer.name, count=layer.count - 1, body=overlapped, layers=True, first=first)
    yield Loop(name=layer.name, count=1, body=body, layers=True, first=last_layer)


def _keep_change(work: RankWork, entering: Tensor, state: State) -> Emits[None]:
    """Keep what the layers changed of the latent rows."""
    x = yield from _latent_rows(work, state)
    change = yield from pointwise("difference", (x, entering), f"change.{x.name}")
    cache = replace(x, name=f"cache.{x.name}")
    yield Rearrange(move="keep", inputs=(change,), outputs=(cache,), view=True)


def _recall_change(work: RankWork, state: State) -> Emits[State]:
    """Add what was kept to the latent rows."""
    x = yield from _latent_rows(work, state)
    cache, change = (replace(x, name=f"{place}.{x.name}") for place in ("cache", "change"))
    yield Rearrange(move="recall", inputs=(cache,), outputs=(change,), view=True)
    restored = yield from pointwise("residual", (x, change), x.name)
    return {(latent_stream(work.model).name,): restored}


def _latent_rows(work: RankWork, state: State) -> Emits[Tensor]:
    """Emit the rows of the latents on their own."""
    singles = yield from _single_streams(work, state)
    name = state_name((latent_stream(work.model).name,))
    return next(x for x in singles if x.name == name)


def _modulate_tokens(work: RankWork) -> Emits[None]:
    """Project the time embedding of every token: to the hidden width, and to six vectors of it.

    In 32 bits, written as 16 bits of twice the width: tensor cores take twice as long for TF32.
    Priced, never run.
    """
    main = latent_stream(work.model).name
    hidden = tower_of(work.model, main).hidden
    x = Tensor("times", (work.share.batch, work.spans[main].tokens, hidden))
    columns = Part(_TIME_VECTORS * hidden, 2)
    weight = Weight(name="time", rows=(Part(hidden),), columns=(columns,), layered=False)
    yield from matmul(x, weight, "modulations")


def _single_streams(work: RankWork, state: State) -> Emits[list[Tensor]]:
    """Emit the state of every moving stream on its own, as it is handed from stage to stage."""
    singles: list[Tensor] = []
    for streams, x in state.items():
        names = [state_name((stream,)) for stream in streams]
        pieces = yield from split_rows(x, [work.spans[s].rows for s in streams], names)
        singles += [replace(piece, name=name) for piece, name in zip(pieces, names, strict=True)]
    return singles


@once
def _send(x: Tensor, stages: int) -> SendReceive:
    return SendReceive(x=x, out=x, axis=pp.AXIS, degree=stages, ends=True, stream="compute")


def _moving_streams(work: RankWork) -> list[Stream]:
    return [s for s in work.model.streams if not s.static and not work.cached(s.name)]


def _received_state(work: RankWork) -> State:
    """Name the state of every moving stream as the stage before hands it on."""
    state: dict[tuple[str, ...], Tensor] = {}
    for stream in _moving_streams(work):
        hidden = tower_of(work.model, stream.name).hidden
        shape = (work.share.batch, work.spans[stream.name].rows, hidden)
        state[(stream.name,)] = Tensor(state_name((stream.name,)), shape)
    return state


def _enter(work: RankWork, stream: Stream) -> Emits[State]:
    span, main = work.spans[stream.name], latent_stream(work.model).name
    hidden = tower_of(work.model, stream.name).hidden
    text = rows_of(work, stream.name)
    features = work.model.input_features if stream.name == main else hidden
    features = text.features if text else features
    source = Tensor(f"input.{stream.name}", (work.share.batch, span.tokens, features))
    if stream.name == main and work.numerics is not None:
        narrowed = replace(source, name=f"narrow.{source.name}")
        yield Pointwise(function="cast", inputs=(latents(work),), outputs=(narrowed,))
        source = narrowed
    x = yield from _shard(source, span)
    name = state_name((stream.name,))
    if text:
        return {(stream.name,): (yield from embedded(text, x, hidden, name))}
    if stream.name != main:
        out = Tensor(name, x.shape)
        yield Pointwise(function="cast", inputs=(x,), outputs=(out,))
        return {(stream.name,): out}
    weight = Weight(name="embed", rows=(Part(features),), columns=(Part(hidden),), layered=False)
    out = yield from matmul(x, weight, name)
    return {(stream.name,): (yield from timed_rows(work, out))}


def _shard(x: Tensor, span: Span) -> Emits[Tensor]:
    if not span.axes:
        return x
    out = Tensor(f"here.{span.stream}", (x.shape[0], span.rows, x.shape[2]), x.itemsize)
    return (yield from move("shard", [x], out, axis="", degree=span.parts, spans=(span,)))


def _predict(work: RankWork, state: State) -> Emits[None]:
    """Norm and project the latent rows, and gather those of the other ranks."""
    model, main = work.model, latent_stream(work.model).name
    x = yield from _latent_rows(work, state)
    h = yield from final_norm(work, x)
    weight = Weight(
        name="head",
        rows=(Part(tower_of(model, main).hidden),),
        columns=(Part(model.output_features),),
        layered=False,
    )
    out = yield from matmul(h, weight, "predicted")
    out = yield from latent_features(work, out)
    span = work.spans[main]
    for axis, degree in reversed(span.axes):
        if axis == pipefusion.AXIS:
            continue
        stacked = Tensor(f"{out.name}.{axis}", (1, *out.shape))
        yield from move("stack", [out], stacked, axis=axis, degree=degree, view=True)
        gathered = yield from collective("all_gather", stacked, axis, degree, f"{axis}.gathered")
        joined = span.within(axis)
        out = Tensor(f"{out.name}.all", (out.shape[0], joined.rows, out.shape[2]))
        yield from move("unpack_rows", [gathered], out, axis=axis, degree=degree, spans=(span,))
        span = joined
    shape = (work.share.passes, *out.shape)
    name = "predictions" if dict(span.axes).get(pipefusion.AXIS, 1) == 1 else _PIECE_PREDICTIONS
    yield Rearrange(move="collect", inputs=(out,), outputs=(Tensor(name, shape),), view=True)


def _combining_ops(work: RankWork) -> tuple[Op | Loop, ...]:
    """Write down how predictions of all rows come together, however layers are divided."""
    share, main = work.share, latent_stream(work.model)
    whole_share = Share(batch=share.batch, passes=share.passes, guidance=share.guidance)
    spans = {main.name: Span(main.name, work.workload.length(main.name))}
    predictions, items = _whole_predictions(
        replace(work, share=whole_share, spans=spans, layers=(), stage=0)
    )
    return (*_from_last(predictions, share.stages), *items)


@once
def _whole_predictions(work: RankWork) -> tuple[Tensor, tuple[Op | Loop, ...]]:
    return _predictions(work), tuple(_combine(work))


def _predictions(work: RankWork, pieces: int = 1) -> Tensor:
    """Name what the forwards of a step have predicted."""
    main = latents(work)
    span = work.spans[latent_stream(work.model).name]
    rows = _finished_piece(span, pieces).rows if pieces > 1 else main.shape[1]
    name = "predictions" if pieces == 1 else _PIECE_PREDICTIONS
    shape = (work.share.passes, main.shape[0], rows, work.model.output_features)
    return Tensor(name, shape)


def _finished_piece(span: Span, pieces: int) -> Span:
    return pipefusion.piece(span, pieces, pipefusion.DONE)


def _from_last(predictions: Tensor, stages: int) -> tuple[Op | Loop, ...]:
    """Let all ranks of a pipeline have what the last one has predicted."""
    return (_broadcast(predictions, stages),) if stages > 1 else ()


@once
def _broadcast(predictions: Tensor, stages: int) -> Collective:
    return Collective(
        kind="broadcast", x=predictions, out=predictions, axis=pp.AXIS, degree=stages,
        root=stages - 1,
    )  # fmt: skip


def _combine(work: RankWork, pieces: int = 1) -> Emits[None]:
    """Bring the step's predictions together, and update the latents: all, or one of the pieces."""
    share, main = work.share, latents(work)
    predictions = _predictions(work, pieces)
    gathered = yield from collective(
        "all_gather", predictions, "cfg", share.guidance, f"{predictions.name}.all"
    )
    noise = Tensor("noise", predictions.shape[1:], main.itemsize)
    if work.numerics is not None:
        yield from _computed_step(work, gathered, noise)
        return
    yield Pointwise(function="guidance", inputs=(gathered,), outputs=(noise,))
    if pieces == 1:
        yield Pointwise(function="step", inputs=(main, noise), outputs=(main,))
        return
    finished_span = _finished_piece(work.spans[latent_stream(work.model).name], pieces)
    local_latents = yield from _shard(main, finished_span)
    yield Pointwise(function="step", inputs=(local_latents, noise), outputs=(local_latents,))
    yield Rearrange(
        move="place",
        inputs=(main, local_latents),
        outputs=(main,),
        spans=(finished_span,),
        view=True,
    )


def _computed_step(work: RankWork, gathered: Tensor, noise: Tensor) -> Emits[None]:
    """Emit guidance and a step of Euler's method, by numbers that are given; and count it."""
    main = latents(work)
    scale = (scale_of(work),) if gathered.shape[0] > 1 else ()
    yield Pointwise(function="guidance", inputs=(gathered, *scale), outputs=(noise,))
    change = yield from step_value(work, "change")
    yield Pointwise(function="step", inputs=(main, noise, change), outputs=(main,))
    yield Pointwise(function="count", inputs=(TURN,), outputs=(TURN,))


def text_encode(work: RankWork) -> Loop:
    """Run every encoder over the prompts: as many as forwards a step, so two with guidance."""
    prompts = work.share.batch * work.share.passes
    return _encoded(work.model.encoders, prompts)


@once
def _encoded(encoders: tuple[Encoder, ...], prompts: Size) -> Loop:
    body = tuple(_encoder(encoder, prompts) for encoder in encoders)
    return Loop(name="text_encode", count=1, body=body)


def _encoder(encoder: Encoder, prompts: Size) -> Loop:
    x = Tensor(f"{encoder.name}.x", (prompts, encoder.tokens, encoder.hidden))
    width = max(1, round(encoder.parameters / encoder.layers / encoder.hidden))
    weight = Weight(
        name=f"encoder.{encoder.name}", rows=(Part(encoder.hidden),), columns=(Part(width),)
    )
    out = Tensor(f"{encoder.name}.y", (prompts, encoder.tokens, width))
    product = Matmul(x=x, weight=weight, out=out)
    return Loop(name=encoder.name, count=encoder.layers, body=(product,), layers=True)


def vae_decode(work: RankWork, degree: int) -> Loop:
    """Decode the latents to pixels, on `degree` GPUs where asked for."""
    vae = work.model.vae
    if vae is None:
        return Loop(name="vae_decode", count=1, body=())
    habits = work.workload.habits
    share = SERIAL_SHARE + (1 - SERIAL_SHARE) / degree if degree > 1 else 1.0
    tiles = vae.may_tile and work.model.named_in(habits.tiled_decode)
    slow = "any" in habits.slow_decoders or work.model.named_in(habits.slow_decoders)
    overlap = vae.overlap if tiles else 1.0
    pixels = work.share.batch * work.workload.pixels * share * overlap
    return _decoded(
        Convolve(
            name=vae.name,
            flop=pixels * vae.flop_per_pixel * (vae.eager_work if slow else 1.0),
            traffic=pixels * vae.peak_bytes_per_pixel,
            eager=vae.eager if slow else 0.0,
            passes=pixels * vae.eager_bytes_per_pixel if slow else 0.0,
            planes=work.model.latent is not None and work.model.latent.temporal == 1,
        )
    )


@once
def _decoded(decode: Convolve) -> Loop:
    return Loop(name="vae_decode", count=1, body=(decode,))
