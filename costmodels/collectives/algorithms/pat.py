"""All-gather and reduce-scatter in a logarithmic number of steps between single-GPU nodes."""

import math
from collections.abc import Iterator

from costmodels.collectives.algorithms.base import Algorithm, several_nodes
from costmodels.collectives.algorithms.tree import tree_depth
from costmodels.collectives.nccl_tuning import Candidate, View
from costmodels.collectives.operations import Amount, Op
from topology.catalogue import Fabric


def one_gpu_a_node(fabric: Fabric) -> str:
    """Need nodes of one GPU."""
    alone = fabric.nodes == fabric.ranks
    return "" if alone else f"it needs one GPU a node, got {fabric.ranks} on {fabric.nodes}"


class Pat(Algorithm):
    r"""Parallel aggregated trees: every rank is the root of a binomial tree, batched.

    .. math::
        start = launch + \lceil \log_2 n \rceil\,hop, \quad
        stream = m \frac{n - 1}{n} \beta_{network}

    with m the full array and n the ranks, one a node.

    References
    ----------
    Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
    arXiv:2506.20252, 2025.
    """

    name = "pat"
    ops = ("all_gather", "reduce_scatter")
    needs = (several_nodes, one_gpu_a_node)
    curves_of = "ring_simple"

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a full array of `message_bytes`."""
        ranks = self.fabric.ranks
        start = self.curve.start(0, message_bytes / ranks)
        outside = message_bytes * ((ranks - 1 + self.hop.copy) / ranks * self.hop.per_byte)
        travel = tree_depth(ranks) * self.hop.step
        return self.hop.join(self.curve, start, travel, (outside * 0.0, outside))

    @classmethod
    def candidates(cls, op: Op, view: View) -> Iterator[Candidate]:  # noqa: ARG003
        """Yield what NCCL believes that the trees take."""
        ranks = view.fabric.ranks
        travel = math.log2(ranks) * view.numbers["network_tree"][2] / 3.5
        yield Candidate(
            protocol="Simple",
            latency=view.first("base_pat") + travel + ranks * view.first("pat_rank"),
            per_byte=(ranks - 1) / ranks / (view.first("pat") * view.bus),
        )
