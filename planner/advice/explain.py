"""Why the first plan wins, what would change the order, and when fewer GPUs do."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import hypot, log2
from typing import Final

from planner.advice.refusals import refusal, runnable
from planner.advice.remedies import would_fit
from planner.placement.placement import visible
from planner.request.request import Objective
from planner.search.counts import spread
from planner.search.outcome import APART, PlanEstimate, worded
from planner.search.plans import unsupported
from planner.search.remarks import context_remark, throughput_remark
from planner.search.search import TIE, Recommendation, Scenario, launch_of, price
from topology.base import counted, format_bytes, format_seconds

REPLICAS: Final = 1.3
"""Copies of the model are worth a line when they serve this many times as many requests."""

SLOWER: Final = 4.0
"""A link would have to be this many times off before its order is not worth a line."""

SMALL: Final = 1.1
"""A factor below this is said in per cent."""

LOOKED_AT: Final = 32
"""First plans among which one is looked for that an engine runs."""

SAME: Final = 0.5
"""Per cent below which a price is the same."""

LITTLE: Final = 1.25
"""A doubling of the GPUs that gains less than this is not worth its price to everybody."""


def advice(scenario: Scenario, answer: Recommendation) -> Iterator[str]:
    """Yield sentences about a recommendation, the most useful first."""
    if not answer.plans:
        yield from _nothing(scenario, answer)
        return
    first = answer.lead or answer.plans[0]
    yield from _seats(scenario, first)
    same = [one for one in answer.plans if one.gpus == first.gpus]
    able = runnable(scenario, {first.gpus: same})[first.gpus]
    rivals = [one for one in able if one is not first]
    if rivals and answer.request.objective == "latency":
        yield _why(first, rivals[0])
        yield from _sensitivity(first, rivals)
    elif rivals:
        yield _better(first, rivals[0], answer.request.objective)
    yield from (f"{first.plan}: {remark}" for remark in first.remarks)
    yield from _runnable(scenario, answer)
    yield from _fewer(scenario, first, answer)
    yield from _replicas(first, able, answer.request.objective)
    yield from context_remark(scenario.model, scenario.workload)
    yield from throughput_remark(scenario.model.kind, answer.request.batch, first.gpus)
    yield from _decode(scenario, first)


def _nothing(scenario: Scenario, answer: Recommendation) -> Iterator[str]:
    lacking = list(unsupported(scenario.model))
    if lacking:
        yield from lacking
        return
    gpus = scenario.request.gpus
    yield f"no plan of {counted(gpus, 'GPU')} can run; {would_fit(scenario, _short(answer))}"


def _short(answer: Recommendation) -> list[PlanEstimate]:
    """List the legal plans of all GPUs that do not fit."""
    gpus = answer.request.gpus
    return [one.short for one in answer.rejected if one.short and one.short.gpus == gpus]


def difference(first: PlanEstimate, second: PlanEstimate) -> tuple[float, float]:
    """Return how much slower the second plan is, and how well that difference is known.

    Parts that the two share cancel, and so do their errors; what is left beside is measured.

    Returns
    -------
    seconds, and half the interval around them
    """
    names = first.breakdown_s.keys() | second.breakdown_s.keys()
    apart = {n: second.breakdown_s.get(n, 0.0) - first.breakdown_s.get(n, 0.0) for n in names}
    longer = max(first.latency_s, second.latency_s)
    half = hypot(second.half_width_of(apart), APART * longer)
    return second.latency_s - first.latency_s, half


def too_close(first: PlanEstimate, second: PlanEstimate) -> bool:
    """Whether the difference of two plans lies within what is known of it."""
    seconds, half = difference(first, second)
    return abs(seconds) <= half


def _why(first: PlanEstimate, second: PlanEstimate) -> str:
    gain = second.latency_s / first.latency_s - 1
    names = first.breakdown_s.keys() | second.breakdown_s.keys()
    apart = {n: second.breakdown_s.get(n, 0.0) - first.breakdown_s.get(n, 0.0) for n in names}
    name = max(apart, key=lambda part: apart[part])
    here, there = first.breakdown_s.get(name, 0.0), second.breakdown_s.get(name, 0.0)
    because = (
        f"less time in {worded(name)} ({format_seconds(here)} against {format_seconds(there)})"
    )
    if too_close(first, second):
        return (
            f"{first.plan} and {second.plan} are too close to call: {100 * gain:.1f} % apart, "
            f"less than the model can tell; measure both"
        )
    return f"{first.plan} is {100 * gain:.1f} % faster than {second.plan}: {because}"


def _better(first: PlanEstimate, second: PlanEstimate, objective: Objective) -> str:
    """Why the first plan wins by another objective than latency."""
    if objective == "throughput":
        gain = _gain(first.throughput_per_s / second.throughput_per_s, "as many", "more")
        return f"{first.plan} serves {gain} requests a second {_than(gain)} {second.plan}"
    if objective == "memory":
        held = [format_bytes(one.memory_bytes) for one in (first, second)]
        return f"{first.plan} needs {held[0]} a GPU, {second.plan} {held[1]}"
    spent = [f"{_work(one):.3g}" for one in (first, second)]
    return f"{first.plan} takes {spent[0]} GPU-seconds a result, {second.plan} {spent[1]}"


def _work(one: PlanEstimate) -> float:
    """GPU-seconds of one result."""
    return one.gpus / one.throughput_per_s


def _gain(factor: float, equal: str, more: str) -> str:
    """Say a factor above one: small ones as a share.

    >>> _gain(1.6, "as fast", "faster"), _gain(1.05, "as fast", "faster")
    ('1.60 times as fast', '5 % faster')
    """
    if factor >= SMALL:
        return f"{factor:.2f} times {equal}"
    return f"{100 * (factor - 1):.2g} % {more}"


def _than(gain: str) -> str:
    return "as" if "times" in gain else "than"


def _runnable(scenario: Scenario, answer: Recommendation) -> Iterator[str]:
    """Where no engine runs the first plan, name the best that one does."""
    if not answer.launch or any(not one.reason for one in answer.launch):
        return
    for one in answer.plans[1:LOOKED_AT]:
        able = [launch.engine for launch in launch_of(scenario, one) if not launch.reason]
        if able:
            yield (
                f"none of the engines below runs {answer.plans[0].plan}; {able[0]} runs "
                f"{one.plan}, {format_seconds(one.latency_s)}"
            )
            return
    yield f"none of the engines below runs these plans; {would_fit(scenario, _short(answer))}"


def _sensitivity(first: PlanEstimate, rivals: list[PlanEstimate]) -> Iterator[str]:
    """At what factor on communication or attention another plan would come first."""
    flips = []
    for name, word in (("communication_exposed", "communication"), ("attention", "attention")):
        for rival in rivals:
            factor = _break_even(first, rival, name)
            if factor is not None and factor != 1 and 1 / SLOWER < factor < SLOWER:
                flips.append((abs(factor - 1), factor, word, rival))
    if not flips:
        yield (f"the order holds if communication or attention are off by up to {SLOWER:g} times")
        return
    _, factor, word, rival = min(flips, key=lambda flip: flip[0])
    size, way = max(factor, 1 / factor), "slower" if factor > 1 else "faster"
    much = f"{size:.2g} times" if size >= SMALL else f"{100 * (size - 1):.2g} %"
    yield f"{rival.plan} would come first if {word} were {much} {way} than modelled"


def _break_even(first: PlanEstimate, rival: PlanEstimate, name: str) -> float | None:
    """Factor on one part at which two plans take the same time; None where there is none."""
    part = rival.breakdown_s.get(name, 0.0) - first.breakdown_s.get(name, 0.0)
    rest = rival.latency_s - first.latency_s - part
    if part == 0 or -rest / part <= 0:
        return None
    return -rest / part


def _seats(scenario: Scenario, first: PlanEstimate) -> Iterator[str]:
    """Which GPUs of a machine the plan uses, and in which order."""
    where, subset = first.placement, scenario.deployment.subset
    if where is None or subset is None:
        return
    from planner.placement.seating import pairs_of  # noqa: PLC0415  # only machines need it

    every = len(subset.machine.gpus)
    if where.devices == tuple(range(every)):
        return
    groups = ", ".join(pairs_of(first.plan, where.devices))
    names = ",".join(map(str, where.devices))
    which = f"use GPUs {names} of {every}" if len(where.devices) < every else "order the GPUs"
    how = "" if where.exact else ", the best of the orders that were tried"
    yield f"{which}: {visible(where.devices)}{f' ({groups})' if groups else ''}{how}"


def _replicas(first: PlanEstimate, able: list[PlanEstimate], objective: Objective) -> Iterator[str]:
    """When copies of the model serve more requests a second than the plan."""
    copies = [one for one in able if one.plan.degree("dp") > 1]
    if not copies or objective != "latency":
        return
    most = max(copies, key=lambda one: one.throughput_per_s)
    gain = most.throughput_per_s / first.throughput_per_s
    if gain >= REPLICAS:
        yield (
            f"for throughput use {most.plan.degree('dp')} replicas: {most.plan} serves "
            f"{gain:.2f} times as many requests a second, each in "
            f"{format_seconds(most.latency_s)}"
        )


def _fewer(scenario: Scenario, first: PlanEstimate, answer: Recommendation) -> Iterator[str]:
    """When fewer GPUs are as fast, or much cheaper."""
    smaller = [one for one in answer.scaling if one.gpus < first.gpus]
    if not smaller or answer.request.objective in ("memory", "cost"):
        return
    half = max(smaller, key=lambda found: found.gpus)
    where = {
        one.gpus: spread(scenario.request.gpus, scenario.deployment, one.gpus) for one in smaller
    }
    if answer.request.objective == "throughput":
        gain = _gain(first.throughput_per_s / half.throughput_per_s, "as many", "more")
        rest = f"{_than(gain)} {half.gpus}{where[half.gpus]}"
        yield f"{first.gpus} GPUs serve {gain} requests a second {rest}"
        return
    enough = [one for one in smaller if one.latency_s <= first.latency_s * (1 + TIE)]
    yield _as_fast(first, enough, where) if enough else _doubling(first, half, where[half.gpus])


def _as_fast(first: PlanEstimate, enough: list[PlanEstimate], where: Mapping[int, str]) -> str:
    """Name the fewest GPUs that are about as fast as any, and `where` so many are."""
    fastest = min(enough, key=lambda found: found.latency_s)
    close = [one for one in enough if one.latency_s <= fastest.latency_s * (1 + TIE)]
    one = min(close, key=lambda found: found.gpus)
    slower = first.latency_s / one.latency_s
    instead = (
        f"take {slower:.2f} times as long"
        if slower > 1 + TIE
        else f"gain less than {100 * TIE:.0f} %"
    )
    return (
        f"use {counted(one.gpus, 'GPU')}{where[one.gpus]}: {one.plan} takes "
        f"{format_seconds(one.latency_s)}, and {first.gpus} {instead}"
    )


def _doubling(first: PlanEstimate, half: PlanEstimate, where: str) -> str:
    """Say what the last GPUs gain, and what they cost."""
    factor = half.latency_s / first.latency_s
    gain = _gain(factor, "as fast", "faster")
    here, there = _work(first), _work(half)
    share = 100 * (here / there - 1)
    more = f"{share:+.0f} %" if abs(share) >= SAME else "no more"
    fewer = f"{half.gpus}{where} ({half.plan}, {format_seconds(half.latency_s)})"
    if factor < LITTLE ** log2(first.gpus / half.gpus):
        return (
            f"{first.gpus} GPUs gain little over {fewer}: {gain}, at {here:.3g} "
            f"GPU-seconds a result against {there:.3g} ({more})"
        )
    return (
        f"{first.gpus} GPUs are {gain} {_than(gain)} {fewer} and take {more} GPU-seconds a result"
    )


def _decode(scenario: Scenario, first: PlanEstimate) -> Iterator[str]:
    """Offer a parallel VAE decode, where engines have one and it would show."""
    vae = scenario.model.vae
    share = first.stages_s.get("vae_decode", 0.0) / first.latency_s
    if vae is None or not vae.parallel or first.gpus == 1 or first.plan.vae > 1 or share < TIE:
        return
    wide = price(scenario, replace(first.plan, vae=first.gpus))
    if wide.latency_s < first.latency_s and not refusal(scenario, wide):
        yield (
            f"the VAE decode on one GPU is {100 * share:.0f} % of the time; split over all "
            f"({wide.plan}) the whole takes {format_seconds(wide.latency_s)}"
        )
