"""One rank's work, before it is written down as operations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial, wraps
from typing import Any, Final, Literal, TypeVar, cast

from costmodels.program import Part, Rearrange, Size, Span, Tensor, Weight
from costmodels.program.emit import Emits, total_rows
from costmodels.sizes import any_true
from planner.models import Block, Ffn, Model, Numerics, Tower
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import SequenceStrategy, fsdp, pipefusion, strategies
from planner.strategies.attention import attend_here
from planner.strategies.base import Attend, AttentionCall, Share
from planner.strategies.sequence import span_of
from topology.base.values import dataclass
from topology.catalogue import Precision

Layers = Sequence[tuple[Block, int]]
"""Blocks with the layers that a rank holds of each, and the number of the first of them."""
T = TypeVar("T")
_CACHED_PARTS: Final = 4096
"""Parts of programs of a kind that are kept."""


def once(make: Callable[..., T]) -> Callable[..., T]:
    """Let a part of programs be one value wherever it is made of the same.

    Plans that divide a layer alike, and the stages of their pipelines, have it in common. What is
    made of bare or large arrays is not kept.
    """
    cached = lru_cache(maxsize=_CACHED_PARTS)(make)

    @wraps(make)
    def given(*parts: Any) -> T:  # noqa: ANN401  # whatever it is made of
        try:
            return cached(*parts)
        except TypeError:  # such arrays are not hashed
            return make(*parts)

    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What some sequences run in one step of a served model.

    name : of their part of the cache. tokens : new ones of each of `sequences`, behind `context`
    that are cached: a piece of a prompt, or the one token of a decode step. scored : every token
    has scores, as drafted ones do that are verified, and not the last alone.
    """

    name: str
    tokens: Size
    context: Size
    sequences: Size = 1
    scored: bool = False

    @property
    def scores(self) -> Size:
        """Tokens of all its sequences that have scores."""
        return self.sequences * self.tokens if self.scored else self.sequences

    def span(self, stream: str) -> Span:
        """Return the rows of all its sequences, end to end."""
        return Span(stream, self.tokens, start=self.context, copies=self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """The model, the request, a rank's share of it and what ranks exchange in attention.

    layers, stage : of its stage in the pipeline, and which stage that is.
    memory : what a layer does with keys and values: ``load`` those of streams that were run ahead,
    ``store`` its own for later, or ``append`` its own to those stored.
    chunks : of a step of many sequences; empty for rows that are one batch.
    whole : what a model has around its layers is emitted too, to be computed.
    attend : follows from the share, the memory and the chunks.
    """

    model: Model
    workload: Workload
    share: Share
    spans: Mapping[str, Span]
    attend: Attend = field(compare=False)
    layers: Layers = ()
    stage: int = 0
    memory: Literal["load", "store", "append"] = "load"
    chunks: tuple[Chunk, ...] = ()
    whole: bool = False

    def __hash__(self) -> int:
        spans = self.spans.values()
        return hash((self.share, *spans, self.memory, self.chunks, self.stage, len(self.layers)))

    def of_a_layer(self) -> "RankWork":
        """Leave out what no layer depends on, such as other stages than its own, and replicas."""
        workload, share = _workload_of_a_layer(self.workload), _share_of_a_layer(self.share)
        return replace(self, workload=workload, share=share, layers=(), stage=0)

    def of_a_turn(self) -> "RankWork":
        """Leave out what a turn does not depend on, such as how many layers and stages there are.

        What is left of a pipeline is whether there are stages before, and behind.
        """
        last = min(self.share.stages, 3) - 1
        share = replace(self.share, stages=last + 1, replicas=1)
        stage = last if self.is_last else min(self.stage, 1)
        return replace(self, share=share, stage=stage, layers=_single_layers(tuple(self.layers)))

    @property
    def numerics(self) -> Numerics | None:
        """What the model's numbers depend on, where they are to be computed."""
        return self.model.numerics if self.whole else None

    @property
    def is_last(self) -> bool:
        """Whether the rank is in the last stage of the pipeline."""
        return self.stage == self.share.stages - 1

    def weight(
        self,
        name: str,
        rows: Sequence[Part],
        columns: Sequence[Part],
        split: Literal["none", "rows", "columns"] = "columns",
        *,
        part: str = "feed_forward",
    ) -> Weight:
        """Name a layer's matrix and its cut over the ranks that share the layer.

        part : of a layer, of which a checkpoint may keep some in 16 bits.
        """
        return Weight(
            name=name,
            rows=tuple(rows),
            columns=tuple(columns),
            split=split,
            degree=self.share.tensor,
            precision=weight_format(self.model, self.workload.precision, part),
            group=scale_group(self.model, self.workload.precision, part),
        )

    def expert_weight(
        self,
        name: str,
        sides: Sequence[tuple[Part, ...]],
        split: Literal["rows", "columns"],
        ffn: Ffn,
    ) -> Weight:
        """Name the matrices of all experts, which are spread over more ranks than a layer's cut.

        sides : rows and columns of each.
        """
        share, (rows, columns) = self.share, sides
        return Weight(
            name=name,
            rows=rows,
            columns=columns,
            split=split,
            degree=share.expert_cut,
            experts=ffn.experts + ffn.copies,
            copies=ffn.copies,
            groups=share.expert_groups,
            axes=share.expert_ranks,
            precision=weight_format(self.model, self.workload.precision, "experts"),
            group=scale_group(self.model, self.workload.precision, "experts"),
        )

    def rows(self, tower: Tower) -> tuple[Span, ...]:
        """List the rows that a tower takes here, in order."""
        if self.chunks:
            return tuple(chunk.span(tower.streams[0]) for chunk in self.chunks)
        return tuple(self.spans[stream] for stream in tower.streams)

    def kept(self, tower: Tower, layer: str, rows: Size, stream: str = "") -> Tensor:
        """Name what a layer keeps here of a stream's rows, ``[batch, rows, as Tower.kept says]``.

        stream : whose rows they are, where it is not the tower's first.
        """
        shape = (self.share.batch, rows, tower.kept(self.share.tensor).row)
        itemsize = 1 if self.workload.kv_precision == "fp8" else 2
        return Tensor(f"cache.{layer}.{stream or tower.streams[0]}", shape, itemsize)

    def kept_heads(self, tower: Tower) -> tuple[Part, ...]:
        """List the heads of keys, then of values, that a row of `kept` is made of, if of any."""
        if tower.latent is not None:
            return ()
        heads = Part(max(1, tower.heads.key_value // self.share.tensor), tower.heads.size)
        return (heads, heads)

    def appended(
        self, tower: Tower, layer: str, span: Span, new: Tensor, part: str = ""
    ) -> Emits[tuple[Tensor, tuple[Span, ...]]]:
        """Emit the move that puts new rows behind those that a layer keeps, and say what is seen.

        part : of what is kept, for some of the sequences.
        """
        rows_before, cached_spans = self.behind(span)
        cache = self.kept(tower, layer, rows_before)
        name = f"{cache.name}.{part}" if part else cache.name
        cache = replace(cache, name=name, shape=(new.shape[0], *cache.shape[1:]))
        out = replace(
            cache,
            name=f"grown.{name}",
            shape=(*new.shape[:1], rows_before + span.rows, cache.shape[2]),
        )
        parts = self.kept_heads(tower)
        yield Rearrange(move="append", inputs=(cache, new), outputs=(out,), parts=parts, view=True)
        return out, cached_spans

    def behind(self, span: Span) -> tuple[Size, tuple[Span, ...]]:
        """Count the rows kept here before those of `span`; and say where these and new ones stand.

        Of a sequence that is cut the new row is kept by one rank, and is padding on the others.
        """
        if not self.share.sequence:
            return span.start, (Span(span.stream, span.start + span.rows),)
        earlier_spans = self._earlier_spans(span)
        new_span = (
            span if span.axes else replace(span, axes=self.share.sequence, grain=self.share.grain)
        )
        return total_rows(earlier_spans), (*earlier_spans, new_span)

    def _earlier_spans(self, span: Span) -> list[Span]:
        """List what is kept ahead of a span: what was cached, and the prompt behind it."""
        cached = self.workload.cached
        new = span.start - cached
        stream = next(s for s in self.model.streams if s.name == span.stream)
        cuts = [
            span_of(self.model, stream, tokens, self.share, start)
            for tokens, start in ((cached, 0), (new, cached))
        ]
        return [cut for cut in cuts if any_true(cut.tokens > 0)]

    def cached(self, stream: str) -> bool:
        """Whether the keys and values of a stream are computed once, ahead of the steps."""
        tower = self.workload.habits.text_tower
        runs_once = tower == "once" or (tower == "usual" and self.share.stages == 1)
        return self.memory == "load" and runs_once and stream in self.model.reuses


@once
def _single_layers(layers: Layers) -> Layers:
    return tuple((replace(layer, count=1), 0) for layer, _ in layers)


@once
def _workload_of_a_layer(workload: Workload) -> Workload:
    return replace(workload, tokens=(), steps=1, output_tokens=0, pixels=0, frames=1, passes=1)


@once
def _share_of_a_layer(share: Share) -> Share:
    return replace(share, stages=min(share.stages, 2), replicas=1, passes=1, guidance=1)


def weight_format(model: Model, precision: Precision, part: str) -> str:
    """Name the format of a part's weights: as published where that is what was asked for."""
    published = model.quantisation
    if published is None or published.precision != precision:
        return precision
    blocks = precision == "fp8" and published.block and published.covers(part)
    return "fp8_block" if blocks else published.precision_of(part)


def scale_group(model: Model, precision: Precision, part: str) -> int:
    """Count the inputs that share a scale where a checkpoint says so, 0 where it does not."""
    published = model.quantisation
    if published is None or published.precision != precision or not published.covers(part):
        return 0
    return published.group


def share_of(workload: Workload, plan: Plan) -> Share:
    """Divide a request along the axes of a plan."""
    return _share(workload.batch, workload.passes, plan)


@once
def _share(batch: Size, passes: int, plan: Plan) -> Share:
    share = Share(batch=batch, passes=passes)
    for name, degree in plan.axes:
        share = strategies()[name].divide(share, degree)
    shards = fsdp.axis_of(plan), plan.fsdp
    return replace(share, expert_groups=plan.ep, pieces=plan.patch, shards=shards)


def rank_work(model: Model, workload: Workload, plan: Plan) -> RankWork:
    """Put together what lowering needs; the plan is taken to be legal."""
    share = share_of(workload, plan)
    spans = {
        stream.name: span_of(model, stream, tokens - workload.cached, share, workload.cached)
        for stream in model.streams
        for tokens in [workload.length(stream.name)]
    }
    work = RankWork(
        model=model, workload=workload, share=share, spans=spans, attend=_exchanges(share)
    )
    return in_pieces(work, 1) if share.pieces > 1 else work


def in_pieces(work: RankWork, pieces: int) -> RankWork:
    """Take one of so many pieces of the latents at a time, and keep the keys of all of them."""
    main = work.model.streams[-1].name
    spans = {**work.spans, main: pipefusion.piece(work.spans[main], pieces)}
    attend = partial(pipefusion.attend, inner=_exchanges(work.share))
    return replace(work, spans=spans, attend=attend)


def _exchanges(share: Share) -> Attend:
    """Nest the exchanges, the outermost axis innermost; keys that are all here need none."""
    exchange: Attend = attend_here
    for name, degree in share.sequence:
        strategy = cast(SequenceStrategy, strategies()[name])
        exchange = partial(strategy.attend, degree=degree, inner=exchange)

    def attend(call: AttentionCall) -> Emits[list[Tensor]]:
        cut = any(span.axes for entry in call.entries if entry.has_keys for span in entry.spans)
        return (yield from (exchange if cut else attend_here)(call))

    return attend


def context_widths(model: Model, stream: str) -> list[int]:
    """List the widths at which towers read a stream that is the same at every layer, each once."""
    crosses = [cross for tower in model.towers for cross in tower.cross]
    return list(dict.fromkeys(cross.width for cross in crosses if cross.context == stream))


def context_name(model: Model, stream: str, width: int) -> str:
    """Name such a stream as an input; the name has the width where it is not the first."""
    first = context_widths(model, stream)[0]
    return f"context.{stream}" if width == first else f"context.{stream}.{width}"
