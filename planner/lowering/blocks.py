"""From blocks to operations: projections, the attentions of a block, feed-forwards.

A block's state is one tensor for every row of streams that a tower takes together; its name is
``x.`` and the streams, and it has the same name before and after, so that layers can be looped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.program.emit import (
    Emits,
    concat_features,
    concat_rows,
    matmul,
    pointwise,
    split_features,
    split_rows,
    total_rows,
)
from costmodels.program.ops import Part, Pointwise, Rearrange, Size, Span, Tensor, Weight
from planner.lowering.convolved import convolved_feed_forward
from planner.lowering.ffn import feed_forward, ffn_activation, ffn_columns
from planner.lowering.scene import Scene, context_name
from planner.models.architecture import Block, Cross, Heads, Tower
from planner.strategies.base import Entry, Meeting
from planner.strategies.tensor import reduce

State = Mapping[tuple[str, ...], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A tower on the way into attention: its queries, keys, values, and what waits for later."""

    tower: Tower
    name: str
    spans: tuple[Span, ...]
    qkv: Tensor
    inner: Tensor | None  # parallel feed-forward, before its activation
    modulation: Tensor | None


def state_name(streams: Sequence[str]) -> str:
    """Name of the state of streams that are taken together.

    >>> state_name(("text", "image"))
    'x.text+image'
    """
    return f"x.{'+'.join(streams)}"


def repack(scene: Scene, state: State, towers: Sequence[Tower]) -> Emits[State]:
    """Lay rows end to end, or cut them, as the towers of the next block take them."""
    wanted = [tower.streams for tower in towers]
    if all(streams in state for streams in wanted):
        return state
    single: dict[tuple[str, ...], Tensor] = {}
    for streams, x in state.items():
        names = [state_name((stream,)) for stream in streams]
        rows = [scene.spans[stream].rows for stream in streams]
        pieces = yield from split_rows(x, rows, names)
        single |= {(s,): p for s, p in zip(streams, pieces, strict=True)}
    packed = {}
    for streams in wanted:
        parts = [single.pop((stream,)) for stream in streams]
        packed[streams] = yield from concat_rows(parts, state_name(streams))
    return single | packed


def block(scene: Scene, layer: Block, state: State) -> Emits[State]:
    """Emit one layer of a block; towers whose streams are cached are left out."""
    towers = [t for t in layer.towers if not all(scene.cached(s) for s in t.streams)]
    opened = []
    for tower in towers:
        begun = yield from _open(scene, layer, tower, state[tower.streams])
        opened.append(begun)
    if scene.memory == "store":
        for begun in opened:
            yield from _store(scene, layer, begun)
    results: dict[tuple[str, ...], Tensor] = {}
    for group in _groups(opened):
        outs = yield from _meet(scene, layer, group, opened)
        results |= outs
    after = dict(state)
    for begun in opened:
        x, out = state[begun.tower.streams], results[begun.tower.streams]
        after[begun.tower.streams] = yield from _close(scene, begun, x, out)
    return after


def _groups(opened: Sequence[Opened]) -> list[list[Opened]]:
    """Towers that look at the same keys are attended in one kernel."""
    groups: dict[tuple[tuple[str, ...], bool], list[Opened]] = {}
    for begun in opened:
        groups.setdefault((begun.tower.keys, begun.tower.causal), []).append(begun)
    return list(groups.values())


def heads_here(scene: Scene, heads: Heads) -> tuple[int, int]:
    """Query and key-value heads on one of the ranks that share a layer."""
    tensor = scene.share.tensor
    return heads.query // tensor, max(1, heads.key_value // tensor)


def weight(
    scene: Scene, name: str, rows: Sequence[Part], columns: Sequence[Part], split: str
) -> Weight:
    """Name a layer's matrix and its cut over the ranks that share the layer."""
    return Weight(
        name=name,
        rows=tuple(rows),
        columns=tuple(columns),
        split=split,  # type: ignore[arg-type]  # three literals, passed on
        degree=scene.share.tensor,
        itemsize=scene.weight_itemsize,
    )


def _qkv_parts(heads: Heads) -> tuple[Part, Part, Part]:
    key_value = Part(heads.key_value, heads.size)
    return Part(heads.query, heads.size), key_value, key_value


