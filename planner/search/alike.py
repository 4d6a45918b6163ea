"""Which plans are known from others: replicas, and pipelines that replicas can replace."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.engines.deployment import Deployment
from planner.request.plan import Plan
from planner.search.outcome import Outcome, PlanEstimate, Rejected
from planner.search.plans import shallower, unpiped
from topology.base import TopologyError

LONGEST: Final = 32
"""Ranks of a ring, where GPUs are many; AllGather-KV moves the same keys in one message."""


def replicated(replicas: int, one: Outcome) -> Outcome:
    """Turn what became of one replica into what becomes of several.

    With a batch of one each replica serves a request of its own: nothing changes but throughput.
    """
    if isinstance(one, PlanEstimate):
        return _several(replicas, one)
    short = None if one.short is None else _several(replicas, one.short)
    return Rejected(
        plan=_beside(replicas, one.plan), reason=one.reason, short=short, remedy=one.remedy
    )


def _several(replicas: int, one: PlanEstimate) -> PlanEstimate:
    plan = _beside(replicas, one.plan)
    rate = one.throughput_per_s * replicas
    return replace(one, plan=plan, gpus=plan.gpus, throughput_per_s=rate)


def _beside(replicas: int, plan: Plan) -> Plan:
    return Plan((("dp", replicas), *plan.axes), plan.vae)


def replica(deployment: Deployment, plan: Plan) -> Plan | None:
    """Return the plan of one replica, where its links are the same alone as beside others."""
    alone = Plan(tuple(axis for axis in plan.axes if axis[0] != "dp"))
    if deployment.subset is not None or deployment.nodes or plan.vae > 1 or alone == plan:
        return None
    return alone if _same_links(deployment, plan, alone) else None


def _same_links(deployment: Deployment, plan: Plan, alone: Plan) -> bool:
    """Whether a replica spreads over hosts alone as it does beside others."""
    try:
        near, wide = deployment.hardware.island(alone.gpus), deployment.hardware.island(plan.gpus)
    except TopologyError:
        return False
    return near == min(wide, alone.gpus)


def turned(deployment: Deployment, plan: Plan) -> Plan | None:
    """Nest the two ways to cut a sequence the other way round, where a plan spans hosts.

    On one host the seats of a machine's GPUs do as much.
    """
    names = [name for name, _ in plan.axes]
    inner = next((names.index(name) for name in ("ring", "allgather_kv") if name in names), None)
    if "ulysses" not in names or inner is None or not _spans(deployment, plan.gpus):
        return None
    axes, outer = list(plan.axes), names.index("ulysses")
    axes[outer], axes[inner] = axes[inner], axes[outer]
    return Plan(tuple(axes), plan.vae)


def _spans(deployment: Deployment, gpus: int) -> bool:
    try:
        if deployment.subset is not None:
            return deployment.subset.on(gpus).hosts > 1
        return deployment.hardware.island(gpus, deployment.nodes) < gpus
    except TopologyError:
        return False


def replaceable(plan: Plan, passes: int, seen: Mapping[Plan, Outcome]) -> bool:
    """Whether a pipeline can give way to replicas: a plan with fewer stages is known to fit.

    Parameters
    ----------
    passes : forwards a step. seen : what became of the plans with fewer stages.
    """
    if plan.degree("pp") == 1:
        return False
    fewer = [unpiped(plan, passes), *shallower(plan)]
    return any(isinstance(seen.get(one), PlanEstimate) for one in fewer if one is not None)
