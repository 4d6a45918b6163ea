"""What would make a model fit: the least change first."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from costmodels.price import Known
from planner.lowering.lower import lower
from planner.lowering.scene import WEIGHT_BYTES
from planner.request.plan import Plan
from planner.request.request import Request
from planner.search.counts import of_count, spread
from planner.search.evaluate import (
    decode_bytes,
    encoder_bytes,
    fixed_parts,
    memory_of,
    outer_parameters,
    peak_of,
    room,
    workload_of,
)
from planner.search.outcome import PlanEstimate
from planner.search.plans import nearest, objections, plans
from planner.search.search import Question, judge, price, rank
from topology.base import TopologyError, counted, format_bytes
from topology.catalogue import Precision

WAYS: Final = 3
"""Ways that are named for the same number of GPUs."""

TRIED: Final = 4
"""Splits that are looked at closely for one way."""

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

FLAGS: Final = ("offload", "precision", "frames", "input_tokens", "batch")


def would_fit(question: Question, short: Sequence[PlanEstimate], plan: Plan | None = None) -> str:
    """Say what would make a model fit: other settings, smaller requests, more GPUs.

    Parameters
    ----------
    short : every legal split of the GPUs that were asked for, none of which fits.
    plan : the split that was asked for, to stay near it; the best are taken where there is none.
    """
    ordered = _ordered(short, question.request, plan)
    tried = TRIED if plan is None else 1
    ways = [*islice(_ways(question, ordered, tried), WAYS), *_more(question, legal=bool(short))]
    if ways:
        return f"would {'fit' if short else 'run'}: {', '.join(ways)}"
    if not short:
        return "nothing that was tried can run"
    return f"nothing tried fits {format_bytes(_room(question))} a GPU"


def _ordered(
    short: Sequence[PlanEstimate], request: Request, plan: Plan | None
) -> list[PlanEstimate]:
    """Put splits in order: those most like the one that was asked for first, or the best first."""
    if plan is None:
        return rank(short, replace(request, at_most_gpus=False))
    near = nearest(plan, [one.plan for one in short], count=len(short))
    return sorted(short, key=lambda one: near.index(one.plan))


def _room(question: Question) -> float:
    return room(question.site, question.model.kind)


def _ways(question: Question, short: Sequence[PlanEstimate], tried: int) -> Iterator[str]:
    """Yield ways on the same GPUs: other settings, smaller requests, or both at once."""
    ways = [*_lighter(question, short, tried), *_shorter(question, question, short)]
    if not ways:
        away = question.request.offload or bool(question.model.encoders)
        lightest = _asking(question, offload=away, precision=_precisions(question)[-1])
        ways = list(_shorter(question, lightest, short))
    yield from ways


def _asking(question: Question, **changes: object) -> Question:
    """Ask for something else of the same model on the same machine."""
    request = replace(question.request, **changes)  # type: ignore[arg-type]  # names are ours
    workload = workload_of(question.model, request, question.site)
    return replace(question, request=request, workload=workload)


def _precisions(question: Question) -> list[Precision]:
    """List the request's precision, and those of fewer bits that the GPU has units for."""
    asked, device = question.request.precision, question.site.hardware.device
    bits = WEIGHT_BYTES[asked]
    return [asked, *(p for p in SMALLER if WEIGHT_BYTES[p] < bits and device.peak(p) is not None)]


def _lighter(question: Question, short: Sequence[PlanEstimate], tried: int) -> Iterator[str]:
    """Yield settings under which a split fits: encoders away, fewer bits, and both if need be."""
    fewer = _precisions(question)[1:]
    can_offload = bool(question.model.encoders) and not question.request.offload
    away = [_asking(question, offload=True)] if can_offload else []
    less = [_asking(question, precision=precision) for precision in fewer]
    both = [_asking(one, precision=precision) for one in away for precision in fewer]
    single = [*_first(question, away, short, tried), *_first(question, less, short, tried)]
    yield from single or _first(question, both, short, tried)


def _first(
    question: Question, changed: Sequence[Question], short: Sequence[PlanEstimate], tried: int
) -> Iterator[str]:
    """Yield the first change under which a split fits, with the fastest of the first that do.

    Parameters
    ----------
    tried : so many that fit are compared; the first is taken where it is one.
    """
    for other in changed:
        likely = (
            one.plan
            for one in short
            if one.memory_bytes - _saved(question, other, one) <= _room(other)
        )
        fitting = (plan for plan in islice(likely, 4 * TRIED) if _fits(other, plan))
        found = list(islice(fitting, tried))
        if found:
            best = min(found, key=lambda plan: price(other, plan).latency_s)
            yield _said(question, other, best)
            return


def _saved(question: Question, other: Question, one: PlanEstimate) -> float:
    """Bytes of a split, priced under `question`, that the settings of `other` save."""
    model, before, after = question.model, question.request, other.request
    outer = outer_parameters(model, one.plan.axes) * WEIGHT_BYTES["bf16"]
    blocks = one.memory_parts_bytes["transformer_weights"] - outer
    smaller = 1 - WEIGHT_BYTES[after.precision] / WEIGHT_BYTES[before.precision]
    encoders = encoder_bytes(model) if after.offload and not before.offload else 0.0
    return blocks * smaller + encoders


def _held(question: Question, plan: Plan) -> float:
    return peak_of(
        question.model,
        question.workload,
        plan,
        question.site,
        offload=question.request.offload,
    )


def _fits(question: Question, plan: Plan) -> bool:
    return _legal(question, plan) and _held(question, plan) <= _room(question)


def _legal(question: Question, plan: Plan) -> bool:
    return not any(objections(question.model, question.workload, plan, plan.gpus))


