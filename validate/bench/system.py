"""Files and environment of a benchmark, and its session: all that touches the outside.

A session is a parent that holds no GPU and one worker a GPU. Workers append rows, each in one
write that is seen safe on disk, so a kill loses at most the case at hand. When one dies or hangs,
all are ended, the case is noted, and they start again behind it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from topology.base import InputError, write_whole
from topology.base.values import dataclass
from validate.fit.rows import Row, failure, line, whole_lines
from validate.launch import LaunchResult, Place, TimeLimits, find_place, last_words, launch

ROWS: Final = "rows.jsonl"
MANIFEST: Final = "manifest.json"
WORKER: Final = ("-m", "validate.bench.worker")
REFUSED_CODE: Final = 2  # exit code of a worker that does not begin
RESTARTS: Final = 6
GRACE: Final = 40.0  # s after the last moment to begin a case
SILENT_LIMIT: Final = 240.0  # s at one case after which a worker is taken for dead
WORKER_SETTINGS: Final = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""Set for every worker: no multicast, which can wedge the NVLink switches of a shared host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What a worker is told. until : seconds since the epoch when no case is begun any more."""

    place: Place
    device: str
    folder: Path
    until: float
    tiers: int
    small: bool
    settings: Mapping[str, str]


def task() -> RankTask:
    """Read what this worker is to measure."""
    document = json.loads(os.environ["BENCH_TASK"])
    folder = Path(document["folder"])
    return RankTask(place=find_place(os.environ), **{**document, "folder": folder})


def say(text: str) -> None:
    """Tell the person how it goes."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def leave(code: int) -> None:
    """End this process at once."""
    sys.stderr.flush()
    os._exit(code)


def append(folder: Path, rows: Sequence[Row]) -> None:
    """Append rows in one write, and see them safe on disk."""
    if not rows:
        return
    text = "".join(line(row) + "\n" for row in rows)
    file = os.open(folder / ROWS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)


def mended_rows(folder: Path) -> str:
    """Return the rows that are there, and cut off a last one that is not whole."""
    path = folder / ROWS
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    if text != whole_lines(text):
        path.write_text(whole_lines(text), encoding="utf-8")
    return whole_lines(text)


def keep_manifest(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the manifest; one that is there must be of the same machine and software."""
    path = folder / MANIFEST
    if path.exists():
        old_manifest = read_document(path)
        for part in ("machine", "software"):
            if old_manifest.get(part) != document[part]:
                old_text, new_text = (
                    json.dumps(d.get(part))[:120] for d in (old_manifest, document)
                )
                raise InputError(f"{path}: rows were measured on {old_text}, this is {new_text}")
        return
    write_whole(path, json.dumps(document, indent=2) + "\n")


def read(path: Path) -> str:
    """Return what a file says.

    Raises InputError if it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', 'no text')}") from None


def read_document(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds.

    Raises InputError if it cannot be read, or is no JSON object.
    """
    try:
        document = json.loads(read(path))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InputError(f"{path}: wanted a JSON object")
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSession:
    """One session: how many ranks on which device, where rows go, and how long."""

    ranks: int
    folder: Path
    minutes: float
    device: str = "cuda"
    tiers: int = 3
    small: bool = False


def run(session: BenchSession) -> int:
    """Run a session to its end; returns how many workers' deaths it took.

    Raises InputError if the workers cannot start at all.
    """
    try:
        session.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{session.folder}: {error.strerror}") from None
    until = time.time() + 60 * session.minutes
    telemetry = _telemetry(session)
    deaths = 0
    try:
        while not (result := _launch(session, until)).ok:
            if time.time() > until + GRACE:
                say("bench: out of time; the last case is lost")
                break
            deaths += 1
            _blame(session, result)
            if deaths > RESTARTS or time.time() > until - GRACE:
                break
    finally:
        if telemetry is not None:
            telemetry.kill()
    return deaths


def _launch(session: BenchSession, until: float) -> LaunchResult:
    """Start all workers once, and wait until they have ended, or one has failed."""
    document = {
        "device": session.device,
        "folder": str(session.folder),
        "until": until,
        "tiers": session.tiers,
        "small": session.small,
        "settings": surroundings(),
    }
    limits = TimeLimits(
        start_s=SILENT_LIMIT, phase_s=SILENT_LIMIT, total_s=until + GRACE - time.time()
    )
    return launch(
        session.ranks,
        [sys.executable, *WORKER],
        limits=limits,
        env={**os.environ, **WORKER_SETTINGS, "BENCH_TASK": json.dumps(document)},
        log_dir=session.folder,
        tell=say,
    )


def _blame(session: BenchSession, result: LaunchResult) -> None:
    """Note the case at which a worker died; its next start goes on behind it."""
    log = session.folder / f"rank{result.rank}.log"
    if result.exit_codes[result.rank] == REFUSED_CODE:
        raise InputError(last_words(read(log)).partition(": ")[2])
    say(f"bench: {result.message}")
    key = result.phase.partition(": ")[2]
    if not key:
        raise InputError(f"{result.message}: see {log}")
    append(session.folder, [failure(key, result.rank, result.message)])


def surroundings() -> dict[str, str]:
    """Ask for what there is to say about the machine outside PyTorch."""
    prefixes = ("NCCL_", "TORCH_", "CUDA_", "NVSHMEM_")
    variables = {
        key: value
        for key, value in {**os.environ, **WORKER_SETTINGS}.items()
        if key.startswith(prefixes)
    }
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "driver": ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "power": ask("nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader"),
        "topology": ask("nvidia-smi", "topo", "-m"),
        "mig": ask("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"),
        "environment": " ".join(f"{key}={value}" for key, value in sorted(variables.items())),
    }


def ask(*command: str) -> str:
    """Return what a program prints; nothing where it is missing, slow or fails."""
    try:
        process = subprocess.run(  # noqa: S603  # fixed commands
            command, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


@contextmanager
def environment(names: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while: libraries read some whenever they are asked for something."""
    old_values = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in old_values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _telemetry(session: BenchSession) -> subprocess.Popen[bytes] | None:
    """Note clocks, power and heat every five seconds."""
    fields = "timestamp,index,clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-l", "5"]
    if session.device != "cuda":
        return None
    with suppress(OSError), (session.folder / "telemetry.csv").open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)  # noqa: S603
    return None
