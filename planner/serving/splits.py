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
    MOST,
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

KEPT: Final = 3
"""Plans of each number of GPUs that go on to be paired."""
FOLLOWED: Final = 4
"""Splits that are followed."""
BUSY: Final = 0.9
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
    prefills, decodes = _measured(scenario, ranking)
    splits = sorted(_splits(scenario, prefills, decodes), key=lambda split: -split.worth)
    if not splits:
        return Splits(reason=f"no two plans for {gpus} GPUs in all run, fit and keep TPOT")
    followed = _followed(scenario, splits[:FOLLOWED])
    points = tuple(
        Point(plan=ready.pools, serving=each) for ready, tried in followed for each in tried
    )
    plans = [plan for row in followed for plan in _estimated(scenario, *row)]
    if not plans:
        wanted = wanted_of(scenario.request)
        near = min(points, key=lambda point: point.serving.beyond(wanted))
        reason = f"{near.plan}: {missed(near.serving, scenario.request)}"
        return Splits(points=points, reason=reason)
    return Splits(plans=tuple(_ordered(plans, scenario.request)), points=points)


def _followed(scenario: Scenario, splits: Sequence[Split]) -> list[tuple[Paired, list[Serving]]]:
    """Serve with splits: all at one concurrency, or fewer; the best with more requests too."""
    followed = []
    for split in splits:
        ready = join(scenario, split.pools, split.prefill.ready, split.decode.ready)
        followed.append((ready, list(_tried(scenario, ready, split))))
    if not scenario.request.loaded:
        wanted = wanted_of(scenario.request)
        best, tried = max(followed, key=lambda row: row[1][0].tokens_per_s)
        if tried[0].meets(wanted):
            tried += _more(best, tried[0])
    return followed


def _ordered(plans: Sequence[PlanEstimate], request: Request) -> list[PlanEstimate]:
    """Order splits by what is wanted; of those that are nearly the best the quickest is first."""
    ordered = sorted(plans, key=lambda plan: goal(plan, request))
    best = goal(ordered[0], request)
    close = [plan for plan in ordered if goal(plan, request) <= best + TIE * abs(best)]
    first = min(close, key=lambda plan: plan.serving.request.mean if plan.serving else 0.0)
    return [first, *(plan for plan in ordered if plan is not first)]


def _measured(scenario: Scenario, ranking: Ranking) -> tuple[list[Prefiller], list[Decoder]]:
    """Measure plans of fewer GPUs than there are as workers of either kind; keep the best."""
    prefills, decodes = list[Prefiller](), list[Decoder]()
    bars = scenario.deployment.disaggregation.bars
    for gpus, row in ranking.by_gpus.items():
        able = [
            estimate
            for estimate in row
            if gpus < scenario.request.gpus
            and all(axis in AXES and axis != "dp" for axis, _ in estimate.plan.axes)
            and not bars(estimate.plan)
        ]
        firsts = [worker for estimate in able for worker in _prefiller(scenario, estimate)]
        by_rate = sorted(firsts, key=lambda worker: -worker.rate)[:KEPT]
        quickest = sorted(firsts, key=lambda worker: worker.alone_s)[:1]
        prefills += by_rate + [worker for worker in quickest if worker not in by_rate]
        laters = [worker for estimate in able for worker in _decoder(scenario, estimate)]
        decodes += sorted(laters, key=lambda worker: -worker.most)[:KEPT]
    return prefills, decodes


