"""How a piece of work is timed: events around replays of a graph, cool or under sustained load.

A *burst* finds the GPU idle, so that its power limit has not acted yet; under *load* it has been
busy for a third of a second. Between start and end nothing waits for the host: a spinning kernel
holds the stream until all is enqueued.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import torch

from topology.base.values import dataclass

Work = Callable[[int], object]
Run = Callable[[], object]
Statistics = dict[str, float]
Results = list[tuple[str, Statistics]]
"""How a case was run, and what came of it: seconds, bytes and shares by name."""

SPIN: Final = 400_000  # cycles, about 0.2 ms
PAUSE: Final = 0.01  # s of rest before a burst
BURSTS: Final = 7
LOAD: Final = 0.35  # s
SLICE: Final = 0.005  # s, one timed stretch under load
GRAPH: Final = 0.002  # s, work captured in one graph
MOST_CALLS: Final = 256
LONG_CALL: Final = 0.03  # s: a call so long needs few repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWork:
    """Work on set i of `sets` sets of buffers, so many that caches do not keep them."""

    work: Work
    sets: int


def on_gpu(device: torch.device) -> bool:
    """Whether work on `device` is asynchronous."""
    return bool(device.type == "cuda")


def settle(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if on_gpu(device):
        torch.cuda.synchronize(device)


def statistics(times: Sequence[float]) -> Statistics:
    """Median, least and ninth decile of `times`.

    >>> statistics([3.0, 1.0, 2.0])
    {'seconds': 2.0, 'low': 1.0, 'high': 3.0, 'repeats': 3}
    """
    ordered = sorted(times)
    count = len(ordered)
    return {
        "seconds": ordered[count // 2],
        "low": ordered[0],
        "high": ordered[min(count - 1, (9 * count) // 10)],
        "repeats": count,
    }


def burst_and_load(
    prepared: PreparedWork, device: torch.device
) -> Iterator[tuple[str, Statistics]]:
    """Time work as a burst and under load: pairs of mode and statistics of one call."""
    run, calls, call_s = _prepared_replay(prepared, device)
    bursts = 3 if call_s > LONG_CALL else BURSTS
    yield "short", statistics([t / calls for t in burst(run, bursts, device)])
    if on_gpu(device):
        yield "sustained", statistics([t / calls for t in load(run, device)])


def burst_statistics(prepared: PreparedWork, device: torch.device) -> Statistics:
    """Time work as a burst."""
    run, calls, _ = _prepared_replay(prepared, device)
    return statistics([t / calls for t in burst(run, BURSTS, device)])


def _prepared_replay(prepared: PreparedWork, device: torch.device) -> tuple[Run, int, float]:
    """Capture calls, enough to time and one a set of buffers; how many, and seconds of one."""
    call_s = estimate(prepared, device)
    graph_calls = max(1, int(GRAPH / max(call_s, 1e-3 * GRAPH)))
    calls = 1 if call_s > LONG_CALL else min(MOST_CALLS, max(graph_calls, prepared.sets))
    return captured(prepared.work, calls, device), calls, call_s


def estimate(prepared: PreparedWork, device: torch.device) -> float:
    """Warm up, and time a few calls roughly."""
    for index in range(2):
        prepared.work(index % prepared.sets)
    times = burst(lambda: prepared.work(0), 3, device, pause=0.0)
    return sorted(times)[1]


def captured(work: Work, calls: int, device: torch.device) -> Run:
    """Capture `calls` calls in a CUDA graph and return its replay; on a CPU just repeat them."""

    def repeat() -> None:
        for index in range(calls):
            work(index)

    if not on_gpu(device):
        return repeat
    graph, stream = torch.cuda.CUDAGraph(), _capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work(0)  # what a library allocates for this stream stays out of the graph
        settle(device)
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            repeat()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    replay: Run = graph.replay
    replay()
    settle(device)
    return replay


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def burst(
    run: Run,
    repeats: int,
    device: torch.device,
    *,
    pause: float = PAUSE,
    before: Run | None = None,
    spin: bool = True,
) -> list[float]:
    """Seconds of each of `repeats` runs.

    pause : s of rest before each.
    before : enqueued ahead of the start, untimed: what lets ranks meet on the device.
    spin : hold the stream until all is enqueued; without it the host's pace is part of the time.
    """
    times = []
    for _ in range(repeats):
        settle(device)
        if pause:
            time.sleep(pause)
        if on_gpu(device):
            times.append(_finish(_enqueue(run, spin=spin, before=before)))
        else:
            if before is not None:
                before()
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return times


def load(run: Run, device: torch.device) -> list[float]:
    """Seconds of each run in the second half of a stretch without rest, as means over slices."""
    run_s = burst(run, 1, device, pause=0.0)[0]
    runs = max(1, int(SLICE / run_s))
    slices = max(6, int(LOAD / max(run_s * runs, SLICE)))
    if run_s > LOAD:
        slices = 2

    def stretch() -> None:
        for _ in range(runs):
            run()

    pending: list[Marks] = []
    times: list[float] = []
    for _ in range(slices):
        pending.append(_enqueue(stretch, spin=False, before=None))
        if len(pending) > 2:
            times.append(_finish(pending.pop(0)) / runs)
    times += [_finish(marks) / runs for marks in pending]
    return times[len(times) // 2 :]


Marks = tuple[torch.cuda.Event, torch.cuda.Event]


def _enqueue(run: Run, *, spin: bool, before: Run | None) -> Marks:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    if spin:
        torch.cuda._sleep(SPIN)  # noqa: SLF001  # there is no public one
    if before is not None:
        before()
    start.record()
    run()
    end.record()
    return start, end


def _finish(marks: Marks) -> float:
    start, end = marks
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def host_seconds(work: Work, calls: int, device: torch.device) -> list[float]:
    """Seconds the host takes to issue one call, while the device falls behind."""
    times = []
    for _ in range(5):
        settle(device)
        if on_gpu(device):
            torch.cuda._sleep(SPIN * 50)  # noqa: SLF001  # as above
        start = time.perf_counter()
        for index in range(calls):
            work(index)
        times.append((time.perf_counter() - start) / calls)
    settle(device)
    return times
