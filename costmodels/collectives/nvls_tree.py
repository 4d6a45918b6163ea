"""All-reduce through NVLink switches inside nodes and over trees between them."""

from dataclasses import dataclass

from costmodels.collectives.curve import Curve
from costmodels.collectives.network import Hop
from costmodels.collectives.operations import Amount
from costmodels.collectives.tree import tree_depth, tree_passes
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlsTree:
    r"""NVLink SHARP inside each node, two binary trees between nodes, in one pipeline.

    .. math::
        start = launch + 2 \lceil \log_2 N \rceil\,hop, \quad
        stream = m \max((1 + relay)\,\beta_{link}, w\,\beta_{network})

    with m the message, N the nodes, w = 1 for two nodes and 2 for more, and `relay` what a GPU
    loses of its links to passing its share of the node's sum on to the network and taking it
    back (`copy_reduce` of the curve).
    """

    fabric: Fabric
    curve: Curve
    hop: Hop

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        nodes = self.fabric.nodes
        travel = 2 * tree_depth(nodes) * self.hop.tree_step
        start = self.curve.start(1, message_bytes / self.fabric.ranks)
        inside = (1 + self.curve.copy_reduce) * self.curve.per_byte_on(self.fabric)
        outside = tree_passes(nodes) * self.hop.per_byte
        streams = message_bytes * inside, message_bytes * outside
        return self.hop.join(self.curve, start, travel, streams)
