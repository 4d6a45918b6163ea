"""A decoder's cache of keys and values: room for every row, of which so many are filled.

A prompt fills it from the first row on; a step writes its row in place behind those that are
filled, and sees these and its own. How many are filled is an input, of each sample its own, so that
one engine runs every step, and prompts may be shorter than the engine's. Keys and values lie apart,
heads in front, as TensorRT's layer for caches wants them [1]_.

References
----------
.. [1] docs.nvidia.com/deeplearning/tensorrt operators/KVCacheUpdate
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.program import Part, Program, Rearrange
from planner.tensorrt.draft import Draft
from planner.tensorrt.network import Value

FILLED: Final = "filled"
"""Input that says how many rows of a cache are filled, of each sample, ``[b, 1, 1]``."""
PROMPTED: Final = "prompted"
"""Input that says how many rows of a prompt are read, where latents stand behind it."""
PARTS: Final = ("prefill", "decode")
"""What networks of a decoder do, of which each stage of a pipeline has its own."""


def room_of(program: Program) -> int:
    """Count the rows that a cache needs: those seen by the last step. 0 where none is kept."""
    grown_rows = [
        int(op.outputs[0].shape[1])
        for stage in program.stages
        if stage.name == "decode" and stage.count
        for op in stage.walk()
        if isinstance(op, Rearrange) and op.move == "append"
    ]
    return max(grown_rows, default=0)


def written_rows(
    draft: Draft, caches: Sequence[Value], new: Value, parts: Sequence[Part]
) -> list[Value]:
    """Write new rows, ``[b, rows, features]``, into a cache of each part of their features.

    Behind those that are filled where rows stand there, else from the first on.
    """
    batch, rows, _ = new.shape
    if draft.moving and draft.filled is not None:
        start = draft.place(draft.filled, draft.room, (batch,))
    else:
        start = draft.constant(np.zeros(batch, np.int32), "first")
    new_caches, first_feature = [], 0
    for cache, part in zip(caches, parts, strict=True):
        part_rows = draft.take(new, first_feature, part.units * part.size, 2, f"{cache.name}.rows")
        shape = (batch, rows, part.units, part.size)
        heads = draft.shuffle(part_rows, shape, f"{cache.name}.heads", second=(0, 2, 1, 3))
        new_caches.append(
            draft.add("cache", (cache, heads, start), cache.shape, cache.dtype, f"new.{cache.name}")
        )
        first_feature += part.units * part.size
    return new_caches


def seen_rows(draft: Draft, caches: Sequence[Value], name: str) -> Value:
    """Lay the parts of a cache side by side, ``[b, room, features]``; whoever takes one finds it.

    Attention then reads heads as they lie.
    """
    parts = []
    for cache in caches:
        batch, units, room, size = cache.shape
        width = units * size
        rows = draft.shuffle(cache, (batch, room, width), f"{cache.name}.rows", first=(0, 2, 1, 3))
        draft.made["heads", rows.name] = cache
        parts.append(rows)
    joined, first_feature = draft.concat(parts, 2, name), 0
    for rows in parts:
        draft.made["part", joined.name, 2, first_feature, rows.shape[2]] = rows
        first_feature += rows.shape[2]
    return joined


def last_filled(draft: Draft, x: Value, name: str) -> Value:
    """Pick the last row of a prompt, which may have fewer than the engine takes."""
    assert draft.filled is not None
    unit = draft.scalar(1.0, draft.filled, "one")
    last_number = draft.elementwise("SUB", draft.filled, unit, f"{name}.number")
    return draft.row(x, last_number, name)
