"""How much of a collective that runs beside compute is really hidden."""

from costmodels.catalogue import overlap_shares
from costmodels.profile import Profile
from topology.devices import Architecture


def hidden_share(kind: str, architecture: Architecture, profile: Profile | None = None) -> float:
    """Share of the time beside compute that a collective does not cost again.

    NCCL's kernels take multiprocessors, and both draw power, so the compute slows down meanwhile.

    >>> 0 < hidden_share("send_recv", "hopper") < 1
    True
    """
    del architecture  # measured on Hopper only
    own = None if profile is None else profile.hidden_share(kind)
    return overlap_shares()[kind] if own is None else own
