"""Many requests at once: one plan lowered with arrays for sizes, priced in one go."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.price import Contents, FoundPrices, Target
from costmodels.program import Real, Size
from planner.lowering import cuts_of_requests, share_of
from planner.models import Model, lengths, line_of
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.scenario.scenario import Scenario
from planner.search.evaluate import Lowered, costs_of, lowered, of_one_replica
from planner.search.plan_memory import as_run
from planner.search.plans import objections
from planner.strategies import uaa
from planner.strategies.sequence import uneven
from topology.base.values import dataclass
from topology.catalogue import Fabric

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Latency and peak memory of every plan (rows) for every request (columns).

    Where a plan is illegal both are NaN.
    """

    plans: tuple[Plan, ...]
    latency_s: Column
    memory_bytes: Column


@dataclass(frozen=True, slots=True)
class Programs:
    """What plans without replicas are lowered to for the requests of a sweep, by their batch.

    A pipeline is cut for each request, and those with one cut have a program.
    """

    lowered: dict[tuple[Plan, Size], Sequence[tuple[Flags, Lowered]]] = field(default_factory=dict)
    bodies: memory.Bodies = field(default_factory=memory.Bodies)
    contents: Contents = field(default_factory=Contents)

    def on_hardware(self) -> "Columns":
        """Make room for what is found of them on some hardware."""
        return Columns(FoundPrices(self.contents))


@dataclass(frozen=True, slots=True)
class Columns:
    """What was found on some hardware: prices, and columns by one replica, its batch and links."""

    prices: FoundPrices
    found: dict[tuple[Plan, Size, tuple[Fabric, ...]], tuple[Column, Column]] = field(
        default_factory=dict
    )


def sweep(
    scenario: Scenario,
    plans: Sequence[Plan],
    programs: Programs | None = None,
    columns: Columns | None = None,
) -> Sweep:
    """Price `plans` for the requests of a scenario's workload, whose sizes have one shape.

    programs : of the same requests on other hardware too. columns : of them on this hardware, on
    other numbers of GPUs too. Both are used, and added to.
    """
    programs = programs or Programs()
    columns = columns or programs.on_hardware()
    rows = [_row(scenario, plan, programs, columns) for plan in plans]
    return Sweep(
        plans=tuple(plans),
        latency_s=np.array([latency for latency, _ in rows]),
        memory_bytes=np.array([peak_bytes for _, peak_bytes in rows]),
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


def _count(workload: Workload) -> int:
    return int(np.size(workload.tokens[0][1]))


def _row(
    scenario: Scenario, plan: Plan, programs: Programs, columns: Columns
) -> tuple[Column, Column]:
    replica_scenario, replica_plan = of_one_replica(scenario, plan)
    links = scenario.deployment.fabrics(plan)
    key = (
        replica_plan,
        replica_scenario.workload.batch,
        tuple(links[axis] for axis, _ in replica_plan.axes),
    )
    if key not in columns.found:
        columns.found[key] = _columns(
            replica_scenario, plan, replica_plan, programs, columns.prices
        )
    return columns.found[key]


def _columns(
    scenario: Scenario, plan: Plan, replica_plan: Plan, programs: Programs, prices: FoundPrices
) -> tuple[Column, Column]:
    """Price one replica of a plan."""
    base = scenario.workload
    latency, peak_bytes = np.full((2, _count(base)), np.nan)
    legal = _legal(scenario, replica_plan)
    if not legal.any():
        return latency, peak_bytes
    key = replica_plan, base.batch
    if key not in programs.lowered:
        programs.lowered[key] = _lowered(scenario, replica_plan, legal, programs.bodies)
    target = scenario.deployment.target(scenario.model, plan)
    for requests, program in programs.lowered[key]:
        seconds, size = _priced(scenario, program, target, prices, requests)
        latency[requests] = np.broadcast_to(seconds, legal.shape)[requests]
        peak_bytes[requests] = np.broadcast_to(size, legal.shape)[requests]
    return latency, peak_bytes


def _legal(scenario: Scenario, plan: Plan) -> Flags:
    """Tell for which requests a plan is legal."""
    model, base = scenario.model, scenario.workload
    count = _count(base)
    padded = plan.degree(uaa.AXIS) > 1
    uneven_flags = uneven(model, base, share_of(base, plan).grain, padded=padded)
    legal = np.broadcast_to(~uneven_flags, count)
    if legal.any():
        first_legal = int(np.argmax(legal))
        sample = _some_requests(base, slice(first_legal, first_legal + 1))
        legal = legal & (not any(objections(model, sample, plan, plan.gpus)))
    return legal


def _lowered(
    scenario: Scenario, plan: Plan, legal: Flags, bodies: memory.Bodies
) -> list[tuple[Flags, Lowered]]:
    """Lower a plan for the requests of each cut of its pipeline."""
    cuts = cuts_of_requests(scenario.model, scenario.workload, plan, legal.size)
    groups = [legal & (cuts == number) for number in np.unique(cuts[legal])]
    return [(requests, lowered(scenario, plan, bodies, requests)) for requests in groups]


def _some_requests(base: Workload, requests: slice) -> Workload:
    """Keep some requests of a sweep."""

    def kept(value: Size) -> Size:
        array = np.asarray(value)
        return cast(Size, array[requests]) if array.ndim else value

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
    scenario: Scenario, programs: Lowered, target: Target, prices: FoundPrices, requests: Flags
) -> tuple[Real, Real]:
    costs = costs_of(programs.places, scenario.workload, target, prices, requests)
    latency = sum((stage.time for stage in costs.values()), start=np.zeros(()))
    peaks = [
        _peak(as_run(scenario, program, parts, groups))
        for program, groups, parts in zip(
            programs.places, programs.groups, programs.parts, strict=True
        )
    ]
    return latency, reduce(np.maximum, peaks)


def _peak(parts: Mapping[str, Real]) -> Real:
    """Peak bytes of one place of a pipeline."""
    fixed = parts["transformer_weights"] + parts["other_weights"]
    widest = np.maximum(parts["activations"], parts["vae_decode"])
    peak: Real = fixed + widest + parts["kv"] + parts["buffers"] + parts["runtime"]
    return peak
