"""A network while it is written: single layers, each with the shape that it makes."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import cast

import numpy as np

from costmodels.program import Tensor
from costmodels.program.rows import Index
from planner.models.architecture import Numerics
from planner.tensorrt.network import Array, Dtype, LatentGrid, Layer, Value, dtype_of
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True)
class Draft:
    """A network while it is written: layers are added, names stay unique, arrays are kept once.

    compute : type of what the program holds in 16 bits. precision : that of its matrix products.
    indices : of every rank along the axes. reaches : largest activations of products, if measured.
    numerics : of the model that is computed; None where positions and norms are made up.
    latents : of it, where their rows stand. room : rows of a decoder's cache, 0 for none; filled :
    how many of them are, an input, ``[b, 1, 1]``; moving : whether the row that is written stands
    behind those. prompted : such an input of how many rows a prompt has that latents stand behind.
    """

    compute: Dtype
    indices: tuple[Index, ...]
    precision: str = "bf16"
    layers: list[Layer] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)
    made: dict[object, Value] = field(default_factory=dict)
    scope: dict[str, int] = field(default_factory=dict)
    reaches: Mapping[str, float] = field(default_factory=dict)
    numerics: Numerics | None = None
    latents: LatentGrid | None = None
    room: int = 0
    filled: Value | None = None
    moving: bool = False
    prompted: Value | None = None

    def name(self, hint: str) -> str:
        """Make a name that no value has yet; it ends with the layer that is being written."""
        scoped_hint = f"{hint}@{self.scope['layer']}" if "layer" in self.scope else hint
        count = self.taken[scoped_hint] = self.taken.get(scoped_hint, 0) + 1
        return scoped_hint if count == 1 else f"{scoped_hint}~{count}"

    def dtype(self, tensor: Tensor) -> Dtype:
        """Choose the type of a program's tensor: what it holds in 32 bits stays wide."""
        return "fp32" if tensor.itemsize >= 4 else self.compute

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
        input_names = tuple(value.name for value in inputs)
        name = outputs[0].name
        self.layers.append(
            Layer(kind=kind, name=name, inputs=input_names, outputs=outputs, attributes=attributes)
        )

    def constant(self, array: Array, hint: str) -> Value:
        """Make a constant that every rank has; equal ones are one."""
        key = ("constant", array.shape, array.dtype.str, array.tobytes())
        if key not in self.made:
            value = self.add("constant", (), array.shape, dtype_of(array), hint)
            self.constants[value.name] = array
            self.made[key] = value
        return self.made[key]

    def table(self, arrays: Sequence[Array], hint: str) -> Value:
        """Make a constant, or an input where the ranks' `arrays` are not all equal."""
        if all(other is arrays[0] or np.array_equal(arrays[0], other) for other in arrays):
            return self.constant(arrays[0], hint)
        stacked = cast(Array, np.stack(arrays))
        key = ("table", stacked.shape, stacked.dtype.str, stacked.tobytes())
        if key not in self.made:
            value = Value(self.name(f"rank.{hint}"), arrays[0].shape, dtype_of(arrays[0]))
            self.tables[value.name] = stacked
            self.made[key] = value
        return self.made[key]

    def cast(self, x: Value, dtype: Dtype, hint: str) -> Value:
        """Convert; nothing where the type is right."""
        return x if x.dtype == dtype else self.add("cast", (x,), x.shape, dtype, hint)

    def wide(self, x: Value) -> Value:
        """Convert to 32 bits, in which sums and functions are computed."""
        return self.cast(x, "fp32", f"{x.name}.wide")

    def elementwise(self, operation: str, left: Value, right: Value, hint: str) -> Value:
        """Combine two values of one type, broadcast; comparisons give truth values."""
        shape = np.broadcast_shapes(left.shape, right.shape)
        dtype: Dtype = "bool" if operation in ("GREATER", "LESS", "EQUAL") else left.dtype
        return self.add("elementwise", (left, right), shape, dtype, hint, operation=operation)

    def scalar(self, number: float, like: Value, hint: str) -> Value:
        """Make a number of the rank and type of `like`."""
        shape = (1,) * len(like.shape)
        if like.dtype == "int32":
            return self.constant(np.full(shape, number, np.int32), hint)
        return self.cast(self.constant(np.full(shape, number, np.float32), hint), like.dtype, hint)

    def scaled(self, x: Value, factor: float, hint: str) -> Value:
        """Add layers that multiply by a number."""
        return self.elementwise("PROD", x, self.scalar(factor, x, f"{hint}.factor"), hint)

    def unary(self, operation: str, x: Value, hint: str) -> Value:
        """Apply a function of one argument."""
        return self.add("unary", (x,), x.shape, x.dtype, hint, operation=operation)

    def activation(self, operation: str, x: Value, hint: str) -> Value:
        """Add a layer that applies an activation."""
        return self.add("activation", (x,), x.shape, x.dtype, hint, operation=operation)

    def reduce(self, operation: str, x: Value, axis: int, hint: str) -> Value:
        """Add a layer that reduces one axis to length one."""
        axis %= len(x.shape)
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return self.add("reduce", (x,), shape, x.dtype, hint, operation=operation, axis=axis)

    def shuffle(
        self,
        x: Value,
        shape: Sequence[int],
        hint: str,
        first: Sequence[int] = (),
        second: Sequence[int] = (),
    ) -> Value:
        """Transpose by `first`, reshape to `shape`, transpose by `second`, if that changes it."""
        assert prod(shape) == prod(x.shape), f"{hint}: {x.shape} to {tuple(shape)}"
        new_shape = tuple(shape[axis] for axis in second) if second else tuple(shape)
        if not first and not second and new_shape == x.shape:
            return x
        reshaped = [int(size) for size in shape]
        attributes = {"first": list(first), "to": reshaped, "second": list(second)}
        return self.add("shuffle", (x,), new_shape, x.dtype, hint, **attributes)

    def take(self, x: Value, start: int, count: int, axis: int, hint: str) -> Value:
        """Cut `count` neighbours out of an axis; nothing where that is all of it."""
        axis %= len(x.shape)
        if start == 0 and count == x.shape[axis]:
            return x
        known_part = self.made.get(("part", x.name, axis, start, count))
        if known_part is not None:
            return known_part
        starts = [start if position == axis else 0 for position in range(len(x.shape))]
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return self.add("slice", (x,), shape, x.dtype, hint, start=starts)

    def concat(self, parts: Sequence[Value], axis: int, hint: str) -> Value:
        """Lay values end to end; one is left as it is."""
        if len(parts) == 1:
            return parts[0]
        axis %= len(parts[0].shape)
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.add("concat", parts, shape, parts[0].dtype, hint, axis=axis)

    def gather(self, x: Value, places: Value, axis: int, hint: str) -> Value:
        """Pick by index along an axis; the indices' shape stands in its place."""
        axis %= len(x.shape)
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return self.add("gather", (x, places), shape, x.dtype, hint, axis=axis)

    def place(self, number: Value, count: int, shape: Sequence[int]) -> Value:
        """Turn a number into a place among so many, the last one where it is larger."""
        key = ("place", number.name, count, tuple(shape))
        if key not in self.made:
            name = number.name
            last_index = self.scalar(count - 1, number, "last")
            clamped = self.elementwise("MIN", number, last_index, f"{name}.least")
            index = self.cast(clamped, "int32", f"{name}.number")
            self.made[key] = self.shuffle(index, shape, f"{name}.place")
        return self.made[key]

    def row(self, x: Value, number: Value, hint: str) -> Value:
        """Pick the row of axis 1 that has a number; the last one where there are fewer rows.

        A number a sample, ``[b, 1, 1]``, picks of each its own row, if `x` has samples at all.
        """
        samples, (count, rows, *rest) = number.shape[0], x.shape
        place = self.place(number, rows, (samples,))
        if samples == 1:
            return self.gather(x, place, 1, hint)
        if count > 1:
            x = self.shuffle(x, (1, count * rows, *rest), f"{hint}.rows")
            sample_starts = self.constant(np.arange(count, dtype=np.int32) * rows, f"{hint}.first")
            place = self.elementwise("SUM", place, sample_starts, f"{hint}.places")
        picked = self.gather(x, place, 1, f"{hint}.found")
        return self.shuffle(picked, (samples, 1, *rest), hint)

    def matmul(
        self,
        left: Value,
        right: Value,
        hint: str,
        *,
        transpose: bool = False,
        learned: Sequence[Mapping[str, object]] = (),
    ) -> Value:
        """Multiply the last two axes; `transpose` the right one's. `learned` may follow."""
        columns = right.shape[-2] if transpose else right.shape[-1]
        lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        shape = (*lead, left.shape[-2], columns)
        attributes = {"transpose": transpose, **({"learned": list(learned)} if learned else {})}
        return self.add("matmul", (left, right), shape, left.dtype, hint, **attributes)
