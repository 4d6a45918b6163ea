"""Requests: how long they are, about a mean or in a histogram, and when they come."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import ceil
from typing import Final, TypeVar, cast

import numpy as np

from planner.request.request import LARGEST, Request, Rows
from topology.base import InputError, content, csv_of, decoded_text, number_in, shown
from topology.base.values import dataclass

SEED: Final = 7
LONGEST_TRACE: Final = 1000.0 * 86400
"""Seconds of the longest trace, about three years."""
MOST_BYTES: Final = 2**21
"""Of a file, a hundred thousand requests, which a plan is followed through in ten seconds."""
MOST_COUNT: Final = 10**12
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "arrivals": ("arrival_s", "input_tokens", "output_tokens"),
    "lengths": ("input_tokens", "output_tokens", "count"),
}
"""Of the files, and of rows that a program passes; lengths without a count are as frequent."""

Row = TypeVar("Row")
Reader = Callable[[Mapping[str, object], str], Row]
"""Reads a row by its columns; it is told where the row stands."""
Trace = tuple[tuple[float, int, int], ...]
"""Requests in the order in which they come: seconds from the first, prompt and answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts and answers, on average: uniform from `spread` below to as much above.

    spread : a share of the mean, 0 where all requests are alike. scatter : likewise, of requests
    that are alike and yet come apart as if they differed so much. rows : prompts and answers as
    they are and how many of each there are, in place of a mean and a spread.
    """

    prompt: int
    output: int
    spread: float = 0.0
    scatter: float = 0.0
    rows: tuple[tuple[int, int, float], ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        if self.rows:
            return max(prompt + output for prompt, output, _ in self.rows)
        return ceil((self.prompt + self.output) * (1.0 + self.spread))

    def draw(self, count: int) -> tuple[list[int], list[int]]:
        """Draw prompts and answers, the same ones whenever they are asked for."""
        random = np.random.default_rng(SEED)
        if self.rows:  # each as often as it is to be, in an order that is drawn
            heights = np.cumsum([frequency for _, _, frequency in self.rows])
            places = (random.permutation(count) + 0.5) / count * heights[-1]
            indices = np.searchsorted(heights, places)
            return [self.rows[n][0] for n in indices], [self.rows[n][1] for n in indices]
        half_range = self.spread or self.scatter
        low, width = 1.0 - half_range, 2.0 * half_range
        factors = low + width * random.random((2, count))
        prompts = np.maximum(1, np.rint(self.prompt * factors[0]))
        outputs = np.maximum(1, np.rint(self.output * factors[1]))
        return prompts.astype(int).tolist(), outputs.astype(int).tolist()

    def dealt(self, count: int) -> list[tuple[int, int]]:
        """Deal out so many requests, each the mean of an equal share of them from short to long.

        Prompts of all, and answers, are as many tokens together as those of so many mean requests.

        >>> lengths_in([(100, 10, 3.0), (500, 30, 1.0)]).dealt(2)
        [(100, 10), (300, 20)]
        """
        random = np.random.default_rng(SEED)
        share = np.arange(count + 1) / count
        orders = [random.permutation(count)] * 2
        if self.rows:
            rows = np.array(sorted(self.rows, key=lambda row: row[0] + row[1]))
            frequencies = rows[:, 2] / rows[:, 2].sum()
            heights = np.append(0.0, frequencies.cumsum())
            sums = [np.append(0.0, (frequencies * rows[:, place]).cumsum()) for place in (0, 1)]
            running_totals = [np.interp(share, heights, column) for column in sums]
        else:
            rises = share * (1.0 - self.spread * (1.0 - share))
            running_totals, orders[1] = (
                [self.prompt * rises, self.output * rises],
                random.permutation(count),
            )
        tokens = [
            np.maximum(1, np.diff(np.rint(count * column))).astype(int) for column in running_totals
        ]
        prompts, outputs = (column[order] for column, order in zip(tokens, orders, strict=True))
        return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def lengths_in(rows: Iterable[tuple[int, int, float]]) -> Lengths:
    """Take requests as they are, each so often.

    >>> lengths_in([(100, 10, 3.0), (500, 30, 1.0)])
    Lengths(prompt=200, output=15, spread=0.0, scatter=0.0, rows=((100, 10, 3.0), (500, 30, 1.0)))
    """
    counted_rows = tuple(rows)
    prompts, outputs, counts = zip(*counted_rows, strict=True)
    mean = partial(np.average, weights=counts)
    return Lengths(prompt=round(mean(prompts)), output=round(mean(outputs)), rows=counted_rows)


def read_requests(request: Request) -> tuple[Lengths | None, Trace]:
    """Read the histogram or the trace of a request; None and nothing where it has neither.

    Raises `InputError` if a file cannot be read, a number cannot be right, or a mean beside it is
    another.
    """
    trace: Trace = ()
    if request.arrivals:
        timed = sorted(_rows("arrivals", request.arrivals, _arrival))
        trace = tuple((time - timed[0][0], prompt, output) for time, prompt, output in timed)
        lengths = lengths_in((prompt, output, 1.0) for _, prompt, output in trace)
    elif request.lengths:
        lengths = lengths_in(_rows("lengths", request.lengths, _length))
    else:
        return None, trace
    source_field = "arrivals" if trace else "lengths"
    for name, mean in (("input_tokens", lengths.prompt), ("output_tokens", lengths.output)):
        requested = getattr(request, name)
        if requested not in (None, mean):
            raise InputError(f"{name}: got {requested} beside {source_field}, wanted none")
    if request.spread is not None:
        raise InputError(f"spread: got {request.spread:g} beside {source_field}, wanted none")
    return lengths, trace


def _rows(field: str, source: str | Rows, read: Reader[Row]) -> list[Row]:
    """Read requests from a CSV file, or from rows of numbers that a program passed."""
    if isinstance(source, str):
        return _rows_in_file(field, source, read)
    rows = []
    for number, row in enumerate(source, 1):
        if not len(COLUMNS[field]) - (field == "lengths") <= len(row) <= len(COLUMNS[field]):
            wanted = ", ".join(COLUMNS[field])
            raise InputError(f"{field}, row {number}: got {shown(row)}, wanted {wanted}")
        rows.append(read(dict(zip(COLUMNS[field], row, strict=False)), f"{field}, row {number}"))
    return rows


def _rows_in_file(field: str, path: str, read: Reader[Row]) -> list[Row]:
    text = text_at(field, path, MOST_BYTES, "a CSV file of requests")
    try:
        columns, rows = csv_of(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    needed = [name for name in COLUMNS[field] if name != "count"]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise InputError(f"{path}: got no column {missing[0]}, wanted {', '.join(needed)}")
    if not rows:
        raise InputError(f"{path}: got no requests, wanted a line for each")
    return [read(row, f"{path}, line {number}") for number, row in enumerate(rows, 2)]


def text_at(what: str, path: str, most: int, wanted: str) -> str:
    """Read the text of a file of at most so many bytes, that `what` of a request names."""
    try:
        return decoded_text(content(path, most), path)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise InputError(f"{what}: got {shown(path)}, {reason}; wanted {wanted}") from None


def _arrival(row: Mapping[str, object], where: str) -> tuple[float, int, int]:
    time = _number(row, "arrival_s", where)
    if not 0 <= time < LONGEST_TRACE:
        raise InputError(
            f"{where}: arrival_s: got {time:g}, wanted seconds from 0 to {LONGEST_TRACE:g}"
        )
    return time, _tokens(row, "input_tokens", where), _tokens(row, "output_tokens", where)


def _length(row: Mapping[str, object], where: str) -> tuple[int, int, float]:
    frequency = _number(row, "count", where) if row.get("count") not in (None, "") else 1.0
    if not 0 < frequency <= MOST_COUNT:
        raise InputError(
            f"{where}: count: got {frequency:g}, wanted more than 0, at most {MOST_COUNT:g}"
        )
    return _tokens(row, "input_tokens", where), _tokens(row, "output_tokens", where), frequency


def _tokens(row: Mapping[str, object], name: str, where: str) -> int:
    tokens = _number(row, name, where)
    maximum = LARGEST["input_tokens"]
    if not 1 <= tokens <= maximum or tokens != int(tokens):
        wanted = f"a whole number from 1 to {maximum:,}"
        raise InputError(f"{where}: {name}: got {tokens:g}, wanted {wanted}")
    return int(tokens)


def _number(row: Mapping[str, object], name: str, where: str) -> float:
    value = row.get(name)
    text = value.strip() if isinstance(value, str) else value
    try:
        return number_in(text or "") if isinstance(text, str | None) else float(cast(float, text))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: {name}: got {shown(text or '')}, wanted a number") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, of one engine or of all.

    concurrency : that clients keep in flight: each sends its next one when the last is done; 0
    where they come by themselves. arrivals : seconds at which they do, in order.
    prompts, outputs : tokens of each.
    """

    prompts: list[int]
    outputs: list[int]
    concurrency: int = 0
    arrivals: list[float] | None = None

    @property
    def count(self) -> int:
        return len(self.prompts)

    def part(self, number: int, engines: int) -> "Load":
        """Return the requests of one of several engines, which take turns."""
        turns = slice(number, None, engines)
        arrivals = None if self.arrivals is None else self.arrivals[turns]
        return Load(prompts=self.prompts[turns], outputs=self.outputs[turns], arrivals=arrivals)


def closed_load(lengths: Lengths, concurrency: int, requests: int) -> Load:
    """Keep so many requests in flight."""
    prompts, outputs = lengths.draw(requests)
    return Load(prompts=prompts, outputs=outputs, concurrency=concurrency)


def traced_load(trace: Trace, pace: float = 1.0) -> Load:
    """Let the requests of a trace come, so many times as fast."""
    return Load(
        prompts=[prompt for _, prompt, _ in trace],
        outputs=[output for _, _, output in trace],
        arrivals=[time / pace for time, _, _ in trace],
    )


def poisson(lengths: Lengths, rate: float, requests: int, burst: float = 1.0) -> Load:
    """Let requests come at random, `rate` a second on average.

    burst : squared variation of the gaps between them: 1 for a Poisson process, more for bursts.
    """
    prompts, outputs = lengths.draw(requests)
    gaps = np.random.default_rng(SEED + 1).gamma(1.0 / burst, burst / rate, requests)
    return Load(prompts=prompts, outputs=outputs, arrivals=np.cumsum(gaps).tolist())
