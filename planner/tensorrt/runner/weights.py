"""Weights: which part of each a rank holds, and numbers drawn by name or for timing alone."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.formats import Floats

BLOCK: Final = 2**20
"""Numbers of a filler, before they repeat."""
Layer = Mapping[str, Any]
"""A layer of kind ``weight`` in a network's document."""
Weights = Callable[[Layer, int], Floats]
"""From such a layer and the rank along ``tp`` to its share, ``[experts, rows, columns]``."""
Learned = Callable[[Layer, int], Floats | None]
"""From an entry of a layer's ``learned`` and the rank along ``tp`` to its numbers, if any."""
Parts = Sequence[Sequence[int]]
"""Units and the size of each, of parts that are cut separately."""
Reaches = Callable[[Layer], float | None]
"""From a layer of kind ``reach`` to the largest activation that its product is given, if known."""


def sizes(layer: Layer) -> tuple[int, int, int]:
    """Give experts, rows and columns of a weight before ranks cut it."""
    rows, columns = (sum(units * size for units, size in layer[key]) for key in ("rows", "columns"))
    return layer["experts"], rows, columns


def named(weight: str, layer: int) -> str:
    """Name a weight of a layer.

    >>> named("joint.qkv", 3), named("head", -1)
    ('joint.qkv@3', 'head')
    """
    return f"{weight}@{layer}" if layer >= 0 else weight


Chosen = slice | NDArray[np.int64]


def kept(layer: Layer, rank: int) -> tuple[Chosen, Chosen]:
    """Rows and columns of a whole weight that a rank holds; -1 for padding, which is zero."""
    rows, columns = (
        own_features(layer[key], layer["degree"], rank) if layer["split"] == key else slice(None)
        for key in ("rows", "columns")
    )
    return rows, columns


def taken(full: NDArray[np.floating], chosen: Chosen, axis: int) -> NDArray[np.floating]:
    """Take places along an axis, zeros where there is padding."""
    if isinstance(chosen, slice):
        return full
    picked = full.take(np.maximum(chosen, 0), axis)
    if np.any(chosen < 0):
        np.moveaxis(picked, axis, 0)[chosen < 0] = 0
    return picked


def drawn(seed: int = 0) -> Weights:
    """Draw normal numbers that depend on the seed, the weight's name and its layer alone."""

    def share(layer: Layer, rank: int) -> Floats:
        shape, name = sizes(layer), named(layer["weight"], layer["layer"])
        random = np.random.default_rng(digest(f"{seed}/{name}"))
        full = random.standard_normal(shape) / np.sqrt(shape[1])
        rows, columns = kept(layer, rank)
        return np.asarray(taken(taken(full, rows, 1), columns, 2), np.float32)

    return share


def filler() -> Weights:
    """Repeat one block of normal numbers: for timing, where only shapes matter.

    Each weight begins at a place of its own: TensorRT keeps equal weights once, and those would be
    read from a cache where real ones come from memory.
    """

    def share(layer: Layer, rank: int) -> Floats:
        experts, rows, columns = sizes(layer)
        chosen = kept(layer, rank)
        rows, columns = (
            full_size if isinstance(part, slice) else len(part)
            for full_size, part in zip((rows, columns), chosen, strict=True)
        )
        turn = digest(f"{layer['weight']}@{layer['layer']}/{rank}") % BLOCK
        values = np.resize(np.roll(_block(), turn), experts * rows * columns)
        return np.asarray(values.reshape(experts, rows, columns) / np.sqrt(rows), np.float32)

    return share


def cut(entry: Layer, rank: int) -> Chosen:
    """Features that a rank takes of what is learned; -1 for padding, which is zero."""
    degree = entry["degree"]
    return slice(None) if degree == 1 else own_features(entry["parts"], degree, rank)


@cache
def _block() -> Floats:
    """Draw a million numbers, of which random weights are made."""
    return np.random.default_rng(0).standard_normal(BLOCK).astype(np.float32)


def digest(text: str) -> int:
    """Make a number of a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def own_features(parts: Parts, degree: int, rank: int) -> NDArray[np.int64]:
    """List features of one of `degree` ranks; a unit is repeated where there are fewer than ranks.

    Where units do not divide, the last ranks end with padding, which stands at -1.

    >>> own_features([(4, 1), (1, 2)], 2, 1)
    array([2, 3, 4, 5])
    >>> own_features([(5, 1)], 2, 1)
    array([ 3,  4, -1])
    """
    chosen, start = [], 0
    for units, size in parts:
        features_each = -(-units // degree) * size
        first_feature = rank * features_each if units >= degree else rank * units // degree * size
        rank_features = np.arange(first_feature, first_feature + features_each)
        chosen.append(np.where(rank_features < units * size, start + rank_features, -1))
        start += units * size
    return np.concatenate(chosen)
