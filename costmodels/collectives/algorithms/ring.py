"""Collectives around a ring."""

from collections.abc import Iterator

from costmodels.collectives.algorithms.base import Algorithm
from costmodels.collectives.nccl_tuning import Candidate, NcclView
from costmodels.collectives.operations import (
    PROTOCOLS,
    RING_OPS,
    Amount,
    Op,
    ring_steps,
    ring_transfers,
)
from topology.catalogue import Fabric


class Ring(Algorithm):
    r"""Each rank sends chunks of 1 / n to the next one, over n - 1 (all-reduce 2 n - 2) steps.

    .. math::
        start = launch + (k - x)\,step + x\,hop, \quad
        stream = \frac{m}{n} \max((k + copies)\,\beta_{link}, k\,\beta_{network})

    with m the message (the full array for all-gather and reduce-scatter), n the ranks, k the
    steps, x those of them that leave a node, beta seconds a byte. Broadcast and reduce pass the
    whole message down the ring in a pipeline: n chunks, n - 1 steps.

    Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
    MPICH", IJHPCA 19(1), 2005. The copies, and the steps' dependence on the chunk, are ours.
    """

    name = "ring"
    ops = RING_OPS
    protocols = PROTOCOLS

    def time(self, message_bytes: Amount) -> Amount:
        ranks, nodes = self.fabric.ranks, self.fabric.nodes
        steps = ring_steps(self.op, ranks)
        crossings = ring_steps(self.op, nodes)
        chunk = message_bytes / ranks
        start = self.curve.start(steps - crossings, chunk)
        streams = chunk * self._node_per_byte(), chunk * self._network_per_byte()
        return self.hop.join(self.curve, start, crossings * self.hop.step, streams)

    def _node_per_byte(self) -> float:
        fabric, copies = self.fabric, self.curve.copies(self.op)
        open_ring = fabric.nodes > 1 or self.op in ("broadcast", "reduce")
        ends = 2 if open_ring else 0  # of the chain in a node: they move data one way
        hops = ring_transfers(self.op, fabric.ranks) if fabric.ranks > fabric.nodes else 0
        return self.curve.chunks_on(fabric, hops, copies, ends)

    def _network_per_byte(self) -> float:
        passes = ring_steps(self.op, 2)  # all-reduce goes round twice
        return (
            ring_transfers(self.op, self.fabric.ranks) + passes * self.hop.copy
        ) * self.hop.per_byte

    @classmethod
    def steps(cls, op: Op, fabric: Fabric) -> int:
        return ring_steps(op, fabric.ranks)

    @classmethod
    def candidates(cls, op: Op, view: NcclView) -> Iterator[Candidate]:
        ranks, nodes, bus = view.fabric.ranks, view.nodes, view.bus
        steps = ranks if op in ("broadcast", "reduce") else ring_steps(op, ranks)
        crossings = ring_steps(op, nodes)
        ceilings = (
            min(view.cap("ll"), view.first("ring_ll") * bus),
            min(view.channels * view.cap("ring_ll128"), view.first("ring_ll128") * bus),
            bus,
        )
        for index, protocol in view.protocols():
            inner_step, outer_step = view.step("ring", index)
            travel = (steps - crossings) * inner_step + crossings * outer_step
            if protocol == "Simple" and nodes > 1 and op == "all_reduce":
                travel *= view.first("plateau")
            yield Candidate(
                protocol=protocol,
                latency=view.numbers["base_ring"][index] + travel,
                per_byte=steps / ranks / ceilings[index],
            )
