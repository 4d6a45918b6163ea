"""Which features of a weight a rank holds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Parts = Sequence[Sequence[int]]
"""Units and the size of each, of parts that are cut separately."""


def own_features(parts: Parts, degree: int, rank: int) -> NDArray[np.int64]:
    """Features of one of `degree` ranks; a unit is repeated where there are fewer than ranks.

    Where units do not divide, the last ranks end with padding, which stands at -1.

    >>> own_features([(4, 1), (1, 2)], 2, 1)
    array([2, 3, 4, 5])
    >>> own_features([(5, 1)], 2, 1)
    array([ 3,  4, -1])
    """
    chosen, start = [], 0
    for units, size in parts:
        each = -(-units // degree) * size
        first = rank * each if units >= degree else rank * units // degree * size
        mine = np.arange(first, first + each)
        chosen.append(np.where(mine < units * size, start + mine, -1))
        start += units * size
    return np.concatenate(chosen)
