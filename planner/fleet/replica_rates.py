"""How many requests a second a replica of a language model serves in time."""

from dataclasses import replace
from typing import Final

from planner.fleet.demand import Demand
from planner.fleet.queueing import fewest, highest
from planner.request.lengths import traced_load
from planner.scenario.scenario import Scenario, lengths_of, resolve
from planner.search.clients import Serving, wanted_of
from planner.search.estimate import PlanEstimate
from planner.serving.serving import Served, check_context, served
from topology.base.values import dataclass

HALVINGS: Final = 6
"""Of the rates between none and the most that a replica serves at all."""
FOLLOWED: Final = 300
"""Requests that are followed at each rate of a search."""
ALL_FOLLOWED: Final = 6000
"""Requests of a fleet that is chosen: with other draws percentiles come within 5 %."""
FASTEST: Final = 4.0
"""Times as fast that a trace is tried at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a language model, and the demand that it serves a part of."""

    demand: Demand
    scenario: Scenario
    engines: Served

    def at_rate(self, rate: float, count: int = FOLLOWED) -> tuple[Serving, bool]:
        """Serve so many requests a second; give what clients see, and whether it is in time."""
        burst = self.scenario.request.burst
        return self._with_verdict(*self.engines.within(rate, burst, self.demand.slo_s, count))

    def on_trace(self, replicas: int, pace: float = 1.0) -> tuple[Serving, bool]:
        """Serve a trace at a pace with so many; give what clients see, and whether in time."""
        load = traced_load(self.scenario.trace, pace)
        return self._with_verdict(*self.engines.traced(load, replicas, self.demand.slo_s))

    def _with_verdict(self, serving: Serving, done: float) -> tuple[Serving, bool]:
        in_time = serving.meets(wanted_of(self.scenario.request))
        return serving, in_time and done >= self.demand.share

    def in_time(self, rate: float, count: int = FOLLOWED) -> Serving | None:
        """Serve so many requests a second; None where too few are done in time."""
        serving, in_time = self.at_rate(rate, count)
        return serving if in_time else None

    def most_rate(self) -> tuple[float, Serving | None]:
        """Find the most requests a second that are served in time, and what clients see then.

        Returns 0 and None where even the fewest take too long.
        """
        places = max(self.engines.engines, self.engines.places)
        low, high = 0.0, self.engines.at(places).requests_per_s
        best: Serving | None = None
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            serving = self.in_time(middle)
            low, high = (low, middle) if serving is None else (middle, high)
            best = serving or best
        return low, best

    def most_pace(self, replicas: int) -> float:
        """Find how many times as fast a trace may come for `replicas` to keep up."""
        return highest(1.0, FASTEST, lambda pace: self.on_trace(replicas, pace)[1], HALVINGS)

    def needed(self, pace: float) -> tuple[int, Serving] | None:
        """Count the replicas that serve a trace at a pace in time, and say what clients see.

        None, where even as many as there are requests do not: each request goes to the next of
        them, so that more gain nothing.
        """

        def enough(replicas: int) -> Serving | None:
            serving, in_time = self.on_trace(replicas, pace)
            return serving if in_time else None

        return fewest(1, len(self.scenario.trace), enough)


def scenario_of(demand: Demand, estimate: PlanEstimate) -> Scenario:
    """Look up what one replica is asked."""
    return resolve(replace(demand.request, hardware=estimate.hardware, gpus=estimate.gpus, nodes=0))


def ready(demand: Demand, estimate: PlanEstimate) -> Replica | str:
    """Make one replica of a plan ready to serve, or say why it cannot.

    Raises `InputError` if requests are longer than the model takes.
    """
    scenario = scenario_of(demand, estimate)
    lengths = lengths_of(scenario)
    check_context(scenario.model, lengths)
    engines = served(scenario, estimate.plan, lengths, 1024)
    if isinstance(engines, str):
        return engines
    return Replica(demand=demand, scenario=scenario, engines=engines)
