"""Who watches a run: the parent over its ranks, and each rank over itself.

The parent starts the ranks, reads their heartbeats, and ends all of them when one fails.
"""

import math
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from planner.tensorrt.runner.connections import held_port
from topology.base import InputError
from topology.base.values import dataclass
from validate.launch.blame import Blame, Seen, find_blame, stands_still
from validate.launch.causes import death_words, guess, is_aftermath, late, where
from validate.launch.place import PHASE_LIMIT, Place, variables
from validate.launch.progress import SIZE, Progress, read
from validate.launch.system import (
    content,
    end,
    prepare,
    shared,
    spawn,
    stopped,
    tail,
)

_INTERVAL: Final = 0.05  # s, between looks of the parent
_OWN_INTERVAL: Final = 0.5  # s, between looks of a rank at itself
_SETTLE: Final = 0.3  # s, for other ranks to fall too before one is named
_FIRST_DEATH_S: Final = 3.0  # s, for the rank to die for which another has died
_STOPPED_S: Final = 5.0  # s, for a stopped rank to be told to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds that the parts of a run may take.

    start_s : until every rank has begun. phase_s : of a phase that states no limit of its own.
    total_s : of everything. grace_s : between asking a rank to end and killing it.
    """

    start_s: float = 90.0
    phase_s: float = 300.0
    total_s: float = math.inf
    grace_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What became of a run.

    message : one line that names the rank, the operation and the likely cause; empty where all
    ranks ended well. rank : whose fault it is, -1 where none is known. exit_codes : one a rank,
    None for those that had to be ended.
    """

    ok: bool
    exit_codes: tuple[int | None, ...]
    message: str = ""
    rank: int = -1
    phase: str = ""
    op: str = ""
    cause: str = ""


def begin(place: Place) -> Progress:
    """Open this rank's heartbeat, and watch over it."""
    if place.progress:
        memory = shared(Path(place.progress) / f"progress.{place.rank}", SIZE)
    else:
        memory = mmap.mmap(-1, SIZE)
    progress = Progress(place, memory)
    progress.phase("start")
    threading.Thread(target=_watch_itself, args=(progress, os.getppid()), daemon=True).start()
    return progress


def _watch_itself(progress: Progress, parent: int) -> None:
    """End this rank when its parent is gone, or, without one of ours, when its time is over."""
    while True:
        time.sleep(_OWN_INTERVAL)
        progress.lives(sum(os.times()[:2]), _main_thread_code())
        if progress.place.progress:
            if os.getppid() != parent:
                os._exit(1)
            continue
        beat = progress.beat
        if beat.phase != "done" and time.monotonic() > beat.deadline:
            reason = late(beat, alone=progress.place.world == 1)
            sys.stderr.write(f"rank {progress.place.rank}: {reason}\n")
            sys.stderr.flush()
            os._exit(1)


