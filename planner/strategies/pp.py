"""Pipeline parallelism: each rank holds some of the layers; forwards follow one another.

M forwards of a step pass P stages in M + P - 1 turns, so one alone gains nothing but memory.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from planner.models import Block, Model
from planner.strategies.base import Proposal, Share, Strategy

AXIS = "pp"


class Pipeline(Strategy):
    """Cut the layers into stages, one for each place of a pipeline."""

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


def stages(model: Model, weights: Sequence[float], degree: int) -> list[list[tuple[Block, int]]]:
    """Give the layers of every stage, as `runs` has them.

    weights : cost of one layer of each of the model's blocks, in any unit.
    """
    kinds = model.kinds
    ends = _bounds(np.array([weights[kind] for kind in kinds]), degree).tolist()
    return [runs(model.blocks, kinds, *cut) for cut in pairwise(ends)]


def runs(
    blocks: Sequence[Block], kinds: Sequence[int], first: int, last: int
) -> list[tuple[Block, int]]:
    """Give layers `first` to `last` in order, equal neighbours together.

    kinds : number of the block of each layer of all.

    Returns (block with the count it has here, layers of that block ahead of these).
    """
    ahead, result = Counter(kinds[:first]), []
    for kind, equal in groupby(kinds[first:last]):
        count = len(list(equal))
        result.append((replace(blocks[kind], count=count), ahead[kind]))
        ahead[kind] += count
    return result


def gathered(model: Model, layers: Sequence[tuple[Block, int]]) -> list[tuple[Block, int]]:
    """Take all layers of a kind together, as the model's blocks do: they cost as much so."""
    found: dict[str, tuple[Block, int]] = {}
    for block, first in layers:
        same, start = found.get(block.name, (replace(block, count=0), first))
        found[block.name] = replace(same, count=same.count + block.count), start
    return [found[block.name] for block in model.blocks if block.name in found]


def cut_numbers(
    kinds: Sequence[int], weights: NDArray[np.float64], degree: int
) -> NDArray[np.intp]:
    """Give each request the number of its cut; layers cost ``weights[request, block]``.

    kinds : number of the block of each layer.
    """
    cuts = _bounds(weights[..., list(kinds)], degree)
    return np.unique(cuts, axis=0, return_inverse=True)[1].reshape(-1)


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
