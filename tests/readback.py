"""From TensorRT's network back to a document: what was really handed over, layer by layer.

A collective's operation and ranks cannot be asked for; they are read from the metadata that the
layer carries into the engine, and its number of ranks from the layer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.library import TYPES, Foreign

Fields = dict[str, object]
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A network as a document, and the constants of it that can be read."""

    document: Mapping[str, object]
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


def read_back(library: ModuleType, network: Foreign, document: Mapping[str, object]) -> ReadBack:
    """Read a network.

    Parameters
    ----------
    document : what it was made from; only axes, tables and the names of its inputs are taken.
    """
    arrays: Arrays = {}
    layers: list[Fields] = []
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        kind = layer.type.name
        if kind == "ATTENTION_OUTPUT":
            continue
        inputs = [layer.get_input(place) for place in range(layer.num_inputs)]
        fields = _READ[kind](library, layer, arrays)
        outputs = fields.pop("outputs", None) or [
            layer.get_output(place) for place in range(layer.num_outputs)
        ]
        named = [tensor.name for tensor in inputs if tensor is not None]
        made = [_value(library, tensor) for tensor in cast("list[Foreign]", outputs)]
        layers.append(
            {"kind": kind.lower(), "name": layer.name, "inputs": named, "outputs": made, **fields}
        )
    outs = [network.get_output(place) for place in range(network.num_outputs)]
    kept = {key: document[key] for key in ("name", "axes", "groups", "ranks", "tables")}
    inputs = [network.get_input(place) for place in range(network.num_inputs)]
    read = {
        **kept,
        "inputs": [_value(library, tensor) for tensor in inputs],
        "outputs": [{**_value(library, one), "value": one.name} for one in outs],
        "layers": layers,
    }
    return ReadBack(read, arrays)


def _value(library: ModuleType, tensor: Foreign) -> dict[str, object]:
    dtype = next(here for here, there in TYPES.items() if tensor.dtype == getattr(library, there))
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": dtype}


def _as(layer: Foreign, kind: type) -> Foreign:
    """See a layer as what it is: the library hands out its base class."""
    layer.__class__ = kind
    return layer


def _constant(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    seen = _as(layer, library.IConstantLayer)
    if isinstance(seen.weights, np.ndarray):
        arrays[layer.name] = np.array(seen.weights).reshape(tuple(seen.shape))
    return {}


def _matmul(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    seen = _as(layer, library.IMatrixMultiplyLayer)
    assert seen.op0 == library.MatrixOperation.NONE
    return {"transpose": seen.op1 == library.MatrixOperation.TRANSPOSE}


def _convolution(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    seen = _as(layer, library.IConvolutionLayer)
    return {"groups": seen.num_groups, "padding": [int(one) for one in seen.padding_nd]}


def _elementwise(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    return {"operation": _as(layer, library.IElementWiseLayer).op.name}


def _unary(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    return {"operation": _as(layer, library.IUnaryLayer).op.name}


def _activation(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    return {"operation": _as(layer, library.IActivationLayer).type.name}


def _reduce(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    seen = _as(layer, library.IReduceLayer)
    assert seen.keep_dims
    return {"operation": seen.op.name, "axis": _place(seen.axes)}


def _nothing(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del library, layer, arrays
    return {}


def _shuffle(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    before = len(tuple(layer.get_input(0).shape))
    seen = _as(layer, library.IShuffleLayer)
    to = [int(size) for size in seen.reshape_dims]
    return {
        "first": [int(axis) for axis in tuple(seen.first_transpose)[:before]],
        "to": to,
        "second": [int(axis) for axis in tuple(seen.second_transpose)[: len(to)]],
    }


def _slice(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    seen = _as(layer, library.ISliceLayer)
    assert set(seen.stride) == {1}
    return {"start": [int(place) for place in seen.start]}


def _concat(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    return {"axis": _as(layer, library.IConcatenationLayer).axis, "kind": "concat"}


def _gather(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    return {"axis": _as(layer, library.IGatherLayer).axis}


def _softmax(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    return {"axis": _place(_as(layer, library.ISoftMaxLayer).axes)}


def _topk(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    seen = _as(layer, library.ITopKLayer)
    return {"count": seen.k, "axis": _place(seen.axes)}


def _collective(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del library, arrays
    said = json.loads(layer.metadata)
    assert layer.num_ranks == said["ranks"]
    return {**said, "kind": "collective"}


def _attention(library: ModuleType, layer: Foreign, arrays: Arrays) -> Fields:
    del arrays
    whole = _as(layer, library.IAttentionInputLayer).attention
    return {
        "kind": "attention",
        "causal": whole.causal_kind != library.CausalMaskKind.NONE,
        "ranks": whole.num_ranks,
        "outputs": [whole.get_output(0)],
    }


def _place(axes: int) -> int:
    """Read one axis from a set of bits."""
    assert axes.bit_count() == 1
    return axes.bit_length() - 1


_READ: Final[dict[str, Callable[[ModuleType, Foreign, Arrays], Fields]]] = {
    "CONSTANT": _constant,
    "MATRIX_MULTIPLY": lambda *given: {**_matmul(*given), "kind": "matmul"},
    "CONVOLUTION": _convolution,
    "ELEMENTWISE": _elementwise,
    "UNARY": _unary,
    "ACTIVATION": _activation,
    "REDUCE": _reduce,
    "CAST": _nothing,
    "IDENTITY": _nothing,
    "SHUFFLE": _shuffle,
    "SLICE": _slice,
    "CONCATENATION": _concat,
    "GATHER": _gather,
    "SOFTMAX": _softmax,
    "TOPK": _topk,
    "SELECT": _nothing,
    "KV_CACHE_UPDATE": lambda *given: {**_nothing(*given), "kind": "cache"},
    "DIST_COLLECTIVE": _collective,
    "ATTENTION_INPUT": _attention,
}
