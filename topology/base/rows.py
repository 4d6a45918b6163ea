"""Rows: gathered by name, and answers as such, written as CSV or taken as a data frame."""

import csv
import io
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from topology.base.errors import InputError

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


def gathered(pairs: Iterable[tuple[Name, Value]]) -> dict[Name, list[Value]]:
    """Gather values by name, names in the order in which they come.

    >>> gathered([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[Name, list[Value]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return groups


def flat(row: Mapping[str, object]) -> dict[str, object]:
    """Write nested data as one row, with dots in its names.

    >>> flat({"plan": "tp2", "stages_s": {"prefill": 1.0}, "interval_s": [1, 2]})
    {'plan': 'tp2', 'stages_s.prefill': 1.0, 'interval_s.0': 1, 'interval_s.1': 2}
    """
    return dict(_leaves(row, ""))


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    else:
        yield name, value
        return
    for key, inner in pairs:
        yield from _leaves(inner, f"{name}.{key}" if name else str(key))


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    r"""Write rows as CSV, a column for each name that one of them has.

    >>> csv_text([{"a": 1, "b": "x,y"}, {"a": None, "c": 0.5}])
    'a,b,c\n1,"x,y",\n,,0.5'
    """
    names = dict.fromkeys(name for row in rows for name in row)
    buffer = io.StringIO(newline="")
    table = csv.DictWriter(buffer, fieldnames=list(names), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return buffer.getvalue().removesuffix("\n")


def as_frame(rows: Sequence[Mapping[str, object]]) -> Any:  # noqa: ANN401  # of whichever package is there
    """Make a data frame of pandas, or of polars where there is no pandas.

    Raises InputError if neither is installed.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    for package in ("pandas", "polars"):
        try:
            return import_module(package).DataFrame(columns)
        except ImportError:
            continue
    raise InputError("to_frame: got neither pandas nor polars, wanted one of them")
