"""All-reduce through NVLink switches inside nodes and over trees between them."""

import math
from collections.abc import Iterator

from costmodels.collectives.algorithms.base import Algorithm, multicast, several_nodes
from costmodels.collectives.algorithms.nvls import switch_speed
from costmodels.collectives.algorithms.tree import tree_depth, tree_passes
from costmodels.collectives.nccl_tuning import Candidate, View
from costmodels.collectives.network import usable_bandwidth
from costmodels.collectives.operations import Amount, Op, ring_steps


class NvlsTree(Algorithm):
    r"""NVLink SHARP inside each node, two binary trees between nodes, in one pipeline.

    .. math::
        start = launch + 2 \lceil \log_2 N \rceil\,hop, \quad
        stream = m \max((1 + relay)\,\beta_{link}, w\,\beta_{network})

    with m the message, N the nodes, w = 1 for two nodes and 2 for more, and `relay` what a GPU
    loses of its links to passing its share of the node's sum on to the network and taking it
    back (`copy_reduce` of the curve).
    """

    name = "nvls_tree"
    needs = (multicast, several_nodes)
    curves_of = "nvls"

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        nodes = self.fabric.nodes
        travel = 2 * tree_depth(nodes) * self.hop.tree_step
        start = self.curve.start(1, message_bytes / self.fabric.ranks)
        inside = (1 + self.curve.copy_reduce) * self.curve.per_byte_on(self.fabric)
        outside = tree_passes(nodes) * self.hop.per_byte
        streams = message_bytes * inside, message_bytes * outside
        return self.hop.join(self.curve, start, travel, streams)

    @classmethod
    def candidates(cls, op: Op, view: View) -> Iterator[Candidate]:
        """Yield what NCCL believes that switches and trees take."""
        fabric, speed = view.fabric, switch_speed(view)
        if not speed or fabric.network is None:
            return
        ranks, nodes = fabric.ranks, fabric.nodes
        local = ranks // nodes
        network = usable_bandwidth(fabric, fabric.network) / local * (2 if nodes == 2 else 1)
        channel = min(2 * speed, network, view.cap("nvls_tree"))
        travel = 2 * math.floor(math.log2(nodes)) * view.first("network_nvls_tree")
        yield Candidate(
            protocol="Simple",
            latency=view.first("nvlink_nvls") + travel,
            per_byte=ring_steps(op, ranks) / ranks / (channel * local),
        )
