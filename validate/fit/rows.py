"""Results, one row a measurement: lines of JSON as soon as they are known, a CSV table to keep.

In the table, what a row says besides the usual statistics stands in one column, ``share=0.33
messages=25``; the sizes of a case are those in its key. Either is read back as the same rows.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from planner.models.fields import Fields, parse
from topology.base import InputError, csv_of, number_in, shown
from topology.base.values import dataclass

COLUMNS: Final = ("case", "mode", "rank", "seconds", "low", "high", "repeats", "more", "error")
STATISTICS: Final = COLUMNS[3:7]
_TEXTS: Final = ("key", "family", "mode", "error")
_MAX_VALUE: Final = 10**18
_MIN_SECONDS: Final = 2.0**-40  # s
_MINIMA: Final = {
    **dict.fromkeys(("seconds", "compute", "communication", "both"), _MIN_SECONDS), "messages": 1.0,
}  # fmt: skip
_RANKS: Final = 10**6
_WHOLE: Final = r"[0-9]{1,18}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One result of one case.

    sizes : of the case, by name. mode : how it was run (``short``, ``sustained``, ``graph`` ...).
    values : results in SI units by name; `seconds` is the median of one call, `low` and `high`
    the least and the ninth decile, `repeats` how many there were. rank : who measured it.
    error : why there are no values; then `mode` is ``failed``.
    """

    key: str
    family: str
    sizes: Mapping[str, int | str]
    mode: str
    values: Mapping[str, float]
    rank: int = 0
    error: str = ""

    def number(self, name: str) -> int:
        """Return a size of the case."""
        return int(self.sizes[name])

    @property
    def seconds(self) -> float:
        """Median of one call."""
        return self.values["seconds"]


def failure(key: str, rank: int, reason: str) -> Row:
    """Say that a case has no result, and why."""
    family = key.partition(" ")[0]
    return Row(key=key, family=family, sizes={}, mode="failed", values={}, rank=rank, error=reason)


def line(row: Row) -> str:
    """Write one measured row as one line of JSON.

    >>> print(line(Row(key="k", family="memory", sizes={}, mode="used", values={"bytes": 2.0})))
    {"key":"k","family":"memory","sizes":{},"mode":"used","values":{"bytes":2.0},"rank":0,"error":""}
    """
    values = {name: float(f"{value:.6g}") for name, value in row.values.items()}
    document = {**asdict(row), "values": values}
    return json.dumps(document, separators=(",", ":"))


def read_rows(text: str, name: str = "rows") -> list[Row]:
    """Read rows from `text`; a last line without its end is a write that was cut off: dropped.

    Raises InputError if any other line is no row.
    """
    lines = enumerate(text.split("\n")[:-1], 1)
    return [_row(text, f"{name}, line {number}") for number, text in lines if text.strip()]


def _row(content: str, where: str) -> Row:
    fields = parse(content, where)
    sizes, values = fields.table("sizes"), fields.table("values")
    if sizes is None or values is None:
        raise InputError(f"{where}: got {content[:40]!r}, wanted one measurement")
    return Row(
        sizes={name: _size_or_word(sizes, name) for name in sizes.values},
        values={
            name: values.number(name, low=_minimum(name), high=_MAX_VALUE) for name in values.values
        },
        rank=fields.integer("rank", low=0, high=_RANKS),
        **{name: fields.text(name) for name in _TEXTS},
    )


def _size_or_word(sizes: Fields, name: str) -> int | str:
    """Read a size, or a word that stands among them."""
    if isinstance(sizes.values[name], str):
        return sizes.text(name)
    return sizes.integer(name, low=0, high=_MAX_VALUE)


def whole_lines(text: str) -> str:
    r"""Return `text` without a last line that was cut off.

    >>> whole_lines("one" + chr(10) + "tw")
    'one\n'
    """
    return text[: text.rfind("\n") + 1]


def done(rows: Iterable[Row]) -> frozenset[str]:
    """Keys of the cases that need not run again: measured, or failed once."""
    return frozenset(row.key for row in rows)


def to_csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV, in the order of their cases; equal cases keep their order."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: row.key):
        extra_values = {name: value for name, value in row.values.items() if name not in STATISTICS}
        statistics = [_number(row.values[n]) if n in row.values else "" for n in STATISTICS]
        extras = " ".join(f"{name}={_number(value)}" for name, value in extra_values.items())
        table.writerow([row.key, row.mode, row.rank, *statistics, extras, row.error])
    return text.getvalue()


def read_csv(text: str, name: str = "rows.csv") -> list[Row]:
    """Read what `to_csv` wrote.

    Raises InputError if the columns are others, or a line is no row.

    >>> row = Row(
    ...     key="pointwise how=copy bytes=4096", family="pointwise",
    ...     sizes={"how": "copy", "bytes": 4096}, mode="short", values={"seconds": 2e-6},
    ... )
    >>> read_csv(to_csv([row])) == [row]
    True
    """
    try:
        columns, rows = csv_of(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if columns != COLUMNS:
        raise InputError(f"{name}: got {text[:40]!r}, wanted columns {', '.join(COLUMNS)}")
    return [_table_row(cells, f"{name}, line {number}") for number, cells in enumerate(rows, 2)]


def _table_row(cells: Mapping[str, str], where: str) -> Row:
    family = cells["case"].partition(" ")[0]
    if not family:
        raise InputError(f"{where}: got no case, wanted one measurement")
    values = {key: cells[key] for key in STATISTICS if cells[key]} | dict(_pairs(cells["more"]))
    return Row(
        key=cells["case"],
        family=family,
        sizes={key: _size(value) for key, value in _pairs(cells["case"])},
        mode=cells["mode"],
        values={key: _checked_number(text, key, where) for key, text in values.items()},
        rank=int(_checked_number(cells["rank"], "rank", where)),
        error=cells["error"],
    )


def _checked_number(text: str, name: str, where: str) -> float:
    try:
        value = number_in(text)
    except ValueError:
        value = -1.0
    if not _minimum(name) <= value <= _MAX_VALUE:
        range_text = f"a number {_minimum(name):g} to {_MAX_VALUE:g}"
        raise InputError(f"{where}: {name}: got {shown(text)}, wanted {range_text}")
    return value


def _minimum(name: str) -> float:
    """Give the least that something may be: a call takes time."""
    return _MINIMA.get(name, 0.0)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            yield key, value


def _size(text: str) -> int | str:
    return int(text) if re.fullmatch(_WHOLE, text) else text


def _number(value: float) -> str:
    return f"{value:.6g}"
