r"""Matrix products on one GPU: tiles in rounds over multiprocessors, or the memory's pace.

.. math::
    t = floor + split + wait \lceil k/64 \rceil + \mathrm{overlapped}(compute, memory), \qquad
    compute = \mathrm{rounds}(b \lceil m/p \rceil \lceil n/q \rceil s / SMs)\,
              (\mathrm{overlapped}(multiply, load) + overhead)

for a tile p x q and a cut s of the inner dimension, and the best of a small set of (p, q, s): what
a tuned library takes. With k' = k / s in whole steps of 64, r the rate of one multiprocessor, e the
bytes of an input and w those of a weight

.. math::
    multiply = 2 p q k' (1 + h/p + h/q) / r, \quad load = (p e + q w) k' / bandwidth_{SM}, \quad
    memory = \mathrm{streamed}((e m k + w k n + 2 m n)\, b / (share\, bandwidth))

where a stream takes a while to get to the pace of memory (`common.streamed`). It never promises
more than the data sheet: at least flop / peak and bytes / bandwidth. Where numbers are quantised,
an engine scales and rounds the inputs first, which takes a while of its own and passes over them,
and the inner loop of a tile waits at each of its steps, however much is left to load; weights alone
in 4 bits are multiplied as 16-bit numbers.

References
----------
Our own, after the wave quantisation of NVIDIA's "Matrix Multiplication Background User's Guide"
and split-K of CUTLASS; fitted by `validate.fit.kernels`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product
from math import inf, log1p
from typing import Any, Final, NamedTuple, cast

import numpy as np

from costmodels.basis import Basis
from costmodels.formats import FORMATS, Format
from costmodels.kernels.common import (
    SETTLED,
    SETTLING,
    Number,
    overlapped_time,
    rounds,
    scalar_or_array,
    slowed_time,
    stream_seconds,
)
from costmodels.kernels.parameters import MatmulParameters, QuantisedParameters
from costmodels.kernels.tables import Calibration, engine_record, matmul_record
from costmodels.sizes import Real, any_true, ceil, is_array, larger, real, smaller, where
from topology.base import FlopPerSecond, InputError, Seconds, unknown
from topology.base.values import dataclass
from topology.catalogue import Device

_SHAPES: Final = (
    (16.0, 64.0), (32.0, 64.0), (64.0, 64.0), (64.0, 128.0), (128.0, 128.0), (128.0, 256.0),
)  # fmt: skip
_SPLITS: Final = (1.0, 2.0, 4.0, 8.0)
_LOOP_SIZES: Final = 1024  # sizes for which a tile after the other is faster, as caches hold those
_STEP: Final = 64.0  # elements of a row that one step of the inner loop takes
_PLAIN: Final = ("bf16", "fp16")  # precisions that need no scales
_INPUT: Final = 2.0  # bytes of an element of the inputs as an engine has them
_OUTPUT: Final = 2.0  # bytes of an element of the result
_SUM: Final = 4.0  # bytes of an element of a partial sum


class Tile(NamedTuple):
    """What a block multiplies of a product whose inner dimension is in `cuts`; or arrays of such.

    seconds_per_k : of the inner dimension: one tile, multiplying and loading.
    cut_overhead : s, and cut_passes : s for each element of the result.
    """

    rows: Real
    columns: Real
    cuts: Real
    seconds_per_k: Real
    cut_overhead: Real
    cut_passes: Real


class Tiles:
    """All tiles and cuts, one by one, or together as arrays with an element for each."""

    def __init__(self, each: Sequence[Tile]) -> None:
        self.each = each

    @cached_property
    def together(self) -> Tile:
        return Tile(*np.array(self.each).T)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedProduct:
    """A device and a precision with all that does not depend on the sizes of a product.

    fixed : s, and passes : s for each element of
    the inputs, before a product of quantised numbers; wait : s for each step of its inner
    loop.
    """

    parameters: MatmulParameters
    slots: float
    drop: float
    peak: FlopPerSecond
    bandwidth: float
    memory_efficiency: float
    tile_overhead: float
    fixed: float
    passes: float
    wait: float
    format: Format
    tiles: Tiles


def matmul_time(  # noqa: PLR0913  # m, n, k, batch are one shape
    m: Number,
    n: Number,
    k: Number,
    device: Device,
    *,
    precision: str = "bf16",
    batch: Number = 1,
    sustained: bool = False,
    rounding: float = 1.0,
    engine: str = "",
    calibration: Calibration = None,
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time `batch` products ``[m, k] x [k, n]``, as a kernel of a CUDA graph.

    m, n, k, batch : numbers or arrays that broadcast, at least 1.
    precision : of `FORMATS`, with what an engine does to 16-bit inputs; the result has 16 bits.
    sustained : the GPU has been busy for a second, so that its power limit acts on short
        kernels too; otherwise it acts as in a benchmark of this kernel alone.
    rounding : share of the scaling and rounding of inputs that is not part of the kernel before.
    engine : whose kernels; those of none in particular where it is empty or has none of its own.
    calibration : parameters of this very machine.

    Raises InputError if `device` has no tensor cores for `precision`.

    Half a second of work for 989 TFLOP/s takes longer on a real H100, but not twice as long.

    >>> from topology.catalogue import all_devices
    >>> 0.5 < matmul_time(2**15, 2**16, 494.7e12 / 2**32, all_devices()["h100-sxm"]) < 1.0
    True
    """
    prepared = prepare(device, precision, calibration, engine, rounding)
    return scalar_or_array(product_time(prepared, m, n, k, batch, sustained=sustained))


