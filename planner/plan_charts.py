"""Plans as charts: what they cost for their latency, over GPUs, in time and in memory."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from planner.plan_table import cost, rounded
from planner.search.clients import Point
from planner.search.estimate import MEMORY, TIME, PlanEstimate
from topology.base import format_number, format_seconds
from topology.base.chart import Axis, Mark, Series, curves, spans
from topology.base.table import Drawing

if TYPE_CHECKING:
    from topology.machine import Machine

MOST_WAYS: Final = 6
"""Ways to split that are drawn over numbers of GPUs."""
MOST_OTHERS: Final = 60
"""Plans that are drawn beside the frontier."""
COST: Final = "GPU-s per result"
MILLI: Final = 1000
_GPUS: Final = Axis(title="GPUs", write=format_number, base=2)


def timelines(plans: Sequence[PlanEstimate]) -> str:
    """Draw how long each stage of a request takes, and below it each class of work."""
    stages, parts = [plan.stage_row() for plan in plans], [plan.part_row() for plan in plans]
    by_stage = spans("One request, stage by stage", stages, TIME)
    return by_stage + spans("The same time by class of work", parts, TIME)


def memory(plans: Sequence[PlanEstimate], limit: Mark | None = None) -> str:
    """Draw the memory of the fullest GPU of each plan; limit : what a plan may use."""
    return spans("Memory at its peak", [plan.memory_row() for plan in plans], MEMORY, limit)


def scaling(plans: Iterable[PlanEstimate]) -> str:
    """Draw the latency of each way to split over numbers of GPUs, its best plan of each."""
    ways: dict[str, dict[int, PlanEstimate]] = {}
    for plan in plans:
        best_by_gpus = ways.setdefault(_way(plan), {})
        if plan.gpus not in best_by_gpus or plan.latency_s < best_by_gpus[plan.gpus].latency_s:
            best_by_gpus[plan.gpus] = plan
    single_gpu = ways.pop("", {})
    order = sorted(ways, key=lambda way: (-len(ways[way]), _shortest_latency(ways[way].values())))
    drawn_plans = [plan for way in order[:MOST_WAYS] for plan in ways[way].values()]
    series = [
        Series(
            name=way,
            points=[
                (gpus, plan.latency_s, f"{plan.name} on {gpus}, {format_seconds(plan.latency_s)}")
                for gpus, plan in sorted({**single_gpu, **ways[way]}.items())
            ],
        )
        for way in order[:MOST_WAYS]
    ]
    return curves(
        "Latency over GPUs, by way to split", series, (_GPUS, _latency(drawn_plans)), None
    )


def _latency(plans: Iterable[PlanEstimate]) -> Axis:
    """Make a logarithmic axis for the latencies of plans."""
    unit = 1.0 if _shortest_latency(plans) >= 1 else 1 / MILLI
    return Axis(title="latency (logarithmic)", write=format_seconds, base=2, unit=unit)


def _way(plan: PlanEstimate) -> str:
    """Name the axes of a plan without their degrees."""
    return ".".join(name for name, degree in plan.plan.axes if degree > 1)


def _shortest_latency(plans: Iterable[PlanEstimate]) -> float:
    return min((plan.latency_s for plan in plans), default=1.0)


def cost_by_latency(plans: Iterable[PlanEstimate]) -> str:
    """Draw what a result costs for its latency: what no plan beats in both, and the others."""
    frontier_plans: list[PlanEstimate] = []
    beaten_plans: list[PlanEstimate] = []
    cheapest = float("inf")
    for plan in sorted(plans, key=lambda plan: (plan.latency_s, plan.gpu_seconds)):
        (frontier_plans if plan.gpu_seconds < cheapest else beaten_plans).append(plan)
        cheapest = min(cheapest, plan.gpu_seconds)
    series = [
        Series(
            name="no plan beats these in both", points=_cost_points(frontier_plans), shape="steps"
        ),
        Series(name="other plans", points=_cost_points(beaten_plans[:MOST_OTHERS]), shape="none"),
    ]
    cost_axis = Axis(title=COST, write=rounded)
    filled_series = [line for line in series if line.points]
    axes = (_latency(frontier_plans), cost_axis)
    return curves("Cost of a result against its latency", filled_series, axes, None)


def _cost_points(plans: Iterable[PlanEstimate]) -> list[tuple[float, float, str]]:
    return [
        (
            plan.latency_s,
            plan.gpu_seconds,
            f"{plan.name} on {plan.gpus}, {format_seconds(plan.latency_s)}, {cost(plan)} GPU-s",
        )
        for plan in plans
    ]


def frontier(title: str, points: Sequence[Point]) -> str:
    """Draw TPOT against tokens/s a GPU, plans in colours."""
    axes = (
        Axis(title="TPOT", write=format_seconds),
        Axis(title="tokens/s a GPU", write=format_number),
    )
    runs = [(plan, list(run)) for plan, run in groupby(points, key=lambda point: str(point.plan))]
    counts = Counter(plan for plan, _ in runs)
    merged: dict[str, list[Point]] = {}
    for plan, run in runs:
        merged.setdefault(plan, []).extend(run)
    series = [
        Series(
            name=plan,
            points=[
                (point.tpot_s, point.tokens_per_s_per_gpu, _point_label(point)) for point in run
            ],
            shape="straight" if counts[plan] == 1 else "none",
        )
        for plan, run in merged.items()
    ]
    return curves(title, series, axes, None)


def _point_label(point: Point) -> str:
    clients = format_number(point.serving.concurrency)
    rate = format_number(point.tokens_per_s_per_gpu)
    return f"{clients} at once, TPOT {format_seconds(point.tpot_s)}, {rate} tokens/s a GPU"


def host(machine: "Machine") -> Drawing:
    """Draw a host that plans run on."""
    from topology.drawing import svg  # noqa: PLC0415  # for pages alone

    return Drawing(title=f"The host: {machine.name}", svg=svg(machine))
