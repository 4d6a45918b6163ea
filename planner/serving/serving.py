"""A plan under load: its engines, the requests that each gets, and what clients see."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Final

import numpy as np

from planner.engines.engine import Scheduling
from planner.models import Model
from planner.request.lengths import Lengths, Load, closed, poisson
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.clients import Serving, spread_of
from planner.search.speculation import gain_of
from planner.serving.cache import Pool, pool_of
from planner.serving.scheduler import Queue, Trail
from planner.serving.steps import StepPrices, step_prices
from topology.base import InputError
from topology.base.values import dataclass

AXES: Final = ("dp", "pp", "adp", "tp")
"""Axes that engines serve with; those that cut a sequence are for one long prompt."""
ROUNDS: Final = 10
"""Requests that a client's place sends, as benchmark clients do: the first fill an idle engine all
at once, the last drain it, and those between are alike."""
FOLLOWED: Final = 240
"""Requests that are followed at least, where there are so many."""
FEWEST: Final = 3
"""Rounds that are followed at least."""
OPEN: Final = 800
"""Requests that are followed where they come at random; the first tenth fills the queue."""
MOST_ROWS: Final = 2048
STEADY: Final = 1.5
"""Times as long as before that later requests wait where the queue grows."""
OVERLOADED: Final = 0.95
"""Part of the requests that come and are done in that time, below which the queue only grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Engines of a plan, ready to be given requests.

    engines : that share the requests: replicas, and ranks of attention data parallelism, which step
    together. pool : the cache of one of them. steps : their seconds at each place of its pipeline.
    gain : tokens that a sequence grows by in one.
    """

    plan: Plan
    ways: Scheduling
    lengths: Lengths
    engines: int
    pool: Pool
    steps: tuple[StepPrices, ...]
    prefix: float
    gain: float = 1.0

    @property
    def gpus(self) -> int:
        return self.plan.gpus

    @property
    def capacity(self) -> int:
        """Tokens that the cache of one engine holds."""
        return self.pool.tokens

    @property
    def places(self) -> int:
        """Requests that fit at once, on all engines."""
        each = self.lengths.prompt + self.lengths.output + self.ways.block
        return min(self.capacity // each, self.ways.rows) * self.engines

    def under(self, load: Load) -> Trail:
        """Follow the requests of one engine."""
        queue = Queue(self.ways, self.capacity, self.steps, load, self.prefix, gain=self.gain)
        return queue.run()

    def at(self, concurrency: int) -> Serving:
        """Keep so many requests in flight."""
        each = ceil(concurrency / self.engines)
        rounds = max(FEWEST, min(ROUNDS, ceil(FOLLOWED / each)))
        load = closed(self.lengths, each, each * rounds)
        trail = self.under(load)
        middle, last = (ROUNDS - 2) / (rounds - 2), each * (rounds - 1)
        weights = [middle if each <= s.number < last else 1.0 for s in trail.sequences]
        return self._seen([(load, trail)], weights, concurrency=float(concurrency))

    def by(self, rate: float, burst: float) -> Serving:
        """Let requests come at random, `rate` a second in all."""
        return self.within(rate, burst, inf, OPEN)[0]

    def within(
        self, rate: float, burst: float, seconds: float, followed: int
    ) -> tuple[Serving, float]:
        """Let requests come at random; what clients see, and the share done within `seconds`."""
        load = poisson(self.lengths, rate / self.engines, followed, burst)
        trail = self.under(load)
        assert load.arrivals is not None
        late = load.arrivals[-1] < OVERLOADED * trail.seconds and self._grows(trail)
        counted = [s for s in trail.sequences if s.number >= followed // 10]
        weights = [float(s.number >= followed // 10) for s in trail.sequences]
        done = self.engines * followed / trail.seconds if late else rate
        serving = replace(self._seen([(load, trail)], weights, rate=done), overloaded=late)
        limit = seconds - self.ways.front_s
        return serving, sum(s.finish - s.arrival <= limit for s in counted) / len(counted)

    def traced(self, load: Load, replicas: int = 1, seconds: float = inf) -> tuple[Serving, float]:
        """Let the requests of a trace come, each to the next engine.

        Returns
        -------
        what clients see of one of so many replicas, and the share done within `seconds`
        """
        engines = self.engines * replicas
        parts = [load.part(number, engines) for number in range(min(engines, load.count))]
        seen = [(part, self.under(part)) for part in parts]
        ended = max(trail.seconds for _, trail in seen)
        rate = load.count / ended / replicas
        limit = seconds - self.ways.front_s
        done = sum(s.finish - s.arrival <= limit for _, trail in seen for s in trail.sequences)
        return self._seen(seen, [1.0] * load.count, rate=rate), done / load.count

    def _grows(self, trail: Trail) -> bool:
        """Whether later requests wait much longer than those before them."""
        waits = {s.number: s.first - s.arrival for s in trail.sequences}
        ordered = [waits[number] for number in range(len(waits))]
        third = len(ordered) // 3
        return bool(np.mean(ordered[-third:]) > STEADY * np.mean(ordered[third : 2 * third]))

    def _seen(
        self,
        runs: Sequence[tuple[Load, Trail]],
        weights: Sequence[float],
        *,
        concurrency: float | None = None,
        rate: float = 0.0,
    ) -> Serving:
        """Say what clients saw of the requests that were followed.

        Parameters
        ----------
        runs : of some engines. weights : requests that each one stands for, in the order of the
            trails. concurrency : on all engines; where left out that of `rate`, by Little's law.
        """
        sequences = [s for _, trail in runs for s in trail.sequences]
        written = [load.outputs[s.number] for load, trail in runs for s in trail.sequences]
        front = self.ways.front_s
        ttft = [front + s.first - s.arrival for s in sequences]
        waits = [s.finish - s.first for s in sequences]
        tpot = [wait / max(1, output - 1) for wait, output in zip(waits, written, strict=True)]
        whole = spread_of([front + s.finish - s.arrival for s in sequences], weights)
        flight = rate * whole.mean if concurrency is None else concurrency
        trails = [trail for _, trail in runs]
        seconds = sum(trail.seconds for trail in trails)
        return Serving(
            gpus=self.gpus,
            concurrency=flight,
            ttft=spread_of(ttft, weights),
            tpot=spread_of(tpot, weights),
            request=whole,
            tokens_per_s=flight * float(np.average(written, weights=weights)) / whole.mean,
            max_concurrency=self.places,
            kv_tokens=self.capacity * self.engines,
            occupancy=sum(trail.token_s for trail in trails) / seconds / self.capacity,
            preempted=sum(trail.preempted for trail in trails) / len(sequences),
            told=self.told(concurrency),
            memory=self.pool.filled(max(trail.most_tokens for trail in trails)),
        )

    def told(self, concurrency: float | None) -> dict[str, int]:
        """Give the limits of one engine that were assumed: requests at once, and tokens."""
        ways, lengths = self.ways, self.lengths
        rows = ways.rows if concurrency is None else ceil(concurrency / self.engines)
        chunk = ways.chunk if ways.chunked else max(ways.chunk, lengths.longest)
        return {"batch": rows, "length": lengths.longest, "chunk": chunk}


def served(scenario: Scenario, plan: Plan, lengths: Lengths, most: int) -> Served | str:
    """Make a plan ready to serve at most so many requests at once, or say why it cannot."""
    if any(axis not in AXES for axis, _ in plan.axes):
        return "engines that serve many requests at once have no axis that cuts a sequence"
    copies = plan.degree("adp")
    if most < copies:
        return f"adp{copies} has {copies} ranks with requests of their own, and {most} are at once"
    ways = scenario.deployment.scheduling
    pool = pool_of(scenario, plan, ways, lengths.longest)
    capacity = pool.tokens
    if capacity < lengths.longest + ways.block:
        return (
            f"the cache of {plan} holds {capacity:,} tokens, one request has "
            f"{lengths.longest + ways.block:,}"
        )
    engines = plan.replicas
    each = lengths.prompt + lengths.output
    rows = min(ceil(most / engines), ways.rows, MOST_ROWS, max(1, capacity // each) * 2)
    prompt = max(ways.chunk, 0 if ways.chunked else lengths.longest)
    alone = plan.without("dp")
    steps = step_prices(
        scenario.on(alone.gpus),
        alone,
        tokens=min(prompt, lengths.longest * rows),
        prompt=lengths.prompt,
        longest=lengths.longest,
        rows=rows,
    )
    return Served(
        plan=plan,
        ways=ways,
        lengths=lengths,
        engines=engines,
        pool=pool,
        steps=steps,
        prefix=scenario.request.prefix_hit,
        gain=gain_of(scenario.workload),
    )


def lengths_of(scenario: Scenario) -> Lengths:
    """Return how long the requests of a scenario are."""
    if scenario.lengths is not None:
        return scenario.lengths
    workload, spread = scenario.workload, scenario.request.spread
    return Lengths(
        prompt=int(workload.length(scenario.model.streams[0].name)),
        output=max(1, int(workload.output_tokens)),
        spread=spread or 0.0,
        scatter=scenario.deployment.scheduling.scatter if spread is None else 0.0,
    )


def beyond_context(model: Model, lengths: Lengths) -> str:
    """Say that the longest request is longer than the model takes; empty where it is not."""
    if not model.context or lengths.longest <= model.context:
        return ""
    spread = f" (a spread of {lengths.spread:g} around the mean)" if lengths.spread else ""
    return (
        f"tokens: got {lengths.longest:,} of the longest prompt and answer{spread}, wanted at most "
        f"{model.context:,}, the context of {model.name}"
    )


def check_context(model: Model, lengths: Lengths) -> None:
    """Refuse requests the longest of which the model does not take."""
    if why := beyond_context(model, lengths):
        raise InputError(why)
