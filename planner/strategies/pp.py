"""Pipeline parallelism: each rank holds some of the layers; forwards follow one another.

M forwards of a step pass P stages in M + P - 1 turns, so one alone gains nothing but memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.models import Block
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "pp"


class Pipeline(Strategy):
    """Cut the layers."""

    axis = AXIS
    nesting = 1

    def divide(self, share: Share, degree: int) -> Share:
        return replace(share, stages=degree)

    def objections(self, proposal: Proposal, degree: int) -> Iterator[str]:
        """Object to fewer layers than stages, and to a tower run ahead of the steps."""
        layers = sum(block.count for block in proposal.model.blocks)
        if layers < degree:
            yield f"{layers} layers for {degree} pipeline stages"
        if proposal.model.reuses and proposal.workload.habits.text_tower == "once":
            yield "a text tower run once ahead of the steps is not cut into pipeline stages"


STRATEGY = Pipeline()


def stages(
    blocks: Sequence[Block], weights: Sequence[float], degree: int
) -> list[list[tuple[Block, int]]]:
    """Blocks of every stage, with the number of the first layer of each.

    blocks, weights : the model's blocks, and the cost of one layer of each in any unit.

    Returns a list for each stage of (block with the count it has in this stage, layers of that
    block in earlier stages).
    """
    costs = [w for b, w in zip(blocks, weights, strict=True) for _ in range(b.count)]
    return [_between(blocks, *ends) for ends in pairwise(_bounds(np.array(costs), degree).tolist())]


def cut_numbers(
    counts: Sequence[int], weights: NDArray[np.float64], degree: int
) -> NDArray[np.intp]:
    """Give each request the number of its cut; layers cost ``weights[request, block]``.

    counts : layers of each block.
    """
    cuts = _bounds(np.repeat(weights, counts, axis=-1), degree)
    return np.unique(cuts, axis=0, return_inverse=True)[1].reshape(-1)


def _between(blocks: Sequence[Block], first: int, last: int) -> list[tuple[Block, int]]:
    result, start = [], 0
    for block in blocks:
        low, high = max(first, start), min(last, start + block.count)
        if high > low:
            result.append((replace(block, count=high - low), low - start))
        start += block.count
    return result


def _bounds(costs: NDArray[np.float64], degree: int) -> NDArray[np.intp]:
    """Cut rows of costs into `degree` pieces, none empty, whose largest is near the smallest.

    >>> _bounds(np.array([[1, 1, 1, 1], [3, 1, 1, 1]]), 2).tolist()
    [[0, 2, 4], [0, 1, 4]]
    """
    count, whole = costs.shape[-1], np.cumsum(costs, axis=-1)
    middles = whole - costs / 2
    bounds = [np.zeros(costs.shape[:-1], np.intp)]
    for piece in range(1, degree):
        goal = whole[..., -1:] * piece / degree
        bound = np.maximum(np.sum(middles <= goal, axis=-1), bounds[-1] + 1)
        bounds.append(np.minimum(bound, count - (degree - piece)))
    return np.stack([*bounds, np.full_like(bounds[0], count)], axis=-1)
