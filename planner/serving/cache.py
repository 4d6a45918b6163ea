"""Room for keys and values: what is left of a GPU's memory beside weights and a step's work."""

from dataclasses import replace
from math import floor

import numpy as np

from costmodels import memory
from costmodels.tables import communicator_bytes
from planner.engines.engine import Scheduling
from planner.engines.scenario import Scenario
from planner.lowering import Chunk, lower, lower_steps
from planner.request.plan import Plan
from planner.search.evaluate import caches_of, fixed_parts
from planner.search.speculation import draft_cache, draft_weights


def cache_tokens(scenario: Scenario, plan: Plan, ways: Scheduling, longest: int) -> int:
    """Count the tokens whose keys and values one engine holds; 0 where weights alone are too much.

    Parameters
    ----------
    longest : tokens of a request, prompt and answer; sliding windows keep fewer of each.
    """
    model, stream = scenario.model, scenario.model.streams[0].name
    once = replace(scenario.workload, batch=1, tokens=((stream, longest),), output_tokens=1)
    sized, deployment = replace(scenario, workload=once), scenario.deployment
    chunk = Chunk(name="prompts", tokens=ways.chunk, context=0)
    tokens = []
    for place in ends_of(plan):
        step = lower_steps(model, once, plan, [[chunk]], place).stages[0]
        program = lower(model, once, plan, place)
        fixed = sum(fixed_parts(sized, program).values())
        buffers = memory.groups([step]) * communicator_bytes(deployment.profile)
        working = float(np.max(memory.activations(step)))
        left = deployment.hardware.device.memory.value * ways.memory - fixed - buffers - working
        kept = float(np.max(caches_of(model, once, program)))
        if once.speculation is not None and place == plan.degree("pp") - 1:
            left -= draft_weights(sized, plan)
            kept += draft_cache(sized, plan, longest + 1)
        tokens.append(left * (longest + 1) / kept)
    return max(0, floor(min(tokens) / ways.block) * ways.block)


def ends_of(plan: Plan) -> tuple[int, ...]:
    """Name the places of a pipeline that do most: the first, and the last, which has the scores.

    >>> ends_of(Plan((("pp", 4), ("tp", 2)))), ends_of(Plan())
    ((0, 3), (0,))
    """
    last = plan.degree("pp") - 1
    return (0, last) if last else (0,)
