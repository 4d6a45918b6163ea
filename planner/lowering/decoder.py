"""A language model for one rank: a prompt's prefill, decode steps, and steps of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, cast

from costmodels.program import Loop, Part, Rearrange, SendReceive, Size, Span, Tensor, Weight
from costmodels.program.emit import (
    Emits,
    collective,
    concat_rows,
    matmul,
    move,
    pointwise,
    regroup,
    split_rows,
    total_rows,
)
from costmodels.sizes import any_true, larger
from planner.lowering.blocks import layer_body, state_name
from planner.lowering.work import Chunk, RankWork
from planner.strategies import pp, tp
from planner.strategies.shards import attend_shards

if TYPE_CHECKING:
    pass


def decoder_inputs(work: RankWork) -> tuple[Tensor, ...]:
    """Name prompt and next token, embedded, ``[batch, tokens, hidden]``; whole on every rank."""
    stream, hidden = work.model.streams[0].name, work.model.main.hidden
    batch, tokens = work.share.batch, work.workload.length(stream) - work.workload.cached
    prompt = Tensor(f"prompt.{stream}", (batch, tokens, hidden))
    return prompt, Tensor(f"next.{stream}", (batch, 1, hidden))


def prefill(work: RankWork) -> Loop:
    """Run the prompt through the layers, keep its keys and values, and predict a token.

    What is cached of it is looked at, and stays in front of what is kept.
    """
    keeps = any_true(work.workload.output_tokens > 0)
    storing = replace(work, memory="store") if keeps else work
    if work.workload.prefixed:
        storing = replace(work, memory="append")
    span = work.spans[work.model.streams[0].name]
    body = tuple(_forward(storing, (decoder_inputs(work)[0], span)))
    return Loop(name="prefill", count=1, body=body)


def decode(work: RankWork, length: Size) -> Loop:
    """Generate `output_tokens` tokens, one a step, over a cache of `length` tokens.

    The token is on every rank; a cache that is cut along the sequence stays so.
    """
    span = Span(work.model.streams[0].name, 1, start=length)
    appending = replace(
        work, memory="append", spans={span.stream: span}, attend=attend_shards(work.share.sequence)
    )
    body = tuple(_forward(appending, (decoder_inputs(work)[1], span)))
    return Loop(name="decode", count=work.workload.output_tokens, body=body)


def engine_step(work: RankWork, chunks: tuple[Chunk, ...], name: str) -> Loop:
    """Run one step of an engine: chunks of prompts beside sequences that decode, one batch.

    Rows of all sequences stand end to end, ``[1, rows, hidden]``; each sequence sees its own
    cache, and gets scores of its last token.
    """
    stream, serving = work.model.streams[0].name, replace(work, memory="append", chunks=chunks)
    rows = Span(stream, total_rows([chunk.span(stream) for chunk in chunks]))
    body = tuple(_forward(serving, (step_input(work, chunks, name), rows)))
    return Loop(name=name, count=1, body=body)


def step_input(work: RankWork, chunks: Sequence[Chunk], name: str) -> Tensor:
    """Name the embedded tokens of a step, ``[1, rows, hidden]``; whole on every rank."""
    stream = work.model.streams[0].name
    rows = total_rows([chunk.span(stream) for chunk in chunks])
    return Tensor(f"{name}.{stream}", (1, rows, work.model.main.hidden))


def last_length(work: RankWork) -> Size:
    """Count the tokens in the cache at the end of the output, ahead of the last one."""
    return _length(work, _later_tokens(work))


def mean_length(work: RankWork) -> Size:
    """Count the tokens in the cache at the middle of the output."""
    return _length(work, _later_tokens(work) // 2)


def _later_tokens(work: RankWork) -> Size:
    """Count the tokens of the output behind the first."""
    return cast(Size, larger(work.workload.output_tokens - 1, 0))


def _length(work: RankWork, extra: Size) -> Size:
    return work.workload.length(work.model.streams[0].name) + extra


def _forward(work: RankWork, inputs: tuple[Tensor, Span]) -> Emits[None]:
    """Emit a forward through all stages of the pipeline, and the next token's scores."""
    share, (tokens, span) = work.share, inputs
    x = Tensor(state_name((span.stream,)), (tokens.shape[0], span.rows, tokens.shape[2]))
    turn = tuple(_layers(work, (tokens, span, x)))
    if share.stages == 1:
        yield from turn
    else:
        hand_on = SendReceive(
            x=x, out=x, axis=pp.AXIS, degree=share.stages, ends=True, stream="compute"
        )
        yield Loop(name="forward", count=share.stages - 1, body=(*turn, hand_on))
        yield Loop(name="forward", count=1, body=turn, first=share.stages - 1)
    if work.is_last:
        yield from _scores(work, x, span)


