"""A table of text, and answers made of lines and tables: for a terminal and a document.

Terminals get lines of text, in colours where they have them; documents Markdown; pages are made of
the same parts, in `page`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from html import escape
from itertools import zip_longest
from textwrap import wrap
from typing import Final, Literal, TypeAlias

from topology.base.values import dataclass

Style = Literal["", "bold", "dim", "red", "yellow", "cyan"]
Part: TypeAlias = "str | Line | Title | Said | Typed | Drawing | Table"
"""Of an answer; a text is a sentence of its own."""
_GAP: Final = 2
_ON: Final = " \\"
_WORDS: Final = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Of a shell: what is quoted is not broken."""
_SPACED: Final = re.compile(r"\s*\S+\s*")
"""A word, with the blanks around it."""
_LEFT: Final = ' class="l"'
_CODES: Final = {"": "", "bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}
_KEPT: Final = 2  # columns that are never left out
_ANY: Final = 10000  # columns where nothing is to be broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of an answer on a terminal, and how it looks there."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """What an answer, at level 1, or a part of it is about."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Sentences about one thing.

    indent : columns of a terminal to their left. warns : they are set off.
    """

    lines: Sequence[str]
    indent: int = 0
    warns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A line to type."""

    line: str
    indent: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture, as lines of characters and as SVG for a page.

    title : what it shows; a page has it in the SVG. lines : none where only a page shows it.
    """

    title: str = ""
    lines: Sequence[str] = ()
    svg: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells below a head; a table of pairs may have none.

    align : at which end of a column its cells stand, ``<`` left or ``>`` right, column by column;
    the last sign is that of all further ones. least : fewest characters of the first columns.
    fixed : columns that are never broken. indent : columns of a terminal to the left of the table.
    rows_in, columns_in : styles by place, on a terminal. typed : rows whose last cell is a line to
    type, which goes on behind a backslash where it is too long.
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
    typed: Collection[int] = ()

    def text(self, width: int | None = None, *, colour: bool = False) -> str:
        """Write the table for a terminal; cells are broken where it is wider than `width`.

        >>> print(Table(head=("name", "value"), rows=[["a", "1.5"], ["longer", "10"]]).text())
        name    value
        a         1.5
        longer     10
        """
        return terminal([self], width, colour=colour)

    def widths(self, most: int) -> list[int]:
        """Give columns of a terminal to those of the table that fit in `most`, from the left.

        The widest give way first, down to their longest word (a fixed one to its longest cell);
        where that is not enough, columns on the right are left out, but for the first two, or all
        where no head says what they are; and then words are broken.

        >>> table = Table(head=("plan", "time", "memory"), rows=[["dp2.tp2", "546 ms", "13.5 GiB"]])
        >>> table.widths(40), table.widths(22), table.widths(16)
        ([7, 6, 8], [7, 5, 6], [7, 6])
        """
        columns = list(zip(*[self.head] * bool(self.head), *self.rows, strict=True))
        least = [self._least(place, cells) for place, cells in enumerate(columns)]
        longest = [max(map(len, "\n".join(cells).split("\n"))) for cells in columns]
        while self.head and len(least) > _KEPT and sum(least) + _GAP * (len(least) - 1) > most:
            least.pop()
        widths = list(map(max, longest, least))
        spare = most - _GAP * (len(least) - 1)
        while sum(widths) > spare and max(widths) > 1:
            place = max(
                range(len(least)), key=lambda place: (widths[place] > least[place], widths[place])
            )
            widths[place] -= 1
        return widths

    def _least(self, place: int, cells: Sequence[str]) -> int:
        """Say how narrow a column may be, whose first cell is that of the head, if there is one."""
        told = self.least[place] if place < len(self.least) else 1
        fixed = cells[bool(self.head) :] if place < self.fixed else ()
        words = (word for cell in cells for word in cell.split())
        return max([told, *map(len, fixed), *map(len, words)])

    def lines(self, width: int, painted: "Paint") -> Iterator[str]:
        """Yield the table as lines of so many columns."""
        room = width - self.indent - sum(self._before())
        rows = [
            [*row[:-1], continued(row[-1], room)] if number in self.typed else row
            for number, row in enumerate(self.rows)
        ]
        widths = replace(self, rows=rows).widths(width - self.indent) if rows or self.head else []
        if self.head:
            yield from self._in_line(self.head, widths, [(self.head_in,)] * len(widths), painted)
        for number, row in enumerate(rows):
            own = self.rows_in.get(number, "")
            styles = [(own, self.columns_in.get(place, "")) for place in range(len(widths))]
            yield from self._in_line(row, widths, styles, painted)

    def _in_line(
        self,
        cells: Sequence[str],
        widths: Sequence[int],
        styles: Sequence[Sequence[Style]],
        painted: "Paint",
    ) -> Iterator[str]:
        """Yield the lines that a row takes, cells beside each other."""
        columns = [broken(cell, width) for cell, width in zip(cells, widths, strict=False)]
        for texts in zip_longest(*columns, fillvalue=""):
            line = " " * self.indent
            for place, (text, width, style) in enumerate(zip(texts, widths, styles, strict=True)):
                blanks, gap = " " * (width - len(text)), " " * _GAP * (place > 0)
                shown = painted(text, style)
                line += gap + (shown + blanks if self._left(place) else blanks + shown)
            yield line

    def _before(self) -> Iterator[int]:
        """Yield what columns before the last one take of a terminal."""
        for cells in list(zip(*self.rows, strict=True))[:-1]:
            yield max(map(len, cells)) + _GAP

    def _left(self, place: int) -> bool:
        return self.align[min(place, len(self.align) - 1)] == "<"

    def markdown(self) -> str:
        r"""Write the table for a document.

        >>> print(Table(head=["a", "b"], rows=[["1", "2|3"]]).markdown())
        | a | b |
        | --- | --- |
        | 1 | 2\|3 |
        """
        head = self.head or [""] * len(self.rows[0])
        lines = [head, ["---"] * len(head), *self.rows]
        escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in lines)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)

    def html(self) -> str:
        """Write the table for a page."""
        head = self._row("th", self.head, ' scope="col"') if self.head else ""
        return f"<table>{head}{''.join(self._row('td', row) for row in self.rows)}</table>"

    def _row(self, tag: str, row: Iterable[str], scope: str = "") -> str:
        cells = (
            f"<{tag}{scope}{_LEFT if self._left(place) else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"


def continued(line: str, width: int) -> str:
    r"""Break a line to type so that a shell takes it as one; a comment behind it goes on as such.

    >>> print(continued("run --plan tp2 --name 'a b'  # then look", 18))
    run --plan tp2 \
    --name 'a b'
    # then look
    """
    if len(line) <= width:
        return line
    command, mark, comment = line.partition(" # ")
    lines = [""]
    for word in _WORDS.findall(command):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and len(longer) > width - len(_ON):
            lines.append(word)
        else:
            lines[-1] = longer
    comments = wrap(comment, max(width - len("# "), 1), break_long_words=False) if mark else []
    return "\n".join([f"{_ON}\n".join(lines), *(f"# {text}" for text in comments)])


Paint: TypeAlias = Callable[[str, Sequence[Style]], str]
"""Writes a text in styles."""


def _plain(text: str, _: Sequence[Style]) -> str:
    return text


def _painted(text: str, styles: Sequence[Style]) -> str:
    codes = ";".join(filter(None, (_CODES[style] for style in styles)))
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def broken(text: str, width: int) -> list[str]:
    """Break a text into lines between words, or within one that is longer than a line.

    >>> broken("two words, inseparably", 6)
    ['two', 'words,', 'insepa', 'rably']
    """
    lines = []
    for whole in text.split("\n"):
        line = ""
        for each in _SPACED.findall(whole):
            word = each
            if line and len(line) + len(word.rstrip()) > width:
                lines.append(line)
                line = ""
            while len(word.rstrip()) > width:
                lines.append(word[:width])
                word = word[width:]
            line += word
        lines.append(line)
    return [line.rstrip() for line in lines]


def terminal(parts: Iterable[Part], width: int | None = None, *, colour: bool = False) -> str:
    """Write an answer for a terminal, of at most `width` columns.

    >>> print(terminal([Line(text="all", style="bold"), "", Table(rows=[["a", "1"]], indent=2)]))
    all
    <BLANKLINE>
      a  1
    """
    painted = _painted if colour else _plain
    lines = [line for part in parts for line in _on_terminal(part, width or _ANY, painted)]
    return "\n".join(line.rstrip() for line in lines)


def _on_terminal(part: Part, width: int, painted: Paint) -> Iterator[str]:
    """Yield the lines of a part."""
    match part:
        case Table():
            yield from part.lines(width, painted)
        case Line(text=text, style=style):
            yield from (painted(line, [style]) for line in broken(text, width))
        case Title(text=text, level=level):
            yield from [""] * (level > 1)
            yield from (painted(line, ["bold"]) for line in broken(text, width))
        case Said():
            red: dict[int, Style] = {0: "red"} if part.warns else {}
            said = Table(rows=[[line] for line in part.lines], indent=part.indent, columns_in=red)
            yield from said.lines(width, painted)
        case Typed():
            typed = Table(rows=[[part.line]], indent=part.indent, typed=(0,))
            yield from typed.lines(width, painted)
        case Drawing():
            yield from ["", *broken(part.title, width)] if part.lines and part.title else ()
            yield from part.lines
        case _:
            yield from broken(part, width)


def document(parts: Iterable[Part]) -> str:
    """Write an answer as Markdown.

    >>> print(document([Title(text="all", level=1), Said(lines=["one", "two"])]))
    **all**
    <BLANKLINE>
    - one
    - two
    """
    return "\n\n".join(filter(None, map(_in_document, parts)))


def _in_document(part: Part) -> str:
    match part:
        case Table():
            return part.markdown()
        case Title():
            return f"**{part.text}**" if part.level == 1 else f"{'#' * part.level} {part.text}"
        case Said():
            return "\n".join(bullets(part.lines))
        case Typed():
            return f"```sh\n{part.line}\n```"
        case Drawing():
            drawn = filter(None, [part.title, *part.lines])
            return "\n".join(["```text", *drawn, "```"]) if part.lines else ""
    return part.text if isinstance(part, Line) else part


def bullets(lines: Iterable[str]) -> list[str]:
    """Write lines as a list of a document."""
    return [f"- {line}" for line in lines]
