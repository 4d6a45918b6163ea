"""Charts of a page: curves and spans as SVG that needs no script.

Places along an axis are percentages, so a chart is as wide as its page, and its text as large on a
telephone as on paper. A point or span that is pointed at, or reached with the Tab key, says what it
is above the chart; a box in the legend takes a series away. `STYLE` does both.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from textwrap import wrap
from typing import Final, TypeAlias

from topology.base.values import dataclass

COLOURS: Final = (
    ("#1f6fb4", "#6cb2f0"), ("#c2410c", "#fb923c"), ("#2f7d32", "#7ccf7f"), ("#7b4fb5", "#c3a3f0"),
    ("#a0670a", "#e3b341"), ("#0f7b83", "#5ccfd6"), ("#b0306a", "#f288b8"), ("#5f6b76", "#aab4be"),
)  # fmt: skip
"""Of series, on light and on dark paper; a ninth takes the first again."""
HEIGHT: Final = 260
_TICKS: Final = 5
_MOST_TICKS: Final = 5
_ROUNDING: Final = 0.01 / 200
"""Rounding of the ends of an axis, half of the hundredth of a per cent that places have."""
_ROW: Final = 44
_BAR: Final = 18
_TIP_LETTERS: Final = 40
"""Of a line of a tip, for the narrowest page."""
_TIP_LINES: Final = 3
ZOOMS: Final = (4, 16)
"""Times as wide as a page that a chart may be made."""
_MOST_TAB_STOPS: Final = 80
"""Points and spans of a chart that the Tab key stops at; where there are more it passes them."""

Mark: TypeAlias = tuple[float, str]
"""A place on an axis, and its name."""


def _style() -> str:
    """Write the rules that charts need: colours, tips, what the legend takes away."""
    light, dark = (
        "".join(f".s{n}{{--c:{pair[paper]}}}" for n, pair in enumerate(COLOURS)) for paper in (0, 1)
    )
    hidden_rules = ",".join(
        f".chart:has(.key.s{n} input:not(:checked)) svg .s{n}" for n in range(len(COLOURS))
    )
    zoom_rules = "".join(
        f".chart:has(.zoom{n}:checked) .plot{{overflow-x:auto}}"
        f".chart:has(.zoom{n}:checked) svg{{width:{n}00%}}"
        for n in ZOOMS
    )
    return (
        f"{zoom_rules}{light}@media screen and (prefers-color-scheme:dark)"
        f"{{{dark}}}{hidden_rules}{{display:none}}"
        ".chart{margin:1em 0;max-width:60em;break-inside:avoid}"
        ".chart figcaption{font-weight:600;margin-bottom:.4em}"
        ".chart .plot{padding:50px 28px 44px 62px}.chart .plot.rows{padding:46px 6px 40px}"
        ".chart svg{overflow:visible;display:block;font:12px system-ui,sans-serif}"
        ".chart text{fill:currentColor}.chart .grid{stroke:currentColor;opacity:.18}"
        ".chart .axis{stroke:currentColor;opacity:.6}"
        ".chart .mark{stroke:currentColor;stroke-width:1.5;stroke-dasharray:5 4;opacity:.75}"
        ".chart .line{fill:none;stroke:var(--c);stroke-width:2;vector-effect:non-scaling-stroke}"
        ".chart .dot circle{fill:var(--c)}.chart .dot .hit{opacity:0}"
        ".chart .span rect{fill:var(--c)}.chart .faint rect{opacity:.3}"
        ".chart .tip{display:none;font-size:11px}"
        ".chart svg:has(:is(.dot,.span):is(:hover,:focus)) .usual{display:none}"
        ".chart :is(.dot,.span):is(:hover,:focus) .tip{display:block}"
        ".chart :is(.dot,.span):is(:hover,:focus) :is(.seen,rect){stroke:currentColor;"
        "stroke-width:2}.chart :is(.dot,.span):focus{outline:none}"
        ".chart .key{display:inline-block;margin-right:1.2em;font-size:13px}"
        ".chart .key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;"
        "background:var(--c)}.chart .key input{margin:0 .35em 0 0;vertical-align:middle}"
        "@media print{.chart svg{width:100%}.chart .tip,.chart .key input{display:none}"
        ".chart .span rect,.chart .key i{print-color-adjust:exact}}"
    )


STYLE: Final = _style()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One way of a chart.

    title : what it shows, with its unit where `write` does not write it. base : of its logarithm;
    0 for an axis from nothing on, in even steps. unit : in which its ticks are round numbers.
    """

    title: str
    write: Callable[[float], str]
    base: int = 0
    unit: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one kind: each across, up, and what it says.

    shape : of the line through them: straight, in steps that rise at each point, or none.
    """

    name: str
    points: Sequence[tuple[float, float, str]]
    shape: str = "straight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpan:
    """A part of a row, from where to where; kind : its series. faint : it is not work."""

    start: float
    end: float
    kind: str
    says: str
    faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRow:
    """Spans that stand beside each other under a name."""

    name: str
    spans: Sequence[ChartSpan]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where on an axis a value is, as a percentage, and which values are written."""

    axis: Axis
    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        if not self.axis.base:
            return 100 * (value - self.low) / (self.high - self.low)
        return 100 * math.log(value / self.low) / math.log(self.high / self.low)


