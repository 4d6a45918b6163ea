"""From products and attentions to layers: whose queries, which heads, and which FFN follows."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from planner.models.onnx.graph import Core, Graph, Linear, Made, made_by
from topology.base import InputError
from topology.base.values import dataclass

Kind = Literal["self", "joint", "cross", "parallel"]
NORMS: Final = frozenset({
    "ReduceMean", "ReduceSum", "ReduceL2", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization", "LpNormalization",
})  # fmt: skip
GELU: Final = frozenset({"Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Erf", "Tanh"})
SILU: Final = frozenset({"Sigmoid", "Swish", "Silu", "HardSwish"})
RELU: Final = frozenset({"Relu", "Elu", "LeakyRelu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two products with an activation between them, or three where one gates another."""

    inputs: int
    width: int
    gated: bool
    activation: str
    places: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """An attention with its projections, and what feeds forward behind it.

    kind : joint, of two streams with weights of their own; cross, to another stream; parallel, with
    a FFN that reads the same input. hidden : features of a token. context : features of what keys
    are made from. normed : queries are.
    """

    kind: Kind
    hidden: int
    heads: int
    key_value: int
    size: int
    context: int
    normed: bool
    feeds: tuple[FeedForward, ...]
    places: frozenset[int]


def layers_of(graph: Graph, where: str) -> list[AttentionLayer]:
    """Find the layers of a graph, in order.

    Raises `InputError` if it has no attention, or one whose heads nobody can tell.
    """
    cores = [graph.cores[place] for place in sorted(graph.cores)]
    if not cores:
        raise InputError(f"{where}: no attention is recognised in it")
    feeds = list(_feeds(graph))
    ends = [*(core.place for core in cores[1:]), max(graph.linears, default=0) + 1]
    return [
        _layer(graph, core, [feed for feed in feeds if core.place < min(feed.places) < end], where)
        for core, end in zip(cores, ends, strict=True)
    ]


def _layer(graph: Graph, core: Core, feeds: Sequence[FeedForward], where: str) -> AttentionLayer:
    queries, keys, values = (list(made_by(graph.linears, side)) for side in core.sides)
    if not queries or not core.size:
        raise InputError(f"{where}: an attention whose heads cannot be told (node {core.place})")
    out_products = [  # that read what it gives, beside a FFN at most, and no stream
        linear
        for linear in graph.linears.values()
        if core.place in linear.made and len(linear.made) <= 3
    ]
    parallel_feeds = list(_parallel_feeds(graph, core, out_products))
    heads, key_value_heads = _heads(core, queries, keys, out_products, parallel_feeds)
    return AttentionLayer(
        kind=_kind(queries, keys, parallel_feeds),
        hidden=queries[0].inputs,
        heads=heads,
        key_value=key_value_heads,
        size=core.size,
        context=keys[0].inputs if keys else 0,
        normed=bool(core.sides[0].passed & NORMS),
        feeds=tuple(parallel_feeds or feeds),
        places=frozenset(
            [linear.place for linear in (*queries, *keys, *values, *out_products)]
            + [place for feed in (*parallel_feeds, *feeds) for place in feed.places]
        ),
    )


def _kind(
    queries: Sequence[Linear], keys: Sequence[Linear], parallel_feeds: Sequence[FeedForward]
) -> Kind:
    if parallel_feeds:
        return "parallel"
    if len(queries) == 2:
        return "joint"
    return "self" if not keys or keys[0].source == queries[0].source else "cross"


def _heads(
    core: Core,
    queries: Sequence[Linear],
    keys: Sequence[Linear],
    outs: Sequence[Linear],
    parallel_feeds: Sequence[FeedForward],
) -> tuple[int, int]:
    """Count heads of queries, and of keys, also where one product makes both."""
    if core.heads:
        return core.heads, core.key_value
    fused = bool(keys) and queries[0].place == keys[0].place
    if not fused:
        return queries[0].outputs // core.size, (keys or queries)[0].outputs // core.size
    attention_width = (
        outs[0].inputs - sum(feed.width for feed in parallel_feeds)
        if outs
        else queries[0].outputs // 3
    )
    heads = attention_width // core.size
    return heads, max((queries[0].outputs // core.size - heads) // 2, 1)


def _parallel_feeds(graph: Graph, core: Core, outs: Sequence[Linear]) -> Iterator[FeedForward]:
    """Find the FFN whose result goes into the product behind an attention, beside its own."""
    for out in outs:
        ups = list(made_by(graph.linears, Made(out.made - {core.place})))
        kind = _activation(out.passed)
        if ups and kind:
            yield _feed(ups, out, kind)


def _feeds(graph: Graph) -> Iterator[FeedForward]:
    """Find products with an activation and one or two others before it, over tokens."""
    for down in graph.linears.values():
        ups = list(made_by(graph.linears, Made(down.made)))
        kind = _activation(down.passed)
        is_plain = len(ups) == len(down.made) and 0 < len(ups) <= 2 and down.dimensions != 2
        if is_plain and kind and all(up.inputs == down.outputs for up in ups):
            yield _feed(ups, down, kind)


def _feed(ups: Sequence[Linear], down: Linear, kind: str) -> FeedForward:
    gated = len(ups) == 2 or ups[0].outputs == 2 * down.inputs
    return FeedForward(
        inputs=ups[0].inputs,
        width=ups[0].outputs // (2 if gated and len(ups) == 1 else 1),
        gated=gated,
        activation=kind,
        places=frozenset(linear.place for linear in (*ups, down)),
    )


def _activation(passed: frozenset[str]) -> str:
    for name, kinds in (("gelu", GELU), ("silu", SILU), ("relu", RELU)):
        if passed & kinds:
            return name
    return ""


def unplaced(graph: Graph, layers: Sequence[AttentionLayer], named: frozenset[int]) -> list[str]:
    """Say which products are in no layer, and are none of those that have a name.

    named : places of products that a configuration has a field for.
    """
    placed = named.union(*(layer.places for layer in layers))
    unplaced_products = [
        linear for place, linear in sorted(graph.linears.items()) if place not in placed
    ]
    return [
        f"{linear.inputs} x {linear.outputs} ({linear.weight[:60]})" for linear in unplaced_products
    ]
