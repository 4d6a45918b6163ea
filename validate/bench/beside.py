"""What a collective hides when it runs beside compute, and what the compute loses."""

from typing import Final

import torch
import torch.distributed as dist

from validate.bench.cases import Case, case
from validate.bench.compute import attention, matmul
from validate.bench.exchange import exchange, meeting, shared_estimate
from validate.bench.timing import Prepared, Run, burst, captured, statistics

Results = list[tuple[str, dict[str, float]]]
REPEATS: Final = 7
LONG: Final = 0.004  # s that either side takes at least
MOST: Final = 400


def beside(asked: Case, device: torch.device, group: dist.ProcessGroup) -> Results:
    """Time compute alone, the collective alone, and both at once on two streams.

    Both sides get as many calls as make them last about equally long.
    """
    compute, message = (
        _compute(asked.text("work"), device),
        exchange(asked.text("op"), asked.number("bytes"), group, device),
    )
    counts = [
        max(1, min(MOST, round(LONG / shared_estimate(prepared, device, group))))
        for prepared in (compute, message)
    ]
    runs = [_repeated(p, count) for p, count in zip((compute, message), counts, strict=True)]
    side = torch.cuda.Stream(device)
    found = {}
    for name, run in (
        ("compute", runs[0]),
        ("communication", runs[1]),
        ("both", _forked(runs[0], runs[1], side, device)),
    ):
        replay = captured(lambda _, run=run: run(), 1, device)  # type: ignore[misc]
        times = burst(replay, REPEATS, device, pause=0.0, before=meeting(group, device))
        found[name] = statistics(times)["seconds"]
    saved = found["compute"] + found["communication"] - found["both"]
    share = max(0.0, saved) / min(found["compute"], found["communication"])
    found |= {"share": share, "messages": float(counts[1]), "seconds": found["both"]}
    return [("streams", found)]


def _compute(work: str, device: torch.device) -> Prepared:
    if work == "matmul":
        return matmul(case("matmul", 1, m=4608, n=12288, k=3072, precision="bf16"), device)
    scores = {"heads": 24, "kv_heads": 24, "queries": 4608, "keys": 4608, "head_dim": 128}
    return attention(case("attention", 1, kernel="default", batch=1, causal=0, **scores), device)


def _repeated(prepared: Prepared, count: int) -> Run:
    def run() -> None:
        for index in range(count):
            prepared.work(index)

    return run


def _forked(main: Run, other: Run, side: torch.cuda.Stream, device: torch.device) -> Run:
    def run() -> None:
        current = torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            other()
        main()
        current.wait_stream(side)

    return run
