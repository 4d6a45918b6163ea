"""Is a plan right at full size? Its result beside that of kernels called one by one, and of ranks.

Two right results differ by rounding. A value on its way through a model is rounded about
`ROUNDINGS` times a layer, each time by a part u of itself at most and in no common direction, so
that after L layers a result is off by about ``u sqrt(ROUNDINGS L)``, and two of them differ by
``u sqrt(2 ROUNDINGS L)``. A single wrong row hardly shows in the whole: one of 4096 rows that has
nothing to do with what it should be adds ``sqrt(2 / 4096)``, 2 %. So each row is held to a bound
too.

Models in which gaps grow on the way say so themselves, where their step is taken again and rounded
otherwise (`perturb`): a result may be off as far as any of these is.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
import torch

from planner.models import Model
from topology.base.values import dataclass
from validate.plans.cases import Subject
from validate.torch.case_run import Bench, Ran, dtype_of
from validate.torch.perturb import UNITS
from validate.torch.proof import BOUNDS, ProvedWork, bound_of, setting_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What results are compared with, on the host, and what made it.

    grown : how far rounding brings the same step from it, and a row of it.
    """

    against: str
    result: torch.Tensor
    grown: tuple[float, float] = (0.0, 0.0)


Wholes = dict[str, Whole]
"""By subject, or by that and the samples that a replica has."""

ROUNDINGS: Final = 8
MAX_UNITS: Final = 0.12 * 2**8
"""Units of rounding that a result may be off however many layers there are: 12 % in bf16."""
ROW: Final = 4
"""Times as much that a single row may be off: few numbers are not as even as many."""
SAMPLE: Final = 256
"""Values of a result that ranks show each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """How far a result at full size is from another one.

    error, row : relative, over all values, and of the worst row. bound, row_bound : allowed.
    against : what made the other one, empty where there was none. replicas : how far ranks that
    have the same result are apart.
    """

    error: float = 0.0
    row: float = 0.0
    bound: float = 0.0
    row_bound: float = 0.0
    against: str = ""
    replicas: float = 0.0

    @property
    def complaints(self) -> list[str]:
        """Say what is wrong; what is no number is.

        >>> Full(error=0.2, bound=0.1).complaints
        ['error 0.2 at full size where 0.1 is allowed']
        """
        measures = (
            ("error", self.error, self.bound),
            ("a row off by", self.row, self.row_bound),
            ("ranks apart by", self.replicas, self.bound),
        )
        return [
            f"{name} {got:.2g} at full size where {allowed:.2g} is allowed"
            for name, got, allowed in measures
            if not got <= allowed
        ]


def is_known(wholes: Wholes, subject: Subject, bench: Bench) -> bool:
    """Whether there is a result to compare a case with on this rank."""
    return _matching_whole(wholes, subject, bench.comm.rank) is not None


def full_comparison(wholes: Wholes, subject: Subject, bench: Bench, ran: Ran) -> Full:
    """Compare a step's result at full size with that of the first plan; note the first one."""
    bound, row_limit = bounds(subject, bench)
    unjudged, whole = (
        Full(bound=bound, row_bound=row_limit),
        _matching_whole(wholes, subject, bench.comm.rank),
    )
    if whole is None:
        baseline = ran.output if ran.plain is None else ran.plain
        if baseline is None:
            return unjudged
        distances = [distance(other, baseline) for other in ran.perturbed]
        growth = (
            (max(error for error, _ in distances), max(row for _, row in distances))
            if distances
            else (0, 0)
        )
        mode = subject.case.mode if ran.plain is None else "eager"
        whole = Whole(against=f"{subject.plan} {mode}", result=baseline, grown=growth)
        for key in [key for key in wholes if key.partition(" | ")[0] != subject.case.subject]:
            del wholes[key]  # later plans are of this subject
        wholes[_key(subject, bench.comm.rank)] = whole
        if ran.plain is None:
            return unjudged
    if ran.output is None:
        return unjudged
    error, row = distance(ran.output, whole.result)
    return Full(
        bound=max(bound, whole.grown[0]), row_bound=max(row_limit, whole.grown[1]),
        error=error, row=row, against=whole.against,
    )  # fmt: skip