def _main_thread_code() -> str:
    """Name the file and function in which the main thread is."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    return f"{Path(frame.f_code.co_filename).name} {frame.f_code.co_name}" if frame else ""


def launch(
    world_size: int,
    argv: Sequence[str],
    *,
    limits: TimeLimits,
    env: Mapping[str, str],
    log_dir: Path,
    tell: Callable[[str], object] = lambda line: None,  # noqa: ARG005
) -> LaunchResult:
    """Run `argv` once for every rank on this host, and wait until all have ended.

    env : of the children, who also get their rank in it as torchrun names it.
    log_dir : for ``rank<r>.log`` and heartbeats; made where it does not exist.
    tell : called with a line whenever rank 0 begins a phase.

    No child runs any more when this returns, with one line of explanation where a rank died, never
    began, or outlived a limit.
    """
    if world_size < 1:
        raise InputError(f"ranks: got {world_size}, wanted a whole number from 1")
    prepare(log_dir, world_size)
    child_env = {**env, PHASE_LIMIT: f"{limits.phase_s:.0f}"}
    with held_port() as port:
        children = [
            spawn(
                argv,
                {**child_env, **variables(rank, world_size, port, str(log_dir.resolve()))},
                log_dir / f"rank{rank}.log",
            )
            for rank in range(world_size)
        ]
        return _until_ended(children, limits, log_dir, tell)


def _until_ended(
    children: "Sequence[subprocess.Popen[bytes]]",
    limits: TimeLimits,
    log_dir: Path,
    tell: Callable[[str], object],
) -> LaunchResult:
    """Look at children until all have ended, and leave none."""
    start = time.monotonic()

    last_look: list[Seen] = []

    def look() -> list[Seen]:
        last_look[:] = [
            Seen(
                rank=rank,
                code=child.poll(),
                beat=read(content(log_dir / f"progress.{rank}")),
                at=time.monotonic(),
                stopped=stopped(child),
            ).after(last_look[rank] if last_look else None)
            for rank, child in enumerate(children)
        ]
        return last_look[:]

    try:
        return _watch(look, start, limits, log_dir, tell)
    finally:
        end(children, limits.grace_s)


def _watch(
    look: Callable[[], list[Seen]],
    start: float,
    limits: TimeLimits,
    log_dir: Path,
    tell: Callable[[str], object],
) -> LaunchResult:
    phase = ""
    while True:
        ranks, now = look(), time.monotonic()
        if ranks[0].beat.phase != phase:
            phase = ranks[0].beat.phase
            tell(f"{now - start:6.1f} s  {phase}")
        if all(rank.code == 0 for rank in ranks):
            return LaunchResult(ok=True, exit_codes=(0,) * len(ranks))
        if any(rank.code for rank in ranks):
            time.sleep(_SETTLE)
            ranks = [replace(rank, log=tail(log_dir / f"rank{rank.rank}.log")) for rank in look()]
        verdict = judge(ranks, now, start, limits)
        if verdict is not None:
            return verdict
        time.sleep(_INTERVAL)


def judge(
    ranks: Sequence[Seen], now: float, begun: float, limits: TimeLimits
) -> LaunchResult | None:
    """Decide whether a run has failed, and whose fault it is; None while it may go on.

    now, begun : of `time.monotonic`.
    """
    dead, codes = [rank for rank in ranks if rank.code], [rank.code for rank in ranks]
    if dead:
        culprit = min(dead, key=lambda rank: (is_aftermath(rank.log), rank.rank))
        if is_aftermath(culprit.log) and None in codes and culprit.quiet_s < _FIRST_DEATH_S:
            return None
        return _failure(ranks, culprit, *death_words(culprit.code or 0, culprit.beat, culprit.log))
    running = [rank for rank in ranks if rank.code is None]
    missing = [rank for rank in running if not rank.beat.phase]
    if missing and now - begun > limits.start_s:
        event = f"never showed up within {limits.start_s:.0f} s"
        cause = "its process cannot start: wrong command, or the host is overloaded"
        return _failure(ranks, missing[0], event, cause)
    return _blocked_result(ranks, running, now) or _out_of_time(ranks, running, now - begun, limits)


def _blocked_result(
    ranks: Sequence[Seen], running: Sequence[Seen], now: float
) -> LaunchResult | None:
    """Blame a rank that is stopped, late, or at other messages than the others."""
    halted = [rank for rank in running if rank.stopped and rank.quiet_s > _STOPPED_S]
    if halted:
        event = f"stopped by a signal{where(halted[0].beat)}"
        return _failure(ranks, halted[0], event, "a debugger or a shell holds its process")
    overdue = [rank for rank in running if rank.beat.phase and now > rank.beat.deadline]
    if overdue:
        cause = guess(overdue[0].beat, alone=len(ranks) == 1)
        limit = overdue[0].beat.deadline - overdue[0].beat.since
        blame = find_blame(running) or Blame(rank=overdue[0], cause=cause)
        return _blame_result(ranks, blame, f"after {limit:.0f} s")
    standstill = stands_still(running)
    if standstill is None:
        return None
    return _blame_result(
        ranks, standstill, f"after {standstill.rank.quiet_s:.0f} s in which nothing moved"
    )


def _out_of_time(
    ranks: Sequence[Seen], running: Sequence[Seen], elapsed: float, limits: TimeLimits
) -> LaunchResult | None:
    if elapsed <= limits.total_s:
        return None
    blame = find_blame(running) or Blame(rank=running[0], cause=guess(running[0].beat))
    event = f"still in {blame.rank.beat.phase} when {limits.total_s:.0f} s were over"
    return _failure(ranks, blame.rank, event, blame.cause)


def _blame_result(ranks: Sequence[Seen], blame: Blame, when: str) -> LaunchResult:
    return _failure(ranks, blame.rank, blame.event(when), blame.cause)


def _failure(ranks: Sequence[Seen], culprit: Seen, event: str, cause: str) -> LaunchResult:
    message = f"rank {culprit.rank}: {event}" + (f"; likely cause: {cause}" if cause else "")
    return LaunchResult(
        ok=False,
        exit_codes=tuple(rank.code for rank in ranks),
        message=" ".join(message.split()),
        rank=culprit.rank,
        phase=culprit.beat.phase,
        op=culprit.beat.op,
        cause=cause,
    )
