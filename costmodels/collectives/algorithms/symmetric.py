"""NCCL's kernels on symmetric memory: every rank addresses every other one's buffer."""

from costmodels.collectives.algorithms.base import Algorithm, one_node, peers
from costmodels.collectives.operations import Amount, WireProtocol
from topology.catalogue import Fabric


def nvlink(fabric: Fabric) -> str:
    """Need NVLink."""
    return "it needs NVLink between all GPUs" if fabric.link == "pcie" else ""


class Symmetric(Algorithm):
    r"""Registered buffers on one NVLink domain, NCCL 2.27 and newer.

    With flags in the data (protocol ``LL``) every rank writes all it has to all others at once:
    one synchronisation, n - 1 messages. Otherwise an all-reduce reduces shares and replicates
    them, all-gather and reduce-scatter do one half of that.

    .. math::
        start = launch + (n - 1)\,step, \quad
        stream = m\,w\,\beta_{link}

    with m the message (the full array), n the ranks, w = n - 1 for a low-latency all-reduce,
    1 for a multicast one, 2 (n - 1) / n without multicast, (n - 1) / n for the others.

    References
    ----------
    NCCL src/sym_kernels.cc (2.28 and newer) has the kernels and NCCL's own estimate of them.
    """

    name = "symmetric"
    ops = ("all_reduce", "all_gather", "reduce_scatter")
    needs = (peers, nvlink, one_node)
    protocols = ("LL", "Simple")
    since = (2, 27)

    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a message of `message_bytes`."""
        ranks = self.fabric.ranks
        start = self.curve.start(ranks - 1, message_bytes / ranks)
        per_byte = self._passes() * self.curve.per_byte_on(self.fabric)
        return self.curve.join(start, message_bytes * per_byte)

    def _passes(self) -> float:
        ranks = self.fabric.ranks
        if self.op != "all_reduce":
            return (ranks - 1) / ranks
        if self.protocol == "LL":
            return ranks - 1
        return 1.0 if self.fabric.multicast else 2 * (ranks - 1) / ranks

    @classmethod
    def curve_name(cls, protocol: WireProtocol, fabric: Fabric) -> str:  # noqa: ARG003
        """Name its curve: each protocol has one."""
        return "symmetric_ll" if protocol == "LL" else "symmetric"
