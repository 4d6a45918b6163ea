"""A timeline of a simulated turn: rows of characters for a terminal, a drawing for a page."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from costmodels.price import Class
from planner.search.estimate import worded
from planner.simulation.simulation import Event, Simulation
from topology.base import format_seconds
from topology.base.values import dataclass

LETTERS: Final[dict[Class, str]] = {
    "gemm": "g", "attention": "a", "pointwise": "p", "layout": "m", "convolution": "v",
    "communication": "c",
}  # fmt: skip
WAITING: Final = "."
COLOURS: Final[dict[Class, str]] = {
    "gemm": "#6aa84f", "attention": "#3d85c6", "pointwise": "#f1c232", "layout": "#b7b7b7",
    "convolution": "#8e7cc3", "communication": "#cc4125",
}  # fmt: skip
MOST_RANKS: Final = 8
_LEFT: Final = 120
_WIDTH: Final = 1000
_ROW: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of a turn, and what happens then."""

    start: float
    end: float
    words: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


def middle(simulation: Simulation) -> Window:
    """Choose one turn of the innermost loop that takes longest, in the middle, on rank 0."""
    spent: dict[str, float] = defaultdict(float)
    own = [event for event in simulation.events if event.rank == 0]
    for event in own:
        spent[event.label.loop] += event.end_s - event.start_s
    if not own:
        return Window(start=0.0, end=simulation.turn_s, words=simulation.stage)
    loop = max(spent, key=lambda name: spent[name])
    turns = sorted({event.label.turn for event in own if event.label.loop == loop})
    turn = turns[len(turns) // 2]
    inside = [e for e in own if e.label.loop == loop and e.label.turn == turn]
    return Window(
        start=min(event.start_s for event in inside),
        end=max(event.end_s for event in inside),
        words=f"layer {turn + 1} of {len(turns)} ({loop})" if len(turns) > 1 else loop,
    )


def rows(
    simulation: Simulation, window: Window, width: int, ranks: int
) -> Iterator[tuple[str, str]]:
    """Draw the streams of the first ranks, a column for each part of the window."""
    for rank, stream, events in _streams(simulation, ranks):
        columns = [" "] * width
        held = [0.0] * width
        for event in events:
            spans = [(LETTERS[event.label.kind], event.start_s, event.end_s)]
            if event.label.kind == "communication":
                spans.append((WAITING, event.came_s, event.start_s))
            for letter, start, end in spans:
                _fill(columns, held, letter, (start, end), window)
        if any(letter != " " for letter in columns):
            yield f"rank {rank} {stream}", "".join(columns)


def _fill(
    columns: list[str], held: list[float], letter: str, span: tuple[float, float], window: Window
) -> None:
    """Put a letter into the columns of which it has the largest part so far."""
    scale = len(columns) / window.seconds if window.seconds else 0.0
    start = max(0.0, (span[0] - window.start) * scale)
    end = min(float(len(columns)), (span[1] - window.start) * scale)
    for column in range(int(start), min(len(columns), int(end) + 1)):
        part = min(end, column + 1.0) - max(start, float(column))
        if part > held[column]:
            columns[column], held[column] = letter, part


def _streams(simulation: Simulation, ranks: int) -> Iterator[tuple[int, str, list[Event]]]:
    by_stream: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in simulation.events:
        if event.rank < ranks:
            by_stream[event.rank, event.stream].append(event)
    for rank, stream in sorted(by_stream, key=lambda key: (key[0], key[1] != "compute")):
        yield rank, stream, by_stream[rank, stream]


def legend(letters: str) -> str:
    """Say what the letters of some rows mean."""
    words = {letter: worded(kind) for kind, letter in LETTERS.items()}
    words[WAITING] = "waiting for a rank"
    return ", ".join(f"{letter} {word}" for letter, word in words.items() if letter in letters)


def svg(simulation: Simulation, window: Window) -> str:
    """Draw the window: a row a stream, a box a task that says its name when it is pointed at."""
    boxes, names = [], []
    streams = list(_streams(simulation, MOST_RANKS))
    for row, (rank, stream, events) in enumerate(streams):
        top = row * _ROW
        names.append(f'<text x="0" y="{top + 12}">rank {rank} {stream}</text>')
        boxes += [box for event in events for box in _box(event, window, top)]
    height = len(streams) * _ROW + 20
    ends = (
        f'<text x="{_LEFT}" y="{height - 4}">{escape(format_seconds(window.start))}</text>'
        f'<text x="{_LEFT + _WIDTH}" y="{height - 4}" text-anchor="end">'
        f"{escape(format_seconds(window.end))}</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH} {height}" '
        f'font-family="monospace" font-size="11">{"".join([*names, *boxes])}{ends}</svg>'
    )


def _box(event: Event, window: Window, top: int) -> Iterator[str]:
    scale = _WIDTH / window.seconds if window.seconds else 0.0
    start = max(event.start_s, window.start)
    end = min(event.end_s, window.end)
    if end <= start:
        return
    kind, seconds = event.label.kind, format_seconds(event.end_s - event.start_s)
    yield (
        f'<rect x="{_LEFT + (start - window.start) * scale:.2f}" y="{top}" '
        f'width="{max(0.3, (end - start) * scale):.2f}" height="{_ROW - 3}" '
        f'fill="{COLOURS[kind]}"><title>{escape(f"{event.label.name}: {kind}, {seconds}")}'
        "</title></rect>"
    )


def key(kinds: Sequence[Class]) -> str:
    """Say what the colours of a drawing mean."""
    return " ".join(
        f'<span style="background:{COLOURS[kind]};padding:1px 6px">{escape(worded(kind))}</span>'
        for kind in kinds
    )
