"""What a network's layers mean, in numpy: all ranks of a communicator, each a coroutine.

The second opinion on what is handed to TensorRT. It knows layers, not programs or plans.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.assemble import index_of
from planner.tensorrt.runner.formats import bits, encoded, floats, fp4_codes, fp4_values
from planner.tensorrt.runner.layers import scale_of
from planner.tensorrt.runner.weights import Learned, Reaches, Weights
from validate.reference.functions import gelu
from validate.reference.run import take_turns

Array = NDArray[np.float64]
Document = Mapping[str, object]
Layer = Mapping[str, object]
Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a rank stops for. members : ranks of the communicator that meet, in order."""

    operation: str
    members: tuple[int, ...]
    given: Array


Watch = Callable[[Layer, Sequence[Array]], None]
Rank = Generator[Message, Array, dict[str, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a rank has beside its inputs: numbers by name, and its share of weights.

    learned, reaches : as in what networks are assembled of. watch : sees what each layer is given.
    """

    arrays: Mapping[str, NDArray[np.generic]]
    weights: Weights
    rank: int = 0
    learned: Learned | None = None
    reaches: Reaches | None = None
    watch: Watch | None = None


def evaluate(document: Document, held: Held, inputs: Values) -> Rank:
    """Evaluate a network on one rank; stops at its messages, and returns its outputs by name."""
    values = dict(inputs)
    for table in cast("list[Mapping[str, str]]", document["tables"]):
        values[table["name"]] = _numbers(held.arrays[table["name"]][held.rank])
    layers = cast("list[Layer]", document["layers"])
    last = _last_readers(document, layers)
    for number, layer in enumerate(layers):
        names = cast("list[str]", layer["inputs"])
        given = [values[name] for name in names]
        if held.watch is not None:
            held.watch(layer, given)
        made = yield from _layer(document, layer, held, given)
        made = [*_with_learned(document, layer, held, made[0]), *made[1:]]
        for name in names:
            if last[name] == number:
                values.pop(name, None)
        for out, value in zip(_outputs(layer), made, strict=True):
            shape = tuple(cast("list[int]", out["shape"]))
            assert value.shape == shape, f"{out['name']}: made {value.shape}, said {shape}"
            values[str(out["name"])] = value
    outs = cast("list[Mapping[str, str]]", document["outputs"])
    return {out["name"]: values[out["value"]] for out in outs}


def _last_readers(document: Document, layers: Sequence[Layer]) -> dict[str, int]:
    """Find which layer reads a value last, so that it is let go of then; outputs are kept."""
    last = {name: n for n, one in enumerate(layers) for name in cast("list[str]", one["inputs"])}
    outs = cast("list[Mapping[str, str]]", document["outputs"])
    return last | {out["value"]: len(layers) for out in outs}


def _with_learned(document: Document, layer: Layer, held: Held, made: Array) -> list[Array]:
    """Multiply by and add what is learned behind a layer, if anything is."""
    for one in cast("list[Layer]", layer.get("learned", [])):
        rank = index_of(document, held.rank).get("tp", 0)
        numbers = held.learned and held.learned(one, rank)
        if numbers is not None:
            shaped = _numbers(numbers).reshape(cast("list[int]", one["shape"]))
            made = made * shaped if one["kind"] == "gain" else made + shaped
    return [made]


def together(ranks: Sequence[Rank]) -> list[dict[str, Array]]:
    """Run the ranks of one communicator until all have ended.

    Raises RuntimeError if ranks wait for each other, or meet in different collectives.
    """
    return take_turns(ranks, _complete, deliver)


def _complete(waiting: Mapping[int, Message]) -> tuple[int, ...]:
    """Find ranks that all wait for each other's message."""
    for message in waiting.values():
        if all(rank in waiting for rank in message.members):
            return message.members
    raise RuntimeError(f"ranks {sorted(waiting)} wait for each other")


def deliver(messages: Sequence[Message]) -> list[Array]:
    """Give each rank its result of a collective, by what NCCL does on dimension 0."""
    kinds = {(one.operation, one.members) for one in messages}
    if len(kinds) > 1:
        raise RuntimeError(f"ranks meet in different collectives: {sorted(kinds)}")
    given, count = [one.given for one in messages], len(messages)
    match messages[0].operation:
        case "all_reduce":
            return [np.asarray(sum(given))] * count
        case "all_gather":
            return [np.concatenate(given)] * count
        case "reduce_scatter":
            return list(np.split(np.asarray(sum(given)), count))
        case "all_to_all":
            cut = [np.split(one, count) for one in given]
            return [np.concatenate([parts[rank] for parts in cut]) for rank in range(count)]
        case "keys":
            return [np.concatenate(given, axis=3)] * count
        case other:
            raise RuntimeError(f"no such collective: {other}")


def _outputs(layer: Layer) -> list[Mapping[str, object]]:
    return cast("list[Mapping[str, object]]", layer["outputs"])


def _layer(
    document: Document, layer: Layer, held: Held, given: list[Array]
) -> Generator[Message, Array, list[Array]]:
    match layer["kind"]:
        case "constant":
            return [_numbers(held.arrays[str(layer["name"])])]
        case "weight":
            return [_weight(document, layer, held)]
        case "reach":
            return [_numbers(np.asarray(scale_of(layer, held.reaches), np.float32))]
        case "collective":
            members = _members(document, layer, held.rank)
            made = yield Message(operation=str(layer["operation"]), members=members, given=given[0])
            return [made]
        case "attention":
            made = yield from _attention(document, layer, given)
            return [made]
        case kind:
            return _KINDS[str(kind)](layer, given)


def _numbers(array: NDArray[np.generic]) -> Array:
    return np.asarray(array, np.float64)


def _weight(document: Document, layer: Layer, held: Held) -> Array:
    share = held.weights(layer, index_of(document, held.rank).get("tp", 0))
    if layer["encoding"] == "plain":
        return np.asarray(share, np.float64)
    parts = encoded(share, str(layer["encoding"]), "")
    stored = parts[str(layer["part"])]
    if layer["part"] == "scales" or (layer["part"] == "values" and layer["encoding"] == "fp8"):
        return np.asarray(floats(stored, "fp8"), np.float64)
    if layer["encoding"] == "nvfp4" and layer["part"] == "values":
        low, high = stored.astype(np.uint8) & 15, stored.astype(np.uint8) >> 4
        codes = np.stack([low, high], axis=-1).reshape(*stored.shape[:-1], -1)
        return np.asarray(fp4_values(codes), np.float64)
    return np.asarray(stored, np.float64)


def _members(document: Document, layer: Layer, rank: int) -> tuple[int, ...]:
    """Ranks that meet: those that the layer names, or those along its axis, or all."""
    if "groups" in layer:
        named = cast("list[int]", layer["groups"])
        return tuple(named) or tuple(range(cast(int, layer["ranks"])))
    every = cast("Mapping[str, list[list[int]]]", document["groups"])[str(layer["axis"])]
    return next(tuple(one) for one in every if rank in one)


def _attention(
    document: Document, layer: Layer, given: list[Array]
) -> Generator[Message, Array, Array]:
    query, key, value, *mask = given
    if layer["ranks"] != 1:
        members = tuple(range(cast(int, document["ranks"])))
        both = yield Message(operation="keys", members=members, given=np.stack([key, value]))
        key, value = both
    repeat = query.shape[1] // key.shape[1]
    key, value = (np.repeat(one, repeat, axis=1) for one in (key, value))
    scores = query @ key.swapaxes(2, 3)
    if mask:
        scores = np.where(mask[0] != 0, scores, -np.inf)
    if layer["causal"]:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ value)


def _matmul(layer: Layer, given: list[Array]) -> list[Array]:
    left, right = given
    return [left @ (right.swapaxes(-1, -2) if layer["transpose"] else right)]


def _convolution(layer: Layer, given: list[Array]) -> list[Array]:
    """Convolve each feature with its own kernel."""
    x, kernels = given
    down, across = cast("list[int]", layer["padding"])
    wide = np.pad(x, ((0, 0), (0, 0), (down, down), (across, across)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernels.shape[2:], axis=(2, 3))
    return [np.einsum("bfyxij,fij->bfyx", windows, kernels[:, 0])]


_TWO: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "AND": np.logical_and,
    "DIV": np.divide,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "LESS": np.less,
    "PROD": np.multiply,
    "SUB": np.subtract,
    "SUM": np.add,
}
_ONE: Final[dict[str, Callable[[Array], Array]]] = {
    "SQRT": np.sqrt,
    "NOT": np.logical_not,
    "SIGMOID": lambda x: 1 / (1 + np.exp(-x)),
    "RELU": lambda x: np.maximum(x, 0),
    "GELU_TANH": gelu,
}


def _elementwise(layer: Layer, given: list[Array]) -> list[Array]:
    return [_numbers(_TWO[str(layer["operation"])](*given))]


def _unary(layer: Layer, given: list[Array]) -> list[Array]:
    return [_numbers(_ONE[str(layer["operation"])](given[0]))]


def _reduce(layer: Layer, given: list[Array]) -> list[Array]:
    function = np.mean if layer["operation"] == "AVG" else np.sum
    return [_numbers(function(given[0], axis=cast(int, layer["axis"]), keepdims=True))]


def _same(layer: Layer, given: list[Array]) -> list[Array]:
    del layer
    return [given[0]]


def _shuffle(layer: Layer, given: list[Array]) -> list[Array]:
    (x,) = given
    first, second = (cast("list[int]", layer[key]) for key in ("first", "second"))
    x = (x.transpose(first) if first else x).reshape(cast("list[int]", layer["to"]))
    return [x.transpose(second) if second else x]


def _select(layer: Layer, given: list[Array]) -> list[Array]:
    del layer
    return [np.where(given[0] != 0, given[1], given[2])]


def _slice(layer: Layer, given: list[Array]) -> list[Array]:
    starts, shape = (
        cast("list[int]", one) for one in (layer["start"], _outputs(layer)[0]["shape"])
    )
    return [given[0][tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))]]


