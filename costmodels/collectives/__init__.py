"""How long a collective takes: `collective_time`, `choose`, `basis`.

* operations   the collectives, what their size means, the least they must move
* curve        one form for all protocols and kernels
* ring, tree, nvls, nvls_tree, collnet, pat, pairwise, oneshot, twoshot, multishot, symmetric
               one algorithm each: which bytes move in how many steps
* network      what a step and a byte cost between nodes
* tuning       NCCL's own choice of algorithm and protocol
* build, plan  the models of a fabric, and which of them prices which size
* engines, launch   kernels of serving engines, and what the host adds
* parameters, catalogue   tables of fitted curves, with their sources
"""

from costmodels.collectives.operations import OPS, Collective, Op, least_bytes
from costmodels.collectives.price import basis, choose, collective_time, supports
from costmodels.collectives.settings import ALGORITHMS, LAUNCHES, Settings

__all__ = [
    "ALGORITHMS",
    "LAUNCHES",
    "OPS",
    "Collective",
    "Op",
    "Settings",
    "basis",
    "choose",
    "collective_time",
    "least_bytes",
    "supports",
]
