"""Replicas beside those that a demand needs, so that some may fail; and the nodes of all."""

import math

from planner.fleet.demand import Spare


def spares(needed: int, spare: Spare, gpus: int, size: int) -> int:
    """Count the replicas that stand by, each of so many GPUs on nodes of `size`.

    Replicas fill one node after the other, and a node that fails takes all of its own along.

    >>> [spares(5, spare, 2, 8) for spare in ("", "replica", "node")], spares(5, "node", 16, 8)
    ([0, 1, 4], 1)
    """
    if spare == "node":
        return min(needed, max(1, size // gpus))
    return int(spare == "replica")


def lost_with_node(needed: int, spare: Spare, gpus: int, size: int) -> int:
    """Count the replicas that the fullest node takes along when it fails.

    >>> [lost_with_node(5, spare, 2, 8) for spare in ("", "replica", "node")]
    [4, 4, 4]
    >>> lost_with_node(1, "replica", 2, 8), lost_with_node(1, "node", 2, 8)
    (2, 1)
    """
    same_place_count = needed if spare == "node" else needed + spares(needed, spare, gpus, size)
    return min(same_place_count, max(1, size // gpus))


def nodes_of(needed: int, spare: Spare, gpus: int, size: int) -> int:
    """Count the hosts of replicas, spare ones too; none of them is torn apart without need.

    >>> [nodes_of(count, "", gpus, 8) for gpus, count in ((2, 5), (8, 3), (16, 2), (3, 3))]
    [2, 3, 4, 2]
    >>> nodes_of(3, "replica", 2, 8), nodes_of(3, "node", 2, 8), nodes_of(2, "node", 16, 8)
    (1, 2, 6)
    """
    if spare == "node":  # what stands by for a node is on another
        return nodes_of(needed, "", gpus, size) + math.ceil(gpus / size)
    replicas = needed + spares(needed, spare, gpus, size)
    if gpus > size:
        return replicas * math.ceil(gpus / size)
    return math.ceil(replicas / (size // gpus))
