"""Fleets that were found for demands: what they cost, over a day too, and what growth takes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

from planner.fleet.demand import HOUR, Demand, Prices
from planner.fleet.packing import FilledNode, Pile, pack
from planner.fleet.queueing import most_rate, servers_needed, wait
from planner.fleet.spares import lost_with_node, nodes_of, spares
from planner.request.request import Request
from planner.runners.launch import Launch
from planner.search.clients import Serving
from planner.search.estimate import PlanEstimate
from topology.base import counted, format_number
from topology.base.chart import Axis, Series, curves
from topology.base.rows import as_frame, flat
from topology.base.table import Drawing, Table
from topology.base.values import dataclass
from topology.catalogue import find_hardware

THOUSAND: Final = 1000
MILLION: Final = 10**6
PERCENTILES: Final = (0.5, 0.95, 0.99)
POINTS: Final = 13
HALVINGS: Final = 6
"""Of twice a rate, so that a break-even is known to 1 %."""
GROWTH: Final = (0.5, 1.0, 2.0, 4.0)
"""Times the rate that a fleet is counted for."""
NOTEBOOK_COLUMNS: Final = (
    "demand", "hardware", "plan", "engine", "replicas", "gpus", "response_s", "utilisation",
    "cost_per_hour",
)  # fmt: skip
"""Columns of fleets that a notebook shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """As many replicas of a fleet as another rate takes. cost_per_hour : None without a price."""

    rate_per_s: float
    replicas: int
    gpus: int
    nodes: int
    cost_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A fleet of the most GPUs that are too few, at the rate that is planned for.

    response_s : within which the share asked for is done; infinite where requests pile up, or are
    those of a language model. most_rate_per_s : that it takes: of a language model in time, else at
    all. reason : where no replica is left, why fewer GPUs are too few; empty where there are none.
    """

    plan: str
    replicas: int
    gpus: int
    response_s: float
    most_rate_per_s: float
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        endless = {} if math.isfinite(self.response_s) else {"response_s": None}
        return {**asdict(self), **endless}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """What a fleet does when its fullest node is lost and the requests go to what is left.

    replicas_lost, replicas_left : those that stand by too. in_time : whether as many requests are
    done in time as are wanted. response_percentiles_s : seconds within which so many per cent of
    them are done, waiting included; none where requests pile up. most_rate_per_s : that those left
    take in time. spare_replicas_needed : on another node for none to be late. serving : what
    clients of a language model see of one replica that is left; None where requests pile up.
    """

    replicas_lost: int
    replicas_left: int
    in_time: bool
    response_percentiles_s: Mapping[str, float]
    most_rate_per_s: float
    spare_replicas_needed: int
    serving: Serving | None = None

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        numbers = asdict(replace(self, serving=None))
        del numbers["serving"]
        return {**numbers, **({"serving": self.serving.to_dict()} if self.serving else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas of one plan that meet a demand.

    estimate : of one replica with `batch` requests at once. needed : replicas that serve the
    demand; others stand by for them. most_rate_per_s : that as many take in time. serving : what
    clients of a language model see of one replica. runner : what runs it, as other programs know
    it; launch : what to type for one replica. exported : what `planner export` gives of it.
    fewer : why replicas of fewer GPUs will not do, where that is known. others : fleets of other
    plans on the same hardware. request : of one replica, with the usual sizes filled in.
    node_lost : what the loss of a node does, where that was looked at.
    """

    demand: Demand
    estimate: PlanEstimate
    batch: int
    needed: int
    most_rate_per_s: float
    prices: Prices | None = None
    serving: Serving | None = None
    runner: str = ""
    launch: Launch | None = None
    exported: str = ""
    fewer: str = ""
    others: tuple["Fleet", ...] = ()
    request: Request | None = None
    node_lost: NodeLost | None = None

    @property
    def name(self) -> str:
        """The hardware and the plan of a replica."""
        return f"{self.estimate.hardware}: {self.estimate.plan}"

    @property
    def size(self) -> int:
        """GPUs of a node."""
        return find_hardware(self.estimate.hardware).gpus

    @property
    def replicas(self) -> int:
        """All of them, those that stand by too."""
        return self._current.replicas

    @property
    def gpus(self) -> int:
        return self.estimate.gpus * self.replicas

    @property
    def nodes(self) -> int:
        return self._current.nodes

    @property
    def cost_per_hour(self) -> float | None:
        """What all of it costs; None where no price is known."""
        return self._current.cost_per_hour

    @property
    def utilisation(self) -> float:
        """Part of all places that are taken on average, in the busiest time."""
        return self.busy(self.demand.rate_per_s)

    def busy(self, rate_per_s: float) -> float:
        """Return the part of all places that so many requests a second take on average."""
        if self.serving is not None:
            return rate_per_s / self.most_rate_per_s * self.needed / self.replicas
        return rate_per_s * self.estimate.latency_s / (self.replicas * self.batch)

    @property
    def _current(self) -> Scaled:
        return self._scaled_to(self.demand.rate_per_s, self.needed)

    def _scaled_to(self, rate_per_s: float, needed: int) -> Scaled:
        """Count what so many replicas and those that stand by for them take."""
        estimate, spare = self.estimate, self.demand.spare
        replicas = needed + spares(needed, spare, estimate.gpus, self.size)
        nodes = nodes_of(needed, spare, estimate.gpus, self.size)
        gpus = estimate.gpus * replicas
        cost = self.prices.cost(estimate.hardware, gpus, nodes) if self.prices else None
        return Scaled(
            rate_per_s=rate_per_s, replicas=replicas, gpus=gpus, nodes=nodes, cost_per_hour=cost
        )

    def at(self, rate_per_s: float) -> Scaled | None:
        """Count such replicas for another rate; None where it takes too many."""
        demand, planned = self.demand, rate_per_s / (1 - self.demand.headroom)
        if self.serving is not None:
            count: int | None = max(1, math.ceil(planned / self.most_rate_per_s * self.needed))
        else:
            service = self.estimate.latency_s
            places = servers_needed(planned, service, demand.slo_s, demand.share)
            count = None if places is None else math.ceil(places / self.batch)
        if count is None:
            return None
        is_growth = rate_per_s >= demand.rate_per_s
        return self._scaled_to(rate_per_s, (max if is_growth else min)(count, self.needed))

    @property
    def response_s(self) -> float:
        """Seconds within which the share asked for is done, by no more than are needed."""
        return min(self.demand.slo_s, self._response_at(self.demand.share))

    @property
    def percentiles_s(self) -> dict[str, float]:
        """Seconds within which so many of the requests are done, waiting included."""
        return _response_percentiles(self._response_at)

    def without_node(self, serving: Serving | None = None, *, kept: bool = False) -> NodeLost:
        """Say what is left when the fullest node is lost.

        serving : of a language model, what clients see of one replica that is left; None where
            requests pile up. kept : whether those are in time.
        """
        demand, replicas_left = self.demand, self.left_without_node
        rate, service = demand.rate_per_s, self.estimate.latency_s
        if self.serving is not None:
            response_at = None if serving is None else serving.request.at
            most_rate_left = self.most_rate_per_s * replicas_left / self.needed
        else:
            piles_up = rate * service >= replicas_left * self.batch
            response_at = None if piles_up else partial(self._response, rate, replicas_left)
            kept = response_at is not None and response_at(demand.share) <= demand.slo_s
            most_rate_left = most_rate(
                replicas_left * self.batch, service, demand.slo_s, demand.share
            )
        return NodeLost(
            replicas_lost=self.replicas - replicas_left,
            replicas_left=replicas_left,
            in_time=kept,
            response_percentiles_s=_response_percentiles(response_at) if response_at else {},
            most_rate_per_s=most_rate_left,
            spare_replicas_needed=spares(self.needed, "node", self.estimate.gpus, self.size),
            serving=serving,
        )

    @property
    def left_without_node(self) -> int:
        """Replicas that are left when the fullest node is lost."""
        spare, gpus = self.demand.spare, self.estimate.gpus
        return self.replicas - lost_with_node(self.needed, spare, gpus, self.size)

    def _response_at(self, share: float) -> float:
        if self.serving is not None:
            return self.serving.request.at(share)
        return self._response(self.demand.rate_per_s, self.needed, share)

    def _response(self, rate_per_s: float, replicas: int, share: float) -> float:
        """Time a request of places of one pace, waiting included."""
        service = self.estimate.latency_s
        return service + wait(replicas * self.batch, rate_per_s * service, service, share)

    @property
    def smaller(self) -> Smaller:
        """Say what the largest fleet of fewer GPUs takes, which is too little."""
        max_gpus = self.needed * self.estimate.gpus - 1
        fleets = (self, *self.others)
        counts = [min(max_gpus // fleet.estimate.gpus, fleet.needed - 1) for fleet in fleets]
        smaller_fleets = [fleet.with_only(left) for fleet, left in zip(fleets, counts, strict=True)]
        nearest = max(smaller_fleets, key=lambda fleet: fleet.gpus)
        return nearest if nearest.replicas else replace(nearest, reason=self.fewer)

    def with_only(self, left: int) -> Smaller:
        """Say what so many replicas take, which are not enough."""
        demand, response = self.demand, math.inf
        if self.serving is not None:
            most_taken = self.most_rate_per_s * left / self.needed
        else:
            most_taken = left * self.batch / self.estimate.latency_s
            if left:
                response = self._response(demand.planned_per_s, left, demand.share)
        return Smaller(
            plan=str(self.estimate.plan),
            replicas=left,
            gpus=left * self.estimate.gpus,
            response_s=response,
            most_rate_per_s=most_taken,
        )

    @property
    def growth(self) -> dict[float, Scaled | None]:
        """Such replicas by times the rate that is asked for."""
        return {times: self.at(times * self.demand.rate_per_s) for times in GROWTH}

    @property
    def hours(self) -> list[Scaled]:
        """Such replicas by the hour of the day, where its rates are known."""
        scaled = {rate: self.at(rate) for rate in set(self.demand.hours_per_s)}
        return [hour for rate in self.demand.hours_per_s if (hour := scaled[rate]) is not None]

    @property
    def cost_per_thousand(self) -> float | None:
        """What a thousand requests cost, over the whole day where its hours are known."""
        if self.cost_per_hour is None:
            return None
        return self.cost_per_hour / HOUR / self.demand.mean_per_s * THOUSAND

    @property
    def power_w(self) -> float:
        """Watts of all GPUs at the limits of their data sheets, hosts and cooling not counted."""
        return self.gpus * find_hardware(self.estimate.hardware).device.power.value

    @property
    def energy_per_thousand_kwh(self) -> float:
        """Kilowatt hours that a thousand requests take at most, all GPUs at their limits."""
        return self.power_w / HOUR / self.demand.mean_per_s

    @property
    def memory_bytes(self) -> float:
        """Bytes on the fullest GPU, as many requests under way as there are at once."""
        return sum(self.serving.memory.values()) if self.serving else self.estimate.memory_bytes

    @property
    def memory_free_bytes(self) -> float:
        """Bytes that are free on the fullest GPU."""
        total = find_hardware(self.estimate.hardware).device.memory.value
        return total - self.memory_bytes

    @property
    def cost_per_million_tokens(self) -> float | None:
        """What a million tokens that a language model writes cost; None of other models."""
        if self.serving is None or self.cost_per_thousand is None:
            return None
        tokens = self.serving.tokens_per_s * self.needed / self.demand.rate_per_s
        return self.cost_per_thousand / THOUSAND / tokens * MILLION

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        estimate = self.estimate
        return {
            "hardware": estimate.hardware,
            "plan": str(estimate.plan),
            "gpus_per_replica": estimate.gpus,
            "batch": self.batch,
            "replicas": self.replicas,
            "spare_replicas": self.replicas - self.needed,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "service_s": estimate.latency_s,
            "service_interval_s": estimate.interval_s,
            "response_s": self.response_s,
            "utilisation": self.utilisation,
            "most_rate_per_s": self.most_rate_per_s,
            "cost_per_hour": self.cost_per_hour,
            "cost_per_thousand": self.cost_per_thousand,
            "cost_per_million_tokens": self.cost_per_million_tokens,
            "power_w": self.power_w,
            "energy_per_thousand_kwh": self.energy_per_thousand_kwh,
            "memory_bytes": self.memory_bytes,
            "memory_free_bytes": self.memory_free_bytes,
            "response_percentiles_s": self.percentiles_s,
            "smaller": self.smaller.to_dict(),
            **({"node_lost": self.node_lost.to_dict()} if self.node_lost else {}),
            "bound_by": estimate.bound_by,
            "basis": estimate.basis_word,
            "engine": self.runner,
            "command": "" if self.launch is None else self.launch.line,
            "growth": [
                {"times": times, "months": self.demand.months_to(times), **asdict(scaled)}
                for times, scaled in self.growth.items()
                if scaled is not None
            ],
            **({"serving": self.serving.to_dict()} if self.serving else {}),
            **({"request": self.request.to_dict()} if self.request else {}),
        }


def _response_percentiles(within: Callable[[float], float]) -> dict[str, float]:
    return {f"p{100 * share:g}": within(share) for share in PERCENTILES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Fleets for one demand, the best one first, and hardware that has none with the reason."""

    demand: Demand
    fleets: tuple[Fleet, ...]
    without: tuple[tuple[str, str], ...]

    @property
    def break_even(self) -> list[tuple[float, str]]:
        """List the rates above which another kind of GPU is the best, and which."""
        rates = [times * self.demand.rate_per_s for times in GROWTH]
        best_kinds = [(rate, name) for rate in rates if (name := self._best_at(rate))]
        return [
            (self._turning_rate(low, high, new_best), new_best)
            for (low, old_best), (high, new_best) in pairwise(best_kinds)
            if old_best != new_best
        ]

    def _best_at(self, rate_per_s: float) -> str:
        """Name the kind of GPU that is the best at a rate; empty where none is known."""
        priced = all(fleet.cost_per_hour is not None for fleet in self.fleets)
        costs = [
            ((scaled.cost_per_hour if priced else None) or scaled.gpus, fleet.estimate.hardware)
            for fleet in self.fleets
            if (scaled := fleet.at(rate_per_s)) is not None
        ]
        return min(costs, key=lambda cost_and_kind: cost_and_kind[0], default=(0.0, ""))[1]

    def _turning_rate(self, low: float, high: float, name: str) -> float:
        """Find the rate between two above which a kind of GPU is the best."""
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._best_at(middle) == name else (middle, high)
        return high

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "demand": self.demand.to_dict(),
            "fleets": [fleet.to_dict() for fleet in self.fleets],
            "without": [{"hardware": name, "reason": why} for name, why in self.without],
            "break_even": [
                {"above_per_s": rate, "hardware": name} for rate, name in self.break_even
            ],
            **({"hours": [*self._hours()]} if self.fleets and self.demand.hours_per_s else {}),
        }

    def _hours(self) -> Iterator[dict[str, object]]:
        """Write what the best fleet does in each hour, and how much of it would do."""
        best = self.fleets[0]
        for hour, scaled in enumerate(best.hours):
            yield {"hour": hour, "utilisation": best.busy(scaled.rate_per_s), **asdict(scaled)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Fleets of all demands on the same nodes, which are paid whole, and those of each on its own.

    nodes : a part of a replica counts as one, where a replica is larger than a node.
    gpus, cost_per_hour : of whole nodes; those of fleets apart likewise.
    """

    nodes: tuple[FilledNode, ...]
    gpus: int
    cost_per_hour: float | None
    gpus_apart: int
    cost_per_hour_apart: float | None


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

    @property
    def shared(self) -> Together | None:
        """All demands on nodes that they share.

        None of one demand, where one is not met, or where nodes can be filled in too many ways.
        """
        if len(self.answers) == 1 or not self.met:
            return None
        return _shared_nodes(self.answers, self.prices)

    def rows(self) -> list[dict[str, object]]:
        """Return a row of each fleet, the best one of each demand first."""
        return [
            {"demand": answer.demand.name, "rate_per_s": answer.demand.rate_per_s}
            | flat(replace(fleet, request=None).to_dict())
            for answer in self.answers
            for fleet in answer.fleets
        ]

    def to_frame(self) -> Any:  # noqa: ANN401  # of whichever package is there
        """Return a data frame of pandas or polars; see `as_frame`."""
        return as_frame(self.rows())

    def _repr_html_(self) -> str:
        from topology.base.page import notebook  # noqa: PLC0415  # for notebooks alone

        rows = [[str(row[name]) for name in NOTEBOOK_COLUMNS] for row in self.rows()]
        charts = [by_rate(answer, "{:.3g}/s".format) for answer in self.answers if answer.fleets]
        table = Table(head=NOTEBOOK_COLUMNS, rows=rows, align="<<<<>")
        return notebook([table, *(Drawing(svg=svg) for svg in charts)])

    def __repr__(self) -> str:
        return f"<Capacity: {counted(len(self.answers), 'demand')}, {counted(self.gpus, 'GPU')}>"

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "answers": [answer.to_dict() for answer in self.answers],
            "gpus": self.gpus,
            "cost_per_hour": self.cost_per_hour,
            "currency": self.prices.currency if self.prices else None,
            **({"shared": asdict(shared)} if (shared := self.shared) else {}),
        }


def _shared_nodes(answers: Sequence[Answer], prices: Prices | None) -> Together | None:
    """Pack the replicas of all demands onto nodes, each demand on the kind that suits all."""
    fleets = [fleet for answer in answers for fleet in answer.fleets]
    sizes = {fleet.estimate.hardware: fleet.size for fleet in fleets}
    prices_of = {name: prices.cost(name, sizes[name], 1) if prices else None for name in sizes}
    priced = {name: cost for name, cost in prices_of.items() if cost is not None}
    costs = priced if priced.keys() == sizes.keys() else sizes
    nodes = pack([_pile_of(fleet) for fleet in fleets], sizes, costs)
    if nodes is None:
        return None
    best_fleets = [
        min(answer.fleets, key=lambda fleet: fleet.nodes * costs[fleet.estimate.hardware])
        for answer in answers
    ]
    shared_counts = [(node.hardware, node.count) for node in nodes]
    apart_counts = [(fleet.estimate.hardware, fleet.nodes) for fleet in best_fleets]

    def money(counts: Sequence[tuple[str, int]]) -> float | None:
        return sum(count * priced[name] for name, count in counts) if costs is priced else None

    return Together(
        nodes=tuple(nodes),
        gpus=sum(count * sizes[name] for name, count in shared_counts),
        cost_per_hour=money(shared_counts),
        gpus_apart=sum(count * sizes[name] for name, count in apart_counts),
        cost_per_hour_apart=money(apart_counts),
    )


def _pile_of(fleet: Fleet) -> Pile:
    """Say what a fleet puts on nodes: replicas, or parts of them that take a node each."""
    gpus, size = fleet.estimate.gpus, fleet.size
    fits_one_node = fleet.demand.spare == "node" and fleet.needed < size // gpus
    return Pile(
        demand=fleet.demand.name,
        hardware=fleet.estimate.hardware,
        gpus=min(gpus, size),
        count=fleet.replicas * math.ceil(gpus / size),
        most=fleet.needed if fits_one_node else 0,
    )


def curve(fleet: Fleet) -> list[tuple[float, float]]:
    """Count the GPUs of such replicas at an eighth of the rate, and up to eight times as much."""
    asked_rate = fleet.demand.rate_per_s
    rates = [asked_rate * 2.0 ** (6 * step / (POINTS - 1) - 3) for step in range(POINTS)]
    counts = [(rate, fleet.at(rate)) for rate in rates]
    return [(rate, float(scaled.gpus)) for rate, scaled in counts if scaled is not None]


def by_rate(answer: Answer, write: Callable[[float], str]) -> str:
    """Draw the GPUs of each fleet by rate; the rate asked for is set off. write : writes a rate."""
    asked_rate = answer.demand.rate_per_s
    axes = (
        Axis(title="rate (logarithmic)", write=write, base=2, unit=asked_rate),
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
    return curves("GPUs by rate", series, axes, (asked_rate, f"asked: {write(asked_rate)}"))


def words(fleet: Fleet) -> str:
    """Say what to set up, in a line.

    >>> from planner.fleet.fleet import capacity
    >>> from planner.request.request import Request
    >>> demand = Demand(name="a", request=Request(model="flux"), rate_per_s=1.0, slo_s=10.0)
    >>> words(capacity([demand], ["h100-sxm"]).answers[0].fleets[0]).partition(" of ")[0]
    '5 replicas'
    """
    estimate = fleet.estimate
    places_text = f", {fleet.batch} requests at once" if fleet.batch > 1 else ""
    spare_count = fleet.replicas - fleet.needed
    replicas = f"{counted(fleet.replicas, 'replica')} of {estimate.plan}"
    replicas += f", {spare_count} to spare," if spare_count else ""
    return f"{replicas} on {fleet.gpus} x {estimate.hardware}{places_text}"
