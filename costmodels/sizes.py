"""Sizes and times, which may be numpy arrays: a sweep over requests that share one plan.

One number goes by Python's own arithmetic, which is far faster there; numpy is loaded where there
is an array.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard, Union, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = Union[int, "NDArray[np.int64]"]  # text has no `|`
Real = Union[float, "NDArray[np.floating]"]
Flag = Union[bool, "NDArray[np.bool_]"]
_NUMBER_TYPES: Final = (float, int)


def is_array(size: object) -> TypeGuard["NDArray[Any]"]:
    """Whether it is an array of sizes, not one number."""
    return not isinstance(size, _NUMBER_TYPES) and getattr(size, "ndim", 0) > 0


def real(size: Real | Size) -> Real:
    """Give a size as a float, or as an array of floats."""
    return np.asarray(size, float) if is_array(size) else float(size)


def any_true(flags: Real | Size | Flag) -> bool:
    """Whether something holds of any of several sizes, or of the one that there is."""
    return bool(flags.any() if is_array(flags) else flags)


def largest(size: Real | Size) -> float:
    """Return the largest of several sizes, or the one that there is."""
    return float(size.max() if is_array(size) else size)


def total(size: Real, which: "NDArray[np.bool_] | None" = None) -> float:
    """Add up several sizes, or some of them; or return the one that there is."""
    if not is_array(size):
        return float(size)
    return float(size.sum() if which is None else size[which].sum())


def ceil_div(total: Size, parts: Size) -> Size:
    """Whole numbers, rounded up; arrays broadcast.

    >>> ceil_div(10, 4)
    3
    """
    return -(-total // parts)


def larger(first: Real | Size, second: Real | Size) -> Real:
    """Return the larger of two; arrays broadcast.

    >>> larger(1.0, 2.0)
    2.0
    """
    if isinstance(first, _NUMBER_TYPES) and isinstance(second, _NUMBER_TYPES):
        return second if second > first else first  # noqa: FURB136  # a call takes twice as long
    return np.maximum(first, second)


def smaller(first: Real | Size, second: Real | Size) -> Real:
    """Return the smaller of two; arrays broadcast."""
    if isinstance(first, _NUMBER_TYPES) and isinstance(second, _NUMBER_TYPES):
        return second if second < first else first  # noqa: FURB136  # as above
    return np.minimum(first, second)


def where(flags: Flag, yes: Real, no: Real) -> Real:
    """Return one of two by a flag; arrays broadcast.

    >>> where(False, 1.0, 2.0)
    2.0
    """
    if is_array(flags):
        return np.where(flags, yes, no)
    return yes if flags else no


def ceil(size: Real | Size) -> Real:
    """Round up to whole numbers, which stay floats.

    >>> ceil(1.5)
    2.0
    """
    if isinstance(size, _NUMBER_TYPES):
        return float(math.ceil(size))
    return np.ceil(size)


def sqrt(size: Real) -> Real:
    """Take the square root."""
    if isinstance(size, _NUMBER_TYPES):
        return math.sqrt(size)
    return np.sqrt(size)


def interp(size: Real, sizes: Sequence[float], values: Sequence[float]) -> Real:
    """Read between values at rising sizes; beyond them the first and the last stand.

    >>> interp(1.5, (1.0, 2.0), (10.0, 20.0)), interp(9.0, (1.0, 2.0), (10.0, 20.0))
    (15.0, 20.0)
    """
    if is_array(size):
        return cast(Real, np.interp(size, sizes, values))
    index = bisect_right(sizes, size)
    if index in (0, len(sizes)):
        return values[max(index - 1, 0)]
    slope = (values[index] - values[index - 1]) / (sizes[index] - sizes[index - 1])
    return slope * (size - sizes[index - 1]) + values[index - 1]


def next_value(size: Real, sizes: Sequence[float], values: Sequence[float]) -> Real:
    """Take the value of the next of the rising sizes; of the last one beyond it.

    >>> next_value(1.5, (1.0, 2.0), (10.0, 20.0)), next_value(9.0, (1.0, 2.0), (10.0, 20.0))
    (20.0, 20.0)
    """
    last_index = len(sizes) - 1
    if is_array(size):
        return cast(Real, np.array(values)[np.minimum(np.searchsorted(sizes, size), last_index)])
    return values[min(bisect_left(sizes, size), last_index)]
