"""How each kind of layer of a document is added to a TensorRT network."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Final

import numpy as np

from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.external_weights import is_outside
from planner.tensorrt.runner.formats import Bits, bits, encoded, storage
from planner.tensorrt.runner.library import Document, Foreign, type_of
from planner.tensorrt.runner.weights import Layer, Learned, Reaches, Weights

_KEEP: Final = True
"""Reduced axes stay, of length one."""
LOW: Final = 30000
"""A score so low that its share is nothing, and that FP16 still holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the network of one rank of a communicator is made of.

    arrays : constants by name. weights : where their numbers come from; None for zeros that take
    no memory, to see what a network is. learned : biases and norms; none where left out.
    hold : keeps the numbers of a weight until the engine is built, where memory is scarce on disk.
    outside : takes the numbers of weights that shall be inputs; all are in the engine if left out.
    """

    document: Document
    arrays: Mapping[str, Bits]
    weights: Weights | None
    rank: int = 0
    learned: Learned | None = None
    reaches: Reaches | None = None
    hold: Callable[[Bits], Bits] = np.ascontiguousarray
    outside: Callable[[str, Bits], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A network while it is assembled: its tensors by name, and numbers that must outlive it.

    index : of this rank along each axis.
    fused : whether the library's attention layer is used, or products and a softmax.
    """

    library: ModuleType
    network: Foreign
    share: Share
    index: Mapping[str, int]
    fused: bool = True
    tensors: dict[str, Foreign] = field(default_factory=dict)
    kept: list[Bits] = field(default_factory=list)
    made: dict[tuple[str, int], dict[str, Bits]] = field(default_factory=dict)

    def inputs(self, layer: Layer) -> list[Foreign]:
        """Give TensorRT's tensors that a layer of a document reads."""
        return [self.tensors[name] for name in layer["inputs"]]

    def type(self, layer: Layer, place: int = 0) -> Foreign:
        """Type of an output that a layer says it makes."""
        return type_of(self.library, layer["outputs"][place]["dtype"])

    def operation(self, kind: str, layer: Layer) -> Foreign:
        """Look up what a layer computes among the library's operations of a kind."""
        return getattr(getattr(self.library, kind), layer["operation"])

    def constant(self, stored: Bits, dtype: str, shape: tuple[int, ...]) -> Foreign:
        """Add numbers; the network refers to them, so they are kept."""
        array = np.ascontiguousarray(stored).reshape(np.shape(stored))
        self.kept.append(array)
        count = int(np.prod(shape, dtype=np.int64))
        weights = self.library.Weights(type_of(self.library, dtype), array.ctypes.data, count)
        return self.network.add_constant(shape, weights)

    def given(self, name: str, dtype: str, shape: tuple[int, ...]) -> "Given":
        """Add an input where a layer would stand."""
        return Given(self.network.add_input(name, type_of(self.library, dtype), shape))


@dataclass(frozen=True, slots=True)
class Given:
    """An input, as a layer that makes it."""

    tensor: Foreign

    def get_output(self, place: int) -> Foreign:
        """Return the input, as TensorRT's layers return theirs."""
        assert place == 0
        return self.tensor


