r"""What the busiest of the ranks that share experts has to multiply.

Weights that no row touches are not read, and the rows of each expert are padded to whole tiles. An
expert that draws its tokens by chance, a share p of them, is touched with probability

.. math:: 1 - (1 - p)^{tokens}

Four numbers of tokens an octave are counted; what lies between them is interpolated.
"""

from __future__ import annotations

from functools import lru_cache
from math import log, log2
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodels.expert_routing import Routing, relevant_sizes
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Real = NDArray[np.float64]

HEIGHTS: Final = (16.0, 32.0, 64.0, 128.0, 256.0)
"""Rows of the tiles that a product may be cut into."""
_POINTS: Final = 4  # numbers of tokens an octave that are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Experts touched, rows, and tiles of each of the `HEIGHTS`, which are one axis more, the last.

    Less than a row of an expert is the chance of one. crowded : whether there are more tokens, of
    all ranks, than experts of this one.
    """

    touched: Real
    rows: Real
    tiles: Real
    crowded: NDArray[np.bool_]


def load(tokens: Real, routing: Routing, parts: int = 1) -> ExpertLoad:
    """Give the load of the busiest of `parts`, or of the one that `routing` asks for.

    tokens : of all ranks together.

    >>> one = load(np.array([1.0, 64.0]), Routing(experts=128, top_k=8))
    >>> one.touched.tolist(), one.rows.tolist(), one.tiles[:, 0].tolist()
    ([8.0, 128.0], [8.0, 512.0], [8.0, 128.0])
    """
    tokens = np.asarray(tokens, float)
    return (
        _load(tokens, routing, parts)
        if tokens.ndim
        else _cached_load(tokens.item(), routing, parts)
    )


@lru_cache(maxsize=4096)
def _cached_load(tokens: float, routing: Routing, parts: int) -> ExpertLoad:
    """Count once for all products of a layer."""
    return _load(np.asarray(tokens), routing, parts)


def _load(tokens: Real, routing: Routing, parts: int) -> ExpertLoad:
    part_experts = (routing.experts + routing.copies) // parts
    crowded = tokens > part_experts
    if not routing.exponent and not routing.seen:
        rows = np.ceil(tokens * routing.top_k / parts)
        touched = np.minimum(rows, part_experts)
        rows_each = (rows / np.maximum(touched, 1.0))[..., None]
        tiles = touched[..., None] * np.ceil(rows_each / HEIGHTS)
        return ExpertLoad(touched=touched, rows=rows, tiles=tiles, crowded=crowded)
    octave_points = max(
        1, int(np.ceil(_POINTS * log2(max(float(np.max(tokens, initial=1.0)), 2.0))))
    )
    sizes = np.round(2.0 ** (np.arange(octave_points + 1) / _POINTS)).tolist()
    near_sizes = relevant_sizes(
        tokens, np.array([0.0, *dict.fromkeys(sizes)])
    )  # np.unique loads numpy.ma
    computed = np.array([_counts_at(routing, n, parts) for n in near_sizes])
    counts = [np.interp(tokens, near_sizes, column) for column in computed.T]
    tiles = np.stack(counts[2:], axis=-1)
    return ExpertLoad(touched=counts[0], rows=counts[1], tiles=tiles, crowded=crowded)


@lru_cache(maxsize=4096)
def _counts_at(routing: Routing, tokens: float, parts: int) -> Real:
    """Count touched experts, rows and tiles at one number of tokens."""
    if not tokens:
        return np.zeros(2 + len(HEIGHTS))
    by_chance = routing.chance or routing.seen
    part_counts = routing.beside_busiest(tokens, parts)
    if part_counts is not None:
        if not part_counts.sum():
            return np.zeros(2 + len(HEIGHTS))
        return _chance_counts(part_counts, tokens, 1) if by_chance else _whole_counts(part_counts)
    if routing.seen and not routing.copies:  # one part may touch more, and another have more rows
        part_loads = np.unique(routing.held(tokens, parts), axis=0)
        busy_parts = part_loads[part_loads.sum(axis=1) > 0]
        largest_counts: Real = np.max(
            [_chance_counts(counts, tokens, parts) for counts in busy_parts], axis=0
        )
        return largest_counts
    counts = routing.busiest(tokens, parts)
    return _chance_counts(counts, tokens, parts) if by_chance else _whole_counts(counts)


def _whole_counts(counts: Real) -> Real:
    """Count of experts that take `counts` of rows, a whole number each."""
    row_counts = np.round(counts)  # of rows, as a router gives them out
    missing, empty = max(counts.sum() - row_counts.sum(), 0.0), np.count_nonzero(row_counts == 0)
    touched = min(np.count_nonzero(row_counts) + min(missing, empty), float(counts.sum()))
    tiles = np.ceil(row_counts[:, None] / HEIGHTS).sum(axis=0) + min(missing, empty)
    return np.array([touched, counts.sum(), *tiles])


def _chance_counts(counts: Real, tokens: float, parts: int) -> Real:
    """Count of experts that take what `counts` expects by chance; of `parts`, the unluckiest."""
    mean_rows, share = float(counts.sum()), counts / tokens
    luck = 1.0 + np.sqrt(2.0 * log(parts) / mean_rows)
    trials = min(tokens * luck, tokens / float(share.max()))
    touched = -np.expm1(trials * np.log1p(-np.minimum(share, 1.0 - np.finfo(float).eps)))
    rows_each = trials * share / np.maximum(touched, np.finfo(float).tiny)
    padded = rows_each[:, None] / HEIGHTS + 0.5 * (1.0 - 1.0 / np.array(HEIGHTS))
    tiles = (touched[:, None] * np.maximum(padded, 1.0)).sum(axis=0)
    return np.array([touched.sum(), trials * share.sum(), *tiles])
