"""The command line: reads arguments and files, prints answers, and decides the exit code.

The one place that may reach up to `validate`, and only when a command needs it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from planner.harness import write
from topology.errors import InputError, ModelError

if TYPE_CHECKING:
    from planner.ground import Ground
    from planner.request import Request

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
ON_GPUS: Final = {
    "validate": "run a plan, prove its numbers, and time it beside what was predicted",
    "calibrate": "measure this machine, and write a profile of it",
    "profile": "what a calibration profile holds",
    "doctor": "whether this machine can run multi-device TensorRT engines",
}
"""Commands of the layer above, loaded when one of them is asked for."""
WIDTH: Final = 118
TOP: Final = 8

Answer = tuple[str, int]
"""Text to print, and the exit code."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].lower()}{message[1:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        arguments = _parser(words[0] if words else "").parse_args(words)
        answer: Answer = arguments.run(arguments)
        text, code = answer
        write(text, arguments.output)
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


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a whole number") from None


def _parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(prog="planner", description="Split generative models over GPUs.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_recommend(commands.add_parser("recommend", help="rank every way to split a model"))
    _add_estimate(commands.add_parser("estimate", help="one plan in full"))
    _add_collectives(commands.add_parser("collectives", help="what collectives cost"))
    _add_models(commands.add_parser("models", help="the models that are known, and files"))
    _add_topology(commands.add_parser("topology", help="machines: catalogue names and files"))
    _add_export(commands.add_parser("export", help="a plan as a folder to build and run"))
    for name, words in ON_GPUS.items():
        added = commands.add_parser(name, help=words)
        if name == command:
            from validate import cli  # noqa: PLC0415  # the one import that points up

            cli.add(name, added)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            text = f"planner {version('multi-gpu-planner')}"
        except PackageNotFoundError:
            text = "planner (not installed)"
        print(text)
        parser.exit(DONE)


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
    parser.add_argument("--gpus", type=_whole, help="1, or all of a machine's")
    _add_machine(parser)
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
    _add_profile(parser)
    parser.add_argument("--attention", default="", help="kernel to price: fa2, fa3, cudnn ...")
    parser.add_argument(
        "--wide-collectives", action="store_true", help="collectives carry 32-bit numbers"
    )
    parser.add_argument(
        "--scattered-inputs", action="store_true", help="inputs are cut by a reduce-scatter"
    )
    parser.add_argument(
        "--offload", action="store_true", help="text encoders leave the GPU before denoising"
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    """Add what a request runs on; hardware left out is the usual one, or the machine's own."""
    parser.add_argument(
        "--hardware", help="a catalogue name; with --topology the kind of GPU it does not name"
    )
    parser.add_argument(
        "--topology", default="", metavar="FILE", help="nvidia-smi topo -m, XML, a cluster ..."
    )
    parser.add_argument("--detect", action="store_true", help="the machine this runs on")
    parser.add_argument("--pcie-generation", type=_whole, help="of a topology that does not say")
    parser.add_argument("--nodes", type=_whole, default=0, help="hosts to spread the GPUs over")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", default="", help="a calibration profile: a file, a name that ships, or none"
    )


def _add_recommend(parser: argparse.ArgumentParser) -> None:
    _add_request(parser)
    parser.add_argument(
        "--objective", default="latency", help="latency, throughput, memory or cost"
    )
    parser.add_argument(
        "--at-most-gpus", action="store_true", dest="at_most", help="fewer GPUs may do"
    )
    parser.add_argument("--top", type=_whole, help=f"plans to print: {TOP}, in JSON all")
    parser.add_argument("--rejected", action="store_true", help="print why plans were rejected")
    _add_output(parser, _recommend)


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    _add_request(parser)
    parser.add_argument("--plan", help="such as cfg2.ulysses4; needed on more than one GPU")
    _add_output(parser, _estimate)


def _asked(arguments: argparse.Namespace) -> dict[str, object]:
    from planner.request import Request  # noqa: PLC0415

    names = set(Request.__dataclass_fields__) - {"model", "gpus"}
    asked = {name: value for name, value in vars(arguments).items() if name in names}
    if asked["hardware"] is None:
        del asked["hardware"]
    return asked


def _request(arguments: argparse.Namespace) -> "Request":
    """Build the request of a command; a machine gives all its GPUs where no number is asked for."""
    from planner.api import request_of  # noqa: PLC0415

    asked, gpus = _asked(arguments), arguments.gpus
    if gpus is None and (arguments.topology or arguments.detect):
        gpus = _ground(arguments).gpus
    return request_of(arguments.model, 1 if gpus is None else gpus, asked)


def _ground(arguments: argparse.Namespace) -> "Ground":
    from planner.ground import ground_of  # noqa: PLC0415

    return ground_of(
        arguments.topology,
        detect=arguments.detect,
        hardware=arguments.hardware or "",
        pcie_generation=arguments.pcie_generation,
        nodes=arguments.nodes,
    )


def _recommend(arguments: argparse.Namespace) -> Answer:
    from planner.search import find, question_of, shortened  # noqa: PLC0415

    question = question_of(_request(arguments))
    answer = find(question)
    code = DONE if answer.plans else NO
    if arguments.top is not None:
        answer = shortened(answer, arguments.top)
    if arguments.format == "json":
        return _json(answer.to_dict()), code
    from planner import report  # noqa: PLC0415

    answer = shortened(answer, arguments.top or TOP)
    if arguments.format == "markdown":
        return report.recommendation_markdown(question, answer, answer.launch), code
    shown = report.recommendation(question, answer, answer.launch, rejected=arguments.rejected)
    return _rendered(shown), code


def _estimate(arguments: argparse.Namespace) -> Answer:
    from planner.search import launch_of, question_of, single_plan  # noqa: PLC0415

    question = question_of(_request(arguments))
    found = single_plan(question, arguments.plan)
    if arguments.format == "json":
        return _json(found.to_dict()), DONE
    from planner import report  # noqa: PLC0415

    if arguments.format == "markdown":
        return report.estimate_markdown(question, found), DONE
    return _rendered(report.estimate(question, found, launch_of(question, found))), DONE


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_request(parser)
    parser.add_argument("--plan", help="such as cfg2.ulysses4; needed on more than one GPU")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--tensorrt-version", default="", help="that will build it")
    parser.add_argument("--force", action="store_true", help="replace the folder")
    parser.add_argument("--output", required=True, metavar="DIR")
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> Answer:
    from planner.export.export import export  # noqa: PLC0415

    line = export(
        _request(arguments),
        arguments.plan,
        arguments.backend,
        arguments.output,
        force=arguments.force,
        version=arguments.tensorrt_version,
    )
    arguments.output = None  # the folder; this line goes to the screen
    return line, DONE


def _add_collectives(parser: argparse.ArgumentParser) -> None:
    _add_machine(parser)
    parser.add_argument("--gpus", type=_whole, help="8, all of a machine's, or those of a log")
    parser.add_argument("--op", help="all_reduce, or that of a log")
    parser.add_argument("--bytes", default="1KiB:1GiB", help="a size, or a range of sizes")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--launch", default="graph", help="graph or stream")
    _add_profile(parser)
    parser.add_argument("--compare", metavar="LOG", help="put an nccl-tests output beside it")
    _add_output(parser, _collectives, ("table", "json", "markdown", "csv"))


def _collectives(arguments: argparse.Namespace) -> Answer:
    from planner import collectives  # noqa: PLC0415

    ground = _ground(arguments) if arguments.topology or arguments.detect else None
    if arguments.compare is not None:
        return _compared(arguments, ground), DONE
    table = collectives.table(
        arguments.op or "all_reduce",
        arguments.bytes,
        gpus=arguments.gpus or (8 if ground is None else ground.gpus),
        hardware=arguments.hardware or "h100-sxm",
        nodes=arguments.nodes,
        algorithm=arguments.algorithm,
        launch=arguments.launch,
        ground=ground,
        profile=arguments.profile,
    )
    if arguments.format == "json":
        return _json(table.to_dict()), DONE
    return table.written(arguments.format), DONE


def _compared(arguments: argparse.Namespace, ground: "Ground | None") -> str:
    from planner import compare  # noqa: PLC0415

    try:
        text = Path(arguments.compare).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise InputError(f"--compare {arguments.compare[:60]}: {reason}") from None
    found = compare.compare_all(
        text,
        compare.Setting(
            hardware=arguments.hardware or "",
            gpus=arguments.gpus,
            nodes=arguments.nodes,
            ground=ground,
            op=arguments.op or "",
            algorithm=arguments.algorithm,
        ),
    )
    if arguments.format == "json":
        return _json({"tables": [one.to_dict() for one in found]})
    return compare.written(found, arguments.format)


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
    from planner.report import pairs  # noqa: PLC0415

    return pairs(described, arguments.format), DONE


def _add_topology(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show", "import", "detect"])
    parser.add_argument("name", nargs="?", help="a catalogue name or a file")
    parser.add_argument("--hardware", help="kind of GPU, where the file does not say")
    parser.add_argument("--nodes", type=_whole, default=1, help="hosts of a catalogue name")
    parser.add_argument("--pcie-generation", type=_whole)
    _add_output(parser, _topology, ("table", "json", "markdown", "html"))


def _topology(arguments: argparse.Namespace) -> Answer:
    from topology import report  # noqa: PLC0415
    from topology.named import named  # noqa: PLC0415

    machine = named(
        arguments.name,
        here=arguments.action == "detect",
        kind=arguments.hardware,
        nodes=arguments.nodes,
        pcie_generation=arguments.pcie_generation,
    )
    if arguments.format == "json" or arguments.action == "import":
        return _json(machine.to_dict()), DONE
    if arguments.format == "markdown":
        return report.markdown(machine), DONE
    if arguments.format == "html":
        return report.html(machine), DONE
    return _rendered(report.report(machine)), DONE


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _rendered(what: object) -> str:
    from planner.report import render  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    width = os.get_terminal_size().columns if terminal else WIDTH
    return render(what, max(width, 60), colour=terminal)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
