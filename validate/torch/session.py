"""All cases of a job on one rank: each proved, timed and written down; a failure is a row too."""

import time
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final, cast

import torch

from topology.base import ModelError
from topology.base.values import dataclass
from validate.launch import is_aftermath
from validate.plans import system
from validate.plans.cases import Case, Subject, look_up
from validate.plans.compare import predict
from validate.plans.job import Job
from validate.plans.measured import Measured, Status, failed, line
from validate.reference import shrink
from validate.torch.case_run import COMPILE_S, Bench, Ran, dtype_of, fuser_for, run_case
from validate.torch.full import Full, Wholes, full_comparison, is_known, replica_distance, sample
from validate.torch.proof import Checked, ProvedWork, check, setting_for, unsplit
from validate.torch.rendezvous import SETTLE_S, ApartError

PROOF_S: Final = 180
_FAILURES: Final = ("failed", "out of memory")
Checks = tuple[Checked, Checked]
"""Of a plan at a small size: in 32 bits, and in the case's precision as the case is launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One rank's way through a job.

    until : of `time.monotonic`. proofs, wholes : what is known from earlier cases.
    """

    bench: Bench
    output: Path
    job: Job
    until: float
    proofs: dict[str, Checks] = field(default_factory=dict)
    wholes: Wholes = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        return self.bench.comm.rank == 0


def run_all(session: Session, cases: Sequence[Case]) -> int:
    """Run the cases that there is time for; returns how many were run."""
    case_count = 0
    for number, case in enumerate(cases):
        time_left = session.until - time.monotonic()
        times_left = session.bench.rendezvous.say(f"{number}: time left", time_left)
        if cast(float, times_left[0]) <= _needed_seconds(session, case):
            continue
        row = _case_row(session, case, number)
        case_count += 1
        if session.leads:
            system.append_line(session.output / "results.jsonl", line(session.job.named(row)))
    return case_count


def _needed_seconds(session: Session, case: Case) -> float:
    """Guess the seconds that a case will take, by what is predicted of its step."""
    steady = 5 + 3 * session.bench.budget_s
    try:
        return steady + 10 * predict(case, session.job.hardware).step_s
    except ModelError:
        return 0.0


def _case_row(session: Session, case: Case, number: int) -> Measured:
    """Run a case; whatever goes wrong on any rank becomes its row."""
    try:
        subject = look_up(case, session.job.hardware)
        if subject.objections:
            return Measured(case=case, status="illegal", note=subject.objections)
        row = _measured_row(session, subject, number)
    except ApartError:
        raise
    except Exception as error:  # noqa: BLE001  # recorded, and the run goes on
        row = _failed_row(case, error)
    return _agreed_row(session, row, number)


def _failed_row(case: Case, error: Exception) -> Measured:
    kind = type(error).__name__
    text = " ".join(str(error).split())[:300] or kind
    row = failed(case, text if isinstance(error, ModelError) else f"{kind}: {text}")
    out_of_memory = (
        isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
    )
    return replace(row, status="out of memory") if out_of_memory else row


def _agreed_row(session: Session, row: Measured, number: int) -> Measured:
    """Hear what became of the case on every rank: it failed if it did on any.

    Raises ApartError if it failed here, and other ranks, which wait for this one, cannot be told.
    """
    is_bad, say = row.status in _FAILURES, session.bench.rendezvous.say
    if not is_bad:
        words = say(f"{number}: outcome", [row.status, row.note])
    else:
        session.bench.progress.phase(f"agreeing on case {number + 1}", 4 * SETTLE_S)
        try:
            words = say(f"{number}: outcome", [row.status, row.note], SETTLE_S)
        except ApartError:
            raise ApartError(f"{row.status}: {row.note}") from None
    outcomes = [(rank, *cast("tuple[Status, str]", outcome)) for rank, outcome in enumerate(words)]
    failures = [outcome for outcome in outcomes if outcome[1] in (*_FAILURES, "wrong")]
    if not failures:
        return row
    rank, status, note = min(failures, key=lambda outcome: (is_aftermath(outcome[2]), outcome[0]))
    return replace(row, status=status, note=f"rank {rank}: {note}")


