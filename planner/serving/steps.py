"""What a step of an engine costs: one program, priced on a grid of sizes, read in between."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from costmodels.program import Size
from costmodels.timeline import cost
from planner.lowering import Chunk, alike_places, lower_steps, one_turn
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.speculation import answers, draft_costs
from topology.base.values import dataclass

ROWS: Final = (0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
TOKENS: Final = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
PARTS: Final = (0.0, 0.125, 0.5, 1.0)
"""Parts of the longest context at which steps are priced; attention is nearly linear between."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPrices:
    """Seconds of a step by tokens of prompts, their context, sequences that decode, and theirs."""

    nodes: tuple[list[float], list[float], list[float], list[float]]
    seconds: list[list[list[list[float]]]]

    def __call__(self, tokens: float, context: float, rows: float, length: float) -> float:
        """Read the grid, linear in each size."""
        r, ra = _place(self.nodes[2], rows)
        k, ka = _place(self.nodes[3], length)
        if not tokens:
            low, high = self.seconds[0][0][r], self.seconds[0][0][r + 1]
            below = low[k] + ka * (low[k + 1] - low[k])
            return below + ra * (high[k] + ka * (high[k + 1] - high[k]) - below)
        t, ta = _place(self.nodes[0], tokens)
        c, ca = _place(self.nodes[1], context)
        total = 0.0
        for part, plane in ((1 - ta, t), (ta, t + 1)):
            if not part:
                continue
            for share, line in ((part * (1 - ca), c), (part * ca, c + 1)):
                if not share:
                    continue
                low, high = self.seconds[plane][line][r], self.seconds[plane][line][r + 1]
                below = low[k] + ka * (low[k + 1] - low[k])
                above = high[k] + ka * (high[k + 1] - high[k])
                total += share * (below + ra * (above - below))
        return total


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
) -> tuple[StepPrices, ...]:
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
    nodes = (prompts, contexts, decodes, lengths)

    def priced(place: int) -> StepPrices:
        program = lower_steps(model, workload, plan, [chunks], place)
        seconds = cost(one_turn(program, place), target).time
        if workload.speculation is not None and place == plan.degree("pp") - 1:
            seconds = seconds + draft_costs(scenario, plan, *chunks).time
        return StepPrices(nodes, np.broadcast_to(seconds, shape).tolist())

    alike = alike_places(model, workload, plan)
    known = {place: priced(place) for place in set(alike)}
    return tuple(known[place] for place in alike)


def _size(values: object) -> Size:
    """Take sizes of a grid, which need not be whole, for those of a program."""
    return cast(Size, values)


def _up_to(nodes: Sequence[int], most: int) -> list[float]:
    """Keep the nodes up to the most that there is, which is the last.

    >>> _up_to((0, 1, 2, 4), 3)
    [0.0, 1.0, 2.0, 3.0]
    """
    return [float(node) for node in nodes if node < most] + [float(most)]
