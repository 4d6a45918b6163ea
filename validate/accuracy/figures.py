"""Tables of figures, and how far the models are from a group of them."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from topology.base import InputError, Seconds
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors of one group: predicted over measured, less one.

    median, p90, worst : of the absolute value. bias : the median with its sign.
    """

    group: tuple[str, ...]
    rows: int
    median: float
    p90: float
    worst: float
    bias: float


def score(group: str, errors: Iterable[float]) -> Score:
    """Put the relative errors of one group into numbers.

    >>> score("three figures", [-0.25, 0.5, 0.25])
    Score(group=('three figures',), rows=3, median=0.25, p90=0.45, worst=0.5, bias=0.25)
    """
    signed = np.array(list(errors))
    size = np.abs(signed)
    return Score(
        group=(group,),
        rows=signed.size,
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        bias=float(np.median(signed)),
    )


_READ: Final[Mapping[object, Callable[[str], object]]] = {
    int: int,
    float: float,
    Seconds: float,
    bool: lambda text: text == "1",
}


def fields_of(figure: type, row: Mapping[str, str]) -> dict[str, Any]:
    """Read those fields of a figure that a row says something of, by their types."""
    named = [field for field in fields(figure) if row.get(field.name)]
    return {field.name: _READ.get(field.type, str)(row[field.name]) for field in named}


def read_table(text: str, columns: Sequence[str], name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV `text`, each with its source.

    Raises InputError if a column is missing, or a row has no source.

    columns : those that it must have; it may have others. name : of the table, in errors.
    """
    table = csv.DictReader(text.splitlines())
    missing = set(columns) - set(table.fieldnames or ())
    if missing:
        raise InputError(f"figures of {name}: missing columns {sorted(missing)}")
    for number, row in enumerate(table, 2):
        if not (row["source"] or "").strip():
            raise InputError(f"figures of {name}, line {number}: no source")
        yield row
