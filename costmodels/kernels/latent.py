r"""Latent attention: one compressed row a token is kept for all heads.

*Expanded*, as for prompts, keys and values of every head are made of the rows, and tiles of queries
look at them:

.. math::
    t = fixed + \max(\sum pairs\, 2 (size + value) / rate + item\, tiles / SMs,\ last) + passes

*Absorbed*, as for new tokens, every head looks at the rows themselves. An item is the rows of one
request and up to `tile` heads; few items are cut over idle multiprocessors, where the kernel cuts:

.. math::
    t = fixed + \mathrm{overlapped}(compute, memory) + passes, \qquad
    compute = \max(items\, (item + keys\, row) / SMs,\ item + cut\, row + merge)

where a multiprocessor takes for a row what loading it takes, or multiplying it by its heads. The
products that bring queries into the space of rows, and results back, are a batch of one a head.

References
----------
DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434, section 2.1. The formulas are our own; fitted by
`validate.fit.engine_kernels`.
"""

from functools import cache
from typing import Any, Final

import numpy as np

from costmodels.basis import Basis
from costmodels.kernels.common import Number, overlapped_time, scalar_or_array, slowed_time
from costmodels.kernels.decode import CACHES
from costmodels.kernels.matmul import (
    PreparedProduct,
    clock_drop,
    matrix_rate,
    peak_rate,
    prepare,
    prepare_with,
    product_time,
)
from costmodels.kernels.parameters import (
    HeadProductParameters,
    LatentContextParameters,
    LatentDecodeParameters,
)
from costmodels.kernels.tables import Calibration, engine_record, matmul_record
from costmodels.sizes import Real
from topology.base import UncalibratedError
from topology.catalogue import Device

EXPANDED: Final = (192, 128)
"""Features of a score and of a value, as DeepSeek-V3 has them."""
ROW: Final = (576, 512)
"""Features of a row, and those of them that are values."""
_BYTES: Final = 2.0  # of a feature that is not in a cache
_FEWEST_ROWS: Final = 16.0  # rows of the smallest tile that tensor cores multiply


