"""A graph as its matrix products and attentions: what each is made from, with nothing between.

Norms, rotations, activations, reshapes and additions are walked through; what was passed on the way
is remembered by the names of operators. So an attention knows the products that made its queries,
and a product the activation that stands before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from topology.base import InputError
from topology.base.values import dataclass

Foreign = Any
"""An object of the package onnx."""
OLDEST_OPERATOR_SET: Final = 13
"""Operator set from which on axes are inputs, as exporters of PyTorch 2 write them."""
ATTENTIONS: Final = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
COPIES: Final = frozenset({"Identity", "Cast", "Transpose", "DequantizeLinear"})
"""Operators behind which a weight is still that weight."""
MOVES: Final = frozenset({"Identity", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze"})
SHAPES: Final = frozenset({"Shape", "Size"})
"""Operators whose result is of no number that they are given."""
DOMAINS: Final = frozenset({"", "ai.onnx", "com.microsoft"})
SMALLEST_WEIGHT: Final = 4
"""Rows and columns of a weight: what is smaller is no product of features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A product with a weight of `inputs` rows and `outputs` columns.

    place : in the order of the graph. source : the tensor that goes in, behind moves.
    made, passed : from what that was made, and by which operators. dimensions : of it.
    weight : its name.
    """

    place: int
    inputs: int
    outputs: int
    source: str
    made: frozenset[int | str]
    passed: frozenset[str]
    dimensions: int
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """An attention without its projections; sides : queries, keys and values.

    size : features of a head. heads, key_value : of its operator, 0 where the graph does not say.
    query : the tensor that is multiplied by keys; empty where one operator is all of it.
    """

    place: int
    size: int
    heads: int
    key_value: int
    sides: tuple["Made", "Made", "Made"]
    query: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """What a tensor was made from, by place or name of an input, and the operators passed since."""

    by: frozenset[int | str] = frozenset()
    passed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A convolution that makes tokens: channels, and its kernel by dimension."""

    inputs: int
    kernel: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What a file holds.

    inputs, outputs : shapes by name; 0 where a size is free. embeddings : weights that integers
    choose rows of. counts : nodes by operator.
    """

    linears: Mapping[int, Linear]
    cores: Mapping[int, Core]
    patches: tuple[Patch, ...]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    embeddings: Mapping[str, tuple[int, int]]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """A graph while it is walked through."""

    sizes: dict[str, tuple[int, ...]]
    weights: dict[str, tuple[int, ...]]
    names: dict[str, str]
    made: dict[str, Made] = field(default_factory=dict)
    base: dict[str, str] = field(default_factory=dict)
    linears: dict[int, Linear] = field(default_factory=dict)
    cores: dict[int, Core] = field(default_factory=dict)
    patches: list[Patch] = field(default_factory=list)
    embeddings: dict[str, tuple[int, int]] = field(default_factory=dict)
    scores: dict[str, tuple[str, Made, int]] = field(default_factory=dict)
    """Of tensors behind a product of two computed ones: queries, keys, features of a head."""
    soft: set[str] = field(default_factory=set)


def graph_of(model: Foreign, where: str) -> Graph:
    """Walk through a model that was read and whose shapes were inferred.

    Raises `InputError` if its operators are too old, or none that is known.
    """
    _check_operators(model, where)
    graph = model.graph
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    sizes = {v.name: _shape(v) for v in (*graph.input, *graph.output, *graph.value_info)}
    names = {name: name for name in weights}
    walk = _Walk(sizes={**sizes, **weights}, weights=dict(weights), names=names)
    for value in graph.input:
        if value.name not in weights:
            walk.made[value.name] = Made(frozenset({value.name}))
    counts: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
        _add_node(walk, place, node)
    return Graph(
        linears=walk.linears,
        cores=walk.cores,
        patches=tuple(walk.patches),
        inputs={value.name: _shape(value) for value in graph.input if value.name not in weights},
        outputs={value.name: _shape(value) for value in graph.output},
        embeddings=walk.embeddings,
        counts=counts,
    )


def _check_operators(model: Foreign, where: str) -> None:
    versions = {operators.domain: operators.version for operators in model.opset_import}
    newest = max((versions[name] for name in ("", "ai.onnx") if name in versions), default=0)
    if newest < OLDEST_OPERATOR_SET:
        raise InputError(f"{where}: operator set {newest}, wanted {OLDEST_OPERATOR_SET} or newer")
    foreign_domains = sorted({node.domain for node in model.graph.node} - DOMAINS)
    if foreign_domains:
        operator = next(
            node.op_type for node in model.graph.node if node.domain == foreign_domains[0]
        )
        raise InputError(
            f"{where}: operator {operator} of {foreign_domains[0]}, wanted those of ai.onnx"
        )


def _add_node(walk: _Walk, place: int, node: Foreign) -> None:
    """Take in one node."""
    kind, (out, *further_outputs) = node.op_type, list(node.output)
    inputs = [name for name in node.input if name]
    if kind == "Constant" or all(name in walk.weights for name in inputs):
        _constant(walk, node, inputs)
        return
    if kind in ("MatMul", "Gemm"):
        _add_product(walk, place, node, inputs)
    elif kind in ATTENTIONS:
        _add_attention(walk, place, node, inputs)
    elif kind == "Gather" and len(walk.weights.get(inputs[0], ())) == 2:
        rows, columns = walk.weights[inputs[0]]
        walk.embeddings[walk.names[inputs[0]]] = (rows, columns)
        walk.made[out] = Made(frozenset({place}))
    elif kind == "Conv" and len(walk.weights.get(inputs[1], ())) > 2:
        _, channels, *kernel = walk.weights[inputs[1]]
        walk.patches.append(Patch(inputs=channels, kernel=tuple(kernel)))
        walk.made[out] = Made(frozenset({place}))
    else:
        _walk_through(walk, kind, inputs, out)
    for output in further_outputs:
        walk.made[output] = walk.made[out]


def _constant(walk: _Walk, node: Foreign, inputs: Sequence[str]) -> None:
    """Keep what depends on no input: a copy of a weight stays that weight."""
    for out in node.output:
        dims = walk.sizes.get(out, ())
        if node.op_type == "Constant":
            tensors = (attribute.t for attribute in node.attribute if attribute.name == "value")
            dims = next((tuple(tensor.dims) for tensor in tensors), ())
        if node.op_type in COPIES and inputs:
            dims = dims or _transposed_dims(node, walk.weights[inputs[0]])
            walk.names[out] = walk.names[inputs[0]]
        walk.names.setdefault(out, out)
        walk.weights[out] = dims


def _walk_through(walk: _Walk, kind: str, inputs: Sequence[str], out: str) -> None:
    """Walk through an operator that is neither a product of features nor an attention."""
    if kind in SHAPES:
        walk.made[out] = Made()
        return
    sources = [walk.made[name] for name in inputs if name in walk.made]
    origins = frozenset[int | str]().union(*(source.by for source in sources))
    walk.made[out] = Made(origins, frozenset({kind}).union(*(source.passed for source in sources)))
    if kind in MOVES:
        walk.base[out] = walk.base.get(inputs[0], inputs[0])
    score_inputs = [name for name in inputs if name in walk.scores]
    if score_inputs:
        walk.scores[out] = walk.scores[score_inputs[0]]
        if kind == "Softmax" or score_inputs[0] in walk.soft:
            walk.soft.add(out)


def _add_product(walk: _Walk, place: int, node: Foreign, inputs: Sequence[str]) -> None:
    """Take in a product: with a weight, of queries and keys, or of scores and values."""
    left, right, out = inputs[0], inputs[1], node.output[0]
    weights = [name for name in (right, left) if len(walk.weights.get(name, ())) == 2]
    if weights and min(walk.weights[weights[0]]) >= SMALLEST_WEIGHT:
        operand = left if weights[0] == right else right
        _add_linear(walk, place, node, operand, weights[0])
        return
    if left in walk.soft:
        query, keys, size = walk.scores[left]
        sides = (walk.made[query], keys, walk.made.get(right, Made()))
        walk.cores[place] = Core(
            place=place, size=size, heads=0, key_value=0, sides=sides, query=query
        )
        walk.made[out] = Made(frozenset({place}))
        return
    _walk_through(walk, node.op_type, inputs, out)
    if left in walk.made and right in walk.made:
        sizes = walk.sizes.get(left, ())
        walk.scores[out] = (left, walk.made[right], sizes[-1] if sizes else 0)


def _add_linear(walk: _Walk, place: int, node: Foreign, given: str, weight: str) -> None:
    rows, columns = walk.weights[weight]
    transposed = any(given.name == "transB" and given.i for given in node.attribute)
    inputs, outputs = (columns, rows) if transposed else (rows, columns)
    made = walk.made.get(given, Made())
    walk.linears[place] = Linear(
        place=place,
        inputs=inputs,
        outputs=outputs,
        source=walk.base.get(given, given),
        made=made.by,
        passed=made.passed,
        dimensions=len(walk.sizes.get(given, ())),
        weight=walk.names[weight],
    )
    walk.made[node.output[0]] = Made(frozenset({place}))


def _add_attention(walk: _Walk, place: int, node: Foreign, inputs: Sequence[str]) -> None:
    """Take in an attention that is one operator."""
    numbers = {attribute.name: attribute.i for attribute in node.attribute}
    heads = numbers.get("q_num_heads", numbers.get("num_heads", 0))
    key_value_heads = numbers.get("kv_num_heads", heads)
    q, k, v = inputs[:3] if len(inputs) >= 3 else [inputs[0]] * 3
    sizes = walk.sizes.get(q, ())
    size = sizes[-1] if len(sizes) == 4 else (sizes[-1] // heads if sizes and heads else 0)
    queries, keys, values = (walk.made.get(name, Made()) for name in (q, k, v))
    walk.cores[place] = Core(
        place=place,
        size=size,
        heads=heads,
        key_value=key_value_heads,
        sides=(queries, keys, values),
    )
    for output in node.output:
        walk.made[output] = Made(frozenset({place}))


def _shape(value: Foreign) -> tuple[int, ...]:
    return tuple(int(size.dim_value) for size in value.type.tensor_type.shape.dim)


def _transposed_dims(node: Foreign, dims: tuple[int, ...]) -> tuple[int, ...]:
    if node.op_type != "Transpose":
        return dims
    places = list(range(len(dims)))
    given = (list(given.ints) for given in node.attribute if given.name == "perm")
    order = next(given, places[::-1])
    return tuple(dims[place] for place in order) if sorted(order) == places else dims


def made_by(linears: Mapping[int, Linear], made: Made) -> Iterator[Linear]:
    """Yield the products that a tensor was made from, in order."""
    for place in sorted(linears.keys() & made.by):
        yield linears[place]