def _concat(layer: Layer, given: list[Array]) -> list[Array]:
    return [np.concatenate(given, axis=cast(int, layer["axis"]))]


def _gather(layer: Layer, given: list[Array]) -> list[Array]:
    return [np.take(given[0], given[1].astype(int), axis=cast(int, layer["axis"]))]


def _softmax(layer: Layer, given: list[Array]) -> list[Array]:
    axis = cast(int, layer["axis"])
    weights = np.exp(given[0] - given[0].max(axis=axis, keepdims=True))
    return [weights / weights.sum(axis=axis, keepdims=True)]


def _topk(layer: Layer, given: list[Array]) -> list[Array]:
    axis, count = cast(int, layer["axis"]), cast(int, layer["count"])
    chosen = np.argsort(-given[0], axis=axis, kind="stable")[..., :count]
    return [np.take_along_axis(given[0], chosen, axis=axis), _numbers(chosen)]


def _quantize(layer: Layer, given: list[Array]) -> list[Array]:
    dtype = str(_outputs(layer)[0]["dtype"])
    scaled = (given[0] / given[1]).astype(np.float32)
    return [_numbers(floats(bits(scaled, dtype), dtype))]


def _dequantize(layer: Layer, given: list[Array]) -> list[Array]:
    x, scale = given
    if "block" in layer:
        scale = np.repeat(scale, cast(int, layer["block"]), axis=cast(int, layer["axis"]))
    return [x * scale]


def _dynamic_quantize(layer: Layer, given: list[Array]) -> list[Array]:
    x, whole = given
    blocks = x.reshape(*x.shape[:-1], -1, cast(int, layer["block"]))
    scales = (np.abs(blocks).max(axis=-1) / 6 / whole).astype(np.float32)
    kept = _numbers(floats(bits(scales, "fp8"), "fp8"))
    each = np.maximum(kept * whole, 2.0**-100)[..., None]
    codes = fp4_codes((blocks / each).astype(np.float32))
    return [_numbers(fp4_values(codes)).reshape(x.shape), kept]


_KINDS: Final[dict[str, Callable[[Layer, list[Array]], list[Array]]]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "elementwise": _elementwise,
    "unary": _unary,
    "activation": _unary,
    "reduce": _reduce,
    "cast": _same,
    "identity": _same,
    "shuffle": _shuffle,
    "select": _select,
    "slice": _slice,
    "concat": _concat,
    "gather": _gather,
    "softmax": _softmax,
    "topk": _topk,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "dynamic_quantize": _dynamic_quantize,
}
