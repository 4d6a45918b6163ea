"""Results as lines of JSON: one row a measurement, written as soon as it is known."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from topology.base import InputError

_TEXTS: Final = ("key", "family", "mode", "error")


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


def line(row: Row) -> str:
    """Write one row as one line.

    >>> print(line(Row(key="k", family="memory", sizes={}, mode="used", values={"bytes": 2.0})))
    {"key":"k","family":"memory","sizes":{},"mode":"used","values":{"bytes":2.0},"rank":0,"error":""}
    """
    document = {
        "key": row.key,
        "family": row.family,
        "sizes": dict(row.sizes),
        "mode": row.mode,
        "values": {name: float(f"{value:.6g}") for name, value in row.values.items()},
        "rank": row.rank,
        "error": row.error,
    }
    return json.dumps(document, separators=(",", ":"))


def read_rows(text: str, name: str = "rows") -> list[Row]:
    """Read rows from `text`; a last line without its end is a write that was cut off: dropped.

    Raises
    ------
    InputError
        If any other line is no row.
    """
    lines = text.split("\n")
    return list(_rows(lines[:-1], name))


def _rows(lines: Iterable[str], name: str) -> Iterator[Row]:
    for number, content in enumerate(lines, 1):
        if content.strip():
            yield _row(content, f"{name}, line {number}")


def _row(content: str, where: str) -> Row:
    try:
        found = json.loads(content)
        values = {str(key): float(value) for key, value in found["values"].items()}
        row = Row(
            sizes=_sizes(found["sizes"]),
            values=values,
            rank=int(found["rank"]),
            **{key: str(found[key]) for key in _TEXTS},
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{where}: got {content[:40]!r}, wanted one measurement") from None
    bad = [key for key, value in values.items() if not 0 <= value < float("inf")]
    if bad:
        raise InputError(f"{where}: got {bad[0]} = {values[bad[0]]}, wanted zero or more")
    return row


def _sizes(found: dict[str, object]) -> dict[str, int | str]:
    sizes = {key: size for key, size in found.items() if isinstance(size, int | str)}
    if len(sizes) < len(found):
        raise TypeError
    return sizes


def whole(text: str) -> str:
    r"""Return `text` without a last line that was cut off.

    >>> whole("one" + chr(10) + "tw")
    'one\n'
    """
    return text[: text.rfind("\n") + 1]


def done(rows: Iterable[Row]) -> frozenset[str]:
    """Keys of the cases that need not run again: measured, or failed once."""
    return frozenset(row.key for row in rows)
