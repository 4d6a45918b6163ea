"""Fit the kernel models to measured kernels: matrix products, memory traffic, attention.

Of a machine, a kernel counts under load, as a program runs it; what it takes on a rested GPU says
how far the clock sinks, where the kernel is long enough for that. Tables that others published,
from which the shipped records come, are of rested GPUs, and some of an engine around its kernel.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodels.kernels import attention, matmul
from costmodels.kernels.common import Shape
from costmodels.kernels.parameters import (
    AttentionParameters,
    EngineParameters,
    MatmulParameters,
    Parameters,
    PointwiseParameters,
)
from costmodels.kernels.pointwise import stream_time
from costmodels.kernels.tables import (
    KernelCalibration,
    attention_record,
    matmul_record,
    pointwise_record,
)
from costmodels.profile import Fit
from topology.base import FlopPerSecond, Seconds, UncalibratedError
from topology.base.rows import gathered
from topology.base.values import dataclass
from topology.catalogue import Device
from validate.accuracy.kernels import KernelFigure
from validate.fit.least_squares import MIN_ROWS, Judged, Problem, Values, Vector, judge, minimise
from validate.fit.records import SHARES, Free, Ratio, fit_record, with_provenance
from validate.fit.rows import Row

MATMUL_FREE: Final = (
    "efficiency", "tile_half", "floor", "vector_floor", "tile_overhead", "split_overhead",
    "reduction_passes", "load_bandwidth", "memory_efficiency", "softness", "sustained_drop",
)  # fmt: skip
ATTENTION_FREE: Final = ("tile_overhead", "softness", "tail", "sustained_drop")
ENGINE_FREE: Final = ("fixed", "passes", "causal_fixed", "causal_passes")
POINTWISE_FREE: Final = ("floor", "ramp", "memory_efficiency")
RAGGED_SHARES: Final = {"cudnn": 0.1}
"""Where the share starts that kernels lose on keys that do not fill their last block, of those that
lose any: FlashAttention-2 loses 1 %, which is nothing, on the same GPUs."""
RESTED_LIMIT: Final = 1e-3  # s: shorter kernels feel no power limit, rested or not
STREAMS: Final = ("copy", "add")  # reading and writing, as element-wise work does
MAX_DECODE_QUERIES: Final = (
    64  # fewer queries that share keys are decoding, which has a model of its own
)
SIZES: Final = ("batch", "m", "n", "k", "heads", "kv_heads", "queries", "keys", "head_dim")

Fits = tuple[tuple[str, Fit], ...]
"""How far to trust each table, by its name in a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFit:
    """A fitted implementation, and the engine around it where the rows are an engine's."""

    parameters: AttentionParameters
    engine: EngineParameters | None
    fit: Fit


def kernel_of(row: Row, device: Device) -> KernelFigure:
    """Say what a row of a kernel measured, by the implementation that its mode names."""
    mode, _, implementation = row.mode.partition(" ")
    sizes: dict[str, Any] = {n: row.number(n) for n in SIZES if n in row.sizes}
    return KernelFigure(
        device=device,
        operation=row.family,  # type: ignore[arg-type]  # rows of other families are no kernels
        seconds=Seconds(row.seconds),
        kernel=implementation or "auto",
        precision=str(row.sizes.get("precision", "bf16")),
        causal=bool(row.sizes.get("causal", 0)),
        bytes=float(row.sizes.get("bytes", 0)),
        rounding=0.0,
        sustained=mode.startswith("sustained"),
        source=row.key,
        **sizes,
    )


