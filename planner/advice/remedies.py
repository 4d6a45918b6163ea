"""What would make a model fit: the least change first."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Final

import numpy as np

from costmodels.formats import FORMATS
from planner.lowering import lower
from planner.models import unsupported
from planner.request.plan import Plan, nearest
from planner.request.request import Request
from planner.runners.refusal import refuser
from planner.runners.runners import Contender, compare, runners
from planner.scenario.scenario import Scenario, workload_of
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import Shared, price
from planner.search.judging import estimates, judge
from planner.search.plan_memory import (
    decode_bytes,
    encoder_bytes,
    fixed_parts,
    memory_of,
    outer_parameters,
    peak_of,
    usable_bytes,
)
from planner.search.plans import objections, plans
from planner.search.ranking import TIE, Ranking, hosts_in_words, rank
from topology.base import TopologyError, counted, format_bytes
from topology.base.values import dataclass
from topology.catalogue import Precision

MOST_WAYS: Final = 3
"""Ways that are named for the same number of GPUs."""

TRIED_SPLITS: Final = 4
"""Splits that are looked at closely for one way."""

DOUBLINGS: Final = 3
"""Larger numbers of GPUs that are tried for something that runs."""

MOST_GPUS: Final = 64
PROMPT_BLOCK: Final = 128
"""A shorter prompt has a multiple of so many tokens, and splits that cut it stay legal."""

LEGAL_TRIALS: Final = 32
"""Sizes below the largest that fits, in which one is looked for that the split can cut."""

LEAST_SHARE: Final = 0.1
"""A request is not offered with less of a size than this share of what was asked for."""

SMALLER_PRECISIONS: Final[tuple[Precision, ...]] = ("fp8", "nvfp4")
FIXED_PARTS: Final = ("transformer_weights", "other_weights", "buffers", "runtime")
"""Parts of memory that do not grow with the request."""

CHANGEABLE_FIELDS: Final = ("gpus", "offload", "precision", "frames", "input_tokens", "batch")
"""Fields of a request that a way may change."""

Way = tuple[Scenario, Plan]
"""Another request, and a split that it fits with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another request: the options that make it of the one asked, and what runs it, best first."""

    options: str
    runs: tuple[Contender, ...]

    @property
    def run(self) -> Contender:
        """What runs it best."""
        return self.runs[0]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {"options": self.options, **self.run.to_dict()}


def ways(
    scenario: Scenario, short: Sequence[PlanEstimate], *, plan: Plan | None = None, more: int = 1
) -> list[Way]:
    """List what would make a model fit: other settings, smaller requests, more GPUs.

    short : every legal split of the GPUs that were asked for, none of which fits.
    plan : the split that was asked for, to stay near it; the best are taken where there is none.
    more : so many numbers of more GPUs, where a split fits.
    """
    ordered_splits = _ordered_splits(short, scenario.request, plan)
    same_gpus = islice(
        _same_gpu_ways(scenario, ordered_splits, TRIED_SPLITS if plan is None else 1), MOST_WAYS
    )
    return [*same_gpus, *islice(_other_gpu_ways(scenario, legal=bool(short)), more)]


def alternatives(
    scenario: Scenario, ranking: Ranking, lead: PlanEstimate | None
) -> Iterator[Alternative]:
    """Yield other requests that run, where this one does not, or slower for want of memory.

    scenario : as asked, whose engine may be open. ranking : of its plans. lead : the one to run.
    """
    short_plans, time_limit = short_of(ranking), inf if lead is None else (1 - TIE) * lead.latency_s
    limits_latency = scenario.request.objective == "latency" and any(
        s.latency_s < time_limit for s in short_plans
    )
    if any(unsupported(scenario.model)) or not (limits_latency or lead is None):
        return
    refusers = [refuser(runner) for runner in runners(scenario)]
    runnable_splits = [s for s in short_plans if not all(refuses(s.plan) for refuses in refusers)]
    for other, _ in ways(scenario, runnable_splits, more=DOUBLINGS if lead is None else 0):
        runs = tuple(compare(other))
        best = runs[0].estimate if runs else None
        if best is not None and best.latency_s < time_limit:
            yield Alternative(options=_flags(scenario, other), runs=runs)
            if other.request.gpus != scenario.request.gpus:
                return


def short_of(ranking: Ranking) -> list[PlanEstimate]:
    """List the legal plans of all GPUs that do not fit."""
    gpus = ranking.request.gpus
    return [row.short for row in ranking.rejected if row.short and row.short.gpus == gpus]


def would_fit(
    scenario: Scenario,
    short: Sequence[PlanEstimate],
    plan: Plan | None = None,
    known: Sequence[Alternative] = (),
) -> str:
    """Say what would make a model fit, in words; see `ways`.

    known : requests that are known to run, which are named alone.
    """
    named_ways = [
        (other.run.scenario, other.run.estimate.plan) for other in known if other.run.estimate
    ]
    named_ways = named_ways or ways(scenario, short, plan=plan)
    if named_ways:
        words = ", ".join(_way_words(scenario, other, split) for other, split in named_ways)
        return f"would {'fit' if short else 'run'}: {words}"
    if not short:
        return "nothing that was tried can run"
    return f"nothing tried fits {format_bytes(usable_bytes(scenario))} a GPU"


def _ordered_splits(
    short: Sequence[PlanEstimate], request: Request, plan: Plan | None
) -> list[PlanEstimate]:
    """Put splits in order: those most like the one that was asked for first, or the best first."""
    if plan is None:
        return rank(short, replace(request, at_most_gpus=False))
    nearest_plans = nearest(plan, [split.plan for split in short], count=len(short))
    return sorted(short, key=lambda split: nearest_plans.index(split.plan))


def _same_gpu_ways(scenario: Scenario, short: Sequence[PlanEstimate], tried: int) -> Iterator[Way]:
    """Yield ways on the same GPUs: other settings, smaller requests, or both at once."""
    single_changes = [
        *_lighter_settings(scenario, short, tried),
        *_smaller_requests(scenario, scenario, short),
    ]
    offload = scenario.request.offload or bool(scenario.model.encoders)
    lightest = _changed_scenario(scenario, offload=offload, precision=_precisions(scenario)[-1])
    yield from single_changes or _smaller_requests(scenario, lightest, short)


def _changed_scenario(scenario: Scenario, **changes: object) -> Scenario:
    """Ask for something else of the same model on the same machine."""
    request = replace(scenario.request, **changes)  # type: ignore[arg-type]  # names are ours
    workload = workload_of(scenario.model, request, scenario.deployment.habits)
    return replace(scenario, request=request, workload=workload)


def _precisions(scenario: Scenario) -> list[Precision]:
    """List the request's precision, and those of fewer bits that the GPU has units for."""
    precision, device = scenario.workload.precision, scenario.deployment.hardware.device
    bits = FORMATS[precision].weights
    smaller_formats = (other for other in SMALLER_PRECISIONS if FORMATS[other].weights < bits)
    return [precision, *(other for other in smaller_formats if device.peak(other) is not None)]


