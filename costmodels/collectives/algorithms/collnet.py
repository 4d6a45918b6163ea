"""All-reduce that the switches of the network finish."""

from costmodels.collectives.algorithms.base import Algorithm, several_nodes
from costmodels.collectives.network import transport_of
from costmodels.collectives.operations import Amount, WireProtocol
from costmodels.collectives.tables import transports
from topology.catalogue import Fabric


def reducing(fabric: Fabric) -> str:
    """Need switches that reduce."""
    network = fabric.network
    reduces = network is not None and transport_of(network, transports()).offload > 0
    return "" if reduces else "it needs InfiniBand switches that reduce"


class Collnet(Algorithm):
    r"""Reduce inside each node, let the InfiniBand switches add the nodes' parts, spread back.

    .. math::
        start = launch + 2\,step + 2\,hop, \quad
        stream = m \max(\beta_{link}, \beta_{network} / offload)

    with m the message: every byte leaves a node once and comes back once, for any number of
    nodes. Inside a node the switch reduces (CollNetDirect on NVLink SHARP).

    References
    ----------
    Graham et al., "Scalable Hierarchical Aggregation and Reduction Protocol (SHARP)", 2020;
    NCCL src/transport/coll_net.cc.
    """

    name = "collnet"
    needs = (several_nodes, reducing)

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        start = self.curve.start(2, message_bytes / self.fabric.ranks)
        inside = self.curve.per_byte_on(self.fabric)
        outside = self.hop.per_byte / self.hop.offload
        streams = message_bytes * inside, message_bytes * outside
        return self.hop.join(self.curve, start, 2 * self.hop.step, streams)

    @classmethod
    def curve_name(cls, protocol: WireProtocol, fabric: Fabric) -> str:  # noqa: ARG003
        """Name its curve: that of the switch inside a node, or of a ring."""
        return "nvls" if fabric.multicast else "ring_simple"
