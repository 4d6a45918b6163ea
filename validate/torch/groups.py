"""Who talks to whom: a process group for the ranks along every axis of a plan, made once."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import cast

import torch.distributed as dist

from planner.request.plan import Plan

Handles = MutableMapping[tuple[int, ...], "dist.ProcessGroup | None"]
"""Process groups by their ranks, kept for the plans that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks along one axis that this rank is among. place : its own number there."""

    axis: str
    ranks: tuple[int, ...]
    place: int
    handle: "dist.ProcessGroup | None"

    @property
    def degree(self) -> int:
        return len(self.ranks)


def make_groups(plan: Plan, rank: int, world: int, handles: Handles) -> Mapping[str, Group]:
    """Make the groups of a plan; all ranks must call this for the same plans in the same order.

    When there are more ranks than the plan has, each further `plan.gpus` of them run it again.
    """
    mine: dict[str, Group] = {}
    for axis, _ in plan.axes:
        for base in range(0, world, plan.gpus):
            for number in range(plan.gpus):
                ranks = tuple(base + r for r in plan.ranks_along(axis, number))
                if ranks not in handles:
                    handles[ranks] = _handle(ranks, world)
                if rank in ranks:
                    mine[axis] = Group(
                        axis=axis, ranks=ranks, place=ranks.index(rank), handle=handles[ranks]
                    )
    return mine


def _handle(ranks: tuple[int, ...], world: int) -> "dist.ProcessGroup | None":
    if ranks == tuple(range(world)):
        return dist.group.WORLD
    return cast("dist.ProcessGroup", dist.new_group(list(ranks)))