def _prefiller(scenario: Scenario, estimate: PlanEstimate) -> Iterator[Prefiller]:
    """Measure a plan on prompts; yield nothing where it cannot serve them in time."""
    lengths, ways = lengths_of(scenario), scenario.deployment.scheduling
    together, plan = max(1, ways.chunk // lengths.prompt), estimate.plan
    ready = served(scenario.on(plan.gpus), plan, lengths, together * plan.replicas)
    limit = scenario.request.slo_ttft
    by_itself = estimate.stages_s["prefill"]
    if isinstance(ready, str) or (limit is not None and by_itself > limit):
        return
    fresh = lengths.prompt * (1.0 - scenario.request.prefix_hit)
    places = ready.steps.at_places(together * fresh, 0.0, 0.0, 0.0)
    step = max(*places, (ways.host_s(0) + sum(places)) / len(places))
    longer = max(1.0, by_itself / step) if together == 1 else 1.0  # prompts of several steps
    rate = ready.engines * together / (step * longer)
    yield Prefiller(ready=ready, alone_s=by_itself, rate=rate)


def _decoder(scenario: Scenario, estimate: PlanEstimate) -> Iterator[Decoder]:
    """Measure a plan with more and more sequences; yield nothing where even one takes too long."""
    lengths, plan = lengths_of(scenario), estimate.plan
    ready = served(scenario.on(plan.gpus), plan, lengths, MOST * plan.replicas)
    if isinstance(ready, str):
        return
    most = min(MOST, ready.places // ready.engines)
    counts = sorted({1, *(2**power for power in range(1, 12) if 2**power < most), most})
    rows = [(count, _step_s(ready, count)) for count in counts if count]
    limit = scenario.request.slo_tpot
    kept = tuple(row for row in rows if limit is None or row[1] <= limit)
    if kept:
        yield Decoder(ready=ready, rows=kept)


def _step_s(ready: Served, rows: int) -> float:
    """Give the seconds in which every sequence gets a token, in the middle of its answer."""
    places, lengths = len(ready.steps.kinds), ready.lengths
    each, length = max(1.0, rows / places), lengths.prompt + lengths.output / 2
    times = [ready.ways.host_s(each), *ready.steps.at_places(0.0, 0.0, each, length)]
    return max(sum(times), places * max(times))


def _splits(
    scenario: Scenario, prefills: Sequence[Prefiller], decodes: Sequence[Decoder]
) -> Iterator[Split]:
    """Pair workers so that they take all GPUs."""
    gpus = scenario.request.gpus
    for first in prefills:
        for later in decodes:
            prefill, decode = first.ready.plan, later.ready.plan
            for count in range(1, (gpus - decode.gpus) // prefill.gpus + 1):
                decodes_left, rest = divmod(gpus - count * prefill.gpus, decode.gpus)
                if not rest:
                    pools = TwoPools(
                        prefill=prefill, prefills=count, decode=decode, decodes=decodes_left
                    )
                    yield _weighed(scenario, first, later, pools)


def _weighed(scenario: Scenario, first: Prefiller, later: Decoder, pools: TwoPools) -> Split:
    """Tell how much a split serves: at the load that is asked for, or of as much as it can."""
    steps = max(1, later.ready.lengths.output - 1) / later.ready.gain
    prompts, engines = pools.prefills * first.rate, engines_of(pools)[1]
    asked = scenario.request.concurrency
    if asked:
        counts, seconds = zip(*later.rows, strict=True)
        step = float(np.interp(asked / engines, counts, seconds))
        rate = min(prompts, asked / (first.alone_s + steps * step))
        return Split(prefill=first, decode=later, pools=pools, worth=rate, concurrency=asked)
    rates = [min(BUSY * prompts, pools.decodes * later.rate(*row)) for row in later.rows]
    needed = _rate_of(scenario) or (1 - TIE) * max(rates)
    enough = [place for place, rate in enumerate(rates) if rate >= needed]
    place = enough[0] if enough else len(rates) - 1
    whole = first.alone_s + steps * later.rows[place][1]
    worth = rates[place]
    if _rate_of(scenario):  # all that keep up serve as many: the quickest is best
        worth = 1 / whole if enough else -1 / worth
    flight = max(engines, ceil(rates[place] * whole))
    return Split(prefill=first, decode=later, pools=pools, worth=worth, concurrency=flight)


def _rate_of(scenario: Scenario) -> float:
    """Give the requests a second that come by themselves; 0 where none do."""
    if scenario.trace:
        return len(scenario.trace) / max(scenario.trace[-1][0], 1.0)
    return scenario.request.rate or 0.0


def _tried(scenario: Scenario, ready: Paired, split: Split) -> Iterator[Serving]:
    """Serve the load that is asked for, or fewer requests until times are just kept."""
    if scenario.request.loaded:
        yield serve(scenario, ready)
        return
    serving = ready.at(min(split.concurrency, max(1, ready.places)))
    yield serving
    wanted = wanted_of(scenario.request)
    if not serving.meets(wanted):
        yield from halved(ready, 0, serving.concurrency, wanted, 1, HALVINGS)


def _more(ready: Paired, serving: Serving) -> Iterator[Serving]:
    """Serve more requests at once as long as that writes as many more tokens as it is worth."""
    concurrency, written = round(serving.concurrency), 0.0
    while concurrency < ready.places and serving.tokens_per_s > GAIN * written:
        written = serving.tokens_per_s
        concurrency = min(ready.places, ceil(STEP * concurrency))
        serving = ready.at(concurrency)
        yield serving


def _estimated(
    scenario: Scenario, ready: Paired, tried: Sequence[Serving]
) -> Iterator[PlanEstimate]:
    """Estimate a split at its best; nothing where it misses the times or its workers do not fit."""
    serving = fewest_of(tried, wanted_of(scenario.request))
    if serving is not None:
        with suppress(IllegalPlanError):
            yield with_serving(ready, alone(scenario, ready), serving)
