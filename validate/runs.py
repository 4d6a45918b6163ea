"""Run cases on all ranks of this host, start again after a death, and keep what was found."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from topology.errors import InputError, ModelError
from validate import harness
from validate.cases import Case
from validate.launch import LaunchResult, Limits, launch
from validate.measured import Measured, line, read_measured, remaining
from validate.preflight import problems, remarks

DEATHS: Final = 6
"""Times that ranks may die before a run is given up."""
_BEFORE: Final = ("", "start", "rendezvous", "reading the job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How cases are run.

    gpus : ranks on this host. device : ``cuda``, or ``cpu`` with gloo. compiler : backend of
    torch.compile. dtype : type of activations where it is not that of the case. budget_s : seconds
    to repeat a case. seconds : for all cases; what is left then stays undone. checks : look for
    what is missing before ranks are started. module : that a rank runs.
    """

    gpus: int
    hardware: str = "h100-sxm"
    device: str = "cuda"
    compiler: str = "inductor"
    dtype: str = ""
    budget_s: float = 2.0
    seconds: float = 3000
    limits: Limits = Limits()
    checks: bool = True
    module: str = "validate.torch_backend.worker"

    def job(self, cases: Iterable[Case], seconds: float) -> dict[str, object]:
        """Write down what the ranks are to do."""
        said = {
            "hardware": self.hardware,
            "device": self.device,
            "backend": self.compiler,
            "budget_s": self.budget_s,
            "seconds": seconds,
        }
        typed = {"dtype": self.dtype} if self.dtype else {}
        return {**said, **typed, "cases": [case.to_dict() for case in cases]}


def run(
    cases: Sequence[Case],
    options: Options,
    output: Path,
    tell: Callable[[str], None] = harness.complain,
) -> list[Measured]:
    """Run what has no result yet; rows are on the disk as soon as they are known.

    Parameters
    ----------
    output : folder of ``results.jsonl``; what is there is kept.

    Raises
    ------
    InputError
        If this host lacks something, or a plan wants more GPUs; before any GPU is touched.
    ModelError
        If the ranks cannot start, or die again and again.
    """
    begun, results = time.monotonic(), output / "results.jsonl"
    known = read_measured(harness.read_text(results), str(results))
    if not remaining(cases, known):
        return _of(cases, known)
    _look(options, tell)
    deaths = 0
    while todo := remaining(cases, read_measured(harness.read_text(results), str(results))):
        left = options.seconds - (time.monotonic() - begun)
        if left <= 0:
            break
        ended = _attempt(todo, options, output, left, tell)
        if ended.ok:
            break
        deaths += 1
        if ended.phase in _BEFORE or deaths > DEATHS:
            raise ModelError(ended.message)
        lost = _case_of(ended, todo)
        tell(f"{lost.key}: {ended.message}")
        harness.append_line(results, line(_lost(lost, ended)))
    return _of(cases, read_measured(harness.read_text(results), str(results)))


def _of(cases: Sequence[Case], rows: Iterable[Measured]) -> list[Measured]:
    wanted = {case.key for case in cases}
    return [row for row in rows if row.key in wanted]


def _look(options: Options, tell: Callable[[str], None]) -> None:
    if not options.checks:
        return
    facts = harness.facts()
    missing = problems(facts, options.gpus, options.device)
    if missing:
        raise InputError("; ".join(missing))
    for remark in remarks(facts, options.gpus):
        tell(remark)


def _attempt(
    todo: Sequence[Case],
    options: Options,
    output: Path,
    seconds: float,
    tell: Callable[[str], None],
) -> LaunchResult:
    job = output / "job.json"
    harness.write_text(job, json.dumps(options.job(todo, seconds), indent=1))
    argv = [sys.executable, "-m", options.module, "--job", str(job), "--output", str(output)]
    limits = replace(options.limits, total_s=min(options.limits.total_s, seconds + 20))
    return launch(
        options.gpus,
        argv,
        limits=limits,
        env=harness.children(),
        log_dir=output / "logs",
        tell=tell,
    )


def _case_of(ended: LaunchResult, todo: Sequence[Case]) -> Case:
    """Find the case that ranks died of, which its phase names by number."""
    named = re.search(r"case (\d+)", ended.phase)
    return todo[int(named[1]) - 1 if named else 0]


def _lost(case: Case, ended: LaunchResult) -> Measured:
    full = "out of memory" in ended.message.lower()
    return Measured(
        case=case, status="out of memory" if full else "failed", note=ended.message[:300]
    )