def matmul_basis(
    device: Device,
    precision: str = "bf16",
    calibration: Calibration = None,
    engine: str = "",
    **sizes: Number,
) -> Basis:
    """How well `matmul_time` of `sizes` (m, n, k) is known.

    >>> from topology.catalogue import all_devices
    >>> devices = all_devices()
    >>> matmul_basis(devices["h100-sxm"], m=4096).name, matmul_basis(devices["h20"]).name
    ('CALIBRATED', 'DATASHEET')
    """
    fitted = matmul_record(device, calibration).provenance
    if precision in _PLAIN:
        return fitted.basis(device.name, sizes)
    steps = engine_record(QuantisedParameters, device, precision, engine).provenance
    return max(fitted.basis(device.name, sizes), steps.basis(device.name, sizes))


@cache
def prepare(
    device: Device,
    precision: str,
    calibration: Calibration = None,
    engine: str = "",
    rounding: float = 1.0,
) -> PreparedProduct:
    """Prepare `device` for products of `precision`.

    A machine's own parameters are of products alone, whose inputs are rounded already.
    """
    parameters = matmul_record(device, calibration)
    peak_rate(device, precision)  # or an error that says what the device has
    measured = calibration is not None and calibration.matmul is not None
    if precision in _PLAIN or (measured and not engine and rounding == 0.0):
        return prepare_with(parameters, device, precision)
    steps = engine_record(QuantisedParameters, device, precision, engine)
    scaled_steps = replace(
        steps, fixed=Seconds(rounding * steps.fixed), passes=rounding * steps.passes
    )
    return prepare_with(parameters, device, precision, scaled_steps)


def prepare_with(
    parameters: MatmulParameters,
    device: Device,
    precision: str,
    steps: QuantisedParameters | None = None,
) -> PreparedProduct:
    """Prepare `device` with `parameters` for products of `precision`; `steps` if quantised."""
    form, slots = FORMATS[precision], device.multiprocessors.value
    peak, rate = peak_rate(device, precision), powered_rate(parameters, device, precision)
    shapes = sorted({*_SHAPES, *((q, p) for p, q in _SHAPES)})
    half, overhead = parameters.tile_half, parameters.split_overhead
    tile_overhead, share = parameters.tile_overhead, parameters.memory_efficiency
    if steps is not None:
        overhead, tile_overhead = steps.split_overhead, steps.tile_overhead
        share, rate = share * steps.memory, rate * steps.gain
    passes = _SUM * parameters.reduction_passes
    bandwidth = device.memory_bandwidth.value

    def tile(rows: float, columns: float, cuts: float) -> Tile:
        flop_time = max(
            (1.0 + half / rows + half / columns) / rate, 1.0 / (parameters.ceiling * peak)
        )
        multiply = 2.0 * rows * columns * slots * flop_time
        load = (rows * form.inputs + columns * form.weights) / parameters.load_bandwidth
        cut = cuts > 1.0
        return Tile(
            rows=rows,
            columns=columns,
            cuts=cuts,
            seconds_per_k=overlapped_time(multiply, load),
            cut_overhead=overhead if cut else 0.0,
            cut_passes=cuts * passes / bandwidth if cut else 0.0,
        )

    return PreparedProduct(
        parameters=parameters,
        slots=slots,
        drop=clock_drop(parameters, device),
        peak=peak,
        bandwidth=bandwidth,
        memory_efficiency=share,
        tile_overhead=tile_overhead,
        fixed=steps.fixed if steps else 0.0,
        passes=_INPUT * steps.passes / bandwidth if steps else 0.0,
        wait=steps.wait if steps else 0.0,
        format=form,
        tiles=Tiles([tile(*shape, cuts) for shape, cuts in product(shapes, _SPLITS)]),
    )


