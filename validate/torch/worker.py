"""One rank of a run: ``python -m validate.torch.worker --job FILE --output DIR``.

Started by the planner, or by anything that says which rank a process is, which can as well start
the planner itself::

    torchrun --nproc-per-node 2 -m planner validate --backend torch ...
    torchrun --nproc-per-node 2 -m validate.torch.worker --job job.json --output out
    mpirun -np 16 -x MASTER_ADDR python -m validate.torch.worker --job job.json --output out

The job is the JSON object of a `validate.plans.job.Job`.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from topology.base import InputError, environment
from validate.launch import Place, begin
from validate.launch.causes import OTHER_CASES
from validate.plans import system
from validate.plans.cases import Case
from validate.plans.job import Job
from validate.plans.rank import run_rank
from validate.torch.case_run import Bench
from validate.torch.fuse import Fuser
from validate.torch.probe import torch_facts
from validate.torch.proof import Comm
from validate.torch.rendezvous import ApartError, meet
from validate.torch.session import Session, run_all


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank; returns the exit code."""
    return run_rank("python -m validate.torch.worker", work, argv)


def work(place: Place, job: Job, output: Path) -> int:
    """Run the cases of a job, those that rank 0 has; returns how many were run."""
    deadline = time.monotonic() + job.seconds
    progress = begin(place)
    device = _device(place, job.device)
    rendezvous = meet(place, progress, device)
    progress.phase("reading the job")
    # messages beside compute go first: attention that was started before one fills the device, and
    # a message that waits for room behind all of its blocks is hidden by nothing
    lane = torch.cuda.Stream(priority=-1) if device.type == "cuda" else None
    bench = Bench(
        comm=Comm(
            rank=place.rank,
            world=place.world,
            handles={},
            lane=lane,
            progress=progress,
        ),
        rendezvous=rendezvous,
        progress=progress,
        device=device,
        fuser=Fuser(backend=job.backend),
        budget_s=job.budget_s,
    )
    session = Session(bench=bench, output=output, job=job, until=deadline)
    if session.leads:
        _describe(output, job.hardware)
    case_count = run_all(session, _agreed_cases(job, bench))
    progress.end()
    if device.type == "cpu":
        dist.destroy_process_group()
    rendezvous.leave()
    return case_count


def _device(place: Place, kind: str) -> torch.device:
    """Choose this rank's device.

    Raises InputError if this host has fewer GPUs than ranks.
    """
    if kind == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local >= count:
        raise InputError(f"GPUs on this host: got {count}, wanted at least {place.local + 1}")
    device = torch.device("cuda", place.local)
    torch.cuda.set_device(device)
    return device


def _describe(output: Path, hardware: str) -> None:
    """Write down what is measured on: machine, driver and versions."""
    env = environment()
    settings = {name: env[name] for name in sorted(env) if name.startswith(("NCCL_", "TORCH_"))}
    document = {
        "date": system.now(),
        "hardware": hardware,
        "gpu": asdict(system.gpu()),
        "settings": settings,
        **torch_facts(),
    }
    system.write(output / "manifest.json", json.dumps(document, indent=1) + "\n")


def _agreed_cases(job: Job, bench: Bench) -> list[Case]:
    """Cases to run, as rank 0 has them.

    Raises InputError if this rank was asked for something else, ApartError if another was.
    """
    keys = [case.key for case in job.cases]
    keys_by_rank = cast("list[list[str]]", bench.rendezvous.say("cases to run", keys))
    for rank, rank_keys in enumerate(keys_by_rank):
        missing = [key for key in keys_by_rank[0] if key not in rank_keys]
        if missing:
            bench.rendezvous.leave()  # not before all have heard
        if missing and rank != bench.comm.rank:
            raise ApartError(f"rank {rank} was {OTHER_CASES}")
        if missing:
            got = next(iter(rank_keys), "none")
            raise InputError(f"{OTHER_CASES}: got {got}, wanted {missing[0]}")
    return [case for case in job.cases if case.key in set(keys_by_rank[0])]


if __name__ == "__main__":
    code = main()
    system.leave(code)
