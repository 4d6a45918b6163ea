"""How far whole plans are from published times: model, plan, hardware, in seconds."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, cast

import numpy as np

from planner.api import request_of
from planner.outcome import PlanEstimate
from planner.plan import parse_plan
from planner.search import price, question_of
from topology.errors import InputError
from validate.accuracy_kernels import Score, summary

COLUMNS: Final = (
    "model", "hardware", "gpus", "plan", "runtime", "attention", "height", "width", "frames",
    "steps", "part", "seconds", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published time of a plan.

    part : what the seconds are of: the whole, the ``denoise`` stage, one ``step``; for
    ``speedup`` the denoise stage, of which only the ratio to one GPU is compared.
    """

    model: str
    hardware: str
    gpus: int
    plan: str
    runtime: str
    attention: str
    height: int
    width: int
    frames: int
    steps: int
    part: Literal["latency", "denoise", "step", "speedup"]
    seconds: float
    source: str

    @property
    def predicted(self) -> float:
        """Seconds of the same part, as the planner prices it."""
        found = _priced(replace(self, seconds=1.0, source="-", part="latency"))
        match self.part:
            case "latency":
                return found.latency_s
            case "step":
                return found.step_s
            case "denoise" | "speedup":
                return found.stages_s["denoise"]


@cache
def _priced(figure: Figure) -> PlanEstimate:
    names = ("hardware", "runtime", "attention", "height", "width", "frames", "steps")
    asked: dict[str, object] = {name: getattr(figure, name) for name in names}
    question = question_of(request_of(figure.model, figure.gpus, {**asked, "offload": True}))
    return price(question, parse_plan(figure.plan))


def read_figures(text: str) -> list[Figure]:
    """Read a CSV `text` with `COLUMNS`.

    Raises
    ------
    InputError
        If a column is missing, or a row has no source.
    """
    table = csv.DictReader(text.splitlines())
    missing = set(COLUMNS) - set(table.fieldnames or ())
    if missing:
        raise InputError(f"figures of plans: missing columns {sorted(missing)}")
    return [_figure(row) for row in table]


def _figure(row: Mapping[str, str]) -> Figure:
    if not row["source"].strip():
        raise InputError(f"figure of {row['model']} on {row['hardware']}: no source")
    return Figure(
        model=row["model"],
        hardware=row["hardware"],
        gpus=int(row["gpus"]),
        plan=row["plan"],
        runtime=row["runtime"],
        attention=row["attention"],
        height=int(row["height"]),
        width=int(row["width"]),
        frames=int(row["frames"]),
        steps=int(row["steps"]),
        part=cast(Literal["latency", "denoise", "step", "speedup"], row["part"]),
        seconds=float(row["seconds"]),
        source=row["source"],
    )


def family(figure: Figure) -> str:
    """Put a figure in a group: models by family, speed-ups apart."""
    name = figure.model.split("-")[0].split(".")[0].rstrip("0123456789")
    if figure.part == "speedup":
        return f"{name} speed-up"
    return "cosmos-predict" if "predict" in figure.model else figure.model.split("-")[0]


def score(figures: Iterable[Figure]) -> list[Score]:
    """Compare figures with the planner, a group a line."""
    found = list(figures)
    single = {_series(f): f for f in found if f.part == "speedup" and f.gpus == 1}
    groups: dict[str, list[float]] = {}
    for figure in found:
        if figure.part == "speedup" and figure.gpus == 1:
            continue
        groups.setdefault(family(figure), []).append(_error(figure, single))
    return [summary((name,), np.array(errors)) for name, errors in groups.items()]


def _error(figure: Figure, single: Mapping[tuple[str, str], Figure]) -> float:
    if figure.part != "speedup":
        return figure.predicted / figure.seconds - 1
    one = single[_series(figure)]
    return one.predicted / figure.predicted / (one.seconds / figure.seconds) - 1


def _series(figure: Figure) -> tuple[str, str]:
    return figure.model, figure.hardware
