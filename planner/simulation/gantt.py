"""A timeline of a simulated turn: rows of characters for a terminal, a drawing for a page."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from costmodels.price import Class
from planner.search.estimate import worded
from planner.simulation.tasks import Event
from topology.base import format_seconds
from topology.base.chart import Axis, ChartRow, ChartSpan, spans
from topology.base.values import dataclass

LETTERS: Final[dict[Class, str]] = {
    "gemm": "g", "attention": "a", "pointwise": "p", "layout": "m", "convolution": "v",
    "communication": "c",
}  # fmt: skip
WAITING: Final = "."
WAITING_WORDS: Final = "waiting for a rank"
MOST_RANKS: Final = 8
TIME: Final = Axis(title="time since the layer began", write=format_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of a turn, and what happens then."""

    start: float
    end: float
    words: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


def middle(events: Sequence[Event], stage: str, turn_s: float) -> Window:
    """Choose one turn of the innermost loop that takes longest, in the middle, on rank 0."""
    spent: dict[str, float] = defaultdict(float)
    rank_events = [event for event in events if event.rank == 0]
    for event in rank_events:
        spent[event.label.loop] += event.end_s - event.start_s
    if not rank_events:
        return Window(start=0.0, end=turn_s, words=stage)
    loop = max(spent, key=lambda name: spent[name])
    turns = sorted({event.label.turn for event in rank_events if event.label.loop == loop})
    turn = turns[len(turns) // 2]
    turn_events = [e for e in rank_events if e.label.loop == loop and e.label.turn == turn]
    return Window(
        start=min(event.start_s for event in turn_events),
        end=max(event.end_s for event in turn_events),
        words=f"layer {turn + 1} of {len(turns)} ({loop})" if len(turns) > 1 else loop,
    )


def rows(
    events: Sequence[Event], window: Window, width: int, ranks: int
) -> Iterator[tuple[str, str]]:
    """Draw the streams of the first ranks, a column for each part of the window."""
    for rank, stream, stream_events in _rank_streams(events, ranks):
        columns = [" "] * width
        overlaps = [0.0] * width
        for event in stream_events:
            pieces = [(LETTERS[event.label.kind], event.start_s, event.end_s)]
            if event.label.kind == "communication":
                pieces.append((WAITING, event.came_s, event.start_s))
            for letter, start, end in pieces:
                _fill_columns(columns, overlaps, letter, (start, end), window)
        if any(letter != " " for letter in columns):
            yield f"rank {rank} {stream}", "".join(columns)


def _fill_columns(
    columns: list[str],
    overlaps: list[float],
    letter: str,
    span: tuple[float, float],
    window: Window,
) -> None:
    """Put a letter into the columns of which it has the largest part so far."""
    scale = len(columns) / window.seconds if window.seconds else 0.0
    start = max(0.0, (span[0] - window.start) * scale)
    end = min(float(len(columns)), (span[1] - window.start) * scale)
    for column in range(int(start), min(len(columns), int(end) + 1)):
        overlap = min(end, column + 1.0) - max(start, float(column))
        if overlap > overlaps[column]:
            columns[column], overlaps[column] = letter, overlap


def _rank_streams(events: Sequence[Event], ranks: int) -> Iterator[tuple[int, str, list[Event]]]:
    by_stream: dict[tuple[int, str], list[Event]] = defaultdict(list)
    drawn_ranks = sorted({event.rank for event in events})[:ranks]
    for event in events:
        if event.rank in drawn_ranks:
            by_stream[event.rank, event.stream].append(event)
    for rank, stream in sorted(by_stream, key=lambda key: (key[0], key[1] != "compute")):
        yield rank, stream, by_stream[rank, stream]


def legend(letters: str) -> str:
    """Say what the letters of some rows mean."""
    words = {letter: worded(kind) for kind, letter in LETTERS.items()}
    words[WAITING] = WAITING_WORDS
    return ", ".join(f"{letter} {word}" for letter, word in words.items() if letter in letters)


def chart(title: str, events: Sequence[Event], window: Window) -> str:
    """Draw the window: a row a stream, a span a task, and before it what it waited for."""
    chart_rows = [
        ChartRow(
            name=f"rank {rank} {stream}",
            spans=[span for event in stream_events for span in _event_spans(event, window)],
        )
        for rank, stream, stream_events in _rank_streams(events, MOST_RANKS)
    ]
    return spans(title, [row for row in chart_rows if row.spans], TIME, zooms=True)


def _event_spans(event: Event, window: Window) -> Iterator[ChartSpan]:
    name, kind = event.label.name, worded(event.label.kind)
    pieces = [(event.start_s, event.end_s, kind, name)]
    if event.label.kind == "communication":
        pieces.insert(0, (event.came_s, event.start_s, WAITING_WORDS, f"before {name}"))
    for start, end, span_kind, label in pieces:
        left, right = max(start, window.start), min(end, window.end)
        if right > left:
            yield ChartSpan(
                start=left - window.start,
                end=right - window.start,
                kind=span_kind,
                says=f"{label}, {format_seconds(end - start)}",
                faint=span_kind == WAITING_WORDS,
            )
