"""The rows of a part of a sweep: all sizes of a plan are priced in one go."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.runners.refusal import refuser
from planner.scenario.scenario import Scenario, resolve, workload_of
from planner.search.batched import Columns, Programs, Sweep, sweep
from planner.search.evaluate import throughput
from planner.search.plan_memory import usable_bytes
from planner.search.plans import illegal_axes, objections, plans
from planner.strategies import parse_plan
from planner.sweeping.questions import LANGUAGE, PICTURE, Portion
from topology.base import InputError, ModelError
from topology.base.values import dataclass

Row = dict[str, object]
"""What was asked, and what became of one plan; `reason` says why it cannot run."""
SHARING_LIMIT: Final = 256
"""Requests of a portion above which nothing is kept for others."""
_CACHE_SIZE: Final = 16
"""Kinds of hardware, and numbers of GPUs, of which questions are kept."""
STACKED_FIELDS = ("steps", "pixels", "frames", "line", "output_tokens")
"""Fields of a workload that are numbers of one request."""


def rows_of(portion: Portion) -> list[Row]:
    """Answer the questions of a portion.

    Raises `InputError` if a name or a size cannot be right. Numbers of GPUs that some hardware
    cannot have are rows with a reason.
    """
    sizes, shared = list(portion.sizes()), _SharedParts()
    return [
        row
        for name in portion.asked.hardware
        for row in _hardware_rows(portion, name, sizes, shared)
    ]


@dataclass(frozen=True, slots=True)
class _SharedParts:
    """What portions of a sweep of the same requests have in common, some of it by hardware."""

    programs: Programs = field(default_factory=Programs)
    columns: dict[Scenario, Columns] = field(default_factory=dict)


def _hardware_rows(
    portion: Portion, hardware: str, sizes: Sequence[Mapping[str, int]], shared: _SharedParts
) -> Iterator[Row]:
    try:
        scenario = resolve(portion.request(hardware, sizes[0]))
    except InputError:
        raise
    except ModelError as error:  # of so many GPUs there are none in this hardware
        yield from (
            _asked_row(portion, hardware, size_values, reason=str(error)) for size_values in sizes
        )
        return
    any_gpus = _any_gpu_scenario(scenario)
    questions, stacked = _stacked_questions(
        any_gpus, tuple(tuple(size_values.items()) for size_values in sizes)
    )
    workloads = tuple(work for _, work in questions)
    plans_to_price = _plans_to_price(portion, scenario.model, workloads)
    shared_parts = (
        _shared_by_workloads(scenario.model)[workloads]
        if len(workloads) <= SHARING_LIMIT
        else shared
    )
    columns = shared_parts.columns.setdefault(any_gpus, shared_parts.programs.on_hardware())
    prices = sweep(
        replace(scenario, workload=stacked), plans_to_price, shared_parts.programs, columns
    )
    refuses = refuser(scenario)
    refused = {plan: refuses(plan) for plan in prices.plans}
    for position, (usual_sizes, work) in enumerate(questions):
        one_request = replace(scenario, workload=work)
        yield from _request_rows(portion, one_request, usual_sizes, prices, position, refused)


@lru_cache(maxsize=_CACHE_SIZE)
def _stacked_questions(
    scenario: Scenario, sizes: tuple[tuple[tuple[str, int], ...], ...]
) -> tuple[list[tuple[dict[str, int], Workload]], Workload]:
    """Give the requests of a portion, each as sizes by name and as what it asks; and all as one."""
    names = LANGUAGE if scenario.model.kind == "decoder" else PICTURE
    precision, habits = scenario.workload.precision, scenario.deployment.habits
    questions = []
    for combination in sizes:
        request = replace(scenario.request, precision=precision, **dict(combination))  # type: ignore[arg-type]  # sizes
        workload = workload_of(scenario.model, request, habits)
        resolved_request = replace(scenario, request=request, workload=workload).resolved
        questions.append(({name: getattr(resolved_request, name) for name in names}, workload))
    return questions, _stacked_workload([workload for _, workload in questions])


def _any_gpu_scenario(scenario: Scenario) -> Scenario:
    """Leave out the number of GPUs, unless hosts are named that hold them, or a machine."""
    if scenario.deployment.nodes or scenario.deployment.subset is not None:
        return scenario
    one_gpu = replace(scenario.request, gpus=1)
    return replace(scenario, request=one_gpu, deployment=scenario.deployment.on(1))


@lru_cache(maxsize=1)
def _shared_by_workloads(model: Model) -> dict[tuple[Workload, ...], _SharedParts]:  # noqa: ARG001  # kept by
    """Give what portions of one model that a process does have in common, by their requests."""
    return defaultdict(_SharedParts)


def _stacked_workload(works: Sequence[Workload]) -> Workload:
    """Put the sizes of several requests of one model into arrays."""
    streams = [name for name, _ in works[0].tokens]
    tokens = tuple((name, np.array([int(w.length(name)) for w in works])) for name in streams)
    fields = {name: np.array([int(getattr(w, name)) for w in works]) for name in STACKED_FIELDS}
    return replace(works[0], tokens=tokens, **fields)  # type: ignore[arg-type]  # sizes may be arrays


def _plans_to_price(portion: Portion, model: Model, works: tuple[Workload, ...]) -> Sequence[Plan]:
    """List the plans to price; of all those that no size can have are left out."""
    if portion.asked.plans[0] not in ("all", "best"):
        named_plans = map(parse_plan, portion.asked.plans)
        return [plan for plan in named_plans if plan.gpus == portion.gpus]
    return _possible_plans(model, works, portion.gpus)


@lru_cache(maxsize=_CACHE_SIZE)
def _possible_plans(model: Model, works: tuple[Workload, ...], gpus: int) -> Sequence[Plan]:
    """List the plans that some size can have."""
    barred_axes = [set(illegal_axes(model, work, gpus)) for work in works]
    return plans(model, gpus, set.intersection(*barred_axes))


def _request_rows(  # one request, and where its answers stand
    portion: Portion,
    scenario: Scenario,
    sizes: Mapping[str, int],
    prices: Sweep,
    position: int,
    refused: Mapping[Plan, str],
) -> Iterator[Row]:
    """Give the rows of one request: of the plans that were named, all legal ones, or the best."""
    usable, hardware = usable_bytes(scenario), scenario.deployment.hardware.name
    plans_named = portion.asked.plans[0] not in ("all", "best")
    rows = []
    for number, plan in enumerate(prices.plans):
        latency, memory_bytes = (
            prices.latency_s[number][position],
            prices.memory_bytes[number][position],
        )
        if np.isnan(latency):
            if plans_named:
                objection_texts = objections(scenario.model, scenario.workload, plan, portion.gpus)
                rows.append(
                    _asked_row(
                        portion, hardware, sizes, plan=plan, reason="; ".join(objection_texts)
                    )
                )
            continue
        shortage = (
            f"needs {memory_bytes:.0f} B a GPU of {usable:.0f}" if memory_bytes > usable else ""
        )
        rows.append({
            **_asked_row(portion, hardware, sizes, plan=plan, reason=shortage or refused[plan]),
            "runtime": scenario.deployment.runtime.name,
            "precision": scenario.workload.precision,
            "latency_s": float(latency),
            "throughput_per_s": throughput(scenario.workload, plan, float(latency)),
            "memory_bytes": int(memory_bytes),
            "fits": not shortage,
            "runs": not refused[plan],
        })  # fmt: skip
    if portion.asked.plans != ("best",):
        yield from rows
        return
    usable_rows = [row for row in rows if row["fits"] and row["runs"]]
    no_plan_row = _asked_row(
        portion, hardware, sizes, reason="no plan is legal, fits and can be run"
    )
    yield min(usable_rows, key=lambda row: float(str(row["latency_s"])), default=no_plan_row)


def _asked_row(
    portion: Portion,
    hardware: str,
    sizes: Mapping[str, int],
    *,
    plan: Plan | None = None,
    reason: str = "",
) -> Row:
    """Write down what was asked; what became of it is to be filled in."""
    request = portion.asked.request
    return {
        "model": portion.model,
        "hardware": hardware,
        "gpus": portion.gpus,
        **sizes,
        "batch": request.batch,
        "precision": request.precision or "",
        "runtime": request.runtime,
        "engine": request.engine,
        "plan": "" if plan is None else str(plan),
        "latency_s": None,
        "throughput_per_s": None,
        "memory_bytes": None,
        "fits": False,
        "runs": False,
        "reason": reason,
    }