def _lighter_settings(
    scenario: Scenario, short: Sequence[PlanEstimate], tried: int
) -> Iterator[Way]:
    """Yield settings under which a split fits: encoders away, fewer bits, and both if need be."""
    smaller_precisions = _precisions(scenario)[1:]
    can_offload = bool(scenario.model.encoders) and not scenario.request.offload
    offloaded = [_changed_scenario(scenario, offload=True)] if can_offload else []
    smaller = [_changed_scenario(scenario, precision=precision) for precision in smaller_precisions]
    offloaded_smaller = [
        _changed_scenario(other, precision=precision)
        for other in offloaded
        for precision in smaller_precisions
    ]
    single_changes = [
        *_first_fitting(scenario, offloaded, short, tried),
        *_first_fitting(scenario, smaller, short, tried),
    ]
    yield from single_changes or _first_fitting(scenario, offloaded_smaller, short, tried)


def _first_fitting(
    scenario: Scenario, changed: Sequence[Scenario], short: Sequence[PlanEstimate], tried: int
) -> Iterator[Way]:
    """Yield the first change under which a split fits, with the fastest of the first that do.

    tried : so many that fit are compared; the first is taken where it is one.
    """
    for other in changed:
        likely_plans = (
            split.plan
            for split in short
            if split.memory_bytes - _saved_bytes(scenario, other, split) <= usable_bytes(other)
        )
        fitting = (
            plan
            for plan in islice(likely_plans, 4 * TRIED_SPLITS)
            if _is_legal(other, plan) and peak_of(other, plan) <= usable_bytes(other)
        )
        fastest = list(islice(fitting, tried))
        if fastest:
            yield other, min(fastest, key=lambda plan: price(other, plan).latency_s)
            return


