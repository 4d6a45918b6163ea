"""A profile as TOML: what `costmodels.profiles.profile.load_profile` reads back."""

import json
import math
from collections.abc import Iterator, Mapping

from costmodels.collectives.parameters import Fitted
from costmodels.collectives.times import Times
from costmodels.profiles.profile import FORMAT, Fit, Profile, RuntimeCalibration
from topology.base import Sourced
from validate.fit import collectives as fit_collectives
from validate.fit import records as fit_kernels
from validate.fit.collectives import CurveFit

MIB = 2**20
MICROSECONDS = 10**6
GIGA = 10**9


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
        yield fit_kernels.to_toml("matmul", known.matmul)
        yield _fit("matmul", fits.get("matmul"))
    if known.pointwise is not None:
        yield fit_kernels.to_toml("pointwise", known.pointwise)
        yield _fit("pointwise", fits.get("pointwise"))
    for name, found in known.attention:
        yield fit_kernels.to_toml(f"attention.{name}", found)
        yield _fit(f"attention.{name}", fits.get(f"attention.{name}"))


def _curves(profile: Profile, fits: Mapping[str, Fit]) -> Iterator[str]:
    for place, fitted in profile.curves.curves:
        name = f"curves.{place}"
        fit = fits.get(name)
        yield fit_collectives.to_toml(name, _curve_fit(fitted, fit), fitted.source, fitted.kind)
        yield _fit(name, fit)


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


def _curve_fit(fitted: Fitted, fit: Fit | None) -> CurveFit:
    return CurveFit(
        curve=fitted.curve,
        rows=0 if fit is None else fit.rows,
        ops=fitted.ops,  # type: ignore[arg-type]  # they were read as operations
        smallest=fitted.smallest,
        largest=fitted.largest,
        ranks=fitted.ranks,
        median_error=fitted.median_error,
        worst_error=fitted.worst_error,
    )


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