def curves(title: str, series: Sequence[Series], axes: tuple[Axis, Axis], mark: Mark | None) -> str:
    """Draw series of points over an axis across and one up.

    mark : a value of the axis across that is set off, such as the rate asked for.
    """
    points = [point for line in series for point in line.points]
    if not points:
        return ""
    mark_values = [] if mark is None else [mark[0]]
    across = _scale(axes[0], [*(x for x, _, _ in points), *mark_values])
    up = _scale(axes[1], (y for _, y, _ in points))
    reached = len(points) <= _MOST_TAB_STOPS
    elements = [*_grid(across, up)]
    if mark:
        elements.append(_mark_line(across.place(mark[0]), mark[1]))
    for number, line in enumerate(series):
        elements += _series(line, _colour(number), (across, up), reached=reached)
    names = [(_colour(number), line.name) for number, line in enumerate(series)]
    return _figure(title, _plot(title, elements, HEIGHT), names, "plot")


def spans(
    title: str,
    rows: Sequence[ChartRow],
    axis: Axis,
    mark: Mark | None = None,
    *,
    zooms: bool = False,
) -> str:
    """Draw rows of spans over an axis across: parts of a sum, or what happens when.

    zooms : the reader may make it wider, and scroll.
    """
    ends = [span.end for row in rows for span in row.spans] + ([mark[0]] if mark else [])
    if not ends:
        return ""
    scale = _scale(axis, ends)
    kinds = list(dict.fromkeys(span.kind for row in rows for span in row.spans))
    colours = {kind: _colour(number) for number, kind in enumerate(kinds)}
    reached = sum(len(row.spans) for row in rows) <= _MOST_TAB_STOPS
    height = len(rows) * _ROW
    elements = [*_ticks(scale, height, first="start")]
    for number, row in enumerate(rows):
        top = number * _ROW
        elements.append(f'<text x="0" y="{top + 15}">{escape(row.name)}</text>')
        for span in row.spans:
            box = (scale.place(span.start), top + 21, scale.place(span.end))
            elements.append(_span(span, colours[span.kind], box, reached=reached))
    if mark:
        elements.append(_mark_line(scale.place(mark[0]), mark[1], height, -2))
    names = [(colours[kind], kind) for kind in kinds]
    return _figure(title, _plot(title, elements, height), names, "plot rows", zooms=zooms)


def _colour(number: int) -> str:
    return f"s{number % len(COLOURS)}"


