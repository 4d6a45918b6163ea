"""All-gather and reduce-scatter in a logarithmic number of steps between single-GPU nodes."""

from dataclasses import dataclass

from costmodels.collectives.curve import Curve
from costmodels.collectives.network import Hop
from costmodels.collectives.operations import Amount
from costmodels.collectives.tree import tree_depth
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Pat:
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

    fabric: Fabric
    curve: Curve
    hop: Hop

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a full array of `message_bytes`."""
        ranks = self.fabric.ranks
        start = self.curve.start(0, message_bytes / ranks)
        outside = message_bytes * ((ranks - 1 + self.hop.copy) / ranks * self.hop.per_byte)
        travel = tree_depth(ranks) * self.hop.step
        return self.hop.join(self.curve, start, travel, (outside * 0.0, outside))
