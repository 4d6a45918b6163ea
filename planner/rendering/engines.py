"""What can run a request, and what to type for it: the top of a recommendation."""

from collections.abc import Iterator, Sequence

from planner.advice.remedies import Alternative
from planner.engines.engine import EAGER
from planner.plan_table import time_name
from planner.request.request import Request
from planner.runners.launch import launched
from planner.runners.runners import Contender, exported
from planner.search.estimate import PlanEstimate, Rejected
from planner.search.ranking import goal, near, seconds_of
from topology.base import counted, format_bytes, format_interval, format_number, format_seconds
from topology.base.table import Line, Part, Said, Table, Title, Typed


def to_run(
    runs: Sequence[Contender], lead: PlanEstimate, fewer: PlanEstimate | None
) -> Iterator[Line | Typed]:
    """Say what to run, with what, how long it takes, and what to type; see `headlines`."""
    for sentence, typed_line in headlines(runs[0], lead, fewer):
        yield Line(text=sentence, style="bold")
        yield Typed(line=typed_line)
    for part in unfinished(runs):
        yield part if isinstance(part, Typed) else Line(text=part, style="dim")


def typed(run: Contender) -> list[Typed]:
    """Say what to type for it, if anything."""
    return [] if run.launch is None else [Typed(line=run.launch.line)]


def unfinished(runs: Sequence[Contender]) -> Iterator[str | Typed]:
    """Say what an exported plan makes, and what to type for the fastest of other engines."""
    yield from _passed_over_note(runs)
    export_note, best = exported(runs[0].scenario), _best_other_engine(runs)
    if export_note and best is not None and best.estimate is not None:
        yield f"{export_note}; the fastest of other engines: {_named_run(best, best.estimate)}"
        yield from typed(best)
    elif export_note:
        yield export_note


def _passed_over_note(runs: Sequence[Contender]) -> Iterator[str]:
    """Say what is faster than the lead, and stands behind it as it makes no result."""
    request = runs[0].scenario.request
    for run in runs[1:2]:
        if runs[0].estimate is None or run.estimate is None or run.estimate.unproven:
            continue
        if goal(run.estimate, request) < goal(runs[0].estimate, request):
            yield f"too close to call: {_named_run(run, run.estimate)}; {exported(run.scenario)}"


def _best_other_engine(runs: Sequence[Contender]) -> Contender | None:
    """Find the fastest engine, where what is exported comes first."""
    if not exported(runs[0].scenario):
        return None
    priced_runs = (run for run in runs if run.estimate is not None)
    return next((run for run in priced_runs if not exported(run.scenario)), None)


def headlines(
    run: Contender, lead: PlanEstimate, fewer: PlanEstimate | None = None
) -> Iterator[tuple[str, str]]:
    """Say what to run, with what, and how long it takes, a sentence and what to type for each.

    fewer : on fewer GPUs, a replica of the lead, which makes no result sooner, or a faster plan.
    """
    verb = "Run"
    if fewer is not None:
        is_replica = fewer.plan == lead.plan.without("dp")
        use_words = "For one result at a time use" if is_replica else "Use"
        more_words = (
            "For throughput run" if lead.serving is None else f"On all {lead.gpus} GPUs run"
        )
        verb = more_words if is_replica else f"All {lead.gpus} are slower:"
        smaller_scenario = run.scenario.on(fewer.gpus)
        line = launched(smaller_scenario, fewer.plan, fewer.placement, fewer.told).line
        yield f"{use_words} {counted(fewer.gpus, 'GPU')}: {_named_run(run, fewer)}", line
    request = run.scenario.request
    count = f" on {counted(lead.gpus, 'GPU')}" if request.at_most_gpus else ""
    throughput = request.objective == "throughput" and not run.scenario.ranked_under_load
    throughput_text = f"; {lead.throughput_per_s:.3g} results a second" if throughput else ""
    line = "" if run.launch is None else run.launch.line
    yield f"{verb} {_named_run(run, lead)}{count}{throughput_text}", line


def _named_run(run: Contender, estimate: PlanEstimate) -> str:
    """Say which plan runs with what, how long it takes and what it holds, or what clients see."""
    runtime_text = f" ({estimate.runtime})" if estimate.runtime.startswith("torch") else ""
    return f"{estimate.plan} with {run.title}{runtime_text}: {_result_words(run, estimate)}"


def _result_words(run: Contender, estimate: PlanEstimate) -> str:
    """Say how long a result takes and what it holds; under load what clients see."""
    if run.scenario.ranked_under_load and estimate.serving is not None:
        served = estimate.serving
        at_once = f"{format_number(served.concurrency)} at once"
        times = f"TTFT {served.ttft_text}, TPOT {served.tpot_text}"
        return f"{times}, {served.rate_text} tokens/s with {at_once}"
    latency_text = format_interval(estimate.latency_s, estimate.half_width_s)
    alone_text = " for a request by itself" if run.scenario.model.kind == "decoder" else ""
    load = estimate.serving
    at_once = "" if load is None else f" with {format_number(load.concurrency)} at once"
    return f"{latency_text}{alone_text}, {format_bytes(estimate.memory_bytes)} a GPU{at_once}"


def compared(runs: Sequence[Contender]) -> Iterator[Line | Table]:
    """Make a row of each that may run a request, and a line of those that cannot."""
    if len(runs) > 1:
        yield table(runs)
    yield from (Line(text=line, style="dim") for line in unable(runs))


