"""The folder of a plan for other engines: its launch line, its sizes, and what to expect."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.engines.engine import Engine
from planner.request.plan import Plan
from planner.runners.launch import Launch, launch_with, whole_prompts
from planner.runners.launch_settings import Settings, settings_of
from planner.runners.refusal import nearest_advice, refusal_of
from planner.scenario.scenario import Scenario
from planner.search.estimate import PlanEstimate
from planner.tensorrt import SCHEMA
from planner.tensorrt.runner.library import Document
from topology.base import IllegalPlanError, format_bytes, format_number, format_seconds
from topology.base.values import dataclass

CONFIGURATIONS: Final = (
    "ContextParallelConfig", "FirstBlockCacheConfig", "TensorParallelConfig",
)  # fmt: skip
"""Classes of diffusers that calls of a script may need."""

_SCRIPT: Final = """\
{docstring}

import os
import sys

import torch
import torch.distributed as dist
{imports}from diffusers import {names}
from diffusers.utils import export_to_video

if len(sys.argv) != 2:
    sys.exit("usage: {usage} TEXT")
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
name = {name}
pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=torch.bfloat16)
{setup}result = pipe({arguments})
if dist.get_rank() == 0:
    if hasattr(result, "frames"):
        print(export_to_video(result.frames[0], "result.mp4"))
    else:
        result.images[0].save("result.png")
{close}"""
"""The script of a rank for diffusers."""
CLOSE: Final = "dist.destroy_process_group()\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the calls of a script for diffusers.

    about : what it is. usage : how it is started. last : calls behind the launch's. close : what
    follows the result.
    """

    about: str
    usage: str
    imports: str = ""
    last: tuple[str, ...] = ()
    close: str = CLOSE


