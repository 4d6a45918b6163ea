"""How far a profile, or the shipped tables alone, are from every measured row."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from costmodels.profile import Profile
from topology.base import ModelError
from topology.base.values import dataclass
from validate.accuracy.figures import score
from validate.fit.collectives import MeasuredOn, collective_of
from validate.fit.kernels import kernel_of
from validate.fit.rows import Row

HEADERS: Final = ("group", "rows", "median", "ninth decile", "worst", "bias", "worst case")
IMPLEMENTATIONS: Final = ("cudnn", "fa2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Predicted over measured, less one, of one row."""

    group: str
    key: str
    error: float


def misses(rows: Iterable[Row], place: MeasuredOn, profile: Profile | None) -> list[Miss]:
    """Compare every row that the models price with what they say.

    profile : None for the shipped tables alone.
    """
    row_misses = []
    for row in rows:
        predicted = None if row.error else _predicted_seconds(row, place, profile)
        if predicted is not None:
            error = predicted / row.seconds - 1.0
            row_misses.append(Miss(group=_group_name(row), key=row.key, error=error))
    return row_misses


def miss_rows(compared: Sequence[Miss]) -> Iterator[list[str]]:
    """Write one line a group, in percent."""
    for group in dict.fromkeys(sorted(miss.group for miss in compared)):
        rows = [miss for miss in compared if miss.group == group]
        total = score(group, [miss.error for miss in rows])
        numbers = (total.median, total.p90, total.worst, total.bias)
        worst = max(rows, key=lambda miss: abs(miss.error))
        yield [group, str(total.rows), *(f"{100 * number:.1f}" for number in numbers), worst.key]


def _group_name(row: Row) -> str:
    if row.family == "collective":
        return f"collective {row.sizes['op']} {row.mode}"
    if row.family == "attention":
        decode_suffix = " decode" if row.number("queries") == 1 else ""
        return f"attention {row.sizes['kernel']} {row.mode}{decode_suffix}"
    if row.family == "pointwise":
        return f"pointwise {row.sizes['how']} {row.mode}"
    return f"{row.family} {row.sizes['precision']} {row.mode}"


def _predicted_seconds(row: Row, place: MeasuredOn, profile: Profile | None) -> float | None:
    """Price a row; None of one that no model is for."""
    kernels, curves = (None, None) if profile is None else (profile.kernels, profile.curves)
    if row.family == "attention" and row.mode.partition(" ")[2] not in IMPLEMENTATIONS:
        return None
    try:
        if row.family in ("matmul", "attention", "pointwise"):
            return float(kernel_of(row, place.device).predicted(kernels))
        if row.family == "collective":
            return float(collective_of(row, place).predicted(curves))
    except ModelError:
        pass
    return None
