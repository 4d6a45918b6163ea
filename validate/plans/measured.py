"""What a case gave: a line of JSON each; and which lines of earlier runs still stand."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from math import inf, isfinite
from typing import Final, Literal, get_args

from planner.models.fields import Fields, parse
from topology.base import InputError, counted, unknown
from topology.base.values import dataclass
from validate.plans.cases import Case, read_case

Status = Literal["done", "wrong", "out of memory", "failed", "illegal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of one case, over all ranks the largest.

    status : ``wrong`` where it ran, and what it gave is not the unsplit result. note : why it is
        not done, or what is to be known about it.
    step_s, mean_s, wall_s : median and mean by the device's clock, and mean by the host's, which
        has what the host adds around a step. low_s, high_s : least and most of `repeats`.
    classes_s : busy seconds by class of operation, each operation alone on the device;
        communication from when the last rank is there. waiting_s : most that a rank waited for
        another one before that. classes_by : how classes were taken.
    memory_bytes, reserved_bytes, process_bytes : most that tensors took, that PyTorch held, and
        that was taken of the device in all. cache_tokens : whose keys and values an engine has
        room for; it takes all of the memory that is left.
    compile_s, capture_s : before the first step.
    error, bound : of the split result at a small size, in the case's precision; `exact_error` in
        32 bits. full_error, full_bound : at full size, against `full_against`, over all values;
        row_error : of the row that is furthest off.
    counts : collectives issued in a step, by kind, axis and bytes. distinct_layers : with weights
        of their own, 0 for all.
    clock_hz, power_w, temperature_c : of the first GPU, right after the last step.
    machine : what it was measured on and with. digest : of the model and the request, all numbers.
    attempts : times that the case was run on this machine, this one included.
    """

    case: Case
    status: Status
    note: str = ""
    step_s: float = 0.0
    mean_s: float = 0.0
    wall_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    repeats: int = 0
    classes_s: Mapping[str, float] = field(default_factory=dict)
    classes_by: str = ""
    waiting_s: float = 0.0
    memory_bytes: float = 0.0
    reserved_bytes: float = 0.0
    process_bytes: float = 0.0
    cache_tokens: int = 0
    compile_s: float = 0.0
    capture_s: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    exact_error: float = 0.0
    full_error: float = 0.0
    full_bound: float = 0.0
    row_error: float = 0.0
    full_against: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    distinct_layers: int = 0
    kernels: str = ""
    clock_hz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    machine: str = ""
    digest: str = ""
    attempts: int = 1

    @property
    def key(self) -> str:
        return self.case.key

    def to_dict(self) -> dict[str, object]:
        """Return what one line of the results says; numbers with six digits, and whole bytes.

        An error that is no number, as of a result that is none, is null: JSON has no other word.
        """
        fields = {name: _rounded(value) for name, value in asdict(self).items()}
        fields |= {name: round(getattr(self, name)) for name in fields if name.endswith("_bytes")}
        return {**fields, "case": self.case.to_dict()}


def failed(case: Case, note: str) -> Measured:
    """Say that a case gave nothing, and why."""
    out_of_memory = "out of memory" in note.lower()
    return Measured(case=case, status="out of memory" if out_of_memory else "failed", note=note)


_DEFAULTS: Final[Mapping[str, object]] = {
    name: value
    for name, value in asdict(Measured(case=Case(model=""), status="done")).items()
    if name not in ("case", "status")
}
_MAX_VALUE: Final = 10**18
_ERRORS: Final = ("error", "exact_error", "full_error", "row_error")


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value


def line(row: Measured) -> str:
    """Write a result as one line."""
    return json.dumps(row.to_dict(), separators=(",", ":"), allow_nan=False)


def read_measured(text: str, name: str = "results") -> list[Measured]:
    """Read results; a last line without its end is a write that was cut off, and dropped.

    A case that was run again counts as it was the last time, on each machine.

    Raises InputError if any other line is no result.
    """
    rows: dict[tuple[str, str, str], Measured] = {}
    for number, content in enumerate(text.split("\n")[:-1], 1):
        if content.strip():
            row = _read_row(content, f"{name}, line {number}")
            row_key = (row.key, row.machine, row.digest)
            rows.pop(row_key, None)
            rows[row_key] = row
    return list(rows.values())


