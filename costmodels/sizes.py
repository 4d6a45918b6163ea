"""Sizes and times, which may be numpy arrays: a sweep over requests that share one plan.

What only describes a model names these types, so numpy is loaded where there is an array.
"""

from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Size = Union[int, "NDArray[np.int64]"]  # text has no `|`
Real = Union[float, "NDArray[np.floating]"]


def anywhere(flags: "Real | Size | NDArray[np.bool_]") -> bool:
    """Whether something holds of any of several sizes, or of the one that there is."""
    return bool(flags.any() if getattr(flags, "ndim", 0) else flags)  # type: ignore[union-attr]


def largest(size: Real | Size) -> float:
    """Return the largest of several sizes, or the one that there is."""
    return float(size.max() if getattr(size, "ndim", 0) else size)  # type: ignore[union-attr]


def total(size: Real, which: "NDArray[np.bool_] | None" = None) -> float:
    """Add up several sizes, or some of them; or return the one that there is."""
    if not getattr(size, "ndim", 0):
        return float(size)
    return float(size.sum() if which is None else size[which].sum())  # type: ignore[index,union-attr]


def ceil_div(total: Size, parts: Size) -> Size:
    """Whole numbers, rounded up; arrays broadcast.

    >>> ceil_div(10, 4)
    3
    """
    return -(-total // parts)