def _said(question: Question, other: Question, plan: Plan) -> str:
    """Write a change as flags of the command line, with the split where there is one.

    A way reads ``tp2 with --offload``, or ``--frames 61`` on one GPU.
    """
    before, after = question.request, other.request
    flags = [
        f"--{name.replace('_', '-')}" + ("" if name == "offload" else f" {getattr(after, name)}")
        for name in FLAGS
        if getattr(before, name) != getattr(after, name)
    ]
    return f"{plan} with {' '.join(flags)}" if plan.axes else " ".join(flags)


def _sizes(question: Question) -> Iterator[tuple[str, range]]:
    """Yield what a request may have less of, and the smaller numbers to choose from."""
    request, latent = question.request, question.model.latent
    if latent is not None and latent.temporal > 1:
        frames = request.frames or question.model.defaults.frames
        yield "frames", range(1 + latent.temporal, frames, latent.temporal)
    if question.model.kind == "decoder":
        (_, tokens), *_ = question.workload.tokens
        yield "input_tokens", range(BLOCK, int(tokens), BLOCK)
    yield "batch", range(1, request.batch)


def _shorter(question: Question, base: Question, short: Sequence[PlanEstimate]) -> Iterator[str]:
    """Yield the largest smaller requests that fit, under the settings of `base`."""
    shares = {one.plan: _share(question, base, one) for one in short}
    best = sorted(short, key=lambda one: -shares[one.plan])[:TRIED]
    for name, values in _sizes(question):
        found = [
            (value, one.plan)
            for one in best
            if shares[one.plan] > 0
            and (value := _largest(base, one.plan, name, values)) is not None
        ]
        if found:
            value, plan = max(found, key=lambda pair: pair[0])
            yield _said(question, _asking(base, **{name: value}), plan)


def _share(question: Question, base: Question, one: PlanEstimate) -> float:
    """Share of what grows with the request for which a split has room."""
    parts = one.memory_parts_bytes
    fixed = sum(parts[name] for name in FIXED)
    spare = _room(base) - fixed + _saved(question, base, one)
    return spare / max(one.memory_bytes - fixed, 1.0)


def _largest(question: Question, plan: Plan, name: str, values: range) -> int | None:
    """Return the largest of `values` for which a split is legal and fits, if any is."""

    def held(value: int) -> float:
        return _held(_asking(question, **{name: value}), plan)

    place = bisect_right(values, _room(question), key=held)
    below = (values[index] for index in range(place - 1, -1, -1))
    near = islice(below, LEGAL)
    least = LEAST * values.stop if name != "batch" else 1
    able = (value for value in near if value >= least)
    return next((v for v in able if _legal(_asking(question, **{name: v}), plan)), None)


def _more(question: Question, *, legal: bool) -> Iterator[str]:
    """Yield the best plan of the next number of GPUs on which one fits.

    Parameters
    ----------
    legal : whether the GPUs that were asked for have plans that are legal; else fewer may do too.
    """
    asked, site = question.request.gpus, question.site
    powers = [2**power for power in range(MOST_GPUS.bit_length())]
    more = [gpus for gpus in powers if gpus > asked]
    fewer = [] if legal else [gpus for gpus in reversed(powers) if gpus < asked]
    for gpus in (*fewer, *more):
        found = _best(question, gpus)
        if found is not None:
            yield f"{found.plan} on {counted(gpus, 'GPU')}{spread(asked, site, gpus)}"
            return


def _best(question: Question, gpus: int) -> PlanEstimate | None:
    """Find the best plan of so many GPUs, with as few pipeline stages as it takes to fit."""
    site = of_count(question.request.gpus, question.site, gpus)
    wider = replace(question, site=site)
    try:
        if site.ground is None:
            site.hardware.island(gpus, site.nodes)
        else:
            site.on(gpus, question.request.precision)
    except TopologyError:
        return None
    known: Known = {}
    every = sorted(_worth(wider, gpus), key=lambda plan: plan.degree("pp"))
    for depth in dict.fromkeys(plan.degree("pp") for plan in every):
        hopeful = (plan for plan in every if plan.degree("pp") == depth and _hopeful(wider, plan))
        outcomes = [judge(wider, plan, gpus, known) for plan in hopeful]
        found = [one for one in outcomes if isinstance(one, PlanEstimate)]
        if found:
            return rank(found, replace(question.request, at_most_gpus=False))[0]
    return None


def _hopeful(question: Question, plan: Plan) -> bool:
    """Whether a plan is legal, and one stage of its pipeline fits: the rest is dearer to ask."""
    if not _legal(question, plan):
        return False
    if plan.degree("pp") == 1:
        return True
    one = lower(question.model, question.workload, plan)
    site, offload = question.site, question.request.offload
    held = memory_of(question.model, question.workload, one, site, offload=offload)
    return held[1] <= _room(question)


def _worth(question: Question, gpus: int) -> Iterator[Plan]:
    """Yield plans whose weights and decode may fit; replicas need as much as one alone."""
    model, request = question.model, question.request
    whole = fixed_parts(
        model, lower(model, question.workload, Plan()), question.site, offload=request.offload
    )
    outer = outer_parameters(model, ()) * WEIGHT_BYTES["bf16"]
    blocks = whole["transformer_weights"] - outer
    for plan in plans(model, gpus):
        replicas, cut = plan.degree("dp"), plan.degree("tp") * plan.degree("pp")
        decode = float(np.max(decode_bytes(model, question.workload, replicas)))
        least = sum(whole.values()) - outer - blocks + blocks / cut + decode
        if least <= _room(question) and (replicas == 1 or request.batch > 1):
            yield plan
