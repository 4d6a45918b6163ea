"""Recommendations and estimates as a person reads them: tables and bars."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from planner.advice.notes import misses, notes_on, size_notes, throughput_note
from planner.placement.placement import visible_devices
from planner.plan_charts import cost_by_latency, frontier, host, memory, scaling, timelines
from planner.plan_table import bases, cost
from planner.recommendation import Recommendation, split_lines
from planner.rendering import engines
from planner.runners.launch import Launch
from planner.scenario.scenario import Scenario
from planner.search.clients import Point, wanted_of
from planner.search.estimate import PlanEstimate, worded
from planner.search.plan_memory import usable_bytes
from planner.search.ranking import hosts_in_words
from planner.search.speculation import words
from topology.base import counted, format_bytes, format_interval, format_number, format_seconds
from topology.base.table import Drawing, Line, Part, Said, Table, Title, Typed, bullets

BAR = 36
_NEAREST_TITLE: Final = (
    "plans as {} runs them, none of which meets what is wanted, the nearest first"
)
_RANKED_BY: Final = {
    "latency": "the time of a request", "throughput": "tokens/s", "memory": "memory",
    "cost": "tokens/s a GPU",
}  # fmt: skip
"""What plans under load are ranked by, by objective."""
_SPLITS_TITLE: Final = "workers for prompts and others that decode, on all GPUs"
Parts: TypeAlias = list[Part]
POINTS: Final = 12
"""Of a frontier that a table shows."""
FRONTIER_BAR: Final = 30
_USABLE_LABEL: Final = "what a plan may use"
_KNOWN_TITLE: Final = "How well the time of {} is known"
FRONTIER: Final = "TPOT against tokens/s a GPU: what no other plan and concurrency beats in both"


def recommendation(answer: Recommendation, *, top: int, rejected: bool = False) -> Parts:
    """Say everything that ``planner recommend`` prints as a table.

    top : plans to show. rejected : whether to say why others were rejected.
    """
    scenario, lead = answer.scenario, answer.lead
    first_notes = list(size_notes(scenario))
    parts: Parts = [Line(text=asked(scenario), style="bold"), *_note_lines(answer.notes)]
    parts += [*(Line(text=f"! {line}") for line in first_notes), ""]
    if lead is not None:
        engine_parts = list(engines.compared(answer.runs))
        parts += [
            *engines.to_run(answer.runs, lead, answer.fewer),
            "",
            *engine_parts,
            *([""] if engine_parts else []),
        ]
        parts += _note_lines([f"plans as {scenario.deployment.title} runs them"])
    else:
        parts += [*_note_lines(engines.unable(answer.runs)), ""]
    shown_answer, nearest_table = _shown_answer(answer, top), _nearest_table(answer, top)
    if nearest_table is not None:
        parts += [
            *_note_lines([_NEAREST_TITLE.format(scenario.deployment.title)]),
            nearest_table,
            "",
        ]
    if shown_answer.plans:
        reason = f"nothing that is known runs these, priced as {answer.request.runtime}:"
        reason_parts = [] if lead is not None else _note_lines([reason])
        parts += [
            *reason_parts,
            shown_answer.table(),
            *_note_lines(_table_notes(scenario, answer)),
            "",
        ]
    if answer.splits is not None and answer.splits.plans:
        lines = [[launch.engine, launch.line] for launch in split_lines(answer)]
        launch_table = Table(rows=lines, align="<", fixed=1, indent=2, typed=range(len(lines)))
        parts += [*_note_lines([_SPLITS_TITLE]), answer.splits_table(), launch_table, ""]
    if len(answer.frontier) > 1:
        parts += [*_note_lines([FRONTIER]), frontier_table(answer.frontier), ""]
    if answer.request.at_most_gpus and len(answer.scaling) > 1:
        title = "the best plan of each number of GPUs"
        parts += [*_note_lines([title]), _scaling_table(answer), ""]
    advice = (line for line in answer.advice if line not in first_notes)
    parts += [*bullets(advice), *engines.lighter(answer.alternatives)]
    parts += [*_note_lines(_footnote_lines(answer, top)), *engines.others(answer.runs)]
    rows = _rejections(answer)
    if rejected:
        parts += ["", Line(text="rejected:", style="bold"), Table(rows=rows, align="<", indent=2)]
    elif rows:
        parts += _note_lines([f"{counted(len(rows), 'plan')} rejected (--rejected shows why)"])
    return parts


def _rejections(answer: Recommendation) -> list[list[str]]:
    """List the plans that are illegal, do not fit, or are none of what runs the model, and why."""
    title = answer.scenario.deployment.title
    refused_rows = [[str(row.plan), f"not with {title}: {row.reason}"] for row in answer.refusals]
    return [*([str(row.plan), row.explanation] for row in answer.rejected), *refused_rows]


def _shown_answer(answer: Recommendation, top: int) -> Recommendation:
    """Keep the first plans: of those that can be run, where there are any."""
    runs = answer.lead or _nearest_table(answer, top)
    return replace(answer, plans=(answer.runnable if runs else answer.plans)[:top])


def _nearest_table(answer: Recommendation, top: int) -> Table | None:
    """Show the plans that run but miss what is wanted, where all do."""
    return None if answer.lead else engines.nearest(answer.rejected, answer.request, top)


def _footnote_lines(answer: Recommendation, top: int) -> list[str]:
    """Say what to watch, which better plans cannot be run, and how well all is known."""
    basis_lines = [] if answer.lead is None else [f"known: {bases(answer.lead)}"]
    return [*answer.footnotes(_shown_answer(answer, top).plans), *basis_lines]


def headline(scenario: Scenario) -> str:
    """Say in a line what was asked, defaults included, and what runs it."""
    engine = [scenario.deployment.engine] if scenario.deployment.engine else []
    return " · ".join([asked(scenario), scenario.deployment.runtime.name, *engine])


def asked(scenario: Scenario) -> str:
    """Say in a line what was asked, defaults included."""
    request, work = scenario.request, scenario.workload
    parts = [scenario.model.name, _machine_words(scenario)]
    defaults = scenario.model.defaults
    if scenario.model.kind == "diffusion":
        height, width = request.height or defaults.height, request.width or defaults.width
        parts.append(f"{width}x{height}, {work.frames} frame{'s' if work.frames != 1 else ''}")
        forwards = f"{work.passes} forwards" if work.passes > 1 else "1 forward"
        parts.append(f"{work.steps} steps of {forwards}")
    parts.append(_token_words(scenario))
    if work.batch != 1:
        parts.append(f"batch {work.batch}")
    draft_words = [] if work.speculation is None else [words(work.speculation)]
    return " · ".join([*parts, *draft_words, *_load_words(scenario), _precision_words(scenario)])


def _token_words(scenario: Scenario) -> str:
    """Say how many tokens each stream has, and which of a language model nobody asked for."""
    request, work = scenario.request, scenario.workload
    token_counts = [
        (f"{name} tokens" if name != "tokens" else "tokens in", n) for name, n in work.tokens
    ]
    if scenario.model.kind != "decoder":
        return ", ".join(f"{tokens:,} {label}" for label, tokens in token_counts)
    cached_counts = [("of them cached", work.cached)] if work.prefixed else []
    all_counts = [*token_counts, *cached_counts, ("out", work.output_tokens)]
    words = [f"{tokens:,} {label}" for label, tokens in all_counts]
    if scenario.lengths is not None or None not in (request.input_tokens, request.output_tokens):
        return ", ".join(words)
    if request.input_tokens is None and request.output_tokens is None:
        return f"{', '.join(words)}, both assumed"
    assumed_index = -1 if request.output_tokens is None else 0
    words[assumed_index] += " assumed"
    return ", ".join(words)


def _load_words(scenario: Scenario) -> list[str]:
    """Say how many requests come, and how soon tokens are wanted."""
    request, load = scenario.request, ""
    if request.concurrency:
        load = f"{counted(request.concurrency, 'request')} at once"
    elif request.rate:
        load = f"{request.rate:.3g} requests a second"
    elif scenario.trace:
        load = f"{counted(len(scenario.trace), 'request')} of a trace"
    return [*filter(None, [load]), *wanted_of(request).words()]


def _precision_words(scenario: Scenario) -> str:
    """Say how weights are stored, and where that is not as they were published."""
    published, precision = scenario.model.quantisation, scenario.workload.precision
    if published is None:
        return precision
    if scenario.as_published:
        return published.words
    return f"{precision}, published as {published.precision}"


def _machine_words(scenario: Scenario) -> str:
    """Say how many GPUs of what kind, and what joins their hosts."""
    deployment, gpus = scenario.deployment, scenario.request.gpus
    machine_text = f"{gpus} x {deployment.hardware.name}"
    hosts, hardware = deployment.hosts, deployment.hardware
    if hosts < 2 or deployment.subset is not None:
        return machine_text
    joined = hardware.island(gpus, deployment.nodes) == gpus
    return f"{machine_text} on {hosts} hosts over {'NVLink' if joined else hardware.network}"


def _note_lines(lines: Iterable[str]) -> list[Line]:
    return [Line(text=line, style="dim") for line in lines]


def _table_notes(scenario: Scenario, answer: Recommendation) -> Iterator[str]:
    """Say what the table's numbers are of.

    Of what the speed-up is over, where it is a GPU that could not hold the model; of a language
    model, how many requests each number is of.
    """
    single = answer.baseline
    if scenario.model.kind == "decoder":
        yield _request_note(answer)
    elif single is not None and single.memory_bytes > usable_bytes(scenario):
        yield (
            f"speed-up and efficiency are over one GPU, {format_seconds(single.latency_s)}, "
            f"had it the {format_bytes(single.memory_bytes)} that the model needs"
        )


def _request_note(answer: Recommendation) -> str:
    """Say how many requests the numbers of a language model are of."""
    alone_text, request = "latency is of a request by itself", answer.request
    if not any(plan.serving for plan in answer.plans):
        return f"{alone_text}, all else of a batch that starts and ends together"
    even = request.paced and request.objective == "throughput"  # all write as many tokens
    order = _RANKED_BY["latency" if even else request.objective]
    if request.loaded:
        return (
            f"request, TTFT, TPOT and tokens/s are means of the load asked for; ranked by {order}"
        )
    ranked = f"; ranked by {order}" if answer.scenario.ranked_under_load else ""
    return f"{alone_text}, TTFT, TPOT and tokens/s of as many at once as serve most{ranked}"


def _scaling_table(answer: Recommendation) -> Table:
    """Make a row of each number of GPUs: its plan, its time as a bar, and what a result costs."""
    bars = _bar_texts([estimate.latency_s for estimate in answer.scaling])
    host_words = partial(hosts_in_words, answer.scenario.deployment)
    rows = [
        [
            f"{best.gpus}{host_words(best.gpus)}",
            format_seconds(best.latency_s),
            cost(best),
            str(best.plan),
            bar,
        ]
        for best, bar in zip(answer.scaling, bars, strict=True)
    ]
    head = ("GPUs", "latency", "GPU-s per result", "plan", "")
    return Table(
        head=head, rows=rows, align=">>><", indent=2, head_in="dim", columns_in={4: "cyan"}
    )


def _launch_table(
    estimate: PlanEstimate, scenario: Scenario, launches: Sequence[Launch]
) -> Iterator[Line | Table]:
    """Say how engines run a plan, and which of them in another way than was priced."""
    yield Line(text=f"run {estimate.name}:", style="bold")
    yield Table(
        rows=[[launch.engine, launch.line or f"no: {launch.reason}"] for launch in launches],
        align="<",
        fixed=1,
        indent=2,
        rows_in={number: "dim" for number, launch in enumerate(launches) if not launch.line},
        columns_in={0: "dim"},
        typed=[number for number, launch in enumerate(launches) if launch.line],
    )
    yield from _note_lines(_runtime_notes(scenario, launches))


def _runtime_notes(scenario: Scenario, launches: Sequence[Launch]) -> Iterator[str]:
    """Say which engines run in another way than was priced."""
    priced = scenario.deployment.runtime.name
    if scenario.deployment.engine:
        return
    other_runtimes: dict[str, list[str]] = {}
    for launch in launches:
        if not launch.reason and launch.runtime not in ("", priced):
            other_runtimes.setdefault(launch.runtime, []).append(launch.engine)
    if other_runtimes:
        runs_text = "; ".join(
            f"{', '.join(names)} as {runtime}" for runtime, names in other_runtimes.items()
        )
        yield f"priced as {priced}; {runs_text} (--engine prices one)"


def estimate(scenario: Scenario, estimate: PlanEstimate, launches: Sequence[Launch]) -> Parts:
    """Say everything about one plan, with a bar for every part."""
    latency_text = format_interval(estimate.latency_s, estimate.half_width_s)
    served = estimate.serving
    alone_text = "" if served is None else " a request by itself"
    rate = estimate.throughput_per_s if served is None else served.requests_per_s
    total = (
        f"{estimate.name}: {latency_text}{alone_text}, {estimate.basis.name.lower()}; {rate:.3g} "
    )
    total += f"{'results' if served is None else 'requests'} a second, "
    total += f"bound by {estimate.bound_by}"
    subset = scenario.deployment.subset
    has_tokens = bool(estimate.token_rows())
    return [
        Line(text=headline(scenario), style="bold"),
        *_note_lines(() if subset is None else subset.notes()),
        total,
        *([visible_devices(estimate.placement.devices)] if estimate.placement else []),
        *_note_lines(notes_on(scenario, estimate)),
        *_note_lines(_throughput_notes(scenario, estimate)),
        *misses(scenario.request, estimate.serving),
        *([Table(rows=estimate.token_rows(), align="<", indent=2)] if has_tokens else []),
        "",
        *_note_lines(["time by stage"]),
        *_part_rows(estimate.stages_s, format_seconds),
        *_note_lines(["time by part"]),
        *_part_rows(estimate.breakdown_s, format_seconds),
        *_note_lines([f"communication hidden: {format_seconds(estimate.communication_hidden_s)}"]),
        *_note_lines([f"memory: {_memory_words(estimate)}"]),
        *_part_rows(estimate.memory_parts_bytes, format_bytes),
        *_launch_table(estimate, scenario, launches),
    ]


def _throughput_notes(scenario: Scenario, estimate: PlanEstimate) -> Iterator[str]:
    """Say what results a second are of; under load there is no batch to choose."""
    if estimate.serving is None:
        yield from throughput_note(scenario.model.kind, scenario.request.batch, estimate.gpus)


def _memory_words(estimate: PlanEstimate) -> str:
    """Say the peak, and which part is not there when it is reached."""
    absent_part = estimate.memory_apart
    return f"{format_bytes(estimate.memory_bytes)}, peak at {worded(estimate.peak_stage)}" + (
        f", when {worded(absent_part)} are gone" if absent_part == "activations" else ""
    )


def _part_rows(parts: Mapping[str, float], written: Callable[[float], str]) -> Parts:
    """Make a row of each part that is not nothing, with a bar."""
    shown_parts = {worded(name): value for name, value in parts.items() if value}
    bars = _bar_texts(list(shown_parts.values()))
    rows = [
        [name, written(value), bar]
        for (name, value), bar in zip(shown_parts.items(), bars, strict=True)
    ]
    table = Table(rows=rows, align="<><", indent=2, columns_in={2: "cyan"})
    return [table, ""] if rows else [""]


def _bar_texts(values: Sequence[float]) -> list[str]:
    """Draw values as bars, the longest for the largest."""
    top = max(values, default=0.0)
    return ["█" * max(1, round(BAR * value / top)) if top else "" for value in values]


def recommendation_page(answer: Recommendation, *, top: int) -> Parts:
    """Say everything that ``planner recommend`` says in a document, on a page with its charts."""
    scenario, lead, shown_answer = answer.scenario, answer.lead, _shown_answer(answer, top)
    parts: Parts = [Title(text=asked(scenario), level=1), *answer.notes]
    if lead is not None:
        for sentence, line in engines.headlines(answer.runs[0], lead, answer.fewer):
            parts += [Title(text=sentence), Typed(line=line)]
        parts += [*engines.unfinished(answer.runs), engines.table(answer.runs)]
    if (nearest_table := _nearest_table(answer, top)) is not None:
        parts += [Title(text=_NEAREST_TITLE.format(scenario.deployment.title)), nearest_table]
    if shown_answer.plans:
        parts += [Title(text="Plans"), shown_answer.table(), *_table_notes(scenario, answer)]
    if answer.splits is not None and answer.splits.plans:
        parts += [Title(text=_SPLITS_TITLE), answer.splits_table()]
        parts += [part for launch in split_lines(answer) for part in _launch_parts(launch)]
    if answer.frontier:
        frontier_svg = frontier(FRONTIER, answer.frontier)
        parts += [Drawing(svg=frontier_svg), frontier_table(answer.frontier, bars=False)]
    parts += _charts(answer, shown_answer.plans)
    notes = [*answer.advice, *answer.footnotes(shown_answer.plans)]
    parts += [Title(text="What to know"), Said(lines=notes)]
    parts += [] if lead is None else _basis_table(lead)
    return [*parts, _host_drawing(scenario), *engines.on_page(answer.runs, answer.alternatives)]


def _charts(answer: Recommendation, plans: Sequence[PlanEstimate]) -> Parts:
    """Draw plans against each other."""
    usable = usable_bytes(answer.scenario)
    cost = "" if answer.frontier else cost_by_latency(answer.priced)
    charts = [cost, scaling(answer.priced)]
    if plans:
        charts += [timelines(plans[:1]), memory(plans, (usable, _USABLE_LABEL))]
    return [Drawing(svg=svg) for svg in charts if svg]


def _host_drawing(scenario: Scenario) -> Drawing:
    """Draw the host that plans run on, or one of them."""
    from topology.machine import machine_of  # noqa: PLC0415  # for pages alone

    deployment = scenario.deployment
    subset = deployment.subset
    return host(machine_of(deployment.hardware, 1) if subset is None else subset.machine)


def _basis_table(estimate: PlanEstimate) -> Parts:
    """Say how well each part of the time is known."""
    half_widths = {
        name: estimate.half_width_of({name: s}) for name, s in estimate.breakdown_s.items()
    }
    rows = [
        [
            worded(name),
            format_interval(seconds, half_widths[name]),
            estimate.known[name].name.lower(),
        ]
        for name, seconds in estimate.breakdown_s.items()
        if seconds and name in estimate.known
    ]
    head = ("part of the time", "takes", "known from")
    return [
        Title(text=_KNOWN_TITLE.format(estimate.name)),
        Table(head=head, rows=rows, align="<><"),
    ]


def estimate_page(scenario: Scenario, estimate: PlanEstimate, launches: Sequence[Launch]) -> Parts:
    """Say everything about one plan in a document, on a page with its charts."""
    latency_text = format_interval(estimate.latency_s, estimate.half_width_s)
    usable = usable_bytes(scenario)
    return [
        Title(text=headline(scenario), level=1),
        Title(text=f"{estimate.name}: {latency_text}, {format_bytes(estimate.memory_bytes)} a GPU"),
        *misses(scenario.request, estimate.serving),
        Drawing(svg=timelines([estimate])),
        Drawing(svg=memory([estimate], (usable, _USABLE_LABEL))),
        estimate.table(),
        Title(text="What to know"),
        Said(lines=[*notes_on(scenario, estimate), *_throughput_notes(scenario, estimate)]),
        *_basis_table(estimate),
        _host_drawing(scenario),
        Title(text="What to type"),
        *(part for launch in launches for part in _launch_parts(launch)),
    ]


def _launch_parts(launch: Launch) -> Parts:
    """Say how an engine runs a plan, or why it does not."""
    if not launch.line:
        return [f"{launch.engine}: no, {launch.reason}"]
    return [f"{launch.engine}:", Typed(line=launch.line)]


def frontier_table(points: Sequence[Point], *, bars: bool = True) -> Table:
    """Make a row of each point, of many as many as are read, the quickest first."""
    step = max(1, -(-len(points) // POINTS))
    shown_points = [*points[::-1][::step]][::-1]
    top = max(point.tokens_per_s_per_gpu for point in shown_points)
    rows = [
        [
            format_seconds(point.tpot_s),
            format_number(point.tokens_per_s_per_gpu),
            format_number(point.serving.concurrency),
            format_seconds(point.serving.ttft.mean),
            str(point.plan),
            *(
                ["█" * max(1, round(FRONTIER_BAR * point.tokens_per_s_per_gpu / top))]
                if bars
                else []
            ),
        ]
        for point in shown_points
    ]
    head = ("TPOT", "tokens/s a GPU", "at once", "TTFT", "plan", *([""] if bars else []))
    return Table(
        head=head, rows=rows, align=">>>><", indent=2, head_in="dim", columns_in={5: "cyan"}
    )
