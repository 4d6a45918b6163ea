"""Which keys every query sees, as pieces that attention kernels know: all of them, or a diagonal.

Positions on a cut, padded or zigzag sequence make masks that no fast kernel takes. Cut into runs of
queries, what is left is a rectangle, a square with a diagonal, or nothing at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.program.ops import Attention
from costmodels.program.rows import Numbers, attention_positions
from validate.torch.moves import Run, from_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Keys that a run of queries sees.

    diagonal : query i sees the first ``keys - queries + i + 1`` of them, and of those the last
    `window` where there is one.
    """

    keys: tuple[Run, ...]
    diagonal: bool = False
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRun:
    """Neighbouring queries, and the pieces of keys that they see; none where they see nothing."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


def query_runs(op: Attention, index: Mapping[str, int]) -> list[QueryRun]:
    """Cut an attention into runs of queries.

    Examples
    --------
    Two ranks in zigzag order, the first one's queries at 0, 1, 6, 7 on keys at 2, 3, 4, 5:

    >>> from costmodels.program.ops import Span, Tensor
    >>> x, span = Tensor("x", (1, 4, 8)), Span("t", 8, (("ring", 2),), 2, zigzag=True)
    >>> op = Attention(q=x, k=x, v=x, out=x, heads=1, key_value_heads=1, size=8, causal=True,
    ...     query_spans=(span,), key_spans=(span,), turn=("ring", 1))
    >>> for run in query_runs(op, {"ring": 0}):
    ...     print(run.start, run.stop, run.pieces)
    0 2 ()
    2 4 (Piece(keys=((0, 0, 4),), diagonal=False, window=0),)
    """
    queries, keys = attention_positions(op, index)
    kept = np.flatnonzero(keys >= 0)
    if not op.causal and not op.window:
        return [QueryRun(start=0, stop=len(queries), pieces=_piece(kept))]
    if np.any(np.diff(keys[kept]) <= 0):
        raise AssertionError(f"keys of {op.out.name} are not in the order of their positions")
    starts, stops = _bounds(op, queries, keys[kept])
    return [_run(op, kept, starts, stops, where) for where in _cuts(stops)]


def _bounds(op: Attention, queries: Numbers, keys: Numbers) -> tuple[Numbers, Numbers]:
    """First key that each query sees, and the one after the last."""
    stops = np.full(len(queries), len(keys))
    if op.causal:
        stops = np.searchsorted(keys, queries, side="right")
    starts = np.zeros(len(queries), dtype=int)
    if op.window:
        starts = np.searchsorted(keys, queries - op.window, side="right")
    return starts, stops


def _cuts(stops: Numbers) -> list[tuple[int, int]]:
    """Find runs of queries that see as many keys, or each one more than the query before."""
    rises, cuts, start = np.diff(stops), [], 0
    for place in range(1, len(stops)):
        rise = int(rises[place - 1])
        if rise not in (0, 1) or (place - 1 > start and rise != rises[place - 2]):
            cuts.append((start, place))
            start = place
    return [*cuts, (start, len(stops))]


def _run(
    op: Attention, kept: Numbers, starts: Numbers, stops: Numbers, where: tuple[int, int]
) -> QueryRun:
    start, stop = where
    first, last = int(stops[start]), int(stops[stop - 1])
    if first == last:
        low = int(starts[start])
        return QueryRun(start=start, stop=stop, pieces=_piece(kept[low:first]))
    if op.window:
        pieces = _piece(kept[:last], diagonal=True, window=op.window)
    else:
        pieces = (*_piece(kept[: first - 1]), *_piece(kept[first - 1 : last], diagonal=True))
    return QueryRun(start=start, stop=stop, pieces=pieces)


def _piece(kept: Numbers, *, diagonal: bool = False, window: int = 0) -> tuple[Piece, ...]:
    if not len(kept):
        return ()
    return (Piece(keys=tuple(from_rows(kept)), diagonal=diagonal, window=window),)
