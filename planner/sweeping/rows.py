"""Rows of a sweep, to be written as CSV, JSON lines or Parquet, or taken as a data frame."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from planner.sweeping.portion import Row
from planner.sweeping.questions import SIZES
from topology.base import InputError, format_number, format_seconds
from topology.base.chart import Axis, Series, curves
from topology.base.rows import as_frame, csv_text
from topology.base.table import Drawing, Table
from topology.base.values import dataclass

SHOWN_ROWS: Final = 20
"""Rows that a notebook shows."""


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Row]):
    """What a sweep found, a mapping for each request and plan."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401  # a row, or rows of a slice
        return self.rows[place]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, object]:
        """Return the rows as data."""
        return {"rows": list(self.rows)}

    def to_frame(self) -> Any:  # noqa: ANN401  # of whichever package is there
        """Return a data frame of pandas, or of polars where there is no pandas.

        Raises `InputError` if neither is installed.
        """
        return as_frame(self.rows)

    def _repr_html_(self) -> str:
        head = list(self.rows[0]) if self.rows else []
        cells = [[str(value) for value in row.values()] for row in self.rows[:SHOWN_ROWS]]
        more_rows = (
            f"<p>{len(self.rows) - SHOWN_ROWS:,} more rows</p>"
            if len(self.rows) > SHOWN_ROWS
            else ""
        )
        return Table(head=head, rows=cells).html() + more_rows + self._chart()

    def _chart(self) -> str:
        """Draw the least latency of each question over GPUs, where there are several numbers."""
        best_by_question: dict[str, dict[float, float]] = {}
        for row in self.rows:
            gpus, seconds = cast("float", row["gpus"]), cast("float | None", row["latency_s"])
            if seconds is not None:
                best_by_gpus = best_by_question.setdefault(_question_name(row), {})
                best_by_gpus[gpus] = min(seconds, best_by_gpus.get(gpus, seconds))
        if max(map(len, best_by_question.values()), default=0) == 1:
            return ""
        series = [
            Series(
                name=name,
                points=[
                    (gpu_count, s, format_seconds(s))
                    for gpu_count, s in sorted(best_by_gpus.items())
                ],
            )
            for name, best_by_gpus in best_by_question.items()
        ]
        axes = (
            Axis(title="GPUs", write=format_number, base=2),
            Axis(title="latency", write=format_seconds),
        )
        from topology.base.page import notebook  # noqa: PLC0415  # for notebooks alone

        chart_svg = curves("Latency over GPUs, the best plan of each", series, axes, None)
        return notebook([Drawing(svg=chart_svg)])


def _question_name(row: Row) -> str:
    """Name what a row is of, but for its GPUs and its plan."""
    sizes = [f"{row[name]} {name.replace('_', ' ')}" for name in SIZES if row.get(name) is not None]
    return ", ".join([f"{row['model']} on {row['hardware']}", *sizes])


def writer_of(output: str) -> Callable[[Sequence[Mapping[str, object]]], bytes]:
    """Find what writes rows to a file, by its ending.

    Raises `InputError` if there is nothing for the ending, or pyarrow is missing.
    """
    ending = Path(output).suffix.lower()
    if ending == ".parquet":
        return _parquet_writer()
    if ending not in _TEXT_WRITERS:
        raise InputError(f"--output {output}: wanted a file that ends in .csv, .jsonl or .parquet")
    return lambda rows: _TEXT_WRITERS[ending](rows).encode()


_TEXT_WRITERS: Final[Mapping[str, Callable[[Sequence[Mapping[str, object]]], str]]] = {
    ".csv": lambda rows: f"{csv_text(rows)}\n",
    ".jsonl": lambda rows: "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows),
}


def _parquet_writer() -> Callable[[Sequence[Mapping[str, object]]], bytes]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise InputError("--output: Parquet needs pyarrow: pip install 'pyarrow>=15'") from None

    def write(rows: Sequence[Mapping[str, object]]) -> bytes:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        out = io.BytesIO()
        parquet.write_table(arrow.table(columns), out)
        return out.getvalue()

    return write
