"""A capacity plan as people read it: a table, a document, a page with curves."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from planner.capacity import HOUR, Answer, Capacity, Demand, Fleet, curve, words
from planner.plot import plot
from topology.hypertext import document, table
from topology.units import counted, format_seconds

HEAD: Final = (
    "hardware", "plan", "at once", "replicas", "GPUs", "nodes", "a request", "in time", "busy",
    "at most",
)  # fmt: skip
COST: Final = ("an hour", "a thousand")
ASSUMED: Final = (
    "requests come at random, and in the order in which they come each takes the next free place "
    "of a replica; GPUs of one demand serve no other; nothing is added for failures"
)
MINUTE: Final = 60
_WIDTH: Final = 640
_HEIGHT: Final = 240
_LEFT: Final = 60


def headlines(found: Capacity) -> Iterator[str]:
    """Say what the best fleets take in all."""
    if not found.met:
        unmet = [one.demand.name for one in found.answers if not one.fleets]
        yield f"not met: {', '.join(unmet)}"
        return
    cost = found.cost_per_hour
    money = "" if cost is None else f", {_money(cost, found)} an hour"
    yield f"{counted(found.gpus, 'GPU')} in all{money}"


def asked(demand: Demand) -> str:
    """Say what is asked for."""
    return (
        f"{demand.name}: {demand.request.model}, {_rate(demand.rate_per_s)}, "
        f"{100 * demand.share:g} % within {format_seconds(demand.slo_s)}"
    )


def rows(answer: Answer, found: Capacity) -> list[list[str]]:
    """Write a row for each fleet, the best one first."""
    priced = any(one.cost_per_hour is not None for one in answer.fleets)
    head = [*HEAD, *(COST if priced else ())]
    return [head, *(_row(one, found, priced=priced) for one in answer.fleets)]


def _row(one: Fleet, found: Capacity, *, priced: bool) -> list[str]:
    cells = [
        one.estimate.hardware, str(one.estimate.plan), str(one.batch), str(one.replicas),
        str(one.gpus), str(one.nodes), format_seconds(one.estimate.latency_s),
        format_seconds(one.response_s), f"{100 * one.utilisation:.0f} %",
        _rate(one.most_rate_per_s),
    ]  # fmt: skip
    if priced:
        cells += [_money(one.cost_per_hour, found), _money(one.cost_per_thousand, found)]
    return cells


def _money(value: float | None, found: Capacity) -> str:
    currency = found.prices.currency if found.prices else ""
    return "-" if value is None else f"{value:.4g} {currency}".rstrip()


def _notes(answer: Answer) -> Iterator[str]:
    if answer.fleets:
        yield f"set up {words(answer.fleets[0])}"
    for name, why in answer.without:
        yield f"{name}: {why}"


def text(found: Capacity) -> str:
    """Everything that ``planner capacity`` prints as a table."""
    lines = [*headlines(found)]
    for answer in found.answers:
        lines += ["", asked(answer.demand)]
        if answer.fleets:
            lines += _aligned(rows(answer, found))
        lines += [f"  {note}" for note in _notes(answer)]
        if answer.fleets:
            lines += ["", f"GPUs of {answer.fleets[0].estimate.hardware} by rate", _drawn(answer)]
    return "\n".join([*lines, "", f"taken as given: {ASSUMED}"])


def _drawn(answer: Answer) -> str:
    points = curve(answer.fleets[0])
    ends = (_rate(points[0][0]), _rate(points[-1][0]))
    return plot({"GPUs": points}, ends, width=48, height=8)


def _rate(per_second: float) -> str:
    """Write a rate by the minute, or by the hour where it is low.

    >>> _rate(1.0), _rate(0.001)
    ('60/min', '3.6/h')
    """
    if per_second * MINUTE < 1:
        return f"{per_second * HOUR:.3g}/h"
    return f"{per_second * MINUTE:.3g}/min"


def _aligned(made: Sequence[Sequence[str]]) -> Iterator[str]:
    wide = [max(map(len, column)) for column in zip(*made, strict=True)]
    for row in made:
        left = [f"{cell:<{width}}" for cell, width in zip(row[:2], wide[:2], strict=True)]
        right = [f"{cell:>{width}}" for cell, width in zip(row[2:], wide[2:], strict=True)]
        yield f"  {'  '.join([*left, *right])}".rstrip()


def markdown(found: Capacity) -> str:
    """Write the same for a document."""
    from planner import report  # noqa: PLC0415  # rich is slow to import

    parts = [f"**{line}**" for line in headlines(found)]
    for answer in found.answers:
        parts += ["", f"## {asked(answer.demand)}", ""]
        if answer.fleets:
            head, *body = rows(answer, found)
            parts += [report.markdown(head, body), ""]
        parts += [f"- {note}" for note in _notes(answer)]
    return "\n".join([*parts, "", f"Taken as given: {ASSUMED}."])


def html(found: Capacity) -> str:
    """Write a page with a curve for each demand; it needs nothing else."""
    body = [f"<h1>{escape(line)}</h1>" for line in headlines(found)]
    for answer in found.answers:
        body.append(f"<h2>{escape(asked(answer.demand))}</h2>")
        if answer.fleets:
            body += [table(rows(answer, found)), _svg(answer)]
        notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(answer))
        body.append(f"<ul>{notes}</ul>")
    body.append(f"<p>Taken as given: {escape(ASSUMED)}.</p>")
    return document("Capacity", body)


def _svg(answer: Answer) -> str:
    """Draw the GPUs of each fleet by rate; the rate asked for is in the middle."""
    curves = [(one, curve(one)) for one in answer.fleets]
    top = max(gpus for _, points in curves for _, gpus in points)
    lines = []
    for number, (one, points) in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = " ".join(
            f"{_LEFT + _WIDTH * place / max(1, len(points) - 1):.1f},"
            f"{_HEIGHT - (_HEIGHT - 20) * gpus / top:.1f}"
            for place, (_, gpus) in enumerate(points)
        )
        lines.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{drawn}"/>'
            f'<text x="{_LEFT + 8}" y="{16 + 15 * number}" fill="{colour}">'
            f"{escape(one.estimate.hardware)}: {escape(str(one.estimate.plan))}</text>"
        )
    rates = [points[place][0] for _, points in curves[:1] for place in (0, len(points) // 2, -1)]
    marks = "".join(
        f'<text x="{_LEFT + place * _WIDTH / 2}" y="{_HEIGHT + 18}" text-anchor="middle">'
        f"{escape(_rate(rate))}</text>"
        for place, rate in enumerate(rates)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _LEFT} '
        f'{_HEIGHT + 30}" width="{_WIDTH + 2 * _LEFT}" font-family="sans-serif" font-size="12">'
        f'<path d="M{_LEFT} 10V{_HEIGHT}H{_LEFT + _WIDTH}" fill="none" stroke="#999"/>'
        f'<text x="{_LEFT - 8}" y="20" text-anchor="end">{top:g} GPUs</text>'
        f"{''.join(lines)}{marks}</svg>"
    )


_COLOURS: Final = ("#3d85c6", "#cc4125", "#6aa84f", "#8e7cc3", "#b45f06", "#45818e")
