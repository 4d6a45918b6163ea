"""An engine as its file describes it: what it can run, how it is started, what are its habits."""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final, cast

from planner.engines.reading import Table, read_fields, read_version
from planner.request.plan import Plan
from planner.request.workload import Habits
from topology.base import CatalogueError, Sourced
from topology.base.values import dataclass
from topology.catalogue import Device

Words = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """How an engine is started. `{n}` stands for a degree or a size.

    In commands `{repo}` is the model's repository or folder, `{script}` its script and `{words}`
    what else the engine has to be told of it, `{gpus}` all GPUs, `{hosts}` the hosts, `{local}`
    the GPUs of each, `{host}` the first of them, `{rank}` the number of this one, `{replicas}`
    data-parallel copies a host; `{height}`, `{width}`, `{frames}` and `{steps}` are sizes, in
    flags of sizes too. A call that names a `{transformer}` is made of
    each that the model has.

    prompt : words behind all flags that stand for a prompt, where a command makes a result itself.
    hosts : the command on several hosts of a line that is not the usual one.
    axes : flag by axis, empty where the number of processes says it; an axis that is not listed
    cannot be expressed. `{ranks}` are those of ``adp`` and ``tp`` together; a flag of ``adp`` that
    names them stands for both. vae : flag of a parallel decode. ep : flag of groups of experts;
    without `{n}` every rank has experts of its own. patch : flags of pieces that follow one another
    through a pipeline, with `{warmup}` exact steps. fsdp : flags of weights in parts.
    python, call : flags are calls of a script, the first of them the axes'; `calls` by axis where
    one has a call of its own.
    after : what is left to do; in it `{made}` is ``image`` or ``video``. runtimes : flag by runtime
    that is not the engine's usual one.
    sizes : flag by size, empty where the command has it; ``length`` is prompt and answer together.
    whole : sizes that it is told of all ranks of attention data parallelism together.
    request : by size, its name in each request. video : both, where a video asks otherwise.
    precision : flag by precision. cache : the same of keys and values. features : flag by cache of
    features, in which `{n}` is its threshold. attention : flag by kernel.
    published : ways to store quantised weights that it reads, as a checkpoint names them.
    offload : flag. resident : flags that keep all weights on the GPU, where the default does not.
    speculation : flags by who drafts, ``mtp`` or ``draft``; in them `{n}` is how many tokens,
    `{all}` one more, and `{draft}` the draft's repository or folder.
    copies : flags of copies of popular experts; in them `{n}` is how many.
    untold : why something has no flag, or what an axis needs beside its own. experts : by axis,
    what to do in place of its flag, which says something else of a model with experts.
    """

    command: str
    prompt: str = ""
    hosts: str = ""
    axes: Words = field(default_factory=dict)
    vae: str = ""
    ep: str = ""
    patch: str = ""
    fsdp: str = ""
    python: bool = False
    call: str = ""
    calls: Words = field(default_factory=dict)
    after: str = ""
    runtimes: Words = field(default_factory=dict)
    sizes: Words = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    request: Words = field(default_factory=dict)
    video: Words = field(default_factory=dict)
    precision: Words = field(default_factory=dict)
    cache: Words = field(default_factory=dict)
    features: Words = field(default_factory=dict)
    speculation: Words = field(default_factory=dict)
    copies: str = ""
    published: tuple[str, ...] = ()
    attention: Words = field(default_factory=dict)
    offload: str = ""
    resident: str = ""
    untold: Words = field(default_factory=dict)
    experts: Words = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine can run of a family of models, or of one model.

    reason : why it runs nothing of it. line : name of its launch line, empty for the usual one.
    name : that the engine has for the model; named : whether it runs models by such names alone.
    script, words : of the model in a launch line. transformers : of its pipeline, by attribute.
    axes : those that it has, of the flags of its line; None for all. degrees : the only ones that
    an axis may have. divide : what has to divide by the ranks of a sequence, each of it (see
    ``refusal.DIVISIONS``). vae : whether it decodes in parallel.
    precisions, attention : those that it can be told of; None for all of its line.
    sizes : the only ones, as ``832x480``; empty for any.
    alone : by an axis, a precision, a kernel of attention or ``offload``, which others cannot stand
    beside it. lacks : why it has no axis, no precision or no size.
    """

    reason: str = ""
    line: str = ""
    name: str = ""
    named: bool = False
    script: str = ""
    words: str = ""
    transformers: tuple[str, ...] = ("transformer",)
    axes: tuple[str, ...] | None = None
    degrees: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    divide: tuple[str, ...] = ()
    vae: bool = True
    precisions: tuple[str, ...] | None = None
    attention: tuple[str, ...] | None = None
    sizes: tuple[str, ...] = ()
    alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lacks: Words = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralHosts:
    """How an engine is started on several hosts; `reason` says why it cannot be.

    replicas : the command where every host holds whole data-parallel copies.
    never : axes that it cannot have there.
    """

    command: str = ""
    note: str = ""
    replicas: str = ""
    replicas_note: str = ""
    never: tuple[str, ...] = ()
    reason: str = ""


EAGER: Final = "torch-eager"
"""The runtime that neither fuses nor replays."""

AMPLE_MEMORY: Final = 70 * 2**30
"""Bytes of a GPU from which engines take larger steps."""
VAST_MEMORY: Final = 160 * 2**30
"""Bytes of a GPU from which some take still larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How an engine of language models serves many requests at once.

    chunk : tokens that a step takes at most. small_chunk, small_rows : on GPUs of less memory than
    `AMPLE_MEMORY` and on Ampere, where an engine takes fewer. large_chunk : on GPUs of
    `VAST_MEMORY` memory, where it takes more; 0 for as many. mixed : prompts run beside sequences
    that decode; else alone, while those wait. chunked : a prompt may be cut where the budget ends.
    rows : sequences at once at most. block : tokens of a block of the cache.
    kept : share of unwritten answers that the cache has room for before a prompt begins; where it
    is less than 1 sequences may lose their cache and start again.
    memory : share of a GPU's memory that the engine uses; or, with `of_free`, of what weights and
    a step leave of it, that the cache gets.
    left : bytes, for each token of a step, that the engine leaves of a GPU at most.
    scatter : share of their mean by which the lengths of requests would have to differ to come
    apart as those of one length do: where prompts go first they stay in step, and it is 0.
    step, row : seconds that a step takes beside its kernels (scheduling, sampling), and for each of
    its sequences. front : seconds of a request outside of steps, on the way in and out.
    """

    chunk: int = 8192
    mixed: bool = True
    chunked: bool = True
    rows: int = 1024
    small_chunk: int = 0
    small_rows: int = 0
    large_chunk: int = 0
    block: int = 16
    kept: float = 0.0
    memory: float = 0.92
    of_free: bool = False
    left: Sourced | None = field(default=None, metadata={"unit": "B"})
    scatter: float = 0.1
    step: Sourced | None = field(default=None, metadata={"unit": "s"})
    row: Sourced | None = field(default=None, metadata={"unit": "s"})
    front: Sourced | None = field(default=None, metadata={"unit": "s"})

    def on(self, device: Device) -> "Scheduling":
        """Return what the engine does on a GPU."""
        memory_bytes = device.memory.value
        ample = memory_bytes >= AMPLE_MEMORY and device.architecture != "ampere"
        scheduling = self
        if self.large_chunk and memory_bytes >= VAST_MEMORY:
            scheduling = replace(self, chunk=self.large_chunk)
        elif self.small_chunk and not ample:
            scheduling = replace(self, chunk=self.small_chunk, rows=self.small_rows)
        if self.left is None:
            return scheduling
        return replace(
            scheduling,
            memory=max(scheduling.memory, 1 - self.left.value * scheduling.chunk / memory_bytes),
        )

    @property
    def front_s(self) -> float:
        """Seconds of a request outside of steps."""
        return self.front.value if self.front else 0.0

    def host_s(self, rows: float) -> float:
        """Give the seconds of a host over a step of so many sequences, beside its kernels."""
        step = self.step.value if self.step else 0.0
        return step + rows * (self.row.value if self.row else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """How an engine runs prompts and decodes on workers of their own.

    reason : why it does not; empty where it does. without : axes that its workers cannot have, each
    with the reason. variables : before the command of a worker, where
    `{side}` is a port beside that which it serves at. prefill, decode : flags of workers of each
    kind; worker : of both, where `{port}` is its own. router : command in front of them.
    after : what is left to do. In both `{prefill_hosts}`, `{prefill_ports}`, `{decode_hosts}` and
    `{decode_ports}` list where workers are, and `{prefills}` and `{decodes}` too, each as
    `prefill_at` and `decode_at` say.
    stepwise : keys and values of a prompt are sent step by step, beside those that follow; else
    when all of it is done. again : a decode worker runs the last token of a prompt again, and that
    gives the first token; else it comes with the keys and values.
    """

    reason: str = ""
    without: Mapping[str, str] = field(default_factory=dict, hash=False)
    variables: str = ""
    worker: str = ""
    prefill: str = ""
    decode: str = ""
    router: str = ""
    prefill_at: str = "{host}:{port}"
    decode_at: str = "{host}:{port}"
    after: str = ""
    stepwise: bool = False
    again: bool = False

    def bars(self, plan: Plan) -> str:
        """Say why a worker cannot have a plan; empty where it can."""
        barred = (self.without.get(axis, "") for axis, _ in plan.axes)
        return next(filter(None, barred), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine at one version: what it runs, its habits and its launch lines.

    name : of its file. version : that all of it was read at; empty where that is not known.
    kind : of the models that it runs. namesake : the engine of the other kind of models that people
    call by the same name. place : in lists of engines.
    capability : compute capability that a GPU needs at least. capabilities : by precision, where
    that needs a later one.
    runtime : the one that it behaves as when its line has no flag of another: ``tensorrt`` stands
    for fused kernels replayed as CUDA graphs, ``torch-compile`` for fused ones issued by the host,
    ``torch-eager`` for neither.
    limits : of all models. models : the only ones that it runs, families or single ones, with what
    each has in place of `limits`; empty for any, and ``any`` is all others. lines : launch lines
    that are not the usual one.
    source : of its axes. sources : of all else, by field.
    """

    name: str
    title: str
    version: str = ""
    kind: str
    namesake: str = ""
    place: int = 1000
    capability: tuple[int, ...] = ()
    capabilities: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    runtime: str
    source: str
    line: LaunchLine
    lines: Mapping[str, LaunchLine] = field(default_factory=dict)
    limits: Limits = Limits()
    models: Mapping[str, Limits] = field(default_factory=dict)
    several_hosts: SeveralHosts = SeveralHosts()
    habits: Habits = Habits()
    scheduling: Scheduling = Scheduling()
    disaggregation: Disaggregation = Disaggregation(reason="has no workers for prompts alone")
    sources: Words = field(default_factory=dict)

    def limits_of(self, model: str, family: str) -> Limits | None:
        """Give what the engine can run of a model, or of its family; None where it runs neither."""
        if not self.models:
            return self.limits
        candidates = (self.models.get(name) for name in (model, family, "any"))
        return next(filter(None, candidates), None)

    def line_of(self, limits: Limits) -> LaunchLine:
        """Give the launch line of models that have these limits."""
        return self.lines[limits.line] if limits.line else self.line

    def runtimes_of(self, model: str, family: str) -> list[str]:
        """List the runtimes that its launch line of a model can start, the slowest last: eager.

        The first of them is the one that it is launched in where none is asked for.
        """
        limits = self.limits_of(model, family)
        flags = (self.line if limits is None else self.line_of(limits)).runtimes
        return sorted((self.runtime, *flags), key=lambda name: name == EAGER)


