"""Predicted beside measured: errors, a verdict against a gate, and the regret of a choice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from statistics import mean, median
from typing import Final

import numpy as np

from costmodels import memory
from costmodels.timeline import Cost, cost
from planner.lowering import lower
from planner.scenario.scenario import resolve
from topology.base.rows import gathered
from topology.base.values import dataclass
from validate.plans.cases import SERVED_ENGINES, Case, Subject, bench_sizes, look_up
from validate.plans.measured import Measured

Profile = str
"""Path of a calibration profile, "" for the one that ships, ``none`` for none."""

WORKSPACE: Final = 64 * 2.0**20
"""Bytes that PyTorch keeps for cuBLAS on a Hopper GPU: 32 MiB on each of two streams (notes on
CUDA semantics, CUBLAS_WORKSPACE_CONFIG)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the planner says of a case.

    classes_s : busy seconds by class, communication in full. exposed_s, hidden_s : communication
    that adds to the time, and that does not. launch_s : time that the device waits for the host.
    memory_bytes : of tensors: weights, activations, kept keys and values. cache_tokens : whose keys
    and values an engine has room for; 0 where that is not asked.
    """

    step_s: float = 0.0
    classes_s: Mapping[str, float] = field(default_factory=dict)
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    launch_s: float = 0.0
    memory_bytes: float = 0.0
    cache_tokens: int = 0
    basis: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        memory_bytes = round(self.memory_bytes)
        return {**asdict(self), "classes_s": dict(self.classes_s), "memory_bytes": memory_bytes}


def predict(case: Case, hardware: str, profile: Profile = "") -> Prediction:
    """Price a case as `planner estimate` would: the stage that is timed, and what is in memory."""
    subject = look_up(case, hardware, profile)
    program = lower(subject.model, subject.workload, subject.plan)
    (stage,) = [loop for loop in program.stages if loop.name == case.stage]
    target = subject.deployment.target(subject.model, subject.plan)
    stage_cost = cost(stage, target)
    stages, bodies = program.transformer, memory.Bodies()
    host, tokens = _serving_extras(case, subject) if case.engine in SERVED_ENGINES else (0.0, 0)
    return Prediction(
        cache_tokens=tokens,
        step_s=float(stage_cost.amid) + host,  # back to back, as steps are timed
        classes_s={str(kind): float(seconds) for kind, seconds in stage_cost.classes.items()},
        exposed_s=float(stage_cost.exposed),
        hidden_s=float(stage_cost.hidden),
        launch_s=float(stage_cost.amid - stage_cost.device),
        memory_bytes=WORKSPACE
        + memory.weights(stages, bodies)
        + memory.weights(stages, bodies, layered=False)
        + float(np.max(memory.activations(stage, bodies)))
        + float(np.max(memory.caches(stages, bodies))),
        basis=_basis(stage_cost),
    )


def _serving_extras(case: Case, subject: Subject) -> tuple[float, int]:
    """Give what an engine adds to a step, and the tokens that its cache has room for.

    SGLang's benchmark runs steps without its scheduler, vLLM's with it.
    """
    from planner.serving.cache import pool_of  # noqa: PLC0415  # slow to load

    scenario = resolve(case.request(subject.deployment.hardware.name))
    sizes = bench_sizes(scenario)
    scheduling = replace(subject.deployment.scheduling, chunk=sizes.chunk)
    pool = pool_of(scenario, subject.plan, scheduling, sizes.longest)
    return scheduling.host_s(case.batch) if case.engine == "vllm" else 0.0, pool.tokens


def _basis(stage_cost: Cost) -> str:
    major_bases = [
        stage_cost.basis[kind]
        for kind, seconds in stage_cost.classes.items()
        if kind in stage_cost.basis and float(seconds) >= 0.05 * float(stage_cost.time)
    ]
    return max(major_bases).name.lower() if major_bases else "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A case as it was predicted and as it was measured."""

    measured: Measured
    predicted: Prediction

    @property
    def step_error(self) -> float:
        """Relative error of the step: positive where the prediction is too slow."""
        return error(self.predicted.step_s, self.measured.step_s)

    @property
    def memory_error(self) -> float:
        """Relative error of the peak memory, or of the room for keys and values."""
        if self.measured.cache_tokens:
            return error(self.predicted.cache_tokens, self.measured.cache_tokens)
        return error(self.predicted.memory_bytes, self.measured.memory_bytes)

    @property
    def class_errors(self) -> dict[str, float]:
        """Relative error of every class of operations that was measured."""
        return {
            kind: error(self.predicted.classes_s.get(kind, 0.0), seconds)
            for kind, seconds in self.measured.classes_s.items()
        }

    def passes(self, gate: float) -> bool:
        """Whether it ran, is right, and its step and memory are predicted within a share `gate`."""
        return self.measured.status == "done" and not self.misses(gate)

    def misses(self, gate: float) -> list[str]:
        """Name what is predicted worse than a share `gate`; classes of work have no gate."""
        errors = {"step": self.step_error, "memory": self.memory_error}
        return [name for name, share in errors.items() if not abs(share) <= gate]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "key": self.measured.key,
            "measured": self.measured.to_dict(),
            "predicted": self.predicted.to_dict(),
            "step_error": self.step_error,
            "memory_error": self.memory_error,
            "class_errors": self.class_errors,
        }


