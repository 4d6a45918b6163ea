"""How much of a collective that runs beside compute is really hidden."""

import numpy as np

from costmodels.catalogue import overlap_table
from costmodels.ops import Real
from costmodels.profile import Profile


def hidden_share(kind: str, seconds: Real, profile: Profile | None = None) -> Real:
    """Share that a message of `seconds` does not cost again when it runs beside compute.

    Every message keeps a time to itself, while it waits for multiprocessors and for the other
    ranks; of the rest a share is hidden, because NCCL's kernels and the compute take
    multiprocessors and power from each other.

    >>> bool(hidden_share("send_recv", 1e-4) < hidden_share("send_recv", 1e-3) < 1)
    True
    """
    own = None if profile is None else profile.hiding(kind)
    share, start = overlap_table()[kind] if own is None else own
    return share * (1.0 - start / np.maximum(seconds, start)) if start else share
