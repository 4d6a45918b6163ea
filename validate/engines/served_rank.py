"""An engine's benchmark: ``python -m validate.engines.served_rank --job FILE --output DIR``.

It takes the jobs of `validate.torch.worker`, and writes rows as it does. It is one process however
many GPUs a plan has: the engine starts its own ranks, which end with it.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from topology.base.values import dataclass
from validate.engines import files, served
from validate.launch import Place, begin, ended, last_words
from validate.plans import system
from validate.plans.cases import STEPS, Case
from validate.plans.job import Job
from validate.plans.measured import failed, line
from validate.plans.rank import run_rank

LIMIT_S: Final = 20 * 60.0
"""Longest that a benchmark may take: an engine makes weights, compiles, and captures graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What a benchmark took.

    times : seconds of each repeat. tokens : that the engine's cache holds. fault : why there are
    none, empty where there are.
    """

    times: tuple[float, ...] = ()
    tokens: int = 0
    fault: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark after another; returns the exit code."""
    return run_rank("python -m validate.engines.served_rank", work, argv)


def work(place: Place, job: Job, output: Path) -> int:
    """Run the cases of a job; returns how many were run."""
    deadline, progress = time.monotonic() + job.seconds, begin(place)
    prefill_runs: dict[str, Timed] = {}
    for number, case in enumerate(job.cases):
        time_left = deadline - time.monotonic()
        if time_left <= 0:
            return number
        progress.phase(f"case {number + 1} ({case.key})", min(LIMIT_S, time_left))
        timed = _stage_times(case, job.hardware, output, prefill_runs)
        if timed.fault:
            row = failed(case, timed.fault[:300])
        else:
            row = served.row_of(case, timed.times, timed.tokens)
        system.append_line(output / "results.jsonl", line(job.named(row)))
    progress.end()
    return len(job.cases)


def _stage_times(case: Case, hardware: str, output: Path, prefill_runs: dict[str, Timed]) -> Timed:
    """Time a stage; what follows the first token is what a longer answer of vLLM takes beside."""
    if case.engine != "vllm" or case.stage == "prefill":
        prefill_runs[case.key] = _run(case, hardware, output)
        return prefill_runs[case.key]
    prefill_case = replace(case, stage="prefill")
    prefill = prefill_runs[prefill_case.key] = prefill_runs.get(prefill_case.key) or _run(
        prefill_case, hardware, output
    )
    full_run = prefill if prefill.fault else _run(case, hardware, output)
    return replace(
        full_run,
        times=tuple((request_s - median(prefill.times)) / STEPS for request_s in full_run.times),
    )


def _run(case: Case, hardware: str, output: Path) -> Timed:
    """Run a benchmark once, and read what it wrote."""
    folder = output / "model"
    results, log = output / "benchmark.json", output / "logs" / f"{case.engine}-{case.stage}.log"
    files.clear(results)
    served.make_folder(case, folder)
    code, text = files.run(served.command(case, hardware, folder.resolve(), results.resolve()), log)
    package = served.BENCHMARKS[case.engine].package
    if code:
        return Timed(fault=f"{package}: {ended(code, text)}")
    answer = system.read(results)
    if not answer:
        return Timed(fault=f"{package}: no results: {last_words(text)}")
    times = served.read_times(case.engine, case.stage, answer)
    return Timed(times=tuple(times), tokens=served.cache_tokens(case.engine, text))


if __name__ == "__main__":
    system.leave(main())
