"""Files, processes, environment and screen of a benchmark: all that touches the outside.

A session is a parent that holds no GPU and one worker a GPU. Workers append rows, each in one
write that is seen safe on disk, so a kill loses at most the case at hand. When a worker dies or
hangs, the parent ends the others, notes the case, and starts them again behind it.
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
from validate.fit.rows import Row, failure, line, whole
from validate.launch.place import port_of
from validate.launch.system import free_port

ROWS: Final = "rows.jsonl"
MANIFEST: Final = "manifest.json"
REFUSED: Final = "refused"  # file in which a worker says why it does not begin
WORKER: Final = ("-m", "validate.bench.worker")
RESTARTS: Final = 6
GRACE: Final = 40.0  # s after the last moment to begin a case
SILENT: Final = 240  # s at one case after which a worker is taken for dead; also its exit code
QUIET: Final = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""Set for every worker: no multicast, which can wedge the NVLink switches of a shared host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What a worker is told, from its arguments and its environment."""

    rank: int
    ranks: int
    local: int
    address: str
    port: int
    device: str
    folder: Path
    until: float
    parent: int
    tiers: int
    small: bool
    settings: Mapping[str, str]


def task() -> RankTask:
    """Read what this worker is to measure."""
    document = json.loads(os.environ["BENCH_TASK"])
    rank = int(os.environ.get("RANK", "0"))
    return RankTask(
        rank=rank,
        ranks=int(os.environ.get("WORLD_SIZE", "1")),
        local=int(os.environ.get("LOCAL_RANK", str(rank))),
        address=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=port_of(os.environ, 29511),
        **{**document, "folder": Path(document["folder"])},
    )


def say(text: str) -> None:
    """Tell the person how it goes."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def leave(code: int) -> None:
    """End this process at once."""
    sys.stderr.flush()
    os._exit(code)


def stop_without(parent: int) -> None:
    """End this process if the one that started it is gone."""
    if parent and os.getppid() != parent:
        say("bench: the session is gone")
        leave(1)


def mark(folder: Path, rank: int, key: str) -> None:
    """Note which case a rank is at, for the parent should it die."""
    _mark_of(folder, rank).write_text(key, encoding="utf-8")


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
    if text != whole(text):
        path.write_text(whole(text), encoding="utf-8")
    return whole(text)


def refuse(folder: Path, reason: str) -> None:
    """End this worker, and let the parent say why."""
    (folder / REFUSED).write_text(reason, encoding="utf-8")
    leave(1)


def keep_manifest(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the manifest; one that is there must be of the same machine and software."""
    path = folder / MANIFEST
    if path.exists():
        before = read_document(path)
        for part in ("machine", "software"):
            if before.get(part) != document[part]:
                then, now = (json.dumps(d.get(part))[:120] for d in (before, document))
                raise InputError(f"{path}: rows were measured on {then}, this is {now}")
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
    watching = _telemetry(session)
    deaths = 0
    try:
        while (death := _launch(session, until)) is not None:
            deaths += 1
            _blame(session, death)
            if deaths > RESTARTS or time.time() > until - GRACE:
                break
    finally:
        if watching is not None:
            watching.kill()
    for rank in range(session.ranks):
        _mark_of(session.folder, rank).unlink(missing_ok=True)
    return deaths


Death = tuple[int, int]
"""A rank, and its exit code."""


def _launch(session: BenchSession, until: float) -> Death | None:
    """Start all workers once; returns the first that failed."""
    port, begun = free_port(), time.time()
    workers = [_start(session, rank, port, until) for rank in range(session.ranks)]
    try:
        while time.time() < until + GRACE:
            codes = [worker.poll() for worker in workers]
            deaths = [(rank, code) for rank, code in enumerate(codes) if code]
            if deaths:  # who saw another one die ends with 1
                return min(deaths, key=lambda death: death[1] == 1)
            if all(code == 0 for code in codes):
                return None
            silent = _silent(session, begun)
            if silent is not None:
                return silent, SILENT
            time.sleep(0.2)
        say("bench: out of time; the last case is lost")
        return None
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


def _silent(session: BenchSession, begun: float) -> int | None:
    """Return a rank that has been at one case for too long to be alive."""
    for rank in range(session.ranks):
        path = _mark_of(session.folder, rank)
        since = max(begun, path.stat().st_mtime) if path.exists() else begun
        if time.time() - since > SILENT:
            return rank
    return None


def _mark_of(folder: Path, rank: int) -> Path:
    return folder / f"current-{rank}"


def _start(session: BenchSession, rank: int, port: int, until: float) -> subprocess.Popen[bytes]:
    document = {
        "device": session.device,
        "folder": str(session.folder),
        "until": until,
        "parent": os.getpid(),
        "tiers": session.tiers,
        "small": session.small,
        "settings": surroundings() if rank == 0 else {},
    }
    environment = {
        **os.environ,
        **QUIET,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(session.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "BENCH_TASK": json.dumps(document),
    }
    command = [sys.executable, *WORKER]
    log = (session.folder / f"rank{rank}.log").open("ab") if rank else None
    try:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603
    finally:
        if log is not None:
            log.close()


def _blame(session: BenchSession, death: Death) -> None:
    """Note the case at which a worker died; its next start goes on behind it."""
    rank, code = death
    with suppress(FileNotFoundError):
        refused = (session.folder / REFUSED).read_text(encoding="utf-8")
        (session.folder / REFUSED).unlink()
        raise InputError(refused)
    path = _mark_of(session.folder, rank)
    key = path.read_text(encoding="utf-8") if path.exists() else ""
    say(f"bench: rank {rank} ended with code {code} at: {key or 'its start'}")
    if not key:
        raise InputError(
            f"rank {rank} of {session.ranks} ended with code {code} before the first case: "
            f"see {session.folder}/rank{rank}.log"
        )
    append(session.folder, [failure(key, rank, f"the process ended with code {code}")])


def surroundings() -> dict[str, str]:
    """Ask for what there is to say about the machine outside PyTorch."""
    kept = ("NCCL_", "TORCH_", "CUDA_", "NVSHMEM_")
    shown = {key: value for key, value in {**os.environ, **QUIET}.items() if key.startswith(kept)}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "driver": ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "power": ask("nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader"),
        "topology": ask("nvidia-smi", "topo", "-m"),
        "mig": ask("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"),
        "environment": " ".join(f"{key}={value}" for key, value in sorted(shown.items())),
    }


def ask(*command: str) -> str:
    """Return what a program prints; nothing where it is missing, slow or fails."""
    try:
        done = subprocess.run(  # noqa: S603  # fixed commands
            command, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@contextmanager
def environment(names: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while: libraries read some whenever they are asked for something."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
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
