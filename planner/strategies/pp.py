"""Pipeline parallelism: each rank holds some of the layers; forwards follow one another.

M forwards of a step pass P stages in M + P - 1 turns, so one alone gains nothing but memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodels.sizes import Real, is_array, larger, smaller
from planner.models import Block, Model
from planner.strategies.base import Proposal, Share, Strategy

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    ends = _bounds([weights[kind] for kind in kinds], degree)
    return [runs(model.blocks, kinds, *map(int, cut)) for cut in pairwise(ends)]


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


def merged_kinds(model: Model, layers: Sequence[tuple[Block, int]]) -> list[tuple[Block, int]]:
    """Take all layers of a kind together, as the model's blocks do: they cost as much so."""
    merged: dict[str, tuple[Block, int]] = {}
    for block, first in layers:
        merged_block, start = merged.get(block.name, (replace(block, count=0), first))
        merged[block.name] = replace(merged_block, count=merged_block.count + block.count), start
    return [merged[block.name] for block in model.blocks if block.name in merged]


def cut_numbers(kinds: Sequence[int], weights: Sequence[Real], degree: int) -> NDArray[np.intp]:
    """Give each request the number of its cut; layers cost what `weights` say of each block.

    kinds : number of the block of each layer.
    """
    numbers = np.zeros(np.broadcast(*weights).shape, np.intp)
    for cut in _bounds([weights[kind] for kind in kinds], degree):
        if is_array(cut):
            numbers = np.unique(numbers * len(kinds) + cut, return_inverse=True)[1]
    return numbers


def _bounds(costs: Sequence[Real], degree: int) -> list[Real]:
    """Cut layers into `degree` pieces, none empty, whose largest costs near the smallest.

    costs : of each layer; arrays of what each request makes of it.

    >>> _bounds([1.0, 1.0, 1.0, 1.0], 2), _bounds([3.0, 1.0, 1.0, 1.0], 2)
    ([0, 2, 4], [0, 1, 4])
    """
    count, totals = len(costs), list(accumulate(costs))
    middles = [total - cost / 2 for total, cost in zip(totals, costs, strict=True)]
    bounds: list[Real] = [0]
    for piece in range(1, degree):
        goal = totals[-1] * piece / degree
        ahead: Any = sum(middle <= goal for middle in middles)
        bounds.append(smaller(larger(ahead, bounds[-1] + 1), count - (degree - piece)))
    return [*bounds, count]
