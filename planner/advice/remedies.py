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

WAYS: Final = 3
"""Ways that are named for the same number of GPUs."""

TRIED: Final = 4
"""Splits that are looked at closely for one way."""

DOUBLINGS: Final = 3
"""Larger numbers of GPUs that are tried for something that runs."""

MOST_GPUS: Final = 64
BLOCK: Final = 128
"""A shorter prompt has a multiple of so many tokens, and splits that cut it stay legal."""

LEGAL: Final = 32
"""Sizes below the largest that fits, in which one is looked for that the split can cut."""

LEAST: Final = 0.1
"""A request is not offered with less of a size than this share of what was asked for."""

SMALLER: Final[tuple[Precision, ...]] = ("fp8", "nvfp4")
FIXED: Final = ("transformer_weights", "other_weights", "buffers", "runtime")
"""Parts of memory that do not grow with the request."""

FLAGS: Final = ("gpus", "offload", "precision", "frames", "input_tokens", "batch")
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
    ordered = _ordered(short, scenario.request, plan)
    same = islice(_ways(scenario, ordered, TRIED if plan is None else 1), WAYS)
    return [*same, *islice(_more(scenario, legal=bool(short)), more)]


def alternatives(
    scenario: Scenario, ranking: Ranking, lead: PlanEstimate | None
) -> Iterator[Alternative]:
    """Yield other requests that run, where this one does not, or slower for want of memory.

    scenario : as asked, whose engine may be open. ranking : of its plans. lead : the one to run.
    """
    short, enough = short_of(ranking), inf if lead is None else (1 - TIE) * lead.latency_s
    slow = scenario.request.objective == "latency" and any(s.latency_s < enough for s in short)
    if any(unsupported(scenario.model)) or not (slow or lead is None):
        return
    refusers = [refuser(runner) for runner in runners(scenario)]
    known = [s for s in short if not all(refuses(s.plan) for refuses in refusers)]
    for other, _ in ways(scenario, known, more=DOUBLINGS if lead is None else 0):
        runs = tuple(compare(other))
        best = runs[0].estimate if runs else None
        if best is not None and best.latency_s < enough:
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
    named = [(other.run.scenario, other.run.estimate.plan) for other in known if other.run.estimate]
    named = named or ways(scenario, short, plan=plan)
    if named:
        words = ", ".join(_way(scenario, other, split) for other, split in named)
        return f"would {'fit' if short else 'run'}: {words}"
    if not short:
        return "nothing that was tried can run"
    return f"nothing tried fits {format_bytes(usable_bytes(scenario))} a GPU"


def _ordered(
    short: Sequence[PlanEstimate], request: Request, plan: Plan | None
) -> list[PlanEstimate]:
    """Put splits in order: those most like the one that was asked for first, or the best first."""
    if plan is None:
        return rank(short, replace(request, at_most_gpus=False))
    near = nearest(plan, [split.plan for split in short], count=len(short))
    return sorted(short, key=lambda split: near.index(split.plan))


def _ways(scenario: Scenario, short: Sequence[PlanEstimate], tried: int) -> Iterator[Way]:
    """Yield ways on the same GPUs: other settings, smaller requests, or both at once."""
    alone = [*_lighter(scenario, short, tried), *_shorter(scenario, scenario, short)]
    away = scenario.request.offload or bool(scenario.model.encoders)
    lightest = _asking(scenario, offload=away, precision=_precisions(scenario)[-1])
    yield from alone or _shorter(scenario, lightest, short)


def _asking(scenario: Scenario, **changes: object) -> Scenario:
    """Ask for something else of the same model on the same machine."""
    request = replace(scenario.request, **changes)  # type: ignore[arg-type]  # names are ours
    workload = workload_of(scenario.model, request, scenario.deployment.habits)
    return replace(scenario, request=request, workload=workload)


def _precisions(scenario: Scenario) -> list[Precision]:
    """List the request's precision, and those of fewer bits that the GPU has units for."""
    precision, device = scenario.workload.precision, scenario.deployment.hardware.device
    bits = FORMATS[precision].weights
    fewer = (other for other in SMALLER if FORMATS[other].weights < bits)
    return [precision, *(other for other in fewer if device.peak(other) is not None)]


