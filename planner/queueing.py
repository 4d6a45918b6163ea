"""How long requests wait for one of several servers that each take the same time.

Requests come at random and independently of each other (a Poisson process) and are served in the
order in which they come. That one has to wait at all is Erlang's C formula; how long, given that
it waits, is taken to be exponential with half the mean of servers whose time varies exponentially,
as the Allen-Cunneen approximation has it for times that do not vary [1]_.

References
----------
.. [1] A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd ed. (1990), ch. 5 and 6
"""

import math
from typing import Final

MOST_SERVERS: Final = 10**6
_FULL: Final = 1.0


def erlang_c(servers: int, load: float) -> float:
    """Return the share of requests that wait, of M/M/c.

    Parameters
    ----------
    load : servers that are busy on average: requests a second times the seconds of one.

    Examples
    --------
    >>> round(erlang_c(1, 0.5), 6), round(erlang_c(2, 1.0), 6)
    (0.5, 0.333333)
    >>> erlang_c(2, 2.0)
    1.0
    """
    if load >= servers:
        return _FULL
    blocked = 1.0  # Erlang's B, by its recursion
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


def wait(servers: int, load: float, service: float, share: float) -> float:
    """Return the seconds that no more than 1 - `share` of requests wait longer than.

    >>> wait(1, 0.5, 1.0, 0.4), round(wait(1, 0.9, 1.0, 0.95), 2), wait(1, 1.0, 1.0, 0.5)
    (0.0, 14.45, inf)
    """
    if load >= servers:
        return math.inf
    waiting = erlang_c(servers, load)
    late = 1.0 - share
    if waiting <= late:
        return 0.0
    return service / (2.0 * (servers - load)) * math.log(waiting / late)


def servers_needed(rate: float, service: float, limit: float, share: float) -> int | None:
    """Count the servers with which `share` of requests are done within `limit` seconds.

    Returns
    -------
    None where a request takes longer than that on its own, or it takes too many.

    Examples
    --------
    >>> servers_needed(rate=0.5, service=1.0, limit=2.0, share=0.95)
    2
    """
    if service > limit:
        return None
    load = rate * service
    low = math.floor(load) + 1
    if low > MOST_SERVERS:
        return None
    high = low
    while service + wait(high, load, service, share) > limit:
        low, high = high + 1, 2 * high
    while low < high:
        between = (low + high) // 2
        if service + wait(between, load, service, share) > limit:
            low = between + 1
        else:
            high = between
    return low


def most_rate(servers: int, service: float, limit: float, share: float) -> float:
    """Return the most requests a second that `servers` take with `share` of them in time.

    >>> rate = most_rate(2, 1.0, 2.0, 0.95)
    >>> servers_needed(rate * 0.999, 1.0, 2.0, 0.95), servers_needed(rate * 1.001, 1.0, 2.0, 0.95)
    (2, 3)
    """
    if service > limit:
        return 0.0
    low, high = 0.0, servers / service
    for _ in range(60):
        between = (low + high) / 2
        if service + wait(servers, between * service, service, share) > limit:
            high = between
        else:
            low = between
    return low
