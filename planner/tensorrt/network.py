"""What a TensorRT network is made of: layers over values whose shapes and types are known.

A network is one forward of a program on one rank, all loops written out. It is the same for every
rank of a communicator: what differs from rank to rank is either an input (`Network.tables`), a
share of a weight, or the list of ranks of a collective, and is filled in when it is assembled. As a
document and arrays it is what the runner assembles with TensorRT, on any machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from topology.base.values import dataclass

Dtype = Literal["bf16", "fp16", "fp32", "fp8", "fp4", "int8", "int32", "bool"]
SCHEMA: Final = "1"
Array = NDArray[np.float32] | NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a network."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: its kind, what it reads and makes, and what its kind needs beside."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNetwork:
    """One engine's work.

    axes : of the ranks that talk to each other inside it, outermost first; rank in the
    communicator = mixed-radix number of the indices along them.
    stage : of a pipeline, whose ranks alone run it; None where all do.
    outputs : the name that each is known by outside, and the value.
    constants, tables : arrays by name; those of tables have a row a rank and are inputs.
    unused : layers of the program that were left out, as nothing that is given depends on them.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    layers: tuple[Layer, ...]
    constants: Mapping[str, Array]
    tables: Mapping[str, Array]
    unused: tuple[Layer, ...] = ()
    stage: int | None = None

    @property
    def ranks(self) -> int:
        return prod(degree for _, degree in self.axes)

    @property
    def shared(self) -> bool:
        """Whether one engine serves all ranks: no weight is cut, and no collective names ranks."""
        splits_weight = any(
            layer.kind == "weight" and layer.attributes["split"] != "none" for layer in self.layers
        )
        names_ranks = len(self.axes) > 1 and bool(self.of("collective"))
        return not (splits_weight and self.ranks > 1) and not names_ranks

    def of(self, kind: str) -> list[Layer]:
        """Layers of one kind, in order."""
        return [layer for layer in self.layers if layer.kind == kind]


@dataclass(frozen=True, slots=True)
class LatentGrid:
    """Where the rows of latents stand: their stream, its frames, rows and columns of tokens.

    first : number that the first frame has by its turn, behind a prompt of so many rows (`prompt`)
    at most; zero where frames count on behind none.
    """

    stream: str
    shape: tuple[int, int, int]
    first: int = 0
    prompt: int = 0


def dtype_of(array: Array) -> Dtype:
    """Name TensorRT's type of an array."""
    return "fp32" if array.dtype == np.float32 else "int32"


def document_of(network: EngineNetwork) -> dict[str, object]:
    """Return a network as a document; its arrays are in `arrays_of`.

    ``groups`` lists, along each axis, the groups of ranks of the communicator that meet there.
    """
    return {
        "schema": SCHEMA,
        "name": network.name,
        "axes": [list(axis) for axis in network.axes],
        "groups": {axis: groups(network.axes, axis) for axis, _ in network.axes},
        "ranks": network.ranks,
        "shared": network.shared,
        "inputs": [_value_document(value) for value in network.inputs],
        "tables": [
            _value_document(Value(name, array.shape[1:], dtype_of(array)))
            for name, array in network.tables.items()
        ],
        "outputs": [
            {
                "name": output_name,
                "value": value.name,
                "shape": list(value.shape),
                "dtype": value.dtype,
            }
            for output_name, value in network.outputs
        ],
        "collectives": counts(network),
        "layers": [_layer_document(layer) for layer in network.layers],
    }


def arrays_of(network: EngineNetwork) -> dict[str, Array]:
    """Return constants and tables by name; tables have a row a rank."""
    return {**network.constants, **network.tables}


def counts(network: EngineNetwork) -> dict[str, int]:
    """Count collectives by operation and axis, and attentions on several devices."""
    totals: Counter[str] = Counter()
    for layer in network.layers:
        if layer.kind == "collective":
            totals[f"{layer.attributes['operation']} {layer.attributes['axis']}"] += 1
        elif layer.kind == "attention" and layer.attributes["ranks"] != 1:
            totals["attention allgather_kv"] += 1
    return dict(totals)


def groups(axes: Sequence[tuple[str, int]], axis: str) -> list[list[int]]:
    """Ranks of a communicator that differ along one axis only.

    >>> groups([("ulysses", 2), ("tp", 2)], "ulysses")
    [[0, 2], [1, 3]]
    """
    names, degrees = zip(*axes, strict=True)
    ranks = np.arange(prod(degrees)).reshape(degrees)
    rank_groups: list[list[int]] = (
        np.moveaxis(ranks, names.index(axis), -1).reshape(-1, dict(axes)[axis]).tolist()
    )
    return rank_groups


def _value_document(value: Value) -> dict[str, object]:
    return {"name": value.name, "shape": list(value.shape), "dtype": value.dtype}


def _layer_document(layer: Layer) -> Mapping[str, object]:
    return {
        "kind": layer.kind,
        "name": layer.name,
        "inputs": list(layer.inputs),
        "outputs": [_value_document(value) for value in layer.outputs],
        **layer.attributes,
    }
