"""GPUs split into two pools: which plans, and how many workers of each, serve best together.

Every plan is measured by itself first: prompts a second of a prefill worker, tokens a second of a
decode worker with more and more sequences. Splits are compared by the slower of their pools; the
best of them are followed request by request.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import Final

import numpy as np

from planner.request.plan import TwoPools
from planner.request.request import Request
from planner.scenario.scenario import Scenario, lengths_of
from planner.search.clients import Point, Serving, wanted_of
from planner.search.estimate import PlanEstimate, Splits
from planner.search.ranking import TIE, Ranking, goal
from planner.serving.disaggregated import Paired, alone, engines_of, join, with_serving
from planner.serving.serving import (
    AXES,
    MOST_REQUESTS,
    Served,
    beyond_context,
    fewest_of,
    halved,
    missed,
    serve,
    served,
)
from topology.base import IllegalPlanError, InputError
from topology.base.values import dataclass

KEPT_PLANS: Final = 3
"""Plans of each number of GPUs that go on to be paired."""
FOLLOWED_SPLITS: Final = 4
"""Splits that are followed."""
BUSY_SHARE: Final = 0.9
"""Share of the time that prefill workers run at most where the concurrency is searched."""
HALVINGS: Final = 4
STEP, GAIN = 1.5, 1.1
"""So many times as many requests at once are tried while they write this many times as many tokens:
in front of busy prefill workers more of them only wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefiller:
    """A worker that runs prompts: seconds of one by itself, and prompts a second of many."""

    ready: Served
    alone_s: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A worker that decodes. rows : sequences of each engine, and seconds of a step of so many."""

    ready: Served
    rows: tuple[tuple[int, float], ...]

    def rate(self, rows: int, seconds: float) -> float:
        """Count the answers a second with so many sequences in each engine."""
        steps = max(1, self.ready.lengths.output - 1) / self.ready.gain
        return self.ready.engines * rows / (seconds * steps)

    @property
    def most(self) -> float:
        """Count the answers a second at most."""
        return max(self.rate(*row) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A pair of workers and their numbers.

    worth : more is better, requests a second that it serves. concurrency : that it takes for that.
    """

    prefill: Prefiller
    decode: Decoder
    pools: TwoPools
    worth: float
    concurrency: int


def best_splits(scenario: Scenario, ranking: Ranking) -> Splits:
    """Find the best splits of all GPUs that a request names.

    ranking : plans that can be run, of every number of GPUs.

    Raises `InputError` if there is one GPU.
    """
    gpus, ways = scenario.request.gpus, scenario.deployment.disaggregation
    if gpus < 2:
        raise InputError(f"disaggregate: got {gpus} GPU, wanted 2 or more")
    if ways.reason:
        return Splits(reason=f"{scenario.deployment.engine} {ways.reason}")
    if reason := beyond_context(scenario.model, lengths_of(scenario)):
        return Splits(reason=reason)
    prefills, decodes = _measured_workers(scenario, ranking)
    splits = sorted(_splits(scenario, prefills, decodes), key=lambda split: -split.worth)
    if not splits:
        return Splits(reason=f"no two plans for {gpus} GPUs in all run, fit and keep TPOT")
    runs = _served_splits(scenario, splits[:FOLLOWED_SPLITS])
    points = tuple(
        Point(plan=ready.pools, serving=serving) for ready, servings in runs for serving in servings
    )
    plans = [plan for row in runs for plan in _split_estimates(scenario, *row)]
    if not plans:
        targets = wanted_of(scenario.request)
        nearest = min(points, key=lambda point: point.serving.beyond(targets))
        reason = f"{nearest.plan}: {missed(nearest.serving, scenario.request)}"
        return Splits(points=points, reason=reason)
    return Splits(plans=tuple(_ordered_plans(plans, scenario.request)), points=points)


def _served_splits(
    scenario: Scenario, splits: Sequence[Split]
) -> list[tuple[Paired, list[Serving]]]:
    """Serve with splits: all at one concurrency, or fewer; the best with more requests too."""
    runs = []
    for split in splits:
        ready = join(scenario, split.pools, split.prefill.ready, split.decode.ready)
        runs.append((ready, list(_trial_servings(scenario, ready, split))))
    if not scenario.request.loaded:
        targets = wanted_of(scenario.request)
        best_pair, servings = max(runs, key=lambda row: row[1][0].tokens_per_s)
        if servings[0].meets(targets):
            servings += _larger_servings(best_pair, servings[0])
    return runs


