"""A calibration profile: what was fitted on one machine, and how far to trust it.

A profile is a value. Who has one passes it down; where it says nothing the shipped tables hold.
It is read from TOML that `planner calibrate` writes::

    format = 1
    hardware = "h100-sxm"
    date = "2026-11-27"
    source = "measurement file, by its digest"

    [machine]                          # text, for people
    [software]                         # versions, for people
    [matmul]                           # a record as in data/kernels_matmul.toml
    [matmul.fit]                       # how far to trust it
    [attention.cudnn]                  # as in data/kernels_attention.toml
    [pointwise]
    [curves.hopper.nvlink.ring_ll]     # as in data/collectives_nvlink.toml
    [times.hopper.nvlink.all_reduce.graph]  # of groups like the measured one, by size
    [launch]                           # host and gap of a collective call
    [runtimes.torch-eager]             # what data/runtimes.toml says otherwise
    [overlap]                          # share that compute hides, by kind of collective
    [overlap_start]                    # of a message's time above this
    [memory]                           # bytes of a communicator
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import date
from functools import lru_cache
from typing import Final, get_args

from costmodels.collectives import OPS, CurveCalibration
from costmodels.collectives.curve import Curve
from costmodels.collectives.measured import read_times
from costmodels.collectives.parameters import UNITS as CURVE_UNITS
from costmodels.collectives.parameters import read_fitted
from costmodels.kernels.parameters import (
    UNITS,
    AttentionParameters,
    MatmulParameters,
    Parameters,
    PointwiseParameters,
    read_record,
)
from costmodels.kernels.tables import KernelCalibration
from costmodels.program import Function
from costmodels.runtime import Fusion, Runtime
from topology.base import (
    InputError,
    Seconds,
    Sourced,
    one_line,
    parse,
    read_sourced,
    shown,
    toml_of,
    unknown,
)
from topology.base.values import dataclass

FORMAT: Final = 1
Table = Mapping[str, object]
_HEAD_KEYS: Final = {"format", "hardware", "date", "kind", "source"}
_PART_KEYS: Final = {
    "machine", "software", "matmul", "attention", "pointwise", "curves", "times", "launch",
    "runtimes", "overlap", "overlap_start", "memory",
}  # fmt: skip
_ERROR_KEYS: Final = (
    "worst_error", "held_out_median_error", "held_out_p90_error", "held_out_worst_error",
)  # fmt: skip
_PROVENANCE: Final = ("kind", "source", "note", "fit")
_DEPTHS: Final[Mapping[str, int]] = {"attention": 1, "runtimes": 1, "curves": 3, "times": 4}
"""How many names stand before a table of a part, such as ``hopper.nvlink.ring_ll``."""
_MOST_PROFILES: Final = 32  # profiles remembered by their text
UNIT_LIMITS: Final[Mapping[str, int]] = {
    "1": 10**6, "s": 10**3, "B": 10**15, "B/s": 10**16, "FLOP/s": 10**19, "W": 10**5,
}  # fmt: skip
"""Beyond what any machine has, by unit."""
_EXPONENTS: Final[Mapping[str, int]] = {"power_exponent": 4, "sharpness": 16, "softness": 1}
_LEAST_DIVISOR: Final = 10**-9
"""Of what a formula divides by."""
_DIVISORS: Final[Mapping[type, tuple[str, ...]]] = {
    MatmulParameters: (
        "flop_per_cycle", "efficiency", "ceiling", "tile_half", "load_bandwidth",
        "memory_efficiency", "reference_rate", "reference_power", "fp8", "int8", "nvfp4",
    ),
    AttentionParameters: ("key_block", "concurrency"),
    PointwiseParameters: ("memory_efficiency", "ramp"),
    Curve: ("efficiency", "sharpness", "rise_bytes", "share", "cross"),
}  # fmt: skip
_LEAST_RAMP: Final = 10**-30  # s, of a ramp that is none
_MOST_GPUS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How far to trust a table.

    rows, held_out_rows : measurements it was fitted to, and those kept back to judge it.
    worst_error, held_out_median_error, held_out_p90_error, held_out_worst_error : relative.
    split : how the rows were kept back. standard_errors : of each parameter, relative.
    """

    rows: int = 0
    worst_error: float = math.nan
    held_out_rows: int = 0
    held_out_median_error: float = math.nan
    held_out_p90_error: float = math.nan
    held_out_worst_error: float = math.nan
    split: str = ""
    standard_errors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCalibration:
    """What a runtime costs on this machine; see `costmodels.runtime.Runtime` for the fields."""

    host_kernel: Sourced | None = None
    host_collective: Sourced | None = None
    memory: Sourced | None = None
    functions: tuple[tuple[str, Fusion], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything that was fitted on one machine.

    hardware : the catalogue name it stands for. source : the measurements, by file and digest.
    machine, software : what it was measured on, as text by name.
    fits : how far to trust each table, by its name in the file.
    """

    hardware: str
    date: str
    source: str
    machine: tuple[tuple[str, str], ...] = ()
    software: tuple[tuple[str, str], ...] = ()
    kernels: KernelCalibration
    curves: CurveCalibration
    runtimes: tuple[tuple[str, RuntimeCalibration], ...] = ()
    overlap: tuple[tuple[str, Sourced], ...] = ()
    overlap_start: tuple[tuple[str, Sourced], ...] = ()
    communicator: Sourced | None = None
    fits: tuple[tuple[str, Fit], ...] = ()

    @property
    def name(self) -> str:
        """What a person calls it, such as ``h100-sxm-x2-2026-11-27`` of two GPUs together."""
        gpus = dict(self.machine).get("gpus", "1")
        return "-".join([self.hardware, *([f"x{gpus}"] if gpus != "1" else []), self.date])

    def hiding(self, kind: str) -> tuple[float, float] | None:
        """Share that compute hides of a collective of `kind`, and the seconds that it never does.

        None where that was not measured.
        """
        share, start = dict(self.overlap).get(kind), dict(self.overlap_start).get(kind)
        return None if share is None else (share.value, 0.0 if start is None else start.value)

    def runtime(self, shipped: Runtime, *, lean: bool = True) -> Runtime:
        """Return a runtime with what was measured in place of what was shipped.

        lean : whether eager element-wise functions are those of this project's executor, which were
        measured, or those of other code.
        """
        unmeasured = RuntimeCalibration()
        measured = dict(self.runtimes)
        own_calibration, maker_calibration = (
            measured.get(shipped.name, unmeasured),
            measured.get(shipped.kernels_of, unmeasured),
        )
        functions = maker_calibration.functions if lean or shipped.name != "torch-eager" else ()
        return replace(
            shipped,
            host_kernel=own_calibration.host_kernel or shipped.host_kernel,
            host_collective=own_calibration.host_collective or shipped.host_collective,
            memory=own_calibration.memory or shipped.memory,
            functions={**shipped.functions, **dict(functions)},
        )


@lru_cache(maxsize=_MOST_PROFILES)
def load_profile(text: str, name: str = "profile") -> Profile:
    """Read a profile from TOML `text`; the caller does the file I/O, and `name`s the file.

    Raises InputError if it is no profile, of another format, or a number in it cannot be right.

    >>> load_profile('''format = 1
    ... hardware = "h100-sxm"
    ... date = "2026-11-27"
    ... source = "an example"
    ... [overlap]
    ... all_gather = "0.6"''').hiding("all_gather")
    (0.6, 0.0)
    """
    try:
        document = toml_of(text)
    except InputError as error:
        raise InputError(f"{name}: no TOML: {error}") from None
    return profile_of(document, text, name)


def profile_of(document: Table, text: str, name: str) -> Profile:
    """Read a profile from the TOML `document` that `text` is."""
    _check_head(document, name)
    try:
        return _profile(document, text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: malformed: {error!s:.100}") from None


def _check_head(document: Table, name: str) -> None:
    version = document.get("format")
    if type(version) is not int or version != FORMAT:
        got = shown(version)
        raise InputError(f"{name}: format: got {got}, wanted {FORMAT} of a calibration profile")
    missing = {"hardware", "date", "source"} - set(document)
    unexpected = set(document) - _HEAD_KEYS - _PART_KEYS
    if missing or unexpected:
        raise InputError(f"{name}: missing {sorted(missing)}, unexpected {sorted(unexpected)}")
    for key in ("hardware", "source"):
        if not isinstance(document[key], str):
            raise InputError(f"{name}: {key}: got {shown(document[key])}, wanted a text")
    if not _is_date(str(document["date"])):
        raise InputError(f"{name}: date: got {shown(document['date'])}, wanted 2026-11-27")
    for part in _PART_KEYS & set(document):
        if not isinstance(document[part], Mapping):
            raise InputError(f"{name}: {part}: got {shown(document[part])}, wanted a table")


def _profile(document: Table, text: str) -> Profile:
    tables = {part: _checked_table(document.get(part, {}), part) for part in _PART_KEYS}
    check_known("launch", tables["launch"], ("host", "gap", *_PROVENANCE))
    check_known("memory", tables["memory"], ("communicator", *_PROVENANCE))
    identity = f"{document['hardware']} {document['date']} {hash(text)}"
    defaults = {"kind": document.get("kind", "measured"), "source": document.get("source")}
    runtimes = tables["runtimes"].items()
    return Profile(
        hardware=str(document["hardware"]),
        date=str(document["date"]),
        source=one_line(str(document["source"])),
        machine=_texts("machine", tables["machine"]),
        software=_texts("software", tables["software"]),
        kernels=_kernels(tables, identity),
        curves=_curves(tables, identity),
        runtimes=tuple(
            (key, _runtime(key, _checked_table(row, key), defaults)) for key, row in runtimes
        ),
        overlap=tuple(_by_kind("overlap", "1", tables["overlap"], defaults)),
        overlap_start=tuple(_by_kind("overlap_start", "s", tables["overlap_start"], defaults)),
        communicator=_optional(tables["memory"], "memory", "communicator", "B", defaults),
        fits=tuple(_fits(tables)),
    )


def _checked_table(row: object, where: str) -> Table:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: got {shown(row)}, wanted a table")
    return row


def _without_fit(row: Table) -> dict[str, object]:
    """Return a table without what says how far to trust it."""
    return {key: value for key, value in row.items() if key != "fit"}


@contextmanager
def _naming_table(where: str) -> Iterator[None]:
    """Say which table it was that cannot be read."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: malformed: {error!s:.100}") from None


