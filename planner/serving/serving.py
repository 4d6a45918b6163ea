"""Plans under load: their engines, the requests that each gets, what clients see, which is best."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from typing import Final

import numpy as np

from planner.engines.engine import Scheduling
from planner.models import Model
from planner.request.lengths import Lengths, Load, closed_load, poisson, traced_load
from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import Scenario, lengths_of
from planner.search.clients import Point, Serving, Wanted, spread_of, wanted_of
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.ranking import TIE, Ranking
from planner.search.speculation import gain_of
from planner.serving.cache import Pool, pool_of
from planner.serving.scheduler import Queue, Trail, Workers
from planner.serving.steps import StepPrices, step_prices
from topology.base import IllegalPlanError, InputError, ModelError, counted
from topology.base.values import dataclass

AXES: Final = ("dp", "pp", "adp", "tp")
"""Axes that engines serve with; those that cut a sequence are for one long prompt."""
CUT_REASON: Final = (
    "cuts each prompt over {} GPUs: not modelled under load, where steps run pieces of prompts "
    "beside sequences that decode, and no engine cuts such steps; for one request at a time leave "
    "the load out"
)
_CACHE_SIZE: Final = 512
"""Plans that are kept ready to serve, for other loads of theirs, and loads that were served."""
ROUNDS: Final = 10
"""Requests that a client's place sends, as benchmark clients do: the first fill an idle engine all
at once, the last drain it, and those between are alike."""
FOLLOWED_REQUESTS: Final = 240
"""Requests that are followed at least, where there are so many."""
FEWEST_ROUNDS: Final = 3
"""Rounds that are followed at least."""
OPEN_REQUESTS: Final = 800
"""Requests that are followed where they come at random; the first tenth fills the queue."""
LATER_REQUESTS: Final = (4 * OPEN_REQUESTS, 32 * OPEN_REQUESTS)
"""Requests of one plan that are followed beyond, while the slowest move by `SETTLED_MOVE`."""
SETTLED_MOVE: Final = 0.05
MOST_ROWS: Final = 2048
MOST_REQUESTS: Final = 1024
"""Requests in flight that are tried at most, of each replica and rank with its own."""
GAIN: Final = 1.01
"""More requests at once have to serve more by this factor to be tried further."""

HALVINGS: Final = 3
STEADY_WAIT: Final = 1.5
"""Times as long as before that later requests wait where the queue grows."""
OVERLOADED_SHARE: Final = 0.95
"""Part of the requests that come and are done in that time, below which the queue only grows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Engines of a plan, ready to be given requests; made once for each plan, as their steps are.

    engines : that share the requests: replicas, and ranks of attention data parallelism, which step
    together. pool : the cache of one of them. steps : their seconds at each place of its pipeline.
    gain : tokens that a sequence grows by in one.
    """

    plan: Plan
    ways: Scheduling
    lengths: Lengths
    engines: int
    pool: Pool
    steps: StepPrices
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
        request_tokens = self.lengths.prompt + self.lengths.output + self.ways.block
        return min(self.capacity // request_tokens, self.ways.rows) * self.engines

    @property
    def workers(self) -> Workers:
        """The engines that serve a plan's requests."""
        steps = self.steps
        return Workers(ways=self.ways, capacity=self.pool.tokens, steps=steps, kinds=steps.kinds)

    def under(self, load: Load) -> Trail:
        """Run the requests of a load through the queue of one engine."""
        return Queue(self.workers, load, self.prefix, self.gain).run()

    def at(self, concurrency: int) -> Serving:
        """Find what clients see with so many requests in flight."""
        return _closed_serving(self, concurrency)

    def by(self, rate: float, burst: float) -> Serving:
        """Let requests come at random, `rate` a second in all."""
        return self.within(rate, burst, inf, OPEN_REQUESTS)[0]

    def settled(self, rate: float, burst: float) -> Serving:
        """Let requests come as above, as many as it takes for the slowest of them to settle.

        Near saturation queues rise and fall over thousands of requests: of the fewest p99 is up to
        a third too low.
        """
        serving = self.by(rate, burst)
        for request_count in LATER_REQUESTS:
            previous = serving
            if not previous.overloaded:
                serving = self.within(rate, burst, inf, request_count)[0]
            if serving.apart(previous) <= SETTLED_MOVE:
                break
        return serving

    def within(
        self, rate: float, burst: float, seconds: float, followed: int
    ) -> tuple[Serving, float]:
        """Let requests come at random; what clients see, and the share done within `seconds`."""
        return _open_serving(self, rate, burst, seconds, followed)

    def traced(self, load: Load, replicas: int = 1, seconds: float = inf) -> tuple[Serving, float]:
        """Let the requests of a trace come, each to the next engine.

        Returns what clients see of one of so many replicas, and the share done within `seconds`.
        """
        engines = self.engines * replicas
        engine_loads = [load.part(number, engines) for number in range(min(engines, load.count))]
        runs = [(engine_load, self.under(engine_load)) for engine_load in engine_loads]
        end_s = max(trail.seconds for _, trail in runs)
        rate = load.count / end_s / replicas
        limit = seconds - self.ways.front_s
        in_time = sum(s.finish - s.arrival <= limit for _, trail in runs for s in trail.sequences)
        return self.seen(runs, [1.0] * load.count, rate=rate), in_time / load.count

    def seen(
        self,
        runs: Sequence[tuple[Load, Trail]],
        weights: Sequence[float],
        *,
        concurrency: float | None = None,
        rate: float = 0.0,
    ) -> Serving:
        """Say what clients saw of the requests that were followed.

        runs : of some engines. weights : requests that each one stands for, in the order of the
            trails. concurrency : on all engines; where left out that of `rate`, by Little's law.
        """
        sequences = [s for _, trail in runs for s in trail.sequences]
        output_tokens = np.array(
            [load.outputs[s.number] for load, trail in runs for s in trail.sequences]
        )
        arrival = np.array([s.arrival for s in sequences])
        first = np.array([s.first for s in sequences])
        finish = np.array([s.finish for s in sequences])
        front = self.ways.front_s
        request_spread = spread_of(front + finish - arrival, weights)
        flight = rate * request_spread.mean if concurrency is None else concurrency
        trails = [trail for _, trail in runs]
        seconds = sum(trail.seconds for trail in trails)
        return Serving(
            gpus=self.gpus,
            concurrency=flight,
            ttft=spread_of(front + first - arrival, weights),
            tpot=spread_of((finish - first) / np.maximum(1, output_tokens - 1), weights),
            request=request_spread,
            tokens_per_s=flight
            * float(np.average(output_tokens, weights=weights))
            / request_spread.mean,
            max_concurrency=self.places,
            kv_tokens=self.capacity * self.engines,
            occupancy=sum(trail.token_s for trail in trails) / seconds / self.capacity,
            preempted=sum(trail.preempted for trail in trails) / len(sequences),
            told=self.told(concurrency),
            memory=self.pool.filled(max(trail.most_tokens for trail in trails)),
            followed=len(sequences),
        )

    def told(self, concurrency: float | None) -> dict[str, int]:
        """Give the limits of one engine that were assumed: requests at once, and tokens."""
        rows = self.ways.rows
        if concurrency is not None:
            rows = min(rows, ceil(concurrency / self.engines))
        return {"batch": rows, "length": self.lengths.longest, "chunk": self.ways.chunk}


