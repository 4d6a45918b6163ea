"""Profiles for people: what one holds and how far to trust it, and what two differ in."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from costmodels.collectives import collective_time
from costmodels.kernels import attention_time, matmul_time, pointwise_time
from costmodels.profile import Profile
from topology.base import GIB, MIB, InputError, Sourced, counted, format_seconds
from topology.base.table import Part, Table, Title
from topology.base.values import dataclass
from topology.catalogue import find_hardware
from validate.fit.rows import Row
from validate.fit.text import kernel_records

FIT_HEADERS: Final = (
    "table", "rows", "median", "worst", "held out", "its median", "ninth decile", "its worst"
)  # fmt: skip
VALUE_HEADERS: Final = ("parameter", "value", "standard error")
DIFF_HEADERS: Final = ("parameter", "first", "second", "change", "in standard errors")
ENTRY_HEADERS: Final = ("profile", "hardware", "used", "parts")
HOST: Final = ("host_kernel", "host_collective", "memory")
EXAMPLE_HEADERS: Final = ("example", "first", "second", "change")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedProfile:
    """A profile under the name it is asked for by. default : used where no other is asked for."""

    name: str
    profile: Profile
    default: bool

    def used(self) -> str:
        """Say when predictions take it."""
        if self.default:
            return f"by itself for {self.profile.hardware}"
        machine = dict(self.profile.machine)
        machine_text = f"{machine.get('gpus', '1')} x {machine.get('gpu', self.profile.hardware)}"
        return f"by name, or with --detect on {machine_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A profile that was written to `output`, and the cases that could not be measured."""

    profile: Profile
    output: Path
    failures: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        rows = fit_rows(self.profile)
        return {
            "profile": self.profile.name,
            "output": str(self.output),
            "tables": [dict(zip(FIT_HEADERS, row, strict=True)) for row in rows],
            "failures": list(self.failures),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedValue:
    """One fitted number; `error` is its relative standard error, NaN where nothing says."""

    name: str
    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number in two profiles; NaN where one does not have it."""

    name: str
    first: float
    second: float
    sigmas: float


def values(profile: Profile) -> list[FittedValue]:
    """List every fitted number."""
    fits = dict(profile.fits)
    records: list[tuple[str, object]] = [
        *kernel_records(profile.kernels),
        *((f"curves.{place}", fitted.curve) for place, fitted in profile.curves.curves),
    ]
    numbers = []
    for table, record in records:
        for name, error in fits[table].standard_errors if table in fits else ():
            field, _, place = name.partition("@")
            value = getattr(record, field)
            number = float(value[int(place)] if place else value)
            numbers.append(FittedValue(name=f"{table}.{name}", value=number, error=error))
    sourced: list[tuple[str, Sourced]] = []
    for name, runtime in profile.runtimes:
        numbers_of = {key: getattr(runtime, key) for key in HOST}
        sourced += [(f"runtimes.{name}.{key}", n) for key, n in numbers_of.items() if n is not None]
    for part in ("overlap", "overlap_start"):
        sourced += [(f"{part}.{kind}", number) for kind, number in getattr(profile, part)]
    return numbers + [FittedValue(name=name, value=n.value, error=math.nan) for name, n in sourced]


def medians(profile: Profile) -> dict[str, float]:
    """Median error of each table, by its name in the file."""
    errors = {f"curves.{place}": fitted.median_error for place, fitted in profile.curves.curves}
    errors |= {f"times.{times.place}": times.median_error for times in profile.curves.times}
    return errors | {name: r.provenance.median_error for name, r in kernel_records(profile.kernels)}


def parts(profile: Profile) -> dict[str, int]:
    """Count the numbers of each part that a profile has, such as ``matmul`` or ``curves``."""
    counts = Counter(_part(value.name) for value in values(profile))
    for times in profile.curves.times:
        counts["times"] += len(times.sizes)
    launch = sum(seconds is not None for seconds in (profile.curves.host, profile.curves.gap))
    if launch:
        counts["launch"] = launch
    if profile.communicator is not None:
        counts["memory"] = 1
    return dict(counts)


def _part(name: str) -> str:
    """Name the part that a number belongs to.

    >>> _part("attention.cudnn.tail"), _part("matmul.floor")
    ('attention.cudnn', 'matmul')
    """
    head, _, tail = name.partition(".")
    nested = head in ("attention", "runtimes")
    return f"{head}.{tail.partition('.')[0]}" if nested else head


def entries_to_dict(entries: Sequence[ShippedProfile]) -> dict[str, object]:
    """Return what ``planner profile list --format json`` prints."""
    return {
        "profiles": [entry.name for entry in entries],
        "details": [
            {
                "name": entry.name,
                "hardware": entry.profile.hardware,
                "date": entry.profile.date,
                "default": entry.default,
                "parts": parts(entry.profile),
            }
            for entry in entries
        ],
    }


def part_rows(first: Profile, second: Profile) -> list[list[str]]:
    """Write the parts that one of two profiles lacks, with how many numbers the other has."""
    first_parts, second_parts = parts(first), parts(second)
    return [
        [
            name,
            *(
                counted(counts[name], "number") if name in counts else "-"
                for counts in (first_parts, second_parts)
            ),
        ]
        for name in dict.fromkeys([*first_parts, *second_parts])
        if name not in first_parts or name not in second_parts
    ]


def fit_rows(profile: Profile) -> list[list[str]]:
    """Write how far to trust each table, a line each: the summary of a calibration."""
    median = medians(profile)
    return [
        [
            name,
            str(fit.rows),
            _percent(median.get(name, math.nan)),
            _percent(fit.worst_error),
            str(fit.held_out_rows),
            *map(_percent, (fit.held_out_median_error, fit.held_out_p90_error)),
            _percent(fit.held_out_worst_error),
        ]
        for name, fit in profile.fits
    ]


def failures_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """List the cases that could not be measured, and why."""
    return tuple(f"{row.key}: {row.error}" for row in rows if row.error)


def changes(first: Profile, second: Profile) -> list[Change]:
    """Compare two profiles number by number.

    Raises InputError if they are of different hardware.
    """
    if first.hardware != second.hardware:
        raise InputError(
            f"profiles of {first.hardware} and {second.hardware}: wanted the same hardware"
        )
    first_values = {value.name: value for value in values(first)}
    second_values = {value.name: value for value in values(second)}
    missing = FittedValue(name="", value=math.nan, error=math.nan)
    return [
        _change(name, first_values.get(name, missing), second_values.get(name, missing))
        for name in dict.fromkeys([*first_values, *second_values])
    ]


def _change(name: str, first: FittedValue, second: FittedValue) -> Change:
    spread = math.hypot(first.error, second.error)
    ratio = second.value / first.value if first.value else math.nan
    sigmas = abs(math.log(ratio)) / spread if spread > 0 and ratio > 0 else math.nan
    return Change(name=name, first=first.value, second=second.value, sigmas=sigmas)


def change_rows(first: Profile, second: Profile) -> list[list[str]]:
    """Write the differences of two profiles, a line each, in the parts that both have."""
    lone_parts = {row[0] for row in part_rows(first, second)}
    return [
        [
            change.name,
            _number(change.first),
            _number(change.second),
            _signed_percent(change.first, change.second),
            "-" if math.isnan(change.sigmas) else f"{change.sigmas:.1f}",
        ]
        for change in changes(first, second)
        if _part(change.name) not in lone_parts
    ]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def examples(profile: Profile) -> dict[str, float]:
    """Seconds of a few operations that people know."""
    node = find_hardware(profile.hardware)
    device, kernels = node.device, profile.kernels
    times = {
        "product 4096 x 12288 x 3072": matmul_time(
            4096, 12288, 3072, device, sustained=True, calibration=kernels
        ),
        "attention 24 x 4608 x 4608 x 128": attention_time(
            24, 4608, 4608, 128, device, sustained=True, calibration=kernels
        ),
        "copy of 1 GiB": pointwise_time(2.0 * GIB, device, kernels),
    }
    pair = node.fabric(2)
    for op in ("all_reduce", "all_gather", "all_to_all", "send_recv"):
        for size in (MIB, 64 * MIB):
            name = f"{op} of {size // MIB} MiB on 2"
            times[name] = collective_time(op, float(size), pair, calibration=profile.curves)
    return {name: float(time) for name, time in times.items()}


def example_rows(first: Profile, second: Profile) -> list[list[str]]:
    """Write what two profiles say of the examples, a line each."""
    first_times, second_times = examples(first), examples(second)
    return [
        [
            name,
            format_seconds(first_times[name]),
            format_seconds(time),
            _signed_percent(first_times[name], time),
        ]
        for name, time in second_times.items()
    ]


def to_dict(profile: Profile, name: str = "") -> dict[str, object]:
    """Return what ``planner profile show --format json`` prints."""
    median = medians(profile)
    return {
        "name": name or profile.name,
        "measured_as": profile.name,
        "hardware": profile.hardware,
        "date": profile.date,
        "source": profile.source,
        "machine": dict(profile.machine),
        "software": dict(profile.software),
        "fits": {
            name: _without_nan({"median_error": median.get(name, math.nan), **asdict(fit)})
            | {"standard_errors": dict(fit.standard_errors)}
            for name, fit in profile.fits
        },
        "values": {v.name: _without_nan(asdict(v)) for v in values(profile)},
    }


def diff_to_dict(
    first: Profile, second: Profile, called: tuple[str, str] = ("", "")
) -> dict[str, object]:
    """Return what ``planner profile diff --format json`` prints."""
    first_times, second_times = examples(first), examples(second)
    return {
        "first": called[0] or first.name,
        "second": called[1] or second.name,
        "parts": {"first": parts(first), "second": parts(second)},
        "changes": [_without_nan(asdict(change)) for change in changes(first, second)],
        "examples_s": {name: [first_times[name], second_times[name]] for name in first_times},
    }


def _without_nan(row: dict[str, object]) -> dict[str, object]:
    """Write what is not known as None: JSON has no NaN."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def _signed_percent(first: float, second: float) -> str:
    if not first or math.isnan(first) or math.isnan(second):
        return "-"
    return f"{100 * (second / first - 1):+.1f} %"


def entries_table(entries: Sequence[ShippedProfile]) -> Table:
    """Say of each profile what it is for."""
    rows = []
    for entry in entries:
        kinds = dict.fromkeys(name.partition(".")[0] for name in parts(entry.profile))
        rows.append([entry.name, entry.profile.hardware, entry.used(), ", ".join(kinds)])
    return Table(head=ENTRY_HEADERS, rows=rows, align="<")


def show(profile: Profile, name: str = "") -> list[Part]:
    """Say what a profile was measured on, how far to trust it, and what it holds.

    name : what it was asked for by; its own name where left out.
    """
    label = profile.name if name in ("", profile.name) else f"{name} ({profile.name})"
    value_rows = [[v.name, f"{v.value:.4g}", _percent(v.error)] for v in values(profile)]
    return _spaced_blocks(
        Title(text=f"{label}: {profile.source}", level=1),
        Table(head=("machine", ""), rows=(*profile.machine, *profile.software)),
        Table(head=FIT_HEADERS, rows=fit_rows(profile)),
        Table(head=VALUE_HEADERS, rows=value_rows),
    )


def diff(first: Profile, second: Profile, called: tuple[str, str] = ("", "")) -> list[Part]:
    """Say what two profiles differ in, and what that does to a few operations.

    Raises InputError if they are of different hardware.

    called : what they were asked for by; their own names where left out.
    """
    names = [name or p.name for name, p in zip(called, (first, second), strict=True)]
    missing_parts = part_rows(first, second)
    differences = change_rows(first, second)
    differing = [row for row in differences if row[1] != row[2]]
    return _spaced_blocks(
        Title(text=" and ".join(names), level=1),
        Table(head=EXAMPLE_HEADERS, rows=example_rows(first, second)),
        *(
            [Table(head=("in one of them", "first", "second"), rows=missing_parts)]
            if missing_parts
            else []
        ),
        *([Table(head=DIFF_HEADERS, rows=differing)] if differing else []),
        f"alike in both: {counted(len(differences) - len(differing), 'parameter')}",
    )


def calibration_parts(made: Calibrated) -> list[Part]:
    """Say what a calibration wrote, how good it is, and what could not be measured."""
    failure_rows = [text.partition(": ")[::2] for text in made.failures]
    return _spaced_blocks(
        Title(text=f"{made.profile.name}: {made.output}", level=1),
        Table(head=FIT_HEADERS, rows=fit_rows(made.profile)),
        *([Table(head=("not measured", "because"), rows=failure_rows)] if failure_rows else []),
    )


def _spaced_blocks(*blocks: Part) -> list[Part]:
    """Set parts apart by a line on a terminal."""
    return [part for block in blocks for part in ("", block)][1:]
