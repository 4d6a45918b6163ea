"""Many requests at once: one plan lowered with arrays for sizes, priced in one go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.program.ops import Program, Real, Size
from costmodels.tables import communicator_bytes
from planner.engines.deployment import Deployment
from planner.lowering import share_of
from planner.models.architecture import Model
from planner.models.tokens import lengths, line_of
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.search.evaluate import (
    caches_of,
    costs_of,
    decode_bytes,
    every_place,
    fixed_bytes,
    running,
)
from planner.search.plans import objections
from planner.strategies.sequence import uneven

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Latency and peak memory of every plan (rows) for every request (columns).

    Where a plan is illegal both are NaN.
    """

    plans: tuple[Plan, ...]
    latency_s: Column
    memory_bytes: Column


def sweep(model: Model, base: Workload, plans: Sequence[Plan], deployment: Deployment) -> Sweep:
    """Price `plans` for the requests of `base`, whose sizes are arrays of one shape."""
    count = int(np.size(next(iter(dict(base.tokens).values()))))
    rows = [_row(model, base, plan, deployment, count) for plan in plans]
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
    found = lengths(model, height, width, frames)
    tokens = {name: np.broadcast_to(value, height.shape) for name, value in found.items()}
    return replace(
        base,
        tokens=tuple(tokens.items()),
        pixels=height * width * frames,
        frames=frames,
        line=line_of(model.latent, width) if model.latent else 0,
        steps=steps,
    )


def _row(
    model: Model, base: Workload, plan: Plan, deployment: Deployment, count: int
) -> tuple[Column, Column]:
    nothing = np.full(count, np.nan)
    grain = share_of(base, plan).grain
    fine = np.broadcast_to(~uneven(model, base, grain), count)
    if not fine.any():
        return nothing, nothing
    work = _chosen(base, fine)
    first = _chosen(base, np.arange(count) == int(np.argmax(fine)))
    if any(objections(model, first, plan, plan.gpus)):
        return nothing, nothing
    latency, held = nothing.copy(), nothing.copy()
    latency[fine], held[fine] = _priced(model, work, plan, deployment)
    return latency, held


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
    )


def _priced(
    model: Model, work: Workload, plan: Plan, deployment: Deployment
) -> tuple[Column, Column]:
    places = every_place(model, work, plan)
    costs = costs_of(places, work, deployment.target(model, plan, work.precision))
    latency = sum((one.time for one in costs.values()), start=np.zeros(()))
    decode = decode_bytes(model, work, plan.degree("dp"))
    held = [_held(model, work, program, deployment, decode) for program in places]
    return np.asarray(latency, float), np.asarray(reduce(np.maximum, held), float)


def _held(
    model: Model, work: Workload, program: Program, deployment: Deployment, decode: Real
) -> Real:
    """Peak bytes of one place of a pipeline."""
    stages = running(program)
    widest = reduce(np.maximum, map(memory.activations, stages), decode)
    buffers = memory.messages(stages) * communicator_bytes(deployment.profile)
    fixed = fixed_bytes(model, program, deployment, offload=False)
    return fixed + buffers + widest + caches_of(model, work, stages)