def _record(where: str, row: Table, form: type[Parameters]) -> Parameters | None:
    if not row:
        return None
    with _naming_table(where):
        record = read_record(where, _without_fit(row), form)
    _check_record(where, record, row)
    return record


def _kernels(tables: Mapping[str, Table], identity: str) -> KernelCalibration:
    attention = []
    for where, row in _nested_tables(tables["attention"], 1, "attention"):
        record = _record(where, row, AttentionParameters)
        if record is not None:
            _check_series(where, record)
            attention.append((where.removeprefix("attention."), record))
    return KernelCalibration(
        identity=identity,
        matmul=_record("matmul", tables["matmul"], MatmulParameters),
        attention=tuple(attention),
        pointwise=_record("pointwise", tables["pointwise"], PointwiseParameters),
    )


def _curves(tables: Mapping[str, Table], identity: str) -> CurveCalibration:
    defaults = {"kind": "measured", "source": "launch"}
    host, gap = (
        _optional(tables["launch"], "launch", key, "s", defaults) for key in ("host", "gap")
    )
    curves, times = [], []
    for where, row in _nested_tables(tables["curves"], 3):
        with _naming_table(f"curves.{where}"):
            fitted = read_fitted(where, _without_fit(row))
        _check_record(f"curves.{where}", fitted.curve, row)
        curves.append((where, fitted))
    for where, row in _nested_tables(tables["times"], 4):
        with _naming_table(f"times.{where}"):
            times_row = read_times(where, _without_fit(row))
        check_number(f"times.{where}.seconds", max(times_row.seconds), "s")
        check_number(f"times.{where}.sizes", max(times_row.sizes), "B")
        times.append(times_row)
    return CurveCalibration(
        identity=identity,
        curves=tuple(curves),
        host=None if host is None else Seconds(host.value),
        gap=None if gap is None else Seconds(gap.value),
        times=tuple(times),
    )