@dataclass(frozen=True, slots=True)
class Engines:
    """All engines at their newest known versions, in the order of lists; `older` ones by name."""

    engines: tuple[Engine, ...]
    older: Mapping[str, tuple[Engine, ...]] = field(default_factory=dict)

    def versions(self, engine: Engine) -> tuple[Engine, ...]:
        """List an engine at all of its known versions, the newest first."""
        return (engine, *self.older.get(engine.name, ()))

    def named(self, name: str) -> Engine | None:
        """Look up an engine by name or title, in any case; None where there is none."""
        folded = name.casefold()
        matches = (e for e in self.engines if folded in (e.name, e.title.casefold()))
        return next(matches, None)

    def of_kind(self, kind: str) -> list[Engine]:
        """List the engines of models of a kind."""
        return [engine for engine in self.engines if engine.kind == kind]


def load_engines(files: Mapping[str, Table]) -> Engines:
    """Read engines by name, each from what its file holds.

    A table of ``[versions]`` says what an older version has in place of the newest one.

    Raises `CatalogueError` if a key is none of the fields of its table, or one that is needed is
    missing.
    """
    tables = {name: list(_versions(table)) for name, table in files.items()}
    newest = {name: rows[0] for name, rows in tables.items()}
    engines_by_name = {
        name: tuple(
            read_fields(
                Engine, name, {**_limits(row), "name": name, "habits": _habits(row, newest)}
            )
            for row in rows
        )
        for name, rows in tables.items()
    }
    engines = [versions[0] for versions in engines_by_name.values()]
    return Engines(
        engines=tuple(sorted(engines, key=lambda engine: (engine.place, engine.name))),
        older={name: versions[1:] for name, versions in engines_by_name.items() if versions[1:]},
    )