def _read_row(content: str, where: str) -> Measured:
    fields = parse(content, where)
    case = fields.table("case")
    unknown_fields = fields.values.keys() - {"case", "status", *_DEFAULTS}
    if case is None or unknown_fields:
        raise InputError(f"{where}: got {content[:40]!r}, wanted one result")
    status = next(
        (candidate for candidate in get_args(Status) if candidate == fields.text("status")), None
    )
    if status is None:
        raise unknown(f"status in {where}", fields.text("status"), get_args(Status))
    field_values = {
        name: _field_value(fields, name, _DEFAULTS[name])
        for name in fields.values
        if name in _DEFAULTS
    }
    row = Measured(case=read_case(case.values, case.where), status=status, **field_values)  # type: ignore[arg-type]  # as defaults are
    if status == "done" and not row.step_s:
        raise fields.refused("step_s", row.step_s, "seconds, of a case that is done")
    return row


def _field_value(fields: Fields, name: str, default: object) -> object:
    """Read a field that is there as what it usually is."""
    if fields.values[name] is None:
        if name in _ERRORS:
            return inf
        raise fields.refused(name, None, "a value")
    if isinstance(default, str):
        return fields.text(name)
    if isinstance(default, int):
        return fields.integer(name, low=0, high=_MAX_VALUE)
    if isinstance(default, float):
        return fields.number(name, high=_MAX_VALUE)
    table = fields.table(name)
    return {key: table.number(key, high=_MAX_VALUE) for key in table.values} if table else {}


def remaining(cases: Iterable[Case], rows: Iterable[Measured]) -> list[Case]:
    """Cases that have no result yet."""
    done = {row.key for row in rows}
    return [case for case in cases if case.key not in done]


RERUN_STATUSES: Final = ("failed",)
"""What is run again at the next call: a rank died or was late, which may not happen twice."""
RETRY_STATUSES: Final = ("failed", "out of memory", "wrong")
"""What is run again where that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCases:
    """What stands, and what is to be run.

    rows : of the cases that stand. todo : cases to run. attempts : of a case by its key, the next
    one included. others : rows of the cases that are another machine's or another model's.
    """

    rows: tuple[Measured, ...]
    todo: tuple[Case, ...]
    attempts: Mapping[str, int]
    others: int

    @property
    def remarks(self) -> list[str]:
        """Say what is not used as it stands, and why, a line each."""
        lines = []
        if self.others:
            lines.append(f"{counted(self.others, 'row')} of another machine or model left alone")
        repeated = sum(number > 1 for number in self.attempts.values())
        if repeated:
            lines.append(f"{counted(repeated, 'case')} run again")
        oom_cases = sum(row.status == "out of memory" for row in self.rows)
        if oom_cases:
            lines.append(
                f"{counted(oom_cases, 'case')} out of memory earlier, not run again without --retry"
            )
        return lines


def kept(
    cases: Sequence[Case],
    rows: Iterable[Measured],
    machine: str,
    digests: Mapping[str, str],
    *,
    retry: bool = False,
) -> KeptCases:
    """Part the rows of earlier runs.

    machine : this one, in the words of its rows. digests : of the cases, by their keys.
    retry : run again what was out of memory or wrong, too.
    """
    earlier = [row for row in rows if row.key in digests]
    own_rows = {
        row.key: row for row in earlier if (row.machine, row.digest) == (machine, digests[row.key])
    }
    rerun = RETRY_STATUSES if retry else RERUN_STATUSES
    valid_rows = {key: row for key, row in own_rows.items() if row.status not in rerun}
    todo = tuple(case for case in cases if case.key not in valid_rows)
    return KeptCases(
        rows=tuple(valid_rows[case.key] for case in cases if case.key in valid_rows),
        todo=todo,
        attempts={
            case.key: own_rows[case.key].attempts + 1 if case.key in own_rows else 1
            for case in todo
        },
        others=len(earlier) - len(own_rows),
    )
