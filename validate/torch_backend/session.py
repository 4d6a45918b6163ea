"""All cases of a job on one rank: each proved, timed and written down; a failure is a row too."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

import torch

from planner.compose import objections
from topology.errors import ModelError
from validate import harness
from validate.cases import Case, Subject, look_up
from validate.compare import predict
from validate.launch.causes import is_aftermath
from validate.measured import Measured, Status, line
from validate.small import shrink
from validate.torch_backend.case_run import Bench, Ran, dtype_of, run_case
from validate.torch_backend.meeting import SETTLE_S, ApartError
from validate.torch_backend.numbers import BOUNDS, Checked, Work, check, setting_for, unsplit

FULL_BOUND: Final = 0.12
"""Largest relative error of a step at full size, in 16 bits, that rounding explains."""
PROOF_S: Final = 180
_BAD: Final = ("failed", "out of memory")
Proof = tuple[float, float, float, tuple[str, ...]]
"""Errors in 32 bits and in the case's precision, the bound of that, and what was miscounted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One rank's way through a job. proofs, wholes : what is known from earlier cases."""

    bench: Bench
    output: Path
    hardware: str
    until: float
    proofs: dict[str, Proof] = field(default_factory=dict)
    wholes: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        return self.bench.comm.rank == 0


def run_all(session: Session, cases: Sequence[Case]) -> int:
    """Run the cases that there is time for; returns how many were run."""
    ran = 0
    for number, case in enumerate(cases):
        left = session.until - time.monotonic()
        said = session.bench.meeting.say(f"{number}: time left", left)
        if cast(float, said[0]) <= _needed(session, case):
            continue
        row = _one(session, case, number)
        ran += 1
        if session.leads:
            harness.append_line(session.output / "results.jsonl", line(row))
    return ran


def _needed(session: Session, case: Case) -> float:
    """Guess the seconds that a case will take, by what is predicted of its step."""
    steady = 5 + 3 * session.bench.budget_s
    try:
        return steady + 7 * predict(case, session.hardware).step_s
    except ModelError:
        return 0.0


def _one(session: Session, case: Case, number: int) -> Measured:
    """Run a case; whatever goes wrong on any rank becomes its row."""
    try:
        subject = look_up(case, session.hardware)
        reasons = list(objections(subject.model, subject.workload, subject.plan, subject.plan.gpus))
        if reasons:
            return Measured(case=case, status="illegal", note="; ".join(reasons))
        row = _measured(session, subject, number)
    except ApartError:
        raise
    except Exception as error:  # noqa: BLE001  # recorded, and the run goes on
        row = Measured(case=case, status=_status(error), note=_said(error))
    return _agreed(session, row, number)


def _status(error: Exception) -> Status:
    full = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
    return "out of memory" if full else "failed"


def _said(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300] if isinstance(error, ModelError) else f"{type(error).__name__}: {text[:300]}"


def _agreed(session: Session, row: Measured, number: int) -> Measured:
    """Hear what became of the case on every rank: it failed if it did on any.

    Raises
    ------
    ApartError
        If it failed here, and other ranks, which wait for this one, cannot be told.
    """
    bad, say = row.status in _BAD, session.bench.meeting.say
    if not bad:
        words = say(f"{number}: outcome", [row.status, row.note])
    else:
        session.bench.progress.phase(f"agreeing on case {number + 1}", 4 * SETTLE_S)
        try:
            words = say(f"{number}: outcome", [row.status, row.note], SETTLE_S)
        except ApartError:
            raise ApartError(f"{row.status}: {row.note}") from None
    said = [(rank, *cast("tuple[Status, str]", one)) for rank, one in enumerate(words)]
    bad_ones = [one for one in said if one[1] in (*_BAD, "wrong")]
    if not bad_ones:
        return row
    rank, status, note = min(bad_ones, key=lambda one: (is_aftermath(one[2]), one[0]))
    return replace(row, status=status, note=f"rank {rank}: {note}")


def _measured(session: Session, subject: Subject, number: int) -> Measured:
    bench, case = session.bench, subject.case
    name = f"case {number + 1} ({case.key})"
    proof = _proof(session, subject, name)
    ran = run_case(subject, bench, name)
    full = _full(session, subject, ran.output)
    row = _row(subject, ran, proof, full)
    row = replace(row, note="; ".join(part for part in (row.note, _remark(session, case)) if part))
    words = bench.meeting.say(f"{number}: results", _numbers(row))
    merged = _merged(row, [cast("dict[str, float]", one) for one in words])
    if not session.leads:
        return merged
    seen = harness.gpu()
    return replace(
        merged, clock_hz=seen.clock_hz, power_w=seen.power_w, temperature_c=seen.temperature_c
    )


def _proof(session: Session, subject: Subject, name: str) -> Proof:
    """Run the plan at a small size on the reference's numbers; once for all ways to launch."""
    case, bench = subject.case, session.bench
    key = f"{subject.case.subject} | {case.plan} | {subject.workload.text_tower}"
    if key not in session.proofs:
        bench.progress.phase(f"proof of {name}", PROOF_S)
        model, workload = shrink(subject.model, subject.workload, subject.plan)
        work = Work(model=model, workload=workload, plan=subject.plan)
        whole = unsplit(work)
        found: list[Checked] = []
        for dtype in (torch.float32, bench.dtype or dtype_of(case.precision)):
            setting = setting_for(work, bench.comm.rank, bench.device, dtype)
            found.append(check(work, bench.comm, setting, whole=whole))
        exact, rough = found
        missed = () if exact.error <= exact.bound else (f"error {exact.error:.2g} in 32 bits",)
        miscounted = (*missed, *exact.miscounted, *rough.miscounted)
        session.proofs[key] = (exact.error, rough.error, rough.bound, miscounted)
    return session.proofs[key]


