"""What to say of language models under load: which plan writes most, and times that are missed."""

from collections.abc import Iterator, Sequence
from math import inf

from planner.request.request import Request
from planner.search.clients import Serving, wanted_of
from planner.search.estimate import PlanEstimate, Rejected, Splits
from topology.base import counted, format_number, format_seconds

WORTH = 1.1
"""Another plan is worth a line when it writes this many times as many tokens a second."""


def compared(lead: PlanEstimate, rivals: Sequence[PlanEstimate], request: Request) -> Iterator[str]:
    """Say what the plan to run does under load, beside the next, and what would write more."""
    here = lead.serving
    if here is None:
        return
    yield f"{lead.plan} {_does(here)}"
    others = [(rival, rival.serving) for rival in rivals if rival.serving is not None]
    if others and (request.loaded or request.objective != "latency"):
        rival, there = others[0]
        yield f"next comes {rival.plan}, which {_does(there)}"
        return
    most = max(others, key=lambda pair: pair[1].tokens_per_s, default=None)
    if most is not None and most[1].tokens_per_s > WORTH * here.tokens_per_s:
        factor = most[1].tokens_per_s / here.tokens_per_s
        yield (
            f"for throughput use {most[0].plan}: {factor:.2f} times as many tokens/s, "
            f"{_with(most[1])}"
        )


def disaggregation(splits: Splits | None, lead: PlanEstimate | None) -> Iterator[str]:
    """Say what workers for prompts and others that decode do, beside one plan; where asked for."""
    if splits is None:
        return
    best = splits.best
    if best is None or best.serving is None:
        yield f"no two pools of workers: {splits.reason}"
        return
    gain = splits.gain(lead)
    beside = ""
    if gain is not None and lead is not None:
        percent = f"{100 * abs(gain - 1):.0f}"
        more = "as many" if percent == "0" else f"{percent} % {'more' if gain > 1 else 'fewer'}"
        beside = f", {more} tokens/s {'as' if percent == '0' else 'than'} {lead.plan}"
    yield f"{best.name} {_does(best.serving)}{beside}"


def _does(serving: Serving) -> str:
    return f"writes {format_number(serving.tokens_per_s_per_gpu)} tokens/s a GPU, {_with(serving)}"


def _with(serving: Serving) -> str:
    number = max(1, round(serving.concurrency))
    return (
        f"TTFT {format_seconds(serving.ttft.mean)} and TPOT {format_seconds(serving.tpot.mean)} "
        f"with {counted(number, 'request')} at once"
    )


def missed(rejected: Sequence[Rejected], request: Request) -> str:
    """Say that no plan does what is wanted, and which comes nearest; empty where none was tried."""
    for row, _ in near(rejected, request)[:1]:
        return f"no plan meets what is wanted: {row.plan} comes nearest, {row.reason}"
    return ""


def near(rejected: Sequence[Rejected], request: Request) -> list[tuple[Rejected, Serving]]:
    """List the plans that run but miss what is wanted, with what they do, the nearest first."""
    tried = [(row, row.nearest) for row in rejected if row.nearest is not None]
    return sorted(tried, key=lambda pair: (apart(pair[1], request), str(pair[0].plan)))


def apart(served: Serving, request: Request) -> tuple[float, float]:
    """Say how far from what is wanted something is served: more is further."""
    over = served.beyond(wanted_of(request))
    return (-served.requests_per_s if served.overloaded else -inf), over


def misses(request: Request, serving: Serving | None) -> Iterator[str]:
    """Say of a plan that was asked for which times it misses."""
    wanted = wanted_of(request)
    if serving is not None and not serving.meets(wanted):
        yield f"misses what is wanted: {' and '.join(serving.beside(wanted))}"