def _scale(axis: Axis, values: Iterable[float]) -> _Scale:
    """Choose the ends of an axis, and what is written at it."""
    unit, base = axis.unit, float(axis.base)
    scaled_values = [value / unit for value in values if value > 0 or not base]
    low, high = min(scaled_values, default=1.0), max(scaled_values, default=1.0)
    if not base:
        step = round_step(high / _TICKS if high > 0 else 1.0)
        count = max(1, math.ceil(high / step - _ROUNDING))
        return _Scale(
            axis, 0.0, count * step * unit, tuple(step * n * unit for n in range(count + 1))
        )
    low_power, high_power = (math.log(value, base) for value in (low, high))
    low_power, high_power = math.floor(low_power + _ROUNDING), math.ceil(high_power - _ROUNDING)
    high_power = max(high_power, low_power + 1)
    stride = -(-(high_power - low_power) // (_MOST_TICKS - 1))
    ticks = [base**power * unit for power in range(low_power, high_power + 1, stride)]
    return _Scale(axis, base**low_power * unit, base**high_power * unit, tuple(ticks))


def round_step(about: float) -> float:
    """Round a step up to 1, 2 or 5 of some size.

    >>> round_step(0.3), round_step(7.0), round_step(20.0)
    (0.5, 10.0, 20.0)
    """
    size = 10.0 ** math.floor(math.log10(about) + _ROUNDING)
    return next(
        size * multiple
        for multiple in (1, 2, 5, 10)
        if about <= size * multiple * (1 + 2 * _ROUNDING)
    )


def _ticks(scale: _Scale, height: int, first: str = "middle") -> Iterator[str]:
    """Draw the axis across, below a chart so high; first : which part of a text is at its start."""
    for value in scale.ticks:
        x = f"{scale.place(value):.2f}%"
        yield f'<line class="grid" x1="{x}" y1="0" x2="{x}" y2="{height}"/>'
        end = {"0.00%": first, "100.00%": "end"}.get(x, "middle")
        yield (
            f'<text x="{x}" y="{height + 17}" text-anchor="{end}">'
            f"{_tick_label(scale.axis, value)}</text>"
        )
    yield f'<line class="axis" x1="0" y1="{height}" x2="100%" y2="{height}"/>'
    yield (
        f'<text x="50%" y="{height + 36}" text-anchor="middle">{escape(scale.axis.title)}</text>'
    )


def _tick_label(axis: Axis, value: float) -> str:
    return escape(axis.write(value)) if value else "0"


def _grid(across: _Scale, up: _Scale) -> Iterator[str]:
    yield from _ticks(across, HEIGHT)
    for value in up.ticks:
        y = HEIGHT * (1 - up.place(value) / 100)
        yield f'<line class="grid" x1="0" y1="{y:.1f}" x2="100%" y2="{y:.1f}"/>'
        yield (
            f'<text x="0" dx="-6" y="{y + 4:.1f}" text-anchor="end">'
            f"{_tick_label(up.axis, value)}</text>"
        )
    yield f'<line class="axis" x1="0" y1="0" x2="0" y2="{HEIGHT}"/>'
    yield f'<text class="usual" x="0" dx="-56" y="-12">{escape(up.axis.title)}</text>'


def _mark_line(x: float, name: str, height: int = HEIGHT, y: int = 12) -> str:
    side, offset = ("end", -5) if x > 50 else ("start", 5)
    return (
        f'<line class="mark" x1="{x:.2f}%" y1="0" x2="{x:.2f}%" y2="{height}"/>'
        f'<text x="{x:.2f}%" dx="{offset}" y="{y}" '
        f'text-anchor="{side}">{escape(name)}</text>'
    )


def _series(
    series: Series, colour: str, scales: tuple[_Scale, _Scale], *, reached: bool
) -> Iterator[str]:
    """Draw the line of a series, and its points."""
    across, up = scales
    places = [(across.place(x), 100 - up.place(y), says) for x, y, says in series.points]
    if series.shape != "none" and len(places) > 1:
        path = f"M{places[0][0]:.2f} {places[0][1]:.2f}"
        for x, y, _ in places[1:]:
            path += f"{f'H{x:.2f}V{y:.2f}' if series.shape == 'steps' else f'L{x:.2f} {y:.2f}'}"
        yield (
            f'<svg class="{colour}" width="100%" height="{HEIGHT}" viewBox="0 0 100 100" '
            f'preserveAspectRatio="none"><path class="line" d="{path}"/></svg>'
        )
    for x, y, says in places:
        centre = f'cx="{x:.2f}%" cy="{y * HEIGHT / 100:.1f}"'
        dot = f'<circle class="hit" {centre} r="11"/><circle class="seen" {centre} r="4"/>'
        yield _labelled_group(f"dot {colour}", dot, f"{series.name}: {says}", reached=reached)


def _span(span: ChartSpan, colour: str, box: tuple[float, int, float], *, reached: bool) -> str:
    left, top, right = box
    rect = (
        f'<rect x="{left:.3f}%" y="{top}" width="{max(0.05, right - left):.3f}%" height="{_BAR}"/>'
    )
    faint = " faint" if span.faint else ""
    return _labelled_group(
        f"span {colour}{faint}", rect, f"{span.kind}: {span.says}", reached=reached
    )


def _labelled_group(kind: str, shape: str, says: str, *, reached: bool) -> str:
    """Draw something that says what it is where it is pointed at, and to who cannot see it."""
    stop = ' tabindex="0"' if reached else ""
    return f'<g class="{kind}" role="img" aria-label="{escape(says)}"{stop}>{shape}{_tip(says)}</g>'


def _tip(says: str) -> str:
    lines = wrap(says, _TIP_LETTERS, max_lines=_TIP_LINES, placeholder=" ...")
    top = -38 + 13 * (_TIP_LINES - len(lines)) // 2
    tspans = "".join(
        f'<tspan x="0" y="{top + 13 * number}">{escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return f'<text class="tip">{tspans}</text>'


def _plot(title: str, elements: Iterable[str], height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}" role="group" '
        f'aria-label="{escape(title)}">{"".join(elements)}</svg>'
    )


def _figure(
    title: str, svg: str, names: Sequence[tuple[str, str]], kind: str, *, zooms: bool = False
) -> str:
    keys = "".join(
        f'<label class="key {colour}"><input type="checkbox" checked="checked"/><i></i>'
        f"{escape(name)}</label>"
        for colour, name in names
    )
    if zooms:
        keys += "".join(
            f'<label class="key"><input type="radio" name="{escape(title)}" class="zoom{times}"'
            f"{chosen}/>{times}x</label>"
            for times, chosen in ((1, ' checked="checked"'), *((n, "") for n in ZOOMS))
        )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{keys}'
        f'<div class="{kind}">{svg}</div></figure>'
    )
