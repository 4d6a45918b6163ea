"""The parent of the ranks: starts them, reads their heartbeats, and ends them when one fails."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from topology.base import InputError
from validate.launch import causes
from validate.launch import system as harness
from validate.launch.limits import LaunchResult, Limits
from validate.launch.place import PHASE_LIMIT, variables
from validate.launch.progress import Beat, read

_EVERY: Final = 0.05  # s
_SETTLE: Final = 0.3  # s, for other ranks to fall too before one is named


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the parent sees of a rank: its exit code, if any, its heartbeat and its log's end."""

    rank: int
    code: int | None
    beat: Beat
    log: str = ""


def _quiet(line: str) -> None:
    del line


def launch(
    world_size: int,
    argv: Sequence[str],
    *,
    limits: Limits,
    env: Mapping[str, str],
    log_dir: Path,
    tell: Callable[[str], None] = _quiet,
) -> LaunchResult:
    """Run `argv` once for every rank on this host, and wait until all have ended.

    Parameters
    ----------
    env : of the children, who also get their rank in it as torchrun names it.
    log_dir : for ``rank<r>.log`` and heartbeats; made where it does not exist.
    tell : called with a line whenever rank 0 begins a phase.

    Returns
    -------
    LaunchResult
        With one line of explanation where a rank died, never began, or outlived a limit; no child
        runs any more in any case.
    """
    if world_size < 1:
        raise InputError(f"ranks: got {world_size}, wanted a whole number from 1")
    harness.prepare(log_dir, world_size)
    port, begun = harness.free_port(), time.monotonic()
    shared = {**env, PHASE_LIMIT: f"{limits.phase_s:.0f}"}
    children = [
        harness.spawn(
            argv,
            {**shared, **variables(rank, world_size, port, str(log_dir.resolve()))},
            log_dir / f"rank{rank}.log",
        )
        for rank in range(world_size)
    ]

    def look() -> list[Seen]:
        return [
            Seen(
                rank=rank,
                code=child.poll(),
                beat=read(harness.content(log_dir / f"progress.{rank}")),
            )
            for rank, child in enumerate(children)
        ]

    try:
        result = _watch(look, begun, limits, log_dir, tell)
    finally:
        harness.end(children, limits.grace_s)
    return result


def _watch(
    look: Callable[[], list[Seen]],
    begun: float,
    limits: Limits,
    log_dir: Path,
    tell: Callable[[str], None],
) -> LaunchResult:
    phase = ""
    while True:
        seen, now = look(), time.monotonic()
        if seen[0].beat.phase != phase:
            phase = seen[0].beat.phase
            tell(f"{now - begun:6.1f} s  {phase}")
        if all(one.code == 0 for one in seen):
            return LaunchResult(ok=True, seconds=now - begun, exit_codes=(0,) * len(seen))
        if any(one.code for one in seen):
            time.sleep(_SETTLE)
            seen = [_with_log(one, log_dir) for one in look()]
        verdict = judge(seen, now, begun, limits)
        if verdict is not None:
            return verdict
        time.sleep(_EVERY)


def _with_log(one: Seen, log_dir: Path) -> Seen:
    return replace(one, log=harness.tail(log_dir / f"rank{one.rank}.log"))


def judge(seen: Sequence[Seen], now: float, begun: float, limits: Limits) -> LaunchResult | None:
    """Decide whether a run has failed, and whose fault it is; None while it may go on.

    Parameters
    ----------
    now, begun : of `time.monotonic`.
    """
    dead = [one for one in seen if one.code]
    if dead:
        first = min(dead, key=lambda one: (causes.is_aftermath(one.log), one.rank))
        said, cause = causes.died(first.code or 0, first.beat, first.log)
        return _failed(seen, first, said, cause, now - begun)
    running = [one for one in seen if one.code is None]
    missing = [one for one in running if not one.beat.phase]
    if missing and now - begun > limits.start_s:
        said = f"never showed up within {limits.start_s:.0f} s"
        cause = "its process cannot start: wrong command, or the host is overloaded"
        return _failed(seen, missing[0], said, cause, now - begun)
    overdue = [one for one in running if one.beat.phase and now > one.beat.deadline]
    if overdue:
        return _late(seen, running, overdue, now - begun)
    if now - begun > limits.total_s:
        slowest = min(running, key=lambda one: (one.beat.count, one.rank))
        said = f"still in {slowest.beat.phase} when {limits.total_s:.0f} s were over"
        return _failed(seen, slowest, said, causes.guess(slowest.beat), now - begun)
    return None


def _late(
    seen: Sequence[Seen], running: Sequence[Seen], overdue: Sequence[Seen], seconds: float
) -> LaunchResult:
    """Name the rank that holds up the others: the one that has started the fewest operations."""
    first = min(running, key=lambda one: (one.beat.count, one.rank))
    behind = any(one.beat.count > first.beat.count for one in seen)
    beat = first.beat
    allowed = overdue[0].beat.deadline - overdue[0].beat.since
    said = f"late in {beat.phase}" + (f" at {beat.op}" if beat.op else "")
    if beat.phase.startswith("rendezvous"):
        cause = causes.guess(beat)
    elif behind:
        cause = "this rank is slow or stuck while the others wait for it"
    else:
        cause = _together(beat, alone=len(seen) == 1)
    return _failed(seen, first, f"{said}, after {allowed:.0f} s", cause, seconds)


def _together(beat: Beat, *, alone: bool) -> str:
    """Guess why ranks hang that all stand at the same operation."""
    talking = any(beat.op.startswith(kind) for kind in causes.COMMUNICATION)
    return causes.P2P if talking and not alone else causes.guess(beat, alone=True)


def _failed(seen: Sequence[Seen], one: Seen, said: str, cause: str, seconds: float) -> LaunchResult:
    message = f"rank {one.rank}: {said}" + (f"; likely cause: {cause}" if cause else "")
    return LaunchResult(
        ok=False,
        seconds=seconds,
        exit_codes=tuple(each.code for each in seen),
        message=" ".join(message.split()),
        rank=one.rank,
        phase=one.beat.phase,
        op=one.beat.op,
        cause=cause,
    )
