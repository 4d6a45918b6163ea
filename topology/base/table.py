"""A table of text, and answers made of lines and tables: for a terminal and a document.

Terminals get text that rich lays out, in colours where they have them; documents Markdown; pages
are made of the same parts, in `page`.
"""

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from topology.base.values import dataclass

if TYPE_CHECKING:
    from rich.padding import Padding

Style = Literal["", "bold", "dim", "red", "yellow", "cyan"]
Part: TypeAlias = "str | Line | Title | Said | Typed | Drawing | Table"
"""Of an answer; a text is a sentence of its own."""
_GAP: Final = 2
_ON: Final = " \\"
_WORDS: Final = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Of a shell: what is quoted is not broken."""
_LEFT: Final = ' class="l"'
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
        where that is not enough, columns on the right are left out, but for the first two.

        >>> table = Table(head=("plan", "time", "memory"), rows=[["dp2.tp2", "546 ms", "13.5 GiB"]])
        >>> table.widths(40), table.widths(22), table.widths(16)
        ([7, 6, 8], [7, 5, 6], [7, 6])
        """
        columns = list(zip(self.head, *self.rows, strict=True))
        least = [self._least(place, cells) for place, (_, *cells) in enumerate(columns)]
        widths = [max(low, *map(len, cells)) for low, cells in zip(least, columns, strict=True)]
        while len(least) > _KEPT and sum(least) + _GAP * (len(least) - 1) > most:
            least.pop()
        widths = widths[: len(least)]
        spare = most - _GAP * (len(least) - 1)
        while sum(widths) > spare and widths != least:
            place = max(
                range(len(least)), key=lambda place: (widths[place] > least[place], widths[place])
            )
            widths[place] -= 1
        return widths

    def _least(self, place: int, cells: Sequence[str]) -> int:
        told = self.least[place] if place < len(self.least) else 0
        whole = cells if place < self.fixed else [word for cell in cells for word in cell.split()]
        head = self.head[place].split() if self.head else []
        return max([told, *map(len, whole), *map(len, head)])

    def grid(self, width: int) -> "Padding":
        """Return the table as rich draws it in so many columns."""
        from rich.padding import Padding  # noqa: PLC0415  # JSON and pages start without it
        from rich.table import Table as Grid  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        grid = Grid(
            box=None,
            pad_edge=False,
            padding=(0, _GAP // 2),
            show_header=bool(self.head),
            header_style=self.head_in,
        )
        pairs = len(self.rows[0]) if self.rows else 0
        widths = self.widths(width - self.indent) if self.head else [None] * pairs
        for place, least in enumerate(widths):
            grid.add_column(
                Text(self.head[place] if self.head else "", overflow="ellipsis"),
                justify="left" if self._left(place) else "right",
                style=self.columns_in.get(place, ""),
                width=least,
                no_wrap=place < self.fixed,
                overflow="fold",
            )
        room = width - self.indent - sum(self._before())
        for number, row in enumerate(self.rows):
            cells = [*row[:-1], continued(row[-1], room)] if number in self.typed else row
            grid.add_row(*map(Text, cells[: len(widths)]), style=self.rows_in.get(number, ""))
        return Padding(grid, (0, 0, 0, self.indent))

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


def terminal(parts: Iterable[Part], width: int | None = None, *, colour: bool = False) -> str:
    """Write an answer for a terminal, of at most `width` columns.

    >>> print(terminal([Line(text="all", style="bold"), "", Table(rows=[["a", "1"]], indent=2)]))
    all
    <BLANKLINE>
      a  1
    """
    from rich.console import Console  # noqa: PLC0415  # JSON and pages start without it
    from rich.text import Text  # noqa: PLC0415

    written = io.StringIO()
    console = Console(
        file=written, width=width or _ANY, force_terminal=colour,
        color_system="standard" if colour else None,
    )  # fmt: skip
    for part in parts:
        match part:
            case Table():
                console.print(part.grid(console.width))
            case Line():
                console.print(Text(part.text, style=part.style))
            case Title():
                console.print(Text("\n" * (part.level > 1) + part.text, style="bold"))
            case Said():
                red: dict[int, Style] = {0: "red"} if part.warns else {}
                rows = [[line] for line in part.lines]
                grid = Table(rows=rows, indent=part.indent, columns_in=red)
                console.print(grid.grid(console.width), end="\n" if part.lines else "")
            case Typed():
                grid = Table(rows=[[part.line]], indent=part.indent, typed=(0,))
                console.print(grid.grid(console.width))
            case Drawing() if not part.lines:
                continue
            case Drawing():
                if part.title:
                    console.print(Text(f"\n{part.title}"))
                drawn = Text("\n".join(part.lines), no_wrap=True, overflow="ignore")
                console.print(drawn, crop=False)
            case _:
                console.print(Text(part))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


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
