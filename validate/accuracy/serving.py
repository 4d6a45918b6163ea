"""How far language models under load are from measured runs: TPOT, TTFT and tokens/s a GPU."""

from collections.abc import Iterable, Mapping
from typing import Final

from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.search.clients import Serving
from planner.serving.serving import under_load
from planner.strategies import parse_plan
from topology.base import InputError
from topology.base.values import dataclass
from validate.accuracy.figures import read_table

COLUMNS: Final = (
    "engine", "model", "hardware", "precision", "plan", "input_tokens", "output_tokens",
    "concurrency", "ttft_s", "tpot_s", "fitted", "source",
)  # fmt: skip
WORDS: Final = {"yes": "engines' times fitted to it", "no": "in no fit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFigure:
    """One measured run: what a client saw on average that kept so many requests in flight.

    engine : and its version, where that is not the newest known. fitted : whether the engine's
    times beside kernels were fitted to runs of its group.
    """

    engine: str
    model: str
    hardware: str
    precision: str
    plan: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_s: float
    tpot_s: float
    fitted: str
    source: str

    @property
    def tokens_per_s(self) -> float:
        """Tokens written a second on all GPUs, by Little's law."""
        whole = self.ttft_s + self.tpot_s * (self.output_tokens - 1)
        return self.concurrency * self.output_tokens / whole

    def predicted(self) -> Serving:
        """Serve the measured load as the planner prices it.

        Raises
        ------
        InputError
            If the planner says that the plan cannot.
        """
        plan = parse_plan(self.plan)
        names = ("hardware", "precision", "engine", "input_tokens", "output_tokens", "concurrency")
        options = {name: getattr(self, name) for name in names}
        serving = under_load(resolve(request_of(self.model, plan.gpus, options)), plan)
        if isinstance(serving, str):
            raise InputError(f"{self.model} with {self.plan}: {serving}")
        return serving


def read_figures(text: str) -> list[ServingFigure]:
    """Read a CSV `text` with `COLUMNS`.

    Raises
    ------
    InputError
        If a column is missing, or a row has no source.
    """
    return [_figure(row) for row in read_table(text, COLUMNS, "serving")]


def _figure(row: Mapping[str, str]) -> ServingFigure:
    return ServingFigure(
        engine=row["engine"],
        model=row["model"],
        hardware=row["hardware"],
        precision=row["precision"],
        plan=row["plan"],
        input_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        concurrency=int(row["concurrency"]),
        ttft_s=float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        fitted=row["fitted"],
        source=row["source"],
    )


def groups(figures: Iterable[ServingFigure]) -> dict[str, list[float]]:
    """Give relative errors by engine, by what is measured, and by whether it was in a fit."""
    errors: dict[str, list[float]] = {}
    for figure in sorted(figures, key=lambda figure: (figure.engine, figure.fitted == "no")):
        serving = figure.predicted()
        measured = {
            "TPOT": serving.tpot.mean / figure.tpot_s,
            "tokens/s": serving.tokens_per_s / figure.tokens_per_s,
            "TTFT": serving.ttft.mean / figure.ttft_s,
        }
        for name, ratio in measured.items():
            engine = figure.engine.partition("@")[0]
            words = f"serving {name}, {engine}, {WORDS[figure.fitted]}"
            errors.setdefault(words, []).append(ratio - 1)
    return errors
