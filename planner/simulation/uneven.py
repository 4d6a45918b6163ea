"""What some ranks do otherwise than the usual one: GPUs of another kind, causal tokens in order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.expert_routing import parts_apart
from costmodels.price import Target
from costmodels.program import Attention, Loop, Op, Span, Weight
from costmodels.tables import NO_PROFILE, SHIPPED_PROFILE, profile_for
from planner.lowering.work import share_of
from planner.request.plan import Plan
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.search.plan_memory import usable_bytes
from planner.simulation.disturbances import USUAL_ORDER, Disturbances
from planner.simulation.links import Wiring
from planner.simulation.sequences import Places
from planner.simulation.tasks import PlacedLoop
from planner.strategies.sequence import is_causal
from topology.base import InputError, format_bytes
from topology.base.values import dataclass
from topology.catalogue import find_hardware

CUT_AXES: Final = ("ring", "ring_q", "allgather_kv")
"""Axes whose ranks hold a part of the tokens each while they attend."""
MOST_PARTS: Final = 32
"""Parts of experts up to which each has rows of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of causal tokens, along an axis of a plan; `index` of a rank along it."""

    name: str
    axis: str
    degree: int
    index: int

    def of(self, loop: Loop) -> Loop:
        """Let the attention of a program see as much as its rank does; the same if it has none."""
        body = [
            self.of(item) if isinstance(item, Loop) else self._as_seen(item) for item in loop.body
        ]
        same = all(new_item is old_item for new_item, old_item in zip(body, loop.body, strict=True))
        return loop if same else replace(loop, body=tuple(body))

    def _as_seen(self, op: Op) -> Op:
        if not isinstance(op, Attention) or not op.causal or op.window:
            return op
        span = next((candidate for candidate in op.query_spans if self._is_cut(candidate)), None)
        if span is None:
            return op
        rank_pairs = list(self._rank_pairs(op))
        seen_shares = [
            share_seen(self.name, *ranks, int(np.max(span.rows))) for ranks in rank_pairs
        ]
        new_share = 2.0 * (
            1.0 - op.pairs
        )  # part of the keys that came with the queries; others are seen
        return replace(op, pairs=1.0 - new_share * (1.0 - sum(seen_shares) / len(seen_shares)))

    def _is_cut(self, span: Span) -> bool:
        return span.zigzag and self.axis in dict(span.axes)

    def _rank_pairs(self, op: Attention) -> Iterator[tuple[int, int]]:
        """Give the ranks whose queries and keys an attention has."""
        if op.turn is None:
            yield from ((self.index, other) for other in range(self.degree))
        else:
            other = (self.index - op.turn[1]) % self.degree
            yield (other, self.index) if op.asks else (self.index, other)


def cuts(plan: Plan) -> str:
    """Name the axis of a plan whose ranks hold a part of the tokens each; empty where none does."""
    return next((axis for axis in CUT_AXES if plan.degree(axis) > 1), "")


def share_seen(order: str, asking: int, answering: int, rows: int) -> float:
    """Count the part of the pairs of `rows` queries and keys of two ranks that is not masked.

    Of N ranks each has neighbouring tokens (``plain``), the i-th piece of 2 N from either end
    (``zigzag``), or every N-th token (``striped``).

    >>> [share_seen("plain", asking, 0, 4) for asking in (0, 1)]
    [0.625, 1.0]
    >>> [share_seen("striped", 0, answering, 4) for answering in (0, 1)]
    [0.625, 0.375]
    """
    diagonal = 0.5 + 0.5 / rows
    if order == "plain":
        return diagonal if asking == answering else float(asking > answering)
    if order == "striped":
        return diagonal if asking >= answering else 1.0 - diagonal
    return diagonal if asking == answering else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTargets:
    """What the work of every rank is priced on, and the order of its tokens, if not as usual."""

    targets: Sequence[Target]
    order: Order | None = None

    def works(
        self, stage: Sequence[Places], numbers: Sequence[int], plan: Plan
    ) -> tuple[list[PlacedLoop], list[int]]:
        """List the works of a stage that differ, and of every rank the number of its own.

        stage : at places of a pipeline, one for all or each its own, for all rows that differ.
        numbers : which of these a rank has.
        """
        works: list[PlacedLoop] = []
        work_numbers: dict[tuple[int, int, int], int] = {}
        ordered_loops: dict[tuple[int, int], Loop] = {}
        work_of = []
        for rank, (target, number) in enumerate(zip(self.targets, numbers, strict=True)):
            indices, places = plan.index_of(rank), stage[number]
            place = indices.get("pp", 0)
            loop = places[place if len(places) > 1 else 0]
            if self.order is not None:
                index = indices.get(self.order.axis, 0)
                if (id(loop), index) not in ordered_loops:
                    ordered_loops[id(loop), index] = replace(self.order, index=index).of(loop)
                loop = ordered_loops[id(loop), index]
            key = place, id(loop), id(target)
            if key not in work_numbers:
                work_numbers[key] = len(works)
                works.append(PlacedLoop(loop=loop, place=place, target=target))
            work_of.append(work_numbers[key])
        return works, work_of


def targets_of(
    scenario: Scenario,
    estimate: PlanEstimate,
    wiring: Wiring,
    target: Target,
    disturbed: Disturbances,
) -> RankTargets:
    """Give what the work of every rank is priced on: its own kind of GPU, where they are mixed.

    disturbed : kinds of some ranks of each replica, where others have those of the machine.

    Raises `InputError` if there is no such kind, the plan cannot run on it, or it cuts no tokens
    that an order is of.
    """
    plan = wiring.plan
    replica_gpus = plan.gpus // plan.degree("dp")
    kind_of = dict(enumerate(wiring.kinds)) if len(set(wiring.kinds)) > 1 else {}
    for rank, kind in disturbed.mixed.items():
        _check_kind(scenario, estimate, rank, kind)
        kind_of |= {replica * replica_gpus + rank: kind for replica in range(plan.degree("dp"))}
    kind_targets = {kind: _target_on(scenario, target, kind) for kind in {*kind_of.values()}}
    expert_parts = _expert_parts(scenario, estimate.plan, target)
    rank_targets = [
        kind_targets[kind_of[rank]] if rank in kind_of else target for rank in range(plan.gpus)
    ]
    target_parts = [
        (kind_target, expert_parts[rank % replica_gpus])
        for rank, kind_target in enumerate(rank_targets)
    ]
    part_targets = {
        (id(kind_target), part): replace(kind_target, part=part)
        for kind_target, part in target_parts
    }
    targets = [part_targets[id(kind_target), part] for kind_target, part in target_parts]
    return RankTargets(
        targets=targets, order=_token_order(scenario, estimate.plan, disturbed.order)
    )


def _expert_parts(scenario: Scenario, plan: Plan, target: Target) -> Sequence[int | None]:
    """Say which part of the experts each rank of a replica has, if it is said how these are chosen.

    Of very many parts each counts as the busiest.
    """
    replica = plan.without("dp")
    if not target.distribution or not 1 < plan.ep <= MOST_PARTS:
        return [None] * replica.gpus
    share = share_of(scenario.workload, plan)
    experts = Weight(
        name="experts", rows=(), columns=(), degree=share.expert_cut, axes=share.expert_ranks
    )
    copied = any(tower.ffn is not None and tower.ffn.copies for tower in scenario.model.towers)
    part_rows = parts_apart(target.distribution, plan.ep, copied=copied)
    return [part_rows[experts.place(replica.index_of(rank))[0]] for rank in range(replica.gpus)]


def _target_on(scenario: Scenario, target: Target, kind: str) -> Target:
    """Price on another GPU, by the profile that ships for it where profiles are taken."""
    device = find_hardware(kind).device
    if device == target.device:
        return target
    unprofiled = scenario.request.profile == NO_PROFILE
    return replace(
        target,
        device=device,
        profile=profile_for(kind, NO_PROFILE if unprofiled else SHIPPED_PROFILE),
    )


def _check_kind(scenario: Scenario, estimate: PlanEstimate, rank: int, kind: str) -> None:
    """Refuse a GPU that has no tensor cores for the precision, or too little memory."""
    hardware = find_hardware(kind)
    hardware.device.needed_peak(scenario.deployment.precision)
    deployment = replace(scenario.deployment, hardware=hardware)
    usable = usable_bytes(replace(scenario, deployment=deployment))
    if estimate.memory_bytes > usable:
        needed, available = map(format_bytes, (estimate.memory_bytes, usable))
        raise InputError(f"mixed: rank {rank} needs {needed}, and {kind} has {available}")


def _token_order(scenario: Scenario, plan: Plan, name: str) -> Order | None:
    """Give the order of the tokens of rank 0; None of the usual one.

    Raises `InputError` if the plan cuts no sequence that is attended causally.
    """
    if name == USUAL_ORDER:
        return None
    axis = cuts(plan)
    if not axis:
        raise InputError(f"order: got {name} for {plan}, wanted a plan with {', '.join(CUT_AXES)}")
    if not is_causal(scenario.model):
        raise InputError(
            f"order: got {name} for {scenario.model.name}, wanted a model that attends causally"
        )
    return Order(name=name, axis=axis, degree=plan.degree(axis), index=0)
