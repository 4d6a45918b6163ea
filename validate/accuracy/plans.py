"""How far whole plans are from published times: model, plan, hardware, in seconds."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Final, Literal

from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.search.estimate import PlanEstimate
from planner.search.evaluate import price
from planner.strategies import parse_plan
from topology.base.rows import gathered
from topology.base.values import dataclass
from validate.accuracy.figures import read_table

OPTIONS: Final = (
    "hardware", "runtime", "attention", "height", "width", "frames", "steps", "engine", "batch",
    "input_tokens", "output_tokens", "precision", "cache",
)  # fmt: skip
"""What is asked of the planner beside the model and the number of GPUs."""

Part = Literal["latency", "pipeline", "denoise", "step", "prefill", "speedup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigure:
    """One published time of a plan.

    part : what the seconds are of: the whole, the ``pipeline`` on the device, before frames are
    handed over, the ``denoise`` stage, one ``step``, the ``prefill``; for ``speedup`` the denoise
    stage, of which only the ratio to one GPU is compared.
    height, width, frames, steps, input_tokens, output_tokens : 0 for the model's usual ones.
    warmup_steps : -1 for the usual number.
    group : line that it counts in, empty for that of its family.
    """

    model: str
    hardware: str
    gpus: int
    plan: str
    runtime: str = ""
    attention: str = ""
    height: int
    width: int
    frames: int
    steps: int
    part: Part
    seconds: float
    source: str
    group: str = ""
    engine: str = ""
    batch: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    precision: str = "bf16"
    cache: str = ""
    warmup_steps: int = -1

    @property
    def predicted(self) -> float:
        """Seconds of the same part, as the planner prices it."""
        estimate = _estimate(self)
        match self.part:
            case "latency" | "pipeline":
                return estimate.latency_s
            case "step":
                return estimate.step_s
            case "denoise" | "speedup":
                return estimate.stages_s["denoise"]
            case "prefill":
                return estimate.stages_s["prefill"]


def _estimate(figure: PlanFigure) -> PlanEstimate:
    part: Part = "pipeline" if figure.part == "pipeline" else "latency"
    return _cached_estimate(replace(figure, seconds=1.0, source="-", part=part))


@cache
def _cached_estimate(figure: PlanFigure) -> PlanEstimate:
    values: dict[str, object] = {name: getattr(figure, name) for name in OPTIONS}
    options = {name: value for name, value in values.items() if value}
    if figure.height:
        options["offload"] = True
    if figure.warmup_steps >= 0:
        options["warmup_steps"] = figure.warmup_steps
    scenario = resolve(request_of(figure.model, figure.gpus, options))
    if figure.part == "pipeline":
        habits = replace(scenario.deployment.habits, pixel=None)
        scenario = replace(scenario, deployment=replace(scenario.deployment, habits=habits))
    return price(scenario, parse_plan(figure.plan))


def read_figures(text: str) -> list[PlanFigure]:
    """Read published times from CSV."""
    return read_table(PlanFigure, text, "plans")


def family(figure: PlanFigure) -> str:
    """Put a figure in a group: its own, or models by family, speed-ups apart."""
    if figure.group:
        return figure.group
    name = figure.model.split("-")[0].split(".")[0].rstrip("0123456789")
    if figure.part == "speedup":
        return f"{name} speed-up"
    return "cosmos-predict" if "predict" in figure.model else figure.model.split("-")[0]


def groups(figures: Iterable[PlanFigure]) -> dict[str, list[float]]:
    """Give the relative errors of the planner, by `family`."""
    figures = list(figures)
    baselines = {_series_key(f): f for f in figures if f.part == "speedup" and f.gpus == 1}
    return gathered(
        (family(figure), _error(figure, baselines))
        for figure in figures
        if figure.part != "speedup" or figure.gpus > 1
    )


def interval_hits(figures: Iterable[PlanFigure]) -> dict[str, list[bool]]:
    """Say of each whole time whether its interval holds it, by kind of model."""
    return gathered(_interval_hit(figure) for figure in figures if figure.part != "speedup")


def _interval_hit(figure: PlanFigure) -> tuple[str, bool]:
    estimate = _estimate(figure)
    width = estimate.half_width_s / estimate.latency_s
    kind = "language models" if "prefill" in estimate.stages_s else "images and videos"
    return kind, abs(figure.seconds / figure.predicted - 1) <= width


def _error(figure: PlanFigure, baselines: Mapping[tuple[str, str], PlanFigure]) -> float:
    if figure.part != "speedup":
        return figure.predicted / figure.seconds - 1
    baseline = baselines[_series_key(figure)]
    return baseline.predicted / figure.predicted / (baseline.seconds / figure.seconds) - 1


def _series_key(figure: PlanFigure) -> tuple[str, str]:
    return figure.model, figure.hardware
