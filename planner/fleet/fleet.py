"""How many GPUs a demand needs: replicas of a plan, and requests that queue for them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from planner.fleet.answers import Answer, Capacity, Fleet
from planner.fleet.demand import Demand, Prices
from planner.fleet.queueing import MOST_SERVERS, fewest, most_rate, servers_needed
from planner.fleet.replica_rates import ALL_FOLLOWED, FOLLOWED, Replica, ready, scenario_of
from planner.models import read_model
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.launch import launched
from planner.runners.refusal import refusal, refuser
from planner.runners.runners import exported, runners, why_none
from planner.scenario.scenario import Scenario, resolve
from planner.search.clients import Serving, wanted_of
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import Shared
from planner.search.judging import estimates, judge_undivided
from topology.base import ModelError, PrecisionError, format_seconds
from topology.base.values import dataclass
from topology.catalogue import find_hardware

MOST_GPUS: Final = 64
"""Of a replica, where fewer do not hold the model."""


def capacity(
    demands: Sequence[Demand],
    hardware: Sequence[str],
    prices: Prices | None = None,
    tell: Callable[[str], object] = str,
) -> Capacity:
    """Find the fleet of each kind of hardware that meets each demand with the least.

    The least money, where every kind of hardware has a price; else the fewest GPUs.

    tell : is told which fleet is looked for.

    Raises `InputError` if a model, hardware or size cannot be right.
    """
    names = [find_hardware(name).name for name in hardware]
    fastest = _FastestPlans()
    return Capacity(
        answers=tuple(_answer(demand, names, prices, fastest, tell) for demand in demands),
        prices=prices,
    )


def _answer(
    demand: Demand,
    names: Sequence[str],
    prices: Prices | None,
    fastest: "_FastestPlans",
    tell: Callable[[str], object],
) -> Answer:
    best_by_kind = {}
    for number, name in enumerate(names, 1):
        tell(f"{demand.name} on {name}, {number} of {len(names)}")
        best_by_kind[name] = _best_fleet(demand, name, prices, fastest)
    fleets = [fleet for fleet in best_by_kind.values() if isinstance(fleet, Fleet)]
    refusals = tuple(
        (name, outcome) for name, outcome in best_by_kind.items() if isinstance(outcome, str)
    )
    return Answer(demand=demand, fleets=tuple(_best_first(fleets)), without=refusals)


def _best_first(fleets: Sequence[Fleet]) -> list[Fleet]:
    """Sort by the least money, where every fleet has a price; else by the fewest GPUs."""
    priced = all(fleet.cost_per_hour is not None for fleet in fleets)

    def goal(fleet: Fleet) -> tuple[float, float, float]:
        cost = fleet.cost_per_hour if priced and fleet.cost_per_hour is not None else 0.0
        return cost, fleet.gpus, fleet.response_s

    return sorted(fleets, key=goal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """Why a plan makes no fleet; over : times over what is wanted, infinite where it cannot run."""

    reason: str
    over: float = math.inf


def _best_fleet(
    demand: Demand, name: str, prices: Prices | None, fastest: "_FastestPlans"
) -> Fleet | str:
    """Find the cheapest fleet of one kind of hardware, or say what comes nearest."""
    try:
        demands = _by_engine(demand, name)
    except PrecisionError as error:
        return str(error)
    fleets: list[Fleet] = []
    outcomes = [list(_made_fleets(group, name, prices, fastest, fleets)) for group in demands]
    if not fleets:
        shortfalls = [
            outcome
            for group_outcomes in outcomes
            for outcome in reversed(group_outcomes)
            if isinstance(outcome, Short)
        ]
        nearest = min(shortfalls, key=lambda outcome: outcome.over, default=None)
        return "no plan can run" if nearest is None else nearest.reason
    final_fleet = _surest_fleet(fleets)
    return (
        _with_node_loss(_with_launch(final_fleet))
        if isinstance(final_fleet, Fleet)
        else final_fleet.reason
    )


def _surest_fleet(fleets: Sequence[Fleet]) -> Fleet | Short:
    """Follow many requests of the best fleet, which may then need more replicas, or not do."""
    best, *other_fleets = _best_first(fleets)
    followed = _followed_longer(best)
    if isinstance(followed, Short):
        return _surest_fleet(other_fleets) if other_fleets else followed
    if followed.needed > best.needed:
        return _surest_fleet([followed, *other_fleets])
    return replace(followed, others=tuple(other_fleets))


def _followed_longer(fleet: Fleet) -> Fleet | Short:
    """Add the rate that places of one pace take in time, or what many requests find."""
    demand = fleet.demand
    if fleet.serving is None:
        places = fleet.needed * fleet.batch
        most_per_s = most_rate(places, fleet.estimate.latency_s, demand.slo_s, demand.share)
        return replace(fleet, most_rate_per_s=most_per_s)
    replica = ready(demand, fleet.estimate)
    if isinstance(replica, str) or replica.scenario.trace:
        return fleet

    def seen(rate: float) -> Serving | None:
        return replica.in_time(rate, ALL_FOLLOWED)

    fewest_found = fewest(
        fleet.needed, MOST_SERVERS, lambda count: seen(demand.planned_per_s / count)
    )
    if fewest_found is None:
        lateness = (
            f"of {ALL_FOLLOWED:,} requests too few are served in time, with any number of replicas"
        )
        return Short(reason=f"{fleet.estimate.plan} comes nearest: {lateness}")
    needed, serving = fewest_found
    needs_more = needed > fleet.needed
    return replace(
        fleet,
        needed=needed,
        most_rate_per_s=demand.planned_per_s if needs_more else fleet.most_rate_per_s,
        serving=seen(demand.rate_per_s / needed) or serving if demand.headroom else serving,
    )


def _with_node_loss(fleet: Fleet) -> Fleet:
    """Add what clients see when a node is lost, and its requests go to the replicas left."""
    demand, replicas_left = fleet.demand, fleet.left_without_node
    if fleet.serving is None or not replicas_left:
        return replace(fleet, node_lost=fleet.without_node())
    if replicas_left == fleet.needed:
        return replace(fleet, node_lost=fleet.without_node(fleet.serving, kept=True))
    replica = ready(demand, fleet.estimate)
    assert not isinstance(replica, str), "a fleet of replicas that serve"
    if replica.scenario.trace:
        serving, in_time = replica.on_trace(replicas_left)
    else:
        serving, in_time = replica.at_rate(demand.rate_per_s / replicas_left, FOLLOWED)
        if not serving.overloaded:
            serving, in_time = replica.at_rate(demand.rate_per_s / replicas_left, ALL_FOLLOWED)
    survivors_view = None if serving.overloaded else serving
    return replace(fleet, node_lost=fleet.without_node(survivors_view, kept=in_time))


def _made_fleets(
    demands: Sequence[Demand],
    name: str,
    prices: Prices | None,
    fastest: "_FastestPlans",
    fleets: list[Fleet],
) -> Iterator[Fleet | Short]:
    """Make a fleet of every number of GPUs that a replica may have, or say why there is none.

    Of those beyond the fewest none is made that is sure to be dearer than one of `fleets`, to which
    each is added.
    """
    why_not_fewer, rival = "", None
    for demand, best, batch in _replica_plans(demands, name, fastest):
        outcome = best if isinstance(best, Short) else _fleet_of(demand, best, batch, prices, rival)
        if isinstance(outcome, Fleet):
            fleets.append(replace(outcome, fewer=why_not_fewer))
            rival = _best_first(fleets)[0]
            yield fleets[-1]
        elif outcome.reason:
            why_not_fewer = outcome.reason
            yield outcome


def _with_launch(fleet: Fleet) -> Fleet:
    """Add what to type for one replica."""
    estimate = fleet.estimate
    scenario = scenario_of(fleet.demand, estimate)
    engine_limits = {} if fleet.serving is None else fleet.serving.told
    return replace(
        fleet,
        runner=scenario.deployment.name,
        launch=launched(scenario, estimate.plan, estimate.placement, engine_limits),
        exported=exported(scenario),
        request=scenario.resolved,
    )


def _by_engine(demand: Demand, name: str) -> list[list[Demand]]:
    """Ask the same of every engine that is named, or else of all that run the model.

    Those stand together of which only the fastest with as many GPUs can be the best: all, unless
    requests are served together. Each is asked in the fastest of its runtimes. What `planner
    export` writes nobody has run yet: it counts where it is asked for, or no engine can run.
    """
    request = replace(demand.request, hardware=name, gpus=1, nodes=0)
    scenario = resolve(request, several=True)
    if len(request.engines) == 1:
        return [[demand]]
    by_name = groupby(runners(scenario), key=lambda candidate: candidate.request.engine)
    fastest = [next(candidate) for _, candidate in by_name]
    is_named = request.engines or request.runtime
    runnable = (
        fastest
        if is_named
        else [candidate for candidate in fastest if _engine_runs(candidate)] or fastest
    )
    engine_runtimes = [
        (candidate.request.engine, candidate.request.runtime) for candidate in runnable
    ]
    demands = [
        replace(demand, request=replace(demand.request, engine=engine, runtime=runtime))
        for engine, runtime in engine_runtimes
    ]
    return [[candidate] for candidate in demands] if scenario.served else [demands]


def _engine_runs(scenario: Scenario) -> bool:
    """Whether it is an engine that runs a scenario, and can on one GPU."""
    return scenario.deployment.runner is not None and not refusal(scenario, Plan(()))


def _replica_plans(
    demands: Sequence[Demand], name: str, fastest: "_FastestPlans"
) -> Iterator[tuple[Demand, PlanEstimate | Short, int]]:
    """Yield the fastest plan of every number of GPUs a replica may have, of whom, and its places.

    Results of a batch start and end together: images are one request, and the answers of a
    language model, where it is to serve a batch, as many.
    """
    node = find_hardware(name).gpus
    decoder = read_model(demands[0].request.model).kind == "decoder"
    fits = False
    for gpus in _gpu_counts(node):
        if gpus > node and fits:
            return
        by_demand = [
            (demand, fastest.of(replace(demand.request, hardware=name, gpus=gpus, nodes=0)))
            for demand in demands
        ]
        demand, best = min(by_demand, key=lambda demand_and_plan: _latency_of(demand_and_plan[1]))
        fits = fits or isinstance(best, PlanEstimate)
        yield demand, best, demand.request.batch if decoder else 1


def _latency_of(best: PlanEstimate | Short) -> float:
    return best.latency_s if isinstance(best, PlanEstimate) else math.inf


def _gpu_counts(node: int) -> list[int]:
    """List numbers of GPUs of a replica.

    >>> _gpu_counts(6)
    [1, 2, 4, 6, 12, 24, 48]
    """
    halves = [2**power for power in range(node.bit_length())]
    most_nodes = max(MOST_GPUS // node, 1)
    return sorted({*halves, *(node * 2**power for power in range(most_nodes.bit_length()))})


class _FastestPlans:
    """The fastest plans of requests, each searched once; demands may ask the same."""

    def __init__(self) -> None:
        self.found: dict[Request, PlanEstimate | Short] = {}
        self.shared: dict[Request, Shared] = {}

    def of(self, request: Request) -> PlanEstimate | Short:
        """Find the plan without replicas that is done first, or say why there is none."""
        if request not in self.found:
            shared_request = replace(request, hardware="", gpus=1, engine="", runtime="")
            shared = self.shared.setdefault(shared_request, Shared())
            self.found[request] = _fastest(request, shared)
        return self.found[request]


def _fastest(request: Request, shared: Shared) -> PlanEstimate | Short:
    """Find the plan without replicas that is done first and can be run, or say why none can."""
    scenario = resolve(request)
    try:
        refuses = refuser(scenario)
        outcomes = list(judge_undivided(scenario, shared, lambda plan: not refuses(plan)))
    except ModelError as error:
        return Short(reason=str(error))
    fitting = estimates(outcomes)
    if fitting:
        return min(fitting, key=lambda estimate: estimate.latency_s)
    reason = why_none(scenario, outcomes)
    return Short(reason=f"{scenario.deployment.title}: {reason}" if reason else "")


def _counted_fleet(
    demand: Demand, estimate: PlanEstimate, batch: int, prices: Prices | None
) -> Fleet | Short:
    """Count the replicas that a demand needs, or say how far a request alone is from its time."""
    service = estimate.latency_s
    places = servers_needed(demand.planned_per_s, service, demand.slo_s, demand.share)
    if service > demand.slo_s:
        service_text, limit_text = format_seconds(service), format_seconds(demand.slo_s)
        title = scenario_of(demand, estimate).deployment.title
        reason = f"the fastest, {estimate.plan} with {title}, takes {service_text} a request"
        return Short(reason=f"{reason}, {limit_text} are wanted", over=service / demand.slo_s)
    if places is None:
        return _too_many_replicas(estimate)
    return Fleet(
        demand=demand,
        estimate=estimate,
        batch=batch,
        needed=math.ceil(places / batch),
        most_rate_per_s=0.0,
        prices=prices,
    )


def _too_many_replicas(estimate: PlanEstimate) -> Short:
    return Short(reason=f"more than {MOST_SERVERS:,} replicas of {estimate.plan}", over=1.0)


def _fleet_of(
    demand: Demand, estimate: PlanEstimate, batch: int, prices: Prices | None, rival: Fleet | None
) -> Fleet | Short:
    """Count the replicas of a language model that serves many at once, or those of others."""
    if "prefill" in estimate.stages_s and demand.request.batch == 1:
        return _served_fleet(demand, estimate, prices, rival)
    return _counted_fleet(demand, estimate, batch, prices)


def _served_fleet(
    demand: Demand, estimate: PlanEstimate, prices: Prices | None, rival: Fleet | None
) -> Fleet | Short:
    """Count the replicas of a language model that serves many requests at once.

    rival : the most replicas that are no dearer than it have to serve in time.
    """
    replica = ready(demand, estimate)
    if isinstance(replica, str):
        return Short(reason=replica)
    if rival is not None and not replica.scenario.trace:
        replicas = _no_dearer(rival, estimate)
        if not replicas or replica.in_time(demand.planned_per_s / replicas) is None:
            return Short(reason="")
    replica_count = (_counted_on_trace if replica.scenario.trace else _counted_at_random)(replica)
    if replica_count is None:
        return _too_late(demand, replica.engines.at(replica.engines.engines), estimate.plan)
    needed, most_per_s, serving = replica_count
    if needed > MOST_SERVERS:
        return _too_many_replicas(estimate)
    return Fleet(
        demand=demand,
        estimate=estimate,
        batch=max(1, math.ceil(serving.concurrency)),
        needed=needed,
        most_rate_per_s=most_per_s,
        prices=prices,
        serving=serving,
    )


def _no_dearer(rival: Fleet, estimate: PlanEstimate) -> int:
    """Count the most replicas of a plan that take no more money, and GPUs, than a fleet."""
    price = _price_and_gpus(rival)
    counts = range(rival.gpus // estimate.gpus, 0, -1)
    candidates = (replace(rival, estimate=estimate, needed=count) for count in counts)
    return next((fleet.needed for fleet in candidates if _price_and_gpus(fleet) <= price), 0)


def _price_and_gpus(fleet: Fleet) -> tuple[float, float]:
    return fleet.cost_per_hour or 0.0, fleet.gpus


def _counted_at_random(replica: Replica) -> tuple[int, float, Serving] | None:
    """Count the replicas that requests at random need, the most that they take, and what is seen.

    None where not even the fewest are served in time.
    """
    demand, (most_per_s, serving) = replica.demand, replica.most_rate()
    if serving is None or not most_per_s:
        return None
    replicas = math.ceil(demand.planned_per_s / most_per_s)
    serving = replica.in_time(demand.rate_per_s / replicas) or serving
    return replicas, replicas * most_per_s, serving


def _counted_on_trace(replica: Replica) -> tuple[int, float, Serving] | None:
    """Count the replicas that a trace needs, the most that they take of such requests, as above."""
    demand = replica.demand
    replicas_needed = replica.needed(demand.planned_per_s / demand.rate_per_s)
    if replicas_needed is None:
        return None
    replicas, serving = replicas_needed
    return replicas, replica.most_pace(replicas) * demand.rate_per_s, serving


def _too_late(demand: Demand, alone: Serving, plan: Plan) -> Short:
    """Say what a request by itself takes beside what is wanted."""
    targets = wanted_of(demand.request)
    response_s, parts = alone.request.at(demand.share), alone.beside(targets)
    if math.isfinite(demand.slo_s):
        parts.append(f"{format_seconds(response_s)} a request of {format_seconds(demand.slo_s)}")
    return Short(
        reason=f"{plan} comes nearest: {' and '.join(parts)}, one at once",
        over=max(alone.beyond(targets), response_s / demand.slo_s),
    )
