"""Fit the kernels of one GPU: matrix products, memory traffic, attention, in this order.

A kernel counts under load, as a program runs it; what it takes on a rested GPU says how far the
clock sinks, where the kernel is long enough for that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.kernels import attention, matmul
from costmodels.kernels.calibration import (
    KernelCalibration,
    attention_record,
    matmul_record,
    pointwise_record,
)
from costmodels.kernels.parameters import (
    AttentionParameters,
    MatmulParameters,
    Parameters,
    PointwiseParameters,
)
from costmodels.kernels.pointwise import stream_time
from costmodels.profiles.profile import Fit
from topology.base import FlopPerSecond, UncalibratedError
from topology.catalogue import Device
from validate.fit.judging import LEAST, Judged, judge
from validate.fit.records import ATTENTION_FREE, MATMUL_FREE
from validate.fit.robust import Problem, Values, Vector
from validate.fit.rows import Row

SHARES: Final = frozenset({"softness", "memory_efficiency", "ragged"})
RAGGED: Final = {"cudnn": 0.1}
"""Where the share starts that kernels lose on keys that do not fill their last block, of those that
lose any: FlashAttention-2 loses 1 %, which is nothing, on the same GPUs."""
RESTED: Final = 1e-3  # s: shorter kernels feel no power limit, rested or not
POINTWISE_FREE: Final = ("floor", "ramp", "memory_efficiency")
STREAMS: Final = ("copy", "add")  # reading and writing, as row-wise work does
PACKED: Final = 64  # fewer queries that share keys are decoding, which has a model of its own
Ratio = Callable[[Values], Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFits:
    """What was fitted, with how far to trust each table by its name in a profile."""

    calibration: KernelCalibration
    fits: tuple[tuple[str, Fit], ...]


def fit_kernels(rows: Sequence[Row], device: Device, source: str, identity: str) -> KernelFits:
    """Fit everything that the rows say of one GPU's kernels."""
    known = KernelCalibration(identity=f"{identity} without kernels")
    fits: list[tuple[str, Fit]] = []
    found = _fit_matmul(rows, device, source)
    if found is not None:
        known = replace(known, identity=f"{identity} with products", matmul=found[0])
        fits.append(("matmul", found[1]))
    streams = _fit_pointwise(rows, device, source)
    if streams is not None:
        known = replace(known, identity=f"{identity} with streams", pointwise=streams[0])
        fits.append(("pointwise", streams[1]))
    made = []
    for name in sorted({_implementation(row) for row in _attentions(rows)}):
        one = _fit_attention(name, rows, device, source, known)
        if one is not None:
            made.append((name, one[0]))
            fits.append((f"attention.{name}", one[1]))
    known = replace(known, identity=identity, attention=tuple(made))
    return KernelFits(calibration=known, fits=tuple(fits))


def _fit_matmul(
    rows: Sequence[Row], device: Device, source: str
) -> tuple[MatmulParameters, Fit] | None:
    start = matmul_record(device, None)
    chosen = [row for row in rows if row.family == "matmul" and _counts(row)]
    plain = [row for row in chosen if row.sizes["precision"] == "bf16" and _cold(row, device)]
    if len(plain) < LEAST:
        return None

    def problem(some: Sequence[Row]) -> Problem:
        first = {name: float(getattr(start, name)) for name in MATMUL_FREE}
        return Problem(
            first=first, ratio=_product_ratio(some, start, device, "bf16"), shares=SHARES
        )

    judged = judge(plain, problem)
    found = _powered(start, judged.minimum.values, device)
    found = _with_provenance(found, judged, plain, ("m", "n", "k"), device, source)
    return _eight_bit(found, chosen, device), judged.fit


def _product_ratio(
    rows: Sequence[Row], start: MatmulParameters, device: Device, precision: str
) -> Ratio:
    m, n, k, measured = (_column(rows, name) for name in ("m", "n", "k", "seconds"))
    busy = np.array([row.mode.startswith("sustained") for row in rows])

    def ratio(values: Values) -> Vector:
        prepared = matmul.machine_of(_powered(start, values, device), device, precision)
        long = matmul.product_time(prepared, m, n, k, sustained=True)
        short = matmul.product_time(prepared, m, n, k)
        return np.asarray(np.where(busy, long, short) / measured)

    return ratio


def _powered(start: MatmulParameters, values: Values, device: Device) -> MatmulParameters:
    """Return parameters with `values`, whose reference is the measured device."""
    known = replace(start, **values)  # type: ignore[arg-type]  # names are fields
    rate = FlopPerSecond(matmul.clocked_rate(known, device))
    return replace(known, reference_rate=rate, reference_power=device.power.value)


def _eight_bit(found: MatmulParameters, rows: Sequence[Row], device: Device) -> MatmulParameters:
    """Fit what 8-bit inputs gain over 16-bit ones, where they were measured."""
    mixed = [row for row in rows if row.sizes["precision"] == "fp8"]
    if len(mixed) < LEAST or device.peak("fp8") is None:
        return found
    ratio = _product_ratio(mixed, found, device, "fp8")
    judged = judge(mixed, lambda _: Problem(first={"fp8": found.fp8}, ratio=ratio))
    return replace(found, fp8=judged.minimum.values["fp8"])


