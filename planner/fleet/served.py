"""How many requests a second a replica of a language model serves in time."""

from typing import Final

from planner.engines.scenario import Scenario
from planner.request.plan import Plan
from planner.search.served import Serving, wanted_of
from planner.serving.serving import Served, check_context, lengths_of, served

HALVINGS: Final = 6
"""Of the rates between none and the most that a replica serves at all."""
FOLLOWED: Final = 300
"""Requests that are followed at each rate."""


def ready(scenario: Scenario, plan: Plan) -> Served | str:
    """Make one replica of a plan ready to serve, or say why it cannot.

    Raises
    ------
    InputError
        If requests are longer than the model takes.
    """
    lengths = lengths_of(scenario)
    check_context(scenario.model, lengths)
    return served(scenario, plan, lengths, 1024)


def in_time(
    replica: Served, rate: float, scenario: Scenario, slo_s: float, share: float
) -> Serving | None:
    """Serve so many requests a second; None where fewer than `share` are done in time."""
    request = scenario.request
    serving, done = replica.within(rate, request.burst, slo_s, FOLLOWED)
    good = done >= share and serving.meets(wanted_of(request))
    return serving if good else None


def most_rate(
    replica: Served, scenario: Scenario, slo_s: float, share: float
) -> tuple[float, Serving | None]:
    """Find the most requests a second that a replica serves in time, and what clients see then.

    Returns
    -------
    0 and None, where even the fewest take too long
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
