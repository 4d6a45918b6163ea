"""The command line: reads arguments and files, prints answers, and decides the exit code.

The one place that may reach up to `validate`, and only when a command needs it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from topology.errors import InputError, ModelError

if TYPE_CHECKING:
    from topology.graph import Machine

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
WIDTH: Final = 118

Answer = tuple[str, int]
"""Text to print, and the exit code."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].lower()}{message[1:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        answer: Answer = arguments.run(arguments)
        text, code = answer
        _write(text, arguments.output)
    except InputError as error:
        print(f"planner: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except ModelError as error:
        print(f"planner: {error}", file=sys.stderr)
        return NO
    except KeyboardInterrupt:
        print("planner: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    return code


def _write(text: str, output: str | None) -> None:
    """Print, or write a file whole or not at all."""
    if output is None:
        print(text, flush=True)
        return
    target = Path(output)
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text + "\n")
        Path(file.name).replace(target)
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror}") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a whole number") from None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="planner", description="Split generative models over GPUs.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_recommend(commands.add_parser("recommend", help="rank every way to split a model"))
    _add_estimate(commands.add_parser("estimate", help="one plan in full"))
    _add_collectives(commands.add_parser("collectives", help="what collectives cost"))
    _add_models(commands.add_parser("models", help="the models that are known, and files"))
    _add_topology(commands.add_parser("topology", help="machines: catalogue names and files"))
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            text = f"planner {version('multi-gpu-planner')}"
        except PackageNotFoundError:
            text = "planner (not installed)"
        parser.exit(DONE, f"{text}\n")


def _add_output(
    parser: argparse.ArgumentParser,
    run: Callable[..., Answer],
    formats: Sequence[str] = ("table", "json", "markdown"),
) -> None:
    parser.add_argument("--format", choices=formats, default="table")
    parser.add_argument("--output", metavar="FILE", help="write here instead of printing")
    parser.set_defaults(run=run)


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a catalogue name, or a config.json")
    parser.add_argument("--gpus", type=_whole, default=1)
    parser.add_argument("--hardware", default="h100-sxm", help="a catalogue name")
    parser.add_argument("--nodes", type=_whole, default=0, help="hosts to spread the GPUs over")
    for name in ("height", "width", "frames", "steps", "input-tokens", "output-tokens"):
        parser.add_argument(f"--{name}", type=_whole)
    parser.add_argument("--text-tokens", type=_whole, help="tokens of the prompt (diffusion)")
    parser.add_argument("--batch", type=_whole, default=1)
    parser.add_argument("--precision", default="bf16", help="bf16, fp16, fp8, nvfp4 or int8")
    parser.add_argument(
        "--runtime", default="tensorrt", help="tensorrt, torch-compile or torch-eager"
    )
    parser.add_argument("--text-tower", help="once or every_step (Cosmos 3)")
    parser.add_argument("--algorithm", default="auto", help="of collectives; auto is NCCL's choice")
    parser.add_argument(
        "--offload", action="store_true", help="text encoders leave the GPU before denoising"
    )


def _add_recommend(parser: argparse.ArgumentParser) -> None:
    _add_request(parser)
    parser.add_argument(
        "--objective", default="latency", help="latency, throughput, memory or cost"
    )
    parser.add_argument(
        "--at-most-gpus", action="store_true", dest="at_most", help="fewer GPUs may do"
    )
    parser.add_argument("--top", type=_whole, default=8, help="plans to print")
    parser.add_argument("--rejected", action="store_true", help="print why plans were rejected")
    _add_output(parser, _recommend)


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    _add_request(parser)
    parser.add_argument("--plan", help="such as cfg2.ulysses4; needed on more than one GPU")
    _add_output(parser, _estimate)


def _asked(arguments: argparse.Namespace) -> dict[str, object]:
    from planner.request import Request  # noqa: PLC0415

    names = set(Request.__dataclass_fields__) - {"model", "gpus"}
    return {name: value for name, value in vars(arguments).items() if name in names}


def _recommend(arguments: argparse.Namespace) -> Answer:
    from planner.api import request_of  # noqa: PLC0415
    from planner.catalogue import engines  # noqa: PLC0415
    from planner.launch import launches  # noqa: PLC0415
    from planner.search import find, question_of, shortened  # noqa: PLC0415

    question = question_of(request_of(arguments.model, arguments.gpus, _asked(arguments)))
    found = find(question)
    answer = shortened(found, arguments.top)
    code = DONE if answer.plans else NO
    lines = launches(engines(), question.model, answer.plans[0].plan) if answer.plans else []
    if arguments.format == "json":
        document = answer.to_dict()
        document["launch"] = [line.to_dict() for line in lines]
        return _json(document), code
    from planner import report  # noqa: PLC0415

    if arguments.format == "markdown":
        return report.recommendation_markdown(question, answer, lines), code
    shown = report.recommendation(question, answer, lines, rejected=arguments.rejected)
    return _rendered(shown), code


