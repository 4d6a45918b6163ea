"""Fit fields of a kernel's record: from where it starts, to what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from costmodels.kernels.parameters import Parameters, Record
from topology.base.values import dataclass
from validate.fit.least_squares import HOLD, SPLIT, Judged, Measured, Problem, Vector, by_key, judge

SHARES: Final = frozenset({"softness", "memory_efficiency", "ragged"})
Ratio = Callable[[Any], Vector]
"""From a record to predicted over measured of every figure."""
Split = tuple[str, Callable[[Any], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Fields of a record that a fit moves; the others are as they start.

    shares, limits, hold : as of `Problem`.
    """

    names: Sequence[str]
    shares: frozenset[str] = SHARES
    limits: Mapping[str, tuple[float, float]] | None = None
    hold: float = HOLD

    def problem(self, start: Record, ratio: Ratio) -> Problem:
        """Make the problem of fitting them."""
        return Problem(
            first={name: float(getattr(start, name)) for name in self.names},
            ratio=lambda values: ratio(replace(start, **values)),  # type: ignore[arg-type]  # names are fields
            shares=self.shares,
            limits=self.limits,
            hold=self.hold,
        )


def fields_but(start: Record, *kept: str) -> list[str]:
    """List the numbers of a record but those that are kept."""
    return [field.name for field in fields(start) if field.name not in ("provenance", *kept)]


def fit_record(
    figures: Sequence[Measured],
    start: Parameters,
    free: Free,
    ratio_of: Callable[[Sequence[Measured]], Ratio],
    split: Split = (SPLIT, by_key),
) -> tuple[Parameters, Judged]:
    """Fit the free fields of a record; see `judge`.

    ratio_of : makes the ratios of some of the figures, in their order.
    """
    judged = judge(figures, lambda subset: free.problem(start, ratio_of(subset)), split)
    return replace(start, **judged.values), judged  # type: ignore[arg-type]  # names are fields


def with_provenance(
    record: Parameters,
    judged: Judged,
    sizes: Mapping[str, Vector],
    **told: Any,  # noqa: ANN401  # other fields of `Provenance`
) -> Parameters:
    """Say what a record was fitted to, and how well.

    sizes : of all figures, by name.
    """
    provenance = replace(
        record.provenance,
        rows=judged.fit.rows,
        median_error=judged.median_error,
        p90_error=judged.p90_error,
        ranges=tuple((name, float(np.min(s)), float(np.max(s))) for name, s in sizes.items()),
        **told,
    )
    return replace(record, provenance=provenance)
