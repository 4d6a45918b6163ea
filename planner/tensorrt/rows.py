"""Which rows and features a rank takes from where, worked out before a network is written."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from costmodels.program.ops import Span
from costmodels.program.rows import positions

Numbers = NDArray[np.int64]
Place = tuple[tuple[str, int], ...]


def standing(spans: Sequence[Span], index: Mapping[str, int]) -> Numbers:
    """Positions of the rows of several spans laid end to end; -1 for padding."""
    return np.concatenate([_standing(span, tuple(sorted(index.items()))) for span in spans])


@cache
def _standing(span: Span, place: Place) -> Numbers:
    return positions(span, dict(place))


def sources(spans: Sequence[Span], axis: str, degree: int, index: Mapping[str, int]) -> Numbers:
    """Where each joined row comes from: rank * rows + row there; -1 where it is padding.

    >>> sources((Span("text", 3, (("ulysses", 2),), 2),), "ulysses", 2, {})
    array([0, 1, 2])
    """
    return _sources(tuple(spans), axis, degree, tuple(sorted(index.items())))


@cache
def _sources(spans: tuple[Span, ...], axis: str, degree: int, place: Place) -> Numbers:
    there = _targets(spans, axis, degree, place)
    joined = sum(int(span.within(axis).rows) for span in spans)
    found = np.full(joined, -1)
    kept = there >= 0
    found[there[kept]] = np.flatnonzero(kept)
    return found


def targets(spans: Sequence[Span], axis: str, degree: int, index: Mapping[str, int]) -> Numbers:
    """Where the rows of all ranks along an axis stand when joined, rank by rank; -1 for padding.

    >>> targets((Span("text", 3, (("ulysses", 2),), 2),), "ulysses", 2, {})
    array([ 0,  1,  2, -1])
    """
    return _targets(tuple(spans), axis, degree, tuple(sorted(index.items())))


@cache
def _targets(spans: tuple[Span, ...], axis: str, degree: int, place: Place) -> Numbers:
    index = dict(place)
    found: list[list[Numbers]] = [[] for _ in range(degree)]
    start = 0
    for span in spans:
        whole = span.within(axis)
        target = positions(whole, index)
        lookup = np.full(int(target.max(initial=0)) + 2, -1)
        there = np.flatnonzero(target >= 0)
        lookup[target[there]] = start + there
        for rank in range(degree):
            rows = positions(span, {**index, axis: rank})
            found[rank].append(np.where(rows >= 0, lookup[rows], -1))
        start += int(whole.rows)
    return np.concatenate([np.concatenate(pieces) for pieces in found])
