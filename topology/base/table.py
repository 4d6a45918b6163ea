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
_CONTINUATION: Final = " \\"
_WORDS: Final = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Of a shell: what is quoted is not broken."""
_LEFT_CLASS: Final = ' class="l"'
_LEAST_COLUMNS: Final = 2  # columns that are never left out
_UNBROKEN_WIDTH: Final = 10000  # columns where nothing is to be broken


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
        minimum_widths = [
            self._minimum_width(place, cells) for place, (_, *cells) in enumerate(columns)
        ]
        widths = [
            max(minimum, *map(len, cells))
            for minimum, cells in zip(minimum_widths, columns, strict=True)
        ]
        while (
            len(minimum_widths) > _LEAST_COLUMNS
            and sum(minimum_widths) + _GAP * (len(minimum_widths) - 1) > most
        ):
            minimum_widths.pop()
        widths = widths[: len(minimum_widths)]
        available = most - _GAP * (len(minimum_widths) - 1)
        while sum(widths) > available and widths != minimum_widths:
            place = max(
                range(len(minimum_widths)),
                key=lambda place: (widths[place] > minimum_widths[place], widths[place]),
            )
            widths[place] -= 1
        return widths

    def _minimum_width(self, place: int, cells: Sequence[str]) -> int:
        declared_width = self.least[place] if place < len(self.least) else 0
        unbroken = (
            cells if place < self.fixed else [word for cell in cells for word in cell.split()]
        )
        head = self.head[place].split() if self.head else []
        return max([declared_width, *map(len, unbroken), *map(len, head)])

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
        for place, column_width in enumerate(widths):
            grid.add_column(
                Text(self.head[place] if self.head else "", overflow="ellipsis"),
                justify="left" if self._left(place) else "right",
                style=self.columns_in.get(place, ""),
                width=column_width,
                no_wrap=place < self.fixed,
                overflow="fold",
            )
        room = width - self.indent - sum(self._earlier_widths())
        for number, row in enumerate(self.rows):
            cells = [*row[:-1], wrapped_command(row[-1], room)] if number in self.typed else row
            grid.add_row(*map(Text, cells[: len(widths)]), style=self.rows_in.get(number, ""))
        return Padding(grid, (0, 0, 0, self.indent))

    def _earlier_widths(self) -> Iterator[int]:
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
            f"<{tag}{scope}{_LEFT_CLASS if self._left(place) else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"


def wrapped_command(line: str, width: int) -> str:
    r"""Break a line to type so that a shell takes it as one; a comment behind it goes on as such.

    >>> print(wrapped_command("run --plan tp2 --name 'a b'  # then look", 18))
    run --plan tp2 \
    --name 'a b'
    # then look
    """
    if len(line) <= width:
        return line
    command, mark, comment = line.partition(" # ")
    lines = [""]
    for word in _WORDS.findall(command):
        extended = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and len(extended) > width - len(_CONTINUATION):
            lines.append(word)
        else:
            lines[-1] = extended
    comments = wrap(comment, max(width - len("# "), 1), break_long_words=False) if mark else []
    return "\n".join([f"{_CONTINUATION}\n".join(lines), *(f"# {text}" for text in comments)])


def terminal(parts: Iterable[Part], width: int | None = None, *, colour: bool = False) -> str:
    """Write an answer for a terminal, of at most `width` columns.

    >>> print(terminal([Line(text="all", style="bold"), "", Table(rows=[["a", "1"]], indent=2)]))
    all
    <BLANKLINE>
      a  1
    """
    from rich.console import Console  # noqa: PLC0415  # JSON and pages start without it
    from rich.text import Text  # noqa: PLC0415

    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width or _UNBROKEN_WIDTH, force_terminal=colour,
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
                styles: dict[int, Style] = {0: "red"} if part.warns else {}
                rows = [[line] for line in part.lines]
                grid = Table(rows=rows, indent=part.indent, columns_in=styles)
                console.print(grid.grid(console.width), end="\n" if part.lines else "")
            case Typed():
                grid = Table(rows=[[part.line]], indent=part.indent, typed=(0,))
                console.print(grid.grid(console.width))
            case Drawing() if not part.lines:
                continue
            case Drawing():
                if part.title:
                    console.print(Text(f"\n{part.title}"))
                picture = Text("\n".join(part.lines), no_wrap=True, overflow="ignore")
                console.print(picture, crop=False)
            case _:
                console.print(Text(part))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


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
            picture_lines = filter(None, [part.title, *part.lines])
            return "\n".join(["```text", *picture_lines, "```"]) if part.lines else ""
    return part.text if isinstance(part, Line) else part


def bullets(lines: Iterable[str]) -> list[str]:
    """Write lines as a list of a document."""
    return [f"- {line}" for line in lines]
