"""``python -m validate scales``: largest activations of a model, for products in fewer bits."""

import argparse
import json
from pathlib import Path

from planner.command.files import write
from planner.command.options import Parser, whole
from planner.export.checkpoints import checkpoint_of
from planner.export.scales import SCHEMA
from planner.models import read_model
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.harness import given_from, weights_from
from topology.base import InputError, place
from validate.plans.cases import SIZES, Case, Stage, look_up
from validate.tensorrt.numbers import largest_activations


def scales(argv: list[str]) -> None:
    """Measure, and write the file that ``planner export --scales`` reads.

    Raises InputError if a name, size or file cannot be right.
    """
    options = _parser().parse_args(argv)
    place(options.output)
    model = read_model(options.model)
    sizes = {name: getattr(options, name) for name in SIZES}
    stage: Stage = "denoise" if model.kind == "diffusion" else "prefill"
    subject = look_up(Case(model=options.model, batch=options.batch, stage=stage, **sizes))
    try:
        identity = {"model": model.name, "checkpoint": checkpoint_of(model)}
        source = weights_from(options.weights, identity)
        model_inputs = given_from(Path(options.inputs), source.embedding)
        largest = largest_activations(subject.model, subject.workload, source, model_inputs)
    except RunError as error:
        raise InputError(str(error)) from None
    document = {
        "schema": SCHEMA,
        "model": model.name,
        "weights": options.weights,
        "inputs": options.inputs,
        "sizes": {name: size for name, size in sizes.items() if size},
        "largest": largest,
    }
    write(json.dumps(document, indent=1, allow_nan=False), options.output)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m validate scales")
    parser.add_argument("--model", required=True, help="a catalogue name, or a config.json")
    parser.add_argument(
        "--weights", default="drawn", help="drawn, or a folder of safetensors (default: drawn)"
    )
    parser.add_argument(
        "--inputs",
        default="inputs",
        metavar="DIR",
        help="of NAME#FORWARD.npy, as a runner reads them; drawn where there are none "
        "(default: inputs)",
    )
    parser.add_argument("--batch", type=whole, default=1, metavar="N", help="(default: 1)")
    for name in SIZES:
        option, default_text = f"--{name.replace('_', '-')}", "(default: the model's usual one)"
        parser.add_argument(option, type=whole, metavar="N", help=default_text)
    parser.add_argument("--output", required=True, metavar="FILE", help="the file to write")
    return parser
