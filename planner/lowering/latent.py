"""Latent attention: one compressed row a token is all that the cache keeps, for all heads [1]_.

*Expanded*, keys and values of every head are made of the rows, as for prompts: scores are
``content + rotary`` features wide. *Absorbed*, queries go into the space of the rows by a product a
head, and all heads look at the rows themselves, as for a token of a sequence: few queries read many
keys, which are then one head wide. Both are the same numbers. The rows are the same on every rank
that shares a layer; heads are cut.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434, section 2.1
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from costmodels.program import (
    HeadProduct,
    Part,
    Pointwise,
    Rearrange,
    Size,
    Span,
    Tensor,
    Weight,
)
from costmodels.program.emit import (
    Emits,
    concat_rows,
    matmul,
    pointwise,
    regroup,
    split_features,
    split_rows,
)
from planner.lowering.work import RankWork
from planner.models import LatentAttention, Tower
from planner.strategies.base import AttentionCall, Entry
from topology.base.values import dataclass

CONTENT, VALUE = 0, 1
"""Parts of the matrix that makes keys and values of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """A tower on the way into latent attention: queries of this rank's heads, and new rows.

    layer : name of the block. name : of the tower. spans : of the rows.
    """

    tower: Tower
    layer: str
    name: str
    spans: tuple[Span, ...]
    query: Tensor
    row: Tensor

    @property
    def spec(self) -> LatentAttention:
        assert self.tower.latent is not None
        return self.tower.latent


def latent_projections(
    work: RankWork, tower: Tower, h: Tensor, name: str, spans: tuple[Span, ...]
) -> Emits[tuple[Tensor, Tensor]]:
    """Emit the queries of this rank's heads, and the rows of the cache, both turned by position."""
    spec = tower.latent
    assert spec is not None
    rows, hidden = (Part(spec.row_size),), (Part(tower.hidden),)
    heads = Part(tower.heads.query, spec.score_size)
    if spec.query_rank:
        low_columns = (Part(spec.query_rank), *rows)
        down = work.weight(f"{name}.down", hidden, low_columns, "none", part="attention")
        low_rows = yield from matmul(h, down, f"{name}.low")
        widths = (spec.query_rank, spec.row_size)
        query_input, row = yield from split_features(
            low_rows, widths, (f"{name}.low_q", f"{name}.low_kv")
        )
        query_input = yield from pointwise("norm", (query_input,), f"{name}.normed_q")
        up = work.weight(f"{name}.up", (Part(spec.query_rank),), (heads,), part="attention")
    else:
        query_input = h
        down = work.weight(f"{name}.down", hidden, rows, "none", part="attention")
        row = yield from matmul(h, down, f"{name}.low_kv")
        up = work.weight(f"{name}.up", hidden, (heads,), part="attention")
    query = yield from matmul(query_input, up, f"{name}.q")
    count = heads.units // work.share.tensor
    rotated_query = Tensor(f"{name}.turned_q", query.shape, query.itemsize)
    yield Pointwise(
        function="rotary_tail", inputs=(query,), outputs=(rotated_query,), spans=spans,
        heads=(count, 0), size=spec.score_size, place=spec.rotary_size,
    )  # fmt: skip
    cache_row = Tensor(f"{name}.row", row.shape, row.itemsize)
    yield Pointwise(
        function="latent", inputs=(row,), outputs=(cache_row,), spans=spans,
        heads=(1, 0), size=spec.row_size, place=spec.rotary_size,
    )  # fmt: skip
    return rotated_query, cache_row


def latent_attention(work: RankWork, begun: Latents) -> Emits[Tensor]:
    """Emit the attention of a tower; ``[batch, rows, heads * value size]``."""
    if work.chunks:
        return (yield from _attend_chunks(work, begun))
    if work.memory == "append":
        rows, cached_spans = yield from work.appended(
            begun.tower, begun.layer, begun.spans[0], begun.row
        )
        return (yield from _attention_form(begun.row.shape[1])(work, begun, rows, cached_spans))
    if work.memory == "store":
        cache = work.kept(begun.tower, begun.layer, begun.row.shape[1])
        yield Rearrange(move="store", inputs=(begun.row,), outputs=(cache,))
    return (yield from _expanded(work, begun, begun.row, begun.spans))


def _attend_chunks(work: RankWork, latents: Latents) -> Emits[Tensor]:
    """Emit an attention for every chunk of a step: each of its sequences sees its own cache."""
    names = [f"{latents.name}.{chunk.name}" for chunk in work.chunks]
    counts = [span.rows for span in latents.spans]
    queries = yield from split_rows(latents.query, counts, [f"{name}.q" for name in names])
    rows = yield from split_rows(latents.row, counts, [f"{name}.row" for name in names])
    chunk_results = []
    for chunk, name, query, row in zip(work.chunks, names, queries, rows, strict=True):
        chunk_query = yield from regroup(query, chunk.sequences, chunk.tokens, f"{name}.q_apart")
        new_rows = yield from regroup(row, chunk.sequences, chunk.tokens, f"{name}.row_apart")
        span = replace(chunk.span(latents.tower.streams[0]), copies=1)
        chunk_latents = replace(latents, name=name, spans=(span,), query=chunk_query, row=new_rows)
        cache, cached_spans = yield from work.appended(
            latents.tower, latents.layer, span, new_rows, chunk.name
        )
        attend = _absorbed if chunk.scored else _attention_form(chunk.tokens)
        out = yield from attend(work, chunk_latents, cache, cached_spans)
        joined = yield from regroup(out, 1, query.shape[1], f"{name}.met")
        chunk_results.append(joined)
    return (yield from concat_rows(chunk_results, f"{latents.name}.met", view=True))