def _lighter(scenario: Scenario, short: Sequence[PlanEstimate], tried: int) -> Iterator[Way]:
    """Yield settings under which a split fits: encoders away, fewer bits, and both if need be."""
    fewer = _precisions(scenario)[1:]
    can_offload = bool(scenario.model.encoders) and not scenario.request.offload
    away = [_asking(scenario, offload=True)] if can_offload else []
    less = [_asking(scenario, precision=precision) for precision in fewer]
    both = [_asking(other, precision=precision) for other in away for precision in fewer]
    single = [*_first(scenario, away, short, tried), *_first(scenario, less, short, tried)]
    yield from single or _first(scenario, both, short, tried)


def _first(
    scenario: Scenario, changed: Sequence[Scenario], short: Sequence[PlanEstimate], tried: int
) -> Iterator[Way]:
    """Yield the first change under which a split fits, with the fastest of the first that do.

    tried : so many that fit are compared; the first is taken where it is one.
    """
    for other in changed:
        likely = (
            split.plan
            for split in short
            if split.memory_bytes - _saved(scenario, other, split) <= usable_bytes(other)
        )
        fitting = (
            plan
            for plan in islice(likely, 4 * TRIED)
            if _legal(other, plan) and peak_of(other, plan) <= usable_bytes(other)
        )
        fastest = list(islice(fitting, tried))
        if fastest:
            yield other, min(fastest, key=lambda plan: price(other, plan).latency_s)
            return


def _saved(scenario: Scenario, other: Scenario, split: PlanEstimate) -> float:
    """Count the bytes of a split, priced under `scenario`, that the settings of `other` save."""
    model, precision = scenario.model, scenario.workload.precision
    fewer = FORMATS[other.workload.precision].weights / FORMATS[precision].weights
    outer = outer_parameters(model, split.plan.axes) * FORMATS["bf16"].weights
    blocks = split.memory_parts_bytes["transformer_weights"] - outer
    away = other.request.offload and not scenario.request.offload
    return blocks * (1 - fewer) + (encoder_bytes(model, precision) if away else 0.0)


def _legal(scenario: Scenario, plan: Plan) -> bool:
    return not any(objections(scenario.model, scenario.workload, plan, plan.gpus))


def _flags(scenario: Scenario, other: Scenario) -> str:
    """Write a change as flags of the command line."""
    before, after = scenario.request, other.request
    return " ".join(
        f"--{name.replace('_', '-')}" + ("" if name == "offload" else f" {getattr(after, name)}")
        for name in FLAGS
        if getattr(before, name) != getattr(after, name)
    )


def _way(scenario: Scenario, other: Scenario, plan: Plan) -> str:
    """Write a way with its split: ``tp2 with --offload``, ``--frames 61`` on one GPU, or more."""
    gpus = other.request.gpus
    if gpus != scenario.request.gpus:
        return f"{plan} on {counted(gpus, 'GPU')}{hosts_in_words(scenario.deployment, gpus)}"
    flags = _flags(scenario, other)
    return f"{plan} with {flags}" if plan.axes else flags


def _sizes(scenario: Scenario) -> Iterator[tuple[str, range]]:
    """Yield what a request may have less of, and the smaller numbers to choose from."""
    request, latent = scenario.request, scenario.model.latent
    if latent is not None and latent.temporal > 1:
        frames = request.frames or scenario.model.defaults.frames
        yield "frames", range(1 + latent.temporal, frames, latent.temporal)
    if scenario.model.kind == "decoder":
        (_, tokens), *_ = scenario.workload.tokens
        yield "input_tokens", range(BLOCK, int(tokens), BLOCK)
    yield "batch", range(1, request.batch)