def _layers(work: RankWork, inputs: tuple[Tensor, Span, Tensor]) -> Emits[None]:
    tokens, span, x = inputs
    if work.stage == 0:
        if span.axes:
            local_tokens = replace(tokens, name="here", shape=x.shape)
            rows = (replace(span, start=0),)
            tokens = yield from move(
                "shard", [tokens], local_tokens, axis="", degree=span.parts, spans=rows
            )
        yield from pointwise("cast", (tokens,), x.name)
    for layer, number in work.layers:
        body = layer_body(work, layer, {layer.towers[0].streams: x})
        yield Loop(name=layer.name, count=layer.count, body=body, layers=True, first=number)


def _last_row_of(x: Tensor, span: Span) -> Emits[Tensor]:
    """Find the row that stands last in the stream, on whichever rank it is."""
    last_row = Tensor("last", (x.shape[0], 1, x.shape[2]))
    yield Rearrange(move="last", inputs=(x,), outputs=(last_row,), spans=(span,))
    for axis, degree in reversed(span.axes):
        stacked = replace(last_row, name=f"last.{axis}", shape=(1, *last_row.shape))
        yield from move("stack", [last_row], stacked, axis=axis, degree=degree, view=True)
        gathered = yield from collective("all_gather", stacked, axis, degree, f"last.{axis}.all")
        yield from move("latest", [gathered], last_row, axis=axis, degree=degree, spans=(span,))
        span = span.within(axis)
    return last_row


def _last_chunk_rows(work: RankWork, x: Tensor) -> Emits[Tensor]:
    """Find the last row of every sequence of a step, or all rows, ``[1, rows, hidden]``."""
    chunks, stream = work.chunks, work.model.streams[0].name
    names = [f"last.{chunk.name}" for chunk in chunks]
    pieces = yield from split_rows(x, [chunk.span(stream).rows for chunk in chunks], names)
    last_rows = []
    for chunk, piece, name in zip(chunks, pieces, names, strict=True):
        if chunk.scored:
            last_rows.append(piece)
            continue
        chunk_rows = yield from regroup(piece, chunk.sequences, chunk.tokens, f"{name}.apart")
        last_row = Tensor(f"{name}.last", (chunk_rows.shape[0], 1, chunk_rows.shape[2]))
        rows = (Span(stream, chunk.tokens),)
        yield Rearrange(move="last", inputs=(chunk_rows,), outputs=(last_row,), spans=rows)
        row = yield from regroup(last_row, 1, chunk.sequences, f"{name}.row")
        last_rows.append(row)
    return (yield from concat_rows(last_rows, "last", view=True))


def _scores(work: RankWork, x: Tensor, span: Span) -> Emits[None]:
    """Project last tokens to the vocabulary, cut over the ranks that share a layer."""
    hidden, degree = work.model.main.hidden, work.share.tensor
    last_rows = yield from (_last_chunk_rows(work, x) if work.chunks else _last_row_of(x, span))
    h = yield from pointwise("norm", (last_rows,), "final")
    vocabulary = ceil(work.model.vocabulary / degree) * degree
    head = Weight(
        name="head",
        rows=(Part(hidden),),
        columns=(Part(vocabulary),),
        split="columns",
        degree=degree,
        layered=False,
    )
    scores = yield from matmul(h, head, "scores")
    if degree > 1:
        stacked = Tensor("scores.stacked", (1, *scores.shape))
        yield from move("stack", [scores], stacked, axis=tp.AXIS, degree=degree, view=True)
        gathered = yield from collective("all_gather", stacked, tp.AXIS, degree, "scores.all")
        out = Tensor("output", (*last_rows.shape[:2], vocabulary))
        columns = head.columns
        yield from move("unpack_heads", [gathered], out, axis=tp.AXIS, degree=degree, parts=columns)
    else:
        yield from pointwise("cast", (scores,), "output")
