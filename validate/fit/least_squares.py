"""Robust relative least squares: positive parameters, held near where they start, with errors.

The squares of log(predicted / measured) are minimised, flattened for rows beyond 5 % (soft L1): a
library's odd choice for one shape must not bend the rest. Parameters move as logarithms, shares
between 0 and 1 as logits. Each is held to its start as if a measurement had said so to within
`1 / hold` of its logarithm times the usual miss: what the rows do not say keeps a plausible value.

A fit is judged by the cases that a first fit, to the others, does not see.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # no stubs

from costmodels.profile import Fit
from topology.base.values import dataclass

Vector = NDArray[np.float64]
Values = Mapping[str, float]
Ratio = Callable[[Values], Vector]

SPLIT: Final = "every third case, by the SHA-256 of its key"
MIN_ROWS: Final = 6  # rows without which nothing is fitted, three times over for a held-out check
OUTLIER: Final = 0.05
HOLD: Final = 0.1
_MAX_SHARE: Final = 0.999
_STEPS: Final = (0.03, 0.01, 0.03, 0.003)
_TINY: Final = 2.0**-60  # stands for 0 where a logarithm is taken
_DERIVATIVE_STEP: Final = 0.02  # step of the derivatives that errors are read from
_MAD_TO_SIGMA: Final = (
    1.4826  # standard deviation of a normal law over its median absolute deviation
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """Parameters at the minimum.

    errors : relative standard error of each, the hold counted as one measurement.
    misses : predicted over measured, less one, of every row.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    misses: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A fit: what varies, from where, and what it is held against.

    first : where each parameter starts, and what it is held to.
    ratio : predicted over measured of every row, for some values.
    shares : names of parameters between 0 and 1. limits : least and most of others.
    hold : strength of the pull to the start; firm : names that are held more, and how much.
    """

    first: Values
    ratio: Ratio
    shares: frozenset[str] = frozenset()
    limits: Mapping[str, tuple[float, float]] | None = None
    hold: float = HOLD
    firm: Mapping[str, float] | None = None


def minimise(problem: Problem) -> Minimum:
    """Fit the parameters of a problem.

    A slope of 2 in four rows, of which one is off by a factor:

    >>> x = np.array([1.0, 2.0, 3.0, 4.0])
    >>> y = np.array([2.0, 4.0, 6.0, 24.0])
    >>> minimum = minimise(Problem(first={"slope": 1.5}, ratio=lambda v: v["slope"] * x / y))
    >>> round(minimum.values["slope"], 1)
    2.0
    """
    names = list(problem.first)
    start = np.array([_to_point(problem, name, problem.first[name]) for name in names])
    low, high = _bounds(problem, names)

    def values(point: Vector) -> dict[str, float]:
        return {
            name: _from_point(problem, name, float(x)) for name, x in zip(names, point, strict=True)
        }

    def misses(point: Vector) -> Vector:
        return np.log(problem.ratio(values(point)))

    hold = np.array([(problem.firm or {}).get(name, problem.hold) for name in names])

    def residuals(point: Vector) -> Vector:
        return np.concatenate([misses(point), hold * (point - start)])

    point = np.clip(start, low, high)
    for step in _STEPS:  # whole tiles make steps that a small difference falls into
        point = least_squares(
            residuals,
            point,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=OUTLIER,
            diff_step=step,
            max_nfev=40,
        ).x
    fitted = values(point)
    spread = _errors(misses, point, hold)
    return Minimum(
        values=fitted,
        errors={
            name: float(error * _slope(problem, name, fitted[name]))
            for name, error in zip(names, spread, strict=True)
        },
        misses=np.expm1(misses(point)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A fit to all rows, and what one without every third case would have missed there."""

    values: Values
    fit: Fit
    median_error: float
    p90_error: float


class HasSource(Protocol):
    """What was measured of one case; `source` tells it from all others."""

    @property
    def source(self) -> str: ...


Measured = TypeVar("Measured", bound=HasSource)


