"""What a network's layers mean, in numpy: all ranks of a communicator, each a coroutine.

The second opinion on what is handed to TensorRT. It knows layers, not programs or plans.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from math import erf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.assemble import index_of
from planner.tensorrt.runner.formats import bits, encoded, floats, fp4_codes, fp4_values
from planner.tensorrt.runner.layers import scale_of
from planner.tensorrt.runner.weights import Learned, Reaches, Weights
from topology.base.values import dataclass
from validate.reference.functions import gelu
from validate.reference.run import take_turns

Array = NDArray[np.float64]
Document = Mapping[str, Any]
Layer = Mapping[str, Any]
Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMessage:
    """What a rank stops for.

    members : ranks of the communicator that meet, in order. root : of them, where there is one.
    """

    operation: str
    members: tuple[int, ...]
    given: Array
    root: int = 0


Watch = Callable[[Layer, Sequence[Array]], None]
Rank = Generator[EngineMessage, Array, dict[str, Array]]


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
    for table in document["tables"]:
        values[table["name"]] = _numbers(held.arrays[table["name"]][held.rank])
    layers, outs = document["layers"], document["outputs"]
    last_use = {name: number for number, layer in enumerate(layers) for name in layer["inputs"]}
    last_use |= {out["value"]: len(layers) for out in outs}
    for number, layer in enumerate(layers):
        operands = [values[name] for name in layer["inputs"]]
        if held.watch is not None:
            held.watch(layer, operands)
        results = yield from _layer(document, layer, held, operands)
        results[0] = _with_learned(document, layer, held, results[0])
        for name in layer["inputs"]:
            if last_use[name] == number:  # let go of what no later layer reads
                values.pop(name, None)
        for out, value in zip(layer["outputs"], results, strict=True):
            shape = tuple(out["shape"])
            assert value.shape == shape, f"{out['name']}: made {value.shape}, said {shape}"
            values[out["name"]] = value
    return {out["name"]: values[out["value"]] for out in outs}


def _with_learned(document: Document, layer: Layer, held: Held, result: Array) -> Array:
    """Multiply by and add what is learned behind a layer, if anything is."""
    for learned in layer.get("learned", []):
        rank = index_of(document, held.rank).get("tp", 0)
        numbers = held.learned and held.learned(learned, rank)
        if numbers is not None:
            shaped = _numbers(numbers).reshape(learned["shape"])
            result = result * shaped if learned["kind"] == "gain" else result + shaped
    return result


def run_together(ranks: Sequence[Rank]) -> list[dict[str, Array]]:
    """Run the ranks of one communicator until all have ended.

    Raises RuntimeError if ranks wait for each other, or meet in different collectives.
    """
    return take_turns(ranks, _complete_group, deliver)


def _complete_group(waiting: Mapping[int, EngineMessage]) -> tuple[int, ...]:
    """Find ranks that all wait for each other's message."""
    for message in waiting.values():
        if all(rank in waiting for rank in message.members):
            return message.members
    raise RuntimeError(f"ranks {sorted(waiting)} wait for each other")


def deliver(messages: Sequence[EngineMessage]) -> list[Array]:
    """Give each rank its result of a collective, by what NCCL does on dimension 0.

    Where NCCL gives a root alone a result, the others get zeros of its shape.
    """
    kinds = {(example.operation, example.members) for example in messages}
    if len(kinds) > 1:
        raise RuntimeError(f"ranks meet in different collectives: {sorted(kinds)}")
    example = messages[0]
    if example.operation not in _DELIVERIES:
        raise RuntimeError(f"no such collective: {example.operation}")
    return _DELIVERIES[example.operation]([message.given for message in messages], example.root)


def _exchanged_chunks(messages: Sequence[Array], _root: int) -> list[Array]:
    """Give each rank its chunk of every rank's message."""
    chunks = [np.split(message, len(messages)) for message in messages]
    return [np.concatenate([parts[rank] for parts in chunks]) for rank in range(len(messages))]


def _root_results(root: int, result: Array, count: int) -> list[Array]:
    return [result if rank == root else np.zeros_like(result) for rank in range(count)]