def _estimate(arguments: argparse.Namespace) -> Answer:
    from planner.api import request_of  # noqa: PLC0415
    from planner.catalogue import engines  # noqa: PLC0415
    from planner.launch import launches  # noqa: PLC0415
    from planner.search import question_of, single_plan  # noqa: PLC0415

    question = question_of(request_of(arguments.model, arguments.gpus, _asked(arguments)))
    found = single_plan(question, arguments.plan)
    if arguments.format == "json":
        return _json(found.to_dict()), DONE
    from planner import report  # noqa: PLC0415

    if arguments.format == "markdown":
        return report.estimate_markdown(question, found), DONE
    lines = launches(engines(), question.model, found.plan)
    return _rendered(report.estimate(question, found, lines)), DONE


def _add_collectives(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hardware", default="h100-sxm")
    parser.add_argument("--gpus", type=_whole, default=8)
    parser.add_argument("--nodes", type=_whole, default=0)
    parser.add_argument("--op", default="all_reduce")
    parser.add_argument("--bytes", default="1KiB:1GiB", help="a size, or a range of sizes")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--launch", default="graph", help="graph or stream")
    _add_output(parser, _collectives)


def _collectives(arguments: argparse.Namespace) -> Answer:
    from planner import collectives  # noqa: PLC0415

    table = collectives.table(
        arguments.op,
        arguments.bytes,
        gpus=arguments.gpus,
        hardware=arguments.hardware,
        nodes=arguments.nodes,
        algorithm=arguments.algorithm,
        launch=arguments.launch,
    )
    if arguments.format == "json":
        return _json(table.to_dict()), DONE
    if arguments.format == "markdown":
        return table.markdown(), DONE
    return table.text(), DONE


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "show", "import"])
    parser.add_argument("name", nargs="?", help="a catalogue name or a file")
    _add_output(parser, _models)


def _models(arguments: argparse.Namespace) -> Answer:
    from planner import models  # noqa: PLC0415

    if arguments.action == "list":
        names = models.names()
        if arguments.format == "json":
            return _json({"models": names}), DONE
        return "\n".join(names), DONE
    if arguments.name is None:
        raise InputError(f"models {arguments.action}: wanted a name or a file")
    described = models.describe(models.read_model(arguments.name))
    if arguments.format == "json" or arguments.action == "import":
        return _json(described), DONE
    return _pairs(described, arguments.format), DONE


def _add_topology(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show", "import", "detect"])
    parser.add_argument("name", nargs="?", help="a catalogue name or a file")
    parser.add_argument("--hardware", help="kind of GPU, where the file does not say")
    parser.add_argument("--nodes", type=_whole, default=1, help="hosts of a catalogue name")
    parser.add_argument("--pcie-generation", type=_whole)
    _add_output(parser, _topology, ("table", "json", "markdown", "html"))


def _topology(arguments: argparse.Namespace) -> Answer:
    from topology import report  # noqa: PLC0415

    machine = _machine(arguments)
    if arguments.format == "json" or arguments.action == "import":
        return _json(machine.to_dict()), DONE
    if arguments.format == "markdown":
        return report.markdown(machine), DONE
    if arguments.format == "html":
        return report.html(machine), DONE
    return _rendered(report.report(machine)), DONE


def _machine(arguments: argparse.Namespace) -> "Machine":
    """Return the machine that a topology command names."""
    from topology.catalogue import hardware, hardware_names  # noqa: PLC0415

    if arguments.action == "detect":
        from topology.detect import detect  # noqa: PLC0415

        return detect()
    if arguments.name is None:
        raise InputError(f"topology {arguments.action}: wanted a catalogue name or a file")
    if arguments.name.lower() in hardware_names():
        from topology.machines import machine_of  # noqa: PLC0415

        return machine_of(hardware(arguments.name), arguments.nodes)
    from topology.read import read_topology  # noqa: PLC0415

    kind = hardware(arguments.hardware) if arguments.hardware else None
    return read_topology(arguments.name, hardware=kind, pcie_generation=arguments.pcie_generation)


def _pairs(described: Mapping[str, object], style: str) -> str:
    from planner.report import markdown  # noqa: PLC0415

    rows = [[key, _plain(value)] for key, value in described.items()]
    if style == "markdown":
        return markdown(["", ""], rows)
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)


def _plain(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(inner) for inner in value)
    return str(value)


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _rendered(what: object) -> str:
    from planner.report import render  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    width = os.get_terminal_size().columns if terminal else WIDTH
    return render(what, max(width, 60), colour=terminal)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