def _open(scene: Scene, layer: Block, tower: Tower, x: Tensor) -> Emits[Opened]:
    """Norm, projections, and what attention does to queries and keys before it, if anything."""
    name = f"{layer.name}.{'+'.join(tower.streams)}"
    spans = tuple(scene.spans[stream] for stream in tower.streams)
    modulation = yield from _modulation(scene, tower, name)
    h = yield from _norm(x, modulation, f"{name}.h", 0)
    parts = _qkv_parts(tower.heads)
    width = sum(part.local(scene.share.tensor) for part in parts)
    fused = ffn_columns(tower.ffn) if tower.parallel and tower.ffn else ()
    columns = (*parts, *fused)
    up = weight(scene, f"{name}.qkv", (Part(tower.hidden),), columns, "columns")
    both = yield from matmul(h, up, f"{name}.qkv")
    inner = None
    if fused:
        widths = (width, up.local_columns - width)
        both, inner = yield from split_features(both, widths, (f"{name}.attn", f"{name}.inner"))
    qkv = both
    if tower.mixer == "attention" and (tower.rotates or tower.qk_norm):
        qkv = yield from _rotary(scene, tower, both, spans, f"{name}.rotated")
    return Opened(tower=tower, name=name, spans=spans, qkv=qkv, inner=inner, modulation=modulation)


def _modulation(scene: Scene, tower: Tower, name: str) -> Emits[Tensor | None]:
    spec = tower.modulation
    if spec is None:
        return None
    given = Tensor(f"conditioning{spec.inputs}", (scene.share.batch, 1, spec.inputs))
    vectors = []
    for copy in range(spec.copies):
        row, width = given, spec.inputs
        if spec.rank:
            low = weight(scene, f"{name}.low{copy}", (Part(width),), (Part(spec.rank),), "none")
            row = yield from matmul(row, low, f"{name}.low{copy}")
            width = spec.rank
        full = weight(scene, f"{name}.mod{copy}", (Part(width),), (Part(spec.outputs),), "none")
        vectors.append((yield from matmul(row, full, f"{name}.mod{copy}")))
    if len(vectors) == 1:
        return vectors[0]
    result = yield from concat_features(vectors, f"{name}.mod", view=True)
    return result


def _norm(x: Tensor, modulation: Tensor | None, name: str, place: int) -> Emits[Tensor]:
    if modulation is None:
        result = yield from pointwise("norm", (x,), name)
    else:
        result = yield from pointwise("modulated_norm", (x, modulation), name, place=place)
    return result


def _residual(
    x: Tensor, y: Tensor, modulation: Tensor | None, name: str, place: int
) -> Emits[Tensor]:
    if modulation is None:
        result = yield from pointwise("residual", (x, y), name)
    else:
        result = yield from pointwise("gated_residual", (x, y, modulation), name, place=place)
    return result


def _rotary(
    scene: Scene, tower: Tower, x: Tensor, spans: tuple[Span, ...], name: str
) -> Emits[Tensor]:
    out = Tensor(name, x.shape, x.itemsize)
    yield Pointwise(
        function="rotary",
        inputs=(x,),
        outputs=(out,),
        spans=spans,
        heads=heads_here(scene, tower.heads),
        size=tower.heads.size,
    )
    return out


def _meet(
    scene: Scene, layer: Block, group: Sequence[Opened], opened: Sequence[Opened]
) -> Emits[dict[tuple[str, ...], Tensor]]:
    """Emit the attention of one group; results by the streams of each of its towers."""
    tower = group[0].tower
    entries, owners = [], []
    asking = {id(begun) for begun in group}
    for begun in opened:
        answers = all(stream in tower.keys for stream in begun.tower.streams)
        if scene.memory == "append":
            entries += yield from _append(scene, layer, begun)
            owners += [begun, begun]
        elif id(begun) in asking or answers:
            made = yield from _entries(scene, begun, asks=id(begun) in asking, answers=answers)
            entries += made
            owners += [begun] * len(made)
    for stream in tower.keys:
        if scene.cached(stream):
            entries.insert(0, (yield from _load(scene, tower, layer, stream)))
    query, key_value = heads_here(scene, tower.heads)
    meeting = Meeting(
        name=f"{layer.name}.{'+'.join(begun.name.split('.')[-1] for begun in group)}",
        entries=tuple(entries),
        heads=query,
        key_value_heads=key_value,
        size=tower.heads.size,
        causal=tower.causal,
        window=tower.window,
        linear=tower.mixer == "relu_linear",
    )
    outs = iter((yield from scene.attend(meeting)))
    pieces: dict[tuple[str, ...], list[Tensor]] = {}
    for begun, entry in zip(owners, meeting.entries[-len(owners) :], strict=True):
        if entry.asks:
            pieces.setdefault(begun.tower.streams, []).append(next(outs))
    results = {}
    for streams, parts in pieces.items():
        results[streams] = yield from concat_rows(parts, f"{layer.name}.{'+'.join(streams)}.met")
    return results


