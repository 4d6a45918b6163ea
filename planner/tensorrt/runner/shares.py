"""Which features of a weight a rank holds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Parts = Sequence[Sequence[int]]
"""Units and the size of each, of parts that are cut separately."""


def own_features(parts: Parts, degree: int, rank: int) -> NDArray[np.int64]:
    """Features of one of `degree` ranks; a unit is repeated where there are fewer than ranks.

    >>> own_features([(4, 1), (1, 2)], 2, 1)
    array([2, 3, 4, 5])
    """
    chosen, start = [], 0
    for units, size in parts:
        numbers = np.arange(units * size).reshape(units, size)
        if units >= degree:
            mine = numbers.reshape(degree, -1)[rank]
        else:
            mine = numbers[rank * units // degree]
        chosen.append(start + mine)
        start += units * size
    return np.concatenate(chosen)
