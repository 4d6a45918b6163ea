"""Which rows come from where, as runs of neighbours: worked out once, before a program runs."""

from collections.abc import Sequence

import numpy as np
import torch

from costmodels.program.rows import Numbers

Run = tuple[int, int, int]
"""Neighbouring rows: the block they lie in, and from where to where. Block -1 stands for zeros."""


def runs(blocks: Numbers, rows: Numbers) -> list[Run]:
    """Join rows that follow each other within a block.

    >>> runs(np.array([0, 0, 1, -1, -1]), np.array([4, 5, 0, -1, -1]))
    [(0, 4, 6), (1, 0, 1), (-1, 0, 2)]
    """
    if not len(rows):
        return []
    follows = (np.diff(blocks) == 0) & ((np.diff(rows) == 1) | (blocks[1:] < 0))
    starts = [0, *(np.flatnonzero(~follows) + 1).tolist()]
    stops = [*starts[1:], len(rows)]
    joined = []
    for start, stop in zip(starts, stops, strict=True):
        first = max(int(rows[start]), 0)
        joined.append((int(blocks[start]), first, first + stop - start))
    return joined


def from_rows(rows: Numbers) -> list[Run]:
    """Join rows of one block; -1 is a row of zeros."""
    return runs(np.where(rows < 0, -1, 0), rows)


def join(blocks: Sequence[torch.Tensor], wanted: Sequence[Run], dim: int) -> torch.Tensor:
    """Lay runs end to end along `dim`: a view where there is one, else one copy."""
    pieces = []
    for block, start, stop in wanted:
        if block >= 0:
            pieces.append(blocks[block].narrow(dim, start, stop - start))
        else:
            shape = list(blocks[0].shape)
            shape[dim] = stop - start
            pieces.append(blocks[0].new_zeros(shape))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