def _entries(scene: Scene, begun: Opened, *, asks: bool, answers: bool) -> Emits[list[Entry]]:
    """Rows of a tower, cut rows apart from whole ones; only the features that take part."""
    x = begun.qkv
    if not (asks and answers):
        views = yield from _views(scene, begun)
        x = views[0] if asks else views[1]
    runs: list[list[Span]] = []
    for span in begun.spans:
        if runs and bool(runs[-1][0].axes) == bool(span.axes):
            runs[-1].append(span)
        else:
            runs.append([span])
    names_of_runs = [f"{x.name}.rows{number}" for number in range(len(runs))]
    rows = yield from split_rows(x, [total_rows(run) for run in runs], names_of_runs)
    return [
        Entry(spans=tuple(run), tensor=piece, asks=asks, answers=answers)
        for run, piece in zip(runs, rows, strict=True)
    ]


def _views(scene: Scene, begun: Opened) -> Emits[list[Tensor]]:
    """Cut queries from keys and values."""
    query, key_value = heads_here(scene, begun.tower.heads)
    widths = [count * begun.tower.heads.size for count in (query, 2 * key_value)]
    names = (f"{begun.name}.asks", f"{begun.name}.answers")
    views = yield from split_features(begun.qkv, widths, names)
    return views


def _store(scene: Scene, layer: Block, begun: Opened) -> Emits[None]:
    _, both = yield from _views(scene, begun)
    kept = cache(scene, begun.tower.heads, layer, begun.tower.streams[0])
    yield Rearrange(move="store", inputs=(both,), outputs=(kept,))


def _append(scene: Scene, layer: Block, begun: Opened) -> Emits[list[Entry]]:
    """Put new keys and values behind those kept; only the new rows are written."""
    query, both = yield from _views(scene, begun)
    (span,) = begun.spans
    kept = cache(scene, begun.tower.heads, layer, span.stream, span.start)
    rows = kept.shape[1] + span.rows
    out = Tensor(f"grown.{kept.name}", (kept.shape[0], rows, kept.shape[2]), kept.itemsize)
    yield Rearrange(move="append", inputs=(kept, both), outputs=(out,), view=True)
    return [
        Entry(spans=(span,), tensor=query, answers=False),
        Entry(spans=(Span(span.stream, rows),), tensor=out, asks=False),
    ]


def _load(scene: Scene, tower: Tower, layer: Block, stream: str) -> Emits[Entry]:
    """Keys and values of a stream that were computed ahead of the steps."""
    kept = cache(scene, tower.heads, layer, stream)
    out = Tensor(f"loaded.{kept.name}", kept.shape, kept.itemsize)
    yield Rearrange(move="load", inputs=(kept,), outputs=(out,), view=True)
    return Entry(spans=(scene.spans[stream],), tensor=out, asks=False)


def cache(
    scene: Scene, heads: Heads, layer: Block, stream: str, rows: Size | None = None
) -> Tensor:
    """Name the kept keys and values of one layer and stream, ``[batch, rows, k | v]``."""
    _, key_value = heads_here(scene, heads)
    rows = scene.spans[stream].rows if rows is None else rows
    return Tensor(
        f"cache.{layer.name}.{stream}", (scene.share.batch, rows, 2 * key_value * heads.size)
    )


