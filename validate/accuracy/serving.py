"""How far language models under load are from measured runs: TPOT, TTFT and tokens/s a GPU."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from planner.recommendation import estimate_plan
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.search.clients import Serving
from planner.strategies import parse_plan
from topology.base.rows import gathered
from topology.base.values import dataclass
from validate.accuracy.figures import read_table

FIELDS: Final = {"TPOT": "tpot", "tokens/s": "tokens_per_s", "TTFT": "ttft"}
"""Names of intervals, by what is measured."""
PREDICTED: Final[Mapping[str, Callable[[Serving], float]]] = {
    "TPOT": lambda serving: serving.tpot.mean,
    "tokens/s": lambda serving: serving.tokens_per_s,
    "TTFT": lambda serving: serving.ttft.mean,
}
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
        request_s = self.ttft_s + self.tpot_s * (self.output_tokens - 1)
        return self.concurrency * self.output_tokens / request_s

    @property
    def measured(self) -> dict[str, float]:
        """What was measured, by its name in `PREDICTED`."""
        return {"TPOT": self.tpot_s, "tokens/s": self.tokens_per_s, "TTFT": self.ttft_s}

    @property
    def asked(self) -> tuple[object, ...]:
        """What runs have in common whose plans and concurrencies can be chosen among."""
        sizes = self.input_tokens, self.output_tokens
        return (self.engine, self.model, self.hardware, self.precision, *sizes)

    def predicted(self) -> Serving:
        """Serve the same.

        Raises InputError if the planner says that the plan cannot.
        """
        plan = parse_plan(self.plan)
        names = ("hardware", "precision", "engine", "input_tokens", "output_tokens", "concurrency")
        options = {name: getattr(self, name) for name in names}
        scenario = resolve(request_of(self.model, plan.gpus, options))
        serving = estimate_plan(scenario, plan).serving
        assert serving is not None
        return serving


def read_figures(text: str) -> list[ServingFigure]:
    """Read measured runs from CSV."""
    return read_table(ServingFigure, text, "serving")


Run = tuple[ServingFigure, Serving]
"""A measured run, and what is predicted of it."""


def runs(figures: Iterable[ServingFigure]) -> list[Run]:
    """Serve every figure."""
    return [(figure, figure.predicted()) for figure in figures]


def groups(served: Sequence[Run]) -> dict[str, list[float]]:
    """Give relative errors by engine, by what is measured, and by whether it was in a fit.

    The last group is of choices: see `regrets`.
    """
    ordered = sorted(served, key=lambda run: (run[0].engine, run[0].fitted == "no"))
    errors = gathered(
        (
            f"serving {name}, {figure.engine.partition('@')[0]}, {WORDS[figure.fitted]}",
            PREDICTED[name](serving) / measured - 1,
        )
        for figure, serving in ordered
        for name, measured in figure.measured.items()
    )
    return {**errors, "tokens/s a GPU lost by the choice of plan and load": regrets(served)}


def interval_hits(served: Iterable[Run]) -> dict[str, list[bool]]:
    """Say of each measured number whether its interval holds it, by what it is."""
    return gathered(
        (
            f"language models under load: {name}",
            abs(measured / PREDICTED[name](serving) - 1) <= serving.half_width(FIELDS[name]),
        )
        for figure, serving in served
        for name, measured in figure.measured.items()
    )


def regrets(served: Iterable[Run]) -> list[float]:
    """Give the share of tokens/s a GPU that the planner's choice loses on the best that was run.

    It chooses a plan and its load among all runs of what is `asked`, where there are several plans.
    """
    comparable_runs = gathered((run[0].asked, run) for run in served)
    choices = [
        group for group in comparable_runs.values() if len({figure.plan for figure, _ in group}) > 1
    ]
    return [_regret(group) for group in choices]


def _regret(candidates: Sequence[Run]) -> float:
    rates = [figure.tokens_per_s / serving.gpus for figure, serving in candidates]
    chosen_index = max(
        range(len(candidates)), key=lambda index: candidates[index][1].tokens_per_s_per_gpu
    )
    return 1 - rates[chosen_index] / max(rates)
