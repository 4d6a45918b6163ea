"""``planner export``: a plan as a folder to build and run."""

import argparse
from typing import Final

from planner.command.files import render
from planner.command.options import (
    DONE,
    Answer,
    Command,
    Named,
    add_output,
    add_plan,
    add_request,
    request_of,
)


def _add(parser: argparse.ArgumentParser) -> None:
    add_request(parser)
    add_plan(parser)
    parser.add_argument(
        "--backend",
        default="tensorrt",
        help="tensorrt, networks with a builder and runners; or launch line and settings of "
        "xdit, diffusers, sglang, vllm-omni or trtmc (default: tensorrt)",
    )
    parser.add_argument(
        "--tensorrt-version",
        default="",
        action=Named,
        help="of the TensorRT that will build it, such as 11.2.1.2 (default: the newest known)",
    )
    parser.add_argument(
        "--multi-device-attention",
        action="store_true",
        help="attention reads keys where they lie: bf16 or fp16 on data-centre Blackwell",
    )
    parser.add_argument(
        "--scales",
        default="",
        metavar="FILE",
        help="largest activations, of python -m validate scales (default: the checkpoint's, or 16)",
    )
    parser.add_argument("--force", action="store_true", help="replace the folder, if there is one")
    add_output(parser, file=False)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")


def _run(options: argparse.Namespace) -> Answer:
    from planner.export.engines import TITLES  # noqa: PLC0415
    from planner.export.export import export  # noqa: PLC0415

    if options.backend in TITLES and not options.engine:
        options.engine = options.backend  # its folder says what to expect of that engine
    folder = export(
        request_of(options),
        options.plan,
        options.backend,
        options.output,
        force=options.force,
        version=options.tensorrt_version,
        multi_device=options.multi_device_attention,
        scales=options.scales,
    )
    options.output = None  # the folder; what it holds goes to the screen
    text = render(options.format, folder.to_dict, markdown=folder.markdown, table=folder.line)
    return text, DONE


COMMAND: Final = Command(
    help="a plan as a folder to build and run",
    text="Write a plan as a folder. For the backend tensorrt it holds the layers of each\n"
    "engine, a builder and runners in Python and C++; for an engine such as xdit or sglang\n"
    "its launch line and settings.",
    examples=(
        (
            "planner export --model flux.1-dev --gpus 4 --plan ulysses4 --output engines",
            "networks, builder and runners for TensorRT in ./engines",
        ),
        (
            "planner export --model flux --gpus 4 --plan ulysses4 --backend xdit --output run",
            "how xDiT runs the plan",
        ),
    ),
    add=_add,
    run=_run,
)