def _full(session: Session, subject: Subject, output: torch.Tensor | None) -> tuple[float, str]:
    """Compare a step's result at full size with that of the first plan that ran."""
    if output is None or subject.plan.degree("dp") > 1:
        return 0.0, ""
    key = subject.case.subject
    if key not in session.wholes:
        session.wholes.clear()
        session.wholes[key] = (f"{subject.plan} {subject.case.mode}", output)
        return 0.0, ""
    against, whole = session.wholes[key]
    scale = float(torch.linalg.vector_norm(whole))
    return float(torch.linalg.vector_norm(output - whole)) / scale, against


def _remark(session: Session, case: Case) -> str:
    """Say what is to be known about how a case was run."""
    said = []
    if case.mode == "graph" and session.bench.device.type != "cuda":
        said.append("compiled, no graph on a CPU")
    if case.mode != "eager" and session.bench.fuser.failures:
        failures = session.bench.fuser.failures
        said.append(f"{len(failures)} pieces not compiled ({failures[-1][:80]})")
    return "; ".join(said)


def _row(subject: Subject, ran: Ran, proof: Proof, full: tuple[float, str]) -> Measured:
    exact, rough, bound, miscounted = proof
    wrong = [*miscounted, *ran.miscounted]
    wrong += [f"error {rough:.2g} where {bound:g} is allowed"] if not rough <= bound else []
    allowed = max(FULL_BOUND, bound)
    wrong += [f"error {full[0]:.2g} at full size"] if not full[0] <= allowed else []
    return Measured(
        case=subject.case,
        status="wrong" if wrong else "done",
        note="; ".join(wrong)[:300],
        step_s=ran.times.median,
        wall_s=ran.times.wall,
        low_s=min(ran.times.each),
        high_s=max(ran.times.each),
        repeats=len(ran.times.each),
        classes_s=ran.classes,
        memory_bytes=ran.memory_bytes,
        reserved_bytes=ran.reserved_bytes,
        process_bytes=ran.process_bytes,
        compile_s=ran.compile_s,
        capture_s=ran.capture_s,
        error=rough,
        bound=bound,
        exact_error=exact,
        full_error=full[0],
        full_against=full[1],
        counts={" ".join(map(str, key)): count for key, count in sorted(ran.counts.items())},
        distinct_layers=ran.distinct,
        kernels=ran.kernels,
    )


_LARGEST: Final = (
    "step_s", "wall_s", "low_s", "high_s", "memory_bytes", "reserved_bytes", "process_bytes",
    "compile_s", "capture_s", "error", "exact_error", "full_error",
)  # fmt: skip


def _numbers(row: Measured) -> dict[str, float]:
    numbers = {name: float(getattr(row, name)) for name in _LARGEST}
    return {**numbers, **{f"class {kind}": value for kind, value in row.classes_s.items()}}


def _merged(row: Measured, words: Sequence[dict[str, float]]) -> Measured:
    """Largest of what all ranks found."""
    top = {name: max(one.get(name, 0.0) for one in words) for name in words[0]}
    return replace(
        row,
        classes_s={kind: top[f"class {kind}"] for kind in row.classes_s},
        **{name: top[name] for name in _LARGEST},  # type: ignore[arg-type]  # all are numbers
    )


__all__ = ["BOUNDS", "Session", "run_all"]