def engine_folder(scenario: Scenario, estimate: PlanEstimate, engine: Engine) -> dict[str, bytes]:
    """Return the files of the folder.

    Raises `IllegalPlanError` if the engine cannot run the plan: why, and the nearest that it can.
    """
    settings = whole_prompts(engine, script_settings(scenario, estimate))
    launch = launch_with(engine, scenario.model, estimate.plan, settings)
    if launch.reason:
        raise IllegalPlanError(_refusal_words(scenario, estimate.plan, engine, settings))
    placement = estimate.placement
    devices = placement.devices if placement else range(estimate.plan.gpus // settings.hosts)
    document = {
        "schema": SCHEMA,
        "backend": engine.name,
        "model": scenario.model.name,
        "weights": weights_name(scenario, settings),
        "plan": str(estimate.plan),
        "gpus": estimate.plan.gpus,
        "hardware": estimate.hardware,
        "precision": estimate.precision,
        "sizes": {name: size for name, size in settings.sizes.items() if name != "batch"},
        "request": scenario.resolved.to_dict(),
        "devices": list(devices),
        "launch": launch.line,
        "expected": estimate.to_dict(),
    }
    files = {"plan.json": json.dumps(document, indent=1, allow_nan=False).encode()}
    files |= _script_files(launch, engine, settings, document)
    files["README.md"] = _readme(document, scenario.deployment.runs_as, launch, files).encode()
    return files


def weights_name(scenario: Scenario, settings: Settings) -> str:
    """Name the folder or repository of a model's weights."""
    return settings.folder or scenario.model.repository or scenario.model.name


def _refusal_words(scenario: Scenario, plan: Plan, engine: Engine, settings: Settings) -> str:
    """Say why an engine cannot run a plan, and which plans like it it can."""
    model = scenario.model
    nearest_plans = nearest_advice(
        scenario, plan, lambda other: refusal_of(engine, model, other, settings)
    )
    reason = refusal_of(engine, model, plan, settings)
    return f"plan {plan}: {engine.title} {reason}{nearest_plans}"


def script_settings(scenario: Scenario, estimate: PlanEstimate) -> Settings:
    """Collect all that was priced: usual sizes too, so that the folder runs those."""
    request, defaults = scenario.request, scenario.model.defaults
    settings = settings_of(scenario, estimate.plan, estimate.told)
    names = () if scenario.model.kind == "decoder" else ("height", "width", "frames", "steps")
    sizes = {name: int(getattr(request, name) or getattr(defaults, name) or 0) for name in names}
    given_sizes = {name: n for name, n in sizes.items() if n and (name, n) != ("frames", 1)}
    return replace(
        settings, sizes=given_sizes | dict(settings.sizes), host='"$HOST"', rank='"$NODE_RANK"'
    )


def _script_files(
    launch: Launch, engine: Engine, settings: Settings, document: Document
) -> dict[str, bytes]:
    order = ",".join(map(str, document["devices"]))
    head = [
        "#!/bin/sh",
        "set -eu",
        *_required_variables(launch),
        f"export CUDA_VISIBLE_DEVICES={order}",
    ]
    notes = [f"# {note}" for note in launch.notes]
    command = f'{launch.command} "$@"'
    files = {"launch.sh": "\n".join([*head, *notes, command, ""]).encode()}
    if engine.line.python:
        files["run.py"] = _diffusers_run(launch, settings, document).encode()
    elif launch.request:
        files["request.json"] = json.dumps(dict(launch.request), indent=1).encode()
    return files


def _required_variables(launch: Launch) -> list[str]:
    """Say what a host has to be told where there are several."""
    variables = {"$HOST": "name of the first host", "$NODE_RANK": "number of this host, from 0"}
    return [
        f': "${{{name[1:]}:?{meaning}}}"'
        for name, meaning in variables.items()
        if name in launch.command
    ]


def _diffusers_run(launch: Launch, settings: Settings, document: Document) -> str:
    """Write the script that the launch line starts."""
    about = f"{document['model']}, {document['plan']}: one rank, started by launch.sh."
    name = str(document["weights"])
    return diffusers_script(launch, settings, name, Frame(about=about, usage="./launch.sh"))


def diffusers_script(launch: Launch, settings: Settings, name: str, frame: Frame) -> str:
    """Write a rank's script for diffusers; name : of the weights."""
    setup = (*launch.calls, *(() if settings.offload else ('pipe.to("cuda")',)), *frame.last)
    arguments = ["sys.argv[1]", *(f"{name}={size}" for name, size in launch.request.items())]
    configurations = [name for name in CONFIGURATIONS if any(f"{name}(" in call for call in setup)]
    return _SCRIPT.format(
        names=", ".join([*configurations, "DiffusionPipeline"]),
        docstring=_docstring(frame.about),
        usage=frame.usage,
        imports=frame.imports,
        close=frame.close,
        name=repr(name),
        setup="".join(f"{line}\n" for line in setup),
        arguments=", ".join(arguments),
    )


def _docstring(text: str) -> str:
    """Write a line of text as a docstring that ends where the text does."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{escaped}"""'


def _readme(document: Document, how: str, launch: Launch, files: Mapping[str, bytes]) -> str:
    expected = document["expected"]
    summary = (
        f"{document['gpus']} x {document['hardware']}, {document['precision']}, {how}. Expected: "
        f"{_expected_words(expected)}, {format_bytes(expected['memory_bytes'])} on the fullest GPU."
    )
    start = "./launch.sh " + launch.prompt.replace('"..."', "TEXT")
    request = ["`request.json` has what each request carries."] if "request.json" in files else []
    return "\n".join([
        f"# {document['model']}, {document['plan']}, {launch.engine}",
        "",
        summary,
        "",
        f"    {start.strip()}",
        "",
        "`plan.json` has the plan, its sizes, the order of GPUs and what was expected.",
        *request,
        "",
    ])  # fmt: skip


def _expected_words(expected: Document) -> str:
    """Say how long a request takes, or what clients see under the load that was asked for."""
    load = expected.get("serving")
    if load is None:
        return f"{format_seconds(expected['latency_s'])} a request"
    ttft, tpot = (format_seconds(load[name]["mean"]) for name in ("ttft_s", "tpot_s"))
    rate = f"{format_number(load['tokens_per_s'])} tokens/s"
    return f"TTFT {ttft}, TPOT {tpot}, {rate} with {format_number(load['concurrency'])} at once"
