"""Run cases on all ranks of this host, start again after a death, and keep what was found."""

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from topology.base import InputError, ModelError
from topology.base.values import dataclass
from validate.launch import LaunchResult, Place, TimeLimits, launch
from validate.plans import host, system
from validate.plans.cases import Case, digest_of
from validate.plans.checks import check_product
from validate.plans.host import Facts, problems, remarks
from validate.plans.job import Job
from validate.plans.measured import (
    KeptCases,
    Measured,
    failed,
    kept,
    line,
    read_measured,
    remaining,
)

RESULTS: Final = "results.jsonl"
EXECUTED_BY: Final = "validate.torch.worker"
"""What a rank of the planner's own executor runs."""
DEATHS: Final = 6
"""Times that ranks may die before a run is given up."""
Work = Callable[[Place, Job, Path], object]
"""What a rank does: it runs the cases of a job, and writes rows into a folder."""
_START_PHASES: Final = ("", "start", "rendezvous", "reading the job")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the cases of a job are run.

    gpus : ranks on this host. device : ``cuda``, or ``cpu`` with gloo. compiler : backend of
    torch.compile. processes : that are started, 0 for one a GPU.
    budget_s : seconds to repeat a case. seconds : for all cases; what is left then
    stays undone. retry : run again what was out of memory or wrong, too.
    """

    gpus: int
    hardware: str = "h100-sxm"
    device: str = "cuda"
    compiler: str = "inductor"
    budget_s: float = 2.0
    processes: int = 0
    seconds: float = 3000
    limits: TimeLimits = TimeLimits()
    module: str = EXECUTED_BY
    retry: bool = False

    def machine(self, facts: Facts) -> str:
        """Name what results are measured on and with: rows of anything else are not used.

        >>> facts = Facts(seen={"torch": "2.11"}, processor="EPYC")
        >>> RunOptions(gpus=2, device="cpu").machine(facts)
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

    def job(self, cases: Sequence[Case], seconds: float, run: "CasesToRun | None" = None) -> Job:
        """Make the job of the ranks; `run` says on what, and how often it was tried."""
        return Job(
            cases=cases,
            hardware=self.hardware,
            device=self.device,
            backend=self.compiler,
            budget_s=self.budget_s,
            seconds=seconds,
            machine=run.machine if run else "",
            attempts=run.kept.attempts if run else {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesToRun:
    """Cases to run, and what there is before: results that stand, on which machine.

    digests : of the cases, by their keys. mark : characters of the results so far.
    """

    cases: Sequence[Case]
    options: RunOptions
    output: Path
    kept: KeptCases
    machine: str
    digests: Mapping[str, str]
    mark: int

    def fresh(self) -> list[Measured]:
        """Read the results of this run alone."""
        text, name = _complete_results(self.output)
        return read_measured(text[self.mark :], name)

    def results(self) -> list[Measured]:
        """Return what is known of the cases now, in their order."""
        rows = {row.key: row for row in (*self.kept.rows, *self.fresh())}
        return [rows[case.key] for case in self.cases if case.key in rows]


def run(
    cases: Sequence[Case],
    options: RunOptions,
    output: Path,
    tell: Callable[[str], None] = system.complain,
) -> list[Measured]:
    """Run what has no result on this machine yet; rows are on the disk as soon as they are known.

    Raises InputError if this host lacks something; before any GPU is touched. Raises ModelError if
    the ranks cannot start, or die again and again.

    output : folder of ``results.jsonl``; what is there is kept.
    """
    start, deaths = time.monotonic(), 0
    session = _begin(cases, options, output, options.gpus, tell)
    todo = list(session.kept.todo)
    while todo:
        time_left = options.seconds - (time.monotonic() - start)
        if time_left <= 0:
            break
        result = _attempt(session, todo, time_left, tell)
        if result.ok:
            break
        open_cases = remaining(todo, session.fresh())
        if not open_cases:
            tell(f"after the last case: {result.message}")
            break
        deaths += 1
        if result.phase in _START_PHASES or deaths > DEATHS:
            raise ModelError(result.message)
        # ranks that fail together are ended while they say so: the case can have its row
        case_match = re.search(r"case (\d+)", result.phase)
        lost_row = _lost_row(
            todo[int(case_match[1]) - 1] if case_match else open_cases[0], result, session
        )
        tell(f"{lost_row.key}: {result.message}")
        if lost_row.case in open_cases:
            system.append_line(output / RESULTS, line(lost_row))
        todo = remaining(open_cases, [lost_row])
    _tell_undone(session, tell)
    return session.results()


def _tell_undone(session: CasesToRun, tell: Callable[[str], None]) -> None:
    """Say which cases the seconds did not last for: they have no row."""
    for case in remaining(session.kept.todo, session.fresh()):
        tell(
            f"{case.key}: not run: {session.options.seconds:g} s are too few; --seconds gives more"
        )


def run_as(
    place: Place, cases: Sequence[Case], options: RunOptions, output: Path, work: Work
) -> list[Measured] | None:
    """Run cases as one of the ranks that somebody else has started, as torchrun and mpirun do.

    Returns None on all but rank 0: they only take part. Raises InputError, ModelError as `run`
    does; a rank that does not arrive, or is lost, is named.
    """
    if place.rank:
        work(place, options.job(cases, options.seconds), output)
        return None
    session = _begin(cases, options, output, place.here or place.world, system.complain)
    work(place, options.job(session.kept.todo, options.seconds, session), output)
    _tell_undone(session, system.complain)
    return session.results()


def _begin(
    cases: Sequence[Case],
    options: RunOptions,
    output: Path,
    on_host: int,
    tell: Callable[[str], None],
) -> CasesToRun:
    """Look at this host, on which `on_host` of the ranks are, and at the results that there are."""
    facts = host.facts()
    missing = problems(facts, on_host, options.device)
    if missing:
        raise InputError("; ".join(missing))
    if options.device == "cuda":
        check_product(options.hardware, facts.words("gpus")[0], tell)
    for remark in remarks(facts, on_host):
        tell(remark)
    machine = options.machine(facts)
    digests = {case.key: digest_of(case, options.hardware) for case in cases}
    text, name = _complete_results(output)
    rows = kept(cases, read_measured(text, name), machine, digests, retry=options.retry)
    for remark in rows.remarks:
        tell(remark)
    return CasesToRun(
        cases=cases,
        options=options,
        output=output,
        kept=rows,
        machine=machine,
        digests=digests,
        mark=len(text),
    )


def _complete_results(output: Path) -> tuple[str, str]:
    """Read the results without a last line that was cut off; and their name."""
    text = system.read(output / RESULTS)
    return text[: text.rfind("\n") + 1], str(output / RESULTS)


def _attempt(
    session: CasesToRun, todo: Sequence[Case], time_left: float, tell: Callable[[str], None]
) -> LaunchResult:
    options, output, path = session.options, session.output, session.output / "job.json"
    system.write(path, json.dumps(options.job(todo, time_left, session).to_dict(), indent=1))
    argv = [sys.executable, "-m", options.module, "--job", str(path), "--output", str(output)]
    return launch(
        options.processes or options.gpus,
        argv,
        limits=replace(options.limits, total_s=min(options.limits.total_s, time_left + 20)),
        env=system.children(),
        log_dir=output / "logs",
        tell=tell,
    )


def _lost_row(case: Case, result: LaunchResult, session: CasesToRun) -> Measured:
    return replace(
        failed(case, result.message[:300]),
        machine=session.machine,
        digest=session.digests[case.key],
        attempts=session.kept.attempts[case.key],
    )
