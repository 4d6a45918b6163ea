"""Time on a device: events on its streams, or the host's clock where the device is the host."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch

Mark = Any  # torch.cuda.Event, or seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How to mark a moment in a stream, and how long it is from one to another.

    mark : on the given stream, or the current one for None. wait : until the device is done.
    """

    mark: Callable[[object], Mark]
    between: Callable[[Mark, Mark], float]
    wait: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of each repeat by the device's clock, and of one on average by the host's."""

    each: tuple[float, ...]
    wall: float

    @property
    def median(self) -> float:
        return median(self.each)

    @property
    def mean(self) -> float:
        return fmean(self.each)


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    if device.type != "cuda":
        return Clock(
            mark=lambda stream: time.perf_counter(),  # noqa: ARG005  # there is one stream
            between=lambda start, stop: stop - start,
            wait=lambda: None,
        )
    return Clock(mark=_event, between=_elapsed, wait=torch.cuda.synchronize)


def _event(stream: object) -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream or torch.cuda.current_stream())
    return event


def _elapsed(start: Mark, stop: Mark) -> float:
    return float(start.elapsed_time(stop)) / 1e3


def repeat(run: Callable[[], None], count: int, clock: Clock) -> Times:
    """Run back to back, as steps follow each other, and time every one."""
    clock.wait()
    with uncollected():
        begun = time.perf_counter()
        marks = [clock.mark(None)]
        for _ in range(count):
            run()
            marks.append(clock.mark(None))
        clock.wait()
        wall = (time.perf_counter() - begun) / count
    return Times(each=tuple(_gaps(marks, clock)), wall=wall)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from collecting garbage: with a compiler loaded it takes as long as a step."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _gaps(marks: Sequence[Mark], clock: Clock) -> list[float]:
    return [clock.between(a, b) for a, b in pairwise(marks)]


def repeats_for(seconds: float, budget: float) -> int:
    """How often to run something that takes `seconds`: three times at least, twice if long.

    >>> repeats_for(0.1, 2.0), repeats_for(1.0, 2.0), repeats_for(9.0, 2.0)
    (20, 3, 2)
    """
    if seconds > budget:
        return 2
    return max(3, min(30, round(budget / max(seconds, 1 / 1000))))
