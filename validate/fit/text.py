"""A profile as TOML: what `costmodels.profile.load_profile` reads back.

Tables are made of texts, counts, lists of texts and inline tables; what is None is left out.
Numbers keep four digits, more would pretend.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Final

from costmodels.collectives import Times
from costmodels.collectives.curve import Curve
from costmodels.collectives.parameters import UNITS, Fitted
from costmodels.kernels.parameters import UNITS as KERNEL_UNITS
from costmodels.kernels.parameters import Provenance, Record
from costmodels.kernels.tables import KernelCalibration
from costmodels.profile import FORMAT, Fit, Profile, RuntimeCalibration
from topology.base import MIB, Sourced, parse

Table = Mapping[str, object]

_HEAD: Final = """\
# Fitted by `planner calibrate` on one machine; the form is in costmodels/profile.py.
# A parameter without a standard error was not fitted: it is the shipped one.
"""
_WRITTEN_UNITS: Final = {
    "1": (1.0, ""),
    "B/s": (parse("1 GB/s", "B/s"), "GB/s"),
    "FLOP/s": (parse("1 TFLOP/s", "FLOP/s"), "TFLOP/s"),
    "W": (1.0, "W"),
}


def to_toml(profile: Profile) -> str:
    """Write a profile as TOML."""
    curves, fits = profile.curves, dict(profile.fits)
    sections = [_HEAD + _lines(_head(profile))]
    sections += _section("machine", dict(profile.machine))
    sections += _section("software", dict(profile.software))
    tables: list[tuple[str, Table]] = [
        *((name, _record(record)) for name, record in kernel_records(profile.kernels)),
        *((f"curves.{place}", _curve(fitted)) for place, fitted in curves.curves),
        *((f"times.{times.place}", _times(times)) for times in curves.times),
    ]
    for name, table in tables:
        sections += [*_section(name, table), *_fit(name, fits.get(name))]
    sections += _section("launch", {"host": _us(curves.host), "gap": _us(curves.gap)})
    for name, runtime in profile.runtimes:
        sections += _runtime(f"runtimes.{name}", runtime)
    sections += _section("overlap", {kind: _share(share) for kind, share in profile.overlap})
    starts = {kind: _us(start.value) for kind, start in profile.overlap_start}
    sections += _section("overlap_start", starts)
    sections += _section("memory", {"communicator": _mebibytes(profile.communicator)})
    return "\n".join(sections)


def _section(name: str, table: Table) -> list[str]:
    """Write a table; nothing where it would be empty."""
    lines = _lines(table)
    return [f"[{name}]\n{lines}"] if lines else []


def _lines(table: Table) -> str:
    present = {key: value for key, value in table.items() if value is not None}
    return "".join(f"{key} = {_value(value)}\n" for key, value in present.items())


def _value(value: object) -> str:
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{{ {', '.join(f'{key} = {_value(inner)}' for key, inner in value.items())} }}"


def _head(profile: Profile) -> Table:
    identity = {"hardware": profile.hardware, "date": profile.date}
    return {"format": FORMAT, **identity, "kind": "measured", "source": profile.source}


def kernel_records(kernels: KernelCalibration) -> Iterator[tuple[str, Record]]:
    """Yield the records of kernels, by their name in the file."""
    if kernels.matmul is not None:
        yield "matmul", kernels.matmul
    if kernels.pointwise is not None:
        yield "pointwise", kernels.pointwise
    for name, record in kernels.attention:
        yield f"attention.{name}", record


def record_to_toml(name: str, record: Record) -> str:
    """Write a record as a table that `costmodels.kernels.parameters.load` reads."""
    return "".join(_section(name, _record(record)))


def _record(record: Record) -> Table:
    """Write what differs from the defaults."""
    table = _provenance(record.provenance)
    for field in fields(record):
        value, unit = getattr(record, field.name), KERNEL_UNITS.get(field.name, "1")
        if field.name != "provenance" and value != field.default:
            several = isinstance(value, tuple)
            table[field.name] = (
                [f"{item:.4g}" for item in value] if several else _quantity(value, unit)
            )
    return table


def _provenance(provenance: Provenance) -> dict[str, object]:
    table: dict[str, object] = {
        "kind": provenance.kind,
        "source": provenance.source,
        "hardware": provenance.hardware,
        "compute_capabilities": provenance.compute_capabilities,
    }
    if provenance.rows:
        table["rows"] = provenance.rows
        table["median_error"] = f"{provenance.median_error:.3f}"
        table["p90_error"] = f"{provenance.p90_error:.3f}"
    if provenance.ranges:
        table["ranges"] = {key: f"{low:.0f}..{high:.0f}" for key, low, high in provenance.ranges}
    return table


def _curve(fitted: Fitted) -> Table:
    curve, required = fitted.curve, ("launch", "efficiency")
    defaults = asdict(Curve(launch=curve.launch, efficiency=curve.efficiency))
    return {
        "kind": fitted.kind,
        "source": fitted.source,
        **{
            key: _quantity(value, UNITS.get(key, "1"))
            for key, value in asdict(curve).items()
            if key in required or value != defaults[key]
        },
        "ops": ", ".join(fitted.ops),
        "smallest": _quantity(fitted.smallest, "B"),
        "largest": _quantity(fitted.largest, "B"),
        "ranks": "{}..{}".format(*fitted.ranks),
        "median_error": f"{fitted.median_error:.3f}",
        "worst_error": f"{fitted.worst_error:.3f}",
    }


def _quantity(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value:.0f} B"
    if unit == "s":
        return f"{value * 10**6:.4g} us"
    scale, name = _WRITTEN_UNITS[unit]
    return f"{value / scale:.4g} {name}".strip()


def _times(times: Times) -> Table:
    return {
        "kind": times.kind,
        "source": times.source,
        "ranks": times.ranks,
        "bandwidth": f"{times.bandwidth / _WRITTEN_UNITS['B/s'][0]:.6g} GB/s",
        "sizes": [_quantity(size, "B") for size in times.sizes],
        "seconds": [_us(time) for time in times.seconds],
        "median_error": f"{times.median_error:.3f}",
        "worst_error": f"{times.worst_error:.3f}",
    }


def _fit(name: str, fit: Fit | None) -> list[str]:
    if fit is None:
        return []
    has_held_out = bool(fit.held_out_rows)
    errors = {
        key: None if math.isnan(value) else f"{value:.4f}"
        for key, value in asdict(fit).items()
        if key.endswith("_error") and (has_held_out or key == "worst_error")
    }
    table = {"rows": fit.rows, "worst_error": errors.pop("worst_error")}
    if has_held_out:
        table |= {"held_out_rows": fit.held_out_rows, "split": fit.split}
    standard = {json.dumps(key): f"{error:.2g}" for key, error in fit.standard_errors}
    return [
        *_section(f"{name}.fit", {**table, **errors}),
        *_section(f"{name}.fit.standard_errors", standard),
    ]


def _runtime(name: str, runtime: RuntimeCalibration) -> list[str]:
    host = {name: getattr(runtime, name) for name in ("host_kernel", "host_collective")}
    table = {name: _us(number.value) for name, number in host.items() if number is not None}
    functions = {
        key: {"traffic": fusion.traffic, "kernels": fusion.kernels}
        for key, fusion in runtime.functions
    }
    return [
        *_section(name, {**table, "memory": _mebibytes(runtime.memory)}),
        *_section(f"{name}.functions", functions),
    ]


def _share(share: Sourced) -> Table:
    note = {"note": share.note} if share.note else {}
    return {"value": f"{share.value:.3g}", **note}


def _us(seconds: float | None) -> str | None:
    return None if seconds is None else _quantity(seconds, "s")


def _mebibytes(size: Sourced | None) -> str | None:
    return None if size is None else f"{size.value / MIB:.5g} MiB"
