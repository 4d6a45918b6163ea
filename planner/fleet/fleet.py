"""How many GPUs a demand needs: replicas of a plan, and requests that queue for them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from planner.fleet.queueing import MOST_SERVERS, most_rate, servers_needed, wait
from planner.fleet.replica_rates import in_time, most_pace, ready, replicas_for
from planner.fleet.replica_rates import most_rate as most_rate_of
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.launch import Launch, launched
from planner.runners.refusal import refusal
from planner.runners.runners import runners
from planner.scenario.scenario import Scenario, resolve
from planner.search.clients import Serving, wanted_of
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.evaluate import Shared
from planner.search.judging import judge_undivided
from planner.serving.serving import Served
from topology.base import ModelError, PrecisionError, counted, format_number, format_seconds
from topology.base.chart import Axis, Series, curves
from topology.base.rows import as_frame, flat
from topology.base.table import Drawing, Table
from topology.base.values import dataclass
from topology.catalogue import find_hardware

MOST_GPUS: Final = 64
"""Of a replica, where fewer do not hold the model."""
HOUR: Final = 3600
THOUSAND: Final = 1000
POINTS: Final = 13
IN_NOTEBOOKS: Final = (
    "demand", "hardware", "plan", "engine", "replicas", "gpus", "response_s", "utilisation",
    "cost_per_hour",
)  # fmt: skip
"""Columns of fleets that a notebook shows."""
SIZES: Final = ("height", "width", "frames", "steps", "input_tokens", "output_tokens", "batch")
SERVED: Final = (
    "ttft_percentile", "tpot_percentile", "kv_precision", "chunk", "prefix_hit", "spread", "burst",
    "speculative", "draft", "acceptance",
)  # fmt: skip
"""What a demand says of how it is served, where that is not usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests that come at random.

    rate_per_s : on average, in the busiest time. slo_s : within which `share` of them are to be
    done, waiting included; infinite where only tokens are wanted soon. request : what each one asks
    for; its GPUs and hardware are not read.
    """

    name: str
    request: Request
    rate_per_s: float
    slo_s: float = math.inf
    share: float = 0.95

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        request, usual = self.request, Request.__dataclass_fields__
        limits = {f"{name}_s": getattr(request, name) for name in ("slo_ttft", "slo_tpot")}
        sizes = {name: getattr(request, name) for name in SIZES}
        served = {name: getattr(request, name) for name in SERVED}
        return {
            "name": self.name,
            "model": request.model_name,
            "rate_per_s": self.rate_per_s,
            "slo_s": self.slo_s if math.isfinite(self.slo_s) else None,
            "share": self.share,
            **{name: value for name, value in {**sizes, **limits}.items() if value is not None},
            **{name: value for name, value in served.items() if value != usual[name].default},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a GPU costs an hour, by hardware. source : who says so."""

    currency: str
    gpu_hour: Mapping[str, float]
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas of one plan that meet a demand.

    estimate : of one replica with `batch` requests at once. response_s : within which the share
    asked for is done. most_rate_per_s : that the same replicas take in time. cost_per_hour : None
    where no price is known. serving : what clients of a language model see of one replica.
    runner : what runs it, as other programs know it; launch : what to type for one replica.
    unfinished : what is exported makes no results yet.
    """

    demand: Demand
    estimate: PlanEstimate
    batch: int
    replicas: int
    nodes: int
    response_s: float
    most_rate_per_s: float
    cost_per_hour: float | None
    serving: Serving | None = None
    runner: str = ""
    launch: Launch | None = None
    unfinished: bool = False

    @property
    def name(self) -> str:
        """The hardware and the plan of a replica."""
        return f"{self.estimate.hardware}: {self.estimate.plan}"

    @property
    def gpus(self) -> int:
        return self.estimate.gpus * self.replicas

    @property
    def utilisation(self) -> float:
        """Part of all places that are taken on average."""
        if self.serving is not None:
            return self.demand.rate_per_s / self.most_rate_per_s
        busy = self.demand.rate_per_s * self.estimate.latency_s
        return busy / (self.replicas * self.batch)

    @property
    def cost_per_thousand(self) -> float | None:
        """What a thousand requests cost at the rate asked for."""
        if self.cost_per_hour is None:
            return None
        return self.cost_per_hour / HOUR / self.demand.rate_per_s * THOUSAND

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        estimate = self.estimate
        return {
            "hardware": estimate.hardware,
            "plan": str(estimate.plan),
            "gpus_per_replica": estimate.gpus,
            "batch": self.batch,
            "replicas": self.replicas,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "service_s": estimate.latency_s,
            "service_interval_s": [
                max(0.0, estimate.latency_s - estimate.half_width_s),
                estimate.latency_s + estimate.half_width_s,
            ],
            "response_s": self.response_s,
            "utilisation": self.utilisation,
            "most_rate_per_s": self.most_rate_per_s,
            "cost_per_hour": self.cost_per_hour,
            "cost_per_thousand": self.cost_per_thousand,
            "basis": estimate.basis_word,
            "engine": self.runner,
            "command": "" if self.launch is None else self.launch.line,
            **({"serving": self.serving.to_dict()} if self.serving else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Fleets for one demand, the best one first, and hardware that has none with the reason."""

    demand: Demand
    fleets: tuple[Fleet, ...]
    without: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "demand": self.demand.to_dict(),
            "fleets": [fleet.to_dict() for fleet in self.fleets],
            "without": [{"hardware": name, "reason": why} for name, why in self.without],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Answers to all demands. Demands share no replicas."""

    answers: tuple[Answer, ...]
    prices: Prices | None = None

    @property
    def met(self) -> bool:
        """Whether some hardware meets each demand."""
        return all(answer.fleets for answer in self.answers)

    @property
    def gpus(self) -> int:
        """GPUs of the best fleets."""
        return sum(answer.fleets[0].gpus for answer in self.answers if answer.fleets)

    @property
    def cost_per_hour(self) -> float | None:
        """What the best fleets cost; None where one has no price."""
        costs = [answer.fleets[0].cost_per_hour for answer in self.answers if answer.fleets]
        return sum(cost for cost in costs if cost is not None) if None not in costs else None

    def rows(self) -> list[dict[str, object]]:
        """Return a row of each fleet, the best one of each demand first."""
        return [
            {"demand": answer.demand.name, "rate_per_s": answer.demand.rate_per_s}
            | flat(fleet.to_dict())
            for answer in self.answers
            for fleet in answer.fleets
        ]

    def to_frame(self) -> Any:  # noqa: ANN401  # of whichever package is there
        """Return a data frame of pandas or polars; see `as_frame`."""
        return as_frame(self.rows())

    def _repr_html_(self) -> str:
        from topology.base.page import notebook  # noqa: PLC0415  # for notebooks alone

        rows = [[str(row[name]) for name in IN_NOTEBOOKS] for row in self.rows()]
        drawn = [by_rate(answer, "{:.3g}/s".format) for answer in self.answers if answer.fleets]
        table = Table(head=IN_NOTEBOOKS, rows=rows, align="<<<<>")
        return notebook([table, *(Drawing(svg=svg) for svg in drawn)])

    def __repr__(self) -> str:
        return f"<Capacity: {counted(len(self.answers), 'demand')}, {counted(self.gpus, 'GPU')}>"

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "answers": [answer.to_dict() for answer in self.answers],
            "gpus": self.gpus,
            "cost_per_hour": self.cost_per_hour,
            "currency": self.prices.currency if self.prices else None,
        }


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
    fastest = _Fastest()
    return Capacity(
        answers=tuple(_answer(demand, names, prices, fastest, tell) for demand in demands),
        prices=prices,
    )


def _answer(
    demand: Demand,
    names: Sequence[str],
    prices: Prices | None,
    fastest: "_Fastest",
    tell: Callable[[str], object],
) -> Answer:
    best = {}
    for number, name in enumerate(names, 1):
        tell(f"{demand.name} on {name}, {number} of {len(names)}")
        best[name] = _best(demand, name, prices, fastest)
    fleets = [fleet for fleet in best.values() if isinstance(fleet, Fleet)]
    without = tuple((name, why) for name, why in best.items() if isinstance(why, str))
    priced = all(fleet.cost_per_hour is not None for fleet in fleets)

    def goal(fleet: Fleet) -> tuple[float, float]:
        least = fleet.cost_per_hour if priced and fleet.cost_per_hour is not None else fleet.gpus
        return least, fleet.response_s

    return Answer(demand=demand, fleets=tuple(sorted(fleets, key=goal)), without=without)


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """Why a plan makes no fleet; over : times over what is wanted, infinite where it cannot run."""

    reason: str
    over: float = math.inf


def _best(demand: Demand, name: str, prices: Prices | None, fastest: "_Fastest") -> Fleet | str:
    """Find the cheapest fleet of one kind of hardware, or say what comes nearest."""
    each = prices.gpu_hour.get(name) if prices else None
    made = [
        estimate if isinstance(estimate, Short) else _fleet_of(one, estimate, batch, each)
        for one in _by_engine(demand, name)
        for estimate, batch in _replicas(one, name, fastest)
    ]
    fleets = [fleet for fleet in made if isinstance(fleet, Fleet)]
    best = min(fleets, key=lambda fleet: (fleet.gpus, fleet.response_s), default=None)
    if best is None:
        short = [each for each in made if isinstance(each, Short) and each.reason]
        nearest = min(reversed(short), key=lambda each: each.over, default=None)
        return "no plan can run" if nearest is None else nearest.reason
    return _launched(best) if best.serving is not None else _launched(_with_most(best))


def _with_most(fleet: Fleet) -> Fleet:
    """Add the rate that places of one pace take in time."""
    demand, places = fleet.demand, fleet.replicas * fleet.batch
    most = most_rate(places, fleet.estimate.latency_s, demand.slo_s, demand.share)
    return replace(fleet, most_rate_per_s=most)


def _launched(fleet: Fleet) -> Fleet:
    """Add what to type for one replica."""
    estimate = fleet.estimate
    scenario = _scenario(fleet.demand, estimate)
    told = {} if fleet.serving is None else fleet.serving.told
    launch = launched(scenario, estimate.plan, estimate.placement, told)
    unfinished = scenario.deployment.exported and scenario.model.kind == "diffusion"
    runner = scenario.deployment.name
    return replace(fleet, runner=runner, launch=launch, unfinished=unfinished)


def _scenario(demand: Demand, estimate: PlanEstimate) -> Scenario:
    """Look up what one replica is asked."""
    return resolve(replace(demand.request, hardware=estimate.hardware, gpus=estimate.gpus, nodes=0))


def _by_engine(demand: Demand, name: str) -> Iterator[Demand]:
    """Ask the same of every engine that serves a language model, or of those that are named."""
    request = replace(demand.request, hardware=name, gpus=1, nodes=0)
    try:
        scenario = resolve(request, several=True)
    except PrecisionError:  # said of each number of GPUs
        yield demand
        return
    if len(request.engines) == 1 or not scenario.served:
        yield demand
        return
    for each in runners(scenario):
        asked = each.request
        yield replace(
            demand, request=replace(demand.request, engine=asked.engine, runtime=asked.runtime)
        )


def _replicas(
    demand: Demand, name: str, fastest: "_Fastest"
) -> Iterator[tuple[PlanEstimate | Short, int]]:
    """Yield the fastest plan of every number of GPUs a replica may have, and places of it.

    Results of a batch start and end together: images are one request, and the answers of a
    language model, where it is to serve a batch, as many.
    """
    node = find_hardware(name).gpus
    fits = False
    for gpus in _counts(node):
        if gpus > node and fits:
            return
        request = replace(demand.request, hardware=name, gpus=gpus, nodes=0)
        try:
            scenario = resolve(request)
        except PrecisionError as error:
            yield Short(reason=str(error)), 1
            return
        decoder = scenario.model.kind == "decoder"
        found = fastest.of(request)
        fits = fits or isinstance(found, PlanEstimate)
        yield found, request.batch if decoder else 1


def _counts(node: int) -> list[int]:
    """List numbers of GPUs of a replica.

    >>> _counts(6)
    [1, 2, 4, 6, 12, 24, 48]
    """
    halves = [2**power for power in range(node.bit_length())]
    most = max(MOST_GPUS // node, 1)
    return sorted({*halves, *(node * 2**power for power in range(most.bit_length()))})


class _Fastest:
    """The fastest plans of requests, each searched once; demands may ask the same."""

    def __init__(self) -> None:
        self.found: dict[Request, PlanEstimate | Short] = {}
        self.shared: dict[Request, Shared] = {}

    def of(self, request: Request) -> PlanEstimate | Short:
        """Find the plan without replicas that is done first, or say why there is none."""
        if request not in self.found:
            alike = replace(request, hardware="", gpus=1)
            shared = self.shared.setdefault(alike, Shared())
            self.found[request] = _fastest(request, shared)
        return self.found[request]


def _fastest(request: Request, shared: Shared) -> PlanEstimate | Short:
    """Find the plan without replicas that is done first and can be run, or say why none can."""
    scenario = resolve(request)
    estimates: list[PlanEstimate] = []
    reason = ""
    try:
        for outcome in judge_undivided(scenario, shared):
            if isinstance(outcome, Rejected):
                reason = f"{outcome.plan}: {outcome.reason}"
            else:
                estimates.append(outcome)
    except ModelError as error:
        return Short(reason=str(error))
    for estimate in sorted(estimates, key=lambda estimate: estimate.latency_s):
        barred = refusal(scenario, estimate.plan)
        if not barred:
            return estimate
        reason = f"{estimate.plan}: {barred}"
    return Short(reason=reason)


def _fleet(demand: Demand, estimate: PlanEstimate, batch: int, each: float | None) -> Fleet | Short:
    """Count the replicas that a demand needs, or say how far a request alone is from its time."""
    service = estimate.latency_s
    places = servers_needed(demand.rate_per_s, service, demand.slo_s, demand.share)
    if service > demand.slo_s:
        took, wanted = format_seconds(service), format_seconds(demand.slo_s)
        why = f"the fastest, {estimate.plan}, takes {took} a request, {wanted} are wanted"
        return Short(reason=why, over=service / demand.slo_s)
    if places is None:
        return _too_many(estimate)
    replicas = math.ceil(places / batch)
    places = replicas * batch
    size = find_hardware(estimate.hardware).gpus
    load = demand.rate_per_s * service
    return Fleet(
        demand=demand,
        estimate=estimate,
        batch=batch,
        replicas=replicas,
        nodes=_nodes(estimate.gpus, replicas, size),
        response_s=service + wait(places, load, service, demand.share),
        most_rate_per_s=0.0,
        cost_per_hour=None if each is None else each * estimate.gpus * replicas,
    )


def _too_many(estimate: PlanEstimate) -> Short:
    return Short(reason=f"more than {MOST_SERVERS:,} replicas of {estimate.plan}", over=1.0)


def _fleet_of(
    demand: Demand, estimate: PlanEstimate, batch: int, each: float | None
) -> Fleet | Short:
    """Count the replicas of a language model that serves many at once, or those of others."""
    if "prefill" in estimate.stages_s and demand.request.batch == 1:
        return _served_fleet(demand, estimate, each)
    return _fleet(demand, estimate, batch, each)


def _served_fleet(demand: Demand, estimate: PlanEstimate, each: float | None) -> Fleet | Short:
    """Count the replicas of a language model that serves many requests at once."""
    scenario = _scenario(demand, estimate)
    replica = ready(scenario, estimate.plan)
    if isinstance(replica, str):
        return Short(reason=replica)
    found = (_of_trace if scenario.trace else _at_random)(demand, scenario, replica)
    if found is None:
        return _late(demand, replica.at(replica.engines), estimate.plan)
    replicas, most, serving = found
    if replicas > MOST_SERVERS:
        return _too_many(estimate)
    return Fleet(
        demand=demand,
        estimate=estimate,
        batch=max(1, math.ceil(serving.concurrency)),
        replicas=replicas,
        nodes=_nodes(estimate.gpus, replicas, find_hardware(estimate.hardware).gpus),
        response_s=min(demand.slo_s, serving.request.at(demand.share)),
        most_rate_per_s=most,
        cost_per_hour=None if each is None else each * estimate.gpus * replicas,
        serving=serving,
    )


def _at_random(
    demand: Demand, scenario: Scenario, replica: Served
) -> tuple[int, float, Serving] | None:
    """Count the replicas that requests at random need, the most that they take, and what is seen.

    None where not even the fewest are served in time.
    """
    most, serving = most_rate_of(replica, scenario, demand.slo_s, demand.share)
    if serving is None or not most:
        return None
    replicas = math.ceil(demand.rate_per_s / most)
    rate = demand.rate_per_s / replicas
    serving = in_time(replica, rate, scenario, demand.slo_s, demand.share) or serving
    return replicas, replicas * most, serving


def _of_trace(
    demand: Demand, scenario: Scenario, replica: Served
) -> tuple[int, float, Serving] | None:
    """Count the replicas that a trace needs, the most that they take of such requests, as above."""
    found = replicas_for(replica, scenario, demand.slo_s, demand.share)
    if found is None:
        return None
    replicas, serving = found
    pace = most_pace(replica, scenario, replicas, demand.slo_s, demand.share)
    return replicas, pace * demand.rate_per_s, serving


def _late(demand: Demand, alone: Serving, plan: Plan) -> Short:
    """Say what a request by itself takes beside what is wanted."""
    wanted = wanted_of(demand.request)
    took, parts = alone.request.at(demand.share), alone.beside(wanted)
    if math.isfinite(demand.slo_s):
        parts.append(f"{format_seconds(took)} a request of {format_seconds(demand.slo_s)}")
    return Short(
        reason=f"{plan} comes nearest: {' and '.join(parts)}, one at once",
        over=max(alone.beyond(wanted), took / demand.slo_s),
    )


def _nodes(gpus: int, replicas: int, size: int) -> int:
    """Count the hosts that hold replicas, none of which is torn apart without need.

    >>> _nodes(2, 5, 8), _nodes(8, 3, 8), _nodes(16, 2, 8), _nodes(3, 3, 8)
    (2, 3, 4, 2)
    """
    if gpus > size:
        return replicas * math.ceil(gpus / size)
    return math.ceil(replicas / (size // gpus))


def curve(fleet: Fleet) -> list[tuple[float, float]]:
    """Count the GPUs of such replicas at an eighth of the rate, and up to eight times as much."""
    demand, service = fleet.demand, fleet.estimate.latency_s
    rates = [demand.rate_per_s * 2.0 ** (6 * place / (POINTS - 1) - 3) for place in range(POINTS)]
    if fleet.serving is not None:
        alone = fleet.most_rate_per_s / fleet.replicas
        return [(rate, float(math.ceil(rate / alone) * fleet.estimate.gpus)) for rate in rates]
    places = [servers_needed(rate, service, demand.slo_s, demand.share) for rate in rates]
    return [
        (rate, float(math.ceil(count / fleet.batch) * fleet.estimate.gpus))
        for rate, count in zip(rates, places, strict=True)
        if count is not None
    ]


def by_rate(answer: Answer, write: Callable[[float], str]) -> str:
    """Draw the GPUs of each fleet by rate; the rate asked for is set off. write : writes a rate."""
    wanted = answer.demand.rate_per_s
    axes = (
        Axis(title="rate (logarithmic)", write=write, base=2, unit=wanted),
        Axis(title="GPUs", write=format_number),
    )
    series = [
        Series(
            name=fleet.name,
            points=[
                (rate, gpus, f"{write(rate)} takes {counted(round(gpus), 'GPU')}")
                for rate, gpus in curve(fleet)
            ],
            shape="steps",
        )
        for fleet in answer.fleets
    ]
    return curves("GPUs by rate", series, axes, (wanted, f"asked: {write(wanted)}"))


def words(fleet: Fleet) -> str:
    """Say what to set up, in a line.

    >>> from planner.fleet.fleet import Demand, capacity
    >>> demand = Demand(name="a", request=Request(model="flux"), rate_per_s=1.0, slo_s=10.0)
    >>> words(capacity([demand], ["h100-sxm"]).answers[0].fleets[0]).partition(" of ")[0]
    '5 replicas'
    """
    estimate = fleet.estimate
    places = f", {fleet.batch} requests at once" if fleet.batch > 1 else ""
    replicas = f"{counted(fleet.replicas, 'replica')} of {estimate.plan}"
    return f"{replicas} on {fleet.gpus} x {estimate.hardware}{places}"
