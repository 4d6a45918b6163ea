"""Keys and values: the room that a GPU has for them, and their way from one worker to another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor
from typing import Final

import numpy as np

from costmodels import memory
from costmodels.collectives import collective_time
from costmodels.tables import communicator_bytes
from planner.engines.engine import Disaggregation, Scheduling
from planner.lowering import Chunk, lower, lower_steps
from planner.request.plan import Plan, TwoPools
from planner.scenario.scenario import Scenario
from planner.search.plan_memory import caches_of, fixed_parts
from planner.search.speculation import draft_cache, draft_weights
from topology.base.values import dataclass
from topology.catalogue import Fabric

NODES: Final = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
"""Parts of the longest prompt at which bytes are counted; windows keep no more of longer ones."""


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
        """Return the whole bytes of a GPU by part, with so many tokens in the cache."""
        parts = {**self.beside, "kv": min(tokens, self.tokens) * self.token_bytes}
        return {name: round(size) for name, size in parts.items()}


def pool_of(scenario: Scenario, plan: Plan, ways: Scheduling, longest: int) -> Pool:
    """Find the room that one engine has for keys and values.

    longest : tokens of a request, prompt and answer; sliding windows keep fewer of each.
    """
    model, stream = scenario.model, scenario.model.streams[0].name
    workload = replace(
        scenario.workload, batch=1, tokens=((stream, longest),), output_tokens=1, cached=0
    )
    sized_scenario, deployment = replace(scenario, workload=workload), scenario.deployment
    chunk = Chunk(name="prompts", tokens=ways.chunk, context=0)
    pools, bodies = [], memory.Bodies()
    for place in ends_of(plan):
        step = lower_steps(model, workload, plan, [[chunk]], place).stages[0]
        program = lower(model, workload, plan, place)
        fixed_bytes = {
            **fixed_parts(sized_scenario, program, bodies),
            "buffers": memory.groups([step], bodies) * communicator_bytes(deployment.profile),
            "activations": float(np.max(memory.activations(step, bodies))),
        }
        cache_bytes = float(np.max(caches_of(model, workload, program, bodies)))
        if workload.speculation is not None and place == plan.degree("pp") - 1:
            fixed_bytes["other_weights"] += draft_weights(sized_scenario, plan)
            cache_bytes += draft_cache(sized_scenario, plan, longest + 1)
        device_bytes, fixed_total = (
            deployment.hardware.device.memory.value,
            sum(fixed_bytes.values()),
        )
        cache_room = (
            (device_bytes - fixed_total) * ways.memory
            if ways.of_free
            else device_bytes * ways.memory - fixed_total
        )
        token_bytes = cache_bytes / (longest + 1)
        tokens = max(0, floor(cache_room / token_bytes / ways.block) * ways.block)
        pools.append(Pool(tokens=tokens, token_bytes=token_bytes, beside=fixed_bytes))
    return min(pools, key=lambda pool: pool.tokens)


def ends_of(plan: Plan) -> tuple[int, ...]:
    """Name the places of a pipeline that do most: the first, and the last, which has the scores.

    >>> ends_of(Plan((("pp", 4), ("tp", 2)))), ends_of(Plan())
    ((0, 3), (0,))
    """
    last_place = plan.degree("pp") - 1
    return (0, last_place) if last_place else (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What a prompt takes to be sent, by its tokens.

    prompts : tokens. sent : bytes of all of the model's keys and values of so many. seconds : that
    the busiest link takes: every rank sends what it holds, and receives what it will hold.
    """

    prompts: Sequence[float]
    sent: Sequence[float]
    seconds: Sequence[float]
    ways: Disaggregation

    def bytes(self, prompt: float) -> float:
        """Count the bytes of a prompt's keys and values."""
        return float(np.interp(prompt, self.prompts, self.sent))

    def after(self, prompt: int, last: int) -> float:
        """Give the seconds from the end of a prompt to all of it being there.

        last : tokens that the last step of the prompt ran; those before have been sent beside it
            where the engine sends step by step.
        """
        tokens = min(prompt, last) if self.ways.stepwise else prompt
        return float(np.interp(tokens, self.prompts, self.seconds))


def transfer_of(scenario: Scenario, pools: TwoPools, longest: int) -> Transfer:
    """Price the way of keys and values between the workers of two pools.

    longest : tokens of a prompt.
    """
    prompts = sorted({max(2, round(share * longest)) for share in NODES})
    fabric = link_between(scenario, pools)
    total_bytes, busiest_bytes = [], []
    for prompt in prompts:
        total_bytes.append(rank_cache_bytes(scenario, Plan(), prompt))
        rank_bytes = (
            rank_cache_bytes(scenario, plan, prompt) for plan in (pools.prefill, pools.decode)
        )
        busiest_bytes.append(max(rank_bytes))
    seconds = collective_time("send_recv", np.array(busiest_bytes), fabric, launch="stream")
    return Transfer(
        prompts=prompts,
        sent=total_bytes,
        seconds=seconds.tolist(),
        ways=scenario.deployment.disaggregation,
    )


def rank_cache_bytes(scenario: Scenario, plan: Plan, prompt: int) -> float:
    """Count the bytes of a prompt on the rank of a plan that has most of them."""
    model, engine_plan = scenario.model, plan.without("dp")
    tokens = ((model.streams[0].name, prompt - 1),)
    workload = replace(scenario.workload, batch=1, tokens=tokens, output_tokens=1, cached=0)
    programs = (lower(model, workload, engine_plan, place) for place in ends_of(engine_plan))
    return max(float(np.max(caches_of(model, workload, program))) for program in programs)


def link_between(scenario: Scenario, pools: TwoPools) -> Fabric:
    """Describe what two ranks of different workers talk over, while all the others do.

    Workers fill hosts one after another: where all sit on one host, or in one domain of NVLink, it
    is that; else the network of the hosts.
    """
    deployment = scenario.deployment.on(pools.gpus)
    if deployment.subset is not None:
        subset_fabric = deployment.subset.fabric()
        return replace(subset_fabric, ranks=2, nodes=min(2, subset_fabric.nodes))
    hardware = deployment.hardware
    island = hardware.island(pools.gpus, deployment.nodes)
    crosses_islands = island < pools.gpus
    return hardware.group(2, stride=island if crosses_islands else 1, island=island)
