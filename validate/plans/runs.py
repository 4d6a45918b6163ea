"""Run cases on all ranks of this host, start again after a death, and keep what was found."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from topology.base import InputError, ModelError
from validate.launch import LaunchResult, Limits, Place, launch
from validate.plans import host, system
from validate.plans.cases import Case, digest_of
from validate.plans.checks import check_product
from validate.plans.host import Facts, problems, remarks
from validate.plans.measured import Kept, Measured, kept, line, read_measured, remaining

DEATHS: Final = 6
"""Times that ranks may die before a run is given up."""
Work = Callable[[Place, Mapping[str, object], Path], object]
"""What a rank does: it runs the cases of a job, and writes rows into a folder."""
_BEFORE: Final = ("", "start", "rendezvous", "reading the job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How cases are run.

    gpus : ranks on this host. device : ``cuda``, or ``cpu`` with gloo. compiler : backend of
    torch.compile. budget_s : seconds to repeat a case. seconds : for all cases; what is left then
    stays undone. module : that a rank runs. retry : run again what was out of memory or wrong, too.
    """

    gpus: int
    hardware: str = "h100-sxm"
    device: str = "cuda"
    compiler: str = "inductor"
    budget_s: float = 2.0
    seconds: float = 3000
    limits: Limits = Limits()
    module: str = "validate.torch.worker"
    retry: bool = False

    def machine(self, facts: Facts) -> str:
        """Name what results are measured on and with: rows of anything else are not used.

        >>> Options(gpus=2, device="cpu").machine(Facts(seen={"torch": "2.11"}, processor="EPYC"))
        '2 ranks on EPYC, torch 2.11, inductor'
        """
        if self.device == "cpu":
            host, names = f"{self.gpus} ranks on {facts.processor or 'a CPU'}", ["torch"]
        else:
            host = f"{self.gpus} x {(facts.words('gpus') or ['GPU'])[0]}"
            names = ["torch", "cuda", "cudnn", "nccl"]
        versions = [f"{name} {facts.seen[name]}" for name in names if facts.seen.get(name)]
        driver = [f"driver {facts.driver}"] if facts.driver and self.device != "cpu" else []
        return ", ".join([host, *versions, *driver, self.compiler])

    def job(
        self, cases: Iterable[Case], seconds: float, past: "Past | None" = None
    ) -> dict[str, object]:
        """Write down what the ranks are to do; `past` says on what, and how often it was tried."""
        return {
            "hardware": self.hardware,
            "device": self.device,
            "backend": self.compiler,
            "budget_s": self.budget_s,
            "seconds": seconds,
            "machine": past.machine if past else "",
            "attempts": dict(past.kept.attempts) if past else {},
            "cases": [case.to_dict() for case in cases],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What there is when a run begins: results that stand, on which machine, behind what mark.

    digests : of the cases, by their keys. mark : characters of the results so far.
    """

    kept: Kept
    machine: str
    digests: Mapping[str, str]
    mark: int


def run(
    cases: Sequence[Case],
    options: Options,
    output: Path,
    tell: Callable[[str], None] = system.complain,
) -> list[Measured]:
    """Run what has no result on this machine yet; rows are on the disk as soon as they are known.

    Raises InputError if this host lacks something; before any GPU is touched. Raises ModelError if
    the ranks cannot start, or die again and again.

    output : folder of ``results.jsonl``; what is there is kept.
    """
    begun, deaths = time.monotonic(), 0
    past = _past(cases, options, output, options.gpus, tell)
    todo = list(past.kept.todo)
    while todo:
        left = options.seconds - (time.monotonic() - begun)
        if left <= 0:
            break
        ended = _attempt(options.job(todo, left, past), options, output, tell)
        if ended.ok:
            break
        open_cases = remaining(todo, _fresh(output, past))
        if not open_cases:
            tell(f"after the last case: {ended.message}")
            break
        deaths += 1
        if ended.phase in _BEFORE or deaths > DEATHS:
            raise ModelError(ended.message)
        lost = _lost(_case_of(ended, todo, open_cases[0]), ended, past)
        tell(f"{lost.key}: {ended.message}")
        if lost.case in open_cases:
            system.append_line(output / "results.jsonl", line(lost))
        todo = remaining(open_cases, [lost])
    return _of(cases, output, past)


def run_as(
    place: Place,
    cases: Sequence[Case],
    options: Options,
    output: Path,
    work: Work,
) -> list[Measured] | None:
    """Run cases as one of the ranks that somebody else has started, as torchrun and mpirun do.

    Raises InputError, ModelError as `run` does; a rank that does not arrive, or is lost, is named.

    Returns
    -------
    list of Measured
        On rank 0; None on the others, which only take part.
    """
    if place.rank:
        work(place, options.job(cases, options.seconds), output)
        return None
    past = _past(cases, options, output, place.here or place.world, system.complain)
    work(place, options.job(past.kept.todo, options.seconds, past), output)
    return _of(cases, output, past)


def _past(
    cases: Sequence[Case],
    options: Options,
    output: Path,
    here: int,
    tell: Callable[[str], None],
) -> Past:
    """Look at this host, on which `here` of the ranks are, and at the results that there are."""
    facts = host.facts()
    _look(facts, options, here, tell)
    machine = options.machine(facts)
    digests = {case.key: digest_of(case, options.hardware) for case in cases}
    text, name = _whole(output), str(output / "results.jsonl")
    rows = kept(cases, read_measured(text, name), machine, digests, retry=options.retry)
    for remark in rows.remarks:
        tell(remark)
    return Past(kept=rows, machine=machine, digests=digests, mark=len(text))


def _look(facts: Facts, options: Options, here: int, tell: Callable[[str], None]) -> None:
    missing = problems(facts, here, options.device)
    if missing:
        raise InputError("; ".join(missing))
    if options.device == "cuda":
        check_product(options.hardware, facts.words("gpus")[0], tell)
    for remark in remarks(facts, here):
        tell(remark)


def _whole(output: Path) -> str:
    """Read the results without a last line that was cut off."""
    text = system.read(output / "results.jsonl")
    return text[: text.rfind("\n") + 1]


def _fresh(output: Path, past: Past) -> list[Measured]:
    """Read the results of this run alone."""
    return read_measured(_whole(output)[past.mark :], str(output / "results.jsonl"))


def _of(cases: Sequence[Case], output: Path, past: Past) -> list[Measured]:
    """Return what is known of the cases now, in their order."""
    rows = {row.key: row for row in (*past.kept.rows, *_fresh(output, past))}
    return [rows[case.key] for case in cases if case.key in rows]


def _attempt(
    job: Mapping[str, object], options: Options, output: Path, tell: Callable[[str], None]
) -> LaunchResult:
    path, seconds = output / "job.json", float(cast(float, job["seconds"]))
    system.write(path, json.dumps(job, indent=1))
    argv = [sys.executable, "-m", options.module, "--job", str(path), "--output", str(output)]
    limits = replace(options.limits, total_s=min(options.limits.total_s, seconds + 20))
    return launch(
        options.gpus,
        argv,
        limits=limits,
        env=system.children(),
        log_dir=output / "logs",
        tell=tell,
    )


def _case_of(ended: LaunchResult, todo: Sequence[Case], following: Case) -> Case:
    """Find the case that ranks died of: its phase names it by number, or it is the following one.

    It can have its row: ranks that fail together are ended while they say so.
    """
    named = re.search(r"case (\d+)", ended.phase)
    return todo[int(named[1]) - 1] if named else following


def _lost(case: Case, ended: LaunchResult, past: Past) -> Measured:
    full = "out of memory" in ended.message.lower()
    return Measured(
        case=case,
        status="out of memory" if full else "failed",
        note=ended.message[:300],
        machine=past.machine,
        digest=past.digests[case.key],
        attempts=past.kept.attempts[case.key],
    )