def fit_kernels(
    rows: Sequence[Row], device: Device, source: str, identity: str
) -> tuple[KernelCalibration, Fits]:
    """Fit everything that the rows say of one GPU's kernels."""
    rows = [row for row in rows if _is_fitted_row(row)]
    calibration = KernelCalibration(identity=f"{identity} without kernels")
    fits: list[tuple[str, Fit]] = []

    products = [kernel_of(row, device) for row in rows if row.family == "matmul"]
    bf16_products = [
        product for product in products if product.precision == "bf16" and _is_uncached(product)
    ]
    if len(bf16_products) >= MIN_ROWS:
        matmul, fit = fit_matmul(bf16_products, matmul_record(device, None))
        matmul = _with_machine(_with_fp8_gain(matmul, products), device, source)
        calibration = replace(calibration, identity=f"{identity} with products", matmul=matmul)
        fits.append(("matmul", fit))

    streams = [
        kernel_of(row, device)
        for row in rows
        if row.family == "pointwise" and row.sizes["how"] in STREAMS
    ]
    if len(streams) >= MIN_ROWS:
        pointwise, fit = fit_pointwise(streams, pointwise_record(device, None))
        pointwise = _with_machine(pointwise, device, source)
        calibration = replace(calibration, identity=f"{identity} with streams", pointwise=pointwise)
        fits.append(("pointwise", fit))

    implementations: dict[str, list[KernelFigure]] = {}
    for row in rows:
        if _is_prefill(row):
            implementations.setdefault(row.mode.partition(" ")[2], []).append(
                kernel_of(row, device)
            )
    records = []
    for name, calls in sorted(implementations.items()):
        start = _start_record(name, device)
        if start is not None and len(calls) >= MIN_ROWS:
            free = (*ATTENTION_FREE, *(("ragged",) if name in RAGGED_SHARES else ()))
            fitted = fit_attention(calls, start, calibration=calibration, free=free)
            records.append((name, _with_machine(fitted.parameters, device, source)))
            fits.append((f"attention.{name}", fitted.fit))
    return replace(calibration, identity=identity, attention=tuple(records)), tuple(fits)


def fit_matmul(
    figures: Sequence[KernelFigure], start: MatmulParameters, free: Sequence[str] = MATMUL_FREE
) -> tuple[MatmulParameters, Fit]:
    """Fit `free` parameters to 16-bit products on one device, which becomes the reference.

    Products faster than memory could deliver their operands had them in the cache already; they
    say nothing about a product in use, whose weights come from memory, and are left out.
    """
    figures = [figure for figure in figures if _is_uncached(figure)]
    fitted, judged = fit_record(figures, start, Free(names=free), _product_ratio)
    record = _with_reference(fitted, figures[0].device)
    return _with_fit_stats(record, judged, figures, ("m", "n", "k")), judged.fit


def _product_ratio(figures: Sequence[KernelFigure]) -> Ratio:
    device, precision = figures[0].device, figures[0].precision
    sizes = [_column(figures, name) for name in ("m", "n", "k", "batch")]
    measured, is_sustained = _column(figures, "seconds"), _column(figures, "sustained") > 0

    def ratio(record: MatmulParameters) -> Vector:
        prepared = matmul.prepare_with(_with_reference(record, device), device, precision)
        sustained_s = matmul.product_time(prepared, *sizes, sustained=True)
        short_s = matmul.product_time(prepared, *sizes)
        return np.asarray(np.where(is_sustained, sustained_s, short_s) / measured)

    return ratio


def _with_reference(record: MatmulParameters, device: Device) -> MatmulParameters:
    """Return parameters whose reference is the measured device."""
    rate = FlopPerSecond(matmul.clocked_rate(record, device))
    return replace(record, reference_rate=rate, reference_power=device.power.value)


def _with_fp8_gain(record: MatmulParameters, products: Sequence[KernelFigure]) -> MatmulParameters:
    """Fit what 8-bit inputs gain over 16-bit ones, where they were measured."""
    fp8_products = [product for product in products if product.precision == "fp8"]
    if len(fp8_products) < MIN_ROWS or fp8_products[0].device.peak("fp8") is None:
        return record
    problem = Free(names=("fp8",)).problem(record, _product_ratio(fp8_products))
    return replace(record, fp8=minimise(problem).values["fp8"])


