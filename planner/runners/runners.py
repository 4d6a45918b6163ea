"""Who may run a request: TensorRT, by ``planner export``, and engines in each of their runtimes."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

from planner.engines.engine import EAGER
from planner.engines.tables import allowed, engines, find_engine
from planner.engines.tensorrt import dotted
from planner.models import Model, known_as
from planner.placement.placement import Placement
from planner.request.plan import Plan
from planner.request.request import EXECUTOR, RUNTIME, Request
from planner.runners.launch import Launch, launch_of, seated_on
from planner.scenario.scenario import Scenario, usual_precision
from topology.base import InputError

MODES: Final = {EAGER: "eager", "torch-compile": "compile", "torch-graph": "graph"}
"""What ``planner validate`` calls the runtimes of PyTorch."""
BUILT: Final = (
    "nodes", "height", "width", "frames", "steps", "batch", "input_tokens", "output_tokens",
    "text_tokens", "precision", "kv_precision", "offload", "text_tower", "algorithm", "attention",
    "kv_repeat", "wide_collectives", "scattered_inputs", "tensorrt_version", "hardware", "topology",
    "detect", "pcie_generation", "profile",
)  # fmt: skip
"""Fields of a request that ``planner export`` takes as they are."""
VALIDATED: Final = (
    "height", "width", "frames", "batch", "input_tokens", "text_tokens", "precision", "hardware",
    "profile",
)  # fmt: skip
"""And those that ``planner validate`` takes."""


def runners(scenario: Scenario) -> Iterator[Scenario]:
    """Ask the same of everything that a request leaves open, in the order of lists.

    Of an engine's runtimes eager PyTorch comes last; of those that serve language models it is
    left out unless it is asked for, as they fuse there too, which the price does not know. A folder
    that `planner export` writes serves no language model. A runtime that no engine has is that of
    ``planner validate``.

    Raises
    ------
    InputError
        If an engine that is named has not the runtime that is.
    """
    asked = scenario.request
    if asked.runtime:
        _check_runtimes(asked, scenario.model)
    known = [engine.name for engine in engines().of_kind(scenario.model.kind)]
    exported = [""] if scenario.model.kind == "diffusion" else []
    pairs = [
        (name, runtime)
        for name in asked.engines or (*exported, *known)
        for runtime in _runtimes(name, scenario.model)
        if asked.runtime == runtime
        or name == EXECUTOR
        or not (asked.runtime or (runtime == EAGER and scenario.model.kind == "decoder"))
    ]
    for name, runtime in pairs or [(EXECUTOR, asked.runtime)]:
        yield scenario.run_by(name, asked.runtime if name == EXECUTOR else runtime)


def _check_runtimes(asked: Request, model: Model) -> None:
    for name in asked.engines:
        has = _runtimes(name, model)
        if name != EXECUTOR and asked.runtime not in has:
            wanted = " or ".join(has)
            raise InputError(f"runtime: got {asked.runtime}, which {name} has not: wanted {wanted}")


def _runtimes(name: str, model: Model) -> list[str]:
    """List the runtimes of an engine, the slowest last."""
    if name in ("", EXECUTOR):
        return [RUNTIME]
    return find_engine(name).runtimes_of(model.name, model.family)


def name_of(scenario: Scenario) -> str:
    """Name the engine of a scenario as other programs know it, without its version."""
    return scenario.deployment.engine.partition("@")[0] or EXECUTOR


def title_of(scenario: Scenario) -> str:
    """Name what runs a scenario as people read it."""
    deployment = scenario.deployment
    if deployment.engine not in ("", EXECUTOR):
        return find_engine(deployment.engine).title
    return "TensorRT" if deployment.runtime.name == RUNTIME else "planner validate"


def version_of(scenario: Scenario) -> str:
    """Give the version of what runs a scenario that its facts are of; empty where none is known."""
    deployment = scenario.deployment
    if deployment.engine not in ("", EXECUTOR):
        return find_engine(deployment.engine).version
    runs = allowed().running(scenario.request.tensorrt_version)
    return dotted(runs) if deployment.runtime.name == RUNTIME else ""


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
    if deployment.engine not in ("", EXECUTOR):
        launch = launch_of(scenario, find_engine(deployment.engine), plan, told)
    else:
        command = _ours(scenario, plan)
        launch = Launch(engine=title_of(scenario), runtime=deployment.runtime.name, command=command)
    return seated_on(launch, scenario, placement)


def _ours(scenario: Scenario, plan: Plan) -> str:
    """Write the command of ours that builds a plan, or runs it in PyTorch."""
    request = scenario.request
    if request.precision == usual_precision(scenario.model, request):
        request = replace(request, precision=None)
    name = request.model_name if known_as(request.model_name) else request.model_path
    parts = [f"--model {shlex.quote(name)}", f"--plan {plan}"]
    runtime = scenario.deployment.runtime.name
    if runtime in MODES:
        flags = [*_flags(request, VALIDATED), "--backend torch", f"--mode {MODES[runtime]}"]
        return " ".join(["planner validate", *parts, *flags])
    folder = shlex.quote(f"{scenario.model.name}-{plan}".replace("/", "-"))
    flags = [*_flags(request, BUILT), f"--output {folder}"]
    return " ".join(["planner export", *parts, *flags])


def _flags(request: Request, names: Sequence[str]) -> Iterator[str]:
    """Write what a request asks for beside what is usual; a machine that was read has no name."""
    for field in fields(Request):
        value = getattr(request, field.name)
        if field.name not in names or value == field.default or "\n" in str(value):
            continue
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-")
        elif isinstance(value, str | int) and value != "":
            yield f"{flag} {shlex.quote(str(value))}"
