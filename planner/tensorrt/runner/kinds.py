"""How each kind of layer of a document is added to a TensorRT network."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Final, cast

import numpy as np

from planner.tensorrt.runner.formats import Bits, bits, encoded, storage
from planner.tensorrt.runner.library import Foreign, type_of
from planner.tensorrt.runner.outside import is_outside
from planner.tensorrt.runner.weights import Learned, Reaches, Weights

Layer = Mapping[str, object]
OPERATIONS: Final = {
    "AND": "AND", "DIV": "DIV", "EQUAL": "EQUAL", "GREATER": "GREATER", "LESS": "LESS",
    "PROD": "PROD", "SUB": "SUB", "SUM": "SUM",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the network of one rank of a communicator is made of.

    arrays : constants by name. weights : where their numbers come from; None for zeros that take
    no memory, to see what a network is. learned : biases and norms; none where left out.
    hold : keeps the numbers of a weight until the engine is built, where memory is scarce on disk.
    outside : takes the numbers of weights that shall be inputs; all are in the engine if left out.
    """

    document: Mapping[str, object]
    arrays: Mapping[str, Bits]
    weights: Weights | None
    rank: int = 0
    learned: Learned | None = None
    reaches: Reaches | None = None
    hold: Callable[[Bits], Bits] = np.ascontiguousarray
    outside: Callable[[str, Bits], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
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
        """Tensors that a layer reads."""
        return [self.tensors[name] for name in cast("list[str]", layer["inputs"])]

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
        """Return the input."""
        assert place == 0
        return self.tensor


def outputs(layer: Layer) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each output that a layer says it makes."""
    found = []
    for out in cast("list[Mapping[str, object]]", layer["outputs"]):
        shape = tuple(cast("list[int]", out["shape"]))
        found.append((str(out["name"]), shape, str(out["dtype"])))
    return found


def _constant(site: Site, layer: Layer) -> Foreign:
    ((name, shape, dtype),) = outputs(layer)
    return site.constant(site.share.arrays[name], dtype, shape)


def _weight(site: Site, layer: Layer) -> Foreign:
    ((name, shape, dtype),) = outputs(layer)
    if site.share.weights is None:
        return site.constant(_blank(dtype, shape), dtype, shape)
    put = site.share.outside if is_outside(layer) else None
    key = (str(layer["weight"]), cast(int, layer["layer"]))
    if key not in site.made:
        share = site.share.weights(layer, site.index.get("tp", 0))
        parts = encoded(share, str(layer["encoding"]), dtype)
        if put is not None:
            put(name, parts.pop("values"))
        site.made[key] = {part: site.share.hold(array) for part, array in parts.items()}
    made = site.made[key] if layer["encoding"] != "plain" else site.made.pop(key)
    if put is not None:
        return site.given(name, dtype, shape)
    return site.constant(made[str(layer["part"])], dtype, shape)


def _reach(site: Site, layer: Layer) -> Foreign:
    ((_, shape, dtype),) = outputs(layer)
    return site.constant(np.asarray(scale_of(layer, site.share.reaches), np.float32), dtype, shape)


def scale_of(layer: Layer, reaches: Reaches | None) -> float:
    """Scale of activations: the largest of them is the largest number of the format."""
    known = None if reaches is None or layer["measured"] else reaches(layer)
    return cast(float, known or layer["largest"]) / cast(float, layer["top"])


@cache
def _blank(dtype: str, shape: tuple[int, ...]) -> Bits:
    """Zeros, the same for every weight of a shape; pages that nobody writes take no memory."""
    halved = (*shape[:-1], shape[-1] // 2) if dtype == "fp4" else shape
    return np.zeros(halved, np.uint8 if dtype in ("fp8", "fp4") else storage(dtype))


def _matmul(site: Site, layer: Layer) -> Foreign:
    left, right = site.inputs(layer)
    plain, turned = site.library.MatrixOperation.NONE, site.library.MatrixOperation.TRANSPOSE
    how = turned if layer["transpose"] else plain
    return site.network.add_matrix_multiply(left, plain, right, how)


def _convolution(site: Site, layer: Layer) -> Foreign:
    """Convolve with kernels that are a tensor of the network, one for every feature."""
    x, kernel = site.inputs(layer)
    features, _, *side = kernel.shape
    added = site.network.add_convolution_nd(x, features, tuple(side), site.library.Weights())
    if added is not None:
        added.set_input(1, kernel)
        added.num_groups = layer["groups"]
        added.padding_nd = tuple(cast("list[int]", layer["padding"]))
    return added


def _elementwise(site: Site, layer: Layer) -> Foreign:
    operation = getattr(site.library.ElementWiseOperation, OPERATIONS[str(layer["operation"])])
    return site.network.add_elementwise(*site.inputs(layer), operation)


def _unary(site: Site, layer: Layer) -> Foreign:
    operation = getattr(site.library.UnaryOperation, str(layer["operation"]))
    return site.network.add_unary(*site.inputs(layer), operation)


def _activation(site: Site, layer: Layer) -> Foreign:
    kind = getattr(site.library.ActivationType, str(layer["operation"]))
    return site.network.add_activation(*site.inputs(layer), kind)


def _reduce(site: Site, layer: Layer) -> Foreign:
    operation = getattr(site.library.ReduceOperation, str(layer["operation"]))
    keep = True
    return site.network.add_reduce(*site.inputs(layer), operation, _axis(layer), keep)


def _cast(site: Site, layer: Layer) -> Foreign:
    ((_, _, dtype),) = outputs(layer)
    return site.network.add_cast(*site.inputs(layer), type_of(site.library, dtype))


def _shuffle(site: Site, layer: Layer) -> Foreign:
    added = site.network.add_shuffle(*site.inputs(layer))
    if layer["first"]:
        added.first_transpose = tuple(cast("list[int]", layer["first"]))
    added.reshape_dims = tuple(cast("list[int]", layer["to"]))
    if layer["second"]:
        added.second_transpose = tuple(cast("list[int]", layer["second"]))
    return added


def _slice(site: Site, layer: Layer) -> Foreign:
    ((_, shape, _),) = outputs(layer)
    start = tuple(cast("list[int]", layer["start"]))
    return site.network.add_slice(*site.inputs(layer), start, shape, (1,) * len(shape))


def _concat(site: Site, layer: Layer) -> Foreign:
    added = site.network.add_concatenation(site.inputs(layer))
    added.axis = layer["axis"]
    return added


def _gather(site: Site, layer: Layer) -> Foreign:
    return site.network.add_gather(*site.inputs(layer), layer["axis"])


def _softmax(site: Site, layer: Layer) -> Foreign:
    added = site.network.add_softmax(*site.inputs(layer))
    added.axes = _axis(layer)
    return added


def _topk(site: Site, layer: Layer) -> Foreign:
    most = site.library.TopKOperation.MAX
    return site.network.add_topk(*site.inputs(layer), most, layer["count"], _axis(layer))


def _quantize(site: Site, layer: Layer) -> Foreign:
    ((_, _, dtype),) = outputs(layer)
    return site.network.add_quantize(*site.inputs(layer), type_of(site.library, dtype))


def _dequantize(site: Site, layer: Layer) -> Foreign:
    ((_, _, dtype),) = outputs(layer)
    added = site.network.add_dequantize(*site.inputs(layer), type_of(site.library, dtype))
    if "axis" in layer:
        added.axis = layer["axis"]
    return added


def _dynamic_quantize(site: Site, layer: Layer) -> Foreign:
    x, scale = site.inputs(layer)
    (_, _, dtype), (_, _, scales) = outputs(layer)
    kinds = (type_of(site.library, dtype), type_of(site.library, scales))
    added = site.network.add_dynamic_quantize(x, layer["axis"], layer["block"], *kinds)
    added.set_input(1, scale)
    return added


def _collective(site: Site, layer: Layer) -> Foreign:
    """Add a collective; its ranks are set before its output is asked for, as its shape needs."""
    names = site.library.CollectiveOperation, site.library.ReduceOperation
    operation = getattr(names[0], str(layer["operation"]).upper())
    reduce = getattr(names[1], str(layer["reduce"]))
    members = group(site, str(layer["axis"]))
    added = site.network.add_dist_collective(
        *site.inputs(layer), operation, reduce, layer["root"], members
    )
    if added is not None:
        added.num_ranks = layer["ranks"]
        said = {key: layer[key] for key in ("operation", "reduce", "root", "axis", "ranks")}
        added.metadata = json.dumps({**said, "groups": members})
    return added


def group(site: Site, axis: str) -> list[int]:
    """Ranks that meet along an axis; none named where all ranks of the communicator do."""
    axes = cast("list[object]", site.share.document["axes"])
    every = cast("Mapping[str, list[list[int]]]", site.share.document["groups"])[axis]
    return [] if len(axes) == 1 else next(one for one in every if site.share.rank in one)


def with_learned(site: Site, layer: Layer, added: Foreign) -> Foreign:
    """Multiply by and add what a checkpoint has learned behind a layer, if it has anything."""
    for one in cast("list[Layer]", layer.get("learned", [])):
        numbers = site.share.learned and site.share.learned(one, site.index.get("tp", 0))
        if added is None or numbers is None:
            continue
        ((name, _, dtype),) = outputs(layer)
        operations = site.library.ElementWiseOperation
        how = operations.PROD if one["kind"] == "gain" else operations.SUM
        added.name = f"{name}.without.{one['kind']}"
        shape = tuple(cast("list[int]", one["shape"]))
        constant = site.constant(bits(numbers.reshape(shape), dtype), dtype, shape)
        constant.name = f"{name}.{one['kind']}"
        before = added.get_output(0), constant.get_output(0)
        added = site.network.add_elementwise(*before, how)
    return added


def _axis(layer: Layer) -> int:
    return 1 << cast(int, layer["axis"])


ADD: Final[dict[str, Callable[[Site, Layer], Foreign]]] = {
    "constant": _constant,
    "weight": _weight,
    "reach": _reach,
    "matmul": _matmul,
    "convolution": _convolution,
    "elementwise": _elementwise,
    "unary": _unary,
    "activation": _activation,
    "reduce": _reduce,
    "cast": _cast,
    "shuffle": _shuffle,
    "slice": _slice,
    "concat": _concat,
    "gather": _gather,
    "softmax": _softmax,
    "topk": _topk,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "dynamic_quantize": _dynamic_quantize,
    "collective": _collective,
}
"""One function a kind of layer; attention is added beside, in `assemble`."""
