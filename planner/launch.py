"""How an engine is told a plan: its launch line, or the reason why it cannot run it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from planner.models.architecture import Model
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What an engine can be told.

    axes : flag by axis. only : degrees that an axis may have. alone : axes that exclude each other.
    families : the only ones it runs; empty for any.
    """

    title: str
    kind: str
    source: str
    command: str
    axes: Mapping[str, str]
    only: Mapping[str, tuple[int, ...]]
    alone: tuple[str, ...]
    families: tuple[str, ...]
    vae: str


@dataclass(frozen=True, slots=True)
class Engines:
    """All engines, and where each catalogue model's weights are found."""

    engines: tuple[Engine, ...]
    repositories: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to type, or why not: one of `line` and `reason` is empty."""

    engine: str
    line: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return what ``--format json`` prints."""
        said = {"line": self.line} if self.line else {"reason": self.reason}
        return {"engine": self.engine, **said}


def load_engines(text: str) -> Engines:
    """Read engines from TOML `text`; the caller does the file I/O."""
    tables = tomllib.loads(text)
    repositories = cast("Mapping[str, str]", tables.pop("repositories"))
    return Engines(tuple(_engine(row) for row in tables.values()), repositories)


def _engine(row: Mapping[str, object]) -> Engine:
    only = cast("Mapping[str, list[int]]", row.get("only", {}))
    alone = cast("Mapping[str, list[str]]", row.get("alone", {}))
    return Engine(
        title=str(row["title"]),
        kind=str(row["kind"]),
        source=str(row["source"]),
        command=str(row["command"]),
        axes=cast("Mapping[str, str]", row["axes"]),
        only={axis: tuple(degrees) for axis, degrees in only.items()},
        alone=tuple(alone.get("axes", ())),
        families=tuple(cast("list[str]", row.get("families", []))),
        vae=str(row.get("vae", "")),
    )


def launches(engines: Engines, model: Model, plan: Plan) -> list[Launch]:
    """Say for every engine of the model's kind how it runs the plan, or why it cannot."""
    repo = engines.repositories.get(model.name, model.name)
    return [
        _launch(engine, repo, model.family, plan)
        for engine in engines.engines
        if engine.kind == model.kind
    ]


def _launch(engine: Engine, repo: str, family: str, plan: Plan) -> Launch:
    reason = _refusal(engine, family, plan)
    if reason:
        return Launch(engine=engine.title, reason=reason)
    flags = [engine.axes[axis].format(n=degree) for axis, degree in plan.axes]
    if "{arguments}" in engine.command:
        filled = engine.command.format(gpus=plan.gpus, repo=repo, arguments=", ".join(flags))
        return Launch(engine=engine.title, line=filled)
    if plan.vae > 1:
        flags.append(engine.vae.format(n=plan.vae))
    command = engine.command.format(gpus=plan.gpus, repo=repo)
    return Launch(engine=engine.title, line=" ".join([command, *flags]))


def _refusal(engine: Engine, family: str, plan: Plan) -> str:
    if engine.families and family not in engine.families:
        return f"does not run the {family} family"
    for axis, degree in plan.axes:
        if axis not in engine.axes:
            return f"has no {axis} axis"
        allowed = engine.only.get(axis)
        if allowed and degree not in allowed:
            return f"{axis} of {degree}: expected one of {', '.join(map(str, allowed))}"
    if plan.vae > 1 and not engine.vae:
        return "has no parallel VAE decode"
    together = [axis for axis, _ in plan.axes if axis in engine.alone]
    if len(together) > 1:
        return f"{' and '.join(together)} exclude each other"
    return ""