def _ordered_plans(plans: Sequence[PlanEstimate], request: Request) -> list[PlanEstimate]:
    """Order splits by what is wanted; of those that are nearly the best the quickest is first."""
    ordered = sorted(plans, key=lambda plan: goal(plan, request))
    best = goal(ordered[0], request)
    near_best = [plan for plan in ordered if goal(plan, request) <= best + TIE * abs(best)]
    quickest = min(near_best, key=lambda plan: plan.serving.request.mean if plan.serving else 0.0)
    return [quickest, *(plan for plan in ordered if plan is not quickest)]


def _measured_workers(
    scenario: Scenario, ranking: Ranking
) -> tuple[list[Prefiller], list[Decoder]]:
    """Measure plans of fewer GPUs than there are as workers of either kind; keep the best."""
    prefills, decodes = list[Prefiller](), list[Decoder]()
    bars = scenario.deployment.disaggregation.bars
    for gpus, row in ranking.by_gpus.items():
        runnable = [
            estimate
            for estimate in row
            if gpus < scenario.request.gpus
            and all(axis in AXES and axis != "dp" for axis, _ in estimate.plan.axes)
            and not bars(estimate.plan)
        ]
        prefillers = [worker for estimate in runnable for worker in _prefiller(scenario, estimate)]
        fastest = sorted(prefillers, key=lambda worker: -worker.rate)[:KEPT_PLANS]
        quickest = sorted(prefillers, key=lambda worker: worker.alone_s)[:1]
        prefills += fastest + [worker for worker in quickest if worker not in fastest]
        decoders = [worker for estimate in runnable for worker in _decoder(scenario, estimate)]
        decodes += sorted(decoders, key=lambda worker: -worker.most)[:KEPT_PLANS]
    return prefills, decodes


