"""Profiles and calibrations as a person reads them: plain text or Markdown."""

from collections.abc import Sequence
from typing import Literal

from costmodels.profile import Profile
from planner.report import markdown
from validate.calibrate import Calibrated
from validate.profiles import table

Style = Literal["table", "markdown"]
Cells = Sequence[Sequence[str]]


def show(profile: Profile, style: Style = "table") -> str:
    """Say what a profile was measured on, how far to trust it, and what it holds."""
    machine = [[key, text] for key, text in (*profile.machine, *profile.software)]
    parts = [
        _titled(f"{profile.name}: {profile.source}", style),
        lines(("machine", ""), machine, style),
        lines(table.FIT_HEADERS, table.fit_rows(profile), style),
        lines(table.VALUE_HEADERS, table.value_rows(profile), style),
    ]
    return "\n\n".join(parts)


def diff(first: Profile, second: Profile, style: Style = "table") -> str:
    """Say what two profiles differ in, and what that does to a few operations.

    Raises
    ------
    InputError
        If they are of different hardware.
    """
    parts = [
        _titled(f"{first.name} and {second.name}", style),
        lines(table.EXAMPLE_HEADERS, table.example_rows(first, second), style),
        lines(table.DIFF_HEADERS, table.change_rows(first, second), style),
    ]
    return "\n\n".join(parts)


def calibrated(found: Calibrated, style: Style = "table") -> str:
    """Say what a calibration wrote, how good it is, and what could not be measured."""
    parts = [
        _titled(f"{found.profile.name}: {found.output}", style),
        lines(found.headers, found.summary, style),
    ]
    if found.failures:
        failed = [text.partition(": ")[::2] for text in found.failures]
        parts.append(lines(("not measured", "because"), failed, style))
    return "\n\n".join(parts)


def _titled(text: str, style: Style) -> str:
    return f"## {text}" if style == "markdown" else text


def lines(headers: Sequence[str], rows: Cells, style: Style = "table") -> str:
    """Write a table; columns after the first lean right.

    >>> print(lines(("name", "value"), [["a", "1.5"], ["longer", "10"]], "table"))
    name    value
    a         1.5
    longer     10
    """
    if style == "markdown":
        return markdown(headers, rows)
    every = [headers, *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(headers))]
    return "\n".join(
        "  ".join(
            [
                f"{row[0]:<{widths[0]}}",
                *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in every
    )
