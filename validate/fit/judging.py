"""Which rows are kept back, and how a fit is judged by them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.profiles.profile import Fit
from validate.fit.robust import Minimum, Problem, Vector, minimise
from validate.fit.rows import Row

SPLIT: Final = "every third case, by the SHA-256 of its key"
LEAST: Final = 6  # rows without which nothing is fitted, three times over for a held-out check


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A fit to all rows, and what one without every third case would have missed there."""

    minimum: Minimum
    fit: Fit
    median_error: float
    p90_error: float


def kept_back(key: str) -> bool:
    """Whether a case judges the fit instead of shaping it.

    >>> [kept_back(f"matmul m={m}") for m in (1, 2, 3, 4, 5, 6)]
    [True, False, False, False, False, True]
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 3 == 0


def judge(rows: Sequence[Row], problem_of: Callable[[Sequence[Row]], Problem]) -> Judged:
    """Fit once without the rows that are kept back, to judge by them; then to all.

    Parameters
    ----------
    problem_of : makes the problem of some of the rows; its rows stand in the same order.
    """
    seen = [row for row in rows if not kept_back(row.key)]
    unseen = [row for row in rows if kept_back(row.key)]
    missed: Vector = np.array([])
    if len(seen) >= 2 * LEAST and unseen:
        trial = minimise(problem_of(seen))
        missed = np.abs(problem_of(unseen).ratio(trial.values) - 1.0)
    minimum = minimise(problem_of(rows))
    errors = np.abs(minimum.misses)
    return Judged(
        minimum=minimum,
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        fit=Fit(
            rows=errors.size,
            worst_error=float(errors.max()),
            held_out_rows=missed.size,
            held_out_median_error=float(np.median(missed)) if missed.size else np.nan,
            held_out_p90_error=float(np.quantile(missed, 0.9)) if missed.size else np.nan,
            held_out_worst_error=float(missed.max()) if missed.size else np.nan,
            split=SPLIT if missed.size else "",
            standard_errors=tuple(minimum.errors.items()),
        ),
    )
