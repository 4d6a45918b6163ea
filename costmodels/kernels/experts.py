r"""A layer of experts on one rank: what a router chose is sorted, multiplied, activated and summed.

.. math::
    t = fixed + spread + product_{up} + product_{down} + \sum passes

Each product is of groups of rows, one for every expert that is touched: its tiles in rounds over
multiprocessors, or the pace of memory, which brings the weights of touched experts once,

.. math::
    product = \mathrm{overlapped}(\mathrm{rounds}(\sum_e \lceil rows_e/p \rceil \lceil n/q \rceil /
              SMs)\, turn,\ (touched\, w n k + rows (e k + 2 n)) / (share\, bandwidth))

with the turn of a tile p x q of `costmodels.kernels.matmul`, and the best of its tiles, or the one
that an engine takes untuned: of few rows while there is an expert for every token, of many rows
beyond. Passes are over memory, in 16 bits: over the rows of this rank's experts, and over those of
all experts that stand on this rank, as engines sort, activate and sum them there: of every token,
or of those that an exchange brought.

References
----------
Our own; fitted by `validate.fit.engine_kernels`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodels.basis import Basis
from costmodels.expert_routing import Routing
from costmodels.kernels.common import Number, overlapped_time, rounds, scalar_or_array, slowed_time
from costmodels.kernels.expert_loads import HEIGHTS, ExpertLoad, load
from costmodels.kernels.matmul import PreparedProduct, matmul_basis, peak_rate
from costmodels.kernels.matmul import prepare_with as prepare_product
from costmodels.kernels.parameters import ExpertsParameters, QuantisedParameters
from costmodels.kernels.tables import Calibration, engine_record, matmul_record, record
from topology.base import Seconds, UncalibratedError
from topology.base.values import dataclass
from topology.catalogue import Device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Real = NDArray[np.float64]

_MIXED_PRODUCTS: Final = (100, 103)  # compute capabilities that multiply mxfp4 by mxfp8
_MEASURED_AS: Final = {"fp16": "bf16"}  # as which a precision was measured
_STEP: Final = 64.0  # elements of a row that one step of the inner loop takes
_TILE_WIDTH: Final = 64.0  # columns of a tile whose rows are given
_BYTES: Final = 2.0  # of an element that passes are over, and of a result


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernels:
    """What prices layers of experts on a device, apart from their sizes."""

    fitted: ExpertsParameters
    product: PreparedProduct


def experts_time(  # noqa: PLR0913  # tokens, hidden, intermediate are one shape
    tokens: Number,
    hidden: Number,
    intermediate: Number,
    routing: Routing,
    device: Device,
    *,
    ep: int = 1,
    precision: str = "bf16",
    gated: bool = True,
    sustained: bool = False,
    engine: str = "",
    calibration: Calibration = None,
) -> Any:  # noqa: ANN401  # float in, float out; arrays in, array out
    """Time one rank's layer of experts, from the router's scores to the sum over experts.

    tokens : of all ranks that share the experts. intermediate : of this rank's share of an expert.
    ep : groups of ranks that have experts of their own; the busiest is waited for.
    gated : whether a gate of that size goes along.
    precision, sustained, engine, calibration : as of `matmul_time`.

    A single token touches 8 of 128 experts, 64 tokens all of them.

    >>> from topology.catalogue import all_devices
    >>> layer = (4096, 1536, Routing(experts=128, top_k=8), all_devices()["h100-sxm"])
    >>> experts_time(64, *layer) > 5 * experts_time(1, *layer)
    True
    """
    up, down = experts_parts(
        tokens, hidden, intermediate, routing, device, ep=ep, precision=precision, gated=gated,
        sustained=sustained, engine=engine, calibration=calibration,
    )  # fmt: skip
    return scalar_or_array(up + down)


def experts_parts(  # noqa: PLR0913  # as `experts_time`
    tokens: Number,
    hidden: Number,
    intermediate: Number,
    routing: Routing,
    device: Device,
    *,
    ep: int = 1,
    precision: str = "bf16",
    gated: bool = True,
    sustained: bool = False,
    engine: str = "",
    calibration: Calibration = None,
    standing: Number = 1.0,
) -> tuple[Real, Real]:
    """Time the product up and the one down, each with half of what is done around the two.

    standing : share of all rows, a token's for each of its experts, that stand on this rank.
    """
    kernels = prepare(device, precision, engine, calibration)
    sizes = (np.asarray(size, float) for size in (tokens, hidden, intermediate))
    tokens, hidden, intermediate = np.broadcast_arrays(*sizes)
    loads = load(tokens, routing, ep)
    up = product_time(kernels, loads, (1 + gated) * intermediate, hidden, sustained=sustained)
    down = product_time(kernels, loads, hidden, intermediate, sustained=sustained)
    rows, sides = tokens * routing.top_k * standing, (hidden, intermediate)
    half_extras = around_time(kernels, loads.rows, rows, sides, spread=ep > 1) / 2.0
    return up + half_extras, down + half_extras


def served_as(precision: str, device: Device) -> str:
    """Name the kernels that engines take for a model whose experts are stored in `precision`.

    Mixtures of experts that are published in fp8 have a scale for each block of 128 x 128 weights.
    Inputs are rounded too where tensor cores take mxfp4: TensorRT-LLM, SGLang's default, and vLLM's
    flashinfer kernels do.
    """
    if precision == "mxfp4" and device.capability in _MIXED_PRODUCTS:
        return "mxfp4_mxfp8"
    return "fp8_block" if precision == "fp8" and _has_record(device, "fp8_block") else precision


def _has_record(device: Device, name: str) -> bool:
    try:
        record(ExpertsParameters, device, f"{name}-")
    except UncalibratedError:
        return False
    return True


@cache
def prepare(
    device: Device, precision: str, engine: str = "", calibration: Calibration = None
) -> ExpertKernels:
    """Prepare `device` for experts of `precision`, or say what it has."""
    peak_rate(device, precision)  # or an error that says what the device has
    name = _MEASURED_AS.get(precision, precision)
    fitted = engine_record(ExpertsParameters, device, name, engine)
    return prepare_with(fitted, device, precision, calibration)


def prepare_with(
    fitted: ExpertsParameters, device: Device, precision: str, calibration: Calibration = None
) -> ExpertKernels:
    """Prepare `device` with the parameters `fitted` for experts of `precision`."""
    steps = QuantisedParameters(
        provenance=fitted.provenance,
        gain=fitted.gain,
        memory=fitted.memory,
        tile_overhead=fitted.tile_overhead,
        split_overhead=Seconds(0.0),
        fixed=Seconds(0.0),
        passes=0.0,
    )
    product = prepare_product(matmul_record(device, calibration), device, precision, steps)
    return ExpertKernels(fitted=fitted, product=product)


def product_time(
    made: ExpertKernels,
    loads: ExpertLoad,
    columns: Number,
    inner: Number,
    *,
    sustained: bool = False,
) -> Real:
    """Time one product of groups: `columns` of the weights of each expert, over `inner`."""
    product = made.product
    tiles = np.array([tile for tile in product.tiles.each if tile.cuts == 1.0])
    rows, width, _, seconds_per_k, *_ = tiles.T
    n, k = np.asarray(columns, float)[..., None], np.asarray(inner, float)[..., None]
    column_tiles = np.ceil(n / width)
    grid = loads.tiles[..., np.searchsorted(HEIGHTS, rows)] * column_tiles
    turn = np.ceil(k / _STEP) * _STEP * seconds_per_k + product.tile_overhead
    turns = rounds(grid, product.slots, product.parameters.softness)
    compute = slowed_time(turns * turn, product.drop, sustained=sustained)
    if made.fitted.blocks:
        low_block, high_block = made.fitted.blocks
        height = np.where(loads.crowded, high_block, low_block)[..., None]
        matching_tiles = (rows == height) & (width == _TILE_WIDTH)
        compute = np.where(matching_tiles, compute, np.inf)
    form, k, n = product.format, k[..., 0], n[..., 0]
    moved = loads.touched * form.weights * n * k + loads.rows * (form.inputs * k + _BYTES * n)
    traffic = moved / product.bandwidth
    stream = (traffic / product.memory_efficiency)[..., None]
    best: Real = np.min(overlapped_time(compute, stream), axis=-1)
    bound = np.maximum(2.0 * loads.rows * n * k / product.peak, traffic)
    time: Real = np.maximum(best, bound)
    return time


def around_time(
    made: ExpertKernels,
    local: Number,
    rows: Number,
    sizes: tuple[Number, Number],
    *,
    spread: bool | NDArray[np.bool_] = False,
) -> Real:
    """Time what is done around both products.

    local, rows : of this rank's experts, and of all that stand here. sizes : hidden, and
    intermediate of this rank. spread : whether other ranks hold experts too.
    """
    fitted, (hidden, inner) = made.fitted, sizes
    moved_elements = fitted.local_passes * np.asarray(local) * hidden
    moved_elements = moved_elements + np.asarray(rows) * (
        fitted.passes * hidden + fitted.inner_passes * inner
    )
    fixed = fitted.fixed + np.where(spread, fitted.spread, 0.0)
    time: Real = fixed + _BYTES * moved_elements / made.product.bandwidth
    return time


def experts_basis(
    device: Device,
    precision: str = "bf16",
    calibration: Calibration = None,
    engine: str = "",
    **sizes: Number,
) -> Basis:
    """How well `experts_time` of `sizes` (tokens, hidden, intermediate, experts) is known."""
    kernels = prepare(device, precision, engine, calibration)
    return max(
        matmul_basis(device, device.half, calibration),
        kernels.fitted.provenance.basis(device.name, sizes),
    )