def _nested_tables(table: Table, depth: int, where: str = "") -> Iterator[tuple[str, Table]]:
    """Yield the tables `depth` names down, each with those names joined by dots."""
    for key, row in table.items():
        place = f"{where}.{key}" if where else key
        if depth == 1:
            yield place, _checked_table(row, place)
        else:
            yield from _nested_tables(_checked_table(row, place), depth - 1, place)


def _runtime(where: str, row: Table, defaults: Table) -> RuntimeCalibration:
    functions = _checked_table(row.get("functions", {}), f"{where}.functions")
    units = {"host_kernel": "s", "host_collective": "s", "memory": "B"}
    place = f"runtimes.{where}"
    check_known(place, row, (*units, "functions", *_PROVENANCE))
    check_known(f"{place}.functions", functions, get_args(Function))
    numbers = {key: _optional(row, place, key, unit, defaults) for key, unit in units.items()}
    fusions = ((key, _fusion(f"{where}.{key}", value)) for key, value in functions.items())
    return RuntimeCalibration(functions=tuple(fusions), **numbers)


def _fusion(where: str, entry: object) -> Fusion:
    row = _checked_table(entry, where)
    check_known(where, row, ("traffic", "kernels"))
    if len(row) < len(("traffic", "kernels")):
        raise InputError(f"{where}: got {', '.join(row) or 'nothing'}, wanted traffic and kernels")
    traffic = _number(f"{where}.traffic", row["traffic"])
    kernels = _whole_number(f"{where}.kernels", row["kernels"], 1)
    if not 0 < traffic <= 1000 or kernels > 1000:
        raise InputError(f"{where}: got {traffic:g} and {kernels}, wanted positive ones up to 1000")
    return Fusion(traffic=traffic, kernels=kernels)


