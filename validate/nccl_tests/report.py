"""One table of nccl-tests beside the model, as parts of an answer, and rows."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from costmodels.collectives import Op
from planner.rendering.plot import plot
from topology.base import format_bytes, format_number, format_seconds
from topology.base.chart import Axis, Series, curves
from topology.base.table import Drawing, Part, Said, Table, Title
from topology.base.values import dataclass
from validate.nccl_tests.diagnosis import SMALL

HEADERS: Final = (
    "size", "measured", "predicted", "error", "busbw GB/s", "predicted GB/s", "algorithm",
    "protocol",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One size: seconds measured (out of place, and in place) and predicted.

    error : relative, of the time out of place; positive where the model is slow.
    """

    message_bytes: int
    measured_s: float
    in_place_s: float | None
    predicted_s: float
    error: float
    disturbed: bool
    bus_bandwidth_bytes_per_s: float
    predicted_bus_bandwidth_bytes_per_s: float
    algorithm: str
    protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """One table of a log beside the model.

    mismatch : that the log names other GPUs, or one twice, empty where it does not; then no reasons
        are sought.
    notes : what was taken for granted. diagnosis : where and why the two part.
    """

    title: str
    op: Op
    hardware: str
    gpus: int
    nodes: int
    rows: tuple[ComparedRow, ...]
    mismatch: str = ""
    notes: tuple[str, ...]
    diagnosis: tuple[str, ...]

    def median(self, *, small: bool) -> float | None:
        """Median of the error's size over small messages, or over the others; None without any."""
        errors = [abs(row.error) for row in self.rows if (row.message_bytes <= SMALL) == small]
        return float(np.median(errors)) if errors else None

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints for one table."""
        return {
            "title": self.title,
            "op": self.op,
            "hardware": self.hardware,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "median_error_small": self.median(small=True),
            "median_error_large": self.median(small=False),
            "rows": [asdict(row) for row in self.rows],
            "notes": [*self.opening(), *self.notes],
            "diagnosis": list(self.diagnosis),
        }

    def table(self) -> Table:
        """Make a row of each size."""
        rows = [
            [
                format_bytes(row.message_bytes),
                format_seconds(row.measured_s),
                format_seconds(row.predicted_s),
                f"{100 * row.error:+.0f} %{' *' if row.disturbed else ''}",
                f"{row.bus_bandwidth_bytes_per_s / 10**9:.2f}",
                f"{row.predicted_bus_bandwidth_bytes_per_s / 10**9:.2f}",
                row.algorithm,
                row.protocol,
            ]
            for row in self.rows
        ]
        return Table(head=HEADERS, rows=rows, align=">", least=(10, 10, 10, 8, 10, 14, 11, 8))

    def summary(self) -> list[str]:
        """Say how far the two are apart, and why."""
        medians = (
            ("up to 64 KiB", self.median(small=True)),
            ("above 64 KiB", self.median(small=False)),
        )
        parts = [f"{100 * value:.1f} % {words}" for words, value in medians if value is not None]
        mark_note = ["* disturbed"] if any(row.disturbed for row in self.rows) else []
        return [f"median error {', '.join(parts)}", *mark_note, *self.notes, *self.diagnosis]

    def opening(self) -> list[str]:
        """Give the line that stands before all others, where there is one."""
        return [self.mismatch] if self.mismatch else []

    def headline(self) -> str:
        """Say in a line what log was compared with what."""
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        title = f"{self.title}: " if self.title else ""
        return f"{title}{self.op} on {self.gpus} x {self.hardware}{nodes}"


def parts_of(comparisons: Sequence[LogComparison]) -> Iterator[Part]:
    """Say everything: a table, a plot and reasons of each comparison."""
    for number, comparison in enumerate(comparisons):
        yield from [""] if number else []
        yield from comparison.opening()
        yield Title(text=comparison.headline(), level=1)
        yield comparison.table()
        yield _drawing(comparison.rows)
        yield from ("", Said(lines=comparison.summary()))


def _drawing(rows: Sequence[ComparedRow]) -> Drawing:
    """Draw measured and predicted bus bandwidth by size; as characters where it is a curve."""
    rates_by_kind = {
        "predicted": [row.predicted_bus_bandwidth_bytes_per_s / 10**9 for row in rows],
        "measured": [row.bus_bandwidth_bytes_per_s / 10**9 for row in rows],
    }
    sizes = [float(row.message_bytes) for row in rows]
    end_labels = format_bytes(sizes[0]), format_bytes(sizes[-1])
    plotted = {name: list(zip(sizes, rates, strict=True)) for name, rates in rates_by_kind.items()}
    series = [
        Series(
            name=name,
            points=[(x, y, f"{format_bytes(x)}, {format_number(y)} GB/s") for x, y in points],
        )
        for name, points in reversed(plotted.items())
    ]
    axes = (
        Axis(title="size", write=format_bytes, base=2),
        Axis(title="bus bandwidth, GB/s", write=format_number),
    )
    return Drawing(
        title="bus bandwidth, GB/s",
        lines=plot(plotted, end_labels).splitlines() if len(rows) > 2 else (),
        svg=curves("Bus bandwidth by size", series, axes, None),
    )


def rows_of(comparisons: Sequence[LogComparison]) -> list[dict[str, object]]:
    """Return a row of each size of all comparisons: seconds and bytes a second."""
    return [
        {"op": table.op, "hardware": table.hardware, "gpus": table.gpus, "nodes": table.nodes}
        | asdict(row)
        for table in comparisons
        for row in table.rows
    ]
