"""Answers as a person reads them: tables and bars. Only this module of `planner` imports rich."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from costmodels.program.ops import Size
from planner.advice.refusals import SIGN, marks_of
from planner.advice.refusals import footnotes as marked
from planner.engines.launch import Launch
from planner.engines.tables import engine as find_engine
from planner.engines.told import hosts_of
from planner.placement.placement import visible
from planner.request.request import EXECUTOR, Request
from planner.search.evaluate import room
from planner.search.outcome import Mark, PlanEstimate, worded
from planner.search.remarks import context_remark, throughput_remark
from planner.search.search import Recommendation, Scenario
from topology.base import format_bytes, format_interval, format_seconds

BAR = 36


def recommendation(
    scenario: Scenario, answer: Recommendation, launches: Sequence[Launch], *, rejected: bool
) -> RenderableType:
    """Everything that ``planner recommend`` prints as a table."""
    parts: list[RenderableType] = [headline(scenario), *_notes(answer.notes)]
    if answer.plans:
        lead = answer.lead or answer.plans[0]
        parts += [Text(), ranking(answer), *_notes(_baseline(scenario, answer)), Text()]
        if answer.request.at_most_gpus and len(answer.scaling) > 1:
            parts += [Text("the best plan of each number of GPUs", style="dim"), _scaling(answer)]
        parts += [
            _bullets(answer.advice),
            *_notes(_footnotes(scenario, answer.plans, answer.marks, answer.lead)),
        ]
        parts += [Text(f"  known: {_known(lead)}", style="dim"), Text()]
        parts += [Text(f"run {lead.plan}:", style="bold"), _launches(launches)]
        parts += _notes(_runtimes(scenario, launches))
    else:
        parts += [Text(), _bullets(answer.advice)]
    if rejected:
        parts += [Text(), Text("rejected:", style="bold"), _rejected(answer)]
    elif answer.rejected:
        some = f"{len(answer.rejected)} plan{'s' if len(answer.rejected) > 1 else ''}"
        parts += [Text(f"{some} rejected (--rejected shows why)", style="dim")]
    return Group(*parts)


def headline(scenario: Scenario) -> Text:
    """One line that says what was asked, defaults included."""
    request, work = scenario.request, scenario.workload
    said = [scenario.model.name, _machine(scenario)]
    usual = scenario.model.defaults
    if scenario.model.kind == "diffusion":
        height, width = request.height or usual.height, request.width or usual.width
        said.append(f"{width}x{height}, {work.frames} frame{'s' if work.frames != 1 else ''}")
        forwards = f"{work.passes} forwards" if work.passes > 1 else "1 forward"
        said.append(f"{work.steps} steps of {forwards}")
    else:
        said.append(f"{work.output_tokens} tokens out")
    said.append(", ".join(_stream(name, tokens) for name, tokens in work.tokens))
    if work.batch != 1:
        said.append(f"batch {work.batch}")
    engine = [scenario.deployment.engine] if scenario.deployment.engine else []
    said += [work.precision, scenario.deployment.runtime.name, *engine]
    return Text(" · ".join(said), style="bold")


def _machine(scenario: Scenario) -> str:
    """Say how many GPUs of what kind, and which network joins their hosts."""
    deployment, gpus = scenario.deployment, scenario.request.gpus
    said = f"{gpus} x {deployment.hardware.name}"
    hosts = hosts_of(gpus, deployment)
    if hosts < 2 or deployment.subset is not None:
        return said
    return f"{said} on {hosts} hosts over {deployment.hardware.network}"


def _stream(name: str, tokens: Size) -> str:
    return f"{tokens:,} tokens in" if name == "tokens" else f"{tokens:,} {name} tokens"


def _notes(lines: Iterable[str]) -> list[RenderableType]:
    """Say what was assumed about a machine, and which plans were left out."""
    return [Text(line, style="dim") for line in lines]


def ranking(answer: Recommendation) -> Table:
    """One row a plan, best first, and last the one to run where it is none of them."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("#", justify="right")
    for name in _columns(answer.request):
        table.add_column(name, justify="left" if name in ("plan", "bound by") else "right")
    for number, one in enumerate(_listed(answer), 1):
        place = str(number) if number <= len(answer.plans) else ".."
        style = "bold" if one is answer.lead else ""
        table.add_row(place, *_cells(one, answer), style=style)
    return table


def _listed(answer: Recommendation) -> tuple[PlanEstimate, ...]:
    """Return the plans to show: the first ones, and the one to run where it is none of them."""
    lead = answer.lead
    return answer.plans if lead is None or lead in answer.plans else (*answer.plans, lead)


def _cells(one: PlanEstimate, answer: Recommendation) -> list[str]:
    """Write a row, with a sign at a plan that cannot be run."""
    name, *rest = _row(one, answer)
    barred = any(mark.plan == one.plan for mark in answer.marks)
    return [f"{name} {SIGN}" if barred else name, *rest]