def fit_pointwise(
    figures: Sequence[KernelFigure], start: PointwiseParameters
) -> tuple[PointwiseParameters, Fit]:
    """Fit what memory reaches to element-wise work on one device."""
    device = figures[0].device

    def ratio_of(subset: Sequence[KernelFigure]) -> Ratio:
        moved_bytes, measured = _column(subset, "bytes"), _column(subset, "seconds")
        return lambda record: stream_time(record, moved_bytes, device) / measured

    record, judged = fit_record(figures, start, Free(names=POINTWISE_FREE), ratio_of)
    return _with_fit_stats(record, judged, figures, ("bytes",)), judged.fit


def _is_prefill(row: Row) -> bool:
    """Whether a row is attention of many queries, without a log-sum-exp."""
    return (
        row.family == "attention"
        and not str(row.sizes["kernel"]).endswith("_lse")
        and row.number("queries") * row.number("heads") // row.number("kv_heads")
        > MAX_DECODE_QUERIES
    )


def _start_record(name: str, device: Device) -> AttentionParameters | None:
    """Find where the fit of an implementation starts; None of one that no model knows."""
    try:
        record = attention_record(name, device, None)
    except UncalibratedError:
        return None
    return replace(record, ragged=record.ragged or RAGGED_SHARES.get(name, record.ragged))


def fit_attention(
    figures: Sequence[KernelFigure],
    start: AttentionParameters,
    engine: EngineParameters | None = None,
    *,
    calibration: KernelCalibration | None = None,
    free: Sequence[str] = ATTENTION_FREE,
) -> AttentionFit:
    """Fit an implementation to rows of one device, and with it the `engine` around it.

    The cycles at a head size are fitted where rows of that size (padded as the implementation
    pads) are there; otherwise they keep their ratio to the nearest size that is. Those of numbers
    that the rows do not multiply, of 8 bits beside 16 or the reverse, keep their ratio too.

    calibration : products and element-wise work of the same machine; None for the shipped ones.
    """
    device, precision = figures[0].device, figures[0].precision
    series, other_series = ("cycles", "fp8_cycles")[:: -1 if precision == "fp8" else 1]
    start_values = {name: float(getattr(start, name)) for name in free}
    start_values |= {f"cycles@{i}": getattr(start, series)[i] for i in _knots(start, figures)}
    if start.odd_cycles and any(figure.head_dim % 16 for figure in figures):
        start_values["odd_cycles"] = start.odd_cycles
    if engine is not None:
        causal_values = {figure.causal for figure in figures}
        names = [name for name in ENGINE_FREE if name.startswith("causal") in causal_values]
        start_values |= {f"engine.{name}": getattr(engine, name) for name in names}

    def build(values: Values) -> tuple[AttentionParameters, EngineParameters | None]:
        scalars = {k: v for k, v in values.items() if "@" not in k and "." not in k}
        cycles = _rescaled(getattr(start, series), values)
        other_cycles = _scaled_along(getattr(start, other_series), getattr(start, series), cycles)
        fitted_engine = {k.removeprefix("engine."): v for k, v in values.items() if "." in k}
        return (
            replace(start, **{series: cycles, other_series: other_cycles}, **scalars),  # type: ignore[arg-type]
            engine and replace(engine, **fitted_engine),  # type: ignore[arg-type]  # names are fields
        )

    def problem(subset: Sequence[KernelFigure]) -> Problem:
        shapes = _shapes(subset)

        def ratio(values: Values) -> Vector:
            parameters, fitted_engine = build(values)
            kinds = device, precision, fitted_engine, calibration
            prepared = attention.prepare_with(parameters, *kinds)
            result = np.empty(len(subset))
            for shape, sustained, places, measured in shapes:
                seconds = attention.call_time(prepared, shape, sustained=sustained)
                result[places] = seconds / measured
            return result

        return Problem(first=start_values, ratio=ratio, shares=SHARES)

    judged = judge(figures, problem)
    parameters, fitted_engine = build(judged.values)
    sizes = ("queries", "keys", "head_dim", "heads")
    return AttentionFit(
        parameters=_with_fit_stats(parameters, judged, figures, sizes),
        engine=fitted_engine and _with_fit_stats(fitted_engine, judged, figures, ("keys",)),
        fit=judged.fit,
    )


