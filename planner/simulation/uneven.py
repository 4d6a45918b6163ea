"""What some ranks do otherwise than the usual one: GPUs of another kind, causal tokens in order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.expert_routing import parts_apart
from costmodels.price import Target
from costmodels.program import Attention, Loop, Op, Span, Weight
from costmodels.tables import NONE, SHIPPED, profile_for
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

CUT: Final = ("ring", "ring_q", "allgather_kv")
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
        body = [self.of(item) if isinstance(item, Loop) else self._seen(item) for item in loop.body]
        same = all(new is old for new, old in zip(body, loop.body, strict=True))
        return loop if same else replace(loop, body=tuple(body))

    def _seen(self, op: Op) -> Op:
        if not isinstance(op, Attention) or not op.causal or op.window:
            return op
        span = next((one for one in op.query_spans if self._cuts(one)), None)
        if span is None:
            return op
        met = list(self._met(op))
        seen = [share_seen(self.name, *ranks, int(np.max(span.rows))) for ranks in met]
        new = 2.0 * (1.0 - op.pairs)  # part of the keys that came with the queries; others are seen
        return replace(op, pairs=1.0 - new * (1.0 - sum(seen) / len(seen)))

    def _cuts(self, span: Span) -> bool:
        return span.zigzag and self.axis in dict(span.axes)

    def _met(self, op: Attention) -> Iterator[tuple[int, int]]:
        """Give the ranks whose queries and keys an attention has."""
        if op.turn is None:
            yield from ((self.index, other) for other in range(self.degree))
        else:
            other = (self.index - op.turn[1]) % self.degree
            yield (other, self.index) if op.asks else (self.index, other)


def cuts(plan: Plan) -> str:
    """Name the axis of a plan whose ranks hold a part of the tokens each; empty where none does."""
    return next((axis for axis in CUT if plan.degree(axis) > 1), "")


def share_seen(order: str, asking: int, answering: int, rows: int) -> float:
    """Count the part of the pairs of `rows` queries and keys of two ranks that is not masked.

    Of N ranks each has neighbouring tokens (``plain``), the i-th piece of 2 N from either end
    (``zigzag``), or every N-th token (``striped``).

    >>> [share_seen("plain", asking, 0, 4) for asking in (0, 1)]
    [0.625, 1.0]
    >>> [share_seen("striped", 0, answering, 4) for answering in (0, 1)]
    [0.625, 0.375]
    """
    same = 0.5 + 0.5 / rows
    if order == "plain":
        return same if asking == answering else float(asking > answering)
    if order == "striped":
        return same if asking >= answering else 1.0 - same
    return same if asking == answering else 0.5


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
        found: dict[tuple[int, int, int], int] = {}
        ordered: dict[tuple[int, int], Loop] = {}
        work_of = []
        for rank, (target, number) in enumerate(zip(self.targets, numbers, strict=True)):
            at, places = plan.index_of(rank), stage[number]
            place = at.get("pp", 0)
            loop = places[place if len(places) > 1 else 0]
            if self.order is not None:
                index = at.get(self.order.axis, 0)
                if (id(loop), index) not in ordered:
                    ordered[id(loop), index] = replace(self.order, index=index).of(loop)
                loop = ordered[id(loop), index]
            key = place, id(loop), id(target)
            if key not in found:
                found[key] = len(works)
                works.append(PlacedLoop(loop=loop, place=place, target=target))
            work_of.append(found[key])
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
    own = plan.gpus // plan.degree("dp")
    found = dict(enumerate(wiring.kinds)) if len(set(wiring.kinds)) > 1 else {}
    for rank, kind in disturbed.mixed.items():
        _check_kind(scenario, estimate, rank, kind)
        found |= {replica * own + rank: kind for replica in range(plan.degree("dp"))}
    priced = {kind: _on(scenario, target, kind) for kind in {*found.values()}}
    parts = _parts_of(scenario, estimate.plan, target)
    usual = [priced[found[rank]] if rank in found else target for rank in range(plan.gpus)]
    asked = [(one, parts[rank % own]) for rank, one in enumerate(usual)]
    made = {(id(one), part): replace(one, part=part) for one, part in asked}
    targets = [made[id(one), part] for one, part in asked]
    return RankTargets(targets=targets, order=_order_of(scenario, estimate.plan, disturbed.order))


def _parts_of(scenario: Scenario, plan: Plan, target: Target) -> Sequence[int | None]:
    """Say which part of the experts each rank of a replica has, if it is said how these are chosen.

    Of very many parts each counts as the busiest.
    """
    replica = plan.without("dp")
    if not target.distribution or not 1 < plan.ep <= MOST_PARTS:
        return [None] * replica.gpus
    share = share_of(scenario.workload, plan)
    held = Weight(
        name="experts", rows=(), columns=(), degree=share.expert_cut, axes=share.expert_ranks
    )
    copied = any(tower.ffn is not None and tower.ffn.copies for tower in scenario.model.towers)
    apart = parts_apart(target.distribution, plan.ep, copied=copied)
    return [apart[held.place(replica.index_of(rank))[0]] for rank in range(replica.gpus)]


def _on(scenario: Scenario, target: Target, kind: str) -> Target:
    """Price on another GPU, by the profile that ships for it where profiles are taken."""
    device = find_hardware(kind).device
    if device == target.device:
        return target
    none = scenario.request.profile == NONE
    return replace(target, device=device, profile=profile_for(kind, NONE if none else SHIPPED))


def _check_kind(scenario: Scenario, estimate: PlanEstimate, rank: int, kind: str) -> None:
    """Refuse a GPU that has no tensor cores for the precision, or too little memory."""
    hardware = find_hardware(kind)
    hardware.device.needed_peak(scenario.deployment.precision)
    deployment = replace(scenario.deployment, hardware=hardware)
    usable = usable_bytes(replace(scenario, deployment=deployment))
    if estimate.memory_bytes > usable:
        needed, held = map(format_bytes, (estimate.memory_bytes, usable))
        raise InputError(f"mixed: rank {rank} needs {needed}, and {kind} has {held}")


def _order_of(scenario: Scenario, plan: Plan, name: str) -> Order | None:
    """Give the order of the tokens of rank 0; None of the usual one.

    Raises `InputError` if the plan cuts no sequence that is attended causally.
    """
    if name == USUAL_ORDER:
        return None
    axis = cuts(plan)
    if not axis:
        raise InputError(f"order: got {name} for {plan}, wanted a plan with {', '.join(CUT)}")
    if not is_causal(scenario.model):
        raise InputError(
            f"order: got {name} for {scenario.model.name}, wanted a model that attends causally"
        )
    return Order(name=name, axis=axis, degree=plan.degree(axis), index=0)
