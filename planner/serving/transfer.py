"""Keys and values on their way from a worker that ran a prompt to the one that decodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.collectives import collective_time
from planner.engines.engine import Disaggregation
from planner.lowering import lower
from planner.request.plan import Plan, TwoPools
from planner.scenario.scenario import Scenario
from planner.search.evaluate import caches_of
from planner.serving.cache import ends_of
from topology.catalogue import Fabric

NODES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
"""Parts of the longest prompt at which bytes are counted; windows keep no more of longer ones."""


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
        """Seconds from the end of a prompt to all of it being there.

        Parameters
        ----------
        last : tokens that the last step of the prompt ran; those before have been sent beside it
            where the engine sends step by step.
        """
        tokens = min(prompt, last) if self.ways.stepwise else prompt
        return float(np.interp(tokens, self.prompts, self.seconds))


def transfer_of(scenario: Scenario, pools: TwoPools, longest: int) -> Transfer:
    """Price the way of keys and values between the workers of two pools.

    Parameters
    ----------
    longest : tokens of a prompt.
    """
    prompts = sorted({max(2, round(part * longest)) for part in NODES})
    fabric = link_between(scenario, pools)
    whole, ends = [], []
    for prompt in prompts:
        whole.append(kept(scenario, Plan(), prompt))
        shares = (kept(scenario, plan, prompt) for plan in (pools.prefill, pools.decode))
        ends.append(max(shares))
    seconds = collective_time("send_recv", np.array(ends), fabric, launch="stream")
    return Transfer(
        prompts=prompts,
        sent=whole,
        seconds=seconds.tolist(),
        ways=scenario.deployment.disaggregation,
    )


def kept(scenario: Scenario, plan: Plan, prompt: int) -> float:
    """Count the bytes of a prompt on the rank of a plan that has most of them."""
    model, alone = scenario.model, plan.without("dp")
    tokens = ((model.streams[0].name, prompt - 1),)
    work = replace(scenario.workload, batch=1, tokens=tokens, output_tokens=1)
    programs = (lower(model, work, alone, place) for place in ends_of(alone))
    return max(float(np.max(caches_of(model, work, program))) for program in programs)


def link_between(scenario: Scenario, pools: TwoPools) -> Fabric:
    """Describe what two ranks of different workers talk over, while all the others do.

    Workers fill hosts one after another: where all sit on one host, or in one domain of NVLink, it
    is that; else the network of the hosts.
    """
    deployment = scenario.deployment.on(pools.gpus)
    if deployment.subset is not None:
        every = deployment.subset.fabric()
        return replace(every, ranks=2, nodes=min(2, every.nodes))
    hardware = deployment.hardware
    island = hardware.island(pools.gpus, deployment.nodes)
    apart = island < pools.gpus
    return hardware.group(2, stride=island if apart else 1, island=island)