def _saved_bytes(scenario: Scenario, other: Scenario, split: PlanEstimate) -> float:
    """Count the bytes of a split, priced under `scenario`, that the settings of `other` save."""
    model, precision = scenario.model, scenario.workload.precision
    bits_ratio = FORMATS[other.workload.precision].weights / FORMATS[precision].weights
    outer = outer_parameters(model, split.plan.axes) * FORMATS["bf16"].weights
    blocks = split.memory_parts_bytes["transformer_weights"] - outer
    encoders_leave = other.request.offload and not scenario.request.offload
    return blocks * (1 - bits_ratio) + (encoder_bytes(model, precision) if encoders_leave else 0.0)


def _is_legal(scenario: Scenario, plan: Plan) -> bool:
    return not any(objections(scenario.model, scenario.workload, plan, plan.gpus))


def _flags(scenario: Scenario, other: Scenario) -> str:
    """Write a change as flags of the command line."""
    old_request, new_request = scenario.request, other.request
    return " ".join(
        f"--{name.replace('_', '-')}"
        + ("" if name == "offload" else f" {getattr(new_request, name)}")
        for name in CHANGEABLE_FIELDS
        if getattr(old_request, name) != getattr(new_request, name)
    )


def _way_words(scenario: Scenario, other: Scenario, plan: Plan) -> str:
    """Write a way with its split: ``tp2 with --offload``, ``--frames 61`` on one GPU, or more."""
    gpus = other.request.gpus
    if gpus != scenario.request.gpus:
        return f"{plan} on {counted(gpus, 'GPU')}{hosts_in_words(scenario.deployment, gpus)}"
    flags = _flags(scenario, other)
    return f"{plan} with {flags}" if plan.axes else flags


def _smaller_sizes(scenario: Scenario) -> Iterator[tuple[str, range]]:
    """Yield what a request may have less of, and the smaller numbers to choose from."""
    request, latent = scenario.request, scenario.model.latent
    if latent is not None and latent.temporal > 1:
        frames = request.frames or scenario.model.defaults.frames
        yield "frames", range(1 + latent.temporal, frames, latent.temporal)
    if scenario.model.kind == "decoder":
        (_, tokens), *_ = scenario.workload.tokens
        yield "input_tokens", range(PROMPT_BLOCK, int(tokens), PROMPT_BLOCK)
    yield "batch", range(1, request.batch)


def _smaller_requests(
    scenario: Scenario, base: Scenario, short: Sequence[PlanEstimate]
) -> Iterator[Way]:
    """Yield the largest smaller requests that fit, under the settings of `base`."""
    shares = {split.plan: _room_share(scenario, base, split) for split in short}
    best = sorted(short, key=lambda split: -shares[split.plan])[:TRIED_SPLITS]
    for name, values in _smaller_sizes(scenario):
        fitting = [
            (value, split.plan)
            for split in best
            if shares[split.plan] > 0
            and (value := _largest_fitting(base, split.plan, name, values)) is not None
        ]
        if fitting:
            value, plan = max(fitting, key=lambda pair: pair[0])
            yield _changed_scenario(base, **{name: value}), plan


