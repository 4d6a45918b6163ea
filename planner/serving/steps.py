"""What a step of an engine costs: one program, priced on a grid of sizes, read in between."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from costmodels.price import Prices
from costmodels.program import Size
from costmodels.timeline import cost
from planner.lowering import Chunk, alike_places, lower_steps, one_turn
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.speculation import answers, draft_costs
from topology.base.values import dataclass

ROWS: Final = (0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
TOKENS: Final = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
Column = NDArray[np.float64]
PARTS: Final = (0.0, 0.125, 0.5, 1.0)
"""Parts of the longest context at which steps are priced; attention is nearly linear between."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPrices:
    """Seconds of a step by tokens of prompts, their context, sequences that decode, and theirs.

    kinds : of each place of a pipeline; those of a kind take the same time. seconds : of every kind
    at each node.
    """

    nodes: tuple[list[float], list[float], list[float], list[float]]
    seconds: list[list[list[list[list[float]]]]]
    kinds: tuple[int, ...]

    def __call__(self, tokens: float, context: float, rows: float, length: float) -> list[float]:
        """Read the grid at every place, linear in each size."""
        decoding = _place(self.nodes[2], rows), _place(self.nodes[3], length)
        if not tokens:
            seconds = _between(self.seconds[0][0], *decoding)
        else:
            t, ta = _place(self.nodes[0], tokens)
            c, ca = _place(self.nodes[1], context)
            seconds = [0.0] * len(self.seconds[0][0][0][0])
            for part, plane in ((1 - ta, t), (ta, t + 1)):
                for share, line in ((part * (1 - ca), c), (part * ca, c + 1)):
                    if share:
                        here = _between(self.seconds[plane][line], *decoding)
                        seconds = [s + share * h for s, h in zip(seconds, here, strict=True)]
        return seconds if len(self.kinds) == 1 else [seconds[kind] for kind in self.kinds]


def _between(
    grid: list[list[list[float]]], rows: tuple[int, float], length: tuple[int, float]
) -> list[float]:
    """Read a grid by sequences that decode and their lengths, for every kind of place."""
    (r, ra), (k, ka) = rows, length
    low, high = grid[r], grid[r + 1]
    return [
        (below := a + ka * (b - a)) + ra * (c + ka * (d - c) - below)
        for a, b, c, d in zip(low[k], low[k + 1], high[k], high[k + 1], strict=True)
    ]


def _place(nodes: Sequence[float], value: float) -> tuple[int, float]:
    """Find the node below a value, and how far it is to the next; beyond the ends it goes on.

    >>> _place([0.0, 2.0, 4.0], 3.0), _place([0.0, 2.0, 4.0], 5.0)
    ((1, 0.5), (1, 1.5))
    """
    low, last = bisect_right(nodes, value) - 1, len(nodes) - 2
    if low > last:
        low = last
    elif low < 0:
        low = 0
    below = nodes[low]
    return low, (value - below) / (nodes[low + 1] - below)


def step_prices(
    scenario: Scenario, plan: Plan, *, tokens: int, prompt: int, longest: int, rows: int
) -> StepPrices:
    """Price the steps of one engine of a plan, at each place of its pipeline.

    Parameters
    ----------
    tokens : of prompts in a step, at most. prompt : of a request, on average. longest : context.
    rows : sequences that decode, at most.
    """
    prompts, decodes = _up_to(TOKENS, tokens), _up_to(ROWS, rows)
    contexts = [0.0, float(longest)]
    lengths = sorted({max(1.0, part * longest) for part in PARTS})
    t, c, r, k = np.ix_(prompts, contexts, decodes, lengths)
    each = np.minimum(np.maximum(t, 1.0), float(prompt))
    chunks = (
        Chunk(name="prompts", tokens=_size(each), context=_size(c), sequences=_size(t / each)),
        answers(scenario.workload, _size(k), _size(r)),
    )
    model, workload = scenario.model, scenario.workload
    target = scenario.deployment.target(model, plan)
    shape = (len(prompts), len(contexts), len(decodes), len(lengths))
    prices: Prices = {}

    def priced(place: int) -> Column:
        program = lower_steps(model, workload, plan, [chunks], place)
        seconds = cost(one_turn(program, place), target, prices).time
        if workload.speculation is not None and place == plan.degree("pp") - 1:
            seconds = seconds + draft_costs(scenario, plan, *chunks).time
        return np.broadcast_to(seconds, shape)

    alike = alike_places(model, workload, plan)
    known = {place: priced(place) for place in sorted(set(alike))}
    return StepPrices(
        nodes=(prompts, contexts, decodes, lengths),
        seconds=np.stack(list(known.values()), axis=-1).tolist(),
        kinds=tuple(list(known).index(place) for place in alike),
    )


def _size(values: object) -> Size:
    """Take sizes of a grid, which need not be whole, for those of a program."""
    return cast(Size, values)


def _up_to(nodes: Sequence[int], most: int) -> list[float]:
    """Keep the nodes up to the most that there is, which is the last.

    >>> _up_to((0, 1, 2, 4), 3)
    [0.0, 1.0, 2.0, 3.0]
    """
    return [float(node) for node in nodes if node < most] + [float(most)]
