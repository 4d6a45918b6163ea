"""One rank of diffusers: ``python -m validate.engines.diffusers_rank --job FILE --output DIR``.

It takes the jobs of `validate.torch.worker`, and writes rows as it does: what differs is who runs a
case. A step is one forward of the transformer, with random weights.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from planner.models import read_model
from topology.base import ModelError
from validate.engines.diffusers_worker import Forward, measure
from validate.launch import Place, begin
from validate.plans import system
from validate.plans.cases import Case
from validate.plans.job import Job
from validate.plans.measured import Measured, failed, line
from validate.plans.rank import run_rank

LIMIT_S: Final = 180.0
"""Longest that a case may take: making the weights, compiling, and seconds of repeats."""
LONG_S: Final = 20.0
"""What a case takes at least; none is begun where less is left."""
_TIMES: Final = ("step_s", "mean_s", "wall_s", "low_s", "high_s", "repeats")
_BYTES: Final = ("memory_bytes", "reserved_bytes", "process_bytes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank; returns the exit code."""
    return run_rank("python -m validate.engines.diffusers_rank", work, argv)


def work(place: Place, job: Job, output: Path) -> int:
    """Run the cases of a job; returns how many were run."""
    import torch  # noqa: PLC0415  # an optional package

    from validate.torch.rendezvous import meet  # noqa: PLC0415

    until = time.monotonic() + job.seconds
    progress = begin(place)
    on_gpu = job.device == "cuda"
    device = torch.device("cuda", place.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    rendezvous = meet(place, progress, device)
    ran = 0
    for number, case in enumerate(job.cases):
        left = rendezvous.say(f"{number}: time left", until - time.monotonic())
        if cast(float, left[0]) <= LONG_S:
            break
        progress.phase(f"case {number + 1} ({case.key})", LIMIT_S)
        row = row_of(case, measure(own_case(case), device, job.machine))
        ran += 1
        if not place.rank:
            system.append_line(output / "results.jsonl", line(job.named(row)))
        if row.status != "done" and place.world > 1:
            raise ModelError(f"{case.key}: {row.note}")  # what other ranks wait for is lost
    progress.end()
    with suppress(RuntimeError):
        torch.distributed.destroy_process_group()
    rendezvous.leave()
    return ran


def own_case(case: Case) -> Forward:
    """Ask diffusers for what a case of plans asks; sizes left out are the model's usual ones.

    >>> own_case(Case(model="flux.1-dev", mode="eager", engine="diffusers")).height
    1024
    """
    usual = read_model(case.model).defaults
    return Forward(
        model=case.model,
        height=case.height or usual.height,
        width=case.width or usual.width,
        frames=case.frames or usual.frames,
        plan=case.plan,
        mode=case.mode,
        attention="_native_cudnn" if case.plan.startswith("ring") else "",
    )


def row_of(case: Case, taken: Mapping[str, Any]) -> Measured:
    """Write what diffusers took as a row of plans."""
    note = str(taken.get("note", ""))
    if taken["status"] != "done":
        return failed(case, note)
    numbers = {name: taken[name] for name in (*_TIMES, *_BYTES) if name in taken}
    return Measured(
        case=case,
        status="done" if taken["finite"] else "wrong",
        note=f"compiled: {taken['compiled']}" if taken["compiled"] else "",
        classes_s=taken.get("classes_s", {}),
        classes_by=str(taken.get("classes_by", "")),
        compile_s=float(taken["first_s"]) if taken["compiled"] else 0.0,
        kernels=str(taken.get("kernels", "")),
        **numbers,
    )


if __name__ == "__main__":
    system.leave(main())
