"""What a user waits for a token against what a GPU writes: a table, a plot, a drawing."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Final

from planner.search.clients import Point
from topology.base import format_number, format_seconds
from topology.base.table import Line, Table

MOST: Final = 12
"""Rows of a table."""
BAR: Final = 30
_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT: Final = 70
_COLOURS: Final = ("#3d85c6", "#cc4125", "#6aa84f", "#8e7cc3", "#b45f06", "#45818e")
TITLE: Final = "TPOT against tokens/s a GPU: what no other plan and concurrency beats in both"


def table(points: Sequence[Point]) -> Table:
    """Make a row of each point, of many as many as are read, the quickest first."""
    step = max(1, -(-len(points) // MOST))
    kept = [*points[::-1][::step]][::-1]
    top = max(point.tokens_per_s_per_gpu for point in kept)
    rows = [
        [
            format_seconds(point.tpot_s),
            format_number(point.tokens_per_s_per_gpu),
            format_number(point.serving.concurrency),
            format_seconds(point.serving.ttft.mean),
            str(point.plan),
            "█" * max(1, round(BAR * point.tokens_per_s_per_gpu / top)),
        ]
        for point in kept
    ]
    head = ("TPOT", "tokens/s a GPU", "at once", "TTFT", "plan", "")
    return Table(
        head=head, rows=rows, align=">>>><", indent=2, head_in="dim", columns_in={5: "cyan"}
    )


def on_screen(points: Sequence[Point]) -> list[str | Line | Table]:
    """Write the frontier for a terminal; nothing where there is none."""
    if len(points) < 2:
        return []
    return [Line(text=TITLE, style="dim"), table(points), ""]


def svg(points: Sequence[Point]) -> str:
    """Draw the frontier, plans in colours."""
    wide = max(point.tpot_s for point in points)
    top = max(point.tokens_per_s_per_gpu for point in points)
    plans = list(dict.fromkeys(str(point.plan) for point in points))
    colours = {plan: _COLOURS[place % len(_COLOURS)] for place, plan in enumerate(plans)}

    def place(point: Point) -> tuple[float, float]:
        across = _LEFT + _WIDTH * point.tpot_s / wide
        return across, _HEIGHT - (_HEIGHT - 20) * point.tokens_per_s_per_gpu / top

    drawn = []
    for plan, run in groupby(points, key=lambda point: str(point.plan)):
        places = [place(point) for point in run]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(
            f'<polyline fill="none" stroke="{colours[plan]}" stroke-width="2" points="{line}"/>'
        )
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[plan]}"/>' for x, y in places
        ]
    names = "".join(
        f'<text x="{_LEFT + 8}" y="{16 + 15 * number}" fill="{colours[plan]}">{escape(plan)}</text>'
        for number, plan in enumerate(plans)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _LEFT} '
        f'{_HEIGHT + 30}" width="{_WIDTH + 2 * _LEFT}" font-family="sans-serif" font-size="12">'
        f'<path d="M{_LEFT} 10V{_HEIGHT}H{_LEFT + _WIDTH}" fill="none" stroke="#999"/>'
        f'<text x="{_LEFT - 8}" y="20" text-anchor="end">{top:,.0f}</text>'
        f'<text x="{_LEFT + _WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">'
        f"{escape(format_seconds(wide))} TPOT</text>"
        f'<text x="{_LEFT}" y="{_HEIGHT + 18}">tokens/s a GPU</text>'
        f"{''.join(drawn)}{names}</svg>"
    )
