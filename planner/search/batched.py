"""Many requests at once: one plan lowered with arrays for sizes, priced in one go."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodels.price import FoundPrices
from costmodels.program import Real, Size
from planner.lowering import cuts_of_requests, share_of
from planner.models import Model, lengths, line_of
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.scenario import Scenario
from planner.search.evaluate import Lowered, costs_of, lowered
from planner.search.plan_memory import as_run
from planner.search.plans import objections, replica
from planner.strategies.sequence import uneven
from topology.base.values import dataclass

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Latency and peak memory of every plan (rows) for every request (columns).

    Where a plan is illegal both are NaN.
    """

    plans: tuple[Plan, ...]
    latency_s: Column
    memory_bytes: Column


Programs = dict[Plan, list[tuple[NDArray[np.bool_], Lowered]]]
"""Plans that are lowered for the requests of a sweep, whatever they run on.

A pipeline is cut for each request, and those with one cut are one program.
"""


Replicas = dict[Plan, tuple[Column, Column]]
"""Latency and peak memory of plans; others are replicas of them, with requests of their own."""


def sweep(
    scenario: Scenario,
    plans: Sequence[Plan],
    programs: Programs | None = None,
    replicas: Replicas | None = None,
) -> Sweep:
    """Price `plans` for the requests of a scenario's workload, whose sizes have one shape.

    programs : of the same workload on other hardware. replicas : on this hardware, on other
    numbers of GPUs too. Both are used, and added to.
    """
    programs = {} if programs is None else programs
    replicas = {} if replicas is None else replicas
    prices = FoundPrices()
    single = isinstance(scenario.workload.batch, int) and scenario.workload.batch == 1

    def row(plan: Plan) -> tuple[Column, Column]:
        one = (replica(scenario.deployment, plan) if single else None) or plan
        if one not in replicas:
            replicas[one] = _row(scenario.on(one.gpus), one, programs, prices)
        return replicas[one]

    rows = [row(plan) for plan in plans]
    return Sweep(
        plans=tuple(plans),
        latency_s=np.array([latency for latency, _ in rows]),
        memory_bytes=np.array([held for _, held in rows]),
    )


def sizes(
    model: Model, base: Workload, height: Size, width: Size, frames: Size, steps: Size
) -> Workload:
    """Return `base` with arrays of sizes in place of one."""
    height, width, frames, steps = np.broadcast_arrays(height, width, frames, steps)
    streams = lengths(model, height, width, frames)
    tokens = {name: np.broadcast_to(value, height.shape) for name, value in streams.items()}
    return replace(
        base,
        tokens=tuple(tokens.items()),
        pixels=height * width * frames,
        frames=frames,
        line=line_of(model.latent, width) if model.latent else 0,
        steps=steps,
    )


def _row(
    scenario: Scenario, plan: Plan, programs: Programs, prices: FoundPrices
) -> tuple[Column, Column]:
    model, base = scenario.model, scenario.workload
    count = int(np.size(next(iter(dict(base.tokens).values()))))
    nothing = np.full(count, np.nan)
    grain = share_of(base, plan).grain
    fine = np.broadcast_to(~uneven(model, base, grain), count)
    if not fine.any():
        return nothing, nothing
    first = _chosen(base, np.arange(count) == int(np.argmax(fine)))
    if any(objections(model, first, plan, plan.gpus)):
        return nothing, nothing
    latency, held = nothing.copy(), nothing.copy()
    legal = replace(scenario, workload=_chosen(base, fine))
    if plan not in programs:
        programs[plan] = _lowered(legal, plan, int(fine.sum()))
    places = np.flatnonzero(fine)
    for which, program in programs[plan]:
        part = replace(legal, workload=_chosen(legal.workload, which))
        latency[places[which]], held[places[which]] = _priced(part, plan, program, prices)
    return latency, held


def _lowered(scenario: Scenario, plan: Plan, count: int) -> list[tuple[NDArray[np.bool_], Lowered]]:
    """Lower a plan for the requests of each cut of its pipeline."""
    cuts = cuts_of_requests(scenario.model, scenario.workload, plan, count)
    chosen = [cuts == number for number in range(int(cuts.max()) + 1)]
    parts = [replace(scenario, workload=_chosen(scenario.workload, which)) for which in chosen]
    return [(which, lowered(part, plan)) for which, part in zip(chosen, parts, strict=True)]


def _chosen(base: Workload, which: NDArray[np.bool_]) -> Workload:
    """Keep some requests of a sweep."""

    def kept(value: Size) -> Size:
        array = np.asarray(value)
        return cast(Size, array[which]) if array.ndim else value

    return replace(
        base,
        tokens=tuple((name, kept(value)) for name, value in base.tokens),
        steps=kept(base.steps),
        pixels=kept(base.pixels),
        frames=kept(base.frames),
        line=kept(base.line),
        output_tokens=kept(base.output_tokens),
    )


def _priced(
    scenario: Scenario, plan: Plan, programs: Lowered, prices: FoundPrices
) -> tuple[Column, Column]:
    deployment = scenario.deployment
    target = deployment.target(scenario.model, plan)
    costs = costs_of(programs.places, scenario.workload, target, prices)
    latency = sum((stage.time for stage in costs.values()), start=np.zeros(()))
    held = [
        _peak(as_run(scenario, program, parts, groups))
        for program, groups, parts in zip(
            programs.places, programs.groups, programs.parts, strict=True
        )
    ]
    return np.asarray(latency, float), np.asarray(reduce(np.maximum, held), float)


def _peak(parts: Mapping[str, Real]) -> Real:
    """Peak bytes of one place of a pipeline."""
    fixed = parts["transformer_weights"] + parts["other_weights"]
    widest = np.maximum(parts["activations"], parts["vae_decode"])
    peak: Real = fixed + widest + parts["kv"] + parts["buffers"] + parts["runtime"]
    return peak
