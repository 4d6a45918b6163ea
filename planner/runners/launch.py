"""What to type: how whatever runs a plan is started with it, or the reason why it cannot."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from math import ceil
from typing import Final

from planner.engines.engine import EAGER, Engine, Engines, LaunchLine, Limits, Words
from planner.engines.tables import engines
from planner.models import Model, known_as
from planner.placement.placement import Placement, visible_devices
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.launch_settings import Settings, settings_of
from planner.runners.refusal import group_copies, one_copy, refusal_of
from planner.scenario.deployment import usual_precision
from planner.scenario.scenario import Scenario
from topology.base.shell import path_word, shell_path, shell_word
from topology.base.values import dataclass

MODES: Final = {EAGER: "eager", "torch-compile": "compile", "torch-graph": "graph"}
"""What ``planner validate`` calls the runtimes of PyTorch."""
EXPORT_FIELDS: Final = (
    "nodes", "height", "width", "frames", "steps", "batch", "input_tokens", "output_tokens",
    "text_tokens", "precision", "kv_precision", "offload", "text_tower", "algorithm", "attention",
    "kv_repeat", "wide_collectives", "scattered_inputs", "tensorrt_version", "hardware", "topology",
    "detect", "pcie_generation", "profile",
)  # fmt: skip
"""Fields of a request that ``planner export`` takes as they are."""
VALIDATE_FIELDS: Final = (
    "height", "width", "frames", "batch", "input_tokens", "text_tokens", "precision", "hardware",
    "profile",
)  # fmt: skip
"""And those that ``planner validate`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to type, or why not: one of `line` and `reason` is empty.

    runtime : the one that the engine behaves as. prompt : words that stand for one, behind the
    command. calls : what a script does beside. request : what each request has to say. notes : what
    the line does not say.
    """

    engine: str
    runtime: str = ""
    command: str = ""
    prompt: str = ""
    calls: tuple[str, ...] = ()
    request: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def line(self) -> str:
        """The command with its prompt, and behind it as a comment what it does not say.

        >>> Launch(engine="E", command="run", request={"height": 512}, notes=("fp8: no flag",)).line
        'run  # each request: height=512; fp8: no flag'
        """
        request_text = ", ".join(f"{name}={size}" for name, size in self.request.items())
        comments = [
            *self.calls,
            *([f"each request: {request_text}"] if request_text else []),
            *self.notes,
        ]
        command = f"{self.command} {self.prompt}".strip()
        return "  # ".join([command, *(["; ".join(comments)] if comments else [])])

    def to_dict(self) -> dict[str, str]:
        """Return what ``--format json`` prints."""
        answer = {"reason": self.reason} if self.reason else {"line": self.line}
        return {"engine": self.engine, **answer, "runtime": self.runtime}


def launched(
    scenario: Scenario,
    plan: Plan,
    placement: Placement | None = None,
    told: Mapping[str, int] | None = None,
) -> Launch:
    """Say what to type for what runs a scenario, on the GPUs that a plan was seated on.

    told : sizes that an engine is told of the load, as ``Settings`` names them.
    """
    deployment = scenario.deployment
    if deployment.runner is not None:
        launch = launch_of(scenario, deployment.runner, plan, told)
    else:
        runtime, command = deployment.runtime.name, _own_command(scenario, plan)
        launch = Launch(engine=deployment.title, runtime=runtime, command=command)
    return seated_on(launch, scenario, placement)


def _own_command(scenario: Scenario, plan: Plan) -> str:
    """Write the command of ours that builds a plan, or runs it in PyTorch."""
    request = scenario.request
    if request.precision == usual_precision(scenario.model, scenario.deployment.hardware):
        request = replace(request, precision=None)
    name = request.model_name if known_as(request.model_name) else request.model_path
    parts = [f"--model {shell_path(name)}", f"--plan {plan}"]
    runtime = scenario.deployment.runtime.name
    if runtime in MODES:
        flags = [
            *_request_flags(request, VALIDATE_FIELDS),
            "--backend torch",
            f"--mode {MODES[runtime]}",
        ]
        return " ".join(["planner validate", *parts, *flags])
    folder = shell_path(f"{scenario.model.name}-{plan}".replace("/", "-"))
    flags = [*_request_flags(request, EXPORT_FIELDS), f"--output {folder}"]
    return " ".join(["planner export", *parts, *flags])


def _request_flags(request: Request, names: Sequence[str]) -> Iterator[str]:
    """Write what a request asks for beside what is usual; a machine that was read has no name."""
    for option in fields(Request):
        value = getattr(request, option.name)
        if option.name not in names or value == option.default or "\n" in str(value):
            continue
        flag = f"--{option.name.replace('_', '-')}"
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-")
        elif isinstance(value, str | int) and value != "":
            yield f"{flag} {shell_path(str(value))}"


def launch_lines(
    scenario: Scenario,
    plan: Plan,
    placement: Placement | None = None,
    told: Mapping[str, int] | None = None,
) -> tuple[Launch, ...]:
    """Say how engines run a plan of a scenario, on the GPUs it was seated on.

    told : sizes that each engine is told of the load, as `Settings` names them.
    """
    settings = settings_of(scenario, plan, told)
    lines = launches(engines(), scenario.model, plan, settings)
    return tuple(seated_on(line, scenario, placement) for line in lines)


def launch_of(
    scenario: Scenario, engine: Engine, plan: Plan, told: Mapping[str, int] | None = None
) -> Launch:
    """Say how one engine runs a plan of a scenario, or why it cannot; `told` as above."""
    return launch_with(engine, scenario.model, plan, settings_of(scenario, plan, told))


def seated_on(launch: Launch, scenario: Scenario, placement: Placement | None) -> Launch:
    """Give a line the GPUs of a machine that the plan was seated on, where they are not all."""
    subset = scenario.deployment.subset
    if launch.reason or placement is None or subset is None:
        return launch
    if placement.devices == tuple(range(len(subset.machine.gpus))):
        return launch
    return replace(launch, command=f"{visible_devices(placement.devices)} {launch.command}")


def launches(
    engines: Engines, model: Model, plan: Plan, settings: Settings | None = None
) -> list[Launch]:
    """Say for every engine of the model's kind how it runs the plan, or why it cannot."""
    engine_settings = settings or Settings()
    return [
        launch_with(engine, model, plan, engine_settings) for engine in engines.of_kind(model.kind)
    ]


def launch_with(engine: Engine, model: Model, plan: Plan, settings: Settings) -> Launch:
    """Say how one engine runs a plan with settings, or why it cannot."""
    reason = refusal_of(engine, model, plan, settings)
    limits = engine.limits_of(model.name, model.family)
    runtimes = engine.runtimes_of(model.name, model.family)
    if settings.runtime not in runtimes:
        settings = replace(settings, runtime=runtimes[0])
    settings = whole_prompts(engine, settings)
    if reason or limits is None:
        return Launch(engine=engine.title, runtime=settings.runtime, reason=reason)
    line = engine.line_of(limits)
    copy_plan = one_copy(line, model, plan)
    copy_settings = replace(settings, hosts=ceil(settings.hosts * copy_plan.gpus / plan.gpus))
    command, note = _command(engine, limits, model, copy_plan, copy_settings)
    flags = [
        part
        for flag in _flags(line, limits, model, copy_plan, copy_settings)
        for part in _written_flags(limits, flag)
    ]
    if settings.spread is not None:
        ways = engine.habits.ways(model, *settings.spread)
        flags += dict.fromkeys(way.flag for way in ways if way.flag)
    request = _size_words(line, limits, line.request, settings)
    copy_notes = _copy_notes(line, model, plan)
    notes = (
        *_unflagged_notes(line, limits, plan, settings),
        *copy_notes,
        note,
        line.after.format(gpus=plan.gpus, made="video" if settings.video else "image"),
    )
    return Launch(
        engine=engine.title,
        runtime=settings.runtime,
        command=command if line.python else " ".join([command, *flags]),
        prompt=line.prompt,
        calls=tuple(flags) if line.python else (),
        request={name: settings.sizes[size] for size, name in request.items()},
        notes=tuple(note for note in notes if note),
    )


def whole_prompts(engine: Engine, settings: Settings) -> Settings:
    """Give a step of an engine that cuts no prompts room for the longest request."""
    scheduling = engine.scheduling
    chunk = settings.sizes.get("chunk", scheduling.chunk)
    if scheduling.chunked or settings.longest <= chunk:
        return settings
    return replace(settings, sizes={**settings.sizes, "chunk": settings.longest})


def _command(
    engine: Engine, limits: Limits, model: Model, plan: Plan, settings: Settings
) -> tuple[str, str]:
    """Fill in how the engine is started, and say what to mind."""
    several, copies = engine.several_hosts, group_copies(plan)
    line = engine.line_of(limits)
    command, note = line.command, ""
    if settings.hosts > 1:
        by_copies = bool(several.replicas) and copies > 1
        command = several.replicas if by_copies else line.hosts or several.command
        note = several.replicas_note if by_copies else several.note
    repository = settings.folder or limits.name or model.repository or model.name
    filled = command.format(
        repo=shell_path(repository),
        script=limits.script,
        words=limits.words,
        gpus=plan.gpus,
        hosts=settings.hosts,
        local=plan.gpus // settings.hosts,
        replicas=copies // settings.hosts,
        host=settings.host,
        rank=settings.rank,
        **_sizes(model, settings),
    )
    return filled.strip(), note


def _sizes(model: Model, settings: Settings) -> Mapping[str, int]:
    """Give the sizes that were asked for, and the model's usual ones of the rest."""
    names = ("height", "width", "frames", "steps")
    return {name: settings.sizes.get(name, getattr(model.defaults, name)) for name in names}


def _written_flags(limits: Limits, flag: str) -> list[str]:
    """Write a flag, or a call once for every transformer that it is to be made of."""
    if "{transformer}" not in flag:
        return [flag] if flag else []
    named_flag = flag.replace("{words}", limits.words)
    return [named_flag.replace("{transformer}", name) for name in limits.transformers]


def _flags(
    line: LaunchLine, limits: Limits, model: Model, plan: Plan, settings: Settings
) -> Iterator[str]:
    yield line.attention.get(settings.attention, "")
    yield from (
        line.calls[axis].replace("{n}", str(n)) for axis, n in plan.axes if axis in line.calls
    )
    skipped_axes = set(line.calls)
    if plan.degree("adp") > 1 and "{ranks}" in line.axes["adp"]:
        skipped_axes.add("tp")
    ranks = plan.expert_ranks
    axes = [
        line.axes[axis].format(n=n, ranks=ranks)
        for axis, n in plan.axes
        if axis not in skipped_axes
    ]
    if line.call and axes:
        yield line.call.format(arguments=", ".join(axes), transformer="{transformer}")
    elif not line.call:
        yield from axes
    if plan.vae > 1:
        yield line.vae.format(n=plan.vae)
    if plan.ep > 1:
        yield line.ep.format(n=plan.ep)
    if plan.fsdp > 1:
        yield line.fsdp.format(n=plan.fsdp)
    if plan.patch > 1:
        yield line.patch.format(n=plan.patch, warmup=settings.warmup)
    yield line.precision.get(settings.precision, "")
    yield line.cache.get(settings.cache, "")
    yield line.features.get(settings.features, "").replace("{n}", settings.threshold)
    yield line.runtimes.get(settings.runtime, "")
    yield _speculation(line.speculation.get(settings.drafter, ""), settings)
    if settings.copies:
        yield shlex.join(word.replace("{n}", str(settings.copies)) for word in line.copies.split())
    yield line.offload if settings.offload else line.resident
    sizes = _sizes(model, settings)
    for size, flag in _size_words(line, limits, line.sizes, settings).items():
        ranks = plan.degree("adp") if size in line.whole else 1
        yield flag.format(n=settings.sizes[size] * ranks, **sizes)


def _speculation(flags: str, settings: Settings) -> str:
    """Fill in who drafts how many tokens, in words of a shell; JSON is one of them."""
    words, path = [], path_word(settings.draft)
    for word in flags.split():
        draft = json.dumps(path)[1:-1] if word.startswith('{"') else path
        filled = word.replace("{n}", str(settings.drafted)).replace("{draft}", draft)
        words.append(shell_word(filled.replace("{all}", str(settings.drafted + 1))))
    return " ".join(words)


def _size_words(line: LaunchLine, limits: Limits, names: Words, settings: Settings) -> Words:
    """Look up the sizes that were asked for; a video's may go by other words."""
    words = {**names, **(line.video if names and settings.video else {})}
    return {n: words[n] for n in settings.sizes if n in words and n not in limits.lacks}


def _copy_notes(line: LaunchLine, model: Model, plan: Plan) -> Iterator[str]:
    """Say what to do for axes whose flag says something else of a model with experts."""
    if model.has_experts:
        for axis, degree in plan.axes:
            if axis in line.experts:
                yield line.experts[axis].format(n=degree)


def _other_weights(line: LaunchLine, settings: Settings) -> Iterator[str]:
    """Say what a precision needs that neither the checkpoint has nor a flag makes of it."""
    if settings.stored:
        yield f"{settings.precision}: needs another checkpoint, this one has {settings.stored}"
    elif settings.precision not in ("", "bf16") and settings.precision not in line.precision:
        yield f"{settings.precision}: {line.untold.get(settings.precision, 'no flag')}"


def _unflagged_notes(
    line: LaunchLine, limits: Limits, plan: Plan, settings: Settings
) -> Iterator[str]:
    """Say of everything that was asked for and has no flag that it has none."""
    flagged = {**line.sizes, **line.request, **(line.video if settings.video else {})}
    reasons = {**line.untold, **limits.lacks}
    for axis, degree in plan.axes:
        if axis in line.untold:
            yield f"{axis}{degree}: {line.untold[axis]}"
    if settings.cache and settings.cache not in line.cache:
        yield f"{settings.cache} keys and values: {line.untold.get('kv', 'no flag')}"
    if settings.drafter and settings.drafter not in line.speculation:
        draft_note = line.untold[settings.drafter].replace("{n}", str(settings.drafted))
        yield f"drafts: {draft_note.replace('{draft}', settings.draft)}"
    yield from _other_weights(line, settings)
    if settings.copies and not line.copies:
        yield f"{settings.copies} copies of experts: {line.untold.get('copies', 'no flag')}"
    if settings.offload and not line.offload:
        yield f"offload: {line.untold.get('offload', 'no flag')}"
    for size in settings.sizes:
        if size not in flagged or size in reasons:
            yield f"{size} {settings.sizes[size]}: {reasons.get(size, 'no flag')}"
