"""All-reduce up and down two trees of nodes."""

import math
from collections.abc import Iterator

from costmodels.collectives.algorithms.base import Algorithm
from costmodels.collectives.nccl_tuning import Candidate, View
from costmodels.collectives.operations import PROTOCOLS, Amount, Op


def tree_depth(nodes: int) -> int:
    """Levels of a binary tree below its root.

    >>> tree_depth(1), tree_depth(2), tree_depth(16), tree_depth(17)
    (0, 1, 4, 5)
    """
    return (nodes - 1).bit_length()


def tree_passes(nodes: int) -> int:
    """How often a node sends the message to other nodes in a double binary tree.

    Two nodes are each the root of one tree for half the data: once. In larger trees a node
    sends once up and, for the half where it has two children, twice down.

    >>> tree_passes(1), tree_passes(2), tree_passes(8)
    (0, 1, 2)
    """
    return min(nodes - 1, 2)


class Tree(Algorithm):
    r"""A chain inside each node, two complementary binary trees between nodes; up, then down.

    .. math::
        start = launch + 2 (g - 1)\,step + 2 \lceil \log_2 N \rceil\,hop, \quad
        stream = m \max(2 \beta_{link}, w\,\beta_{network})

    with m the message, g the GPUs a node, N the nodes, w = 1 for two nodes and 2 for more. In an
    NVLink domain of several hosts the chain runs inside each and a tree joins them over NVLink.

    References
    ----------
    Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", Parallel Computing 35(12), 2009.

    Examples
    --------
    One node of two GPUs is a chain of two: 1 + 2 us + 2 x 4 MB / 1 GB/s.

    >>> from costmodels.collectives.curve import Curve
    >>> from topology.base import BytesPerSecond, Seconds
    >>> from topology.catalogue import Fabric
    >>> curve = Curve(launch=Seconds(1e-6), step=Seconds(1e-6), efficiency=1.0)
    >>> node = Fabric(
    ...     architecture="ampere", ranks=2, link="nvlink", bandwidth=BytesPerSecond(1e9)
    ... )
    >>> f"{Tree(fabric=node, curve=curve).time(4e6):.6f} s"
    '0.008003 s'
    """

    name = "tree"
    protocols = PROTOCOLS
    curves_of = "ring"

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for an all-reduce of `message_bytes`."""
        nodes, hosts = self.fabric.nodes, self.fabric.hosts
        local = self.fabric.ranks // nodes
        chunk = message_bytes / self.fabric.ranks
        steps = 2 * (max(1, local // hosts) - 1 + tree_depth(hosts))
        inside = 2 * self.curve.per_byte_on(self.fabric) if local > 1 else 0.0
        outside = tree_passes(nodes) * self.hop.per_byte
        return self.hop.join(
            self.curve,
            self.curve.start(steps, chunk),
            2 * tree_depth(nodes) * self.hop.tree_step,
            (message_bytes * inside, message_bytes * outside),
        )

    @classmethod
    def candidates(cls, op: Op, view: View) -> Iterator[Candidate]:  # noqa: ARG003
        """Yield what NCCL believes that trees take."""
        hosts = view.hosts
        chain, channels = view.chain
        bus = min(view.first("tree") * chain, channels * view.cap("tree"))
        ll128 = view.numbers["tree_ll128"][min(hosts, 2) - 1]
        ceilings = (
            min(view.first("tree_ll") * bus, view.cap("ll")),
            min(ll128 * bus, channels * view.cap("tree_ll128")),
            bus,
        )
        for index, protocol in view.protocols():
            inside, outside = view.step("tree", index)
            travel = 2 * ((view.local - 1) * inside + math.floor(math.log2(hosts)) * outside)
            yield Candidate(
                protocol=protocol,
                latency=view.numbers["base_tree"][index] + travel,
                per_byte=2 / ceilings[index],
                correction=view.numbers[f"correction_{protocol.lower()}"],
            )
