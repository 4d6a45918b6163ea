"""What tables of serving engines' kernels have in common: their systems, engines and rows."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from costmodels.formats import SERVING
from costmodels.kernels.parameters import Provenance
from topology.base import parse
from topology.base.values import dataclass
from validate.fit.least_squares import Vector

SYSTEMS: Final = {
    "a100_sxm": ("a100-sxm-80gb", "ampere", ("8.0",)),
    "h100_sxm": ("h100-sxm", "hopper", ("9.0",)),
    "h200_sxm": ("h200-sxm", "hopper", ("9.0",)),
    "b200_sxm": ("b200", "blackwell", ("10.0", "10.3")),
    "rtx_pro_6000_server": ("rtx-pro-6000", "rtx", ("8.6", "8.9", "12.0")),
}
"""Hardware, generation and compute capabilities of the systems of the tables."""
ENGINES: Final = {
    **dict(zip(("trtllm", "vllm", "sglang"), SERVING, strict=True)),
    "planner": "planner",
}
"""Names of engines in the tables; the last is our executor."""
CACHES: Final = {"bfloat16": "bf16", "fp8": "fp8"}
"""Formats of caches, and of what is multiplied with them, by their names in the tables."""
MICRO: Final = parse("1 us", "s")
HOLD: Final = 0.03
NOWHERE: Final = Provenance(kind="derived", source="not yet", hardware=(), compute_capabilities=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigure:
    """One call of an engine's kernels as a table has it.

    trait : what no size says, such as how tokens are spread over experts. source : tells the call
    from all others, or the calls that are kept back together from others.
    """

    engine: str
    seconds: float
    sizes: Mapping[str, float]
    source: str
    trait: str = ""


Row = Mapping[str, str]
Rows = Sequence[Row]
Grouped = Iterable[tuple[tuple[str, str], EngineFigure]]
"""Figures, each with its system and format."""


def read_rows(text: str) -> list[dict[str, str]]:
    """Read the rows of a table of engines' kernels."""
    return list(csv.DictReader(text.splitlines()))


def sizes_of(row: Row, **columns: str) -> dict[str, float]:
    """Read sizes from the columns of their names."""
    return {name: float(row[column]) for name, column in columns.items()}


def figure_of(
    row: Row, sizes: Mapping[str, float], trait: str = "", source: str = ""
) -> EngineFigure:
    """Make a figure of a row; it stands for itself unless `source` says with which others."""
    key = " ".join(f"{name}={value}" for name, value in row.items() if name != "us")
    seconds = float(row["us"]) * MICRO
    return EngineFigure(
        engine=row["engine"], seconds=seconds, sizes=sizes, source=source or key, trait=trait
    )


def columns(figures: Sequence[EngineFigure], *names: str) -> list[Vector]:
    """Collect sizes of all figures."""
    return [np.array([figure.sizes[name] for figure in figures], float) for name in names]


def seconds_of(figures: Sequence[EngineFigure]) -> Vector:
    """Collect the times of all figures."""
    return np.array([figure.seconds for figure in figures], float)
