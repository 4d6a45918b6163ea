"""The algorithms, a family a file: which bytes move in how many steps, and what that needs.

To add one, write its class and name it in `BY_NAME`; or hand the class itself to
`costmodels.collectives.collective_time`.
"""

from typing import Final

from costmodels.collectives.algorithms.base import Algorithm
from costmodels.collectives.algorithms.direct import Multishot, Oneshot, Symmetric, Twoshot
from costmodels.collectives.algorithms.nvls import Collnet, Nvls, NvlsTree
from costmodels.collectives.algorithms.pairwise import Pairwise
from costmodels.collectives.algorithms.ring import Ring
from costmodels.collectives.algorithms.tree import Pat, Tree

BY_NAME: Final[dict[str, type[Algorithm]]] = {
    algorithm.name: algorithm
    for algorithm in (
        Ring, Tree, Nvls, NvlsTree, Collnet, Pat, Multishot, Oneshot, Twoshot, Symmetric, Pairwise,
    )
}  # fmt: skip
"""NCCL takes the first of those that it believes to be equally fast."""

__all__ = ["BY_NAME", "Algorithm", "Pairwise"]
