"""Files, processes and ports of a launch: the only part of it that touches the system."""

import mmap
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL = 4096


def shared(path: Path, size: int) -> mmap.mmap:
    """Open a file of `size` bytes that two processes look at; made where it does not exist."""
    with path.open("a+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def content(path: Path) -> bytes:
    """Read a file whole, nothing where there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def tail(path: Path) -> str:
    """Read the end of a log."""
    return content(path)[-_TAIL:].decode(errors="replace")


def prepare(folder: Path, ranks: int) -> None:
    """Make the folder of a run, and forget the heartbeats of one before."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        (folder / f"progress.{rank}").unlink(missing_ok=True)


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a child in a process group of its own; what it prints goes to `log`."""
    with log.open("wb") as file:
        return subprocess.Popen(  # noqa: S603  # the caller's own command
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stopped(child: "subprocess.Popen[bytes]") -> bool:
    """Whether a signal has stopped a child, where the system says so."""
    if not hasattr(os, "waitid"):
        return False
    try:
        kinds = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, child.pid, kinds) is not None
    except ChildProcessError:
        return False


def end(children: "Sequence[subprocess.Popen[bytes]]", grace_s: float) -> None:
    """End children and what they started: ask, wait, then kill their process groups."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        _signal(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(child.poll() is None for child in running):
        time.sleep(0.02)
    for child in children:
        _signal(child.pid, signal.SIGKILL)
    for child in running:
        child.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
