"""The folder of a plan: what is read from it and written to it. Nothing else here touches files."""

import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, Final, cast
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.build import Options, build
from planner.tensorrt.runner.calls import Recorder
from planner.tensorrt.runner.checkpoint import (
    Embedding,
    Stored,
    check_all,
    contents,
    embedding_from,
    few,
    from_checkpoint,
    learned_from,
    reaches_from,
    renamed,
    unused,
    with_scales,
)
from planner.tensorrt.runner.errors import InputError, MissingError, RunError
from planner.tensorrt.runner.external_weights import PAGE, Outside, beside, entries, read, writer
from planner.tensorrt.runner.formats import Bits, Floats, storage
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.library import Document, Foreign, load
from planner.tensorrt.runner.place import place, runs
from planner.tensorrt.runner.run import Timed
from planner.tensorrt.runner.weights import (
    Layer,
    Learned,
    Reaches,
    Weights,
    digest,
    drawn,
    filler,
)

SCHEMA: Final = "1"
FIRST: Final = "transformer"
SECOND: Final = "transformer_2"
"""Folders of a pipeline, of which the second takes over in later steps where there are two."""
MADE_UP: Final[Mapping[str, Callable[[], Weights]]] = {"drawn": drawn, "filler": filler}
"""Weights that no checkpoint has."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A plan's folder with its documents.

    second : its engines are those of the transformer that takes over in later steps.
    """

    path: Path
    plan: Document
    documents: tuple[Document, ...]
    second: bool = False

    @property
    def built(self) -> Path:
        """Folder of the engines."""
        return self.path / ("engines_2" if self.second else "engines")

    def engines(self, document: Document) -> list[Path]:
        """Paths of all engines of a network, by rank of its communicator; one where it is shared.

        >>> document = {"name": "forward", "shared": False, "ranks": 2}
        >>> [path.name for path in Folder(path=Path(), plan={}, documents=()).engines(document)]
        ['forward.rank0.engine', 'forward.rank1.engine']
        """
        count, name = document["ranks"], document["name"]
        suffixes = [""] if document["shared"] else [f".rank{rank}" for rank in range(count)]
        return [self.built / f"{name}{end}.engine" for end in suffixes]

    def run_by(self, rank: int) -> list[Document]:
        """List the networks that a rank of the plan runs."""
        return [network for network in self.documents if runs(self.plan, network["name"], rank)]

    def own(self, name: str, rank: int) -> Path:
        """Path of the engine of a rank of the plan."""
        document = next(network for network in self.documents if network["name"] == name)
        engines = self.engines(document)
        return engines[0 if document["shared"] else place(self.plan, name, rank)]

    def constants(self, name: str) -> dict[str, Bits]:
        """Read the constants of a network."""
        path = self.path / "networks" / f"{name}.npz"
        with _readable(path), path.open("rb") as file:
            return dict(np.load(file, allow_pickle=False))

    def tables(self, document: Document, rank: int) -> dict[str, Bits]:
        """Rows of a network's tables that belong to a rank of the plan."""
        tables: dict[str, Bits] = {}
        path, start = self.path / "tables" / f"{document['name']}.bin", 0
        row = place(self.plan, document["name"], rank)
        for value in document["tables"]:
            table_shape = (document["ranks"], *value["shape"])
            with _readable(path):
                mapped = np.memmap(path, storage(value["dtype"]), "r", start, table_shape)
            tables[value["name"]] = np.array(mapped[row])
            start += mapped.nbytes
        return tables


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be read.

    Raises `InputError` if it is missing, or damaged.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, EOFError, RecursionError, BadZipFile) as error:
        raise InputError(f"{path}: it is damaged, or cut short: {error}") from None


def document_at(path: Path) -> Document:
    """Read a JSON document of a folder."""
    with _readable(path):
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("no JSON object")  # noqa: TRY004  # told apart by nobody
    return document


def open_folder(path: str | Path) -> Folder:
    """Read a plan's folder.

    Raises `InputError` if it is none, one of another schema, or not as it was written.
    """
    folder = Path(path)
    plan = document_at(folder / "plan.json")
    if plan.get("schema") != SCHEMA:
        raise InputError(f"{folder}: plan of schema {plan.get('schema')!s:.40}, wanted {SCHEMA}")
    with _readable(folder / "plan.json"):
        names = [engine["name"] for engine in plan["engines"]]
    documents = tuple(document_at(folder / "networks" / f"{name}.json") for name in names)
    if digest_of(plan, documents) != plan.get("digest"):
        raise InputError(f"{folder}: plan.json or networks were changed since they were exported")
    return Folder(path=folder, plan=plan, documents=documents)