def error(predicted: float, measured: float) -> float:
    """Relative error; zero where nothing was measured.

    >>> round(error(1.1, 1.0), 3), error(1.0, 0.0)
    (0.1, 0.0)
    """
    return predicted / measured - 1 if measured else 0.0


def compare(rows: Iterable[Measured], hardware: str, profile: Profile = "") -> list[Comparison]:
    """Predict what was measured; nothing where a case has no time."""
    return [
        Comparison(
            measured=row,
            predicted=predict(row.case, hardware, profile) if row.step_s else Prediction(),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRanking:
    """Plans of one subject in one way to launch, and whether the planner chose well.

    chosen, best : fastest as predicted, and as measured. regret : how much slower the chosen one
    is. correlation : Spearman's, of predicted and measured times; 1 is the same order.
    """

    subject: str
    mode: str
    plans: tuple[str, ...]
    chosen: str
    best: str
    regret: float
    correlation: float


def rankings(comparisons: Iterable[Comparison]) -> list[MeasuredRanking]:
    """Rank the plans of every subject and mode that ran under two plans of as many GPUs or more."""
    done = [comparison for comparison in comparisons if comparison.measured.status == "done"]
    cases = [comparison.measured.case for comparison in done]
    groups = gathered(zip(((case.subject, case.mode) for case in cases), done, strict=True))
    return [_ranking(key, group) for key, group in groups.items() if len(group) > 1]


def _ranking(key: tuple[str, str], group: Sequence[Comparison]) -> MeasuredRanking:
    chosen = min(group, key=lambda row: row.predicted.step_s).measured
    best = min(group, key=lambda row: row.measured.step_s).measured
    return MeasuredRanking(
        subject=key[0],
        mode=key[1],
        plans=tuple(comparison.measured.case.plan for comparison in group),
        chosen=chosen.case.plan,
        best=best.case.plan,
        regret=chosen.step_s / best.step_s - 1,
        correlation=spearman(
            [row.predicted.step_s for row in group], [row.measured.step_s for row in group]
        ),
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation of two series.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]), spearman([1.0, 2.0], [2.0, 1.0])
    (1.0, -1.0)
    """
    ranks = [np.argsort(np.argsort(series)) for series in (first, second)]
    gaps = float(np.sum((ranks[0] - ranks[1]) ** 2))
    count = len(first)
    return 1.0 - 6.0 * gaps / (count * (count**2 - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All comparisons at a glance; errors are absolute values."""

    cases: int
    done: int
    median_step_error: float
    worst_step_error: float
    median_memory_error: float
    mean_regret: float


def summarise(comparisons: Sequence[Comparison], ranked: Sequence[MeasuredRanking]) -> Summary:
    """Sum up comparisons and rankings."""
    done = [comparison for comparison in comparisons if comparison.measured.status == "done"]

    def over(measure: Callable[[Sequence[float]], float], values: Iterable[float]) -> float:
        magnitudes = [abs(value) for value in values]
        return float(measure(magnitudes)) if magnitudes else 0.0

    return Summary(
        cases=len(comparisons),
        done=len(done),
        median_step_error=over(median, (comparison.step_error for comparison in done)),
        worst_step_error=over(max, (comparison.step_error for comparison in done)),
        median_memory_error=over(
            median, (each.memory_error for each in done if each.measured.memory_bytes)
        ),
        mean_regret=over(mean, (ranking.regret for ranking in ranked)),
    )