def _knots(start: AttentionParameters, figures: Sequence[KernelFigure]) -> list[int]:
    """Head sizes of the table that the rows say something about."""
    sizes = {f.head_dim for f in figures if not (start.odd_cycles and f.head_dim % 16)}
    last_index = len(start.head_dims) - 1
    return sorted({min(int(np.searchsorted(start.head_dims, size)), last_index) for size in sizes})


def _rescaled(cycles: Sequence[float], values: Values) -> tuple[float, ...]:
    """Put fitted cycles in; head sizes that were not seen keep their ratio to the nearest."""
    fitted = {int(k.partition("@")[2]): value for k, value in values.items() if "@" in k}
    scale = {i: value / cycles[i] for i, value in fitted.items()}
    nearest = [min((abs(i - j), j) for j in scale)[1] for i in range(len(cycles))]
    return tuple(c * scale[j] for c, j in zip(cycles, nearest, strict=True))


def _scaled_along(
    other_cycles: Sequence[float], old_cycles: Sequence[float], new_cycles: Sequence[float]
) -> tuple[float, ...]:
    """Let cycles of other numbers, where there are some, go along with those that were fitted."""
    triples = zip(other_cycles, old_cycles, new_cycles, strict=False)
    return tuple(cycles * new / old for cycles, old, new in triples)


def _shapes(
    figures: Sequence[KernelFigure],
) -> list[tuple[Shape, bool, list[int], Vector]]:
    """Group rows that share what is no array: the mask, the window and the load."""
    keys = [(figure.causal, figure.window, figure.sustained) for figure in figures]
    groups = gathered((key, index) for index, key in enumerate(keys))
    names = ("heads", "kv_heads", "queries", "keys", "head_dim", "batch")
    shapes = []
    for (causal, window, sustained), indices in groups.items():
        group = [figures[index] for index in indices]
        sizes = (_column(group, name) for name in names)
        shape = Shape(*sizes, causal=causal, window=window)
        shapes.append((shape, sustained, indices, _column(group, "seconds")))
    return shapes


def _is_fitted_row(row: Row) -> bool:
    """Whether a row shapes a fit: under load, or rested where that makes a difference."""
    if row.error or "seconds" not in row.values:
        return False
    return row.mode.startswith("sustained") or row.seconds >= RESTED_LIMIT


def _is_uncached(product: KernelFigure) -> bool:
    """Whether memory could deliver the operands of a product in its time: none were cached."""
    m, n, k = product.m, product.n, product.k
    traffic = 2.0 * product.batch * (m * k + k * n + m * n)
    return product.seconds >= traffic / product.device.memory_bandwidth.value


def _column(figures: Sequence[KernelFigure], name: str) -> Vector:
    return np.array([getattr(figure, name) for figure in figures], float)


def _with_fit_stats(
    record: Parameters, judged: Judged, figures: Sequence[KernelFigure], sizes: Sequence[str]
) -> Parameters:
    """Say what a record was fitted to, and how well."""
    columns = {name: _column(figures, name) for name in sizes}
    return with_provenance(record, judged, columns, hardware=(figures[0].device.name,))


def _with_machine(record: Parameters, device: Device, source: str) -> Parameters:
    """Say that a record stands for the machine that was measured."""
    capability = "{}.{}".format(*device.compute_capability)
    provenance = replace(
        record.provenance, kind="measured", source=source, compute_capabilities=(capability,)
    )
    return replace(record, provenance=provenance)