def _by_kind(part: str, unit: str, table: Table, defaults: Table) -> Iterator[tuple[str, Sourced]]:
    """Yield a number for each kind of collective that a part names."""
    check_known(part, table, (*OPS, *_PROVENANCE))
    for kind in OPS:
        number = _optional(table, part, kind, unit, defaults)
        if number is not None:
            check_number(f"{part}.{kind}", number.value, unit, int(unit == "1"))
            yield kind, number


def _optional(table: Table, where: str, key: str, unit: str, defaults: Table) -> Sourced | None:
    if key not in table:
        return None
    number = read_sourced(f"{where}.{key}", table[key], unit, {**defaults, **table})
    check_number(f"{where}.{key}", number.value, unit)
    return number


def _fits(tables: Mapping[str, Table]) -> Iterator[tuple[str, Fit]]:
    for part in ("matmul", "pointwise", "overlap"):
        if "fit" in tables[part]:
            yield part, _fit(part, _checked_table(tables[part]["fit"], part))
    for part, depth in _DEPTHS.items():
        for name, row in _nested_tables(tables[part], depth):
            if "fit" in row:
                where = f"{part}.{name}"
                yield where, _fit(where, _checked_table(row["fit"], where))


def _fit(where: str, row: Table) -> Fit:
    check_known(f"{where}.fit", row, Fit.__dataclass_fields__)
    errors = {key: _number(f"{where}.fit.{key}", row[key]) for key in _ERROR_KEYS if key in row}
    return Fit(
        rows=_whole_number(f"{where}.fit.rows", row.get("rows", 0)),
        held_out_rows=_whole_number(f"{where}.fit.held_out_rows", row.get("held_out_rows", 0)),
        split=one_line(str(row.get("split", ""))),
        standard_errors=tuple(_errors(where, {"fit": row})),
        **errors,
    )


