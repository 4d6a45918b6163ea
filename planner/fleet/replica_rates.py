"""How many requests a second a replica of a language model serves in time."""

from typing import Final

from planner.fleet.queueing import fewest
from planner.request.lengths import traced
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario, lengths_of
from planner.search.clients import Serving, wanted_of
from planner.serving.serving import Served, check_context, served

HALVINGS: Final = 6
"""Of the rates between none and the most that a replica serves at all."""
FOLLOWED: Final = 300
"""Requests that are followed at each rate of a search."""
ALL_FOLLOWED: Final = 6000
"""Requests of a fleet that is chosen: with other draws percentiles come within 5 %."""
FASTEST: Final = 4.0
"""Times as fast that a trace is tried at most."""


def ready(scenario: Scenario, plan: Plan) -> Served | str:
    """Make one replica of a plan ready to serve, or say why it cannot.

    Raises `InputError` if requests are longer than the model takes.
    """
    lengths = lengths_of(scenario)
    check_context(scenario.model, lengths)
    return served(scenario, plan, lengths, 1024)


def in_time(
    replica: Served,
    rate: float,
    scenario: Scenario,
    slo_s: float,
    share: float,
    count: int = FOLLOWED,
) -> Serving | None:
    """Serve so many requests a second; None where fewer than `share` are done in time."""
    request = scenario.request
    serving, done = replica.within(rate, request.burst, slo_s, count)
    good = done >= share and serving.meets(wanted_of(request))
    return serving if good else None


def most_pace(
    replica: Served, scenario: Scenario, replicas: int, slo_s: float, share: float
) -> float:
    """Find how many times as fast the requests of a trace may come for `replicas` to keep up."""
    low, high = 1.0, FASTEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        late = followed(replica, scenario, replicas, slo_s, share, middle) is None
        low, high = (low, middle) if late else (middle, high)
    return low


def replicas_for(
    replica: Served, scenario: Scenario, slo_s: float, share: float, pace: float = 1.0
) -> tuple[int, Serving] | None:
    """Count the replicas that serve a trace at a pace in time, and say what clients see.

    None, where even as many as there are requests do not.

    Each request goes to the next of them, so that more than there are requests gain nothing.
    """
    return fewest(
        1,
        len(scenario.trace),
        lambda count: followed(replica, scenario, count, slo_s, share, pace),
    )


def followed(
    replica: Served,
    scenario: Scenario,
    replicas: int,
    slo_s: float,
    share: float,
    pace: float = 1.0,
) -> Serving | None:
    """Let the requests of a trace come; None where fewer than `share` are done in time."""
    load = traced(scenario.trace, pace)
    serving, done = replica.traced(load, replicas, slo_s)
    good = done >= share and serving.meets(wanted_of(scenario.request))
    return serving if good else None


def most_rate(
    replica: Served, scenario: Scenario, slo_s: float, share: float
) -> tuple[float, Serving | None]:
    """Find the most requests a second that a replica serves in time, and what clients see then.

    Returns 0 and None where even the fewest take too long.
    """
    places = max(replica.engines, replica.places)
    low, high = 0.0, replica.at(places).requests_per_s
    best: Serving | None = None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        serving = in_time(replica, middle, scenario, slo_s, share)
        low, high = (low, middle) if serving is None else (middle, high)
        best = serving or best
    return low, best