def _prefiller(scenario: Scenario, estimate: PlanEstimate) -> Iterator[Prefiller]:
    """Measure a plan on prompts; yield nothing where it cannot serve them in time."""
    lengths, ways = lengths_of(scenario), scenario.deployment.scheduling
    prompts, plan = max(1, ways.chunk // lengths.prompt), estimate.plan
    ready = served(scenario.on(plan.gpus), plan, lengths, prompts * plan.replicas)
    limit = scenario.request.slo_ttft
    alone_s = estimate.stages_s["prefill"]
    if isinstance(ready, str) or (limit is not None and alone_s > limit):
        return
    fresh_tokens = lengths.prompt * (1.0 - scenario.request.prefix_hit)
    places = ready.steps.at_places(prompts * fresh_tokens, 0.0, 0.0, 0.0)
    step = max(*places, (ways.host_s(0) + sum(places)) / len(places))
    step_count = max(1.0, alone_s / step) if prompts == 1 else 1.0  # prompts of several steps
    rate = ready.engines * prompts / (step * step_count)
    yield Prefiller(ready=ready, alone_s=alone_s, rate=rate)


def _decoder(scenario: Scenario, estimate: PlanEstimate) -> Iterator[Decoder]:
    """Measure a plan with more and more sequences; yield nothing where even one takes too long."""
    lengths, plan = lengths_of(scenario), estimate.plan
    ready = served(scenario.on(plan.gpus), plan, lengths, MOST_REQUESTS * plan.replicas)
    if isinstance(ready, str):
        return
    max_rows = min(MOST_REQUESTS, ready.places // ready.engines)
    counts = sorted({1, *(2**power for power in range(1, 12) if 2**power < max_rows), max_rows})
    rows = [(count, _step_s(ready, count)) for count in counts if count]
    limit = scenario.request.slo_tpot
    allowed_rows = tuple(row for row in rows if limit is None or row[1] <= limit)
    if allowed_rows:
        yield Decoder(ready=ready, rows=allowed_rows)


def _step_s(ready: Served, rows: int) -> float:
    """Give the seconds in which every sequence gets a token, in the middle of its answer."""
    places, lengths = len(ready.steps.kinds), ready.lengths
    place_rows, length = max(1.0, rows / places), lengths.prompt + lengths.output / 2
    times = [ready.ways.host_s(place_rows), *ready.steps.at_places(0.0, 0.0, place_rows, length)]
    return max(sum(times), places * max(times))


def _splits(
    scenario: Scenario, prefills: Sequence[Prefiller], decodes: Sequence[Decoder]
) -> Iterator[Split]:
    """Pair workers so that they take all GPUs."""
    gpus = scenario.request.gpus
    for prefiller in prefills:
        for decoder in decodes:
            prefill, decode = prefiller.ready.plan, decoder.ready.plan
            for count in range(1, (gpus - decode.gpus) // prefill.gpus + 1):
                decodes_left, spare_gpus = divmod(gpus - count * prefill.gpus, decode.gpus)
                if not spare_gpus:
                    pools = TwoPools(
                        prefill=prefill, prefills=count, decode=decode, decodes=decodes_left
                    )
                    yield _weighed_split(scenario, prefiller, decoder, pools)


def _weighed_split(
    scenario: Scenario, prefiller: Prefiller, decoder: Decoder, pools: TwoPools
) -> Split:
    """Tell how much a split serves: at the load that is asked for, or of as much as it can."""
    steps = max(1, decoder.ready.lengths.output - 1) / decoder.ready.gain
    prompts, engines = pools.prefills * prefiller.rate, engines_of(pools)[1]
    requested = scenario.request.concurrency
    if requested:
        counts, seconds = zip(*decoder.rows, strict=True)
        step = float(np.interp(requested / engines, counts, seconds))
        rate = min(prompts, requested / (prefiller.alone_s + steps * step))
        return Split(
            prefill=prefiller, decode=decoder, pools=pools, worth=rate, concurrency=requested
        )
    rates = [min(BUSY_SHARE * prompts, pools.decodes * decoder.rate(*row)) for row in decoder.rows]
    needed = _arrival_rate(scenario) or (1 - TIE) * max(rates)
    sufficient = [place for place, rate in enumerate(rates) if rate >= needed]
    place = sufficient[0] if sufficient else len(rates) - 1
    request_s = prefiller.alone_s + steps * decoder.rows[place][1]
    worth = rates[place]
    if _arrival_rate(scenario):  # all that keep up serve as many: the quickest is best
        worth = 1 / request_s if sufficient else -1 / worth
    flight = max(engines, ceil(rates[place] * request_s))
    return Split(prefill=prefiller, decode=decoder, pools=pools, worth=worth, concurrency=flight)


def _arrival_rate(scenario: Scenario) -> float:
    """Give the requests a second that come by themselves; 0 where none do."""
    if scenario.trace:
        return len(scenario.trace) / max(scenario.trace[-1][0], 1.0)
    return scenario.request.rate or 0.0


def _trial_servings(scenario: Scenario, ready: Paired, split: Split) -> Iterator[Serving]:
    """Serve the load that is asked for, or fewer requests until times are just kept."""
    if scenario.request.loaded:
        yield serve(scenario, ready)
        return
    serving = ready.at(min(split.concurrency, max(1, ready.places)))
    yield serving
    targets = wanted_of(scenario.request)
    if not serving.meets(targets):
        yield from halved(ready, 0, serving.concurrency, targets, 1, HALVINGS)


def _larger_servings(ready: Paired, serving: Serving) -> Iterator[Serving]:
    """Serve more requests at once as long as that writes as many more tokens as it is worth."""
    concurrency, previous_rate = round(serving.concurrency), 0.0
    while concurrency < ready.places and serving.tokens_per_s > GAIN * previous_rate:
        previous_rate = serving.tokens_per_s
        concurrency = min(ready.places, ceil(STEP * concurrency))
        serving = ready.at(concurrency)
        yield serving


def _split_estimates(
    scenario: Scenario, ready: Paired, servings: Sequence[Serving]
) -> Iterator[PlanEstimate]:
    """Estimate a split at its best; nothing where it misses the times or its workers do not fit."""
    serving = fewest_of(servings, wanted_of(scenario.request))
    if serving is not None:
        with suppress(IllegalPlanError):
            yield with_serving(ready, alone(scenario, ready), serving)
