"""Tables of figures, and how far the models are from a group of them."""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Final, TypeVar

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
    magnitudes = np.abs(signed)
    return Score(
        group=(group,),
        rows=signed.size,
        median=float(np.median(magnitudes)),
        p90=float(np.quantile(magnitudes, 0.9)),
        worst=float(magnitudes.max()),
        bias=float(np.median(signed)),
    )


_PARSERS: Final[Mapping[object, Callable[[str], object]]] = {
    int: int,
    float: float,
    Seconds: float,
    bool: lambda text: text == "1",
}
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, in seconds, and where that is written."""

    seconds: Seconds
    source: str = ""

    def predicted(self) -> float:
        """Price the same, in seconds."""
        raise NotImplementedError

    @property
    def error(self) -> float:
        """Relative error of the model, positive where it is slow."""
        return self.predicted() / self.seconds - 1.0


Kind = TypeVar("Kind")


def read_table(
    kind: type[Kind], text: str, name: str, **others: Callable[[Row], object]
) -> list[Kind]:
    """Read a CSV `text` with columns of a figure's fields, blank for the usual value.

    Raises InputError if a column is missing that has no usual value, or a row has no source.

    name : of the table, in errors. others : fields that are made of a row.
    """
    direct_fields = [field for field in fields(kind) if field.name not in others]  # type: ignore[arg-type]  # figures are dataclasses
    table = csv.DictReader(text.splitlines())
    required_columns = {field.name for field in direct_fields if field.default is MISSING} | {
        "hardware",
        "source",
    }
    missing = required_columns - set(table.fieldnames or ())
    if missing:
        raise InputError(f"figures of {name}: missing columns {sorted(missing)}")
    figures = []
    for number, row in enumerate(table, 2):
        if not (row["source"] or "").strip():
            raise InputError(f"figures of {name}, line {number}: no source")
        filled_fields = [field for field in direct_fields if row.get(field.name)]
        values = {
            field.name: _PARSERS.get(field.type, str)(row[field.name]) for field in filled_fields
        }
        figures.append(kind(**values, **{key: make(row) for key, make in others.items()}))
    return figures