def _sum(messages: Sequence[Array]) -> Array:
    return np.asarray(sum(messages))


_DELIVERIES: Final[Mapping[str, Callable[[Sequence[Array], int], list[Array]]]] = {
    "all_reduce": lambda given, _: [_sum(given)] * len(given),
    "all_gather": lambda given, _: [np.concatenate(given)] * len(given),
    "reduce_scatter": lambda given, _: list(np.split(_sum(given), len(given))),
    "all_to_all": _exchanged_chunks,
    "broadcast": lambda given, root: [given[root]] * len(given),
    "scatter": lambda given, root: list(np.split(given[root], len(given))),
    "reduce": lambda given, root: _root_results(root, _sum(given), len(given)),
    "gather": lambda given, root: _root_results(root, np.concatenate(given), len(given)),
    "keys": lambda given, _: [np.concatenate(given, axis=3)] * len(given),
}
"""By operation, from the messages of all ranks and the root's number to their results."""


def _layer(
    document: Document, layer: Layer, held: Held, operands: list[Array]
) -> Generator[EngineMessage, Array, list[Array]]:
    result: Any
    match layer["kind"]:
        case "constant":
            result = held.arrays[layer["name"]]
        case "weight":
            result = _weight(document, layer, held)
        case "reach":
            result = np.asarray(scale_of(layer, held.reaches), np.float32)
        case "collective":
            members = _members(document, layer, held.rank)
            result = yield EngineMessage(
                operation=layer["operation"],
                members=members,
                given=operands[0],
                root=max(0, layer["root"]),
            )
        case "attention":
            result = yield from _attention(document, layer, operands)
        case kind:
            result = _LAYER_KINDS[kind](layer, *operands)
    return [_numbers(part) for part in (result if isinstance(result, tuple) else (result,))]


def _numbers(array: NDArray[np.generic]) -> Array:
    return np.asarray(array, np.float64)


def _weight(document: Document, layer: Layer, held: Held) -> NDArray[np.generic]:
    share = held.weights(layer, index_of(document, held.rank).get("tp", 0))
    encoding = layer["encoding"]
    if encoding == "plain":
        return np.asarray(share)
    part, stored = layer["part"], encoded(share, encoding, "")[layer["part"]]
    if part == "scales" or (encoding, part) == ("fp8", "values"):
        return floats(stored, "fp8")
    if (encoding, part) == ("nvfp4", "values"):
        low, high = stored.astype(np.uint8) & 15, stored.astype(np.uint8) >> 4
        return fp4_values(np.stack([low, high], axis=-1).reshape(*stored.shape[:-1], -1))
    return stored


def _members(document: Document, layer: Layer, rank: int) -> tuple[int, ...]:
    """Ranks that meet: those that the layer names, or those along its axis, or all."""
    if "groups" in layer:
        return tuple(layer["groups"]) or tuple(range(layer["ranks"]))
    return next(tuple(group) for group in document["groups"][layer["axis"]] if rank in group)


def _attention(
    document: Document, layer: Layer, operands: list[Array]
) -> Generator[EngineMessage, Array, Array]:
    query, key, value, *mask = operands
    if layer["ranks"] != 1:
        members = tuple(range(document["ranks"]))
        joined = yield EngineMessage(
            operation="keys", members=members, given=np.stack([key, value])
        )
        key, value = joined
    repeat = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, repeat, axis=1) for x in (key, value))
    scores = query @ key.swapaxes(2, 3)
    if mask:
        scores = np.where(mask[0] != 0, scores, -np.inf)
    if layer["causal"]:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    return np.asarray(_softmax(scores, -1) @ value)


