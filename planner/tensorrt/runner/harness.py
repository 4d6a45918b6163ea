"""The folder of a plan: what is read from it and written to it. Nothing else here touches files."""

import hashlib
import json
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, Final, cast

import numpy as np

from planner.tensorrt.runner.build import Options, build
from planner.tensorrt.runner.checkpoint import (
    Names,
    Stored,
    contents,
    from_checkpoint,
    learned_from,
    unused,
)
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.kinds import Share
from planner.tensorrt.runner.library import load
from planner.tensorrt.runner.numbers import Bits, Floats, storage
from planner.tensorrt.runner.weights import Learned, Weights, drawn, filler

SCHEMA: Final = "1"
RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "TRT_MY_RANK")
WORLDS: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "TRT_WORLD_SIZE")
SETTLE_S: Final = 3.0
PAGE: Final = 4096
SHOWN: Final = 6
"""Names of what has no place in a network, before the list is cut."""
Document = Mapping[str, object]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A plan's folder with its documents."""

    path: Path
    plan: Document
    documents: tuple[Document, ...]

    def engine(self, name: str, rank: int) -> Path:
        """Path of the engine of a rank of a communicator; one for all where it is shared."""
        document = next(one for one in self.documents if one["name"] == name)
        file = f"{name}.engine" if document["shared"] else f"{name}.rank{rank}.engine"
        return self.path / "engines" / file

    def constants(self, name: str) -> dict[str, Bits]:
        """Constants of a network."""
        with np.load(self.path / "networks" / f"{name}.npz", allow_pickle=False) as arrays:
            return dict(arrays)

    def tables(self, document: Document, rank: int) -> dict[str, Bits]:
        """Rows of a network's tables that belong to a rank of its communicator."""
        found: dict[str, Bits] = {}
        path, start = self.path / "tables" / f"{document['name']}.bin", 0
        for value in cast("list[Document]", document["tables"]):
            shape, dtype = tuple(cast("list[int]", value["shape"])), storage(str(value["dtype"]))
            whole = (cast(int, document["ranks"]), *shape)
            mapped = np.memmap(path, dtype, "r", start, whole)
            found[str(value["name"])] = np.array(mapped[rank])
            start += mapped.nbytes
        return found

    def tables_of_all(self, document: Document) -> dict[str, Bits]:
        """Tables with the rows of all ranks."""
        each = [self.tables(document, rank) for rank in range(cast(int, document["ranks"]))]
        return {name: np.stack([one[name] for one in each]) for name in each[0]}


