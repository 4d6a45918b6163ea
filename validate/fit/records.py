"""Fit the parameters of the kernel models to measured kernels. Measurements in, records out.

Each fit minimises the squares of log(predicted / measured), flattened for outliers beyond 5 %
(soft L1): what counts is the relative error, and a library's odd choice for one shape must not
bend the rest. Parameters are fitted as logarithms, so they stay positive, and are held a little
to where they start, so that what the measurements do not say keeps a plausible value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # no stubs

from costmodels.kernels import attention, matmul
from costmodels.kernels.parameters import (
    UNITS,
    AttentionParameters,
    EngineParameters,
    MatmulParameters,
    Parameters,
    Provenance,
)
from topology.base import FlopPerSecond, parse
from validate.accuracy.kernels import Measurement, summary

Vector = NDArray[np.float64]

MATMUL_FREE: Final = (
    "efficiency", "tile_half", "floor", "vector_floor", "tile_overhead", "split_overhead",
    "reduction_passes", "load_bandwidth", "memory_efficiency", "softness", "sustained_drop",
)  # fmt: skip
ATTENTION_FREE: Final = ("tile_overhead", "softness", "tail", "sustained_drop")
ENGINE_FREE: Final = ("fixed", "passes", "causal_fixed", "causal_passes")

_OUTLIER: Final = 0.05
_HOLD: Final = 0.1
_SHARES: Final = frozenset({"softness", "memory_efficiency"})  # between 0 and 1
_TOP: Final = 0.999
_STEPS: Final = (0.03, 0.01, 0.03, 0.003)
_LEAST: Final = 2.0**-60  # stands for 0 where a logarithm is taken
_WRITTEN: Final = {
    "1": (1.0, ""),
    "s": (parse("1 us", "s"), "us"),
    "B/s": (parse("1 GB/s", "B/s"), "GB/s"),
    "FLOP/s": (parse("1 TFLOP/s", "FLOP/s"), "TFLOP/s"),
    "W": (1.0, "W"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFit:
    """A fitted implementation, and the engine around it where the rows are an engine's."""

    parameters: AttentionParameters
    engine: EngineParameters | None


def fit_matmul(
    rows: Sequence[Measurement], start: MatmulParameters, free: Sequence[str] = MATMUL_FREE
) -> MatmulParameters:
    """Fit `free` parameters to 16-bit products on one device, which becomes the reference.

    Products faster than memory could deliver their operands had them in the cache already; they
    say nothing about a product in use, whose weights come from memory, and are left out.
    """
    device = rows[0].device
    sizes = [_column(rows, name) for name in ("m", "n", "k", "batch")]
    measured = _column(rows, "seconds")
    cold = measured >= _traffic(*sizes) / device.memory_bandwidth.value

    def build(values: Mapping[str, float]) -> MatmulParameters:
        known = replace(start, **values)  # type: ignore[arg-type]  # names are fields
        rate = matmul.clocked_rate(known, device)
        power = device.power.value
        return replace(known, reference_rate=FlopPerSecond(rate), reference_power=power)

    def ratio(values: Mapping[str, float]) -> Vector:
        prepared = matmul.machine_of(build(values), device, "bf16")
        return matmul.product_time(prepared, *sizes) / measured

    values = _minimise({name: getattr(start, name) for name in free}, lambda v: ratio(v)[cold])
    seen = _provenance(start.provenance, rows, ("m", "n", "k"), ratio(values) - 1.0)
    return replace(build(values), provenance=seen)


def fit_attention(
    rows: Sequence[Measurement],
    start: AttentionParameters,
    engine: EngineParameters | None = None,
    free: Sequence[str] = ATTENTION_FREE,
) -> AttentionFit:
    """Fit an implementation to rows of one device, and with it the `engine` around it.

    The cycles at a head size are fitted where rows of that size (padded as the implementation
    pads) are there; otherwise they keep their ratio to the nearest size that is.
    """
    device, precision = rows[0].device, rows[0].precision
    groups = [(shape, _column(part, "seconds")) for shape, part in _shapes(rows)]
    series = "fp8_cycles" if precision == "fp8" else "cycles"
    first = {name: float(getattr(start, name)) for name in free}
    first |= {f"cycles@{i}": getattr(start, series)[i] for i in _seen_knots(start, rows)}
    if start.odd_cycles and any(row.head_dim % 16 for row in rows):
        first["odd_cycles"] = start.odd_cycles
    if engine is not None:
        first |= {f"engine.{name}": getattr(engine, name) for name in _seen_engine(rows)}

    def build(values: Mapping[str, float]) -> AttentionFit:
        plain = {k: v for k, v in values.items() if "@" not in k and "." not in k}
        cycles = _scaled(getattr(start, series), values)
        around = {k.removeprefix("engine."): v for k, v in values.items() if "." in k}
        return AttentionFit(
            parameters=replace(start, **{series: cycles}, **plain),  # type: ignore[arg-type]
            engine=engine and replace(engine, **around),  # type: ignore[arg-type]
        )

    def ratio(values: Mapping[str, float]) -> Vector:
        fit = build(values)
        prepared = attention.machine_of(fit.parameters, device, precision, fit.engine)
        parts = [attention.call_time(prepared, shape) / t for shape, t in groups]
        return np.concatenate(parts)

    values = _minimise(first, ratio)
    result, errors = build(values), ratio(values) - 1.0
    seen = _provenance(start.provenance, rows, ("queries", "keys", "head_dim", "heads"), errors)
    around = result.engine and replace(
        result.engine, provenance=_provenance(result.engine.provenance, rows, ("keys",), errors)
    )
    return AttentionFit(parameters=replace(result.parameters, provenance=seen), engine=around)


