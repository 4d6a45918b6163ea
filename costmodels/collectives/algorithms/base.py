"""What an algorithm of a collective declares: its name, what it serves and needs, and its curve."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from costmodels.collectives.curve import Curve
from costmodels.collectives.nccl_tuning import Candidate, NcclView
from costmodels.collectives.operations import Amount, Op, WireProtocol, ring_transfers
from costmodels.collectives.transports import Hop
from topology.base.values import dataclass
from topology.catalogue import Fabric, Moves

Need = Callable[[Fabric], str]
"""Says what a fabric lacks; empty where it lacks nothing."""


def multicast(fabric: Fabric) -> str:
    """Need a switch that adds and replicates."""
    reason = "it needs more than two GPUs on a multicasting NVLink switch"
    return "" if fabric.multicast else reason


def peers(fabric: Fabric) -> str:
    """Need GPUs that address each other."""
    return "" if fabric.peer_to_peer else "it needs GPUs that read each other's memory"


def one_node(fabric: Fabric) -> str:
    """Need a fabric of one node."""
    return "" if fabric.nodes == 1 else "it stays inside one node, got several"


def several_nodes(fabric: Fabric) -> str:
    """Need a fabric of several nodes."""
    return "" if fabric.nodes > 1 else "it needs several nodes, got 1"


def nvlink(fabric: Fabric) -> str:
    """Need NVLink between all GPUs of a fabric."""
    return "it needs NVLink between all GPUs" if fabric.link == "pcie" else ""


def one_gpu_a_node(fabric: Fabric) -> str:
    """Need nodes of one GPU."""
    is_met = fabric.nodes == fabric.ranks
    return "" if is_met else f"it needs one GPU a node, got {fabric.ranks} on {fabric.nodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm(ABC):
    """One way to run one collective on one fabric. A subclass is an algorithm, and all of it.

    op : what is run. curve : what a step and a byte cost inside a node. hop : between nodes.
    protocol : one of `protocols`.

    A subclass declares
    ----------
    name : what callers call it. ops : the collectives it serves. needs : of a fabric, in the
    order in which what is lacking is told. protocols : in which it can run. curves_of : whose
    curves it takes, where it has none of its own. engine : whether serving engines bring it, and
    not NCCL. since : the first release of NCCL that has it.
    """

    name: ClassVar[str]
    ops: ClassVar[tuple[Op, ...]] = ("all_reduce",)
    needs: ClassVar[tuple[Need, ...]] = ()
    protocols: ClassVar[tuple[WireProtocol, ...]] = ("Simple",)
    curves_of: ClassVar[str] = ""
    engine: ClassVar[bool] = False
    since: ClassVar[tuple[int, int]] = (2, 18)

    op: Op = "all_reduce"
    fabric: Fabric
    curve: Curve
    hop: Hop = Hop()
    protocol: WireProtocol = "Simple"

    @abstractmethod
    def time(self, message_bytes: Amount) -> Amount:
        """Seconds for a message of `message_bytes`, as nccl-tests counts them."""

    def moves(self, message_bytes: float) -> Moves:
        """Say what a message brings to links; those of a ring where a subclass says nothing."""
        return Moves(
            sent=message_bytes * ring_transfers(self.op, self.fabric.ranks) / self.fabric.ranks
        )

    @classmethod
    def obstacle(cls, op: Op, fabric: Fabric) -> str:
        """Say why it cannot run `op` on `fabric`; empty if it can."""
        if op not in cls.ops:
            return f"it serves {', '.join(cls.ops)} only"
        return next(filter(None, (need(fabric) for need in cls.needs)), "")

    @classmethod
    def steps(cls, op: Op, fabric: Fabric) -> int:  # noqa: ARG003
        """Count the steps of which each waits for the one before; 0 where they are not counted."""
        return 0

    @classmethod
    def curve_name(cls, protocol: WireProtocol, fabric: Fabric) -> str:  # noqa: ARG003
        """Name its curve among those of a link."""
        name = cls.curves_of or cls.name
        return name if len(cls.protocols) == 1 else f"{name}_{protocol.lower()}"

    @classmethod
    def candidates(cls, op: Op, view: NcclView) -> Iterator[Candidate]:  # noqa: ARG003
        """Yield what NCCL believes that it takes, by protocol; nothing where NCCL never asks."""
        yield from ()
