"""The time of a step on a device, and where it goes.

Steps are timed by events on the device's streams, or by the host's clock where the device is the
host. Where the time goes is seen in a step of its own, with an event around each operation. It is
no step as it is timed: messages are exchanged on the compute stream, one after another, and kernels
that a CUDA graph would start are started by the host. So its parts say where time goes, and not how
long a part takes within the step.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final, cast

import torch

from topology.base.values import dataclass
from validate.launch import Progress, unheard
from validate.plans.cases import Subject
from validate.reference.run import Here
from validate.torch.rank_state import RankState, Step
from validate.torch.routine import make_routines, play

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
class RepeatTimes:
    """Seconds of each repeat by the device's clock, and of one on average by the host's."""

    each: tuple[float, ...]
    wall: float

    @property
    def median(self) -> float:
        return median(self.each)

    @property
    def mean(self) -> float:
        return fmean(self.each)


def clock_of(device: torch.device, progress: Progress | None = None) -> Clock:
    """Return the clock of a device; the host says when it waits for it."""
    if device.type != "cuda":
        return Clock(
            mark=lambda stream: time.perf_counter(),  # noqa: ARG005  # there is one stream
            between=lambda start, stop: stop - start,
            wait=lambda: None,
        )
    heartbeat = progress or unheard()

    def wait() -> None:
        heartbeat.waits()
        torch.cuda.synchronize()
        heartbeat.waits(now=False)

    return Clock(
        mark=_event,
        between=lambda start, stop: float(start.elapsed_time(stop)) / 1e3,
        wait=wait,
    )


def _event(stream: object) -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream or torch.cuda.current_stream())
    return event


def repeat(run: Callable[[], None], count: int, clock: Clock) -> RepeatTimes:
    """Run back to back, as steps follow each other, and time every one."""
    clock.wait()
    with uncollected():
        wall_start = time.perf_counter()
        marks = [clock.mark(None)]
        for _ in range(count):
            run()
            marks.append(clock.mark(None))
        clock.wait()
        wall = (time.perf_counter() - wall_start) / count
    times = tuple(clock.between(start, stop) for start, stop in pairwise(marks))
    return RepeatTimes(each=times, wall=wall)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from collecting garbage: with a compiler loaded it takes as long as a step."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def repeats_for(seconds: float, budget: float) -> int:
    """How often to run something that takes `seconds`: three times at least, twice if long.

    >>> repeats_for(0.1, 2.0), repeats_for(1.0, 2.0), repeats_for(9.0, 2.0)
    (20, 3, 2)
    """
    if seconds > budget:
        return 2
    return max(3, min(30, round(budget / max(seconds, 1 / 1000))))


AHEAD_CYCLES: Final = 8_000_000
"""Clock cycles that the device sleeps, about 5 ms, for the host to get ahead: what events measure
then is the device's time alone."""
BEHIND_SHARE: Final = 0.1
"""Share of a step between its operations from which the host is taken to be behind."""
RUNNING_STREAM: Final = "events in the running stream"
RESTED_STREAM: Final = "events in a stream that rests before each layer"
HOST_CLOCK: Final = "clock of the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What one rank saw of one step.

    classes : seconds by class. messages : seconds of each, in their order. gaps : seconds of the
    device between operations, of the whole. how : it was taken.
    """

    classes: Mapping[str, float]
    messages: tuple[float, ...]
    gaps: float
    how: str

    def merged(self, sent: Sequence[object]) -> tuple[dict[str, float], float]:
        """Take from communication what this rank waited for others: by class, and the waiting.

        A message is under way when the last rank has come to it, and that rank sees it shortest.

        sent : the messages of every rank. Ranks of a pipeline send different ones: there, nothing
            is taken off.

        >>> here = Inside(classes={"communication": 5.0}, messages=(4.0, 1.0), gaps=0.0, how="")
        >>> here.merged([[4.0, 1.0], [1.0, 2.0]])
        ({'communication': 2.0}, 3.0)
        """
        ranks = [cast("list[float]", messages) for messages in sent]
        if not self.messages or len({len(messages) for messages in ranks}) > 1:
            return dict(self.classes), 0.0
        shortest = sum(map(min, zip(*ranks, strict=True)))
        return {**self.classes, "communication": shortest}, sum(self.messages) - shortest


def look_inside(
    subject: Subject,
    state: RankState,
    clock: Clock,
    seconds: float,
    on_any: Callable[[bool], bool],
) -> Inside:
    """Take a step with an event around each operation.

    Launched eagerly, the step runs as it does when it is timed, at the clocks that it then has, if
    the host keeps ahead. Elsewhere, and where it does not, the device rests before each layer.

    seconds : that a step takes. on_any : whether something is so on any rank; all must take the
        next step together.
    """
    turns = 1 if seconds > 1 else 3
    if state.setting.device.type != "cuda":
        return _profiled_step(subject, state, clock, turns, HOST_CLOCK)
    if subject.case.mode == "eager":
        profile = _profiled_step(subject, state, clock, turns, RUNNING_STREAM)
        if not on_any(profile.gaps > BEHIND_SHARE * seconds):
            return profile
    return _profiled_step(subject, state, clock, turns, RESTED_STREAM)


def _profiled_step(
    subject: Subject, state: RankState, clock: Clock, turns: int, how: str
) -> Inside:
    log: list[tuple[str, Any, Any]] = []

    def around(step: Step, kind: str, stream: str) -> Step:
        del stream

        def timed(position: Here) -> None:
            start = clock.mark(None)
            step(position)
            log.append((kind, start, clock.mark(None)))

        return timed

    observed_state = state.instrumented(around, _rest if how == RESTED_STREAM else None)
    routine, restore = make_routines(observed_state)[subject.case.stage], observed_state.marked()

    def step() -> None:
        if how == RUNNING_STREAM:
            _rest(Here())
        observed_state.begin()
        restore()
        play(routine, observed_state)

    # compiled functions of a timed step are others, which hold products too
    warm_ups = turns > 1 or subject.case.mode == "compile"
    for turn in range(turns + warm_ups):
        step()
        if warm_ups and turn == 0:
            clock.wait()
            log.clear()
    clock.wait()
    return _step_profile(log, clock, turns, how)


def _step_profile(
    log: Sequence[tuple[str, Any, Any]], clock: Clock, turns: int, how: str
) -> Inside:
    classes: dict[str, float] = {}
    timed_ops = [(kind, clock.between(start, stop) / turns) for kind, start, stop in log]
    for kind, seconds in timed_ops:
        classes[kind] = classes.get(kind, 0.0) + seconds
    count = len(timed_ops) // turns
    message_times = [seconds for kind, seconds in timed_ops if kind == "communication"]
    per_turn = len(message_times) // turns if turns else 0
    gaps = [
        clock.between(before[2], after[1])
        for number, (before, after) in enumerate(pairwise(log), 1)
        if number % max(1, count)  # not from one step to the next
    ]
    return Inside(
        classes=classes,
        messages=tuple(sum(message_times[index::per_turn]) for index in range(per_turn)),
        gaps=sum(gaps) / turns,
        how=how,
    )


def _rest(position: Here) -> None:
    del position
    torch.cuda._sleep(AHEAD_CYCLES)  # noqa: SLF001  # PyTorch has no public wait on the device
