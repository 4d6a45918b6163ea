"""Curves over message sizes, drawn with characters."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from topology.base.chart import round_step

WIDTH: Final = 64
HEIGHT: Final = 14
_ROW_TOLERANCE: Final = 2.0**-30
"""Rounding of a value in rows."""


def plot(
    series: Mapping[str, Sequence[tuple[float, float]]],
    shows: tuple[str, str],
    *,
    between: tuple[float, str] | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """Draw series of points, the horizontal axis in octaves; the first letter marks a series.

    A point stands on the row that is nearest, or, where all values are whole numbers, on the next
    one up, so that only 0 is on the row of 0. Where two series meet only the last one shows.

    series : points by name. shows : how the two ends of the horizontal axis are labelled.
    height : the most rows.
    between : a place on that axis and its label, which is left out where it would meet another.

    >>> print(plot({"one": [(1.0, 1.0), (4.0, 2.0)]}, ("1 B", "4 B"), width=8, height=3))
               2 |       o
               1 |o
               0 |
                  1 B  4 B
                       o one
    """
    points = [(math.log2(x), y) for curve in series.values() for x, y in curve if x > 0]
    if not points:
        return ""
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    values = [y for _, y in points]
    all_integers = all(float(y).is_integer() for y in values)
    step = round_step((max(values) or 1.0) / (height - 1))
    step = max(1.0, step) if all_integers else step
    top = max(1, math.ceil(max(values) / step - _ROW_TOLERANCE))
    grid = [[" "] * width for _ in range(top + 1)]
    for name, curve in series.items():
        for x, y in curve:
            column = round((math.log2(x) - low) / ((high - low) or 1.0) * (width - 1))
            row = math.ceil(y / step - _ROW_TOLERANCE) if all_integers else round(y / step)
            grid[row][column] = name[0]
    rows = reversed([*enumerate(grid)])
    lines = [f"{_tick_text(step * n):>12} |{''.join(row)}".rstrip() for n, row in rows]
    axis_line = f"{shows[0]}{' ' * max(1, width - len(shows[0]) - len(shows[1]))}{shows[1]}"
    if between is not None and high > low:
        axis_line = _with_label(axis_line, (math.log2(between[0]) - low) / (high - low), between[1])
    legend = ", ".join(f"{name[0]} {name}" for name in series)
    return "\n".join([*lines, f"{'':14}{axis_line}", f"{'':19}{legend}"])


def _tick_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _with_label(line: str, part: float, label: str) -> str:
    """Write a label at a part of a line of two others, if there is room.

    >>> _with_label("1/s         4/s", 0.5, "2/s"), _with_label("1/s 4/s", 0.5, "2/s")
    ('1/s   2/s   4/s', '1/s 4/s')
    """
    start = round(part * (len(line) - 1)) - len(label) // 2
    end = start + len(label)
    if start < 1 or end >= len(line) or line[start - 1 : end + 1].strip():
        return line
    return line[:start] + label + line[end:]
