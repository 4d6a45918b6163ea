"""Room for keys and values: what is left of a GPU's memory beside weights and a step's work."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor

import numpy as np

from costmodels import memory
from costmodels.tables import communicator_bytes
from planner.engines.engine import Scheduling
from planner.lowering import Chunk, lower, lower_steps
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.evaluate import caches_of, fixed_parts
from planner.search.speculation import draft_cache, draft_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The cache of one engine, on the GPU with the least room for it.

    tokens : whose keys and values it holds; 0 where weights alone are too much. token_bytes : of
    one there. beside : bytes of all else, by part of memory.
    """

    tokens: int
    token_bytes: float
    beside: Mapping[str, float]

    def filled(self, tokens: float) -> dict[str, float]:
        """Return the bytes of a GPU by part, with so many tokens in the cache."""
        return {**self.beside, "kv": min(tokens, self.tokens) * self.token_bytes}


def pool_of(scenario: Scenario, plan: Plan, ways: Scheduling, longest: int) -> Pool:
    """Find the room that one engine has for keys and values.

    Parameters
    ----------
    longest : tokens of a request, prompt and answer; sliding windows keep fewer of each.
    """
    model, stream = scenario.model, scenario.model.streams[0].name
    once = replace(scenario.workload, batch=1, tokens=((stream, longest),), output_tokens=1)
    sized, deployment = replace(scenario, workload=once), scenario.deployment
    chunk = Chunk(name="prompts", tokens=ways.chunk, context=0)
    pools = []
    for place in ends_of(plan):
        step = lower_steps(model, once, plan, [[chunk]], place).stages[0]
        program = lower(model, once, plan, place)
        beside = {
            **fixed_parts(sized, program),
            "buffers": memory.groups([step]) * communicator_bytes(deployment.profile),
            "activations": float(np.max(memory.activations(step))),
        }
        kept = float(np.max(caches_of(model, once, program)))
        if once.speculation is not None and place == plan.degree("pp") - 1:
            beside["other_weights"] += draft_weights(sized, plan)
            kept += draft_cache(sized, plan, longest + 1)
        held, others = deployment.hardware.device.memory.value, sum(beside.values())
        left = (held - others) * ways.memory if ways.of_free else held * ways.memory - others
        each = kept / (longest + 1)
        tokens = max(0, floor(left / each / ways.block) * ways.block)
        pools.append(Pool(tokens=tokens, token_bytes=each, beside=beside))
    return min(pools, key=lambda pool: pool.tokens)


def ends_of(plan: Plan) -> tuple[int, ...]:
    """Name the places of a pipeline that do most: the first, and the last, which has the scores.

    >>> ends_of(Plan((("pp", 4), ("tp", 2)))), ends_of(Plan())
    ((0, 3), (0,))
    """
    last = plan.degree("pp") - 1
    return (0, last) if last else (0,)