def bounds(subject: Subject, bench: Bench) -> tuple[float, float]:
    """Largest error of a whole result, and of a row, that rounding explains.

    Where rows choose experts, one near a tie chooses another, and may be anything.
    """
    model, dtype = subject.model, dtype_of(subject.case.precision)
    work = ProvedWork(model=model, workload=subject.workload, plan=subject.plan)
    setting = setting_for(work, bench.comm.rank, bench.device, dtype)
    small_bound = bound_of(model, setting)
    routed = small_bound > BOUNDS[dtype] and not setting.quantised
    if routed or setting.quantised:
        return small_bound, math.inf if routed else ROW * small_bound
    bound = max(small_bound, grown(model, dtype))
    return bound, ROW * bound


def grown(model: Model, dtype: torch.dtype) -> float:
    """How far apart rounding brings two results of a model; see the head of this file."""
    layers = sum(block.count for block in model.blocks)
    return UNITS[dtype] * min(MAX_UNITS, math.sqrt(2 * ROUNDINGS * layers))


def distance(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Relative error of all values, and of the row that is furthest off.

    >>> want = torch.eye(4)
    >>> [round(one, 3) for one in distance(want.flip(0), want)]
    [1.414, 1.414]
    """
    if got.shape != want.shape:
        return math.inf, math.inf
    rows = (got - want).reshape(-1, got.shape[-1]).norm(dim=1)
    scales = want.reshape(-1, want.shape[-1]).norm(dim=1)
    mean_scale = scales.square().mean().sqrt()
    error = rows.square().sum().sqrt() / scales.square().sum().sqrt()
    return float(error), float((rows / scales.clamp(min=mean_scale)).max())


def _samples(subject: Subject, rank: int) -> tuple[int, int]:
    """Which part of the batch a rank's replica has, of how many."""
    degree = subject.plan.replicas
    if degree == 1 or int(np.asarray(subject.workload.batch)) == 1:
        return 0, 1
    return subject.plan.replica_of(rank % subject.plan.gpus), degree


def _key(subject: Subject, rank: int) -> str:
    place, degree = _samples(subject, rank)
    return subject.case.subject + (f" | part {place} of {degree}" if degree > 1 else "")


def _matching_whole(wholes: Wholes, subject: Subject, rank: int) -> Whole | None:
    """Find what to compare with: the same samples, or the whole batch with them in it."""
    whole_batch = wholes.get(_key(subject, rank))
    if whole_batch is not None or subject.case.subject not in wholes:
        return whole_batch
    place, degree = _samples(subject, rank)
    whole = wholes[subject.case.subject]
    share = len(whole.result) // degree
    return replace(whole, result=whole.result[place * share : (place + 1) * share])


def sample(subject: Subject, bench: Bench, output: torch.Tensor | None) -> object:
    """Return some values of a result, for other ranks to compare: which samples, and numbers."""
    if output is None:
        return None
    size = output.numel()  # drawn, and the same everywhere: steps may find a single column
    places = torch.randint(size, (SAMPLE,), generator=torch.Generator().manual_seed(size))
    picked = output.flatten()[places]
    return [_key(subject, bench.comm.rank), picked.double().tolist()]


def replica_distance(samples: Sequence[object]) -> float:
    """Relative distance of the ranks that should have the same result, the largest.

    >>> replica_distance([["x", [3.0, 4.0]], ["x", [3.0, 4.5]], None, ["y", [7.0]]])
    0.1
    """
    first_values: dict[str, torch.Tensor] = {}
    worst = 0.0
    for entry in samples:
        if entry is None:
            continue
        key, values = cast("tuple[str, list[float]]", entry)
        got = torch.tensor(values, dtype=torch.float64)
        want = first_values.setdefault(key, got)
        gap = float((got - want).norm() / want.norm())
        worst = gap if not gap <= worst else worst
    return worst