def product_time(
    prepared: PreparedProduct,
    m: Number,
    n: Number,
    k: Number,
    batch: Number = 1,
    *,
    sustained: bool = False,
) -> Real:
    """Evaluate the formula: shape of the broadcast sizes."""
    fitted = prepared.parameters
    m, n, k, batch = map(real, (m, n, k, batch))
    form = prepared.format
    moved = form.inputs * m * k + form.weights * k * n + _OUTPUT * m * n
    traffic = batch * moved / prepared.bandwidth
    stream = stream_seconds(traffic / prepared.memory_efficiency, fitted.ramp)
    waits = fitted.floor + prepared.wait * ceil(k / _STEP)
    tiled_time = waits + _tiled_time(prepared, (m, n, k, batch), stream, sustained=sustained)
    vector_time = where(smaller(m, n) > 1.0, inf, fitted.vector_floor + stream)
    bound = larger(2.0 * m * n * k * batch / prepared.peak, traffic)
    preparation = prepared.fixed + prepared.passes * batch * m * k
    return preparation + larger(smaller(tiled_time, vector_time), bound)


def _tiled_time(
    prepared: PreparedProduct,
    sizes: tuple[Real, Real, Real, Real],
    stream: Real,
    *,
    sustained: bool,
) -> Real:
    """Time a product in the tile and the cuts that are the fastest."""

    def timed(compute: Real, sums: Real) -> Real:
        return (
            overlapped_time(slowed_time(compute, prepared.drop, sustained=sustained), stream) + sums
        )

    if is_array(stream) and stream.size < _LOOP_SIZES:
        m, n, k, batch, stream = (np.asarray(size)[..., None] for size in (*sizes, stream))
        tile_times = _turns(prepared, prepared.tiles.together, (m, n, k, batch))
        return cast(Real, np.min(timed(*tile_times), axis=-1))
    best: Real = inf
    for tile in prepared.tiles.each:
        compute, sums = _turns(prepared, tile, sizes)
        if any_true(larger(compute, stream) + sums < best):  # clock and overlap make it longer
            best = smaller(best, timed(compute, sums))
    return best


def _turns(
    prepared: PreparedProduct, tile: Tile, sizes: tuple[Real, Real, Real, Real]
) -> tuple[Real, Real]:
    """Time all turns of a tile at full clock, and adding up its cuts."""
    m, n, k, batch = sizes
    tiles = ceil(m / tile.rows) * ceil(n / tile.columns) * (batch * tile.cuts)
    inner = ceil(k / (tile.cuts * _STEP)) * _STEP
    turn = inner * tile.seconds_per_k + prepared.tile_overhead
    turns = rounds(tiles, prepared.slots, prepared.parameters.softness)
    return turns * turn, tile.cut_overhead + tile.cut_passes * (batch * m * n)


def matrix_rate(parameters: MatmulParameters, device: Device, precision: str) -> FlopPerSecond:
    """FLOP/s of large products of `precision`, power and peak permitting."""
    ceiling = parameters.ceiling * peak_rate(device, precision)
    return FlopPerSecond(min(powered_rate(parameters, device, precision), ceiling))


def powered_rate(parameters: MatmulParameters, device: Device, precision: str) -> float:
    """FLOP/s of an endless tile at the clock that the power limit allows."""
    rate = clocked_rate(parameters, device) / max(1.0, _shortage(parameters, device))
    multiplied = FORMATS[precision].multiplied
    if multiplied in ("", *_PLAIN):
        return rate
    gain = peak_rate(device, multiplied) / peak_rate(device, device.half)
    return float(rate * gain * getattr(parameters, multiplied))


def clocked_rate(parameters: MatmulParameters, device: Device) -> float:
    """FLOP/s of an endless 16-bit tile at the boost clock."""
    cycles = device.multiprocessors.value * device.clock.value
    return parameters.efficiency * parameters.flop_per_cycle * cycles


def peak_rate(device: Device, precision: str) -> FlopPerSecond:
    """FLOP/s of the data sheet, or an error that says what the device has."""
    if precision not in FORMATS:
        raise unknown("precision", precision, FORMATS)
    multiplied = FORMATS[precision].multiplied or device.half
    peak = device.peak(multiplied)
    if peak is None:
        available = ", ".join(name for name, _ in device.peaks)
        raise InputError(f"{device.name} has no tensor cores for {precision!r}: it has {available}")
    return FlopPerSecond(peak.value)


def _shortage(fitted: MatmulParameters, device: Device) -> float:
    """How far the rate outgrows the power limit, compared with the GPU of the fit."""
    wanted_rate: float = min(
        clocked_rate(fitted, device), fitted.ceiling * peak_rate(device, device.half)
    )
    power = (device.power.value / fitted.reference_power) ** fitted.power_exponent
    return float(wanted_rate / fitted.reference_rate / power)


def clock_drop(fitted: MatmulParameters, device: Device) -> float:
    """How the clock sinks under load; see `common.slowed`."""
    span = log1p(SETTLED / SETTLING)
    settled_ratio = (1.0 + span * fitted.sustained_drop) * min(1.0, _shortage(fitted, device))
    return max(0.0, settled_ratio - 1.0) / span
