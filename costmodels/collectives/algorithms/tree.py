"""Trees of nodes: all-reduce up and down two of them, all-gather over one for each rank."""

import math
from collections.abc import Iterator

from costmodels.collectives.algorithms.base import Algorithm, one_gpu_a_node, several_nodes
from costmodels.collectives.nccl_tuning import Candidate, NcclView
from costmodels.collectives.operations import PROTOCOLS, Amount, Op
from topology.catalogue import Moves


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

    with m the message, g the GPUs a node, N the nodes, w = 1 for two nodes and 2 for more. An
    NVLink domain of several hosts is one node.

    Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", Parallel Computing 35(12), 2009.
    """

    name = "tree"
    protocols = PROTOCOLS
    curves_of = "ring"

    def time(self, message_bytes: Amount) -> Amount:
        nodes = self.fabric.nodes
        local = self.fabric.ranks // nodes
        chunk = message_bytes / self.fabric.ranks
        steps = 2 * (local - 1)
        node_per_byte = 2 * self.curve.per_byte_on(self.fabric) if local > 1 else 0.0
        network_per_byte = tree_passes(nodes) * self.hop.per_byte
        return self.hop.join(
            self.curve,
            self.curve.start(steps, chunk),
            2 * tree_depth(nodes) * self.hop.tree_step,
            (message_bytes * node_per_byte, message_bytes * network_per_byte),
        )

    def moves(self, message_bytes: float) -> Moves:
        return Moves(route="tree", sent=message_bytes)

    @classmethod
    def candidates(cls, op: Op, view: NcclView) -> Iterator[Candidate]:  # noqa: ARG003
        nodes = view.nodes
        chain, channels = view.chain
        bus = min(view.first("tree") * chain, channels * view.cap("tree"))
        ll128 = view.numbers["tree_ll128"][min(nodes, 2) - 1]
        ceilings = (
            min(view.first("tree_ll") * bus, view.cap("ll")),
            min(ll128 * bus, channels * view.cap("tree_ll128")),
            bus,
        )
        for index, protocol in view.protocols():
            inner_step, outer_step = view.step("tree", index)
            travel = 2 * ((view.local - 1) * inner_step + math.floor(math.log2(nodes)) * outer_step)
            yield Candidate(
                protocol=protocol,
                latency=view.numbers["base_tree"][index] + travel,
                per_byte=2 / ceilings[index],
                correction=view.numbers[f"correction_{protocol.lower()}"],
            )


class Pat(Algorithm):
    r"""Parallel aggregated trees: every rank is the root of a binomial tree, batched.

    .. math::
        start = launch + \lceil \log_2 n \rceil\,hop, \quad
        stream = m \frac{n - 1}{n} \beta_{network}

    with m the full array and n the ranks, one a node.

    Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
    arXiv:2506.20252, 2025.
    """

    name = "pat"
    ops = ("all_gather", "reduce_scatter")
    needs = (several_nodes, one_gpu_a_node)
    curves_of = "ring_simple"

    def time(self, message_bytes: Amount) -> Amount:
        ranks = self.fabric.ranks
        start = self.curve.start(0, message_bytes / ranks)
        network_time = message_bytes * ((ranks - 1 + self.hop.copy) / ranks * self.hop.per_byte)
        travel = tree_depth(ranks) * self.hop.step
        return self.hop.join(self.curve, start, travel, (network_time * 0.0, network_time))

    def moves(self, message_bytes: float) -> Moves:
        sent_share = 1 - 1 / self.fabric.ranks
        return Moves(route="doubling", sent=message_bytes * sent_share)

    @classmethod
    def candidates(cls, op: Op, view: NcclView) -> Iterator[Candidate]:  # noqa: ARG003
        ranks = view.fabric.ranks
        travel = math.log2(ranks) * view.numbers["network_tree"][2] / 3.5
        yield Candidate(
            protocol="Simple",
            latency=view.first("base_pat") + travel + ranks * view.first("pat_rank"),
            per_byte=(ranks - 1) / ranks / (view.first("pat") * view.bus),
        )
