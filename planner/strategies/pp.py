"""Pipeline parallelism: each rank holds some of the layers; forwards follow one another.

M forwards of a step pass P stages in M + P - 1 turns, so one alone gains nothing but memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

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
    return [_between(blocks, *ends) for ends in pairwise(_bounds(costs, degree))]


def _between(blocks: Sequence[Block], first: int, last: int) -> list[tuple[Block, int]]:
    result, start = [], 0
    for block in blocks:
        low, high = max(first, start), min(last, start + block.count)
        if high > low:
            result.append((replace(block, count=high - low), low - start))
        start += block.count
    return result


def _bounds(costs: Sequence[float], degree: int) -> list[int]:
    """Cut a row of costs into `degree` pieces, none empty, whose largest is near the smallest.

    >>> _bounds([1, 1, 1, 1], 2), _bounds([3, 1, 1, 1], 2)
    ([0, 2, 4], [0, 1, 4])
    """
    bounds, done, total = [0], 0.0, sum(costs)
    for piece in range(1, degree):
        goal, index = total * piece / degree, bounds[-1]
        while index < len(costs) - (degree - piece) and (
            index == bounds[-1] or done + costs[index] / 2 <= goal
        ):
            done += costs[index]
            index += 1
        bounds.append(index)
    return [*bounds, len(costs)]