def is_held_out(key: str) -> bool:
    """Whether a case judges the fit instead of shaping it.

    >>> [is_held_out(f"matmul m={m}") for m in (1, 2, 3, 4, 5, 6)]
    [True, False, False, False, False, True]
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 3 == 0


def by_key(row: HasSource) -> bool:
    """Whether a case judges the fit, by its source."""
    return is_held_out(row.source)


def judge(
    rows: Sequence[Measured],
    problem_of: Callable[[Sequence[Measured]], Problem],
    split: tuple[str, Callable[[Measured], bool]] = (SPLIT, by_key),
) -> Judged:
    """Fit once without the rows that are kept back, to judge by them; then to all.

    problem_of : makes the problem of some of the rows; its rows stand in the same order.
    split : how rows are kept back, in words, and whether one is.
    """
    split_text, is_back = split
    fit_rows = [row for row in rows if not is_back(row)]
    judge_rows = [row for row in rows if is_back(row)]
    held_out_misses: Vector = np.array([])
    if len(fit_rows) >= 2 * MIN_ROWS and judge_rows:
        trial = minimise(problem_of(fit_rows))
        held_out_misses = np.abs(problem_of(judge_rows).ratio(trial.values) - 1.0)
    minimum = minimise(problem_of(rows))
    errors = np.abs(minimum.misses)
    fit = Fit(
        rows=errors.size,
        worst_error=float(errors.max()),
        standard_errors=tuple(minimum.errors.items()),
    )
    return Judged(
        values=minimum.values,
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        fit=with_held_out(fit, held_out_misses, split_text) if held_out_misses.size else fit,
    )


def with_held_out(fit: Fit, missed: Vector, split: str) -> Fit:
    """Add the relative errors of what a fit did not see, as they were `split` off."""
    return replace(
        fit,
        held_out_rows=missed.size,
        held_out_median_error=float(np.median(missed)),
        held_out_p90_error=float(np.quantile(missed, 0.9)),
        held_out_worst_error=float(missed.max()),
        split=split,
    )


def _errors(misses: Callable[[Vector], Vector], point: Vector, hold: Vector) -> Vector:
    """Derive standard errors of the point from the curvature and the usual miss of the rows."""
    columns = []
    for index in range(point.size):
        shift = np.zeros_like(point)
        shift[index] = _DERIVATIVE_STEP
        columns.append((misses(point + shift) - misses(point - shift)) / (2 * _DERIVATIVE_STEP))
    slopes = np.column_stack(columns)
    miss = misses(point)
    scale = _MAD_TO_SIGMA * float(np.median(np.abs(miss - np.median(miss))))
    is_inlier = np.abs(miss) < max(OUTLIER, 3 * scale)
    curvature = slopes[is_inlier].T @ slopes[is_inlier] / max(scale, _TINY) ** 2
    curvature += np.diag((hold / OUTLIER) ** 2)
    return np.sqrt(np.diag(np.linalg.inv(curvature)))


def _bounds(problem: Problem, names: Sequence[str]) -> tuple[Vector, Vector]:
    limits = problem.limits or {}
    pairs = [limits.get(name, (0.0, np.inf)) for name in names]
    is_share = [name in problem.shares for name in names]
    low = [-np.inf if s or a <= 0 else np.log(a) for (a, _), s in zip(pairs, is_share, strict=True)]
    high = [np.inf if s else np.log(b) for (_, b), s in zip(pairs, is_share, strict=True)]
    return np.array(low), np.array(high)


def _to_point(problem: Problem, name: str, value: float) -> float:
    value = max(value, _TINY)
    if name in problem.shares:
        share = min(value, _MAX_SHARE)
        return float(np.log(share / (1.0 - share)))
    return float(np.log(value))


def _from_point(problem: Problem, name: str, point: float) -> float:
    value = float(np.exp(np.clip(point, -60.0, 60.0)))
    return value / (1.0 + value) if name in problem.shares else value


def _slope(problem: Problem, name: str, value: float) -> float:
    """Change of the logarithm of a value with its point."""
    return 1.0 - value if name in problem.shares else 1.0