def _measured_row(session: Session, subject: Subject, number: int) -> Measured:
    bench, case = session.bench, subject.case
    name = f"case {number + 1} ({case.key})"
    proof = _proof(session, subject, name)
    known_somewhere = bench.rendezvous.say(
        f"{number}: known", is_known(session.wholes, subject, bench)
    )
    own_run = run_case(subject, bench, name, first=not any(known_somewhere))
    comparison = full_comparison(session.wholes, subject, bench, own_run)
    replica_gap = replica_distance(
        bench.rendezvous.say(f"{number}: sample", sample(subject, bench, own_run.output))
    )
    row = _judged_row(own_run, proof, replace(comparison, replicas=replica_gap))
    row = replace(row, note="; ".join(part for part in (row.note, _remark(session, case)) if part))
    words = bench.rendezvous.say(f"{number}: results", _numbers(row))
    merged = _merged_row(row, [cast("dict[str, float]", word) for word in words])
    if not session.leads:
        return merged
    gpu = system.gpu()
    return replace(
        merged, clock_hz=gpu.clock_hz, power_w=gpu.power_w, temperature_c=gpu.temperature_c
    )


def _proof(session: Session, subject: Subject, name: str) -> Checks:
    """Run the plan at a small size on the reference's numbers, by the kernels that are timed.

    In 32 bits by kernels one by one, which proves the split; in the case's precision as the case
    is launched, compiled where it is compiled. What a graph replays is compared at full size.
    """
    case, bench = subject.case, session.bench
    fuser = fuser_for(case.mode, bench.fuser)
    kernels = "one by one" if fuser is None else f"compiled, products {fuser.products}"
    key = f"{case.subject} | {case.plan} | {subject.workload.habits.text_tower} | {kernels}"
    if key not in session.proofs:
        bench.progress.phase(f"proof of {name}", PROOF_S if fuser is None else PROOF_S + COMPILE_S)
        bench.fuser.begin()
        model, workload = shrink(subject.model, subject.workload, subject.plan)
        work = ProvedWork(model=model, workload=workload, plan=subject.plan)
        reference = unsplit(work)

        def checked(dtype: torch.dtype) -> Checked:
            setting = setting_for(work, bench.comm.rank, bench.device, dtype)
            case_fuser = None if dtype == torch.float32 else fuser

            def say(topic: str, words: object) -> list[object]:
                return bench.rendezvous.say(f"{name}: {topic} in {dtype}", words)

            return check(work, bench.comm, setting, fuser=case_fuser, whole=reference, say=say)

        case_dtype = dtype_of(case.precision)
        session.proofs[key] = (checked(torch.float32), checked(case_dtype))
    return session.proofs[key]


def _remark(session: Session, case: Case) -> str:
    """Say what is to be known about how a case was run."""
    remarks = []
    if case.mode == "graph" and session.bench.device.type != "cuda":
        remarks.append("compiled, no graph on a CPU")
    if case.mode != "eager" and session.bench.fuser.failures:
        failures = session.bench.fuser.failures
        remarks.append(f"{len(failures)} pieces not compiled ({failures[-1][:80]})")
    return "; ".join(remarks)


def _judged_row(own_run: Ran, proof: Checks, comparison: Full) -> Measured:
    """Judge what a rank found: by the proofs at a small size, by its counts, and at full size."""
    exact, rough = proof
    faults = list(dict.fromkeys(checked.untrue for checked in proof if checked.untrue))
    faults += [] if exact.error <= exact.bound else [f"error {exact.error:.2g} in 32 bits"]
    faults += [*exact.miscounted, *rough.miscounted, *own_run.miscounted]
    if not rough.error <= rough.bound:
        faults.append(f"error {rough.error:.2g} where {rough.bound:g} is allowed")
    faults += comparison.complaints
    return replace(
        own_run.row,
        status="wrong" if faults else "done",
        note="; ".join(faults)[:300],
        error=rough.error,
        bound=rough.bound,
        exact_error=exact.error,
        full_error=comparison.error,
        full_bound=comparison.bound,
        row_error=comparison.row,
        full_against=comparison.against,
    )


_LARGEST_FIELDS: Final = (
    "step_s", "mean_s", "wall_s", "low_s", "high_s", "memory_bytes", "reserved_bytes",
    "process_bytes", "compile_s", "capture_s", "error", "exact_error", "full_error",
    "row_error", "waiting_s",
)  # fmt: skip


def _numbers(row: Measured) -> dict[str, float]:
    numbers = {name: float(getattr(row, name)) for name in _LARGEST_FIELDS}
    return {**numbers, **{f"class {kind}": value for kind, value in row.classes_s.items()}}


def _merged_row(row: Measured, rank_numbers: Sequence[dict[str, float]]) -> Measured:
    """Largest of what all ranks found."""
    largest = {
        name: max(numbers.get(name, 0.0) for numbers in rank_numbers) for name in rank_numbers[0]
    }
    return replace(
        row,
        classes_s={kind: largest[f"class {kind}"] for kind in row.classes_s},
        **{name: largest[name] for name in _LARGEST_FIELDS},  # type: ignore[arg-type]  # all are numbers
    )
