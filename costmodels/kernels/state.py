r"""Layers that keep a state instead of a cache: gated delta rule and state spaces (Mamba-2).

A short convolution over time goes before; each multiprocessor moves a few bytes a cycle, up to what
memory streams, and some engines begin each sequence anew, a few features at a time:

.. math::
    t = floor + \sqrt{(sequence\, batch\, features)^2 + (traffic / pace)^2}, \qquad
    pace = \min(cycle\_bytes\, SMs\, clock,\ share\, bandwidth)

Over prompts, chunks of a head follow one another, heads and sequences side by side; an item is a
head of a sequence:

.. math::
    t = floor + \mathrm{overlapped}(\max(items\, alone / SMs,\ alone),\ memory), \qquad
    alone = item + chunks\, step

with the state read and written once, and a few passes over the rows, at such a pace. A new token
reads and writes the whole state, at the pace of memory.

References
----------
S. Yang et al., "Gated Delta Networks", 2024, arXiv:2412.06464; T. Dao, A. Gu, "Transformers are
SSMs", 2024, arXiv:2405.21060. The formulas are our own; fitted by `validate.fit.engine_kernels`.
"""

from typing import Any, Final, Literal

import numpy as np

from costmodels.kernels.common import Number, overlapped_time, scalar_or_array
from costmodels.kernels.parameters import (
    StateConvolutionParameters,
    StateScanParameters,
    StateUpdateParameters,
)
from costmodels.kernels.tables import engine_record
from costmodels.sizes import Real
from topology.catalogue import Device

Rule = Literal["delta", "ssd"]
CHUNK: Final = 64
"""Tokens of a chunk of the gated delta rule, as its kernels have it."""
TAPS: Final = 3.0
"""Earlier tokens that a convolution keeps."""
_BYTES: Final = 2.0  # of a feature of a row
_UNIT_STATE: Final = 128.0 * 128.0  # elements of the state of a head that `item` and `step` are of
_UNIT_CHUNK: Final = 64.0  # and of a chunk
_UNIT_FEATURES: Final = 2.0**12  # of a sequence that `sequence` is of
_STREAM_SHARE: Final = (
    0.92  # of the bandwidth: convolutions on RTX PRO 6000, which memory alone limits
)
CYCLE_BYTES: Final = 10.0
"""Bytes that a multiprocessor reads and writes in a cycle in kernels that wait for each load:
convolutions over prompts on A100, H100 and B200 move 9 to 11, whatever their memory."""


def convolution_time(  # tokens, features, batch are one shape
    tokens: Number,
    features: Number,
    device: Device,
    *,
    batch: Number = 1,
    new: bool = False,
    engine: str = "",
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time the convolution over time of ``[batch, tokens, features]``.

    tokens : of each sequence. new : they are a step's new ones, after others.

    >>> from topology.catalogue import all_devices
    >>> time = convolution_time(8192, 8192, all_devices()["h100-sxm"])
    >>> 2 * 2 * 8192**2 / 3.35e12 < time < 4 * 2 * 2 * 8192**2 / 3.35e12
    True
    """
    name = "conv_step" if new else "conv"
    fitted = engine_record(StateConvolutionParameters, device, name, engine)
    return scalar_or_array(convolution_seconds(fitted, device, (tokens, features, batch)))


def convolution_seconds(
    fitted: StateConvolutionParameters, device: Device, shape: tuple[Number, Number, Number]
) -> Real:
    """Evaluate the formula of convolutions for tokens, features and batch."""
    tokens, features, batch = (np.asarray(size, float) for size in shape)
    traffic = 2.0 * _BYTES * batch * features * (tokens + TAPS)
    stream = traffic / _pace(device, fitted.cycle_bytes)
    start_time = fitted.sequence * batch * features / _UNIT_FEATURES
    time: Real = fitted.floor + np.hypot(start_time, stream)
    return time


def _pace(device: Device, cycle_bytes: float = CYCLE_BYTES) -> float:
    """Bytes a second that all multiprocessors move, up to what memory streams."""
    cycle_rate = cycle_bytes * device.multiprocessors.value * device.clock.value
    return min(cycle_rate, _STREAM_SHARE * device.memory_bandwidth.value)


def scan_time(  # noqa: PLR0913  # tokens, heads, features, batch are one shape
    tokens: Number,
    heads: Number,
    features: Number,
    device: Device,
    *,
    rule: Rule = "delta",
    batch: Number = 1,
    state: Number = _UNIT_STATE,
    chunk: Number = CHUNK,
    engine: str = "",
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time the pass over prompts, from the convolution to the rows that are left.

    tokens : of each sequence. features : of a row of this rank, read and written together.
    state : elements of the state of a head, such as 128 x 128.

    >>> from topology.catalogue import all_devices
    >>> once, twice = (scan_time(n, 32, 12288, all_devices()["h100-sxm"]) for n in (8192, 16384))
    >>> 1.5 < twice / once < 2.1
    True
    """
    fitted = engine_record(StateScanParameters, device, rule, engine)
    return scalar_or_array(
        scan_seconds(fitted, device, (tokens, heads, features, batch), state, chunk)
    )


def scan_seconds(
    fitted: StateScanParameters,
    device: Device,
    shape: tuple[Number, Number, Number, Number],
    state: Number = _UNIT_STATE,
    chunk: Number = CHUNK,
) -> Real:
    """Evaluate the formula of prompts for tokens, heads, features and batch."""
    tokens, heads, features, batch = (np.asarray(size, float) for size in shape)
    bandwidth, slots = device.memory_bandwidth.value, device.multiprocessors.value
    size, length = np.asarray(state) / _UNIT_STATE, np.asarray(chunk) / _UNIT_CHUNK
    item_time = size * (fitted.item + np.ceil(tokens / chunk) * length * fitted.step)
    compute = np.maximum(batch * heads * item_time / slots, item_time)
    state_bytes = 2.0 * 4.0 * batch * heads * state
    rows = _BYTES * batch * tokens * features
    busy = overlapped_time(compute, (state_bytes + fitted.passes * rows) / _pace(device))
    flop = 4.0 * batch * tokens * heads * state
    bound = np.maximum((state_bytes + rows) / bandwidth, flop / device.needed_peak(device.half))
    time: Real = fitted.floor + np.maximum(busy, bound)
    return time


def update_time(  # heads, batch are one shape
    heads: Number,
    device: Device,
    *,
    batch: Number = 1,
    state: Number = _UNIT_STATE,
    state_bytes: float = 4.0,
    engine: str = "",
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time a new token of each of `batch` sequences: all of the state is read and written.

    state, state_bytes : elements of the state of a head, and bytes of each.

    >>> from topology.catalogue import all_devices
    >>> time = update_time(32, all_devices()["h100-sxm"], batch=256)
    >>> 2 * 4 * 256 * 32 * 128**2 / 3.35e12 < time < 1.5 * 2 * 4 * 256 * 32 * 128**2 / 3.35e12
    True
    """
    fitted = engine_record(StateUpdateParameters, device, "update", engine)
    return scalar_or_array(update_seconds(fitted, device, (heads, batch), state, state_bytes))


def update_seconds(
    fitted: StateUpdateParameters,
    device: Device,
    shape: tuple[Number, Number],
    state: Number = _UNIT_STATE,
    state_bytes: Number = 4.0,
) -> Real:
    """Evaluate the formula of new tokens for heads and batch."""
    heads, batch = (np.asarray(size, float) for size in shape)
    traffic = 2.0 * state_bytes * batch * heads * state / device.memory_bandwidth.value
    time: Real = fitted.floor + traffic / fitted.memory_efficiency
    return time