def _footnotes(
    scenario: Scenario,
    plans: Sequence[PlanEstimate],
    marks: Sequence[Mark],
    lead: PlanEstimate | None = None,
) -> list[str]:
    """Say which of the plans shown cannot be run, and what to watch with the others."""
    if scenario.deployment.engine not in ("", EXECUTOR):
        return marked(find_engine(scenario.deployment.engine).title, plans, marks, lead)
    if scenario.deployment.runtime.name != "tensorrt":
        return []
    from planner.advice.tensorrt_refusals import footnotes  # noqa: PLC0415  # of one runtime

    return footnotes(scenario, plans, marks)


def _baseline(scenario: Scenario, answer: Recommendation) -> Iterator[str]:
    """Say what the speed-up is over, where it is a GPU that could not hold the model."""
    one = answer.baseline
    if one is not None and one.memory_bytes > room(scenario.deployment, scenario.model.kind):
        yield (
            f"speed-up and efficiency are over one GPU, {format_seconds(one.latency_s)}, "
            f"had it the {format_bytes(one.memory_bytes)} that the model needs"
        )


def _scaling(answer: Recommendation) -> RenderableType:
    """One row a number of GPUs: the plan, its time as a bar, and what a result costs."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("GPUs", "latency", "GPU-s a result"):
        table.add_column(name, justify="right")
    table.add_column("plan")
    table.add_column("")
    longest = max(one.latency_s for one in answer.scaling)
    for one in answer.scaling:
        bar = "█" * max(1, round(BAR * one.latency_s / longest))
        cost = _three(one.gpus / one.throughput_per_s)
        cells = [str(one.gpus), format_seconds(one.latency_s), cost, str(one.plan)]
        table.add_row(*cells, Text(bar, style="cyan"))
    return Padding(table, (0, 0, 1, 2))


def _columns(request: Request) -> list[str]:
    """Name the columns: the usual ones, and what plans are ranked by if it is none of them."""
    more = {"throughput": ["results/s"], "cost": ["GPU-s a result"]}.get(request.objective, [])
    counts = ["GPUs"] if request.at_most_gpus else []
    usual = ["latency", "speed-up", "efficiency", "memory", "exposed comm", "bound by"]
    return ["plan", *counts, *more, *usual]


def _row(one: PlanEstimate, answer: Recommendation) -> list[str]:
    baseline, request = answer.baseline, answer.request
    speed = baseline.latency_s / one.latency_s if baseline else 0.0
    exposed = one.breakdown_s.get("communication_exposed", 0.0)
    goal = {
        "throughput": [f"{one.throughput_per_s:.3g}"],
        "cost": [_three(one.gpus / one.throughput_per_s)],
    }.get(request.objective, [])
    return [
        str(one.plan),
        *([str(one.gpus)] if request.at_most_gpus else []),
        *goal,
        format_interval(one.latency_s, one.half_width_s),
        f"{speed:.2f}x" if baseline else "-",
        f"{100 * speed / one.gpus:.0f} %" if baseline else "-",
        format_bytes(one.memory_bytes),
        f"{format_seconds(exposed)} ({100 * exposed / one.latency_s:.0f} %)",
        one.bound_by.replace(" of the time", ""),
    ]


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _known(one: PlanEstimate) -> str:
    parts = [
        f"{worded(name)} {basis.name.lower()}"
        for name, basis in one.known.items()
        if one.breakdown_s.get(name, 0.0) >= 0.01 * one.latency_s
    ]
    return ", ".join(parts)


def _bullets(lines: Iterable[str]) -> RenderableType:
    return Group(*[Text(f"- {line}") for line in lines])


def _launches(launches: Sequence[Launch]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for launch in launches:
        table.add_row(launch.engine, launch.line or Text(f"no: {launch.reason}", style="dim"))
    return Padding(table, (0, 0, 0, 2))


def _runtimes(scenario: Scenario, launches: Sequence[Launch]) -> Iterator[str]:
    """Say which engines run in another way than was priced."""
    priced = scenario.deployment.runtime.name
    if scenario.deployment.engine:
        return
    others: dict[str, list[str]] = {}
    for one in launches:
        if not one.reason and one.runtime not in ("", priced):
            others.setdefault(one.runtime, []).append(one.engine)
    if others:
        said = "; ".join(f"{', '.join(names)} as {how}" for how, names in others.items())
        yield f"priced as {priced}; {said} (--engine prices one)"


def _rejected(answer: Recommendation) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for one in answer.rejected:
        table.add_row(str(one.plan), one.said)
    return Padding(table, (0, 0, 0, 2))


def estimate(scenario: Scenario, one: PlanEstimate, launches: Sequence[Launch]) -> RenderableType:
    """One plan in full, a bar for every part."""
    took = format_interval(one.latency_s, one.half_width_s)
    total = f"{one.plan}: {took}, {one.basis.name.lower()}"
    rate = f"{one.throughput_per_s:.3g} results a second, bound by {one.bound_by}"
    return Group(
        headline(scenario),
        *_notes(() if scenario.deployment.subset is None else scenario.deployment.subset.notes()),
        Text(f"{total}; {rate}"),
        *([Text(visible(one.placement.devices))] if one.placement else []),
        *_notes(remarks_of(scenario, one)),
        *_notes(throughput_remark(scenario.model.kind, scenario.request.batch, one.gpus)),
        Text(),
        Text("time by stage", style="dim"),
        _bars({worded(k): v for k, v in one.stages_s.items()}, format_seconds),
        Text("time by part", style="dim"),
        _bars({worded(k): v for k, v in one.breakdown_s.items()}, format_seconds),
        Text(f"communication hidden: {format_seconds(one.communication_hidden_s)}", style="dim"),
        Text(f"memory: {_memory(one)}", style="dim"),
        _bars({worded(k): v for k, v in one.memory_parts_bytes.items()}, format_bytes),
        Text(f"run {one.plan}:", style="bold"),
        _launches(launches),
        *_notes(_runtimes(scenario, launches)),
    )


def _memory(one: PlanEstimate) -> str:
    """Say the peak, and which part is not there when it is reached."""
    gone = one.memory_apart
    return f"{format_bytes(one.memory_bytes)}, peak at {worded(one.peak_stage)}" + (
        f", when {worded(gone)} are gone" if gone == "activations" else ""
    )


def _bars(parts: Mapping[str, float], show: "object") -> RenderableType:
    top = max(parts.values(), default=0.0)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value in parts.items():
        if value:
            bar = "█" * max(1, round(BAR * value / top)) if top else ""
            table.add_row(name, show(value), Text(bar, style="cyan"))  # type: ignore[operator]
    return Padding(table, (0, 0, 1, 2))


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def pairs(described: Mapping[str, object], style: str) -> str:
    """Write names and values, one pair a line."""
    rows = [[key, _plain(value)] for key, value in described.items()]
    if style == "markdown":
        return markdown(["", ""], rows)
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)


def _plain(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(inner) for inner in value)
    return str(value)


def recommendation_markdown(
    scenario: Scenario, answer: Recommendation, launches: Sequence[Launch]
) -> str:
    """Everything that ``planner recommend`` says, for a document."""
    return "\n".join(_recommendation_lines(scenario, answer, launches))


def _recommendation_lines(
    scenario: Scenario, answer: Recommendation, launches: Sequence[Launch]
) -> Iterator[str]:
    yield f"**{headline(scenario).plain}**"
    yield ""
    if answer.plans:
        rows = [_cells(one, answer) for one in _listed(answer)]
        yield markdown(_columns(answer.request), rows)
        yield ""
        for line in _baseline(scenario, answer):
            yield f"- {line}"
    below = _footnotes(scenario, answer.plans, answer.marks, answer.lead)
    for line in (*answer.notes, *answer.advice, *below):
        yield f"- {line}"
    yield from (f"- {line}" for line in _runs(launches))


def remarks_of(scenario: Scenario, one: PlanEstimate) -> list[str]:
    """Say what to know of a plan: what is done to make it legal, and who cannot run it."""
    beyond = context_remark(scenario.model, scenario.workload)
    return [*one.remarks, *beyond, *_footnotes(scenario, [one], marks_of(scenario, [one]))]


def estimate_markdown(scenario: Scenario, one: PlanEstimate, launches: Sequence[Launch]) -> str:
    """One plan in full, for a document."""
    rows = [["latency", format_interval(one.latency_s, one.half_width_s)]]
    rows += [[f"stage {worded(k)}", format_seconds(v)] for k, v in one.stages_s.items()]
    rows += [[worded(k), format_seconds(v)] for k, v in one.breakdown_s.items()]
    rows += [["memory", f"{format_bytes(one.memory_bytes)} at {worded(one.peak_stage)}"]]
    rows += [[f"memory {worded(k)}", format_bytes(v)] for k, v in one.memory_parts_bytes.items()]
    rows += [["bound by", one.bound_by], ["basis", one.basis.name.lower()]]
    if one.placement:
        rows.append(["GPUs", visible(one.placement.devices)])
    table = markdown([str(one.plan), ""], rows)
    below = (
        *remarks_of(scenario, one),
        *throughput_remark(scenario.model.kind, scenario.request.batch, one.gpus),
        *_runs(launches),
    )
    return "\n".join(
        [f"**{headline(scenario).plain}**", "", table, "", *(f"- {line}" for line in below)]
    )


def _runs(launches: Sequence[Launch]) -> Iterator[str]:
    """Say how engines run a plan, for a document."""
    for one in launches:
        yield f"{one.engine}: " + (f"`{one.line}`" if one.line else f"no, {one.reason}")


def render(what: RenderableType, width: int, *, colour: bool) -> str:
    """Turn something to show into text of at most `width` columns."""
    console = Console(
        width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    with console.capture() as captured:
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
