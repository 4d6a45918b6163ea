"""What a TensorRT network is made of: layers over values whose shapes and types are known.

A network is one forward of a program on one rank, all loops written out. It is the same for every
rank of a communicator: what differs from rank to rank is either an input (`Network.tables`), a
share of a weight, or the list of ranks of a collective, and is filled in when it is assembled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["bf16", "fp16", "fp32", "fp8", "fp4", "int8", "int32", "bool"]
Array = NDArray[np.float32] | NDArray[np.int32]
Index = Mapping[str, int]


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
class Network:
    """One engine's work.

    axes : of the ranks that talk to each other inside it, outermost first; rank in the
    communicator = mixed-radix number of the indices along them.
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

    @property
    def ranks(self) -> int:
        ranks = 1
        for _, degree in self.axes:
            ranks *= degree
        return ranks

    @property
    def shared(self) -> bool:
        """Whether one engine serves all ranks: no weight is cut, and no collective names ranks."""
        cut = any(
            layer.kind == "weight" and layer.attributes["split"] != "none" for layer in self.layers
        )
        named = len(self.axes) > 1 and bool(self.of("collective"))
        return not (cut and self.ranks > 1) and not named

    def of(self, kind: str) -> list[Layer]:
        """Layers of one kind, in order."""
        return [layer for layer in self.layers if layer.kind == kind]


@dataclass(frozen=True, slots=True)
class Draft:
    """A network while it is written: layers are added, names stay unique, arrays are kept once.

    compute : type of what the program holds in 16 bits. precision : that of its matrix products.
    indices : of every rank along the axes. reaches : largest activations of products, if measured.
    """

    compute: Dtype
    indices: tuple[Index, ...]
    precision: str = "bf16"
    layers: list[Layer] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)
    known: dict[object, Value] = field(default_factory=dict)
    scope: dict[str, int] = field(default_factory=dict)
    reaches: Mapping[str, float] = field(default_factory=dict)

    def name(self, hint: str) -> str:
        """Make a name that no value has yet; it ends with the layer that is being written."""
        full = f"{hint}@{self.scope['layer']}" if "layer" in self.scope else hint
        count = self.taken[full] = self.taken.get(full, 0) + 1
        return full if count == 1 else f"{full}~{count}"

    def add(
        self,
        kind: str,
        inputs: Sequence[Value],
        shape: Sequence[int],
        dtype: Dtype,
        hint: str,
        **attributes: object,
    ) -> Value:
        """Add a layer with one output."""
        out = Value(self.name(hint), tuple(int(size) for size in shape), dtype)
        self.put(kind, inputs, (out,), attributes)
        return out

    def put(
        self,
        kind: str,
        inputs: Sequence[Value],
        outputs: tuple[Value, ...],
        attributes: Mapping[str, object],
    ) -> None:
        """Add a layer whose outputs are named already."""
        self.layers.append(
            Layer(
                kind=kind,
                name=outputs[0].name,
                inputs=tuple(value.name for value in inputs),
                outputs=outputs,
                attributes=attributes,
            )
        )

    def constant(self, array: Array, hint: str) -> Value:
        """Make a constant that every rank has; equal ones are one."""
        key = ("constant", array.shape, array.dtype.str, array.tobytes())
        if key not in self.known:
            value = self.add("constant", (), array.shape, dtype_of(array), hint)
            self.constants[value.name] = array
            self.known[key] = value
        return self.known[key]

    def table(self, arrays: Sequence[Array], hint: str) -> Value:
        """Make a constant, or an input where the ranks' `arrays` are not all equal."""
        if all(np.array_equal(arrays[0], other) for other in arrays[1:]):
            return self.constant(arrays[0], hint)
        stacked = cast(Array, np.stack(arrays))
        key = ("table", stacked.shape, stacked.dtype.str, stacked.tobytes())
        if key not in self.known:
            value = Value(self.name(f"rank.{hint}"), arrays[0].shape, dtype_of(arrays[0]))
            self.tables[value.name] = stacked
            self.known[key] = value
        return self.known[key]


def dtype_of(array: Array) -> Dtype:
    """Type of an array."""
    return "fp32" if array.dtype == np.float32 else "int32"