def _shorter(scenario: Scenario, base: Scenario, short: Sequence[PlanEstimate]) -> Iterator[Way]:
    """Yield the largest smaller requests that fit, under the settings of `base`."""
    shares = {split.plan: _share(scenario, base, split) for split in short}
    best = sorted(short, key=lambda split: -shares[split.plan])[:TRIED]
    for name, values in _sizes(scenario):
        fitting = [
            (value, split.plan)
            for split in best
            if shares[split.plan] > 0
            and (value := _largest(base, split.plan, name, values)) is not None
        ]
        if fitting:
            value, plan = max(fitting, key=lambda pair: pair[0])
            yield _asking(base, **{name: value}), plan


def _share(scenario: Scenario, base: Scenario, split: PlanEstimate) -> float:
    """Give the share of what grows with the request for which a split has room."""
    parts = split.memory_parts_bytes
    fixed = sum(parts[name] for name in FIXED)
    spare = usable_bytes(base) - fixed + _saved(scenario, base, split)
    return spare / max(split.memory_bytes - fixed, 1.0)


def _largest(scenario: Scenario, plan: Plan, name: str, values: range) -> int | None:
    """Return the largest of `values` for which a split is legal and fits, if any is."""

    def held(value: int) -> float:
        return peak_of(_asking(scenario, **{name: value}), plan)

    place = bisect_right(values, usable_bytes(scenario), key=held)
    least = LEAST * values.stop if name != "batch" else 1
    near = (value for value in values[:place][: -LEGAL - 1 : -1] if value >= least)
    return next((v for v in near if _legal(_asking(scenario, **{name: v}), plan)), None)


def _more(scenario: Scenario, *, legal: bool) -> Iterator[Way]:
    """Yield the best plan of each number of GPUs on which one fits, the next one first.

    legal : whether the GPUs that were asked for have plans that are legal; else fewer may do too.
    """
    powers = [2**power for power in range(MOST_GPUS.bit_length())]
    more = [gpus for gpus in powers if gpus > scenario.request.gpus]
    fewer = [] if legal else [gpus for gpus in reversed(powers) if gpus < scenario.request.gpus]
    for gpus in (*fewer, *more):
        best = _best(scenario, gpus)
        if best is not None:
            yield _asking(scenario.on(gpus), gpus=gpus), best.plan


def _best(scenario: Scenario, gpus: int) -> PlanEstimate | None:
    """Find the best plan of so many GPUs, with as few pipeline stages as it takes to fit."""
    try:
        other = scenario.on(gpus)
        if other.deployment.subset is None:
            other.deployment.hardware.island(gpus, other.deployment.nodes)
    except TopologyError:
        return None
    shared = Shared()
    likely = sorted(_worth(other, gpus), key=lambda plan: plan.degree("pp"))
    for depth in dict.fromkeys(plan.degree("pp") for plan in likely):
        hopeful = (plan for plan in likely if plan.degree("pp") == depth and _hopeful(other, plan))
        fitting = estimates(judge(other, plan, shared) for plan in hopeful)
        if fitting:
            return rank(fitting, replace(scenario.request, at_most_gpus=False))[0]
    return None


def _hopeful(scenario: Scenario, plan: Plan) -> bool:
    """Whether a plan is legal, and one stage of its pipeline fits: the rest is dearer to ask."""
    if plan.degree("pp") == 1 or not _legal(scenario, plan):
        return _legal(scenario, plan)
    program = lower(scenario.model, scenario.workload, plan)
    return memory_of(scenario, program)[1] <= usable_bytes(scenario)


def _worth(scenario: Scenario, gpus: int) -> Iterator[Plan]:
    """Yield plans whose weights and decode may fit; replicas need as much as one alone."""
    model, request = scenario.model, scenario.request
    whole = fixed_parts(scenario, lower(model, scenario.workload, Plan()))
    outer = outer_parameters(model, ()) * FORMATS["bf16"].weights
    blocks = whole["transformer_weights"] - outer
    for plan in plans(model, gpus):
        replicas, cut = plan.degree("dp"), plan.degree("tp") * plan.degree("pp")
        decode = float(np.max(decode_bytes(model, scenario.workload, replicas)))
        least = sum(whole.values()) - outer - blocks + blocks / cut + decode
        if least <= usable_bytes(scenario) and (replicas == 1 or request.batch > 1):
            yield plan
