"""Room for keys and values: what is left of a GPU's memory beside weights and a step's work."""

from dataclasses import replace
from math import floor

import numpy as np

from costmodels import memory
from planner.engines.engine import Scheduling
from planner.engines.scenario import Scenario
from planner.lowering import Chunk, lower_steps
from planner.request.plan import Plan
from planner.search.evaluate import every_place, parts_of


def cache_tokens(scenario: Scenario, plan: Plan, ways: Scheduling, longest: int) -> int:
    """Count the tokens whose keys and values one engine holds; 0 where weights alone are too much.

    Parameters
    ----------
    longest : tokens of a request, prompt and answer; sliding windows keep fewer of each.
    """
    model, stream = scenario.model, scenario.model.streams[0].name
    once = replace(scenario.workload, batch=1, tokens=((stream, longest),), output_tokens=1)
    sized = replace(scenario, workload=once)
    chunk = Chunk(name="prompts", tokens=ways.chunk, context=0)
    held = scenario.deployment.hardware.device.memory.value * ways.memory
    tokens = []
    for place, program in enumerate(every_place(sized, plan)):
        parts = parts_of(sized, program)
        step = lower_steps(model, once, plan, [[chunk]], place).stages[0]
        fixed = parts["transformer_weights"] + parts["buffers"] + parts["runtime"]
        left = held - fixed - float(np.max(memory.activations(step)))
        each = float(np.max(parts["kv"])) / (longest + 1)
        tokens.append(left / each)
    return max(0, floor(min(tokens) / ways.block) * ways.block)
