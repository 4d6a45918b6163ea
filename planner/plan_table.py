"""Plans side by side: a row each, with what they take, hold and cost."""

from collections.abc import Callable, Container, Sequence
from typing import Final

from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.refusal import SIGN
from planner.search.estimate import PlanEstimate, worded
from planner.search.ranking import seconds_of
from topology.base import format_bytes, format_interval, format_seconds
from topology.base.table import Table

_RESULT_COLUMNS: Final = ("latency", "speed-up", "efficiency", "memory", "exposed comm", "bound by")
_TOKEN_COLUMNS: Final = ("at once", "TTFT", "TPOT", "tokens/s", "a GPU", "memory", "bound by")
_GOAL_COLUMNS: Final = {"throughput": ("results/s",), "cost": ("GPU-s per result",)}


def plan_rows(
    plans: Sequence[PlanEstimate],
    request: Request,
    baseline: PlanEstimate | None,
    barred: Container[Plan],
    where: Callable[[int], str] = lambda _: "",
) -> Table:
    """Make a row of each plan, with a sign at those that are barred.

    Columns are the usual ones, and what plans are ranked by if it is none of them.
    baseline : one GPU, which speed-ups are over. where : says the hosts of so many GPUs.
    """
    writes_tokens = any("prefill" in plan.stages_s for plan in plans[:1])
    simulated = any(plan.simulated_s is not None for plan in plans)
    optional_columns = (("GPUs", request.at_most_gpus), ("simulated", simulated))
    leading_columns = [name for name, shown in optional_columns if shown]
    result_columns = (*_GOAL_COLUMNS.get(request.objective, ()), *_RESULT_COLUMNS)
    columns = (time_name(request), *_TOKEN_COLUMNS) if writes_tokens else result_columns
    rows = [
        [
            f"{plan.name} {SIGN}" if plan.plan in barred else plan.name,
            *([f"{plan.gpus}{where(plan.gpus)}"] if request.at_most_gpus else []),
            *([_seconds(plan.simulated_s)] if simulated else []),
            *(
                _token_cells(plan, request)
                if writes_tokens
                else _result_cells(plan, request, baseline)
            ),
            plan.bound_by.replace(" of the time", ""),
        ]
        for plan in plans
    ]
    return Table(head=["plan", *leading_columns, *columns], rows=rows)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def numbered_table(plain: Table, plans: Sequence[PlanEstimate], lead: PlanEstimate | None) -> Table:
    """Give the rows of plans numbers, and set off the one to run."""
    return Table(
        head=["#", *plain.head],
        rows=[[str(number + 1), *row] for number, row in enumerate(plain.rows)],
        align=">" + "".join("<" if name in ("plan", "bound by") else ">" for name in plain.head),
        fixed=2,  # a plan is not broken
        head_in="dim",
        rows_in={number: "bold" for number, plan in enumerate(plans) if plan is lead},
    )


def _result_cells(plan: PlanEstimate, request: Request, baseline: PlanEstimate | None) -> list[str]:
    """Write the time of a result, what it gains over one GPU, and what it holds."""
    speed_up = baseline.latency_s / plan.latency_s if baseline else 0.0
    exposed = plan.exposed_s
    goal_cells = {"throughput": [f"{plan.throughput_per_s:.3g}"], "cost": [cost(plan)]}
    return [
        *goal_cells.get(request.objective, []),
        format_interval(plan.latency_s, plan.half_width_s),
        f"{speed_up:.2f}x" if baseline else "-",
        f"{100 * speed_up / plan.gpus:.0f} %" if baseline else "-",
        format_bytes(plan.memory_bytes),
        f"{format_seconds(exposed)} ({100 * exposed / plan.latency_s:.0f} %)",
    ]


def time_name(request: Request) -> str:
    """Name the time of a request: by itself, or a mean one's under the load asked for."""
    return "request" if request.loaded else "latency"


def _token_cells(plan: PlanEstimate, request: Request) -> list[str]:
    """Write the time of a request, and what clients see with as many at once."""
    ttft, tpot, rate = plan.tokens
    serving = plan.serving
    concurrency = serving.concurrency if serving else plan.throughput_per_s * plan.latency_s
    unloaded_time = format_interval(plan.latency_s, plan.half_width_s)
    return [
        format_seconds(seconds_of(plan, request)) if request.loaded else unloaded_time,
        rounded(concurrency), format_seconds(ttft), format_seconds(tpot),
        f"{rate:,.0f}", f"{rate / plan.gpus:,.0f}", format_bytes(plan.memory_bytes),
    ]  # fmt: skip


def cost(plan: PlanEstimate) -> str:
    """Write the GPU-seconds of a result."""
    return rounded(plan.gpu_seconds)


def rounded(value: float) -> str:
    """Write a number with three digits, and all of those before the point.

    >>> rounded(1024.0), rounded(7.654)
    ('1,024', '7.65')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bases(estimate: PlanEstimate) -> str:
    """Say how well each part is known that is worth a word."""
    threshold = 0.01 * estimate.latency_s
    parts = estimate.breakdown_s
    notable_parts = [
        entry for entry in estimate.known.items() if parts.get(entry[0], 0.0) >= threshold
    ]
    return ", ".join(f"{worded(name)} {basis.name.lower()}" for name, basis in notable_parts)
