"""What a step of an engine costs: one program, priced on a grid of sizes, read in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from costmodels.price import FoundPrices
from costmodels.program import Size
from costmodels.timeline import cost
from planner.lowering import Chunk, alike_places, lower_steps, one_turn
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.speculation import answers, draft_costs
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

ROWS: Final = (
    0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
    1536, 2048,
)  # fmt: skip
"""Sequences that decode; close where each that comes may touch more experts."""
TOKENS: Final = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
PARTS: Final = (0.0, 0.125, 0.5, 1.0)
"""Parts of the longest context at which steps are priced; attention is nearly linear between."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPrices:
    """Seconds of a step by tokens of prompts, their context, sequences that decode, and theirs.

    grids : seconds at each node, row by row, of every kind of place. kinds : of each place of a
    pipeline; those of a kind take the same time. known : seconds at the nodes of length of every
    kind, of steps without prompts, by their sequences; it is added to.
    """

    nodes: tuple[list[float], list[float], list[float], list[float]]
    grids: list[list[float]]
    kinds: tuple[int, ...]
    known: dict[float, list[list[float]]] = field(default_factory=dict)

    def __call__(self, tokens: float, context: float, rows: float, length: float) -> list[float]:
        """Read the grid at every kind of place, linear in each size."""
        k, part = _node_below(self.nodes[3], length)
        seconds = []
        if not tokens:
            for line in self.known.get(rows) or self._row_lines(rows):
                below = line[k]
                seconds.append(below + part * (line[k + 1] - below))
            return seconds
        sizes, contexts, counts, lengths = self.nodes
        (t, ta), (c, ca) = _node_below(sizes, tokens), _node_below(contexts, context)
        r, ra = _node_below(counts, rows)
        row = len(lengths)
        plane = len(counts) * row
        low = (t * len(contexts) + c) * plane + r * row + k
        high = low + len(contexts) * plane
        after = low + plane
        for grid in self.grids:
            if rows:
                at_low, at_high = (
                    _interpolated(grid, low, row, ra, part),
                    _interpolated(grid, high, row, ra, part),
                )
                if ca:
                    at_low += ca * (_interpolated(grid, after, row, ra, part) - at_low)
                    at_high += ca * (_interpolated(grid, high + plane, row, ra, part) - at_high)
            else:  # nobody decodes, at whatever length
                at_low = grid[low] + ca * (grid[after] - grid[low])
                at_high = grid[high] + ca * (grid[high + plane] - grid[high])
            seconds.append(at_low + ta * (at_high - at_low))
        return seconds

    def _row_lines(self, rows: float) -> list[list[float]]:
        """Read the grid where so many sequences decode, and nothing else runs, by length, once."""
        r, part = _node_below(self.nodes[2], rows)
        row = len(self.nodes[3])
        low, high, end = r * row, (r + 1) * row, (r + 2) * row
        ends = (zip(grid[low:high], grid[high:end], strict=True) for grid in self.grids)
        lines = self.known[rows] = [[a + part * (b - a) for a, b in pairs] for pairs in ends]
        return lines

    def at_places(self, tokens: float, context: float, rows: float, length: float) -> list[float]:
        """Read the grid at every place of a pipeline."""
        seconds = self(tokens, context, rows, length)
        return [seconds[kind] for kind in self.kinds]


def _interpolated(grid: list[float], low: int, row: int, ra: float, ka: float) -> float:
    """Read a grid between the node at `low` and the next one, in its row and in the next row.

    >>> _interpolated([0.0, 1.0, 10.0, 11.0], 0, 2, 0.5, 0.25)
    5.25
    """
    a, c = grid[low], grid[low + row]
    below = a + ka * (grid[low + 1] - a)
    return below + ra * (c + ka * (grid[low + row + 1] - c) - below)


def _node_below(nodes: list[float], value: float) -> tuple[int, float]:
    """Find the node below a value, and how far it is to the next; beyond the ends it goes on.

    >>> _node_below([0.0, 2.0, 4.0], 3.0), _node_below([0.0, 2.0, 4.0], 5.0)
    ((1, 0.5), (1, 1.5))
    """
    low = bisect_right(nodes, value, 1, len(nodes) - 1) - 1
    below = nodes[low]
    return low, (value - below) / (nodes[low + 1] - below)


def step_prices(
    scenario: Scenario, plan: Plan, *, tokens: int, prompt: int, longest: int, rows: int
) -> StepPrices:
    """Price the steps of one engine of a plan, at each place of its pipeline.

    tokens : of prompts in a step, at most. prompt : of a request, on average. longest : context.
    rows : sequences that decode, at most.
    """
    prompts, decodes = _nodes_up_to(TOKENS, tokens), _nodes_up_to(ROWS, rows)
    contexts = [0.0, float(longest)]
    lengths = sorted({max(1.0, share * longest) for share in PARTS})
    t, c, r, k = np.ix_(prompts, contexts, decodes, lengths)
    chunk_tokens = np.minimum(np.maximum(t, 1.0), float(prompt))
    chunks = (
        Chunk(
            name="prompts",
            tokens=_size(chunk_tokens),
            context=_size(c),
            sequences=_size(t / chunk_tokens),
        ),
        answers(scenario.workload, _size(k), _size(r)),
    )
    model, workload = scenario.model, replace(scenario.workload, cached=0)
    target = scenario.deployment.target(model, plan)
    shape = (len(prompts), len(contexts), len(decodes), len(lengths))
    prices = FoundPrices()

    def priced(place: int) -> Column:
        program = lower_steps(model, workload, plan, [chunks], place)
        seconds = cost(one_turn(program, place), target, prices).amid
        if workload.speculation is not None and place == plan.degree("pp") - 1:
            seconds = seconds + draft_costs(scenario, plan, *chunks).amid
        return np.broadcast_to(seconds, shape)

    place_kinds = alike_places(model, workload, plan)
    kind_prices = {place: priced(place) for place in sorted(set(place_kinds))}
    return StepPrices(
        nodes=(prompts, contexts, decodes, lengths),
        grids=[seconds.ravel().tolist() for seconds in kind_prices.values()],
        kinds=tuple(list(kind_prices).index(place) for place in place_kinds),
    )


def _size(values: object) -> Size:
    """Take sizes of a grid, which need not be whole, for those of a program."""
    return cast(Size, values)


def _nodes_up_to(nodes: Sequence[int], maximum: int) -> list[float]:
    """Keep the nodes up to the first that is as large as the most that there is, or that itself.

    Loads of one plan are thus read between the same nodes, whichever are followed together.

    >>> _nodes_up_to((0, 1, 2, 4), 3), _nodes_up_to((0, 1, 2, 4), 9)
    ([0.0, 1.0, 2.0, 4.0], [0.0, 1.0, 2.0, 4.0, 9.0])
    """
    largest = next((node for node in nodes if node >= maximum), maximum)
    return [float(node) for node in nodes if node < maximum] + [float(largest)]