def to_toml(name: str, record: Parameters) -> str:
    """Write a record as a table that `costmodels.kernels.parameters.load` reads.

    Numbers keep four digits, more would pretend; values that are the default are left out.
    """
    lines = [f"[{name}]", *_provenance_lines(record.provenance)]
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name != "provenance" and value != field.default:
            lines.append(f"{field.name} = {_written(field.name, value)}")
    return "\n".join(lines) + "\n"


def _minimise(
    first: Mapping[str, float], ratio: Callable[[Mapping[str, float]], Vector]
) -> dict[str, float]:
    names, start = list(first), np.array([_inward(k, v) for k, v in first.items()])

    def residuals(point: Vector) -> Vector:
        values = {name: _outward(name, float(x)) for name, x in zip(names, point, strict=True)}
        return np.concatenate([np.log(ratio(values)), _HOLD * (point - start)])

    point = start
    for step in _STEPS:  # whole tiles make steps that a small difference falls into
        point = least_squares(
            residuals, point, loss="soft_l1", f_scale=_OUTLIER, diff_step=step, max_nfev=60
        ).x
    return {name: _outward(name, float(x)) for name, x in zip(names, point, strict=True)}


def _inward(name: str, value: float) -> float:
    value = max(value, _LEAST)
    if name in _SHARES:
        share = min(value, _TOP)
        return float(np.log(share / (1.0 - share)))
    return float(np.log(value))


def _outward(name: str, point: float) -> float:
    value = float(np.exp(np.clip(point, -60.0, 60.0)))
    return value / (1.0 + value) if name in _SHARES else value


def _scaled(series: Sequence[float], values: Mapping[str, float]) -> tuple[float, ...]:
    known = [i for i in range(len(series)) if f"cycles@{i}" in values]
    scale = {i: values[f"cycles@{i}"] / series[i] for i in known}
    nearest = [min((abs(i - j), j) for j in known)[1] for i in range(len(series))]
    return tuple(cycles * scale[j] for cycles, j in zip(series, nearest, strict=True))


def _seen_knots(start: AttentionParameters, rows: Sequence[Measurement]) -> list[int]:
    sizes = {row.head_dim for row in rows if not (start.odd_cycles and row.head_dim % 16)}
    knots: set[int] = set()
    for size in sizes:
        knots.add(min(int(np.searchsorted(start.head_dims, size)), len(start.head_dims) - 1))
    return sorted(knots)


def _seen_engine(rows: Sequence[Measurement]) -> list[str]:
    masked = {row.causal for row in rows}
    return [name for name in ENGINE_FREE if name.startswith("causal") in masked]


def _shapes(rows: Sequence[Measurement]) -> list[tuple[attention.Shape, list[Measurement]]]:
    kinds = dict.fromkeys((row.causal, row.window) for row in rows)
    parts = [[r for r in rows if (r.causal, r.window) == kind] for kind in kinds]
    return [(_shape(part), part) for part in parts]


def _shape(rows: Sequence[Measurement]) -> attention.Shape:
    names = ("heads", "kv_heads", "queries", "keys", "head_dim", "batch")
    sizes = {name: _column(rows, name) for name in names}
    return attention.Shape(**sizes, causal=rows[0].causal, window=rows[0].window)


def _provenance(
    start: Provenance, rows: Sequence[Measurement], sizes: Sequence[str], errors: Vector
) -> Provenance:
    found = summary((), errors)
    columns = {name: _column(rows, name) for name in sizes}
    return replace(
        start,
        hardware=(rows[0].device.name,),
        rows=len(errors),
        median_error=found.median,
        p90_error=found.p90,
        ranges=tuple((name, float(c.min()), float(c.max())) for name, c in columns.items()),
    )


def _column(rows: Sequence[Measurement], name: str) -> Vector:
    return np.array([getattr(row, name) for row in rows], float)


def _traffic(m: Vector, n: Vector, k: Vector, batch: Vector) -> Vector:
    return 2.0 * batch * (m * k + k * n + m * n)


def _provenance_lines(seen: Provenance) -> list[str]:
    lines = [
        f'kind = "{seen.kind}"',
        f'source = "{seen.source}"',
        f"hardware = [{_quoted(seen.hardware)}]",
        f"compute_capabilities = [{_quoted(seen.compute_capabilities)}]",
    ]
    if seen.rows:
        errors = f'median_error = "{seen.median_error:.3f}"', f'p90_error = "{seen.p90_error:.3f}"'
        lines += [f"rows = {seen.rows}", *errors]
    if seen.ranges:
        pairs = ", ".join(f'{key} = "{a:.0f}..{b:.0f}"' for key, a, b in seen.ranges)
        lines.append(f"ranges = {{ {pairs} }}")
    return lines


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _written(name: str, value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{_quoted([f'{item:.4g}' for item in value])}]"
    scale, unit = _WRITTEN[UNITS.get(name, "1")]
    return '"' + f"{value / scale:.4g} {unit}".strip() + '"'
