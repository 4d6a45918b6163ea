"""Sizes and times, which may be numpy arrays: a sweep over requests that share one plan.

What only describes a model names these types, so numpy is loaded where there is an array.
"""

from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Size = Union[int, "NDArray[np.int64]"]  # text has no `|`
Real = Union[float, "NDArray[np.floating]"]


def ceil_div(total: Size, parts: Size) -> Size:
    """Whole numbers, rounded up; arrays broadcast.

    >>> ceil_div(10, 4)
    3
    """
    return -(-total // parts)
