"""The collectives, what their message size means, and the least that any algorithm must move.

`message_bytes` is what nccl-tests prints as size: the larger of one rank's send and receive
buffers. For all-gather and reduce-scatter that is the full array, for all-to-all (gather,
scatter) the whole buffer of one rank (of the root).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np

from topology.base import unknown
from topology.catalogue import Fabric, Pace

if TYPE_CHECKING:
    from numpy.typing import NDArray

Op = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
]
OPS: tuple[Op, ...] = get_args(Op)
RING_OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
PAIRWISE_OPS: tuple[Op, ...] = ("all_to_all", "gather", "scatter", "send_recv")
REDUCING_OPS: tuple[Op, ...] = ("all_reduce", "reduce_scatter", "reduce")
ROOTED_OPS: tuple[Op, ...] = ("broadcast", "reduce", "gather", "scatter")
INWARD_OPS: tuple[Op, ...] = ("reduce", "gather")

WireProtocol = Literal["LL", "LL128", "Simple"]
PROTOCOLS: tuple[WireProtocol, ...] = get_args(WireProtocol)

Amount = TypeVar("Amount", float, "NDArray[np.float64]")


def read_op(name: str) -> Op:
    """Take the name of a collective, or say which names there are."""
    for op in OPS:
        if op == name:
            return op
    raise unknown("collective", name, OPS)


def ring_steps(op: Op, ranks: int) -> int:
    """Count the dependent steps around a ring.

    >>> ring_steps("all_reduce", 8), ring_steps("all_gather", 8)
    (14, 7)
    """
    return 2 * (ranks - 1) if op == "all_reduce" else ranks - 1


def ring_transfers(op: Op, ranks: int) -> int:
    """Count the chunks of 1 / ranks of the message that the busiest rank sends on.

    >>> ring_transfers("all_reduce", 4), ring_transfers("broadcast", 4)
    (6, 4)
    """
    return ranks if op in ("broadcast", "reduce") else ring_steps(op, ranks)


def pace_of(op: Op, fabric: Fabric) -> Pace | None:
    """Find what was measured for `op`, or for what goes the same ways, on the host of a group."""
    is_exchange = op in ("all_to_all", "gather", "scatter")
    paced_op = "all_to_all" if is_exchange else "all_reduce"
    paces = fabric.paces if fabric.nodes == 1 else ()
    return next((pace for pace in paces if pace.op == paced_op), None)


def bus_factor(op: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if op in ("broadcast", "reduce", "send_recv") else (ranks - 1) / ranks


def least_bytes(op: Op, message_bytes: Amount, fabric: Fabric) -> Amount:
    """Bytes that the busiest GPU of `fabric` must send, or receive, whatever the algorithm.

    A switch that reduces and replicates lets an all-reduce (reduce-scatter, all-gather) pass
    with each byte sent once; without it, all-reduce costs two passes over (n - 1) / n.

    >>> from topology.catalogue import find_hardware
    >>> least_bytes("all_reduce", 8.0, find_hardware("a100-sxm-80gb").fabric(8))
    14.0
    >>> least_bytes("all_reduce", 8.0, find_hardware("h100-sxm").fabric(8))
    8.0
    """
    ranks = fabric.ranks
    if ranks == 1:
        return message_bytes * 0.0
    if op == "all_reduce" and not fabric.multicast:
        return message_bytes * (2 * (ranks - 1) / ranks)
    if op in ("all_reduce", "broadcast", "reduce", "send_recv"):
        return message_bytes * 1.0
    return message_bytes * ((ranks - 1) / ranks)