@lru_cache(maxsize=_CACHE_SIZE)
def _closed_serving(ready: Served, concurrency: int) -> Serving:
    engine_requests = ceil(concurrency / ready.engines)
    rounds = max(FEWEST_ROUNDS, min(ROUNDS, ceil(FOLLOWED_REQUESTS / engine_requests)))
    load = closed_load(ready.lengths, engine_requests, engine_requests * rounds)
    trail = ready.under(load)
    middle_weight, drain_start = (ROUNDS - 2) / (rounds - 2), engine_requests * (rounds - 1)
    weights = [
        middle_weight if engine_requests <= s.number < drain_start else 1.0 for s in trail.sequences
    ]
    return ready.seen([(load, trail)], weights, concurrency=float(concurrency))


@lru_cache(maxsize=_CACHE_SIZE)
def _open_serving(
    ready: Served, rate: float, burst: float, seconds: float, followed: int
) -> tuple[Serving, float]:
    load = poisson(ready.lengths, rate / ready.engines, followed, burst)
    trail = ready.under(load)
    assert load.arrivals is not None
    overloaded = load.arrivals[-1] < OVERLOADED_SHARE * trail.seconds and _queue_grows(trail)
    counted = [s for s in trail.sequences if s.number >= followed // 10]
    weights = [float(s.number >= followed // 10) for s in trail.sequences]
    served_rate = ready.engines * followed / trail.seconds if overloaded else rate
    serving = replace(ready.seen([(load, trail)], weights, rate=served_rate), overloaded=overloaded)
    limit = seconds - ready.ways.front_s
    return serving, sum(s.finish - s.arrival <= limit for s in counted) / len(counted)


def _queue_grows(trail: Trail) -> bool:
    """Whether later requests wait much longer than those before them."""
    ordered = sorted(trail.sequences, key=lambda sequence: sequence.number)
    waits = [sequence.first - sequence.arrival for sequence in ordered]
    third = len(waits) // 3
    return bool(np.mean(waits[-third:]) > STEADY_WAIT * np.mean(waits[third : 2 * third]))


def served(scenario: Scenario, plan: Plan, lengths: Lengths, most: int) -> Served | str:
    """Make a plan ready to serve at most so many requests at once, or say why it cannot."""
    if any(axis not in AXES for axis, _ in plan.axes):
        return CUT_REASON.format(plan.sequence_ranks)
    copies = plan.degree("adp")
    if most < copies:
        return f"adp{copies}: got {most} requests at once, wanted {copies} or more, one a rank"
    return _ready_plan(scenario.unloaded, plan, lengths)


@lru_cache(maxsize=_CACHE_SIZE)
def _ready_plan(scenario: Scenario, plan: Plan, lengths: Lengths) -> Served | str:
    """Make a plan ready to serve any load of requests of these lengths."""
    ways = scenario.deployment.scheduling
    pool, longest = pool_of(scenario, plan, ways, lengths.longest), lengths.longest + ways.block
    if pool.tokens < longest:
        return f"the cache of {plan} holds {pool.tokens:,} tokens, one request has {longest:,}"
    mean_tokens = lengths.prompt + lengths.output
    rows = min(ways.rows, MOST_ROWS, max(1, pool.tokens // mean_tokens) * 2)
    prompt = max(ways.chunk, 0 if ways.chunked else lengths.longest)
    engine_plan = plan.without("dp")
    steps = step_prices(
        scenario.on(engine_plan.gpus),
        engine_plan,
        tokens=min(prompt, lengths.longest * rows),
        prompt=lengths.prompt,
        longest=lengths.longest,
        rows=rows,
    )
    return Served(
        plan=plan,
        ways=ways,
        lengths=lengths,
        engines=plan.replicas,
        pool=pool,
        steps=steps,
        prefix=scenario.request.prefix_hit,
        gain=gain_of(scenario.workload),
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
    if reason := beyond_context(model, lengths):
        raise InputError(reason)


def under_load(scenario: Scenario, plan: Plan, *, settled: bool = False) -> Serving | str:
    """Serve the load that a request asks for with a plan, or say why it cannot.

    settled : follow requests at random until the slowest of them settle.

    Raises `InputError` if requests are longer than the model takes, or the file of arrivals cannot
    be right.
    """
    request = scenario.request
    lengths = lengths_of(scenario)
    check_context(scenario.model, lengths)
    ready = served(scenario, plan, lengths, request.concurrency or MOST_REQUESTS)
    if isinstance(ready, str):
        return ready
    if settled and request.rate and not scenario.trace:
        return ready.settled(request.rate, request.burst)
    return serve(scenario, ready)


def serve(scenario: Scenario, ready: Served) -> Serving:
    """Serve the load that a request asks for with engines that are ready."""
    request = scenario.request
    if scenario.trace:
        return ready.traced(traced_load(scenario.trace))[0]
    if request.concurrency:
        return ready.at(request.concurrency)
    assert request.rate
    return ready.by(request.rate, request.burst)


def with_load(scenario: Scenario, estimate: PlanEstimate) -> PlanEstimate:
    """Add to an estimate what clients see at the load that is asked for.

    Raises `IllegalPlanError` if the plan cannot serve it, or `OverloadedError` if more requests
    come than it serves.
    """
    serving = under_load(scenario, estimate.plan, settled=True)
    if isinstance(serving, str):
        raise IllegalPlanError(f"plan {estimate.plan}: {serving}")
    if serving.overloaded:
        raise OverloadedError(f"plan {estimate.plan}: {missed(serving, scenario.request)}")
    return loaded(estimate, serving)


def loaded(estimate: PlanEstimate, serving: Serving) -> PlanEstimate:
    """Give an estimate what its clients see, and the memory that its engines take for it."""
    parts = {**estimate.memory_parts_bytes, **serving.memory}
    separate_part = estimate.memory_apart
    kernels = estimate.half_width_of(estimate.breakdown_s) / estimate.latency_s
    return replace(
        estimate,
        serving=replace(serving, kernels=kernels),
        memory_bytes=sum(size for name, size in parts.items() if name != separate_part),
        memory_parts_bytes=parts,
    )


class OverloadedError(ModelError):
    """More requests come than a plan can serve."""


def served_ranking(scenario: Scenario, ranking: Ranking) -> Ranking:
    """Serve every plan of a ranking that has the GPUs asked for, and rank them again.

    Plans that miss the times that are wanted go to the rejected ones, with the nearest they come.
    """
    by_gpus: dict[int, Sequence[PlanEstimate]] = {}
    rejected, points = list(ranking.rejected), list[Point]()
    for gpus, row in ranking.by_gpus.items():
        if not ranking.asks(gpus):
            by_gpus[gpus] = row
            continue
        outcomes = [_judged_plan(scenario, estimate, points) for estimate in row]
        by_gpus[gpus] = [outcome for outcome in outcomes if isinstance(outcome, PlanEstimate)]
        rejected += [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    return ranking.judged(by_gpus, rejected, frontier(points))


def _judged_plan(
    scenario: Scenario, estimate: PlanEstimate, points: list[Point]
) -> PlanEstimate | Rejected:
    """Serve one plan at the load asked for, or at the best concurrency; adds what was tried."""
    request, plan = scenario.request, estimate.plan
    targets = wanted_of(request)
    servings: list[Serving] | str
    if request.loaded:
        serving = under_load(scenario, plan)
        servings = serving if isinstance(serving, str) else [serving]
    else:
        servings = _tried_servings(scenario, plan)
    if isinstance(servings, str):
        if request.loaded or targets:
            return Rejected(plan=plan, reason=servings)
        return estimate  # of one request at a time
    points += [Point(plan=plan, serving=serving) for serving in servings]
    best = fewest_of(servings, targets)
    if best is None:
        nearest = min(servings, key=lambda serving: serving.beyond(targets))
        return Rejected(plan=plan, reason=missed(nearest, request), nearest=nearest)
    return loaded(estimate, best)


def fewest_of(tried: Sequence[Serving], wanted: Wanted) -> Serving | None:
    """Choose the fewest requests at once that write nearly the most and keep the times wanted."""
    acceptable = [serving for serving in tried if serving.meets(wanted)]
    best_rate = max((serving.tokens_per_s for serving in acceptable), default=0.0)
    sufficient = (
        serving for serving in acceptable if serving.tokens_per_s >= (1 - TIE) * best_rate
    )
    return min(sufficient, key=lambda serving: serving.concurrency, default=None)


def _tried_servings(scenario: Scenario, plan: Plan) -> list[Serving] | str:
    """Serve more and more requests at once, until times are missed or nothing is gained."""
    request, lengths = scenario.request, lengths_of(scenario)
    if scenario.ranked_under_load or request.lengths:
        check_context(scenario.model, lengths)
    elif reason := beyond_context(scenario.model, lengths):
        return reason
    ready = served(scenario, plan, lengths, MOST_REQUESTS * plan.replicas)
    if isinstance(ready, str):
        return ready
    targets = wanted_of(request)
    max_concurrency = max(ready.engines, min(ready.places, MOST_REQUESTS * ready.engines))
    servings: list[Serving] = []
    concurrency = ready.engines
    while True:
        servings.append(ready.at(concurrency))
        flattened = (
            len(servings) > 1 and servings[-1].tokens_per_s < GAIN * servings[-2].tokens_per_s
        )
        if concurrency >= max_concurrency or flattened or not servings[-1].meets(targets):
            break
        concurrency = min(2 * concurrency, max_concurrency)
    if len(servings) > 1 and not servings[-1].meets(targets):
        met_count, missed_count = (serving.concurrency for serving in servings[-2:])
        servings += halved(ready, met_count, missed_count, targets, ready.engines, HALVINGS)
    return servings


def halved(
    ready: Served, met: float, missed: float, wanted: Wanted, grain: int, times: int
) -> Iterator[Serving]:
    """Halve the step between a concurrency that meets the times wanted and one that does not."""
    low, high = round(met), round(missed)
    for _ in range(times):
        middle = (low + high) // 2 // grain * grain
        if middle <= low:
            return
        serving = ready.at(middle)
        yield serving
        low, high = (middle, high) if serving.meets(wanted) else (low, middle)


def missed(nearest: Serving, request: Request) -> str:
    """Say how near a plan comes to the requests, or to the times, that are wanted."""
    if nearest.overloaded and request.rate:
        return f"serves {nearest.requests_per_s:.3g} of {request.rate:.3g} requests a second"
    request_count = counted(max(1, round(nearest.concurrency)), "request")
    suffix = "" if request.loaded else " at the least"
    parts = nearest.beside(wanted_of(request))
    return f"{' and '.join(parts)}{suffix}, with {request_count} at once"


def frontier(points: Sequence[Point]) -> tuple[Point, ...]:
    """Keep the points that no other beats in both the time of a token and tokens/s a GPU."""
    ordered = sorted(points, key=lambda point: (point.tpot_s, -point.tokens_per_s_per_gpu))
    front: list[Point] = []
    for point in ordered:
        if not front or point.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
            front.append(point)
    return tuple(front)
