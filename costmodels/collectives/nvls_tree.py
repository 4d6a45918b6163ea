"""All-reduce through NVLink switches inside nodes and over trees between them."""

from dataclasses import dataclass

from costmodels.collectives.curve import Curve
from costmodels.collectives.network import Hop
from costmodels.collectives.operations import Amount
from costmodels.collectives.tree import tree_depth, tree_passes
from topology.fabric import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlsTree:
    r"""NVLink SHARP inside each node, two binary trees between nodes, in one pipeline.

    .. math::
        start = launch + 2 \lceil \log_2 N \rceil\,hop, \quad
        stream = m \max((1 + 1 / g)\,\beta_{link}, w\,\beta_{network})

    with m the message, g the GPUs a node, N the nodes, w = 1 for two nodes and 2 for more. Each
    GPU passes its share m / g of the node's sum on to the network and takes it back.
    """

    fabric: Fabric
    curve: Curve
    hop: Hop

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        nodes = self.fabric.nodes
        travel = 2 * tree_depth(nodes) * self.hop.step
        start = self.curve.start(1, message_bytes / self.fabric.ranks) + travel
        local = self.fabric.ranks // nodes
        inside = (1 + 1 / local) * self.curve.per_byte_on(self.fabric)
        slowest = max(inside, tree_passes(nodes) * self.hop.per_byte)
        return self.curve.join(start, message_bytes * slowest, self.hop.sharpness)
