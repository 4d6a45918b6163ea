"""The algorithms, one a file: which bytes move in how many steps, and what that needs.

To add one, write its file and name its class in `BY_NAME`; or hand the class itself to
`costmodels.collectives.collective_time`.
"""

from typing import Final

from costmodels.collectives.algorithms.base import Algorithm
from costmodels.collectives.algorithms.collnet import Collnet
from costmodels.collectives.algorithms.multishot import Multishot
from costmodels.collectives.algorithms.nvls import Nvls
from costmodels.collectives.algorithms.nvls_tree import NvlsTree
from costmodels.collectives.algorithms.oneshot import Oneshot
from costmodels.collectives.algorithms.pairwise import Pairwise
from costmodels.collectives.algorithms.pat import Pat
from costmodels.collectives.algorithms.ring import Ring
from costmodels.collectives.algorithms.symmetric import Symmetric
from costmodels.collectives.algorithms.tree import Tree
from costmodels.collectives.algorithms.twoshot import Twoshot

BY_NAME: Final[dict[str, type[Algorithm]]] = {
    algorithm.name: algorithm
    for algorithm in (
        Ring, Tree, Nvls, NvlsTree, Collnet, Pat, Multishot, Oneshot, Twoshot, Symmetric, Pairwise,
    )
}  # fmt: skip
"""NCCL takes the first of those that it believes to be equally fast."""

__all__ = ["BY_NAME", "Algorithm", "Pairwise"]
