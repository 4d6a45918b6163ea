"""Ranks that meet in every layer go on at the pace of the slowest."""

from functools import cache
from statistics import NormalDist

from costmodels.catalogue import rank_spread


@cache
def waiting_share(ranks: int) -> float:
    """Share of its compute that a rank of average speed waits for the slowest of `ranks`.

    The largest of so many draws from a normal distribution, by Blom's approximation (Statistical
    Estimates and Transformed Beta-Variables, 1958).

    >>> waiting_share(1)
    0.0
    >>> 0.004 < waiting_share(2) < waiting_share(8) < 0.015
    True
    """
    return rank_spread() * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
