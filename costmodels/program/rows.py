"""Where the rows of spans stand in their streams and after an exchange: one answer for all.

Everything that runs or writes a program (numpy, PyTorch, TensorRT) takes it from here. Spans have
`tokens` that are a number, not an array. The arrays are kept, and cannot be written to.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.program.ops import Attention, Pointwise
from costmodels.program.tensors import Span

Numbers = NDArray[np.int64]
Index = Mapping[str, int]
"""A rank's index along axes."""
_CACHE_SIZE: Final = 4096


def positions(span: Span, index: Index) -> Numbers:
    """Find the positions of the rows that the rank at `index` holds; padding stands at -1.

    Returns
    -------
    ndarray of shape ``[span.rows]``

    >>> positions(Span("text", 5, (("ring", 2),), 2), {"ring": 1})
    array([ 3,  4, -1])
    >>> positions(Span("text", 8, (("ring", 2),), 2, zigzag=True), {"ring": 0})
    array([0, 1, 6, 7])
    """
    return _positions(span, tuple(index[axis] % degree for axis, degree in span.axes))


@lru_cache(_CACHE_SIZE)
def _positions(span: Span, chunks: tuple[int, ...]) -> Numbers:
    rows = np.arange(int(span.padded) if span.axes else int(span.tokens))
    for number, ((_, degree), chunk) in enumerate(zip(span.axes, chunks, strict=True)):
        if span.zigzag and number == 0:
            pieces = rows.reshape(2 * degree, -1)
            rows = np.concatenate([pieces[chunk], pieces[2 * degree - 1 - chunk]])
        else:
            rows = rows.reshape(degree, -1)[chunk]
    places = np.where(rows < span.tokens, rows + span.start, -1)
    return _read_only(np.tile(places, int(span.copies)))


def positions_of(spans: Sequence[Span], index: Index) -> Numbers:
    """Find the positions of the rows of several spans laid end to end; -1 for padding."""
    return np.concatenate([positions(span, index) for span in spans])


def attention_positions(op: Attention, index: Index) -> tuple[Numbers, Numbers]:
    """Find the positions of an attention's queries and keys; -1 for padding.

    Keys that came round a ring, or queries, are those of the rank they set out from.
    """
    origin = dict(index)
    if op.turn is not None:
        axis, step = op.turn
        degree = next(d for span in op.key_spans for name, d in span.axes if name == axis)
        origin[axis] = (index[axis] - step) % degree
    query_index, key_index = (origin, index) if op.asks else (index, origin)
    return positions_of(op.query_spans, query_index), positions_of(op.key_spans, key_index)


def rotary_angles(op: Pointwise, index: Index) -> NDArray[np.float64]:
    """Find the angles that heads are turned by, ``[rows, turned / 2]``: they grow with position."""
    half = op.turned // 2
    places = [positions(span, index) + len(span.stream) / 7 for span in op.spans]
    angles: NDArray[np.float64] = np.concatenate(places)[:, None] * 0.01 ** (np.arange(half) / half)
    return angles


def joined_rows(spans: Sequence[Span], axis: str, degree: int, index: Index) -> Numbers:
    """Find where the rows of all ranks along an axis stand once they are joined.

    Returns
    -------
    ndarray of shape ``[degree, rows]``; -1 for padding

    >>> joined_rows((Span("text", 3, (("ulysses", 2),), 2),), "ulysses", 2, {})
    array([[ 0,  1],
           [ 2, -1]])
    """
    return _joined_rows(tuple(spans), axis, degree, tuple(sorted(index.items())))


@lru_cache(_CACHE_SIZE)
def _joined_rows(
    spans: tuple[Span, ...], axis: str, degree: int, index: tuple[tuple[str, int], ...]
) -> Numbers:
    rows_of_ranks: list[list[Numbers]] = [[] for _ in range(degree)]
    start = 0
    for span in spans:
        target = positions(span.within(axis), dict(index))
        lookup = np.full(int(target.max(initial=0)) + 2, -1)
        real_rows = np.flatnonzero(target >= 0)
        lookup[target[real_rows]] = start + real_rows
        for rank, pieces in enumerate(rows_of_ranks):
            rows = positions(span, {**dict(index), axis: rank})
            pieces.append(np.where(rows >= 0, lookup[rows], -1))
        start += len(target)
    return _read_only(np.stack([np.concatenate(pieces) for pieces in rows_of_ranks]))


def row_sources(spans: Sequence[Span], axis: str, degree: int, index: Index) -> Numbers:
    """Find where each joined row comes from: rank * rows + row there; -1 where it is padding.

    >>> row_sources((Span("text", 3, (("ulysses", 2),), 2),), "ulysses", 2, {})
    array([0, 1, 2])
    """
    targets = joined_rows(spans, axis, degree, index).reshape(-1)
    sources = np.full(sum(int(span.within(axis).rows) for span in spans), -1)
    real_rows = targets >= 0
    sources[targets[real_rows]] = np.flatnonzero(real_rows)
    return sources


def latest_rank(span: Span, axis: str, degree: int, index: Index) -> int:
    """Find the rank along an axis whose rows reach furthest."""
    last_positions = [positions(span, {**index, axis: rank}).max() for rank in range(degree)]
    return int(np.argmax(last_positions))


def chunk_of(span: Span, index: Index) -> int:
    """Find which of all chunks of a span a rank holds.

    >>> chunk_of(Span("image", 8, (("ring", 2), ("ulysses", 2)), 4), {"ring": 1, "ulysses": 0})
    2
    """
    chunk = 0
    for axis, degree in span.axes:
        chunk = chunk * degree + index[axis]
    return chunk


def _read_only(numbers: Numbers) -> Numbers:
    numbers.setflags(write=False)
    return numbers