def _room_share(scenario: Scenario, base: Scenario, split: PlanEstimate) -> float:
    """Give the share of what grows with the request for which a split has room."""
    parts = split.memory_parts_bytes
    fixed = sum(parts[name] for name in FIXED_PARTS)
    spare = usable_bytes(base) - fixed + _saved_bytes(scenario, base, split)
    return spare / max(split.memory_bytes - fixed, 1.0)


def _largest_fitting(scenario: Scenario, plan: Plan, name: str, values: range) -> int | None:
    """Return the largest of `values` for which a split is legal and fits, if any is."""

    def held(value: int) -> float:
        return peak_of(_changed_scenario(scenario, **{name: value}), plan)

    fitting_count = bisect_right(values, usable_bytes(scenario), key=held)
    smallest = LEAST_SHARE * values.stop if name != "batch" else 1
    near_values = (
        value for value in values[:fitting_count][: -LEGAL_TRIALS - 1 : -1] if value >= smallest
    )
    return next(
        (v for v in near_values if _is_legal(_changed_scenario(scenario, **{name: v}), plan)), None
    )


def _other_gpu_ways(scenario: Scenario, *, legal: bool) -> Iterator[Way]:
    """Yield the best plan of each number of GPUs on which one fits, the next one first.

    legal : whether the GPUs that were asked for have plans that are legal; else fewer may do too.
    """
    powers = [2**power for power in range(MOST_GPUS.bit_length())]
    larger_counts = [gpus for gpus in powers if gpus > scenario.request.gpus]
    smaller_counts = (
        [] if legal else [gpus for gpus in reversed(powers) if gpus < scenario.request.gpus]
    )
    for gpus in (*smaller_counts, *larger_counts):
        best = _best_plan(scenario, gpus)
        if best is not None:
            yield _changed_scenario(scenario.on(gpus), gpus=gpus), best.plan


def _best_plan(scenario: Scenario, gpus: int) -> PlanEstimate | None:
    """Find the best plan of so many GPUs, with as few pipeline stages as it takes to fit."""
    try:
        other = scenario.on(gpus)
        if other.deployment.subset is None:
            other.deployment.hardware.island(gpus, other.deployment.nodes)
    except TopologyError:
        return None
    shared = Shared()
    likely_plans = sorted(_candidate_plans(other, gpus), key=lambda plan: plan.degree("pp"))
    for depth in dict.fromkeys(plan.degree("pp") for plan in likely_plans):
        hopeful_plans = (
            plan for plan in likely_plans if plan.degree("pp") == depth and _may_fit(other, plan)
        )
        fitting = estimates(judge(other, plan, shared) for plan in hopeful_plans)
        if fitting:
            return rank(fitting, replace(scenario.request, at_most_gpus=False))[0]
    return None


def _may_fit(scenario: Scenario, plan: Plan) -> bool:
    """Whether a plan is legal, and one stage of its pipeline fits: the rest is dearer to ask."""
    if plan.degree("pp") == 1 or not _is_legal(scenario, plan):
        return _is_legal(scenario, plan)
    program = lower(scenario.model, scenario.workload, plan)
    return memory_of(scenario, program)[1] <= usable_bytes(scenario)


def _candidate_plans(scenario: Scenario, gpus: int) -> Iterator[Plan]:
    """Yield plans whose weights and decode may fit; replicas need as much as one alone."""
    model, request = scenario.model, scenario.request
    fixed_bytes = fixed_parts(scenario, lower(model, scenario.workload, Plan()))
    outer = outer_parameters(model, ()) * FORMATS["bf16"].weights
    blocks = fixed_bytes["transformer_weights"] - outer
    for plan in plans(model, gpus):
        replicas, cut = plan.degree("dp"), plan.degree("tp") * plan.degree("pp")
        decode = float(np.max(decode_bytes(model, scenario.workload, replicas)))
        least_bytes = sum(fixed_bytes.values()) - outer - blocks + blocks / cut + decode
        if least_bytes <= usable_bytes(scenario) and (replicas == 1 or request.batch > 1):
            yield plan
