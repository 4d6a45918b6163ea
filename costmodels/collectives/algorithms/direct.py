"""Kernels on one node in which ranks, or the switch, address the buffers of all others."""

from abc import abstractmethod
from typing import ClassVar

from costmodels.collectives.algorithms.base import Algorithm, multicast, nvlink, one_node, peers
from costmodels.collectives.operations import Amount, Op, WireProtocol
from topology.catalogue import Fabric, Moves


class Direct(Algorithm):
    r"""Ranks wait for each other, and the message passes over the links of each GPU.

    .. math:: start = launch + steps\,step, \quad stream = m\,passes\,\beta_{link}

    with m the message, of which a step carries the whole or the share of one rank.

    rounds : steps that wait for each other, 0 where they are not counted.
    """

    rounds: ClassVar[int] = 0

    @classmethod
    def steps(cls, op: Op, fabric: Fabric) -> int:  # noqa: ARG003
        return cls.rounds

    def moves(self, message_bytes: float) -> Moves:
        """Say what a message brings to links: ranks address each other."""
        _, _, passes = self.work()
        return Moves(route="exchange", sent=message_bytes * passes)

    @abstractmethod
    def work(self) -> tuple[int, int, float]:
        """Count the steps, the parts of the message of which a step carries one, and the passes."""

    def time(self, message_bytes: Amount) -> Amount:
        steps, parts, passes = self.work()
        start = self.curve.start(steps, message_bytes / parts)
        return self.curve.join(
            start, message_bytes * (passes * self.curve.per_byte_on(self.fabric))
        )


class Oneshot(Direct):
    """Every rank reads the whole message of every other one and adds: one synchronisation."""

    name = "oneshot"
    needs = (one_node, peers)
    engine = True
    rounds = 1

    def work(self) -> tuple[int, int, float]:
        return self.fabric.ranks - 1, 1, self.fabric.ranks - 1


class Twoshot(Direct):
    """Every rank reduces its share of the message, then reads the others': two passes."""

    name = "twoshot"
    needs = (one_node, peers)
    engine = True
    rounds = 2

    def work(self) -> tuple[int, int, float]:
        ranks = self.fabric.ranks
        return 2 * (ranks - 1), ranks, 2 * (ranks - 1) / ranks


class Multishot(Direct):
    """Two-shot through a multicasting switch: it adds while reading and replicates on writing.

    One share is pulled from all ranks, added on the way, and pushed once to all of them, so that
    two synchronisations do for any number of ranks ("3x Faster AllReduce with NVSwitch and
    TensorRT-LLM MultiShot", NVIDIA developer blog, 2024).
    """

    name = "multishot"
    needs = (one_node, multicast)
    engine = True
    rounds = 2

    def work(self) -> tuple[int, int, float]:
        return 1, self.fabric.ranks, 1.0

    def moves(self, message_bytes: float) -> Moves:
        return Moves(route="switch", sent=message_bytes, received=message_bytes)


class Symmetric(Direct):
    """Registered buffers on one NVLink domain, NCCL 2.27 and newer.

    With flags in the data (protocol ``LL``) every rank writes all it has to all others at once:
    one synchronisation, n - 1 messages. Otherwise an all-reduce reduces shares and replicates
    them, all-gather and reduce-scatter do one half of that. NCCL src/sym_kernels.cc (2.28 and
    newer) has the kernels and NCCL's own estimate of them.
    """

    name = "symmetric"
    ops = ("all_reduce", "all_gather", "reduce_scatter")
    needs = (one_node, peers, nvlink)
    protocols = ("LL", "Simple")
    since = (2, 27)

    def work(self) -> tuple[int, int, float]:
        ranks = self.fabric.ranks
        passes: float = (ranks - 1) / ranks
        if self.op == "all_reduce" and self.protocol == "LL":
            passes = ranks - 1
        elif self.op == "all_reduce":
            passes = 1.0 if self.fabric.multicast else 2 * (ranks - 1) / ranks
        return ranks - 1, ranks, passes

    def moves(self, message_bytes: float) -> Moves:
        adds_in_switch = (
            self.op == "all_reduce" and self.protocol == "Simple" and self.fabric.multicast
        )
        if adds_in_switch:
            return Moves(route="switch", sent=message_bytes, received=message_bytes)
        return Direct.moves(self, message_bytes)

    @classmethod
    def curve_name(cls, protocol: WireProtocol, fabric: Fabric) -> str:  # noqa: ARG003
        return "symmetric_ll" if protocol == "LL" else "symmetric"
