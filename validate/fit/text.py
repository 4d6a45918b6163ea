"""A profile as TOML: what `costmodels.profile.load_profile` reads back."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Final

from costmodels.collectives import Times
from costmodels.collectives.curve import Curve
from costmodels.collectives.parameters import UNITS, Fitted
from costmodels.kernels.parameters import UNITS as KERNEL_UNITS
from costmodels.kernels.parameters import (
    AttentionParameters,
    EngineParameters,
    MatmulParameters,
    PointwiseParameters,
    Provenance,
)
from costmodels.kernels.tables import KernelCalibration
from costmodels.profile import FORMAT, Fit, Profile, RuntimeCalibration
from topology.base import MIB, Sourced, parse

Record = MatmulParameters | PointwiseParameters | AttentionParameters | EngineParameters

MICROSECONDS = 10**6
GIGA = 10**9
_WRITTEN: Final = {
    "1": (1.0, ""),
    "s": (parse("1 us", "s"), "us"),
    "B/s": (parse("1 GB/s", "B/s"), "GB/s"),
    "FLOP/s": (parse("1 TFLOP/s", "FLOP/s"), "TFLOP/s"),
    "W": (1.0, "W"),
}


def to_toml(profile: Profile) -> str:
    """Write a profile; numbers keep four digits, more would pretend."""
    fits = dict(profile.fits)
    sections = [
        _head(profile),
        *_section("machine", _texts(profile.machine)),
        *_section("software", _texts(profile.software)),
    ]
    for name, record in kernel_records(profile.kernels):
        sections += [record_to_toml(name, record), *_fit(name, fits.get(name))]
    for place, fitted in profile.curves.curves:
        name = f"curves.{place}"
        sections += [curve_to_toml(name, fitted), *_fit(name, fits.get(name))]
    for times in profile.curves.times:
        name = f"times.{times.place}"
        sections += [*_section(name, _times(times)), *_fit(name, fits.get(name))]
    sections += _section(
        "launch", _seconds({"host": profile.curves.host, "gap": profile.curves.gap})
    )
    for name, runtime in profile.runtimes:
        sections += _runtime(name, runtime)
    sections += _section("overlap", [f"{k} = {_entry(share)}" for k, share in profile.overlap])
    starts = {kind: start.value for kind, start in profile.overlap_start}
    sections += _section("overlap_start", _seconds(starts))
    if profile.communicator is not None:
        size = _mebibytes(profile.communicator.value)
        sections += _section("memory", [f'communicator = "{size}"'])
    return "\n".join(sections)


def _section(name: str, lines: Sequence[str]) -> list[str]:
    """Write a table; nothing where it would be empty."""
    return ["\n".join([f"[{name}]", *lines, ""])] if lines else []


def _head(profile: Profile) -> str:
    return "\n".join(
        [
            "# Fitted by `planner calibrate` on one machine; the form is in costmodels/profile.py.",
            "# A parameter without a standard error was not fitted: it is the shipped one.",
            f"format = {FORMAT}",
            f"hardware = {_quoted(profile.hardware)}",
            f"date = {_quoted(profile.date)}",
            'kind = "measured"',
            f"source = {_quoted(profile.source)}",
            "",
        ]
    )


def _texts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{key} = {_quoted(text)}" for key, text in pairs]


def _seconds(values: Mapping[str, float | None]) -> list[str]:
    return [f'{k} = "{_microseconds(value)}"' for k, value in values.items() if value is not None]


def kernel_records(kernels: KernelCalibration) -> Iterator[tuple[str, Record]]:
    """Yield the records of kernels, by their name in the file."""
    if kernels.matmul is not None:
        yield "matmul", kernels.matmul
    if kernels.pointwise is not None:
        yield "pointwise", kernels.pointwise
    for name, record in kernels.attention:
        yield f"attention.{name}", record


def record_to_toml(name: str, record: Record) -> str:
    """Write a record as a table that `costmodels.kernels.parameters.load` reads.

    Numbers keep four digits, more would pretend; values that are the default are left out.
    """
    lines = [f"[{name}]", *_provenance_lines(record.provenance)]
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name != "provenance" and value != field.default:
            lines.append(f"{field.name} = {_written(field.name, value)}")
    return "\n".join(lines) + "\n"


def _provenance_lines(provenance: Provenance) -> list[str]:
    lines = [
        f'kind = "{provenance.kind}"',
        f'source = "{provenance.source}"',
        f"hardware = [{_names(provenance.hardware)}]",
        f"compute_capabilities = [{_names(provenance.compute_capabilities)}]",
    ]
    if provenance.rows:
        lines += [
            f"rows = {provenance.rows}",
            f'median_error = "{provenance.median_error:.3f}"',
            f'p90_error = "{provenance.p90_error:.3f}"',
        ]
    if provenance.ranges:
        pairs = ", ".join(f'{key} = "{a:.0f}..{b:.0f}"' for key, a, b in provenance.ranges)
        lines.append(f"ranges = {{ {pairs} }}")
    return lines


def _names(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _written(name: str, value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{_names([f'{item:.4g}' for item in value])}]"
    scale, unit = _WRITTEN[KERNEL_UNITS.get(name, "1")]
    return '"' + f"{value / scale:.4g} {unit}".strip() + '"'


def curve_to_toml(name: str, fitted: Fitted) -> str:
    """Write a fitted curve as a table that `costmodels.collectives.parameters` reads."""
    defaults = asdict(Curve(launch=fitted.curve.launch, efficiency=fitted.curve.efficiency))
    lines = [f"[{name}]", f'kind = "{fitted.kind}"', f'source = "{fitted.source}"']
    for key, value in asdict(fitted.curve).items():
        if key in ("launch", "efficiency") or value != defaults[key]:
            lines.append(f'{key} = "{_quantity(value, UNITS.get(key, ""))}"')
    fewest, most = fitted.ranks
    lines += [
        f'ops = "{", ".join(fitted.ops)}"',
        f'smallest = "{fitted.smallest:.0f} B"',
        f'largest = "{fitted.largest:.0f} B"',
        f'ranks = "{fewest}..{most}"',
        f'median_error = "{fitted.median_error:.3f}"',
        f'worst_error = "{fitted.worst_error:.3f}"',
    ]
    return "\n".join(lines) + "\n"


def _quantity(value: float, unit: str) -> str:
    if unit == "s":
        return _microseconds(value)
    if unit == "B":
        return f"{value:.0f} B"
    if unit == "B/s":
        return f"{value / GIGA:.4g} GB/s"
    return f"{value:.4g}"


def _times(times: Times) -> list[str]:
    sizes = [f"{size:.0f} B" for size in times.sizes]
    return [
        f"kind = {_quoted(times.kind)}",
        f"source = {_quoted(times.source)}",
        f"ranks = {times.ranks}",
        f'bandwidth = "{times.bandwidth / GIGA:.6g} GB/s"',
        f"sizes = {_quoted(sizes)}",
        f"seconds = {_quoted([_microseconds(time) for time in times.seconds])}",
        f'median_error = "{times.median_error:.3f}"',
        f'worst_error = "{times.worst_error:.3f}"',
    ]


def _fit(name: str, fit: Fit | None) -> list[str]:
    if fit is None:
        return []
    lines = [f"rows = {fit.rows}", *_error("worst_error", fit.worst_error)]
    if fit.held_out_rows:
        lines += [f"held_out_rows = {fit.held_out_rows}", f"split = {_quoted(fit.split)}"]
        lines += _error("held_out_median_error", fit.held_out_median_error)
        lines += _error("held_out_p90_error", fit.held_out_p90_error)
        lines += _error("held_out_worst_error", fit.held_out_worst_error)
    errors = [f'{json.dumps(key)} = "{error:.2g}"' for key, error in fit.standard_errors]
    return _section(f"{name}.fit", lines) + _section(f"{name}.fit.standard_errors", errors)


def _error(name: str, value: float) -> list[str]:
    return [] if math.isnan(value) else [f'{name} = "{value:.4f}"']


def _runtime(name: str, runtime: RuntimeCalibration) -> list[str]:
    numbers = {"host_kernel": runtime.host_kernel, "host_collective": runtime.host_collective}
    lines = _seconds({key: number.value for key, number in numbers.items() if number})
    if runtime.memory is not None:
        lines.append(f'memory = "{_mebibytes(runtime.memory.value)}"')
    functions = [
        f"{key} = {{ traffic = {fusion.traffic}, kernels = {fusion.kernels} }}"
        for key, fusion in runtime.functions
    ]
    return _section(f"runtimes.{name}", lines) + _section(f"runtimes.{name}.functions", functions)


def _entry(share: Sourced) -> str:
    note = f", note = {_quoted(share.note)}" if share.note else ""
    return f'{{ value = "{share.value:.3g}"{note} }}'


def _microseconds(seconds: float) -> str:
    return f"{seconds * MICROSECONDS:.4g} us"


def _mebibytes(size: float) -> str:
    return f"{size / MIB:.5g} MiB"


def _quoted(text: str | list[str]) -> str:
    return json.dumps(text, ensure_ascii=False)
