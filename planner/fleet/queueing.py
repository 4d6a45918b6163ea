"""How long requests wait for one of several servers that each take the same time.

Requests come at random and independently of each other (a Poisson process) and are served in the
order in which they come. As every one takes the same time, each of c servers then serves every
c-th request, so that what waits for it is a queue of one server to which requests come c times as
rarely (a test holds it against c servers that are followed one by one). That queue is followed
request by request, with numbers that are drawn once and stay, so that an answer does not change
from run to run.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

MOST_SERVERS: Final = 10**6
REQUESTS: Final = 2**17
"""Of one server, that are followed; a tenth of them fills the queue and is not counted."""
SEED: Final = 7
HALVINGS: Final = 24

Found = TypeVar("Found")


@lru_cache(maxsize=8)
def _arrival_gaps(servers: int) -> NDArray[np.float64]:
    """Draw times between the requests of one server, in those between all on average."""
    return np.random.default_rng(SEED).standard_gamma(servers, REQUESTS)


@lru_cache(maxsize=4096)
def _wait(servers: int, load: float, share: float) -> float:
    """Seconds, where serving one takes a second."""
    return quantile(_waits(servers, load), share)


@lru_cache(maxsize=4096)
def _in_time(servers: int, load: float, seconds: float, share: float) -> bool:
    """Whether `_wait` is so short, which needs no order of all waits unless it is very near."""
    waits = _waits(servers, load)
    short, low = int(np.count_nonzero(waits <= seconds)), _rank(len(waits), share)[0]
    return short > low + 1 or (short == low + 1 and quantile(waits, share) <= seconds)


def _waits(servers: int, load: float) -> NDArray[np.float64]:
    """Seconds that each request waits, where serving one takes a second."""
    walk = _arrival_gaps(servers) / -load
    walk += 1.0
    np.cumsum(walk, out=walk)
    lowest = np.minimum.accumulate(walk)
    walk -= np.minimum(lowest, 0.0, out=lowest)
    return walk[REQUESTS // 10 :]


def quantile(values: NDArray[np.float64], share: float) -> float:
    """Give the quantile as numpy does, which sorts for two ranks at once five times as slowly.

    values : in any order, which is changed.

    >>> quantile(np.array([3.0, 1.0, 2.0]), 0.75)
    2.5
    """
    low, part = _rank(len(values), share)
    values.partition(low)
    return float(np.quantile([values[low], values[low + 1 :].min()], part))


def _rank(count: int, share: float) -> tuple[int, float]:
    """Find the value below a quantile of so many in order, and how far it is to the next.

    >>> _rank(3, 0.75)
    (1, 0.5)
    """
    place = share * (count - 1)
    low = min(int(place), count - 2)
    return low, place - low


def wait(servers: int, load: float, service: float, share: float) -> float:
    """Return the seconds that no more than 1 - `share` of requests wait longer than.

    load : servers that are busy on average: requests a second times the seconds of one.

    >>> round(wait(1, 0.5, 1.0, 0.9), 1), wait(1, 1.0, 1.0, 0.5)
    (1.5, inf)
    """
    if load <= 1.0 - share:  # as many find a server busy, were there only one
        return 0.0
    return math.inf if load >= servers else service * _wait(servers, load, share)


def done_within(servers: int, load: float, service: float, limit: float, share: float) -> bool:
    """Whether `share` of requests are done within `limit` seconds, waiting included.

    >>> done_within(1, 0.5, 1.0, 2.6, 0.9), done_within(1, 0.5, 1.0, 2.5, 0.9)
    (True, False)
    """
    if load <= 1.0 - share:
        return service <= limit
    return load < servers and _in_time(servers, load, (limit - service) / service, share)


def servers_needed(rate: float, service: float, limit: float, share: float) -> int | None:
    """Count the servers with which `share` of requests are done within `limit` seconds.

    Returns None where a request takes longer than that on its own, or it takes too many.

    >>> servers_needed(rate=0.5, service=1.0, limit=2.0, share=0.95)
    2
    """
    load = rate * service
    if service > limit or load >= MOST_SERVERS:
        return None

    def enough(servers: int) -> Literal[True] | None:
        return done_within(servers, load, service, limit, share) or None

    fewest_servers = fewest(math.floor(load) + 1, 2 * MOST_SERVERS, enough)
    return fewest_servers and fewest_servers[0]


def fewest(
    least: int, most: int, enough: Callable[[int], Found | None]
) -> tuple[int, Found] | None:
    """Find the fewest of something that are enough, from `least` on, and what they give.

    enough : says what so many give, and None where they are too few.

    Returns
    -------
    None where even the most are too few

    >>> fewest(1, 100, lambda count: count >= 11 or None), fewest(1, 10, lambda count: None)
    ((11, True), None)
    """
    low, high, step = least, min(least, most), 1
    while (outcome := enough(high)) is None:
        if high == most:
            return None
        low, high, step = high + 1, min(high + step, most), 2 * step
    while low < high:
        middle = (low + high) // 2
        middle_outcome = enough(middle)
        low, high = (middle + 1, high) if middle_outcome is None else (low, middle)
        outcome = outcome if middle_outcome is None else middle_outcome
    return high, outcome


def most_rate(servers: int, service: float, limit: float, share: float) -> float:
    """Return the most requests a second that `servers` take with `share` of them in time.

    >>> rate = most_rate(2, 1.0, 2.0, 0.95)
    >>> servers_needed(rate * 0.999, 1.0, 2.0, 0.95), servers_needed(rate * 1.001, 1.0, 2.0, 0.95)
    (2, 3)
    """
    if service > limit:
        return 0.0

    def in_time(rate: float) -> bool:
        return done_within(servers, rate * service, service, limit, share)

    return highest(0.0, servers / service, in_time, HALVINGS)


def highest(low: float, high: float, enough: Callable[[float], bool], halvings: int) -> float:
    """Return the highest number, of those up to one, that is still low enough, by halving.

    >>> highest(0.0, 8.0, lambda number: number <= 5.0, 3)
    5.0
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low
