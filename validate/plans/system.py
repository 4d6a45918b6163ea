"""Files, environment and other programs, for the ranks of a run."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, cast

from planner.command.files import write as answered
from topology.base import InputError, locked_folder, write_whole
from topology.base.values import dataclass

PATIENCE_S = 60
_QUERY = "clocks.sm,power.draw,temperature.gpu,driver_version,name"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What the driver says of one GPU; zeros and blanks where there is none."""

    clock_hz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    driver: str = ""
    name: str = ""


def gpu() -> GpuState:
    """Ask the driver about the first GPU."""
    try:
        clock, power, temperature, driver, name = _nvidia_smi(_QUERY, "-i=0")[0].split(", ")
        return GpuState(
            clock_hz=float(clock) * 10**6,
            power_w=float(power),
            temperature_c=float(temperature),
            driver=driver,
            name=name,
        )
    except (IndexError, ValueError):
        return GpuState()


def products() -> list[str]:
    """Names of the GPUs of this host, as the driver calls them; none without one."""
    return _nvidia_smi("name")


def _nvidia_smi(query: str, *options: str) -> list[str]:
    """Lines in which the driver answers, without units; none where it does not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits", *options]
    try:
        process = subprocess.run(  # noqa: S603  # a fixed command
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in process.stdout.splitlines() if line.strip()]


def nccl_libraries() -> tuple[str, ...]:
    """Find NCCL along LD_LIBRARY_PATH."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return tuple(
        str(Path(folder) / name)
        for name in ("libnccl.so.2", "libnccl.so")
        for folder in folders
        if folder and (Path(folder) / name).exists()
    )


def processor() -> str:
    """Name the host's processor, as Linux does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model_names = (
        line.partition(":")[2].strip() for line in lines if line.startswith("model name")
    )
    return next(model_names, platform.machine())


def probe_torch() -> tuple[dict[str, object], str]:
    """Ask PyTorch what it sees, in a process of its own; and why it says nothing, if so."""
    command = [sys.executable, "-m", "validate.torch.probe"]
    try:
        process = subprocess.run(  # noqa: S603  # a fixed command
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=children(),
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {PATIENCE_S} s"
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        return {}, (process.stderr.strip().splitlines() or [f"code {process.returncode}"])[-1][:200]
    return cast("dict[str, object]", json.loads(lines[-1])), ""


def shared_memory() -> float:
    """Bytes of /dev/shm; zero where there is none."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108  # where NCCL has its buffers
    except (OSError, AttributeError):  # no such folder, or no such call
        return 0.0
    return float(status.f_blocks * status.f_frsize)


def children() -> dict[str, str]:
    """Variables for processes that this one starts: they find the same packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def read(path: Path) -> str:
    """Read a file, nothing where there is none.

    Raises InputError if it is no file, holds no text, or cannot be read.
    """
    with _file_errors(path):
        return path.read_text(encoding="utf-8") if path.exists() else ""


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Say of a file what cannot be done with it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{str(path)[:80]}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)[:80]}: no text (byte {error.start})") from None


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be: a file is in its way, or it cannot be written to."""
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path())
    if not existing.is_dir():
        raise InputError(f"{str(path)[:80]}: {str(existing)[:80]} is no folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{str(path)[:80]}: {str(existing)[:80]} cannot be written to")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder of results and hold it; one in which nothing was written is gone again.

    Raises InputError if another run has it, or it cannot be made.
    """
    with _file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked_folder(folder, f"{folder}: another run writes there, wanted another --results"):
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises InputError where that is not possible."""
    with _file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def append_line(path: Path, text: str) -> None:
    """Add a line to a file, on the disk before this returns; half a line before it is dropped.

    Raises InputError if the file cannot be written.
    """
    with _file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def now() -> str:
    """Date and time, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def say(text: str) -> None:
    """Write one line to standard output."""
    answered(text, None)


def complain(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(" ".join(text.split()) + "\n")
    sys.stderr.flush()


def leave(code: int) -> NoReturn:
    """End this process at once, without waiting for what still runs on the device."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
