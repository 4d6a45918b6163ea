"""A table of text, and answers made of lines and tables: for a terminal, a document, a page.

Terminals get plain text, in colours where they have them; documents Markdown; and pages HTML that
needs nothing else, no script, no font and no link, so that they can be mailed.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

Style = Literal["", "bold", "dim", "red", "yellow", "cyan"]
_CODES: Final[dict[Style, str]] = {
    "bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36",
}  # fmt: skip
_GAP: Final = 2
_PAGE: Final = (
    "body{font:14px sans-serif;margin:2em;color:#222}table{border-collapse:collapse;margin:.5em 0}"
    "td,th{border:1px solid #ccc;padding:2px 7px;text-align:right;font:12px monospace}"
    "li{margin:.2em 0}.w{color:#a11}h2{font-size:16px;margin-top:1.5em}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of an answer on a terminal, and how it looks there."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells below a head; a table of pairs may have none.

    align : at which end of a column its cells stand, ``<`` left or ``>`` right, column by column;
    the last sign is that of all further ones. least : fewest characters of the first columns.
    fixed : columns that are never broken. indent : columns of a terminal to the left of the table.
    rows_in, columns_in : styles by place, on a terminal.
    """

    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]]
    align: str = "<>"
    least: Sequence[int] = ()
    fixed: int = 0
    indent: int = 0
    head_in: Style = ""
    rows_in: Mapping[int, Style] = field(default_factory=dict)
    columns_in: Mapping[int, Style] = field(default_factory=dict)

    def text(self, width: int | None = None, *, colour: bool = False) -> str:
        """Write the table for a terminal; cells are broken where it is wider than `width`.

        >>> print(Table(head=("name", "value"), rows=[["a", "1.5"], ["longer", "10"]]).text())
        name    value
        a         1.5
        longer     10
        """
        every = [self.head, *self.rows] if self.head else list(self.rows)
        if not every:
            return ""
        widths = self._widths(every, width)
        lines: list[str] = []
        for number, row in enumerate(every, 0 if self.head else 1):
            style = self.rows_in.get(number - 1, "") if number else self.head_in
            lines += self._row(row, widths, style, colour=colour)
        return "\n".join(lines)

    def _widths(self, every: Sequence[Sequence[str]], width: int | None) -> list[int]:
        """Make columns as wide as their cells, and the widest ones narrower until all fit."""
        least = (*self.least, *[0] * len(every[0]))
        widths = [
            max(fewest, *map(len, column))
            for fewest, column in zip(least, zip(*every, strict=True), strict=False)
        ]
        if width is None:
            return widths
        last = len(widths) - 1
        over = sum(widths) + _GAP * last + self.indent - width
        while over > 0:
            padded = [
                size + _GAP * (place < last) if place >= self.fixed else 0
                for place, size in enumerate(widths)
            ]
            widest = last - padded[::-1].index(max(padded))
            if widths[widest] < 2:
                break
            widths[widest] -= 1
            over -= 1
        return widths

    def _row(
        self, row: Sequence[str], widths: Sequence[int], style: Style, *, colour: bool
    ) -> Iterator[str]:
        """Write a row, of as many lines as its tallest cell has."""
        cells = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, cells))):
            parts = []
            for place, (lines, width) in enumerate(zip(cells, widths, strict=True)):
                line = lines[number] if number < len(lines) else ""
                left = self.align[min(place, len(self.align) - 1)] == "<"
                padded = line.ljust(width) if left else line.rjust(width)
                parts.append(_painted(padded, self.columns_in.get(place, style), colour=colour))
            yield " " * self.indent + (" " * _GAP).join(parts).rstrip()

    def markdown(self) -> str:
        """Write the table for a document.

        >>> print(Table(head=["a", "b"], rows=[["1", "2"]]).markdown())
        | a | b |
        | --- | --- |
        | 1 | 2 |
        """
        head = self.head or [""] * len(self.rows[0])
        lines = [head, ["---"] * len(head), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def html(self) -> str:
        """Write the table for a page."""
        return (
            f"<table>{_cells('th', self.head)}{''.join(_cells('td', r) for r in self.rows)}</table>"
        )


def _cells(tag: str, row: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>"


def _broken(text: str, width: int) -> list[str]:
    """Break a text into lines, between words where that is possible.

    >>> _broken("one two", 4), _broken("", 4)
    (['one', 'two'], [''])
    """
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, replace_whitespace=False) or [""]


def _painted(text: str, style: Style, *, colour: bool) -> str:
    return f"\033[{_CODES[style]}m{text}\033[0m" if colour and style and text.strip() else text


def terminal(
    parts: Iterable[str | Line | Table], width: int | None = None, *, colour: bool = False
) -> str:
    """Write an answer for a terminal, of at most `width` columns.

    >>> print(terminal([Line(text="all", style="bold"), "", Table(rows=[["a", "1"]], indent=2)]))
    all
    <BLANKLINE>
      a  1
    """
    texts = []
    for part in parts:
        if isinstance(part, Table):
            texts.append(part.text(width, colour=colour))
            continue
        line = part if isinstance(part, Line) else Line(text=part)
        lines = _broken(line.text, width) if width else [line.text]
        texts += [_painted(one, line.style, colour=colour) for one in lines]
    return "\n".join(texts)


def bullets(lines: Iterable[str]) -> list[str]:
    """Write lines as a list of a document."""
    return [f"- {line}" for line in lines]


def csv(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Write rows of values as they are, joined by commas."""
    return "\n".join(",".join(map(str, row)) for row in (head, *rows))


def page(title: str, body: Iterable[str]) -> str:
    """Make a page of parts that are HTML already."""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>'
        f"{escape(title)}</title><style>{_PAGE}</style></head><body>"
        f"{''.join(body)}</body></html>"
    )


def heading(text: str, level: int = 2) -> str:
    """Write a heading of a page."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraphs(lines: Iterable[str]) -> list[str]:
    """Write lines as paragraphs of a page."""
    return [f"<p>{escape(line)}</p>" for line in lines]


def items(lines: Iterable[str], mark: str = "") -> str:
    """Write lines as a list of a page; `mark` is a class of its items."""
    of = f' class="{mark}"' if mark else ""
    return f"<ul>{''.join(f'<li{of}>{escape(line)}</li>' for line in lines)}</ul>"