def _versions(table: Table) -> Iterator[Table]:
    """Yield the table of an engine at its newest version, and then at older ones."""
    newest = {name: value for name, value in table.items() if name != "versions"}
    older = cast("Mapping[str, Table]", table.get("versions", {}))
    yield newest
    for version in sorted(older, key=read_version, reverse=True):
        if read_version(version) >= read_version(str(newest.get("version", "0"))):
            raise CatalogueError(f"versions.{version}: expected one before {newest['version']}")
        yield {**_merged(newest, older[version]), "version": version}


def _merged(table: Table, changes: Table) -> dict[str, object]:
    """Return a table with changes, key by key at every depth."""
    merged = dict(table)
    for name, value in changes.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(old, value)
        else:
            merged[name] = value
    return merged


def _limits(table: Table) -> dict[str, object]:
    """Return an engine's table where every model has its limits in full.

    A model is like a family in all that it does not say itself, and both are like all models.
    """
    common = cast(Table, table.get("limits", {}))
    models = cast("Mapping[str, Table]", table.get("models", {}))
    full_models = {}
    for name, model_row in models.items():
        family = models.get(str(model_row.get("like", "")), {})
        row = {**common, **family, **model_row}
        full_models[name] = {key: value for key, value in row.items() if key != "like"}
    return {**table, "models": full_models}


def _habits(table: Table, tables: Mapping[str, Table]) -> Table:
    """Return an engine's habits; `code` names the engine whose code it runs but its own."""
    own_habits = dict(cast(Table, table.get("habits", {})))
    code = own_habits.pop("code", "")
    if not code:
        return own_habits
    shared = cast(Table, tables[str(code)]["habits"])
    eager, own_eager = (
        cast("Mapping[str, Table]", habits.get("eager", {})) for habits in (shared, own_habits)
    )
    families = {**eager, **own_eager}
    times = cast("Mapping[str, Table]", shared.get("host", {}))
    own_habits.setdefault(
        "host", {name: {"kernel": host_times["kernel"]} for name, host_times in times.items()}
    )
    own_habits |= {name: shared[name] for name in ("pixel", "held") if name not in own_habits}
    own_habits["eager"] = {
        name: {**eager.get(name, {}), **own_eager.get(name, {})} for name in families
    }
    return own_habits
