"""How much of a collective that runs beside compute is really hidden."""

from functools import cache
from statistics import NormalDist

from costmodels.profile import Profile
from costmodels.sizes import Real, larger
from costmodels.tables import overlap_table, rank_spread


def hidden_share(
    kind: str, seconds: Real, profile: Profile | None = None, *, urgent: bool = True
) -> Real:
    """Share that a message of `seconds` does not cost again when it runs beside compute.

    Every message keeps a time to itself, while it waits for multiprocessors and for the other
    ranks; of the rest a share is hidden, because NCCL's kernels and the compute take
    multiprocessors and power from each other.

    urgent : whether it finds room beside the compute: on a stream of high priority, in a graph, or
    over PCIe. Else it waits behind the blocks of an attention that came first, and nothing is
    hidden.

    >>> hidden_share("send_recv", 1e-3, urgent=False)
    0.0
    >>> bool(hidden_share("send_recv", 1e-4) < hidden_share("send_recv", 1e-3) < 1)
    True
    """
    if not urgent:
        return 0.0
    measured = None if profile is None else profile.hiding(kind)
    share, start = overlap_table()[kind] if measured is None else measured
    return share * (1.0 - start / larger(seconds, start)) if start else share


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