def table(runs: Sequence[Contender]) -> Table:
    """Make a row of each that can run a request: its version, runtime, best plan and time."""
    runnable = [(run, run.estimate) for run in runs if run.estimate is not None]
    request = runs[0].scenario.request
    head = ["engine", "version", "runtime", "plan", *_time_cells(runnable[0][1], request)]
    rows = [
        [
            run.title,
            run.version,
            run.scenario.deployment.runs_as,
            str(best.plan),
            *_time_cells(best, request).values(),
            format_bytes(best.memory_bytes),
            _gain_over_eager(run, best, runs),
        ]
        for run, best in runnable
    ]
    gain_head = "over eager" if any(row[-1] for row in rows) else ""
    align = "<<<<" + ">" * (len(head) - 2)
    return Table(
        head=[*head, "memory", gain_head], rows=rows, align=align, fixed=4, head_in="dim",
        rows_in={0: "bold"},
    )  # fmt: skip


def _time_cells(best: PlanEstimate, request: Request) -> dict[str, str]:
    """Write what is compared: latency, and of a model that is served what clients see together."""
    latency = {time_name(request): format_seconds(seconds_of(best, request))}
    if best.serving is None:
        throughput_cells = {"results/s": f"{best.throughput_per_s:.3g}"}
        return {**(throughput_cells if request.objective == "throughput" else {}), **latency}
    ttft, tpot, rate = best.tokens
    token_cells = {"TTFT": format_seconds(ttft), "TPOT": format_seconds(tpot)}
    return {**latency, "at once": format_number(best.serving.concurrency), **token_cells,
            "tokens/s": format_number(rate)}  # fmt: skip


def _gain_over_eager(run: Contender, best: PlanEstimate, runs: Sequence[Contender]) -> str:
    """Say how many times as fast an engine is as in eager PyTorch."""
    for other in runs:
        eager = other.estimate
        same_engine = (other.title, other.version) == (run.title, run.version)
        if eager is not None and same_engine and eager.runtime == EAGER:
            gain = eager.latency_s / best.latency_s
            return f"{gain:.2f}x" if best.runtime != EAGER else ""
    return ""


def unable(runs: Sequence[Contender]) -> Iterator[str]:
    """Say of those that cannot run a request why, each reason once."""
    unable_runs = [run for run in runs if run.estimate is None]
    for reason in dict.fromkeys(run.reason for run in unable_runs):
        names = ", ".join(run.title for run in unable_runs if run.reason == reason)
        yield f"{names}: {reason}"


def nearest(rejected: Sequence[Rejected], request: Request, top: int) -> Table | None:
    """Make a row of each plan that runs but misses what is wanted; None where there is none."""
    rows = [
        [
            str(row.plan),
            format_number(served.concurrency),
            format_seconds(served.ttft.mean),
            format_seconds(served.tpot.mean),
            format_number(served.tokens_per_s),
            format_number(served.tokens_per_s_per_gpu),
        ]
        for row, served in near(rejected, request)[:top]
    ]
    head = ("plan", "at once", "TTFT", "TPOT", "tokens/s", "a GPU")
    return Table(head=head, rows=rows, align="<>>>>>", fixed=1, head_in="dim") if rows else None


def lighter(alternatives: Sequence[Alternative]) -> Iterator[Line | Typed]:
    """Say what else could be asked for, what runs that, and what to type."""
    for sentence, lines in _alternative_lines(alternatives):
        yield Line(text=f"- {sentence}")
        yield from (Typed(line=line, indent=4) for line in lines)


def _alternative_lines(alternatives: Sequence[Alternative]) -> Iterator[tuple[str, list[str]]]:
    for other in alternatives:
        run, estimate = other.run, other.run.estimate
        if estimate is not None and run.launch is not None:
            headline = f"{other.options}: {_named_run(run, estimate)}"
            remarks = list(unfinished(other.runs))
            lines = [part.line for part in remarks if isinstance(part, Typed)]
            remark_texts = [part for part in remarks if not isinstance(part, Typed)]
            yield "; ".join([headline, *remark_texts]), [run.launch.line, *lines]


def others(runs: Sequence[Contender]) -> Iterator[str | Line | Table]:
    """Say what to type for engines beside the first, in the best of their runtimes."""
    engine_lines = _engine_lines(runs)
    if engine_lines:
        yield ""
        yield Line(text="with others:", style="bold")
        yield Table(
            rows=engine_lines,
            align="<",
            fixed=1,
            indent=2,
            columns_in={0: "dim"},
            typed=range(len(engine_lines)),
        )


def _engine_lines(runs: Sequence[Contender]) -> list[tuple[str, str]]:
    """List engines that are not typed above, each with its line."""
    lines: dict[str, str] = {}
    for run in runs:
        if run.launch is not None:
            lines.setdefault(run.title, run.launch.line)
    titles_above, best = list(lines)[:1], _best_other_engine(runs)
    titles_above += [] if best is None else [best.title]
    return [(title, line) for title, line in lines.items() if title not in titles_above]


def on_page(runs: Sequence[Contender], alternatives: Sequence[Alternative]) -> Iterator[Part]:
    """Say on a page what to type, for other requests and engines too, and who cannot."""
    engine_lines = [(title, [line]) for title, line in _engine_lines(runs)]
    sections = [*_alternative_lines(alternatives), *engine_lines]
    if sections:
        yield Title(text="With others")
    for sentence, lines in sections:
        yield f"{sentence}:"
        yield from (Typed(line=line) for line in lines)
    yield Said(lines=list(unable(runs)))
