"""How an engine is told a plan: its launch line, or the reason why it cannot run it."""

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from costmodels.runtime import Fusion, read_fusions
from planner.engines.told import Asked
from planner.models.architecture import Model
from planner.request.plan import Plan
from planner.request.workload import TextTower
from planner.strategies.tensor import padded_widths
from topology.base import Sourced, read_sourced

Table = Mapping[str, object]
Words = Mapping[str, str]
Functions = Mapping[str, Fusion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What an engine can be told.

    name : of its table. text_tower : when it runs a tower that ignores the step.
    attention, eager : the kernel that it calls, by architecture of the GPU, and what its row-wise
    functions do in eager PyTorch; both by family of models, ``any`` for the rest.
    host_kernel : host time to issue a kernel of that code, None for the usual one.
    gathered_rings : its rings gather all keys and values first.
    slow_decoder : it decodes as models' repositories do. inside : those repositories call it, with
    the attention kernel that they install.
    axes : flag by axis. only : degrees that an axis may have. alone : axes that exclude each other.
    barred : axes that it does not have for a family. commands : how it is started for a family.
    families : the only ones it runs; empty for any. models : the only ones, by its names for
    them; empty for any. folder : a model may be a folder.
    python, call : flags are calls of a script, the first of them the axes'.
    after : what is left to do. runtime, runtimes : the one it behaves as, and flags of others.
    sizes : flag by size. request : by size, its name in each request. video : both, for videos.
    precision : flag by precision. resident : flags where nothing is offloaded.
    untold : why something has no flag.
    """

    name: str
    title: str
    kind: str
    source: str
    command: str
    axes: Words
    lacks: Words
    only: Mapping[str, tuple[int, ...]]
    alone: tuple[str, ...]
    barred: Mapping[str, tuple[str, ...]]
    commands: Words
    families: tuple[str, ...]
    vae: str
    models: Words
    folder: bool
    python: bool
    call: str
    after: str
    runtime: str
    runtimes: Words
    text_tower: TextTower
    attention: Mapping[str, Words]
    eager: Mapping[str, Functions]
    host_kernel: Sourced | None
    slow_decoder: bool
    gathered_rings: bool
    inside: bool
    sizes: Words
    request: Words
    video: Words
    precision: Words
    offload: str
    resident: str
    untold: Words
    several: Several
    sources: Words

    def functions(self, family: str) -> Functions:
        """Say what its row-wise functions do in eager PyTorch for a family of models."""
        return {**self.eager.get("any", {}), **self.eager.get(family, {})}

    def kernel(self, family: str, architecture: str) -> str:
        """Name the attention kernel that it calls; empty for the usual one."""
        known = {**self.attention.get("any", {}), **self.attention.get(family, {})}
        return known.get(architecture, "")


@dataclass(frozen=True, slots=True)
class Engines:
    """All engines, and where each catalogue model's weights are found."""

    engines: tuple[Engine, ...]
    repositories: Words

    def named(self, name: str) -> Engine | None:
        """Look up an engine by name or title, in any case; None where there is none."""
        asked = name.casefold()
        return next((e for e in self.engines if asked in (e.name, e.title.casefold())), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to type, or why not: one of `line` and `reason` is empty.

    runtime : the one that the engine behaves as. calls : what a script does beside.
    request : what each request has to say. notes : what the line does not say.
    """

    engine: str
    runtime: str = ""
    command: str = ""
    calls: tuple[str, ...] = ()
    request: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def line(self) -> str:
        """The command, and behind it as a comment what it does not say.

        >>> Launch(engine="E", command="run", request={"height": 512}, notes=("fp8: no flag",)).line
        'run  # each request: height=512; fp8: no flag'
        """
        each = ", ".join(f"{name}={size}" for name, size in self.request.items())
        said = [*self.calls, *([f"each request: {each}"] if each else []), *self.notes]
        return "  # ".join([self.command, *(["; ".join(said)] if said else [])])

    def to_dict(self) -> dict[str, str]:
        """Return what ``--format json`` prints."""
        said = {"reason": self.reason} if self.reason else {"line": self.line}
        return {"engine": self.engine, **said, "runtime": self.runtime}


def load_engines(text: str) -> Engines:
    """Read engines from TOML `text`; the caller does the file I/O."""
    tables = tomllib.loads(text)
    repositories = cast(Words, tables.pop("repositories"))
    found = tuple(_engine(name, row, tables) for name, row in tables.items())
    return Engines(found, repositories)


def _engine(name: str, row: Table, others: Mapping[str, Table]) -> Engine:
    only = cast("Mapping[str, list[int]]", row.get("only", {}))
    barred = cast("Mapping[str, list[str]]", row.get("barred", {}))
    shared = others.get(_word(row, "code"), row)
    eager = [cast("Mapping[str, Table]", one.get("eager", {})) for one in (shared, row)]
    return Engine(
        name=name,
        title=str(row["title"]),
        kind=str(row["kind"]),
        source=str(row["source"]),
        command=str(row["command"]),
        axes=_words(row, "axes"),
        lacks=_words(row, "lacks"),
        only={axis: tuple(degrees) for axis, degrees in only.items()},
        alone=_list(cast(Table, row.get("alone", {})), "axes"),
        barred={family: tuple(axes) for family, axes in barred.items()},
        commands=_words(row, "commands"),
        families=_list(row, "families"),
        vae=_word(row, "vae"),
        models=_words(row, "models"),
        folder=bool(row.get("folder", True)),
        python=bool(row.get("python", False)),
        call=_word(row, "call"),
        after=_word(row, "after"),
        runtime=_word(row, "runtime"),
        runtimes=_words(row, "runtimes"),
        text_tower=cast(TextTower, row.get("text_tower", "usual")),
        attention=cast("Mapping[str, Words]", row.get("attention", {})),
        eager={
            family: {**read_fusions(eager[0].get(family, {})), **read_fusions(table)}
            for family, table in {**eager[0], **eager[1]}.items()
        },
        host_kernel=_host_kernel(shared),
        slow_decoder=bool(row.get("slow_decoder", False)),
        gathered_rings=bool(row.get("gathered_rings", False)),
        inside=bool(row.get("inside", False)),
        sizes=_words(row, "sizes"),
        request=_words(row, "request"),
        video=_words(row, "video"),
        precision=_words(row, "precision"),
        offload=_word(row, "offload"),
        resident=_word(row, "resident"),
        untold=_words(row, "untold"),
        several=_several(cast(Table, row.get("several", {}))),
        sources=_words(row, "sources"),
    )


def _host_kernel(row: Table) -> Sourced | None:
    entry = row.get("host_kernel")
    return None if entry is None else read_sourced("host_kernel", entry, "s", {})


def _several(row: Table) -> Several:
    return Several(
        command=_word(row, "command"),
        note=_word(row, "note"),
        replicas=_word(row, "replicas"),
        replicas_note=_word(row, "replicas_note"),
        never=_list(row, "never"),
        reason=_word(row, "reason"),
    )


def _word(row: Table, name: str) -> str:
    return str(row.get(name, ""))


def _words(row: Table, name: str) -> Words:
    return cast(Words, row.get(name, {}))


def _list(row: Table, name: str) -> tuple[str, ...]:
    return tuple(cast("list[str]", row.get(name, [])))


def launches(
    engines: Engines, model: Model, plan: Plan, asked: Asked | None = None
) -> list[Launch]:
    """Say for every engine of the model's kind how it runs the plan, or why it cannot."""
    told = asked or Asked()
    repo = told.folder or engines.repositories.get(model.name, model.name)
    return [
        _launch(engine, repo, model, plan, told)
        for engine in engines.engines
        if engine.kind == model.kind
    ]


def _launch(engine: Engine, repo: str, model: Model, plan: Plan, asked: Asked) -> Launch:
    told = asked.runtime in engine.runtimes
    runtime = asked.runtime if told else engine.runtime
    reason = (
        _stranger(engine, model, asked)
        or _refusal(engine, plan)
        or _barred(engine, model.family, plan, asked)
        or _uneven(model, plan)
        or _apart(engine, plan, asked)
    )
    if reason:
        return Launch(engine=engine.title, runtime=runtime, reason=reason)
    started = replace(engine, command=engine.commands.get(model.family, engine.command))
    command, note = _command(started, engine.models.get(model.name, repo), plan, asked)
    flags = [flag for flag in _flags(engine, plan, asked) if flag]
    request = _by_size(engine, engine.request, asked)
    notes = (*_untold(engine, asked), note, engine.after.format(gpus=plan.gpus))
    return Launch(
        engine=engine.title,
        runtime=runtime,
        command=command if engine.python else " ".join([command, *flags]),
        calls=tuple(flags) if engine.python else (),
        request={name: asked.sizes[size] for size, name in request.items()},
        notes=tuple(note for note in notes if note),
    )


def _stranger(engine: Engine, model: Model, asked: Asked) -> str:
    """Say why an engine cannot load a model; empty where it can."""
    unknown = engine.families and model.family not in engine.families
    if unknown or engine.barred.get(model.family) == ():
        return f"does not run the {model.family} family"
    if asked.folder and not engine.folder:
        return "runs models that it knows by name, not a folder"
    if engine.models and model.name not in engine.models:
        return f"does not know {model.name} by name"
    return ""


def _refusal(engine: Engine, plan: Plan) -> str:
    for axis, degree in plan.axes:
        if axis not in engine.axes:
            return ": ".join([f"has no {axis} axis", *filter(None, [engine.lacks.get(axis)])])
        allowed = engine.only.get(axis)
        if allowed and degree not in allowed:
            return f"{axis} of {degree}: expected one of {', '.join(map(str, allowed))}"
    if plan.vae > 1 and not engine.vae:
        return "has no parallel VAE decode"
    together = [axis for axis, _ in plan.axes if axis in engine.alone]
    if len(together) > 1:
        return f"{' and '.join(together)} exclude each other"
    return ""


def _barred(engine: Engine, family: str, plan: Plan, asked: Asked) -> str:
    """Say what an engine cannot do with one family alone; empty where it can all."""
    for axis, _ in plan.axes:
        if axis in engine.barred.get(family, ()):
            return f"has no {axis} axis for the {family} family"
    return f"runs {family} on one host" if family in engine.commands and asked.hosts > 1 else ""


def _uneven(model: Model, plan: Plan) -> str:
    """Say that no engine here pads a FFN whose width does not divide; empty where none must."""
    degree = plan.degree("tp")
    widths = [str(width) for width in padded_widths(model, degree)]
    return f"does not pad the FFN width {' and '.join(widths)} for tp{degree}" if widths else ""


def _apart(engine: Engine, plan: Plan, asked: Asked) -> str:
    """Say why an engine cannot run a plan over several hosts; empty where it can."""
    several = engine.several
    if asked.hosts == 1:
        return ""
    if several.reason or not several.command:
        return f"{several.reason or 'runs on one host'}, not on {asked.hosts}"
    barred = [axis for axis, _ in plan.axes if axis in several.never]
    if barred:
        return f"has no {barred[0]} axis over {asked.hosts} hosts"
    if several.replicas and plan.degree("dp") > 1 and plan.degree("dp") % asked.hosts:
        return f"would split its {plan.degree('dp')} copies over {asked.hosts} hosts"
    return ""


def _command(engine: Engine, repo: str, plan: Plan, asked: Asked) -> tuple[str, str]:
    """Fill in how the engine is started, and say what to mind."""
    several, copies = engine.several, plan.degree("dp")
    command, note = engine.command, ""
    if asked.hosts > 1:
        whole = bool(several.replicas) and copies > 1
        command = several.replicas if whole else several.command
        note = several.replicas_note if whole else several.note
    filled = command.format(
        repo=shlex.quote(repo),
        gpus=plan.gpus,
        hosts=asked.hosts,
        local=plan.gpus // asked.hosts,
        replicas=copies // asked.hosts,
        host=asked.host,
        rank=asked.rank,
    )
    return filled, note


def _flags(engine: Engine, plan: Plan, asked: Asked) -> Iterator[str]:
    axes = [engine.axes[axis].format(n=degree) for axis, degree in plan.axes]
    if engine.call and axes:
        yield engine.call.format(arguments=", ".join(axes))
    elif not engine.call:
        yield from axes
    if plan.vae > 1:
        yield engine.vae.format(n=plan.vae)
    yield engine.precision.get(asked.precision, "")
    yield engine.runtimes.get(asked.runtime, "")
    yield engine.offload if asked.offload else engine.resident
    for size, flag in _by_size(engine, engine.sizes, asked).items():
        yield flag.format(n=asked.sizes[size])


def _by_size(engine: Engine, known: Words, asked: Asked) -> Words:
    """Look up the sizes that were asked for; a video's may go by other words."""
    words = {**known, **(engine.video if known and asked.video else {})}
    return {size: words[size] for size in asked.sizes if size in words}


def _untold(engine: Engine, asked: Asked) -> Iterator[str]:
    """Say of everything that was asked for and has no flag that it has none."""
    told = {**engine.sizes, **engine.request, **(engine.video if asked.video else {})}
    if asked.precision != "bf16" and asked.precision not in engine.precision:
        yield f"{asked.precision}: {engine.untold.get(asked.precision, 'no flag')}"
    if asked.offload and not engine.offload:
        yield f"offload: {engine.untold.get('offload', 'no flag')}"
    for size in asked.sizes:
        if size not in told or size in engine.untold:
            yield f"{size} {asked.sizes[size]}: {engine.untold.get(size, 'no flag')}"
