"""A profile as TOML: what `costmodels.profiles.profile.load_profile` reads back."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Final

from costmodels.collectives import Times
from costmodels.collectives.curve import Curve
from costmodels.collectives.parameters import UNITS, Fitted
from costmodels.kernels.parameters import UNITS as KERNEL_UNITS
from costmodels.kernels.parameters import Parameters, Provenance
from costmodels.profiles.profile import FORMAT, Fit, Profile, RuntimeCalibration
from topology.base import Sourced, parse

MIB = 2**20
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
    parts = [
        _head(profile),
        _texts("machine", profile.machine),
        _texts("software", profile.software),
        *_kernels(profile, fits),
        *_curves(profile, fits),
        *_times(profile, fits),
        *_launch(profile),
        *(_runtime(name, runtime) for name, runtime in profile.runtimes),
        *_overlap(profile),
        *_memory(profile),
    ]
    return "\n".join(part for part in parts if part)


def _head(profile: Profile) -> str:
    return "\n".join(
        [
            "# Fitted by `planner calibrate` on one machine; costmodels.profiles has the form.",
            "# A parameter without a standard error was not fitted: it is the shipped one.",
            f"format = {FORMAT}",
            f"hardware = {_quoted(profile.hardware)}",
            f"date = {_quoted(profile.date)}",
            'kind = "measured"',
            f"source = {_quoted(profile.source)}",
            "",
        ]
    )


def _texts(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    if not pairs:
        return ""
    return "\n".join([f"[{name}]", *(f"{key} = {_quoted(text)}" for key, text in pairs), ""])


def _kernels(profile: Profile, fits: Mapping[str, Fit]) -> Iterator[str]:
    known = profile.kernels
    if known.matmul is not None:
        yield record_to_toml("matmul", known.matmul)
        yield _fit("matmul", fits.get("matmul"))
    if known.pointwise is not None:
        yield record_to_toml("pointwise", known.pointwise)
        yield _fit("pointwise", fits.get("pointwise"))
    for name, found in known.attention:
        yield record_to_toml(f"attention.{name}", found)
        yield _fit(f"attention.{name}", fits.get(f"attention.{name}"))


def _curves(profile: Profile, fits: Mapping[str, Fit]) -> Iterator[str]:
    for place, fitted in profile.curves.curves:
        name = f"curves.{place}"
        yield curve_to_toml(name, fitted)
        yield _fit(name, fits.get(name))


def _times(profile: Profile, fits: Mapping[str, Fit]) -> Iterator[str]:
    for times in profile.curves.times:
        name = f"times.{times.place}"
        yield _seen(name, times)
        yield _fit(name, fits.get(name))


def _seen(name: str, times: Times) -> str:
    sizes = [f"{size:.0f} B" for size in times.sizes]
    return "\n".join(
        [
            f"[{name}]",
            f"kind = {_quoted(times.kind)}",
            f"source = {_quoted(times.source)}",
            f"ranks = {times.ranks}",
            f'bandwidth = "{times.bandwidth / GIGA:.6g} GB/s"',
            f"sizes = {_quoted(sizes)}",
            f"seconds = {_quoted([_microseconds(time) for time in times.seconds])}",
            f'median_error = "{times.median_error:.3f}"',
            f'worst_error = "{times.worst_error:.3f}"',
            "",
        ]
    )


def record_to_toml(name: str, record: Parameters) -> str:
    """Write a record as a table that `costmodels.kernels.parameters.load` reads.

    Numbers keep four digits, more would pretend; values that are the default are left out.
    """
    lines = [f"[{name}]", *_provenance_lines(record.provenance)]
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name != "provenance" and value != field.default:
            lines.append(f"{field.name} = {_written(field.name, value)}")
    return "\n".join(lines) + "\n"


def _provenance_lines(seen: Provenance) -> list[str]:
    lines = [
        f'kind = "{seen.kind}"',
        f'source = "{seen.source}"',
        f"hardware = [{_names(seen.hardware)}]",
        f"compute_capabilities = [{_names(seen.compute_capabilities)}]",
    ]
    if seen.rows:
        errors = f'median_error = "{seen.median_error:.3f}"', f'p90_error = "{seen.p90_error:.3f}"'
        lines += [f"rows = {seen.rows}", *errors]
    if seen.ranges:
        pairs = ", ".join(f'{key} = "{a:.0f}..{b:.0f}"' for key, a, b in seen.ranges)
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


def _fit(name: str, fit: Fit | None) -> str:
    if fit is None:
        return ""
    lines = [f"[{name}.fit]", f"rows = {fit.rows}"]
    lines += _error("worst_error", fit.worst_error)
    if fit.held_out_rows:
        lines += [f"held_out_rows = {fit.held_out_rows}", f"split = {_quoted(fit.split)}"]
        lines += _error("held_out_median_error", fit.held_out_median_error)
        lines += _error("held_out_p90_error", fit.held_out_p90_error)
        lines += _error("held_out_worst_error", fit.held_out_worst_error)
    if fit.standard_errors:
        lines += ["", f"[{name}.fit.standard_errors]"]
        lines += [f'{json.dumps(key)} = "{error:.2g}"' for key, error in fit.standard_errors]
    return "\n".join([*lines, ""])


def _error(name: str, value: float) -> list[str]:
    return [] if math.isnan(value) else [f'{name} = "{value:.4f}"']


def _launch(profile: Profile) -> Iterator[str]:
    known = profile.curves
    pairs = [("host", known.host), ("gap", known.gap)]
    lines = [f'{key} = "{_microseconds(value)}"' for key, value in pairs if value is not None]
    if lines:
        yield "\n".join(["[launch]", *lines, ""])


def _runtime(name: str, runtime: RuntimeCalibration) -> str:
    lines = [f"[runtimes.{name}]"]
    for key, found in (
        ("host_kernel", runtime.host_kernel),
        ("host_collective", runtime.host_collective),
    ):
        lines += [f'{key} = "{_microseconds(found.value)}"'] if found else []
    lines += [f'memory = "{_mebibytes(runtime.memory.value)}"'] if runtime.memory else []
    if runtime.functions:
        lines += ["", f"[runtimes.{name}.functions]"]
        lines += [
            f"{key} = {{ traffic = {fusion.traffic}, kernels = {fusion.kernels} }}"
            for key, fusion in runtime.functions
        ]
    return "\n".join([*lines, ""])


def _overlap(profile: Profile) -> Iterator[str]:
    if profile.overlap:
        lines = [f"{kind} = {_entry(share)}" for kind, share in profile.overlap]
        yield "\n".join(["[overlap]", *lines, ""])
    if profile.overlap_start:
        lines = [
            f'{kind} = "{_microseconds(start.value)}"' for kind, start in profile.overlap_start
        ]
        yield "\n".join(["[overlap_start]", *lines, ""])


def _entry(share: Sourced) -> str:
    note = f", note = {_quoted(share.note)}" if share.note else ""
    return f'{{ value = "{share.value:.3g}"{note} }}'


def _memory(profile: Profile) -> Iterator[str]:
    if profile.communicator is not None:
        yield f'[memory]\ncommunicator = "{_mebibytes(profile.communicator.value)}"\n'


def _microseconds(seconds: float) -> str:
    return f"{seconds * MICROSECONDS:.4g} us"


def _mebibytes(size: float) -> str:
    return f"{size / MIB:.5g} MiB"


def _quoted(text: str | list[str]) -> str:
    return json.dumps(text, ensure_ascii=False)
