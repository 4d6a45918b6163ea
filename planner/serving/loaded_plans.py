"""Plans under load: at the load that is asked for, or at the concurrency that serves most."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from planner.request.lengths import traced
from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import Scenario
from planner.search.clients import Point, Serving, Wanted, wanted_of
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.ranking import TIE, Ranking
from planner.serving.serving import Served, beyond_context, check_context, lengths_of, served
from topology.base import IllegalPlanError, ModelError, counted

MOST: Final = 1024
"""Requests in flight that are tried at most, of each replica and rank with its own."""
GAIN: Final = 1.01
"""More requests at once have to serve more by this factor to be tried further."""
HALVINGS: Final = 3


def under_load(scenario: Scenario, plan: Plan) -> Serving | str:
    """Serve the load that a request asks for with a plan, or say why it cannot.

    Raises
    ------
    InputError
        If requests are longer than the model takes, or the file of arrivals cannot be right.
    """
    request = scenario.request
    lengths = lengths_of(scenario)
    check_context(scenario.model, lengths)
    ready = served(scenario, plan, lengths, request.concurrency or MOST)
    return ready if isinstance(ready, str) else serve(scenario, ready)


def serve(scenario: Scenario, ready: Served) -> Serving:
    """Serve the load that a request asks for with engines that are ready."""
    request = scenario.request
    if scenario.trace:
        return ready.traced(traced(scenario.trace))[0]
    if request.concurrency:
        return ready.at(request.concurrency)
    assert request.rate
    return ready.by(request.rate, request.burst)


def with_load(scenario: Scenario, estimate: PlanEstimate) -> PlanEstimate:
    """Add to an estimate what clients see at the load that is asked for.

    Raises
    ------
    IllegalPlanError
        If the plan cannot serve it.
    OverloadedError
        If more requests come than it serves.
    """
    serving = under_load(scenario, estimate.plan)
    if isinstance(serving, str):
        raise IllegalPlanError(f"plan {estimate.plan}: {serving}")
    if serving.overloaded:
        raise OverloadedError(f"plan {estimate.plan}: {missed(serving, scenario.request)}")
    return loaded(estimate, serving)


def loaded(estimate: PlanEstimate, serving: Serving) -> PlanEstimate:
    """Give an estimate what its clients see, and the memory that its engines take for it."""
    parts = {**estimate.memory_parts_bytes, **serving.memory}
    apart = estimate.memory_apart
    return replace(
        estimate,
        serving=replace(serving, kernels=estimate.half_width_s / estimate.latency_s),
        memory_bytes=sum(size for name, size in parts.items() if name != apart),
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
        judged = [_judged(scenario, estimate, points) for estimate in row]
        by_gpus[gpus] = [each for each in judged if isinstance(each, PlanEstimate)]
        rejected += [each for each in judged if isinstance(each, Rejected)]
    return ranking.judged(by_gpus, rejected, frontier(points))


def _judged(
    scenario: Scenario, estimate: PlanEstimate, points: list[Point]
) -> PlanEstimate | Rejected:
    """Serve one plan at the load asked for, or at the best concurrency; adds what was tried."""
    request, plan = scenario.request, estimate.plan
    wanted = wanted_of(request)
    tried: list[Serving] | str
    if request.loaded:
        serving = under_load(scenario, plan)
        tried = serving if isinstance(serving, str) else [serving]
    else:
        tried = _concurrencies(scenario, plan)
    if isinstance(tried, str):
        if request.loaded or wanted:
            return Rejected(plan=plan, reason=tried)
        return estimate  # of one request at a time
    points += [Point(plan=plan, serving=each) for each in tried]
    good = [each for each in tried if each.meets(wanted)]
    if not good:
        nearest = min(tried, key=lambda each: each.beyond(wanted))
        return Rejected(plan=plan, reason=missed(nearest, request), nearest=nearest)
    most = max(each.tokens_per_s for each in good)
    enough = (each for each in good if each.tokens_per_s >= (1 - TIE) * most)
    return loaded(estimate, min(enough, key=lambda each: each.concurrency))


def _concurrencies(scenario: Scenario, plan: Plan) -> list[Serving] | str:
    """Serve more and more requests at once, until times are missed or nothing is gained."""
    request, lengths = scenario.request, lengths_of(scenario)
    if scenario.ranked_under_load or request.lengths:
        check_context(scenario.model, lengths)
    elif why := beyond_context(scenario.model, lengths):
        return why
    ready = served(scenario, plan, lengths, MOST * plan.replicas)
    if isinstance(ready, str):
        return ready
    wanted = wanted_of(request)
    most = max(ready.engines, min(ready.places, MOST * ready.engines))
    tried: list[Serving] = []
    concurrency = ready.engines
    while True:
        tried.append(ready.at(concurrency))
        if concurrency >= most or not tried[-1].meets(wanted) or _flat(tried):
            break
        concurrency = min(2 * concurrency, most)
    if len(tried) > 1 and not tried[-1].meets(wanted):
        tried += _between(ready, tried[-2], tried[-1], wanted)
    return tried


def _flat(tried: Sequence[Serving]) -> bool:
    return len(tried) > 1 and tried[-1].tokens_per_s < GAIN * tried[-2].tokens_per_s


def _between(ready: Served, met: Serving, missed: Serving, wanted: Wanted) -> Iterator[Serving]:
    """Halve the step between a concurrency that meets the times wanted and one that does not."""
    low, high = round(met.concurrency), round(missed.concurrency)
    for _ in range(HALVINGS):
        middle = (low + high) // 2 // ready.engines * ready.engines
        if middle <= low:
            return
        serving = ready.at(middle)
        yield serving
        low, high = (middle, high) if serving.meets(wanted) else (low, middle)


def missed(nearest: Serving, request: Request) -> str:
    """Say how near a plan comes to the requests, or to the times, that are wanted."""
    if nearest.overloaded and request.rate:
        return f"serves {nearest.requests_per_s:.3g} of {request.rate:.3g} requests a second"
    number = counted(max(1, round(nearest.concurrency)), "request")
    least = "" if request.loaded else " at the least"
    parts = nearest.beside(wanted_of(request))
    return f"{' and '.join(parts)}{least}, with {number} at once"


def frontier(points: Sequence[Point]) -> tuple[Point, ...]:
    """Keep the points that no other beats in both the time of a token and tokens/s a GPU."""
    ordered = sorted(points, key=lambda point: (point.tpot_s, -point.tokens_per_s_per_gpu))
    kept: list[Point] = []
    for point in ordered:
        if not kept or point.tokens_per_s_per_gpu > kept[-1].tokens_per_s_per_gpu:
            kept.append(point)
    return tuple(kept)
