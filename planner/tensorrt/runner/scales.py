"""Scales that checkpoints of 8-bit weights carry: of the weights, and of what they multiply.

``weight_scale`` is one number a tensor, a row or a block; ``weight_scale_inv`` one a block, and
multiplies too. ``input_scale`` is the largest activation over the largest number of the format.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from math import prod
from typing import Final, cast

import numpy as np

from planner.tensorrt.runner.checkpoint import (
    INPUT_SCALE,
    WEIGHT_SCALES,
    Names,
    Stored,
    numbered,
)
from planner.tensorrt.runner.errors import InputError
from planner.tensorrt.runner.formats import FP8_TOP
from planner.tensorrt.runner.weights import Layer, Reaches

BLOCK: Final = 128
"""Rows and columns of a weight that share a scale."""


def with_scales(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Put the scale of each 8-bit weight beside it.

    Raises
    ------
    InputError
        If a scale is of another shape than its weight can have.
    """
    made = dict(tensors)
    for key, one in tensors.items():
        for name in WEIGHT_SCALES if one.dtype == "fp8" and key.endswith(".weight") else ():
            where = f"{key.removesuffix('weight')}{name}"
            if where in tensors:
                made[key] = _scaled(one, where, tensors[where])
    return made


def _scaled(one: Stored, where: str, scale: Stored) -> Stored:
    numbers, (rows, columns) = scale.numbers(), (one.shape[0], prod(one.shape[1:]))
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    if scale.shape == blocks:
        block = (BLOCK, BLOCK)
    elif numbers.size == 1:
        block, blocks = (rows, columns), (1, 1)
    elif numbers.size == rows:
        block, blocks = (1, columns), (rows, 1)
    else:
        raise InputError(
            f"{where}: {list(scale.shape)}, wanted [1], [{rows}, 1] or {list(blocks)} for "
            f"{list(one.shape)}"
        )
    if not np.all(np.isfinite(numbers)):
        raise InputError(f"{where}: a scale is no number")
    return replace(one, scale=numbers.reshape(blocks), block=block)


def reaches_from(tensors: Mapping[str, Stored], names: Names) -> Reaches:
    """Look up the largest activation of a product; None where the checkpoint has none."""

    def reach(layer: Layer) -> float | None:
        found = [
            float(tensors[where].numbers().max(initial=0))
            for key in names.get(str(layer["weight"]), ())
            for where in _inputs(tensors, key, cast(int, layer["layer"]))
        ]
        largest = max(found, default=0.0) * FP8_TOP
        return largest if 0 < largest < np.inf else None

    return reach


def _inputs(tensors: Mapping[str, Stored], key: str, layer: int) -> Iterator[str]:
    """Scales of what a weight multiplies, of every expert."""
    for expert in count():
        plain = numbered(key.partition("#")[0].rstrip("?"), layer, expert)
        where = f"{plain.removesuffix('weight')}{INPUT_SCALE}"
        if where not in tensors:
            return
        yield where
        if "{expert}" not in key:
            return
