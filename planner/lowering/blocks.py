"""From blocks to operations: projections, the attentions of a block, feed-forwards.

A block's state is one tensor for every row of streams that a tower takes together; its name is
``x.`` and the streams, and it has the same name before and after, so that layers can be looped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from costmodels.program import Loop, Op, Part, Pointwise, Rearrange, Span, Tensor
from costmodels.program.emit import (
    Emits,
    concat_features,
    concat_rows,
    matmul,
    pointwise,
    regroup,
    split_features,
    split_rows,
    total_rows,
)
from planner.lowering.conditioning import normed_across, own_vectors, row_name
from planner.lowering.experts import ffn_activation, ffn_columns
from planner.lowering.ffn import feed_forward
from planner.lowering.latent import Latents, latent_attention, latent_projections
from planner.lowering.recurrent import recurrent_mixing
from planner.lowering.work import RankWork, context_name, once
from planner.models import Block, Cross, Heads, Tower
from planner.strategies.base import AttentionCall, Entry
from planner.strategies.tp import reduce
from topology.base.values import dataclass

RECURRENT = ("delta", "mamba")
"""Mixers that keep a state of a sequence, not its keys and values."""

State = Mapping[tuple[str, ...], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """A tower on the way into attention: its queries, keys, values, and what waits for later.

    row : for the cache, of latent attention; `qkv` are then queries alone. gate : of what comes of
    attention. Of a recurrence `qkv` is what came of it.
    """

    tower: Tower
    name: str
    spans: tuple[Span, ...]
    qkv: Tensor
    inner: Tensor | None = None  # parallel feed-forward, before its activation
    modulation: Tensor | None
    row: Tensor | None = None
    gate: Tensor | None = None


def state_name(streams: Sequence[str]) -> str:
    """Name the state of streams that are taken together.

    >>> state_name(("text", "image"))
    'x.text+image'
    """
    return f"x.{'+'.join(streams)}"


def repack(work: RankWork, state: State, towers: Sequence[Tower]) -> Emits[State]:
    """Emit the rows laid end to end, or cut, as the towers of the next block take them."""
    wanted_streams = [tower.streams for tower in towers]
    if all(streams in state for streams in wanted_streams):
        return state
    by_stream: dict[tuple[str, ...], Tensor] = {}
    for streams, x in state.items():
        names = [state_name((stream,)) for stream in streams]
        rows = [work.spans[stream].rows for stream in streams]
        pieces = yield from split_rows(x, rows, names)
        by_stream |= {(s,): p for s, p in zip(streams, pieces, strict=True)}
    repacked = {}
    for streams in wanted_streams:
        stream_rows = [by_stream.pop((stream,)) for stream in streams]
        repacked[streams] = yield from concat_rows(stream_rows, state_name(streams))
    return by_stream | repacked


def live_towers(work: RankWork, layer: Block) -> list[Tower]:
    """List the towers of a block but those whose streams are cached."""
    return [t for t in layer.towers if not all(work.cached(s) for s in t.streams)]


def layer_body(work: RankWork, layer: Block, state: State) -> tuple[Op | Loop, ...]:
    """Give what a rank does in one layer of a block."""
    return _body(work.of_a_layer(), replace(layer, count=1), tuple(state.items()))


@once
def _body(
    work: RankWork, layer: Block, state: tuple[tuple[tuple[str, ...], Tensor], ...]
) -> tuple[Op | Loop, ...]:
    return tuple(block(work, layer, dict(state)))


def block(work: RankWork, layer: Block, state: State) -> Emits[State]:
    """Emit one layer of a block."""
    projected = []
    if layer.towers[0].mixer == "none":
        return {**state, **(yield from _ffn_layer(work, layer, state))}
    for tower in live_towers(work, layer):
        projection = yield from _project_tower(work, layer, tower, state[tower.streams])
        projected.append(projection)
    if work.memory == "store":
        for projection in projected:
            if projection.row is None and projection.tower.recurrence is None:
                _, keys_values = yield from _views(work, projection)
                local_rows = work.spans[projection.tower.streams[0]].rows
                cache = work.kept(projection.tower, layer.name, local_rows)
                heads = work.kept_heads(projection.tower)
                yield Rearrange(move="store", inputs=(keys_values,), outputs=(cache,), parts=heads)
    results: dict[tuple[str, ...], Tensor] = {}
    for group in _groups(projected):
        if group[0].tower.mixer in RECURRENT:
            results[group[0].tower.streams] = group[0].qkv
            continue
        attend = _attend_chunks if work.chunks else _attend
        if group[0].row is not None:
            attend = _attend_latent
        group_results = yield from attend(work, layer, group, projected)
        results |= group_results
    next_state = dict(state)
    for projection in projected:
        x, out = state[projection.tower.streams], results[projection.tower.streams]
        next_state[projection.tower.streams] = yield from _finish_tower(work, projection, x, out)
    return next_state


def _groups(projected: Sequence[Projected]) -> list[list[Projected]]:
    """Group the towers that look at the same keys: they are attended in one kernel."""
    groups: dict[tuple[tuple[str, ...], bool], list[Projected]] = {}
    for projection in projected:
        groups.setdefault((projection.tower.keys, projection.tower.causal), []).append(projection)
    return list(groups.values())


def heads_here(work: RankWork, heads: Heads) -> tuple[int, int]:
    """Count query and key-value heads on one of the ranks that share a layer."""
    tensor = work.share.tensor
    return heads.query // tensor, max(1, heads.key_value // tensor)


def _project_tower(work: RankWork, layer: Block, tower: Tower, x: Tensor) -> Emits[Projected]:
    """Emit the norm, the projections, and the rotation of queries and keys, if there is one."""
    name = f"{layer.name}.{'+'.join(tower.streams)}"
    spans = work.rows(tower)
    modulation = yield from _modulation(work, tower, name)
    h = yield from _norm(x, modulation, f"{name}.h", 0)
    projected = partial(Projected, tower=tower, name=name, spans=spans, modulation=modulation)
    if tower.latent is not None:
        query, row = yield from latent_projections(work, tower, h, name, spans)
        return projected(qkv=query, row=row)
    if tower.recurrence is not None:
        out = yield from recurrent_mixing(work, tower, h, layer.name, name)
        return projected(qkv=out)
    query_part = Part(tower.heads.query, tower.heads.size)
    key_value = Part(tower.heads.key_value, tower.heads.size)
    parts = (query_part, key_value, key_value)
    width = sum(part.local(work.share.tensor) for part in parts)
    fused = ffn_columns(tower.ffn) if tower.parallel and tower.ffn else ()
    gates = (query_part,) if tower.gate else ()
    columns = (*parts, *gates, *fused)
    up = work.weight(f"{name}.qkv", (Part(tower.hidden),), columns, part="attention")
    product = yield from matmul(h, up, f"{name}.qkv")
    inner = gate = None
    if gates:
        widths = (width, up.local_columns - width)
        product, gate = yield from split_features(product, widths, (f"{name}.attn", f"{name}.gate"))
    if fused:
        widths = (width, up.local_columns - width)
        product, inner = yield from split_features(
            product, widths, (f"{name}.attn", f"{name}.inner")
        )
    heads = heads_here(work, tower.heads)
    qkv = product = yield from normed_across(
        work, product, heads, tower.heads.size, f"{name}.normed"
    )
    if tower.mixer == "attention" and (tower.rotates or tower.qk_norm):
        qkv = yield from _rotary(work, tower, product, spans, f"{name}.rotated")
    return projected(qkv=qkv, inner=inner, gate=gate)


def _ffn_layer(work: RankWork, layer: Block, state: State) -> Emits[State]:
    """Emit a layer that is a feed-forward alone."""
    (tower,) = layer.towers
    name = f"{layer.name}.{'+'.join(tower.streams)}"
    x = yield from _ffn_update(work, tower, name, None, state[tower.streams])
    return {tower.streams: x}


def _modulation(work: RankWork, tower: Tower, name: str) -> Emits[Tensor | None]:
    spec = tower.modulation
    if spec is None:
        return (yield from own_vectors(work, tower, name))
    condition = Tensor(row_name(spec.inputs), (work.share.batch, 1, spec.inputs))
    vectors = []
    for copy in range(spec.copies):
        row, width = condition, spec.inputs
        if spec.rank:
            low = work.weight(f"{name}.low{copy}", (Part(width),), (Part(spec.rank),), "none")
            row = yield from matmul(row, low, f"{name}.low{copy}")
            width = spec.rank
        full = work.weight(f"{name}.mod{copy}", (Part(width),), (Part(spec.outputs),), "none")
        vectors.append((yield from matmul(row, full, f"{name}.mod{copy}")))
    if len(vectors) == 1:
        return vectors[0]
    return (yield from concat_features(vectors, f"{name}.mod", view=True))


def _norm(x: Tensor, modulation: Tensor | None, name: str, place: int) -> Emits[Tensor]:
    if modulation is None:
        return (yield from pointwise("norm", (x,), name))
    return (yield from pointwise("modulated_norm", (x, modulation), name, place=place))


def _residual(
    x: Tensor, y: Tensor, modulation: Tensor | None, name: str, place: int
) -> Emits[Tensor]:
    if modulation is None:
        return (yield from pointwise("residual", (x, y), name))
    return (yield from pointwise("gated_residual", (x, y, modulation), name, place=place))


def _rotary(
    work: RankWork, tower: Tower, x: Tensor, spans: tuple[Span, ...], name: str
) -> Emits[Tensor]:
    out = Tensor(name, x.shape, x.itemsize)
    yield Pointwise(
        function="rotary",
        inputs=(x,),
        outputs=(out,),
        spans=spans,
        heads=heads_here(work, tower.heads),
        size=tower.heads.size,
    )
    return out


def _attend(
    work: RankWork, layer: Block, group: Sequence[Projected], projected: Sequence[Projected]
) -> Emits[dict[tuple[str, ...], Tensor]]:
    """Emit the attention of one group; results by the streams of each of its towers."""
    tower = group[0].tower
    entries, owners = [], []
    querying = {id(projection) for projection in group}
    for projection in projected:
        gives_keys = all(stream in tower.keys for stream in projection.tower.streams)
        if work.memory == "append":
            entries += yield from _append(work, layer, projection)
            owners += [projection, projection]
        elif id(projection) in querying or gives_keys:
            rows = yield from _rows(
                work, projection, has_queries=id(projection) in querying, has_keys=gives_keys
            )
            entries += rows
            owners += [projection] * len(rows)
    for stream in tower.keys:
        if work.cached(stream):
            entries.insert(0, (yield from _load(work, tower, layer, stream)))
    name = f"{layer.name}.{'+'.join(projection.name.split('.')[-1] for projection in group)}"
    call = _call(work, tower, name, entries)
    outs = iter((yield from work.attend(call)))
    pieces: dict[tuple[str, ...], list[Tensor]] = {}
    for projection, entry in zip(owners, call.entries[-len(owners) :], strict=True):
        if entry.has_queries:
            pieces.setdefault(projection.tower.streams, []).append(next(outs))
    results = {}
    for streams, tower_rows in pieces.items():
        results[streams] = yield from concat_rows(
            tower_rows, f"{layer.name}.{'+'.join(streams)}.met"
        )
    return results


def _call(work: RankWork, tower: Tower, name: str, entries: Sequence[Entry]) -> AttentionCall:
    query, key_value = heads_here(work, tower.heads)
    return AttentionCall(
        name=name,
        entries=tuple(entries),
        heads=query,
        key_value_heads=key_value,
        size=tower.heads.size,
        causal=tower.causal,
        window=tower.window,
        linear=tower.mixer == "relu_linear",
    )


def _attend_chunks(
    work: RankWork, layer: Block, group: Sequence[Projected], projected: Sequence[Projected]
) -> Emits[dict[tuple[str, ...], Tensor]]:
    """Emit an attention for every chunk of a step: each of its sequences sees its own cache."""
    (projection,) = group
    del projected
    streams = projection.tower.streams
    names = [f"{projection.name}.{chunk.name}" for chunk in work.chunks]
    rows = yield from split_rows(projection.qkv, [span.rows for span in projection.spans], names)
    chunk_results = []
    for chunk, piece, name in zip(work.chunks, rows, names, strict=True):
        chunk_rows = yield from regroup(piece, chunk.sequences, chunk.tokens, f"{name}.apart")
        span = replace(chunk.span(streams[0]), copies=1)
        chunk_projection = replace(projection, name=name, spans=(span,), qkv=chunk_rows)
        entries = yield from _append(work, layer, chunk_projection, chunk.name)
        call = _call(work, projection.tower, f"{layer.name}.{name}", entries)
        outs = yield from work.attend(call)
        chunk_result = yield from regroup(outs[0], 1, piece.shape[1], f"{name}.met")
        chunk_results.append(chunk_result)
    joined = yield from concat_rows(chunk_results, f"{projection.name}.met", view=True)
    return {streams: joined}


def _attend_latent(
    work: RankWork, layer: Block, group: Sequence[Projected], projected: Sequence[Projected]
) -> Emits[dict[tuple[str, ...], Tensor]]:
    """Emit latent attention of a tower, over its own rows and those kept."""
    (projection,) = group
    del projected
    assert projection.row is not None
    latents = Latents(
        tower=projection.tower, layer=layer.name, name=projection.name, spans=projection.spans,
        query=projection.qkv, row=projection.row,
    )  # fmt: skip
    out = yield from latent_attention(work, latents)
    return {projection.tower.streams: out}


def _rows(
    work: RankWork, projection: Projected, *, has_queries: bool, has_keys: bool
) -> Emits[list[Entry]]:
    """Emit the rows of a tower, cut ones apart from whole ones; only features that take part."""
    x = projection.qkv
    if not (has_queries and has_keys):
        views = yield from _views(work, projection)
        x = views[0] if has_queries else views[1]
    runs: list[list[Span]] = []
    for span in projection.spans:
        if runs and bool(runs[-1][0].axes) == bool(span.axes):
            runs[-1].append(span)
        else:
            runs.append([span])
    run_names = [f"{x.name}.rows{number}" for number in range(len(runs))]
    rows = yield from split_rows(x, [total_rows(run) for run in runs], run_names)
    return [
        Entry(spans=tuple(run), tensor=piece, has_queries=has_queries, has_keys=has_keys)
        for run, piece in zip(runs, rows, strict=True)
    ]


def _views(work: RankWork, projection: Projected) -> Emits[list[Tensor]]:
    """Emit queries apart from keys and values."""
    query, key_value = heads_here(work, projection.tower.heads)
    widths = [count * projection.tower.heads.size for count in (query, 2 * key_value)]
    names = (f"{projection.name}.asks", f"{projection.name}.answers")
    return (yield from split_features(projection.qkv, widths, names))


def _append(
    work: RankWork, layer: Block, projection: Projected, part: str = ""
) -> Emits[list[Entry]]:
    """Put new keys and values behind those kept; only the new rows are written.

    part : of the cache, for some of the sequences.
    """
    query, keys_values = yield from _views(work, projection)
    cache, cached_spans = yield from work.appended(
        projection.tower, layer.name, projection.spans[0], keys_values, part
    )
    return [
        Entry(spans=projection.spans, tensor=query, has_keys=False),
        Entry(spans=cached_spans, tensor=cache, has_queries=False),
    ]


def _load(work: RankWork, tower: Tower, layer: Block, stream: str) -> Emits[Entry]:
    """Emit the keys and values of a stream that were computed ahead of the steps."""
    cache = work.kept(tower, layer.name, work.spans[stream].rows, stream)
    out = Tensor(f"loaded.{cache.name}", cache.shape, cache.itemsize)
    yield Rearrange(move="load", inputs=(cache,), outputs=(out,), view=True)
    return Entry(spans=(work.spans[stream],), tensor=out, has_queries=False)


def _finish_tower(work: RankWork, projection: Projected, x: Tensor, out: Tensor) -> Emits[Tensor]:
    """Emit the projection back, cross attention and feed-forward; the state has its name again."""
    tower, name, share = projection.tower, projection.name, work.share
    if tower.ends:
        return x
    size = tower.heads.size if tower.latent is None else tower.latent.value_size
    if projection.gate is not None:
        out = yield from pointwise("gated", (out, projection.gate), f"{name}.gated")
    rows = [Part(tower.heads.query, size)]
    if projection.inner is not None and tower.ffn is not None:
        active = yield from ffn_activation(tower.ffn, projection.inner, f"{name}.active")
        out = yield from concat_features((out, active), f"{name}.joined")
        rows.append(Part(tower.ffn.width))
    out_weight = work.weight(f"{name}.out", rows, (Part(tower.hidden),), "rows", part="output")
    partial_sum = yield from matmul(out, out_weight, f"{name}.projected")
    y = yield from reduce(partial_sum, share, f"{name}.reduced")
    x = yield from _residual(x, y, projection.modulation, x.name, 0)
    x = yield from _cross_attentions(work, projection, x)
    if tower.ffn is not None and projection.inner is None:
        x = yield from _ffn_update(work, tower, name, projection.modulation, x)
    return x


def _ffn_update(
    work: RankWork, tower: Tower, name: str, modulation: Tensor | None, x: Tensor
) -> Emits[Tensor]:
    """Emit the feed-forward of a layer."""
    h = yield from _norm(x, modulation, f"{name}.ffn_in", 1)
    partial_sum = yield from feed_forward(work, tower, h, f"{name}.ffn")
    y = yield from reduce(partial_sum, work.share, f"{name}.ffn_reduced")
    return (yield from _residual(x, y, modulation, x.name, 1))


def _cross_attentions(work: RankWork, projection: Projected, x: Tensor) -> Emits[Tensor]:
    """Emit cross attentions; one that is `added` shares the queries of the one before."""
    crosses = list(projection.tower.cross)
    while crosses:
        shared = [crosses.pop(0)]
        while crosses and crosses[0].added:
            shared.append(crosses.pop(0))
        x = yield from _cross(work, projection, x, shared)
    return x


def _cross(
    work: RankWork, projection: Projected, x: Tensor, crosses: Sequence[Cross]
) -> Emits[Tensor]:
    first_cross, name = crosses[0], f"{projection.name}.to_{crosses[0].context}"
    heads, hidden = first_cross.heads, projection.tower.hidden
    h = yield from pointwise("norm", (x,), f"{name}.h")
    query_weight = work.weight(f"{name}.q", (Part(hidden),), (Part(heads.query, heads.size),))
    query = yield from matmul(h, query_weight, f"{name}.q")
    count, size = heads_here(work, heads)[0], heads.size
    query = yield from normed_across(work, query, (count, 0), size, f"{name}.q_normed")
    sums: Tensor | None = None
    for cross in crosses:
        out = yield from _context_attention(work, projection, query, cross)
        if sums is not None:
            out = yield from pointwise("residual", (sums, out), f"{name}.sum")
        sums = out
    assert sums is not None
    out_weight = work.weight(
        f"{name}.out", (Part(heads.query, heads.size),), (Part(hidden),), "rows"
    )
    partial_sum = yield from matmul(sums, out_weight, f"{name}.projected")
    y = yield from reduce(partial_sum, work.share, f"{name}.reduced")
    return (yield from pointwise("residual", (x, y), x.name))


def _context_attention(
    work: RankWork, projection: Projected, query: Tensor, cross: Cross
) -> Emits[Tensor]:
    """Emit attention of this rank's rows to all rows of the context."""
    name, span = f"{projection.name}.to_{cross.context}", work.spans[cross.context]
    name = f"{name}.added" if cross.added else name
    shape = (work.share.batch, span.rows, cross.width)
    if any(stream.static for stream in work.model.streams if stream.name == span.stream):
        context = Tensor(context_name(work.model, span.stream, cross.width), shape)
    else:
        context = Tensor(f"x.{cross.context}", shape)
    key_value = Part(cross.heads.key_value, cross.heads.size)
    key_value_weight = work.weight(f"{name}.kv", (Part(cross.width),), (key_value, key_value))
    keys_values = yield from matmul(context, key_value_weight, f"{name}.kv")
    query_heads, key_value_heads = heads_here(work, cross.heads)
    normed_heads, size = (0, key_value_heads), cross.heads.size
    keys_values = yield from normed_across(
        work, keys_values, normed_heads, size, f"{name}.k_normed"
    )
    call = AttentionCall(
        name=name,
        entries=(
            Entry(spans=projection.spans, tensor=query, has_keys=False),
            Entry(spans=(span,), tensor=keys_values, has_queries=False),
        ),
        heads=query_heads,
        key_value_heads=key_value_heads,
        size=cross.heads.size,
    )
    outs = yield from work.attend(call)
    return outs[0]