def _errors(where: str, row: Table) -> Iterator[tuple[str, float]]:
    """Yield the standard errors of a table, by the name of the parameter."""
    fit = _checked_table(row.get("fit", {}), f"{where}.fit")
    name = f"{where}.fit.standard_errors"
    for key, text in _checked_table(fit.get("standard_errors", {}), name).items():
        yield key, _number(f"{name}.{key}", text)


def _number(where: str, text: object) -> float:
    try:
        value = parse(str(text), "1")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return check_number(where, value, "1")


def check_known(where: str, row: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a key that nothing reads, with the nearest ones."""
    names = sorted(known)
    for key in row:
        if key not in names:
            raise unknown(f"key of {where}", key, names)


def check_number(where: str, value: float, unit: str, most: int = 0) -> float:
    """Refuse a number beyond `most`, or what is usual of a unit; NaN is not known and passes.

    >>> check_number("launch.gap", 1e300, "s")
    Traceback (most recent call last):
    topology.base.errors.InputError: launch.gap: got 1e+300, wanted at most 1000 s
    """
    limit = most or UNIT_LIMITS[unit]
    if value > limit:
        wanted = f"at most {limit} {unit}".removesuffix(" 1")
        raise InputError(f"{where}: got {value:g}, wanted {wanted}")
    return value


def _check_record(where: str, record: object, row: Table) -> None:
    """Refuse numbers that no machine has, and standard errors of what the record has not."""
    units = CURVE_UNITS if isinstance(record, Curve) else UNITS
    numbers = dict(_numbers(record))
    for name, value in numbers.items():
        field = name.partition("@")[0]
        check_number(f"{where}.{name}", value, units.get(field, "1"), _EXPONENTS.get(field, 0))
        smallest = _LEAST_RAMP if field == "ramp" else _LEAST_DIVISOR
        if field in _DIVISORS[type(record)] and value < smallest:
            wanted = "more than 0" if value <= 0 else f"at least {smallest:g}"
            raise InputError(f"{where}.{name}: got {value:g}, wanted {wanted}")
    check_known(f"{where}.fit.standard_errors", dict(_errors(where, row)), numbers)


def _numbers(record: object) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record; those of a series have their place, as in ``cycles@1``."""
    for field in fields(record):  # type: ignore[arg-type]  # records are dataclasses
        value = getattr(record, field.name)
        if isinstance(value, float):
            yield field.name, value
        elif isinstance(value, tuple):
            yield from ((f"{field.name}@{place}", number) for place, number in enumerate(value))


def _check_series(where: str, record: AttentionParameters) -> None:
    """Refuse series of an attention kernel that do not belong together."""
    sizes = {len(record.head_dims), len(record.cycles), len(record.tile_rows)}
    ordered = list(record.head_dims) == sorted(set(record.head_dims))
    positive = (
        min((*record.head_dims, *record.cycles, *record.tile_rows), default=0.0) >= _LEAST_DIVISOR
    )
    if record.serial_share and record.serial_rate < _LEAST_DIVISOR:
        got = f"serial_rate: got {record.serial_rate:g}"
        raise InputError(f"{where}.{got}, wanted more than 0 beside serial_share")
    if len(sizes) > 1 or not ordered or not positive or len(record.fp8_cycles) not in (0, *sizes):
        raise InputError(f"{where}: head_dims, cycles and tile_rows do not go together")


def _whole_number(where: str, value: object, least: int = 0) -> int:
    text = str(value) if isinstance(value, str | int) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise InputError(f"{where}: got {shown(value)}, wanted a whole number from {least}")
    return int(text)


def _texts(where: str, table: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Read what is for people: words, on one line each; the number of GPUs is one."""
    for key, value in table.items():
        if not isinstance(value, str | int | float):
            raise InputError(f"{where}.{key}: got {shown(value)}, wanted a text")
    if (
        where == "machine"
        and not 1 <= _whole_number("machine.gpus", table.get("gpus", 1)) <= _MOST_GPUS
    ):
        raise InputError(f"machine.gpus: got {table['gpus']}, wanted 1 to {_MOST_GPUS}")
    texts = ((one_line(key), one_line(str(value))) for key, value in table.items())
    return tuple((key, text) for key, text in texts if key != "source")


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
