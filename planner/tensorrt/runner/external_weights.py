"""Weights in a file beside their engine, which reads them as inputs: no builder copies them.

The file begins with a line for each weight, ``NAME BYTES START``, and an empty line. Numbers begin
at the next whole page; ``START`` counts from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.errors import InputError
from planner.tensorrt.runner.formats import Bits, storage
from planner.tensorrt.runner.library import Document

PAGE: Final = 4096
ALIGNED: Final = 256
"""Bytes at which CUDA's own allocations begin."""
LARGEST_TABLE: Final = 2**24
"""Bytes of a file's table of contents."""
Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where a weight lies: its bytes, and their first behind the table."""

    name: str
    size: int
    start: int


@dataclass(frozen=True, slots=True)
class Outside:
    """Weights of an engine: their bytes, mapped and not read, and where each lies."""

    data: NDArray[np.uint8]
    weights: tuple[WeightPlace, ...]


def is_outside(layer: Document) -> bool:
    """Whether a weight can be an input: numbers of 8 bits and more, not scales."""
    weight = layer["kind"] == "weight" and layer["part"] == "values"
    return bool(weight and layer["encoding"] != "nvfp4")


def entries(document: Document) -> list[WeightPlace]:
    """List a network's weights that can be inputs, in the order in which they are made."""
    weights, start = [], 0
    for layer in document["layers"]:
        if is_outside(layer):
            (out,) = layer["outputs"]
            size = prod(out["shape"]) * storage(out["dtype"]).itemsize
            weights.append(WeightPlace(out["name"], size, start))
            start += -(-size // ALIGNED) * ALIGNED
    return weights


def writer(document: Document, write: Write) -> Callable[[str, Bits], None]:
    """Write the table of a file, and return what writes each weight, in the table's order."""
    places = entries(document)
    remaining = iter(places)
    lines = [f"{entry.name} {entry.size} {entry.start}\n" for entry in places]
    head = "".join([*lines, "\n"]).encode()
    write(head.ljust(-(-len(head) // PAGE) * PAGE, b"\0"))

    def put(name: str, array: Bits) -> None:
        entry = next(remaining)
        assert (entry.name, entry.size) == (name, array.nbytes), f"{name} is not {entry}"
        write(np.ascontiguousarray(array).data)  # type: ignore[arg-type]  # files take it
        write(bytes(-entry.size % ALIGNED))

    return put


def beside(path: Path) -> Path:
    """Name the file of an engine's weights.

    >>> beside(Path("engines/forward.rank0.engine")).name
    'forward.rank0.weights'
    """
    return path.with_suffix(".weights")


def read(name: str, raw: NDArray[np.uint8]) -> Outside:
    """Read the table of a file of weights; raises `InputError` if it is damaged, or cut short."""
    head, separator, _ = raw[:LARGEST_TABLE].tobytes().partition(b"\n\n")
    try:
        table = [_entry(line) for line in head.decode().splitlines()]
    except ValueError:
        separator, table = b"", []
    data = raw[-(-(len(head) + 2) // PAGE) * PAGE :]
    if not separator or any(entry.start + entry.size > len(data) for entry in table):
        raise InputError(f"{name}: its table cannot be read, or it is cut short; build it again")
    return Outside(data, tuple(table))


def _entry(line: str) -> WeightPlace:
    name, size, start = line.split(" ")
    return WeightPlace(name, int(size), int(start))