def latent_context_time(  # noqa: PLR0913  # heads, queries, keys, batch are one shape
    heads: Number,
    queries: Number,
    keys: Number,
    device: Device,
    *,
    batch: Number = 1,
    sizes: tuple[int, int] = EXPANDED,
    kv_precision: str = "bf16",
    sustained: bool = False,
    engine: str = "",
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time causal attention of the last `queries` of `keys`, expanded.

    heads : of this rank. sizes : features of a score and of a value.
    kv_precision : of the cache that is written.

    >>> from topology.catalogue import all_devices
    >>> time = latent_context_time(128, 4096, 4096, all_devices()["h100-sxm"])
    >>> 128 * 4096**2 * 320 / 989e12 < time < 3 * 128 * 4096**2 * 320 / 989e12
    True
    """
    fitted = engine_record(LatentContextParameters, device, _record_name(kv_precision), engine)
    shape = (heads, queries, keys, batch)
    return scalar_or_array(context_time(fitted, device, shape, sizes, sustained=sustained))


def context_time(
    fitted: LatentContextParameters,
    device: Device,
    shape: tuple[Number, Number, Number, Number],
    sizes: tuple[int, int] = EXPANDED,
    *,
    sustained: bool = False,
) -> Real:
    """Evaluate the formula of the expanded form for heads, queries, keys and batch."""
    heads, queries, keys, batch = (np.asarray(size, float) for size in shape)
    rate, peak, drop = _rates(device)
    rate, slots = rate * fitted.gain, device.multiprocessors.value
    flop, items = 2.0 * sum(sizes), batch * heads
    tiles = np.ceil(queries / fitted.tile)
    padded = np.where(tiles > 1, tiles * fitted.tile, _padded_rows(queries, fitted.tile))
    visible_keys = keys - queries + (queries + fitted.tile) / 2.0
    spread_time = items * (padded * visible_keys * flop / rate + tiles * fitted.item / slots)
    last_tile_time = fitted.item + fitted.tile * keys * flop * slots / rate
    compute = slowed_time(np.maximum(spread_time, last_tile_time), drop, sustained=sustained)
    moved = _BYTES * items * (queries + keys) * sum(sizes)
    pairs = queries * (keys - (queries - 1.0) / 2.0)
    bound = np.maximum(items * pairs * flop / peak, moved / device.memory_bandwidth.value)
    pass_time = fitted.passes * moved / device.memory_bandwidth.value
    time: Real = fitted.fixed + np.maximum(compute + pass_time, bound)
    return time


def latent_decode_time(  # noqa: PLR0913  # heads, keys, batch, queries are one shape
    heads: Number,
    keys: Number,
    device: Device,
    *,
    batch: Number = 1,
    queries: Number = 1,
    sizes: tuple[int, int] = ROW,
    kv_precision: str = "bf16",
    engine: str = "",
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time attention of a few new `queries` of each request over its `keys`, absorbed.

    heads : of this rank. sizes : features of a row, and those that are values.
    kv_precision : of the cache.

    With one head a rank reads as many rows as with 128:

    >>> from topology.catalogue import all_devices
    >>> one, many = (latent_decode_time(heads, 8192, all_devices()["h100-sxm"], batch=64)
    ...              for heads in (1, 128))
    >>> one <= many < 8 * one
    True
    """
    fitted = engine_record(LatentDecodeParameters, device, _record_name(kv_precision), engine)
    return scalar_or_array(
        decode_time(fitted, device, (heads, queries, keys, batch), sizes, kv_precision)
    )


def decode_time(
    fitted: LatentDecodeParameters,
    device: Device,
    shape: tuple[Number, Number, Number, Number],
    sizes: tuple[int, int] = ROW,
    cache: str = "bf16",
) -> Real:
    """Evaluate the formula of the absorbed form for heads, queries, keys and batch."""
    heads, queries, keys, batch = (np.asarray(size, float) for size in shape)
    rate, peak, _ = _rates(device)
    slots, bandwidth = device.multiprocessors.value, device.memory_bandwidth.value
    query_rows, flop, row = heads * queries, 2.0 * sum(sizes), sizes[0] * CACHES[cache]
    items = batch * np.ceil(query_rows / fitted.tile)
    multiply_time = _padded_rows(query_rows, fitted.tile) * flop * slots / (rate * fitted.gain)
    row_time = overlapped_time(row / fitted.load_bandwidth + 0.0 * multiply_time, multiply_time)
    cut_keys = np.maximum(np.minimum(keys, fitted.least), items * keys / slots)
    merge = np.where(keys > fitted.least, fitted.merge, 0.0)
    spread_time = items * (fitted.item + keys * row_time) / slots
    lone_item_time = fitted.item + np.minimum(keys, cut_keys) * row_time + merge
    extra_traffic = _BYTES * batch * query_rows * sum(sizes) / bandwidth
    memory = batch * keys * row / bandwidth + extra_traffic
    busy = overlapped_time(
        np.maximum(spread_time, lone_item_time), memory / fitted.memory_efficiency
    )
    bound = batch * query_rows * keys * flop / peak
    time: Real = fitted.floor + np.maximum(busy, bound) + fitted.passes * extra_traffic
    return time


def head_product_time(  # noqa: PLR0913  # rows, columns, inner, heads are one shape
    rows: Number,
    columns: Number,
    inner: Number,
    heads: Number,
    device: Device,
    *,
    precision: str = "bf16",
    sustained: bool = False,
    engine: str = "",
    calibration: Calibration = None,
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time a product ``[rows, inner] x [inner, columns]`` for each of `heads`, as `matmul_time`.

    >>> from topology.catalogue import all_devices
    >>> times = head_product_time(np.array([1, 4096]), 512, 128, 128, all_devices()["h100-sxm"])
    >>> bool(times[0] < times[1])
    True
    """
    machine = _products(device, precision, engine, calibration)
    return scalar_or_array(product_time(machine, rows, columns, inner, heads, sustained=sustained))


@cache
def _products(
    device: Device, precision: str, engine: str, calibration: Calibration
) -> PreparedProduct:
    try:
        steps = engine_record(HeadProductParameters, device, _record_name(precision), engine)
    except UncalibratedError:
        return prepare(device, precision, calibration, engine)
    return prepare_with(matmul_record(device, calibration), device, precision, steps)


def latent_basis(
    device: Device, kv_precision: str = "bf16", engine: str = "", *, absorbed: bool, **sizes: Number
) -> Basis:
    """How well the time of `sizes` (heads, keys, batch) is known."""
    name = _record_name(kv_precision)
    provenance = (
        engine_record(LatentDecodeParameters, device, name, engine).provenance
        if absorbed
        else engine_record(LatentContextParameters, device, name, engine).provenance
    )
    return provenance.basis(device.name, sizes)


def _record_name(precision: str) -> str:
    """Name of the precision that a record has: 16 bits are 16 bits."""
    return "bf16" if precision == "fp16" else precision


def _padded_rows(rows: Real, tile: float) -> Real:
    """Rows of a tile that are multiplied: powers of two up to the whole of it."""
    power = 2.0 ** np.ceil(np.log2(np.maximum(rows, 1.0)))
    return np.minimum(np.maximum(power, min(_FEWEST_ROWS, tile)), tile)


@cache
def _rates(device: Device) -> tuple[float, float, float]:
    """FLOP/s of large products, of the data sheet, and how the clock sinks."""
    record = matmul_record(device, None)
    peak = peak_rate(device, device.half)
    return matrix_rate(record, device, device.half), peak, clock_drop(record, device)