def open_folder(path: str | Path) -> Folder:
    """Read a plan's folder.

    Raises
    ------
    RunError
        If it is none, or one of another schema.
    """
    folder = Path(path)
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        if plan["schema"] != SCHEMA:
            raise RunError(f"{folder}: plan of schema {plan['schema']}, wanted {SCHEMA}")
        names = [str(one["name"]) for one in plan["engines"]]
        documents = [
            json.loads((folder / "networks" / f"{name}.json").read_text(encoding="utf-8"))
            for name in names
        ]
    except OSError as error:
        raise RunError(
            f"{folder}: not a plan's folder: {error.strerror}: {error.filename}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}: its plan cannot be read: {error}") from None
    return Folder(path=folder, plan=plan, documents=tuple(documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where numbers come from. unused : tensors of a checkpoint that no layer has a place for.

    files : of a checkpoint, mapped; pages that were read are let go of.
    """

    weights: Weights
    learned: Learned | None = None
    unused: tuple[str, ...] = ()
    files: tuple[mmap.mmap, ...] = ()

    def forget(self) -> None:
        """Let go of what was read so far; it is read again if it is asked for again."""
        for file in self.files:
            file.madvise(mmap.MADV_DONTNEED)


def weights_from(what: str, plan: Document) -> Source:
    """Find weights: ``drawn``, ``filler``, or a folder of safetensors files.

    Raises
    ------
    RunError
        If the folder has none, or the plan's model has no map from names to tensors.
    """
    if what == "drawn":
        return Source(weights=drawn())
    if what == "filler":
        return Source(weights=filler())
    known = cast("Mapping[str, Names]", plan["checkpoint"])
    if not known:
        raise RunError(f"{plan['model']}: no tensors of a checkpoint are known for this family")
    files = sorted(Path(what).glob("*.safetensors"))
    if not files:
        raise RunError(f"{what}: no safetensors files")
    tensors: dict[str, Stored] = {}
    mapped: list[mmap.mmap] = []
    for path in files:
        if path.stat().st_size:
            with path.open("rb") as file:
                mapped.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        raw = np.frombuffer(mapped[-1] if path.stat().st_size else b"", np.uint8)
        tensors |= contents(str(path), raw)
    return Source(
        weights=from_checkpoint(tensors, known["weights"]),
        learned=learned_from(tensors, known.get("gains", {}), known.get("biases", {})),
        unused=tuple(unused(tensors, known)),
        files=tuple(mapped),
    )


def build_all(folder: Folder, source: Source, options: Options, tell: Tell) -> list[Path]:
    """Build the engines that are not there yet, one after another; returns their paths."""
    library, made = load(), []
    if source.unused:
        named = sorted({key.rsplit(".", 1)[0] for key in source.unused})
        shown = ", ".join(named[:SHOWN]) + (" ..." if len(named) > SHOWN else "")
        tell(f"{len(source.unused)} tensors of the checkpoint have no place: {shown}")
    cache = folder.path / "engines" / "timing.cache"
    cache.parent.mkdir(exist_ok=True)
    for document in folder.documents:
        arrays = folder.constants(str(document["name"]))
        for rank in range(1 if document["shared"] else cast(int, document["ranks"])):
            path = folder.engine(str(document["name"]), rank)
            made.append(path)
            if path.exists():
                continue
            known = cache.read_bytes() if cache.exists() else b""
            start = time.monotonic()
            how = replace(options, cache=known)
            share = Share(
                document=document,
                arrays=arrays,
                weights=source.weights,
                learned=source.learned,
                rank=rank,
            )
            timings = _built(library, share, how, tell, (path, source.forget))
            if timings:
                _write(cache, lambda file, raw=timings: file.write(raw))  # type: ignore[misc]
            size, took = path.stat().st_size / 2**20, time.monotonic() - start
            tell(f"{path.name}: {size:.0f} MiB in {took:.0f} s")
    return made


def _built(
    library: ModuleType,
    share: Share,
    options: Options,
    tell: Tell,
    where: tuple[Path, Callable[[], None]],
) -> bytes:
    """Build into a file, with the weights in another; returns timings."""
    kept: list[bytes] = []
    path, forget = where

    def make(file: IO[bytes]) -> None:
        with TemporaryFile(dir=path.parent) as scratch:

            def hold(array: Bits) -> Bits:
                found = on_disk(scratch, array)
                forget()
                return found

            held = replace(share, hold=hold)
            kept.append(build(library, held, options, tell, file.write).cache)

    _write(path, make)
    return kept[0]


def on_disk(file: IO[bytes], array: Bits) -> Bits:
    """Move numbers to a file, and see them there: pages that the system may drop and read again."""
    if array.nbytes < PAGE:
        return array
    start = file.seek(-(-file.seek(0, os.SEEK_END) // PAGE) * PAGE)
    file.write(np.ascontiguousarray(array).data)
    file.flush()
    return np.memmap(file, array.dtype, "r", start, array.shape)


def _write(target: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    RunError
        If the disk is full, or the file may not be written.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            fill(file)
        draft.replace(target)
    except OSError as error:
        raise RunError(f"{target}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def given_from(folder: Folder, seed: int = 0) -> Callable[[str, int, tuple[int, ...]], Floats]:
    """Read inputs from ``inputs/NAME#FORWARD.npy``, or draw them by name."""

    def given(name: str, forward: int, shape: tuple[int, ...]) -> Floats:
        path = folder.path / "inputs" / f"{name}#{forward}.npy"
        if path.exists():
            array = np.load(path, allow_pickle=False)
            if array.shape != shape:
                raise RunError(f"{path}: {list(array.shape)}, wanted {list(shape)}")
            return np.asarray(array, np.float32)
        digest = hashlib.blake2b(f"{seed}/{name}#{forward}".encode(), digest_size=8).digest()
        random = np.random.default_rng(int.from_bytes(digest))
        return random.standard_normal(shape).astype(np.float32)

    return given


def engine_of(folder: Folder, rank: int) -> Callable[[str], bytes]:
    """Read the engines of a rank of the plan."""

    def engine(name: str) -> bytes:
        path = folder.engine(name, place(folder.plan, name, rank))
        try:
            return path.read_bytes()
        except OSError:
            raise RunError(f"{path}: not built yet; run: python -m runner build") from None

    return engine


def place(plan: Document, name: str, rank: int) -> int:
    """Rank within its communicator of a network."""
    every = cast("Mapping[str, list[list[int]]]", plan["communicators"]).get(name, [])
    return next((group.index(rank) for group in every if rank in group), 0)


def rank_of(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world that a launcher gave: torchrun, mpirun, srun; None where none did."""
    for rank, world in zip(RANKS, WORLDS, strict=True):
        if rank in environment and world in environment:
            return int(environment[rank]), int(environment[world])
    return None


def start_here(argv: Sequence[str], world: int, limit_s: float) -> str:
    """Start one process a rank on this host, and end all when one fails.

    Returns
    -------
    what went wrong, "" where nothing did
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
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
            return _watch(children, logs, limit_s)
        finally:
            for child in children:
                child.kill()
                child.wait()


def _watch(
    children: "Sequence[subprocess.Popen[bytes]]", logs: Sequence[IO[str]], limit_s: float
) -> str:
    """Wait for all, or for the first that fails and those that fall with it."""
    until = time.monotonic() + limit_s
    while any(child.poll() is None for child in children):
        failed = [rank for rank, child in enumerate(children) if child.poll() not in (None, 0)]
        if failed:
            time.sleep(SETTLE_S)
            break
        if time.monotonic() > until:
            late = [str(rank) for rank, child in enumerate(children) if child.poll() is None]
            return f"ranks {', '.join(late)} are late, after {limit_s:g} s"
        time.sleep(0.05)
    words = []
    for rank, child in enumerate(children):
        if child.poll() not in (None, 0):
            logs[rank].seek(0)
            said = logs[rank].read().strip().splitlines()
            words.append(f"rank {rank}: {said[-1] if said else f'ended with {child.returncode}'}")
    return "; ".join(words)


@dataclass(frozen=True, slots=True)
class Result:
    """What a rank left: its output, and the seconds of every step."""

    output: Floats
    seconds: tuple[float, ...]


def result_of(folder: Path, rank: int, name: str = "results") -> Result:
    """Read what a rank left beside the plan.

    Raises
    ------
    RunError
        If it left nothing.
    """
    try:
        output = np.load(folder / name / f"output.rank{rank}.npy", allow_pickle=False)
        times = json.loads((folder / name / f"times.rank{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"rank {rank} left no result: {error}") from None
    return Result(output, tuple(times["step_s"]))


def save(path: Path, name: str, value: object) -> None:
    """Write a result beside the plan: an array as .npy, anything else as JSON."""
    path.mkdir(exist_ok=True)
    if isinstance(value, np.ndarray):
        np.save(path / f"{name}.npy", value)
    else:
        (path / f"{name}.json").write_text(json.dumps(value, indent=2), encoding="utf-8")
