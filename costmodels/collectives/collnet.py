"""All-reduce that the switches of the network finish."""

from dataclasses import dataclass

from costmodels.collectives.curve import Curve
from costmodels.collectives.network import Hop
from costmodels.collectives.operations import Amount
from topology.catalogue import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Collnet:
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

    fabric: Fabric
    curve: Curve
    hop: Hop

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        start = self.curve.start(2, message_bytes / self.fabric.ranks)
        inside = self.curve.per_byte_on(self.fabric)
        outside = self.hop.per_byte / self.hop.offload
        streams = message_bytes * inside, message_bytes * outside
        return self.hop.join(self.curve, start, 2 * self.hop.step, streams)
