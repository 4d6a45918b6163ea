"""Profiles and calibrations as a person reads them: plain text or Markdown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from costmodels.profiles.profile import Profile
from topology.base import counted
from validate.fit import table

if TYPE_CHECKING:
    from validate.calibrate import Calibrated

Style = Literal["table", "markdown"]
Cells = Sequence[Sequence[str]]


def listed(profiles: Sequence[table.Entry], style: Style = "table") -> str:
    """Say of each profile what it is for."""
    return lines(table.ENTRY_HEADERS, table.entry_rows(profiles), style, words=True)


def show(profile: Profile, style: Style = "table", name: str = "") -> str:
    """Say what a profile was measured on, how far to trust it, and what it holds.

    Parameters
    ----------
    name : what it was asked for by; its own name where left out.
    """
    machine = [[key, text] for key, text in (*profile.machine, *profile.software)]
    parts = [
        _titled(f"{_called(profile, name)}: {profile.source}", style),
        lines(("machine", ""), machine, style),
        lines(table.FIT_HEADERS, table.fit_rows(profile), style),
        lines(table.VALUE_HEADERS, table.value_rows(profile), style),
    ]
    return "\n\n".join(parts)


def _called(profile: Profile, name: str) -> str:
    """Name a profile as it was asked for, and what it was measured on where that does not say."""
    if not name or name == profile.name:
        return profile.name
    return f"{name} ({profile.name})"


def diff(
    first: Profile,
    second: Profile,
    style: Style = "table",
    called: tuple[str, str] = ("", ""),
) -> str:
    """Say what two profiles differ in, and what that does to a few operations.

    Parameters
    ----------
    called : what they were asked for by; their own names where left out.

    Raises
    ------
    InputError
        If they are of different hardware.
    """
    names = [name or one.name for name, one in zip(called, (first, second), strict=True)]
    apart = table.part_rows(first, second)
    every = table.change_rows(first, second)
    changed = [row for row in every if row[1] != row[2]]
    alike = counted(len(every) - len(changed), "parameter")
    parts = [
        _titled(" and ".join(names), style),
        lines(table.EXAMPLE_HEADERS, table.example_rows(first, second), style),
        *([lines(("in one of them", "first", "second"), apart, style)] if apart else []),
        *([lines(table.DIFF_HEADERS, changed, style)] if changed else []),
        f"alike in both: {alike}",
    ]
    return "\n\n".join(parts)


def calibrated(found: "Calibrated", style: Style = "table") -> str:
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


def lines(
    headers: Sequence[str], rows: Cells, style: Style = "table", *, words: bool = False
) -> str:
    """Write a table; columns after the first lean right, unless they hold words.

    >>> print(lines(("name", "value"), [["a", "1.5"], ["longer", "10"]], "table"))
    name    value
    a         1.5
    longer     10
    """
    if style == "markdown":
        from planner.rendering.report import markdown  # noqa: PLC0415  # rich is slow to import

        return markdown(headers, rows)
    every = [headers, *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(headers))]
    lean = "<" if words else ">"
    return "\n".join(
        "  ".join(
            [
                f"{row[0]:<{widths[0]}}",
                *(f"{cell:{lean}{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in every
    )