def digest_of(plan: Document, networks: Sequence[Document]) -> str:
    """Digest a plan's document and those of its networks: what its ranks agree on.

    >>> digest_of({"plan": "tp2"}, []) == digest_of({"plan": "tp2", "digest": "x"}, [])
    True
    """
    digested = {key: value for key, value in plan.items() if key != "digest"}
    text = json.dumps([digested, list(networks)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where numbers come from. unused : tensors of a checkpoint that no layer has a place for.

    embedding : from the numbers of a stream's tokens to its rows, where a checkpoint has any.
    check : raises `InputError` where layers are made of a tensor that a checkpoint lacks.
    files : of a checkpoint, mapped; pages that were read are let go of.
    """

    weights: Weights
    learned: Learned | None = None
    reaches: Reaches | None = None
    embedding: Embedding | None = None
    check: Callable[[Sequence[Layer]], None] = lambda _: None
    unused: tuple[str, ...] = ()
    files: tuple[mmap.mmap, ...] = ()

    def forget(self) -> None:
        """Let go of what was read so far; it is read again if it is asked for again."""
        for file in self.files:
            file.madvise(mmap.MADV_DONTNEED)


def turns(folder: Folder, weights: str) -> list[Folder]:
    """Give a folder once for each transformer of a pipeline that takes its turn over the steps."""
    second = folder.plan["transformers"] > 1 and (Path(weights) / SECOND).is_dir()
    return [folder, *([replace(folder, second=True)] if second else [])]


def weights_from(what: str, plan: Document, inside: str = FIRST) -> Source:
    """Find weights: ``drawn``, ``filler``, or a folder of safetensors files, or of a pipeline.

    inside : the transformer's folder in that of a pipeline.

    Raises `InputError` if the folder has none, or the plan's model has no map from names to
    tensors.
    """
    if what in MADE_UP:
        return Source(weights=MADE_UP[what]())
    names = plan["checkpoint"]
    if not names:
        raise InputError(f"{plan['model']}: no tensors of a checkpoint are known for this family")
    folder, inner = Path(what), Path(what) / inside
    files = _tensor_files(folder) or (_tensor_files(inner) if inner.is_dir() else [])
    if not files:
        raise InputError(f"{what}: no safetensors files, and none in a folder {inside} of it")
    tensors: dict[str, Stored] = {}
    mapped: list[mmap.mmap] = []
    for path in files:
        with _readable(path), path.open("rb") as file:
            mapped.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        tensors |= contents(str(path), np.frombuffer(mapped[-1], np.uint8))
    tensors = with_scales(renamed(tensors, names.get("renamed", {})))
    return Source(
        weights=from_checkpoint(tensors, names["weights"]),
        reaches=reaches_from(tensors, names["weights"]),
        learned=learned_from(tensors, names.get("gains", {}), names.get("biases", {})),
        embedding=embedding_from(tensors, names.get("embeddings", {})),
        check=partial(check_all, tensors, names),
        unused=tuple(unused(tensors, names)),
        files=tuple(mapped),
    )


def weights_for(folder: Folder, what: str) -> Source:
    """Find weights that have all that a folder's engines are made of.

    Raises `InputError` as `weights_from` does, and if a tensor is missing or has another shape.
    """
    source = weights_from(what, folder.plan, SECOND if folder.second else FIRST)
    for document in folder.documents:
        source.check(document["layers"])
    return source


def _tensor_files(folder: Path) -> list[Path]:
    with _readable(folder):
        return [path for path in sorted(folder.iterdir()) if path.suffix == ".safetensors"]


def build_all(folder: Folder, source: Source, options: Options, tell: Tell) -> list[Path]:
    """Build the engines that are not there yet, one after another; returns their paths.

    Raises `RunError` if one is not built, or cannot be written.
    """
    library, engine_paths = load(), list[Path]()
    for share, path in _shares(folder, source, tell):
        engine_paths.append(path)
        if not path.exists():
            _build(library, share, options, path, source, tell)
    return engine_paths


def record_all(folder: Folder, source: Source, options: Options, tell: Tell) -> None:
    """Write the calls that build each engine, where they are not there yet, for `cpp/builder`.

    Raises `RunError` if they cannot be written.
    """
    for share, path in _shares(folder, source, tell):
        if not calls_of(path).exists():
            _record(share, options, path, source, tell)


def calls_of(path: Path) -> Path:
    """Name the file of the calls that build an engine.

    >>> calls_of(Path("engines/forward.rank0.engine")).name
    'forward.rank0.calls'
    """
    return path.with_suffix(".calls")


def _shares(folder: Folder, source: Source, tell: Tell) -> Iterator[tuple[Share, Path]]:
    """Yield what each engine of a folder is made of, and its file."""
    if source.unused:
        tell(f"{len(source.unused)} tensors of the checkpoint have no place: {few(source.unused)}")
    with _writable(folder.built):
        folder.built.mkdir(exist_ok=True)
    for document in folder.documents:
        share = Share(
            document=document,
            arrays=folder.constants(document["name"]),
            weights=source.weights,
            learned=source.learned,
            reaches=source.reaches,
        )
        for rank, path in enumerate(folder.engines(document)):
            yield replace(share, rank=rank), path


def _build(
    library: ModuleType, share: Share, options: Options, path: Path, source: Source, tell: Tell
) -> None:
    """Build an engine into its file, with its weights in another; keep timings beside it."""
    start, cache = time.monotonic(), path.with_name("timing.cache")
    with _writable(path), TemporaryFile(dir=path.parent) as scratch, _draft(path) as file:

        def hold(array: Bits) -> Bits:
            moved_array = on_disk(scratch, array)
            source.forget()
            return moved_array

        timed_options = replace(options, cache=cache.read_bytes() if cache.exists() else b"")
        with _weights_file(path, share, source, outside=options.outside) as put:
            held_share = replace(share, hold=hold, outside=put)
            built = build(library, held_share, timed_options, tell, file.write)
    if built.cache:
        with _writable(cache), _draft(cache) as file:
            file.write(built.cache)
    size, elapsed_s = path.stat().st_size / 2**20, time.monotonic() - start
    tell(f"{path.name}: {size:.0f} MiB in {elapsed_s:.0f} s")


def _record(share: Share, options: Options, path: Path, source: Source, tell: Tell) -> None:
    """Write calls, with their numbers and with weights that are inputs in files beside them.

    Numbers that no checkpoint has, and that lie within the engine, are left to whoever builds it.
    """
    target = calls_of(path)
    share_weights = source.weights if options.outside or source.files else None
    with (
        _writable(target),
        _draft(target) as file,
        _draft(target.with_suffix(".numbers")) as numbers,
        _weights_file(path, share, source, outside=options.outside) as put,
    ):
        recorder = cast("ModuleType", Recorder(numbers.write))
        recorded_share = replace(share, outside=put, weights=share_weights)
        build(recorder, recorded_share, options, tell, file.write)
    tell(target.name)


@contextmanager
def _weights_file(
    path: Path, share: Share, source: Source, *, outside: bool
) -> Iterator[Callable[[str, Bits], object] | None]:
    """Open the file of an engine's weights, if they are to lie there; remove an older one if not.

    It is in its place before the engine is: an engine that is there is whole.
    """
    target = beside(path)
    with ExitStack() as exit_stack:
        put = None
        if outside and entries(share.document):
            write = writer(share.document, exit_stack.enter_context(_draft(target)).write)

            def put(name: str, array: Bits) -> None:
                write(name, array)
                source.forget()

        else:
            target.unlink(missing_ok=True)
        yield put


def on_disk(file: IO[bytes], array: Bits) -> Bits:
    """Move numbers to a file, and see them there: pages that the system may drop and read again."""
    if array.nbytes < PAGE:
        return array
    start = file.seek(-(-file.seek(0, os.SEEK_END) // PAGE) * PAGE)
    file.write(np.ascontiguousarray(array).data)
    file.flush()
    return np.memmap(file, array.dtype, "r", start, array.shape)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be written.

    Raises `RunError` if the disk is full, or the file may not be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}") from None


@contextmanager
def _draft(target: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the target's place when all is written, or leaves nothing."""
    draft = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}")
    file = draft.open("xb")  # made: no link that somebody has put there is followed
    try:
        with file:
            yield file
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def given_from(
    inputs: Path, embedding: Embedding | None = None, short: str = ""
) -> Callable[[str, int, tuple[int, ...]], Floats]:
    """Read inputs from a folder's ``NAME#FORWARD.npy``, or draw them by name.

    embedding : turns whole numbers, ``[batch, tokens]``, into rows of that shape. short : input
    that may have fewer rows, behind which come zeros, and whose samples may end sooner (-1).
    """

    def given(name: str, forward: int, shape: tuple[int, ...]) -> Floats:
        path = inputs / f"{name}#{forward}.npy"
        if path.exists():
            with _readable(path), path.open("rb") as file:
                stored = np.load(file, allow_pickle=False)
                if stored.dtype.kind in "iu" and stored.shape != shape and embedding is not None:
                    stored = embedding(name, np.maximum(stored, 0) if name == short else stored)
                array = np.asarray(stored, np.float32)
            if name == short and array.ndim == len(shape):
                missing_rows = max(0, shape[1] - array.shape[1])
                array = np.pad(array, ((0, 0), (0, missing_rows), (0, 0)))
            if array.shape != shape:
                raise InputError(f"{path}: {list(array.shape)}, wanted {list(shape)}")
            return array
        random = np.random.default_rng(digest(f"0/{name}#{forward}"))
        return random.standard_normal(shape).astype(np.float32)

    return given


def counted(plan: Document) -> str:
    """Name the input whose rows engines count, "" where they count none."""
    counts = (buffer["counts"] for buffer in plan["buffers"].values() if "counts" in buffer)
    return str(next(counts, ""))


def starts_of(folder: Folder, rank: int) -> dict[str, NDArray[np.generic]]:
    """Count the rows of a rank's prompts, by the buffers that begin with them.

    Raises `InputError` if a prompt has none, or more than its engine takes.
    """
    plan, starts = folder.plan, dict[str, NDArray[np.generic]]()
    rank_entry = plan["ranks"][rank]
    for name, buffer in plan["buffers"].items():
        if "counts" not in buffer:
            continue
        samples, max_rows, input_name = rank_entry["samples"], buffer["start"], buffer["counts"]
        forward = rank_entry["forward"] + int(name.partition("#")[2] or 0)
        rows = rows_given(folder.path / "inputs", input_name, forward)
        rows = np.full(samples, max_rows) if rows is None else rows
        if len(rows) != samples or rows.min(initial=1) < 1 or rows.max(initial=1) > max_rows:
            expected = f"{samples} of 1 to {max_rows} tokens, as engines were exported for"
            raise InputError(
                f"{input_name}#{forward}: got prompts of {rows.tolist()}, wanted {expected}"
            )
        rank_rows = rows[rank_entry["sample"] : rank_entry["sample"] + buffer["shape"][0]]
        starts[name] = rank_rows.reshape(-1, 1, 1)
    return starts


def rows_given(inputs: Path, name: str, forward: int = 0) -> NDArray[np.int64] | None:
    """Count the rows of each sample of a forward's input; None where it is drawn.

    Raises `InputError` if a sample goes on behind its end.
    """
    path = inputs / f"{name}#{forward}.npy"
    if not path.exists():
        return None
    with _readable(path):
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        present = stored >= 0 if stored.dtype.kind in "iu" else np.ones(stored.shape[:2], bool)
        if np.any(present[:, 1:] > present[:, :-1]):
            raise InputError(f"{path}: got tokens behind -1, wanted it behind all of a sample")
        return np.asarray(present.sum(axis=1), np.int64)


def ends_in(folder: str) -> list[int]:
    """List the tokens that end a text, as a checkpoint's folder says.

    Raises `InputError` if they are no numbers of tokens.
    """
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        ends = document_at(path).get("eos_token_id") if path.exists() else None
        if ends is not None:
            end_tokens = ends if isinstance(ends, list) else [ends]
            if not all(type(end) is int and end >= 0 for end in end_tokens):
                complaint = f"eos_token_id {ends!s:.40}"
                raise InputError(f"{path}: got {complaint}, wanted a number of a token, or several")
            return end_tokens
    return []


def built_of(folder: Folder) -> str:
    """Say which weights the engines were built of: a folder, or a word for made-up ones."""
    record = folder.built / "built.json"
    if not record.exists():
        return "drawn"
    with _readable(record):
        return str(document_at(record)["weights"])


def pipeline_of(what: str) -> str:
    """Return the folder of a pipeline.

    Raises `InputError` if it is none.
    """
    if not (Path(what) / "model_index.json").is_file():
        raise InputError(f"--weights: got {what[:200]}, wanted the folder of a diffusers pipeline")
    return what


def picture_at(path: str, name: str) -> Foreign:
    """Read a picture; name : of the option that it is given by.

    Raises `MissingError` if nothing here reads any, and `InputError` if the file holds none.
    """
    try:
        return import_module("PIL.Image").open(path).convert("RGB")
    except ImportError as error:
        raise MissingError(f"--{name}: {error}: pip install 'pillow>=10,<13'") from None
    except OSError as error:
        raise InputError(f"--{name}: got {path[:200]}, wanted a picture: {error}") from None


def embedding_of(folder: Folder) -> Embedding:
    """Look up rows in the embedding of the checkpoint that the engines were built from."""

    @cache
    def found(weights_name: str) -> Embedding | None:
        return (
            None if weights_name in MADE_UP else weights_from(weights_name, folder.plan).embedding
        )

    def rows(name: str, numbers: NDArray[np.generic]) -> Floats:
        weights_name = built_of(folder)
        embedding = found(weights_name)
        if embedding is None:
            raise InputError(
                f"{name}: whole numbers, and engines of {weights_name}, which embed none"
            )
        return embedding(name, numbers)

    return rows


def check_built(folder: Folder, ranks: Sequence[int], how: str = "") -> None:
    """Raise where engines of some ranks of the plan are not there yet; how : to build them.

    Raises `InputError`, naming the first.
    """
    for rank in ranks:
        for path in (folder.own(document["name"], rank) for document in folder.run_by(rank)):
            if not path.is_file():
                raise InputError(f"{path}: not built yet; run: python -m runner build{how}")


def engine_of(folder: Folder, rank: int) -> Callable[[str], mmap.mmap]:
    """Map the engines of a rank of the plan: pages that the system may drop."""

    def engine(name: str) -> mmap.mmap:
        path = folder.own(name, rank)
        with _readable(path), path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    return engine


def outside_of(folder: Folder, rank: int) -> Callable[[str], Outside | None]:
    """Map the weights that lie beside a rank's engines; None where all are inside."""

    def outside(name: str) -> Outside | None:
        path = beside(folder.own(name, rank))
        if not path.exists():
            return None
        with _readable(path):
            raw = np.memmap(path, np.uint8, "r")
        return read(str(path), raw)

    return outside


@dataclass(frozen=True, slots=True)
class Result:
    """What a rank left: its output, and the seconds of every step."""

    output: Floats
    seconds: tuple[float, ...]


def result_of(folder: Path, rank: int) -> Result:
    """Read what a rank left beside the plan; raises `RunError` if it left nothing."""
    try:
        output = np.load(folder / "results" / f"output.rank{rank}.npy", allow_pickle=False)
        text = (folder / "results" / f"times.rank{rank}.json").read_text(encoding="utf-8")
        times = json.loads(text)
    except (OSError, ValueError, EOFError) as error:
        raise RunError(f"rank {rank} left no result: {error}") from None
    return Result(output, tuple(times["step_s"]))


def layers_of(folder: Path, rank: int) -> tuple[Timed, ...]:
    """Read what layers took that a rank has timed: engine, layer and seconds of each."""
    path = folder / "results" / f"layers.rank{rank}.json"
    with _readable(path):
        return tuple(
            (str(engine), str(layer), float(s)) for engine, layer, s in json.loads(path.read_text())
        )


def results_of(folder: Folder, name: str) -> list[NDArray[np.generic]]:
    """Read ``tokens`` or ``output`` of every sample, each as the first rank that has it left it."""
    found: list[NDArray[np.generic]] = []
    for number, rank in enumerate(folder.plan["ranks"]):
        path = folder.path / "results" / f"{name}.rank{number}.npy"
        if rank["sample"] == len(found):
            with _readable(path):
                found += list(np.load(path, allow_pickle=False))
    return found


def save(path: Path, name: str, value: object) -> None:
    """Write a result beside the plan, whole: an array as .npy, anything else as JSON."""
    target = path / f"{name}.{'npy' if isinstance(value, np.ndarray) else 'json'}"
    with _writable(target):
        path.mkdir(exist_ok=True)
        with _draft(target) as file:
            if isinstance(value, np.ndarray):
                np.save(file, value)
            else:
                file.write(json.dumps(value, indent=2).encode())
