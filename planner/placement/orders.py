"""In how many truly different orders the ranks of a plan can sit on a few GPUs."""

from functools import lru_cache
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

EXACT: Final = 8  # ranks of a host up to which every order is tried


@lru_cache(maxsize=256)
def group_ranks(degrees: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """List the groups along one axis, one a row, of ranks counted with the last axis fastest.

    >>> group_ranks((2, 2), 0).tolist(), group_ranks((2, 2), 1).tolist()
    ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """
    ranks = np.arange(int(np.prod(degrees, initial=1))).reshape(degrees)
    return np.moveaxis(ranks, axis, -1).reshape(-1, degrees[axis])


@lru_cache(maxsize=64)
def orders(degrees: tuple[int, ...]) -> NDArray[np.int64]:
    """List the orders of GPUs that give different groups, in lexical order; one a row.

    Swapping two indices along an axis changes no group, so that rank 0 may sit on GPU 0 and GPUs
    may rise along each axis: n! / (d_1! d_2! ...) orders of n ranks are left.

    >>> orders((2, 2))[2].tolist()
    [0, 2, 1, 3]
    >>> [len(orders(degrees)) for degrees in ((2, 2), (2, 4), (2, 2, 2), (8,))]
    [6, 840, 5040, 1]
    """
    count = int(np.prod(degrees, initial=1))
    rest = np.array(list(permutations(range(1, count))), dtype=np.int64).reshape(-1, count - 1)
    every = np.hstack([np.zeros((len(rest), 1), dtype=np.int64), rest])
    kept = np.ones(len(every), dtype=bool)
    for axis in range(len(degrees)):
        line = group_ranks(degrees, axis)[0]  # from rank 0 on
        kept &= np.all(np.diff(every[:, line], axis=1) > 0, axis=1)
    return every[kept]


@lru_cache(maxsize=64)
def group_masks(degrees: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """Give the GPUs of each group along an axis as bits, for every order of `orders`."""
    seats = orders(degrees)[:, group_ranks(degrees, axis)]
    masks: NDArray[np.int64] = np.bitwise_or.reduce(1 << seats, axis=2)
    return masks


def nested(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the orders that nest the axes in every sequence, neighbours on the innermost.

    >>> nested((2, 2))
    [(0, 1, 2, 3), (0, 2, 1, 3)]
    """
    count = int(np.prod(degrees, initial=1))
    found = []
    for sequence in permutations(range(len(degrees))):
        inner = np.arange(count).reshape([degrees[axis] for axis in sequence])
        found.append(tuple(map(int, np.moveaxis(inner, range(len(degrees)), sequence).ravel())))
    return list(dict.fromkeys(found))
