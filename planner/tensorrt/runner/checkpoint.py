"""Weights from safetensors files: only the part that a rank holds is read, some columns at a time.

Which tensors make up a weight is told by a map from the planner's names to those of the file.
Files hold ``[columns, rows]``; several tensors lie side by side along the columns.

Checkpoints of 8-bit weights carry scales. ``weight_scale`` is one number a tensor, a row or a
block; ``weight_scale_inv`` one a block, and multiplies too. ``input_scale`` is the largest
activation over the largest number of the format.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.errors import InputError
from planner.tensorrt.runner.formats import FP8_TOP, Floats, floats
from planner.tensorrt.runner.weights import (
    Chosen,
    Layer,
    Learned,
    Reaches,
    Weights,
    cut,
    kept,
    sizes,
    taken,
)

TYPES: Final = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E4M3": "fp8"}
STORED: Final = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32, "fp8": np.uint8}
WEIGHT_SCALES: Final = ("weight_scale", "weight_scale_inv")
INPUT_SCALE: Final = "input_scale"
LARGEST_HEADER: Final = 2**27
"""Bytes of a file's table of contents."""
SCALE_BLOCK: Final = 128
"""Rows and columns of a weight that share a scale."""
TOGETHER: Final = 256
"""Columns that are read at once."""
SHOWN: Final = 6
"""Names in a list, before it is cut."""
Names = Mapping[str, Sequence[str]]
"""Keys of a checkpoint's tensors by our name.

``{layer}`` or ``{layer+7}`` stands for a layer's number and ``{expert}`` for an expert's; behind
the key, ``?`` for a tensor that may be missing, ``#1/2`` for the second of two equal parts.
"""
LAYER: Final = re.compile(r"\{layer(?:\+(\d+))?\}")


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file: its type and shape, and its bytes, mapped and not read.

    scale : what its numbers are multiplied by, ``[blocks, blocks]``; block : rows and columns that
    share one.
    """

    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]
    scale: Floats | None = None
    block: tuple[int, int] = (1, 1)

    def rows(self, wanted: Chosen, other: Chosen) -> Floats:
        """Read some columns of a weight (the tensor's rows), and of those some of its rows."""
        table = self.raw.view(STORED[self.dtype]).reshape(self.shape[0], -1)
        numbers = floats(np.ascontiguousarray(table[wanted][:, other]), self.dtype)
        if self.scale is None:
            return numbers
        scale_rows = np.arange(table.shape[0])[wanted] // self.block[0]
        scale_columns = np.arange(table.shape[1])[other] // self.block[1]
        return numbers * self.scale[scale_rows][:, scale_columns]

    def numbers(self) -> Floats:
        """Read all numbers of a tensor of a checkpoint."""
        return floats(self.raw.view(STORED[self.dtype]), self.dtype)

    def part(self, number: int, parts: int) -> "Stored":
        """Take one of equal parts along the columns."""
        size, count = len(self.raw) // parts, self.shape[0] // parts
        part_bytes = self.raw[number * size : (number + 1) * size]
        if self.scale is None or len(self.scale) == 1:
            return replace(self, shape=(count, *self.shape[1:]), raw=part_bytes)
        rows = np.repeat(self.scale, self.block[0], axis=0)[number * count :][:count]
        return Stored(self.dtype, (count, *self.shape[1:]), part_bytes, rows, (1, self.block[1]))


def contents(name: str, raw: NDArray[np.uint8]) -> dict[str, Stored]:
    """Read a file's table of contents.

    Raises `InputError` if it is no safetensors file, or is cut short.
    """
    size = int.from_bytes(raw[:8].tobytes(), "little") if len(raw) >= 8 else 0
    if not 1 < size <= min(LARGEST_HEADER, len(raw) - 8):
        raise InputError(f"{name}: not a safetensors file")
    try:
        header = json.loads(raw[8 : 8 + size].tobytes())
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        return {key: _stored(name, key, entry, raw[8 + size :]) for key, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{name}: its table of contents cannot be read") from None


def _stored(name: str, key: str, entry: Layer, data: NDArray[np.uint8]) -> Stored:
    location, shape, (start, stop) = f"{name}: {key}", tuple(entry["shape"]), entry["data_offsets"]
    counts_valid = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
    if not (counts_valid and key.isprintable()):
        raise ValueError(location)
    dtype = TYPES.get(str(entry["dtype"]))
    if dtype is None:
        raise InputError(
            f"{location}: stored as {entry['dtype']}, wanted one of {', '.join(TYPES)}"
        )
    wanted_bytes = prod(shape) * np.dtype(STORED[dtype]).itemsize
    if stop - start != wanted_bytes or stop > len(data):
        present_bytes = max(0, min(stop, len(data)) - start)
        raise InputError(
            f"{location}: {present_bytes} bytes, wanted {wanted_bytes}; the file may be cut short"
        )
    return Stored(dtype, shape, data[start:stop])


def from_checkpoint(tensors: Mapping[str, Stored], names: Names) -> Weights:
    """Read weights from a checkpoint when they are asked for.

    Raises `InputError` when a weight is asked for that is missing, or has another shape than
    wanted.
    """

    def share(layer: Layer, rank: int) -> Floats:
        expert_matches = _of_weight(tensors, names, layer)
        expert_weights = [
            _read([tensor for _, tensor in matches], *kept(layer, rank))
            for matches in expert_matches
        ]
        return np.stack(expert_weights)

    return share


def _of_weight(tensors: Mapping[str, Stored], names: Names, layer: Layer) -> "Iterator[Matches]":
    """Look up the tensors of each expert of a weight, of the shape that is wanted."""
    name = layer["weight"]
    if name not in names:
        raise InputError(f"{name}: no tensors are known for this weight")
    experts, rows, columns = sizes(layer)
    if experts > 1 and not all("{expert}" in key for key in names[name]):
        raise InputError(f"{name}: stacks of experts are not read from checkpoints")
    for expert in range(experts):
        matches = _find(tensors, name, names[name], layer["layer"], expert)
        _check(name, matches, rows, columns)
        yield matches


def check_all(
    tensors: Mapping[str, Stored], checkpoint: Mapping[str, Names], layers: Iterable[Layer]
) -> None:
    """Look up everything that layers are made of, before any of it is read.

    Raises `InputError`, naming the first tensor that is missing or of another shape.
    """
    gains, biases = checkpoint.get("gains", {}), checkpoint.get("biases", {})
    learned = learned_from(tensors, gains, biases)
    for layer in layers:
        if layer["kind"] == "weight":
            list(_of_weight(tensors, checkpoint["weights"], layer))
        for entry in layer.get("learned", []):
            learned(entry, 0)
    for name, keys in checkpoint.get("embeddings", {}).items():
        for key, table in _find(tensors, name, keys, 0):
            if len(table.shape) != 2:
                raise InputError(f"{name}: {key} is {list(table.shape)}, wanted [tokens, numbers]")


Embedding = Callable[[str, NDArray[np.generic]], Floats]
"""From the name of an input, such as ``prompt.tokens``, and numbers of tokens to their rows."""


def embedding_from(tensors: Mapping[str, Stored], names: Names) -> Embedding | None:
    """Look up rows of embeddings by stream; None where the checkpoint has none."""
    if not names:
        return None

    def rows(name: str, numbers: NDArray[np.generic]) -> Floats:
        ((key, table),) = _find(tensors, name, names[name.rpartition(".")[2]], 0)
        if not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) < table.shape[0]:
            number_range = f"{numbers.min()} to {numbers.max()}"
            raise InputError(
                f"{name}: got {number_range}, wanted rows of {key}, 0 to {table.shape[0] - 1}"
            )
        table_rows = table.rows(numbers.reshape(-1).astype(np.int64), slice(None))
        return table_rows.reshape(*numbers.shape, -1)

    return rows


Matches = list[tuple[str, Stored]]
"""Keys and tensors."""


def _find(
    tensors: Mapping[str, Stored], name: str, keys: Sequence[str], layer: int, expert: int = 0
) -> Matches:
    """Look up the tensors of a layer."""
    matches: Matches = []
    for key in keys:
        base_key, _, part = key.partition("#")
        full_key = numbered(base_key.rstrip("?"), layer, expert)
        if full_key in tensors:
            tensor = tensors[full_key]
            number, parts = map(int, part.split("/")) if part else (0, 1)
            if not tensor.shape or tensor.shape[0] % parts:
                complaint = f"{full_key} is {list(tensor.shape)}"
                raise InputError(f"{name}: {complaint}, wanted {parts} equal parts")
            matches.append((full_key, tensor.part(number, parts)))
        elif not base_key.endswith("?"):
            raise InputError(f"{name}: the checkpoint has no {full_key}")
    return matches


def numbered(key: str, layer: int, expert: int = 0) -> str:
    """Write the numbers of a layer and an expert into a key.

    >>> numbered("blocks.{layer+19}.experts.{expert}.w1", 2, 5)
    'blocks.21.experts.5.w1'
    """
    layer_key = LAYER.sub(lambda match: str(layer + int(match[1] or 0)), key)
    return layer_key.replace("{expert}", str(expert))


def _check(name: str, matches: Matches, rows: int, columns: int) -> None:
    for key, tensor in matches:
        if prod(tensor.shape[1:]) != rows:
            raise InputError(f"{name}: {key} is {list(tensor.shape)}, wanted [.., {rows}]")
    total = sum(tensor.shape[0] for _, tensor in matches)
    if total != columns:
        keys = ", ".join(key for key, _ in matches)
        raise InputError(f"{name}: {keys} have {total} rows, wanted {columns}")


def _read(stored: Sequence[Stored], rows: Chosen, columns: Chosen) -> Floats:
    """Read the columns that lie in each tensor, a few at a time; zeros where there is padding."""
    height, width = prod(stored[0].shape[1:]), sum(tensor.shape[0] for tensor in stored)
    row_numbers, column_numbers = _places(rows, height), _places(columns, width)
    present = np.flatnonzero(row_numbers >= 0)
    out = np.zeros((len(row_numbers), len(column_numbers)), np.float32)
    start = 0
    for tensor in stored:
        tensor_columns = np.flatnonzero(
            (column_numbers >= start) & (column_numbers < start + tensor.shape[0])
        )
        for piece_start in range(0, len(tensor_columns), TOGETHER):
            piece = tensor_columns[piece_start : piece_start + TOGETHER]
            out[np.ix_(present, piece)] = tensor.rows(
                column_numbers[piece] - start, row_numbers[present]
            ).T
        start += tensor.shape[0]
    return out


def _places(chosen: Chosen, count: int) -> NDArray[np.int64]:
    return np.arange(count) if isinstance(chosen, slice) else chosen


def learned_from(tensors: Mapping[str, Stored], gains: Names, biases: Names) -> Learned:
    """Read norms and biases when they are asked for; None where the model has none there.

    Raises `InputError` when a tensor is asked for that is missing, or has another number of
    elements than wanted.
    """

    def numbers(entry: Layer, rank: int) -> Floats | None:
        name, keys = entry["name"], gains if entry["kind"] == "gain" else biases
        if name not in keys or (entry["once"] and rank):
            return None
        matches = _find(tensors, name, keys[name], entry["layer"])
        return taken(_joined(name, matches, entry), cut(entry, rank), 0) if matches else None

    return numbers


def _joined(name: str, matches: Matches, entry: Layer) -> Floats:
    """Lay tensors end to end; what all heads share is repeated for each."""
    parts = entry["parts"]
    pieces = [tensor.numbers() for _, tensor in matches]
    for place, (units, size) in enumerate(parts if len(parts) == len(pieces) else []):
        if len(pieces[place]) == size > 1:
            pieces[place] = np.tile(pieces[place], units)
    present_count, wanted_count = sum(map(len, pieces)), sum(units * size for units, size in parts)
    if present_count != wanted_count:
        keys = ", ".join(key for key, _ in matches)
        raise InputError(f"{name}: {keys} have {present_count} numbers, wanted {wanted_count}")
    return np.concatenate(pieces)


def few(tensors: Iterable[str]) -> str:
    """Name the modules of tensors, the first few where there are many.

    >>> few(["a.weight", "a.bias", "b.weight"])
    'a, b'
    """
    modules = sorted({key.rsplit(".", 1)[0] for key in tensors})
    return ", ".join(modules[:SHOWN]) + (" ..." if len(modules) > SHOWN else "")


def unused(tensors: Iterable[str], checkpoint: Mapping[str, Names]) -> list[str]:
    """Name the tensors of a checkpoint that no weight, norm or bias of ours is made of.

    >>> unused(["a.7", "b.7"], {"weights": {"a": ["a.{layer}"]}})
    ['b.7']
    """
    kinds_read = ("weights", "gains", "biases", "embeddings")
    kinds = [checkpoint.get(kind, {}).values() for kind in kinds_read]
    keys = {key for names in kinds for name_keys in names for key in name_keys}
    used_pattern = re.compile("|".join(sorted(map(_any, keys))) or "(?!)")
    return sorted(key for key in tensors if not used_pattern.fullmatch(scaled_by(key)))


def scaled_by(key: str) -> str:
    """Name the weight that a scale belongs to; other keys as they are.

    >>> scaled_by("proj.input_scale"), scaled_by("proj.bias")
    ('proj.weight', 'proj.bias')
    """
    module, dot, ending = key.rpartition(".")
    return f"{module}{dot}weight" if ending in (*WEIGHT_SCALES, INPUT_SCALE) else key


def _any(key: str) -> str:
    """Write an expression for a key with any numbers."""
    pattern = re.escape(LAYER.sub("{expert}", key.partition("#")[0].rstrip("?")))
    return pattern.replace(re.escape("{expert}"), "[0-9]+")


def renamed(tensors: Mapping[str, Stored], parts: Mapping[str, str]) -> dict[str, Stored]:
    """Call tensors of another layout as in the one that is known; others keep their names.

    >>> list(renamed({"blocks.0.self_attn.q.bias": None}, {"self_attn": "attn1", "q": "to_q"}))
    ['blocks.0.attn1.to_q.bias']
    """
    renamed_tensors = dict(tensors)
    for their_name, our_name in parts.items():
        pattern = re.compile(rf"(?<![^.]){re.escape(their_name)}(?![^.])")
        renamed_tensors = {
            pattern.sub(our_name, key): tensor for key, tensor in renamed_tensors.items()
        }
    return renamed_tensors


def with_scales(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Put the scale of each 8-bit weight beside it.

    Raises `InputError` if a scale is of another shape than its weight can have.
    """
    scaled_tensors = dict(tensors)
    for key, tensor in tensors.items():
        for name in WEIGHT_SCALES if tensor.dtype == "fp8" and key.endswith(".weight") else ():
            scale_key = f"{key.removesuffix('weight')}{name}"
            if scale_key in tensors:
                scaled_tensors[key] = _scaled(tensor, scale_key, tensors[scale_key])
    return scaled_tensors


def _scaled(tensor: Stored, location: str, scale: Stored) -> Stored:
    numbers, (rows, columns) = scale.numbers(), (tensor.shape[0], prod(tensor.shape[1:]))
    blocks = (-(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK))
    if scale.shape == blocks:
        block = (SCALE_BLOCK, SCALE_BLOCK)
    elif numbers.size == 1:
        block, blocks = (rows, columns), (1, 1)
    elif numbers.size == rows:
        block, blocks = (1, columns), (rows, 1)
    else:
        expected = f"[1], [{rows}, 1] or {list(blocks)} for {list(tensor.shape)}"
        raise InputError(f"{location}: {list(scale.shape)}, wanted {expected}")
    if not np.all(np.isfinite(numbers)):
        raise InputError(f"{location}: a scale is no number")
    return replace(tensor, scale=numbers.reshape(blocks), block=block)


def reaches_from(tensors: Mapping[str, Stored], names: Names) -> Reaches:
    """Look up the largest activation of a product; None where the checkpoint has none."""

    def reach(layer: Layer) -> float | None:
        scales = [
            float(tensors[scale_key].numbers().max(initial=0))
            for key in names.get(layer["weight"], ())
            for scale_key in _inputs(tensors, key, layer["layer"])
        ]
        largest = max(scales, default=0.0) * FP8_TOP
        return largest if 0 < largest < np.inf else None

    return reach


def _inputs(tensors: Mapping[str, Stored], key: str, layer: int) -> Iterator[str]:
    """Scales of what a weight multiplies, of every expert."""
    for expert in count():
        weight_key = numbered(key.partition("#")[0].rstrip("?"), layer, expert)
        scale_key = f"{weight_key.removesuffix('weight')}{INPUT_SCALE}"
        if scale_key not in tensors:
            return
        yield scale_key
        if "{expert}" not in key:
            return