def _attention_form(rows: Size) -> Callable[..., Emits[Tensor]]:
    """Choose between the two forms: a row is absorbed, more of them expand what they see."""
    return _absorbed if isinstance(rows, int) and rows == 1 else _expanded


def _key_value_weight(work: RankWork, latents: Latents) -> Weight:
    """Name the matrix that makes keys and values of rows."""
    spec, heads = latents.spec, latents.tower.heads.query
    columns = (Part(heads, spec.content_size), Part(heads, spec.value_size))
    name = f"{latents.layer}.{'+'.join(latents.tower.streams)}.kv"
    return work.weight(name, (Part(spec.key_value_rank),), columns, part="attention")


def _expanded(
    work: RankWork, latents: Latents, rows: Tensor, row_spans: tuple[Span, ...]
) -> Emits[Tensor]:
    """Make keys and values of every head of all rows that are seen."""
    heads = latents.tower.heads.query // work.share.tensor
    call = _call(latents, latents.query, (rows, row_spans), (heads, heads))
    (out,) = yield from work.attend(replace(call, answers=partial(_keys_and_values, work, latents)))
    return out


def _keys_and_values(
    work: RankWork, latents: Latents, rows: Tensor
) -> Emits[tuple[Tensor, Tensor]]:
    """Make keys and values of this rank's heads of rows, wherever they came from."""
    spec, name, weight = (
        latents.spec,
        f"{latents.name}.{rows.name}",
        _key_value_weight(work, latents),
    )
    widths = (spec.key_value_rank, spec.rotary_size)
    latent, rotated = yield from split_features(rows, widths, (f"{name}.latent", f"{name}.turned"))
    latent, rotated = (replace(x, itemsize=2) for x in (latent, rotated))
    keys_values = yield from matmul(latent, weight, f"{name}.kv")
    degree = work.share.tensor
    content, value = yield from split_features(
        keys_values,
        [part.local(degree) for part in weight.columns],
        (f"{name}.content", f"{name}.v"),
    )
    heads = latents.tower.heads.query // degree
    key = Tensor(f"{name}.k", (*rows.shape[:2], heads * spec.score_size), content.itemsize)
    parts = (Part(heads, spec.content_size),)
    yield Rearrange(move="concat_heads", inputs=(content, rotated), outputs=(key,), parts=parts)
    return key, value


def _absorbed(
    work: RankWork, latents: Latents, rows: Tensor, row_spans: tuple[Span, ...]
) -> Emits[Tensor]:
    """Look at the rows themselves, which are keys and, but for their rotary part, values."""
    spec, name, weight = latents.spec, latents.name, _key_value_weight(work, latents)
    heads = latents.tower.heads.query // work.share.tensor
    lead, itemsize = latents.query.shape[:2], latents.query.itemsize
    query = Tensor(f"{name}.into", (*lead, heads * spec.row_size), itemsize)
    yield HeadProduct(
        x=latents.query, out=query, weight=weight, heads=heads, part=CONTENT, turned=True,
        carried=spec.rotary_size,
    )  # fmt: skip

    def rows_themselves(rows: Tensor) -> Emits[tuple[Tensor, Tensor]]:
        widths = (spec.key_value_rank, spec.rotary_size)
        value, _ = yield from split_features(rows, widths, (f"{name}.latent", f"{name}.turned"))
        return rows, value

    call = replace(
        _call(latents, query, (rows, row_spans), (heads, 1)),
        size=spec.row_size, values=spec.key_value_rank, answers=rows_themselves,
    )  # fmt: skip
    (attended,) = yield from work.attend(call)
    out = Tensor(f"{name}.back", (*lead, heads * spec.value_size), itemsize)
    yield HeadProduct(x=attended, out=out, weight=weight, heads=heads, part=VALUE)
    return out


def _call(
    latents: Latents, query: Tensor, rows: tuple[Tensor, tuple[Span, ...]], heads: tuple[int, int]
) -> AttentionCall:
    """Ask with the queries of heads here, expanded; scores are divided alike in both forms."""
    spec, (key_rows, row_spans) = latents.spec, rows
    return AttentionCall(
        name=latents.name,
        entries=(
            Entry(spans=latents.spans, tensor=query, has_keys=False),
            Entry(spans=row_spans, tensor=key_rows, has_queries=False),
        ),
        heads=heads[0], key_value_heads=heads[1], size=spec.score_size, values=spec.value_size,
        scaled=spec.score_size, causal=latents.tower.causal,
    )  # fmt: skip