def _fit_pointwise(
    rows: Sequence[Row], device: Device, source: str
) -> tuple[PointwiseParameters, Fit] | None:
    start = pointwise_record(device, None)
    chosen = [
        row
        for row in rows
        if row.family == "pointwise" and _counts(row) and row.sizes["how"] in STREAMS
    ]
    if len(chosen) < LEAST:
        return None

    def build(values: Values) -> PointwiseParameters:
        return replace(start, **values)  # type: ignore[arg-type]  # names are fields

    def problem(some: Sequence[Row]) -> Problem:
        moved, measured = _column(some, "bytes"), _column(some, "seconds")
        first = {name: float(getattr(start, name)) for name in POINTWISE_FREE}
        return Problem(
            first=first,
            ratio=lambda values: stream_time(build(values), moved, device) / measured,
            shares=SHARES,
        )

    judged = judge(chosen, problem)
    found = build(judged.minimum.values)
    return _with_provenance(found, judged, chosen, ("bytes",), device, source), judged.fit


def _attentions(rows: Sequence[Row]) -> list[Row]:
    """Prefill-like calls without a log-sum-exp, whose implementation is known."""
    return [
        row
        for row in rows
        if row.family == "attention"
        and _counts(row)
        and not str(row.sizes["kernel"]).endswith("_lse")
        and row.number("queries") * row.number("heads") // row.number("kv_heads") > PACKED
    ]


def _implementation(row: Row) -> str:
    return row.mode.partition(" ")[2]


def _fit_attention(
    name: str, rows: Sequence[Row], device: Device, source: str, known: KernelCalibration
) -> tuple[AttentionParameters, Fit] | None:
    chosen = [row for row in _attentions(rows) if _implementation(row) == name]
    try:
        start = attention_record(name, device, None)
    except UncalibratedError:
        return None
    if len(chosen) < LEAST:
        return None
    knots = _knots(start, chosen)
    first = {field: float(getattr(start, field)) for field in ATTENTION_FREE}
    if name in RAGGED:
        first["ragged"] = start.ragged or RAGGED[name]
    first |= {f"cycles@{i}": start.cycles[i] for i in knots}

    def problem(some: Sequence[Row]) -> Problem:
        groups = _shapes(some)

        def ratio(values: Values) -> Vector:
            parameters = _rescaled(start, values)
            prepared = attention.machine_of(parameters, device, "bf16", None, known)
            result = np.empty(len(some))
            for shape, busy, places, measured in groups:
                time = attention.call_time(prepared, shape, sustained=busy)
                result[places] = time / measured
            return result

        return Problem(first=first, ratio=ratio, shares=SHARES)

    judged = judge(chosen, problem)
    found = _rescaled(start, judged.minimum.values)
    sizes = ("queries", "keys", "head_dim", "heads")
    return _with_provenance(found, judged, chosen, sizes, device, source), judged.fit


def _knots(start: AttentionParameters, rows: Sequence[Row]) -> list[int]:
    """Head sizes of the table that the rows say something about."""
    sizes = {row.number("head_dim") for row in rows}
    last = len(start.head_dims) - 1
    return sorted({min(int(np.searchsorted(start.head_dims, size)), last) for size in sizes})


def _rescaled(start: AttentionParameters, values: Values) -> AttentionParameters:
    """Put fitted cycles in; head sizes that were not seen keep their ratio to the nearest."""
    scale = {
        int(name.partition("@")[2]): value / start.cycles[int(name.partition("@")[2])]
        for name, value in values.items()
        if "@" in name
    }
    nearest = [min((abs(i - j), j) for j in scale)[1] for i in range(len(start.cycles))]
    cycles = tuple(c * scale[j] for c, j in zip(start.cycles, nearest, strict=True))
    plain = {name: value for name, value in values.items() if "@" not in name}
    return replace(start, cycles=cycles, **plain)  # type: ignore[arg-type]  # names are fields


Group = tuple[attention.Shape, bool, list[int], Vector]


def _shapes(rows: Sequence[Row]) -> list[Group]:
    """Group rows that share what is no array: the mask, and the load."""
    groups: dict[tuple[bool, bool], list[int]] = {}
    for place, row in enumerate(rows):
        kind = bool(row.number("causal")), row.mode.startswith("sustained")
        groups.setdefault(kind, []).append(place)
    names = ("heads", "kv_heads", "queries", "keys", "head_dim", "batch")
    found = []
    for (causal, busy), places in groups.items():
        some = [rows[place] for place in places]
        sizes = {name: _column(some, name) for name in names}
        shape = attention.Shape(**sizes, causal=causal, window=0)
        found.append((shape, busy, places, _column(some, "seconds")))
    return found


def _counts(row: Row) -> bool:
    """Whether a row shapes a fit: under load, or rested where that makes a difference."""
    if row.error or "seconds" not in row.values:
        return False
    return row.mode.startswith("sustained") or row.seconds >= RESTED


def _cold(row: Row, device: Device) -> bool:
    """Leave out products faster than memory could deliver their operands: they were cached."""
    m, n, k = (row.number(name) for name in ("m", "n", "k"))
    return row.seconds >= 2.0 * (m * k + k * n + m * n) / device.memory_bandwidth.value


def _column(rows: Sequence[Row], name: str) -> Vector:
    if name == "seconds":
        return np.array([row.seconds for row in rows])
    return np.array([float(row.number(name)) for row in rows])


def _with_provenance(
    found: Parameters,
    judged: Judged,
    rows: Sequence[Row],
    sizes: Sequence[str],
    device: Device,
    source: str,
) -> Parameters:
    columns: Mapping[str, Vector] = {name: _column(rows, name) for name in sizes}
    seen = replace(
        found.provenance,
        kind="measured",
        source=source,
        hardware=(device.name,),
        compute_capabilities=("{}.{}".format(*device.compute_capability),),
        rows=len(rows),
        median_error=judged.median_error,
        p90_error=judged.p90_error,
        ranges=tuple((name, float(c.min()), float(c.max())) for name, c in columns.items()),
    )
    return replace(found, provenance=seen)
