"""What all kernels have in common: rounds of tiles, two limits at once, a clock that sinks."""

from dataclasses import KW_ONLY
from math import log1p
from typing import TYPE_CHECKING, Any, Final, Union

import numpy as np

from costmodels.sizes import Real, ceil, is_array, larger, smaller, sqrt
from topology.base.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number = Union[float, "NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an attention call, which broadcast, and its traits.

    window : keys before itself that a query sees; 0 means all. mask : what `MASKS` has, or none.
    """

    heads: Real
    kv_heads: Real
    queries: Real
    keys: Real
    head_dim: Real
    batch: Real
    _: KW_ONLY
    causal: bool = False
    window: int = 0
    mask: str = ""


SETTLING: Final = 1e-3  # s: kernels shorter than this run before the power limit acts
SETTLED: Final = 0.1  # s: and those longer run as if for ever


def rounds(tiles: Real, slots: float, softness: float) -> Real:
    r"""How many rounds it takes when `slots` tiles run at once.

    .. math:: (1 - softness) \lceil tiles / slots \rceil + softness\, max(tiles / slots, 1)

    Hard rounds (softness 0) are a grid whose blocks start together; soft ones (1) a grid whose
    last blocks are short, split, or speeded up by what their idle neighbours leave.

    >>> [rounds(tiles, 4, softness) for tiles in (1.0, 6.0) for softness in (0.0, 1.0)]
    [1.0, 1.0, 2.0, 1.5]
    """
    load = tiles / slots
    return (1.0 - softness) * ceil(load) + softness * larger(load, 1.0)


def overlapped_time(first: Real, second: Real) -> Real:
    """Time under two limits that overlap almost perfectly: the mean of order 4.

    >>> overlapped_time(np.array([1.0, 2.0]), np.array([0.0, 2.0])).round(2).tolist()
    [1.0, 2.38]
    """
    return sqrt(sqrt(first**4 + second**4))


def stream_seconds(stream: Real, ramp: float) -> Real:
    r"""Lengthen the time `stream` at the full pace of memory by what it takes to get there.

    .. math:: stream + ramp\,\frac{stream}{stream + ramp}

    >>> stream_seconds(np.array([0.0, 1.0, 1e9]), 1.0).tolist()
    [0.0, 1.5, 1000000001.0]
    """
    return stream + ramp * stream / (stream + ramp)


def slowed_time(time: Real, drop: float, *, sustained: bool = False) -> Real:
    r"""Lengthen `time` by the clock that sinks to what the power limit can keep up.

    .. math:: t (1 + drop\, \ln(1 + min(t, 0.1 s) / 1 ms))

    for a kernel on a GPU that was idle before; all of it if the GPU is busy for long.

    >>> slowed_time(0.2, 0.0), round(slowed_time(0.2, 0.1), 3)
    (0.2, 0.292)
    """
    acting = (SETTLED if sustained else smaller(time, SETTLED)) / SETTLING
    return time * (1.0 + drop * (np.log1p(acting) if is_array(acting) else log1p(acting)))


def scalar_or_array(value: Real) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Give a float for a scalar result, and the array otherwise.

    >>> scalar_or_array(np.float64(1.5)), scalar_or_array(np.array([1.5])).shape
    (1.5, (1,))
    """
    return value if is_array(value) else float(value)
