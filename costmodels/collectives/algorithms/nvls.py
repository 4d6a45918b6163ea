"""Collectives that switches reduce and replicate: those of NVLink, those of the network."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from costmodels.collectives.algorithms.base import Algorithm, multicast, one_node, several_nodes
from costmodels.collectives.algorithms.direct import Direct
from costmodels.collectives.algorithms.tree import tree_depth, tree_passes
from costmodels.collectives.nccl_tuning import Candidate, NcclView
from costmodels.collectives.operations import Amount, Op, WireProtocol, ring_steps
from costmodels.collectives.tables import losses, transports
from costmodels.collectives.transports import transport_of, usable_bandwidth
from costmodels.sizes import smaller
from topology.catalogue import Fabric, Moves


class Nvls(Direct):
    """NVLink SHARP: the switch adds what GPUs send and multicasts the sums.

    In an all-reduce every byte leaves a GPU once and enters it once, so that neither term knows
    the number of GPUs. All-gather and reduce-scatter use one of the two directions for
    (n - 1) / n of the full array.

    Graham et al., "Scalable Hierarchical Aggregation and Reduction Protocol (SHARP)", 2020;
    NCCL src/transport/nvls.cc and coll_net.cc.
    """

    name = "nvls"
    ops = ("all_reduce", "all_gather", "reduce_scatter")
    needs = (one_node, multicast)

    @classmethod
    def steps(cls, op: Op, fabric: Fabric) -> int:  # noqa: ARG003
        return ring_steps(op, 2)

    def work(self) -> tuple[int, int, float]:
        ranks = self.fabric.ranks
        return 1, ranks, 1.0 if self.op == "all_reduce" else (ranks - 1) / ranks

    def moves(self, message_bytes: float) -> Moves:
        """Say what a message brings to links: a part of an array goes up, or comes down, once."""
        part = message_bytes / self.fabric.ranks
        sent = part if self.op == "all_gather" else message_bytes * self.work()[2]
        received = part if self.op == "reduce_scatter" else message_bytes * self.work()[2]
        return Moves(route="switch", sent=sent, received=received)

    @classmethod
    def candidates(cls, op: Op, view: NcclView) -> Iterator[Candidate]:
        ranks, speed = view.fabric.ranks, switch_speed(view)
        if speed:
            channel = speed * (2 if op == "all_reduce" else (ranks - 1) / ranks)
            yield Candidate(
                protocol="Simple",
                latency=view.first("nvlink_nvls"),
                per_byte=ring_steps(op, ranks) / ranks / (channel * ranks),
            )


class NvlsTree(Algorithm):
    r"""NVLink SHARP inside each node, two binary trees between nodes, in one pipeline.

    .. math::
        start = launch + 2 \lceil \log_2 N \rceil\,(hop + \min(m, wave)\,\beta_{network}), \quad
        stream = m \max((1 + relay)\,\beta_{link}, w\,\beta_{network} / branching)

    with m the message, N the nodes, w = 1 for two nodes and 2 for more, `branching` what more
    than two nodes leave of the network, and `relay` what a GPU loses of its links to passing its
    share of the node's sum on to the network and taking it back (`copy_reduce` of the curve).
    A node hands on a chunk of every channel at once: `wave` is their sum.

    References
    ----------
    NCCL src/transport/nvls.cc (channels, largest chunk) and src/enqueue.cc (chunk by size).
    """

    name = "nvls_tree"
    needs = (multicast, several_nodes)
    curves_of = "nvls"

    def time(self, message_bytes: Amount) -> Amount:
        nodes, network, network_losses = self.fabric.nodes, self.fabric.network, losses()
        heads = min(self.fabric.local, network.bandwidth / network.pace if network else 0)
        wave = cast(Amount, smaller(message_bytes, heads * network_losses.wave))
        hop = replace(self.hop, sharpness=min(self.hop.sharpness, network_losses.sharpness))
        travel = 2 * tree_depth(nodes) * (hop.step + wave * hop.per_byte)
        start = self.curve.start(1, message_bytes / self.fabric.ranks)
        node_per_byte = (1 + self.curve.copy_reduce) * self.curve.per_byte_on(self.fabric)
        network_per_byte = (
            tree_passes(nodes) * hop.per_byte / (network_losses.branching if nodes > 2 else 1.0)
        )
        streams = message_bytes * node_per_byte, message_bytes * network_per_byte
        return hop.join(self.curve, start, travel, streams)

    def moves(self, message_bytes: float) -> Moves:
        return Moves(route="switched_tree", sent=message_bytes)

    @classmethod
    def candidates(cls, op: Op, view: NcclView) -> Iterator[Candidate]:
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


def switch_speed(view: NcclView) -> float:
    """Bytes a second that NCCL believes a GPU has through the switch; 0 where it uses none."""
    fabric, key = view.fabric, f"{view.generation}_nvls"
    local = fabric.ranks // fabric.nodes
    if key not in view.numbers or local < 3:
        return 0.0
    total = fabric.bandwidth * view.first("nvls_bus") * local / (local - 1)
    speeds = view.numbers[f"{key}_channel"]
    speed = next((s for s in speeds if s * local <= total), speeds[-1])
    return speed * view.first(key) * (local - 1) / local


def reducing_switches(fabric: Fabric) -> str:
    """Need network switches that reduce."""
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
    """

    name = "collnet"
    needs = (several_nodes, reducing_switches)

    def time(self, message_bytes: Amount) -> Amount:
        start = self.curve.start(2, message_bytes / self.fabric.ranks)
        node_per_byte = self.curve.per_byte_on(self.fabric)
        network_per_byte = self.hop.per_byte / self.hop.offload
        streams = message_bytes * node_per_byte, message_bytes * network_per_byte
        return self.hop.join(self.curve, start, 2 * self.hop.step, streams)

    def moves(self, message_bytes: float) -> Moves:
        return Moves(route="switch", sent=message_bytes, received=message_bytes)

    @classmethod
    def curve_name(cls, protocol: WireProtocol, fabric: Fabric) -> str:  # noqa: ARG003
        """Name its curve: that of the switch inside a node, or of a ring."""
        return "nvls" if fabric.multicast else "ring_simple"
