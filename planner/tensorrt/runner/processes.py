"""One process a rank, on this host."""

import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO, Final

from planner.tensorrt.runner.errors import InputError, LateError, RunError

WRONG: Final = 2
"""Exit code where what was given cannot be right."""
SETTLE_S: Final = 3.0
EVERY_S: Final = 0.05


def start(argv: Sequence[str], world: int, limit_s: float, environment: Mapping[str, str]) -> None:
    """Start one process a rank on this host, and end all when one fails.

    Raises
    ------
    RunError
        Saying of each rank that failed what it said; InputError where all blame what was given,
        LateError where some do not end.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {**environment, "WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
    common["MASTER_ADDR"] = "127.0.0.1"
    command = [sys.executable, *argv]
    with ExitStack() as stack:
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
    until = time.monotonic() + limit_s
    while any(child.poll() is None for child in children):
        if any(child.poll() not in (None, 0) for child in children):
            settled = min(until, time.monotonic() + SETTLE_S)
            while time.monotonic() < settled and any(child.poll() is None for child in children):
                time.sleep(EVERY_S)
            return
        if time.monotonic() > until:
            late = [str(rank) for rank, child in enumerate(children) if child.poll() is None]
            raise LateError(f"ranks {', '.join(late)} are late, after {limit_s:g} s")
        time.sleep(EVERY_S)


def _judge(children: "Sequence[subprocess.Popen[bytes]]", logs: Sequence[IO[str]]) -> None:
    failed = {rank: child for rank, child in enumerate(children) if child.poll() not in (None, 0)}
    words = []
    for rank, child in failed.items():
        logs[rank].seek(0)
        said = logs[rank].read().strip().splitlines()
        last = said[-1].removeprefix("runner: ") if said else f"ended with {child.returncode}"
        words.append(last if last.startswith(f"rank {rank}: ") else f"rank {rank}: {last}")
    if words:
        given = all(child.returncode == WRONG for child in failed.values())
        raise (InputError if given else RunError)("; ".join(words))
