"""One process a rank: started and watched on this host, or watching itself.

A rank that hangs ends itself: no call into a library can be trusted to come back.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Final

from planner.tensorrt.runner.connections import held_port
from planner.tensorrt.runner.errors import InputError, LateError, RunError

WRONG: Final = 2
"""Exit code where what was given cannot be right."""
SETTLE_S: Final = 3.0
EVERY_S: Final = 0.05
SPARE_S: Final = 10.0
"""Longer than a phase's limit: then the system ends a process whose libraries let no thread run."""


def start(argv: Sequence[str], world: int, limit_s: float, environment: Mapping[str, str]) -> None:
    """Start one process a rank on this host, and end all when one fails.

    Raises `RunError`, saying of each rank that failed what it said; InputError where all blame what
    was given, LateError where some do not end.
    """
    command = [sys.executable, *argv]
    with ExitStack() as stack:
        port = stack.enter_context(held_port())
        common = {**environment, "WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
        common["MASTER_ADDR"] = "127.0.0.1"
        logs = [stack.enter_context(TemporaryFile("w+")) for _ in range(world)]
        children = [
            subprocess.Popen(  # noqa: S603  # this very program
                command, env={**common, "RANK": str(rank)}, stderr=logs[rank]
            )
            for rank in range(world)
        ]
        try:
            _watch(children, limit_s)
            _judge(children, logs)
        finally:
            for child in children:
                child.kill()
                child.wait()


def _watch(children: "Sequence[subprocess.Popen[bytes]]", limit_s: float) -> None:
    """Wait for all, or for the first that fails and those that fall with it."""
    deadline = time.monotonic() + limit_s
    while any(child.poll() is None for child in children):
        if any(child.poll() not in (None, 0) for child in children):
            settle_deadline = min(deadline, time.monotonic() + SETTLE_S)
            while time.monotonic() < settle_deadline and any(
                child.poll() is None for child in children
            ):
                time.sleep(EVERY_S)
            return
        if time.monotonic() > deadline:
            late_ranks = [str(rank) for rank, child in enumerate(children) if child.poll() is None]
            raise LateError(f"ranks {', '.join(late_ranks)} are late, after {limit_s:g} s")
        time.sleep(EVERY_S)


def _judge(children: "Sequence[subprocess.Popen[bytes]]", logs: Sequence[IO[str]]) -> None:
    failed = {rank: child for rank, child in enumerate(children) if child.poll() not in (None, 0)}
    words = []
    for rank, child in failed.items():
        logs[rank].seek(0)
        log_lines = logs[rank].read().strip().splitlines()
        last_line = (
            log_lines[-1].removeprefix("runner: ")
            if log_lines
            else f"ended with {child.returncode}"
        )
        words.append(
            last_line if last_line.startswith(f"rank {rank}: ") else f"rank {rank}: {last_line}"
        )
    if words:
        all_input_errors = all(child.returncode == WRONG for child in failed.values())
        raise (InputError if all_input_errors else RunError)("; ".join(words))


@dataclass(frozen=True, slots=True)
class Guard:
    """Calls `expire` with one line when a phase outlives its limit.

    alarm : told in how many seconds the system shall end this process; 0 where it shall not.
    """

    expire: Callable[[str], None]
    alarm: Callable[[float], object] = lambda _: None
    now: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    def phase(self, name: str, seconds: float) -> None:
        """Say what is done now; the clock starts anew."""
        self.now["phase"] = (name, seconds, time.monotonic() + seconds)
        self.alarm(seconds + SPARE_S)

    def end(self) -> None:
        """Nothing is watched any more."""
        self.stopped.set()
        self.alarm(0.0)

    def start(self) -> "Guard":
        """Begin to watch the processes of ranks."""
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def _look(self) -> None:
        while not self.stopped.wait(EVERY_S):
            name, seconds, deadline = self.now.get("phase", ("", 0.0, float("inf")))
            if time.monotonic() > deadline:
                lateness = f"late in {name}, after {seconds:g} s"
                self.expire(f"{lateness}: another rank is missing or stuck")
                return
