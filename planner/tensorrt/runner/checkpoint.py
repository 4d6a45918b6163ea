"""Weights from safetensors files: only the part that a rank holds is read, one weight at a time.

Which tensors make up a weight is told by a map from the planner's names to those of the file;
``{layer}`` stands for the number of the layer. Files hold ``[columns, rows]``; several tensors lie
side by side along the columns.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.numbers import Floats, floats
from planner.tensorrt.runner.weights import Chosen, Layer, Weights, kept, sizes

TYPES: Final = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
STORED: Final = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}
LARGEST_HEADER: Final = 2**27
"""Bytes of a file's table of contents."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file: its type and shape, and its bytes, mapped and not read."""

    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def rows(self, wanted: Chosen, other: Chosen) -> Floats:
        """Read some columns of a weight (the tensor's rows), and of those some of its rows."""
        table = self.raw.view(STORED[self.dtype]).reshape(self.shape[0], -1)
        return floats(np.ascontiguousarray(table[wanted][:, other]), self.dtype)


def contents(name: str, raw: NDArray[np.uint8]) -> dict[str, Stored]:
    """Read a file's table of contents.

    Raises
    ------
    RunError
        If it is no safetensors file, or is cut short.
    """
    size = int.from_bytes(raw[:8].tobytes(), "little") if len(raw) >= 8 else 0
    if not 1 < size <= min(LARGEST_HEADER, len(raw) - 8):
        raise RunError(f"{name}: not a safetensors file")
    try:
        header = json.loads(raw[8 : 8 + size].tobytes())
        entries = {key: one for key, one in header.items() if key != "__metadata__"}
        return {
            key: _stored(f"{name}: {key}", one, raw[8 + size :]) for key, one in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{name}: its table of contents cannot be read") from None


def _stored(where: str, one: Mapping[str, object], data: NDArray[np.uint8]) -> Stored:
    dtype = TYPES.get(str(one["dtype"]))
    if dtype is None:
        raise RunError(f"{where}: stored as {one['dtype']}, wanted one of {', '.join(TYPES)}")
    shape = tuple(cast("list[int]", one["shape"]))
    start, stop = cast("list[int]", one["data_offsets"])
    wanted = prod(shape) * np.dtype(STORED[dtype]).itemsize
    if stop - start != wanted or stop > len(data):
        raise RunError(f"{where}: {stop - start} bytes, wanted {wanted}; the file may be cut short")
    return Stored(dtype, shape, data[start:stop])


def from_checkpoint(tensors: Mapping[str, Stored], names: Mapping[str, Sequence[str]]) -> Weights:
    """Read weights from a checkpoint when they are asked for.

    Raises
    ------
    RunError
        When a weight is asked for that is missing, or has another shape than wanted.
    """

    def share(layer: Layer, rank: int) -> Floats:
        name = str(layer["weight"])
        if name not in names:
            raise RunError(f"{name}: no tensors are known for this weight")
        experts, rows, columns = sizes(layer)
        if experts > 1:
            raise RunError(f"{name}: stacks of experts are not read from checkpoints")
        keys = [key.format(layer=layer["layer"]) for key in names[name]]
        found = [_find(tensors, key, name, rows) for key in keys]
        total = sum(one.shape[0] for one in found)
        if total != columns:
            raise RunError(f"{name}: {', '.join(keys)} have {total} rows, wanted {columns}")
        mine_rows, mine_columns = kept(layer, rank)
        pieces = _pieces(found, _there(mine_columns), _there(mine_rows))
        read = _padded(_padded(np.concatenate(pieces), mine_columns, 0), mine_rows, 1)
        return np.ascontiguousarray(read.T)[None]

    return share


def _there(chosen: Chosen) -> Chosen:
    """Leave padding out."""
    return chosen if isinstance(chosen, slice) else chosen[chosen >= 0]


def _padded(read: Floats, chosen: Chosen, axis: int) -> Floats:
    """Put zeros where there is padding."""
    if isinstance(chosen, slice) or not np.any(chosen < 0):
        return read
    shape = list(read.shape)
    shape[axis] = len(chosen)
    whole = np.zeros(shape, read.dtype)
    np.moveaxis(whole, axis, 0)[chosen >= 0] = np.moveaxis(read, axis, 0)
    return whole


def _find(tensors: Mapping[str, Stored], key: str, name: str, rows: int) -> Stored:
    if key not in tensors:
        raise RunError(f"{name}: the checkpoint has no {key}")
    one = tensors[key]
    if prod(one.shape[1:]) != rows:
        raise RunError(f"{name}: {key} is {list(one.shape)}, wanted [.., {rows}]")
    return one


def _pieces(
    found: Sequence[Stored],
    columns: Chosen,
    rows: Chosen,
) -> list[Floats]:
    """Read from each tensor the columns that lie in it, in order."""
    if isinstance(columns, slice):
        return [one.rows(columns, rows) for one in found]
    pieces, start = [], 0
    for one in found:
        here = columns[(columns >= start) & (columns < start + one.shape[0])] - start
        pieces.append(one.rows(here, rows))
        start += one.shape[0]
    return pieces
