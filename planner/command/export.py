"""``planner export``: a plan as a folder to build and run."""

import argparse
from typing import Final

from planner.command import options as common
from planner.command.files import render

_MULTI_DEVICE: Final = "attention reads keys where they lie: bf16 or fp16 on data-centre Blackwell"
_SCALES: Final = (
    "largest activations, of python -m validate scales (default: the checkpoint's, or 16)"
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_request(parser)
    common.add_load(parser)
    common.add_plan(parser)
    parser.add_argument(
        "--backend",
        default="tensorrt",
        help="tensorrt, networks with a builder and runners; or the launch script of xdit, "
        "diffusers, sglang, vllm-omni, trtmc, vllm, sglang-llm or tensorrt-llm (default: tensorrt)",
    )
    common.add_flags(parser, {"--multi-device-attention": _MULTI_DEVICE})
    parser.add_argument("--scales", default="", metavar="FILE", help=_SCALES)
    common.add_flags(parser, {"--force": "replace the folder, if there is one"})
    common.add_output(parser, file=False)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.export.export import export  # noqa: PLC0415

    folder = export(
        common.request_of(options),
        options.plan,
        options.backend,
        options.output,
        force=options.force,
        multi_device=options.multi_device_attention,
        scales=options.scales,
    )
    options.output = None  # the folder; what it holds goes to the screen
    text = render(options.format, folder.to_dict, lambda: [folder.line()], markdown=folder.markdown)
    return text, common.DONE


COMMAND: Final = common.Command(
    help="a plan as a folder to build and run",
    text="Write a plan as a folder. For the backend tensorrt it holds the layers of each\n"
    "engine, a builder and runners in Python and C++; for an engine such as xdit or vllm\n"
    "its launch script and settings.",
    examples="planner export --model flux.1-dev --gpus 4 --plan ulysses4 --output engines\n"
    "    networks, builder and runners for TensorRT in ./engines\n"
    "planner export --model flux --gpus 4 --plan ulysses4 --backend xdit --output run\n"
    "    how xDiT runs the plan\n"
    "planner export --model llama-3.1-8b --backend vllm --concurrency 64 --output serve\n"
    "    how vLLM serves it, with limits for 64 requests at once",
    exit_1="the plan misses the times that are wanted, or more requests come than it serves",
    add=_add_options,
    run=_run_command,
)
