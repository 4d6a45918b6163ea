"""The folder of a plan for other engines: its launch line, its sizes, and what to expect."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from planner.catalogue import engines
from planner.launch import Launch, launches
from planner.outcome import PlanEstimate
from planner.search import Question
from planner.tensorrt.document import SCHEMA
from topology.errors import IllegalPlanError, InputError
from topology.units import format_bytes, format_seconds

TITLES: Final[Mapping[str, str]] = {
    "xdit": "xDiT",
    "diffusers": "diffusers",
    "sglang": "SGLang Diffusion",
    "vllm-omni": "vLLM-Omni",
    "trtmc": "TensorRT Model Connect",
}
"""Backends, and what their engines are called in the planner's table."""
SIZE_FLAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "xdit": {
        "height": "--height",
        "width": "--width",
        "frames": "--num_frames",
        "steps": "--num_inference_steps",
    },
    "sglang": {
        "height": "--height",
        "width": "--width",
        "frames": "--num-frames",
        "steps": "--num-inference-steps",
    },
}
"""Flags of engines that are told sizes on their command line."""


def engine_folder(question: Question, found: PlanEstimate, backend: str) -> dict[str, bytes]:
    """Return the files of the folder.

    Raises
    ------
    InputError
        If no engine of the name runs this kind of model.
    IllegalPlanError
        If the engine cannot run the plan, saying why.
    """
    title = TITLES[backend]
    said = launches(engines(), question.model, found.plan)
    launch = next((one for one in said if one.engine == title), None)
    if launch is None:
        raise InputError(f"--backend {backend}: {title} runs no {question.model.kind} models")
    if launch.reason:
        raise IllegalPlanError(f"plan {found.plan}: {title} {launch.reason}")
    sizes = _sizes(question)
    document = {
        "schema": SCHEMA,
        "backend": backend,
        "model": question.model.name,
        "plan": str(found.plan),
        "gpus": found.plan.gpus,
        "hardware": found.hardware,
        "precision": found.precision,
        "sizes": sizes,
        "request": asdict(question.request),
        "devices": _devices(question, found),
        "launch": launch.line,
        "expected": found.to_dict(),
    }
    files = {"plan.json": json.dumps(document, indent=1, allow_nan=False).encode()}
    files |= _scripts(launch, backend, sizes, document)
    files["README.md"] = _readme(document, title).encode()
    return files


def _sizes(question: Question) -> dict[str, int]:
    """Sizes of the request, the model's usual ones where none were asked for."""
    asked, usual = question.request, question.model.defaults
    found = {
        name: getattr(asked, name) or getattr(usual, name)
        for name in ("height", "width", "frames", "steps")
    }
    return {
        name: int(size) for name, size in found.items() if size and (name, size) != ("frames", 1)
    }


def _devices(question: Question, found: PlanEstimate) -> list[int]:
    if found.placement is not None:
        return list(found.placement.devices)
    return [rank % question.site.hardware.gpus for rank in range(found.plan.gpus)]


def _scripts(
    launch: Launch, backend: str, sizes: Mapping[str, int], document: Mapping[str, object]
) -> dict[str, bytes]:
    order = ",".join(map(str, document["devices"]))  # type: ignore[call-overload]  # a list
    head = ["#!/bin/sh", "set -eu", f"export CUDA_VISIBLE_DEVICES={order}"]
    line, _, comment = launch.line.partition("  # ")
    flags = SIZE_FLAGS.get(backend, {})
    told = [f"{flag} {sizes[name]}" for name, flag in flags.items() if name in sizes]
    more = ['"$@"'] if flags or backend == "diffusers" else []
    files = {"launch.sh": "\n".join([*head, " ".join([line, *told, *more]), ""]).encode()}
    if backend == "diffusers":
        files["run.py"] = _diffusers(comment, sizes, document).encode()
    elif not flags:
        files["request.json"] = json.dumps(dict(sizes), indent=1).encode()
    return files


def _diffusers(call: str, sizes: Mapping[str, int], document: Mapping[str, object]) -> str:
    """Write the script that the launch line starts."""
    names = {"frames": "num_frames", "steps": "num_inference_steps"}
    told = [f"{names.get(name, name)}={size}" for name, size in sizes.items()]
    return "\n".join(
        [
            f'"""{document["model"]}, {document["plan"]}: one rank, started by launch.sh."""',
            "",
            "import os",
            "import sys",
            "",
            "import torch",
            "import torch.distributed as dist",
            "from diffusers import ContextParallelConfig, DiffusionPipeline",
            "",
            'dist.init_process_group("nccl")',
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            f'name = "{_repository(document)}"',
            "pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=torch.bfloat16)",
            'pipe.to("cuda")',
            call,
            f"result = pipe(sys.argv[1], {', '.join(told)})",
            "if dist.get_rank() == 0:",
            "    print(type(result).__name__)",
            "dist.destroy_process_group()",
            "",
        ]
    )


def _repository(document: Mapping[str, object]) -> str:
    name = str(document["model"])
    return engines().repositories.get(name, name)


def _readme(document: Mapping[str, object], title: str) -> str:
    expected: Mapping[str, float] = document["expected"]  # type: ignore[assignment]  # numbers
    about = (
        f"{document['gpus']} x {document['hardware']}, {document['precision']}. Expected: "
        f"{format_seconds(expected['latency_s'])} a request, "
        f"{format_bytes(expected['memory_bytes'])} on the fullest GPU."
    )
    return "\n".join(
        [
            f"# {document['model']}, {document['plan']}, {title}",
            "",
            about,
            "",
            "    ./launch.sh [what the engine is told beside, such as a prompt]",
            "",
            "`plan.json` has the plan, its sizes, the order of GPUs and what was expected.",
            "",
        ]
    )