def _close(scene: Scene, begun: Opened, x: Tensor, out: Tensor) -> Emits[Tensor]:
    """Projection back, cross attention, feed-forward; the state's name again at the end."""
    tower, name, share = begun.tower, begun.name, scene.share
    if tower.ends:
        return x
    rows = [Part(tower.heads.query, tower.heads.size)]
    if begun.inner is not None and tower.ffn is not None:
        active = yield from ffn_activation(tower.ffn, begun.inner, f"{name}.active")
        out = yield from concat_features((out, active), f"{name}.joined")
        rows.append(Part(tower.ffn.width))
    back = weight(scene, f"{name}.out", rows, (Part(tower.hidden),), "rows")
    partial = yield from matmul(out, back, f"{name}.projected")
    y = yield from reduce(partial, share, f"{name}.reduced")
    x = yield from _residual(x, y, begun.modulation, x.name, 0)
    x = yield from _cross_attentions(scene, begun, x)
    if tower.ffn is not None and begun.inner is None:
        h = yield from _norm(x, begun.modulation, f"{name}.ffn_in", 1)
        emit = convolved_feed_forward if tower.ffn.convolved else feed_forward
        partial = yield from emit(scene, tower, h, f"{name}.ffn")
        y = yield from reduce(partial, share, f"{name}.ffn_reduced")
        x = yield from _residual(x, y, begun.modulation, x.name, 1)
    return x


def _cross_attentions(scene: Scene, begun: Opened, x: Tensor) -> Emits[Tensor]:
    """Emit cross attentions; one that is `added` shares the queries of the one before."""
    crosses = list(begun.tower.cross)
    while crosses:
        shared = [crosses.pop(0)]
        while crosses and crosses[0].added:
            shared.append(crosses.pop(0))
        x = yield from _cross(scene, begun, x, shared)
    return x


def _cross(scene: Scene, begun: Opened, x: Tensor, crosses: Sequence[Cross]) -> Emits[Tensor]:
    first, name = crosses[0], f"{begun.name}.to_{crosses[0].context}"
    heads, hidden = first.heads, begun.tower.hidden
    h = yield from pointwise("norm", (x,), f"{name}.h")
    ask = weight(scene, f"{name}.q", (Part(hidden),), (Part(heads.query, heads.size),), "columns")
    query = yield from matmul(h, ask, f"{name}.q")
    sums: Tensor | None = None
    for cross in crosses:
        out = yield from _cross_meeting(scene, begun, query, cross)
        if sums is not None:
            out = yield from pointwise("residual", (sums, out), f"{name}.sum")
        sums = out
    assert sums is not None
    back = weight(scene, f"{name}.out", (Part(heads.query, heads.size),), (Part(hidden),), "rows")
    partial = yield from matmul(sums, back, f"{name}.projected")
    y = yield from reduce(partial, scene.share, f"{name}.reduced")
    result = yield from pointwise("residual", (x, y), x.name)
    return result


def _cross_meeting(scene: Scene, begun: Opened, query: Tensor, cross: Cross) -> Emits[Tensor]:
    """Emit attention of this rank's rows to all rows of the context."""
    name, span = f"{begun.name}.to_{cross.context}", scene.spans[cross.context]
    name = f"{name}.added" if cross.added else name
    shape = (scene.share.batch, span.rows, cross.width)
    if span.stream in _static(scene):
        given = Tensor(context_name(scene.model, span.stream, cross.width), shape)
    else:
        given = Tensor(f"x.{cross.context}", shape)
    key_value = Part(cross.heads.key_value, cross.heads.size)
    answer = weight(scene, f"{name}.kv", (Part(cross.width),), (key_value, key_value), "columns")
    both = yield from matmul(given, answer, f"{name}.kv")
    query_heads, key_value_heads = heads_here(scene, cross.heads)
    meeting = Meeting(
        name=name,
        entries=(
            Entry(spans=begun.spans, tensor=query, answers=False),
            Entry(spans=(span,), tensor=both, asks=False),
        ),
        heads=query_heads,
        key_value_heads=key_value_heads,
        size=cross.heads.size,
    )
    outs = yield from scene.attend(meeting)
    return outs[0]


def _static(scene: Scene) -> set[str]:
    return {stream.name for stream in scene.model.streams if stream.static}
