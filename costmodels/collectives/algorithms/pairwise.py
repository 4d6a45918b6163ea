"""Exchanges between pairs of ranks: all-to-all, gather, scatter, send and receive."""

from costmodels.collectives.algorithms.base import Algorithm
from costmodels.collectives.nccl_tuning import Numbers
from costmodels.collectives.operations import PAIRWISE_OPS, Amount, Op
from topology.catalogue import Fabric, Moves


class Pairwise(Algorithm):
    r"""Every rank sends to every other one at once, its share of its buffer.

    .. math::
        start = launch + (g - 1)\,step + pair, \quad
        stream = \max(\frac{m}{n} (g - 1 + copies)\,\beta_{link},
            \sqrt{(r\,message)^2 + (\frac{m}{n} g\,r\,\beta_{network})^2})

    with m what one rank holds, of which 1 / n stays at home, n the ranks, g those of a node and
    r = n - g the remote ones; all g GPUs of a node share its network, on which data is under way
    while the host posts the next message. Gather and scatter are the same at their root, whose NIC
    is one of its node's: the others do not help it. Send and receive pass the whole of m to the
    next rank, over the channels that a pair of ranks has.
    """

    name = "pairwise"
    ops = PAIRWISE_OPS
    protocols = ("LL", "Simple")

    def time(self, message_bytes: Amount) -> Amount:
        ranks = self.fabric.ranks
        local = ranks // self.fabric.nodes
        if self.op == "send_recv":
            pair_per_byte, pair_flow = self.curve.per_byte_sent(self.fabric), self.hop.flow
            return self.hop.join(
                self.curve,
                self.curve.start(1, message_bytes, 1),
                self.hop.pair,
                (message_bytes * pair_per_byte, message_bytes * pair_flow),
            )
        chunk = message_bytes / ranks
        start = self.curve.start(local - 1, message_bytes, 1)
        node_per_byte = self._node_per_byte(local - 1, self.curve.copy_gather)
        network_per_byte = max(local * (ranks - local) * self.hop.exchange, self.hop.flow)
        posting_time = (ranks - local) * self.hop.message
        network_time: Amount = (posting_time**2 + (chunk * network_per_byte) ** 2) ** 0.5
        return self.hop.join(
            self.curve, start, self.hop.pair, (chunk * node_per_byte, network_time)
        )

    def moves(self, message_bytes: float) -> Moves:
        if self.op == "send_recv":
            return Moves(route="shift", sent=message_bytes, offset=1)
        sent_share = 1 - 1 / self.fabric.ranks
        return Moves(route="exchange", sent=message_bytes * sent_share)

    def _node_per_byte(self, sent: float, copied: float) -> float:
        if self.op == "all_to_all":
            return self.curve.chunks_exchanged(self.fabric, sent, copied)
        return self.curve.chunks_on(self.fabric, sent, copied)

    @classmethod
    def flagged_bytes(cls, op: Op, fabric: Fabric, numbers: Numbers) -> float:
        """Bytes of the largest message whose parts NCCL sends with flags in the data."""
        link = "pcie" if fabric.link == "pcie" else "nvlink"
        link = "network" if fabric.nodes > 1 else link
        parts = 1 if op == "send_recv" else fabric.ranks
        return numbers[f"{link}_pairwise_ll"][0] * parts