def outputs(layer: Layer) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each output that a layer says it makes."""
    return [(out["name"], tuple(out["shape"]), out["dtype"]) for out in layer["outputs"]]


def _constant(assembly: Assembly, layer: Layer) -> Foreign:
    ((name, shape, dtype),) = outputs(layer)
    return assembly.constant(assembly.share.arrays[name], dtype, shape)


def _weight(assembly: Assembly, layer: Layer) -> Foreign:
    ((name, shape, dtype),) = outputs(layer)
    if assembly.share.weights is None:
        return assembly.constant(blank(dtype, shape), dtype, shape)
    put = assembly.share.outside if is_outside(layer) else None
    key = (layer["weight"], layer["layer"])
    if key not in assembly.made:
        share = assembly.share.weights(layer, assembly.index.get("tp", 0))
        parts = encoded(share, layer["encoding"], dtype)
        if put is not None:
            put(name, parts.pop("values"))
        assembly.made[key] = {part: assembly.share.hold(array) for part, array in parts.items()}
    parts_made = assembly.made[key] if layer["encoding"] != "plain" else assembly.made.pop(key)
    if put is not None:
        return assembly.given(name, dtype, shape)
    return assembly.constant(parts_made[layer["part"]], dtype, shape)


def _reach(assembly: Assembly, layer: Layer) -> Foreign:
    ((_, shape, dtype),) = outputs(layer)
    scale = np.asarray(scale_of(layer, assembly.share.reaches), np.float32)
    return assembly.constant(scale, dtype, shape)


def scale_of(layer: Layer, reaches: Reaches | None) -> float:
    """Scale of activations: the largest of them is the largest number of the format."""
    stored = None if reaches is None or layer["measured"] else reaches(layer)
    return float((stored or layer["largest"]) / layer["top"])


@cache
def blank(dtype: str, shape: tuple[int, ...]) -> Bits:
    """Zeros, the same for every weight of a shape; pages that nobody writes take no memory."""
    stored_shape = (*shape[:-1], shape[-1] // 2) if dtype == "fp4" else shape
    return np.zeros(stored_shape, np.uint8 if dtype in ("fp8", "fp4") else storage(dtype))


def _matmul(assembly: Assembly, layer: Layer) -> Foreign:
    operations = assembly.library.MatrixOperation
    left, right = assembly.inputs(layer)
    transposition = operations.TRANSPOSE if layer["transpose"] else operations.NONE
    return assembly.network.add_matrix_multiply(left, operations.NONE, right, transposition)


def _convolution(assembly: Assembly, layer: Layer) -> Foreign:
    """Convolve with kernels that are a tensor of the network, one for every feature."""
    x, kernel = assembly.inputs(layer)
    features, _, *side = kernel.shape
    no_weights = assembly.library.Weights()
    added = assembly.network.add_convolution_nd(x, features, tuple(side), no_weights)
    if added is not None:
        added.set_input(1, kernel)
        added.num_groups = layer["groups"]
        added.padding_nd = tuple(layer["padding"])
    return added


def _shuffle(assembly: Assembly, layer: Layer) -> Foreign:
    added = assembly.network.add_shuffle(*assembly.inputs(layer))
    if layer["first"]:
        added.first_transpose = tuple(layer["first"])
    added.reshape_dims = tuple(layer["to"])
    if layer["second"]:
        added.second_transpose = tuple(layer["second"])
    return added


def _slice(assembly: Assembly, layer: Layer) -> Foreign:
    ((_, shape, _),) = outputs(layer)
    start, step = tuple(layer["start"]), (1,) * len(shape)
    return assembly.network.add_slice(*assembly.inputs(layer), start, shape, step)


def _concat(assembly: Assembly, layer: Layer) -> Foreign:
    added = assembly.network.add_concatenation(assembly.inputs(layer))
    added.axis = layer["axis"]
    return added


def _softmax(assembly: Assembly, layer: Layer) -> Foreign:
    added = assembly.network.add_softmax(*assembly.inputs(layer))
    added.axes = _axis(layer)
    return added


def _topk(assembly: Assembly, layer: Layer) -> Foreign:
    maximum = assembly.library.TopKOperation.MAX
    return assembly.network.add_topk(*assembly.inputs(layer), maximum, layer["count"], _axis(layer))


def _dequantize(assembly: Assembly, layer: Layer) -> Foreign:
    added = assembly.network.add_dequantize(*assembly.inputs(layer), assembly.type(layer))
    if "axis" in layer:
        added.axis = layer["axis"]
    return added


def _dynamic_quantize(assembly: Assembly, layer: Layer) -> Foreign:
    x, scale = assembly.inputs(layer)
    kinds = (assembly.type(layer), assembly.type(layer, 1))
    added = assembly.network.add_dynamic_quantize(x, layer["axis"], layer["block"], *kinds)
    added.set_input(1, scale)
    return added


def _collective(assembly: Assembly, layer: Layer) -> Foreign:
    """Add a collective; its ranks are set before its output is asked for, as its shape needs."""
    operation = getattr(assembly.library.CollectiveOperation, layer["operation"].upper())
    reduce = getattr(assembly.library.ReduceOperation, layer["reduce"])
    members = group(assembly, layer["axis"])
    added = assembly.network.add_dist_collective(
        *assembly.inputs(layer), operation, reduce, layer["root"], members
    )
    if added is not None:
        added.num_ranks = layer["ranks"]
        words = {key: layer[key] for key in ("operation", "reduce", "root", "axis", "ranks")}
        added.metadata = json.dumps({**words, "groups": members})
    return added


def group(assembly: Assembly, axis: str) -> list[int]:
    """Ranks that meet along an axis; none named where all ranks of the communicator do."""
    document, rank = assembly.share.document, assembly.share.rank
    if len(document["axes"]) == 1:
        return []
    return next(ranks for ranks in document["groups"][axis] if rank in ranks)


def with_learned(assembly: Assembly, layer: Layer, added: Foreign) -> Foreign:
    """Multiply by and add what a checkpoint has learned behind a layer, if it has anything."""
    share, tp = assembly.share, assembly.index.get("tp", 0)
    operations = assembly.library.ElementWiseOperation
    ((name, _, dtype),) = outputs(layer)
    for entry in layer["learned"] if added is not None and share.learned else []:
        numbers = share.learned and share.learned(entry, tp)
        if numbers is None:
            continue
        operation = operations.PROD if entry["kind"] == "gain" else operations.SUM
        added.name = f"{name}.without.{entry['kind']}"
        shape = tuple(entry["shape"])
        constant = assembly.constant(bits(numbers.reshape(shape), dtype), dtype, shape)
        constant.name = f"{name}.{entry['kind']}"
        operands = added.get_output(0), constant.get_output(0)
        added = assembly.network.add_elementwise(*operands, operation)
    return added


def _axis(layer: Layer) -> int:
    return 1 << int(layer["axis"])


def _attention(assembly: Assembly, layer: Layer) -> Foreign:
    """Add an attention, and return the layer whose output is its result.

    Raises `RunError` if it is to run on several devices, and the library has no attention that can.
    """
    if assembly.fused and hasattr(assembly.network, "add_attention"):
        return _fused(assembly, layer)
    if layer["ranks"] != 1:
        raise RunError(f"{layer['name']}: this TensorRT has no attention on several devices")
    return _decomposed(assembly, layer)


def _fused(assembly: Assembly, layer: Layer) -> Foreign:
    query, key, value, *mask = assembly.inputs(layer)
    softmax = assembly.library.AttentionNormalizationOp.SOFTMAX
    if hasattr(assembly.network, "add_attention_v2"):
        kinds = assembly.library.CausalMaskKind
        kind = kinds.UPPER_LEFT if layer["causal"] else kinds.NONE
        added = assembly.network.add_attention_v2(query, key, value, softmax, kind)
    else:
        added = assembly.network.add_attention(query, key, value, softmax, bool(layer["causal"]))
    if added is None:
        return None
    added.decomposable = True
    if mask:
        added.mask = mask[0]
    if layer["ranks"] != 1:
        if not hasattr(added, "num_ranks"):
            raise RunError(f"{layer['name']}: this TensorRT has no attention on several devices")
        added.num_ranks = layer["ranks"]
    return added


def _decomposed(assembly: Assembly, layer: Layer) -> Foreign:
    """Multiply, hide, take the softmax, multiply; the heads of a group lie on an axis."""
    query, key, value, *mask = assembly.inputs(layer)
    batch, heads, rows, size = tuple(query.shape)
    groups, keys = key.shape[1], key.shape[2]
    shaped_query = _shaped(assembly, query, (batch, groups, heads // groups, rows, size))
    keys_values = [_shaped(assembly, x, (batch, groups, 1, keys, size)) for x in (key, value)]
    scores = _product(assembly, shaped_query, keys_values[0], turned=True)
    if mask or layer["causal"]:
        visible = mask[0] if mask else _triangle(assembly, rows)
        scores = _hidden(assembly, scores, _shaped(assembly, visible, (1, *tuple(visible.shape))))
    softmax = assembly.network.add_softmax(scores)
    softmax.axes = 1 << 4
    out = _product(assembly, softmax.get_output(0), keys_values[1], turned=False)
    ((_, shape, _),) = outputs(layer)
    reshaped = assembly.network.add_shuffle(out)
    reshaped.reshape_dims = shape
    return reshaped


def _shaped(assembly: Assembly, x: Foreign, shape: tuple[int, ...]) -> Foreign:
    added = assembly.network.add_shuffle(x)
    added.reshape_dims = shape
    return added.get_output(0)


def _product(assembly: Assembly, left: Foreign, right: Foreign, *, turned: bool) -> Foreign:
    operations = assembly.library.MatrixOperation
    transposition = operations.TRANSPOSE if turned else operations.NONE
    return assembly.network.add_matrix_multiply(
        left, operations.NONE, right, transposition
    ).get_output(0)


def _hidden(assembly: Assembly, scores: Foreign, visible: Foreign) -> Foreign:
    low_score = assembly.constant(np.full((1,) * 5, -LOW, np.float32), "fp32", (1,) * 5)
    hidden_score = assembly.network.add_cast(low_score.get_output(0), scores.dtype).get_output(0)
    return assembly.network.add_select(visible, scores, hidden_score).get_output(0)


def _triangle(assembly: Assembly, rows: int) -> Foreign:
    visible = np.tril(np.ones((1, 1, rows, rows), np.bool_))
    return assembly.constant(visible, "bool", (1, 1, rows, rows)).get_output(0)


ADD: Final[dict[str, Callable[[Assembly, Layer], Foreign]]] = {
    "attention": _attention,
    "constant": _constant,
    "weight": _weight,
    "reach": _reach,
    "matmul": _matmul,
    "convolution": _convolution,
    "elementwise": lambda assembly, layer: assembly.network.add_elementwise(
        *assembly.inputs(layer), assembly.operation("ElementWiseOperation", layer)
    ),
    "unary": lambda assembly, layer: assembly.network.add_unary(
        *assembly.inputs(layer), assembly.operation("UnaryOperation", layer)
    ),
    "activation": lambda assembly, layer: assembly.network.add_activation(
        *assembly.inputs(layer), assembly.operation("ActivationType", layer)
    ),
    "reduce": lambda assembly, layer: assembly.network.add_reduce(
        *assembly.inputs(layer), assembly.operation("ReduceOperation", layer), _axis(layer), _KEEP
    ),
    "cast": lambda assembly, layer: assembly.network.add_cast(
        *assembly.inputs(layer), assembly.type(layer)
    ),
    "shuffle": _shuffle,
    "slice": _slice,
    "concat": _concat,
    "gather": lambda assembly, layer: assembly.network.add_gather(
        *assembly.inputs(layer), layer["axis"]
    ),
    "softmax": _softmax,
    "topk": _topk,
    "quantize": lambda assembly, layer: assembly.network.add_quantize(
        *assembly.inputs(layer), assembly.type(layer)
    ),
    "dequantize": _dequantize,
    "dynamic_quantize": _dynamic_quantize,
    "collective": _collective,
    "cache": lambda assembly, layer: assembly.network.add_kv_cache_update(
        *assembly.inputs(layer), assembly.library.KVCacheMode.LINEAR
    ),
}
"""One function a kind of layer."""
