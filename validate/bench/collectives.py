"""Collectives, and copies between GPUs, timed on all ranks at once: alone, and beside compute."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from topology.base import GIB
from topology.base.values import dataclass
from validate.bench import system, timing
from validate.bench.cases import Measurement, case_of
from validate.bench.compute import attention, matmul, numbers
from validate.bench.timing import PreparedWork, Results, Run

REPEATS: Final = 9
CHUNK: Final = 0.002  # s of collectives in one graph
BESIDE_REPEATS: Final = 7
MIN_SIDE_TIME: Final = 0.004  # s that either side takes at least
MAX_CALLS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What one rank sends from and receives into: `large` holds a message, `small` its share."""

    large: Tensor
    other: Tensor
    small: Tensor
    shares: list[Tensor]


def buffers(size: int, ranks: int, device: torch.device) -> Buffers:
    """Make buffers for a message of `size` bytes, as nccl-tests counts them, of 16-bit numbers."""
    share = max(1, size // 2 // ranks)
    large = numbers(share * ranks, device=device)
    return Buffers(
        large=large,
        other=torch.empty_like(large),
        small=numbers(share, device=device),
        shares=list(large.chunk(ranks)),
    )


def exchange(op: str, size: int, group: ProcessGroup, device: torch.device) -> PreparedWork:
    """Prepare a collective of `size` bytes on all ranks of `group`."""
    ranks = dist.get_world_size(group)
    sets = max(1, min(4, GIB // size))
    buffer_sets = [buffers(size, ranks, device) for _ in range(sets)]
    call = CALLS[op]
    return PreparedWork(work=lambda index: call(buffer_sets[index % sets], group), sets=sets)


def _send_recv(tensors: Buffers, group: ProcessGroup) -> object:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    ahead, behind = (rank + 1) % ranks, (rank - 1) % ranks
    operations = [
        dist.P2POp(dist.isend, tensors.large, ahead, group),
        dist.P2POp(dist.irecv, tensors.other, behind, group),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    return tensors.other


def _root_shares(shares: list[Tensor], group: ProcessGroup) -> list[Tensor] | None:
    return shares if dist.get_rank(group) == 0 else None


CALLS: Final[Mapping[str, Callable[[Buffers, ProcessGroup], object]]] = {
    "all_reduce": lambda b, g: dist.all_reduce(b.large, group=g),
    "all_gather": lambda b, g: dist.all_gather_into_tensor(b.large, b.small, group=g),
    "reduce_scatter": lambda b, g: dist.reduce_scatter_tensor(b.small, b.large, group=g),
    "all_to_all": lambda b, g: dist.all_to_all_single(b.other, b.large, group=g),
    "broadcast": lambda b, g: dist.broadcast(b.large, src=0, group=g),
    "reduce": lambda b, g: dist.reduce(b.large, dst=0, group=g),
    "gather": lambda b, g: dist.gather(b.small, _root_shares(b.shares, g), dst=0, group=g),
    "scatter": lambda b, g: dist.scatter(b.small, _root_shares(b.shares, g), src=0, group=g),
    "send_recv": _send_recv,
}


def collective(case: Measurement, device: torch.device, group: ProcessGroup) -> Results:
    """Time a collective as nodes of a graph and as calls of the host."""
    prepared = exchange(case.text("op"), case.number("bytes"), group, device)
    call_s = shared_estimate(prepared, device, group)
    results: Results = []
    if timing.on_gpu(device):
        results.append(("graph", timing.statistics(_graph_times(prepared, call_s, device, group))))
    calls = max(2, min(20, int(CHUNK / call_s)))
    repeat = _repeated_run(prepared, calls)
    times = timing.burst(
        repeat, REPEATS, device, pause=0.0, before=meeting(group, device), spin=False
    )
    results.append(("stream", timing.statistics([t / calls for t in times])))
    return results


def forced(case: Measurement, device: torch.device, group: ProcessGroup) -> Results:
    """Time a collective whose algorithm and protocol NCCL is told."""
    forced_comm = forced_group(
        case.text("algorithm"), case.text("protocol"), dist.get_world_size(group)
    )
    prepared = exchange(case.text("op"), case.number("bytes"), forced_comm, device)
    call_s = shared_estimate(prepared, device, forced_comm)
    return [("graph", timing.statistics(_graph_times(prepared, call_s, device, forced_comm)))]


def _graph_times(
    prepared: PreparedWork, call_s: float, device: torch.device, group: ProcessGroup
) -> list[float]:
    calls = max(prepared.sets if call_s < CHUNK else 1, min(40, int(CHUNK / call_s)))
    run = timing.captured(prepared.work, calls, device)
    repeats = REPEATS if call_s < CHUNK else 5
    times = timing.burst(run, repeats, device, pause=0.0, before=meeting(group, device))
    return [t / calls for t in times]


def shared_estimate(prepared: PreparedWork, device: torch.device, group: ProcessGroup) -> float:
    """Seconds of one call, roughly, and the same number on all ranks."""
    seconds = torch.tensor([timing.estimate(prepared, device)], device=device, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
    return float(seconds.item())


def meeting(group: ProcessGroup, device: torch.device) -> Run:
    """Return what lets the ranks wait for each other, on the device."""
    flag = torch.zeros(1, device=device)
    return lambda: dist.all_reduce(flag, group=group)


@cache
def forced_group(algorithm: str, protocol: str, ranks: int) -> ProcessGroup:
    """Make a communicator that knows one algorithm and protocol; all ranks must ask in turn.

    NCCL reads its environment whenever a communicator is made.
    """
    with system.environment({"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}):
        group: ProcessGroup = dist.new_group(list(range(ranks)), backend="nccl")
        meeting(group, torch.device("cuda", torch.cuda.current_device()))()
        torch.cuda.synchronize()
    return group


def peer(case: Measurement, device: torch.device, rank: int) -> Results:
    """Time copies to a neighbour's memory, one way or both at once; rank 0 does it alone."""
    if rank or not timing.on_gpu(device) or torch.cuda.device_count() < 2:
        return []
    neighbour = torch.device("cuda", (device.index + 1) % torch.cuda.device_count())
    elements = max(1, case.number("bytes") // 2)
    local, remote = numbers(elements, device=device), numbers(elements, device=neighbour)
    local_copy, remote_copy = torch.empty_like(local), torch.empty_like(remote)
    local_stream, remote_stream = torch.cuda.Stream(device), torch.cuda.Stream(neighbour)

    def run() -> None:
        main = torch.cuda.current_stream(device)
        if case.text("way") == "both":
            local_stream.wait_stream(main)
            with torch.cuda.stream(local_stream):  # runs on the other GPU's own stream
                local_copy.copy_(remote, non_blocking=True)
        with torch.cuda.stream(remote_stream):  # which must not wait for this one
            remote_copy.copy_(local, non_blocking=True)
        main.wait_stream(local_stream)

    for _ in range(3):
        run()
    return [("stream", timing.statistics(timing.burst(run, REPEATS, device, pause=0.0)))]


def beside_compute(case: Measurement, device: torch.device, group: dist.ProcessGroup) -> Results:
    """Time compute alone, the collective alone, and both at once on two streams.

    Both sides get as many calls as make them last about equally long.
    """
    compute = _compute_work(case.text("work"), device)
    message = exchange(case.text("op"), case.number("bytes"), group, device)
    counts = [
        max(1, min(MAX_CALLS, round(MIN_SIDE_TIME / shared_estimate(prepared, device, group))))
        for prepared in (compute, message)
    ]
    compute_run, message_run = _repeated_run(compute, counts[0]), _repeated_run(message, counts[1])
    overlapped = _overlapped_run(compute_run, message_run, torch.cuda.Stream(device), device)
    seconds = {}
    for name, run in (
        ("compute", compute_run),
        ("communication", message_run),
        ("both", overlapped),
    ):
        replay = timing.captured(lambda _, run=run: run(), 1, device)  # type: ignore[misc]
        times = timing.burst(
            replay, BESIDE_REPEATS, device, pause=0.0, before=meeting(group, device)
        )
        seconds[name] = timing.statistics(times)["seconds"]
    saved_s = seconds["compute"] + seconds["communication"] - seconds["both"]
    share = max(0.0, saved_s) / min(seconds["compute"], seconds["communication"])
    seconds |= {"share": share, "messages": float(counts[1]), "seconds": seconds["both"]}
    return [("streams", seconds)]


def _compute_work(work: str, device: torch.device) -> PreparedWork:
    if work == "matmul":
        return matmul(case_of("matmul", 1, m=4608, n=12288, k=3072, precision="bf16"), device)
    scores = {"heads": 24, "kv_heads": 24, "queries": 4608, "keys": 4608, "head_dim": 128}
    return attention(case_of("attention", 1, kernel="default", batch=1, causal=0, **scores), device)


def _repeated_run(prepared: PreparedWork, count: int) -> Run:
    def run() -> None:
        for index in range(count):
            prepared.work(index)

    return run


def _overlapped_run(
    main_run: Run, side_run: Run, side: torch.cuda.Stream, device: torch.device
) -> Run:
    def run() -> None:
        current = torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            side_run()
        main_run()
        current.wait_stream(side)

    return run