def _softmax(x: Array, axis: int) -> Array:
    weights = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def _convolution(layer: Layer, x: Array, kernels: Array) -> Array:
    """Convolve each feature with its own kernel."""
    pad_rows, pad_columns = layer["padding"]
    padded = np.pad(x, ((0, 0), (0, 0), (pad_rows, pad_rows), (pad_columns, pad_columns)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[2:], axis=(2, 3))
    return np.asarray(np.einsum("bfyxij,fij->bfyx", windows, kernels[:, 0]))


def _shuffle(layer: Layer, x: Array) -> Array:
    order_in, order_out = layer["first"], layer["second"]
    x = (x.transpose(order_in) if order_in else x).reshape(layer["to"])
    return x.transpose(order_out) if order_out else x


def _slice(layer: Layer, x: Array) -> Array:
    extents = zip(layer["start"], layer["outputs"][0]["shape"], strict=True)
    return x[tuple(slice(start, start + count) for start, count in extents)]


def _cache(_: Layer, cache: Array, new: Array, starts: Array) -> Array:
    """Write new rows into each sample's, from its start on."""
    out = cache.copy()
    for sample, start in enumerate(starts.astype(int)):
        out[sample, :, start : start + new.shape[2]] = new[sample]
    return out


def _topk(layer: Layer, x: Array) -> tuple[Array, NDArray[np.intp]]:
    indices = np.argsort(-x, axis=layer["axis"], kind="stable")[..., : layer["count"]]
    return np.take_along_axis(x, indices, axis=layer["axis"]), indices


def _quantize(layer: Layer, x: Array, scale: Array) -> NDArray[np.generic]:
    dtype = layer["outputs"][0]["dtype"]
    return floats(bits((x / scale).astype(np.float32), dtype), dtype)


def _dequantize(layer: Layer, x: Array, scale: Array) -> Array:
    if "block" in layer:
        scale = np.repeat(scale, layer["block"], axis=layer["axis"])
    return x * scale


def _dynamic_quantize(layer: Layer, x: Array, global_scale: Array) -> tuple[Array, Array]:
    blocks = x.reshape(*x.shape[:-1], -1, layer["block"])
    scales = (np.abs(blocks).max(axis=-1) / 6 / global_scale).astype(np.float32)
    rounded_scales = _numbers(floats(bits(scales, "fp8"), "fp8"))
    block_scale = np.maximum(rounded_scales * global_scale, 2.0**-100)[..., None]
    codes = fp4_codes((blocks / block_scale).astype(np.float32))
    return _numbers(fp4_values(codes)).reshape(x.shape), rounded_scales


_BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "AND": np.logical_and,
    "DIV": np.divide,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "LESS": np.less,
    "MIN": np.minimum,
    "PROD": np.multiply,
    "SUB": np.subtract,
    "SUM": np.add,
}
_UNARY: Final[dict[str, Callable[[Array], Array]]] = {
    "SQRT": np.sqrt,
    "COS": np.cos,
    "SIN": np.sin,
    "NOT": np.logical_not,
    "SIGMOID": lambda x: 1 / (1 + np.exp(-x)),
    "RELU": lambda x: np.maximum(x, 0),
    "GELU_TANH": gelu,
    "GELU_ERF": lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2,
}
_REDUCTIONS: Final[dict[str, Callable[..., Array]]] = {"AVG": np.mean, "SUM": np.sum}
_LAYER_KINDS: Final[dict[str, Callable[..., Any]]] = {
    "matmul": lambda layer, x, y: x @ (y.swapaxes(-1, -2) if layer["transpose"] else y),
    "convolution": _convolution,
    "elementwise": lambda layer, x, y: _BINARY[layer["operation"]](x, y),
    "unary": lambda layer, x: _UNARY[layer["operation"]](x),
    "activation": lambda layer, x: _UNARY[layer["operation"]](x),
    "reduce": lambda layer, x: _REDUCTIONS[layer["operation"]](
        x, axis=layer["axis"], keepdims=True
    ),
    "cast": lambda _, x: x,
    "identity": lambda _, x: x,
    "shuffle": _shuffle,
    "select": lambda _, which, x, y: np.where(which != 0, x, y),
    "slice": _slice,
    "concat": lambda layer, *parts: np.concatenate(parts, axis=layer["axis"]),
    "gather": lambda layer, x, places: np.take(x, places.astype(int), axis=layer["axis"]),
    "cache": _cache,
    "softmax": lambda layer, x: _softmax(x, layer["axis"]),
    "topk": _topk,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "dynamic_quantize": _dynamic_quantize,
}
