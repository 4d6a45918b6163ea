"""The command line: reads arguments and files, prints answers, and decides the exit code.

The one place that may reach up to `validate`, and only when a command needs it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from planner.command import arguments, capacity_options, simulate_options
from planner.command.files import piped, standard_input, write
from topology.base import InputError, ModelError, content

if TYPE_CHECKING:
    from planner.request.request import Request
    from planner.request.subset import Subset
    from topology.drawing.table import Line, Table

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
LARGEST_LOG: Final = 16 * 2**20  # B
ON_GPUS: Final = ("validate", "calibrate", "profile", "doctor")
"""Commands of the layer above, loaded when one of them is asked for."""
WIDTH: Final = 118

Answer = tuple[str, int]
"""Text to print, and the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        arguments.check_command(words)
        said = _parser(words[0] if words else "").parse_args(words)
        answer: Answer = said.run(said)
        text, code = answer
        write(text, said.output)
    except InputError as error:
        print(f"planner: {error}", file=sys.stderr)
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


def _parser(command: str) -> argparse.ArgumentParser:
    parser = arguments.dressed(arguments.Parser(prog="planner"))
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (add, run) in _here().items():
        added = arguments.add_command(commands, name)
        add(added)
        added.set_defaults(run=run)
    for name in ON_GPUS:
        added = arguments.add_command(commands, name)
        if name == command:
            from validate import cli  # noqa: PLC0415  # the one import that points up

            cli.add(name, added)
    return parser


def _here() -> dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[..., Answer]]]:
    """Commands of this layer: what adds their options, and what runs them."""
    return {
        "recommend": (arguments.add_recommend, _recommend),
        "estimate": (arguments.add_estimate, _estimate),
        "simulate": (simulate_options.add_simulate, _simulate),
        "capacity": (capacity_options.add_capacity, _capacity),
        "collectives": (arguments.add_collectives, _collectives),
        "models": (arguments.add_models, _models),
        "topology": (arguments.add_topology, _topology),
        "export": (arguments.add_export, _export),
    }


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


def _asked(said: argparse.Namespace) -> dict[str, object]:
    from planner.request.request import Request  # noqa: PLC0415

    names = set(Request.__dataclass_fields__) - {"model", "gpus"}
    asked = {name: value for name, value in vars(said).items() if name in names}
    if asked["hardware"] is None:
        del asked["hardware"]
    return asked


def _request(said: argparse.Namespace) -> "Request":
    from planner.api import request_of  # noqa: PLC0415

    said.topology = _piped(said.topology)
    return request_of(said.model, said.gpus, _asked(said), getattr(said, "plan", None))


def _piped(source: str) -> str:
    """Read what is piped in where a source is ``-``; it can be read once."""
    return standard_input() if source == "-" else source


def _subset(said: argparse.Namespace) -> "Subset":
    from planner.request.subset import read_machine  # noqa: PLC0415

    return read_machine(
        said.topology,
        detect=said.detect,
        hardware=said.hardware or "",
        pcie_generation=said.pcie_generation,
        nodes=said.nodes,
    )


def _recommend(said: argparse.Namespace) -> Answer:
    from planner.search.search import find, resolve, shortened  # noqa: PLC0415

    scenario = resolve(_request(said))
    answer = find(scenario)
    code = DONE if answer.plans else NO
    if said.top is not None:
        answer = shortened(answer, said.top)
    if said.format == "json":
        return _json(answer.to_dict()), code
    from planner.rendering import report  # noqa: PLC0415

    answer = shortened(answer, said.top or arguments.TOP)
    if said.format == "markdown":
        return report.recommendation_markdown(scenario, answer, answer.launch), code
    shown = report.recommendation(scenario, answer, answer.launch, rejected=said.rejected)
    return _rendered(shown), code


def _estimate(said: argparse.Namespace) -> Answer:
    from planner.search.search import launch_of, resolve, single_plan  # noqa: PLC0415

    scenario = resolve(_request(said))
    found = single_plan(scenario, said.plan)
    if said.format == "json":
        return _json(found.to_dict()), DONE
    from planner.rendering import report  # noqa: PLC0415

    launches = launch_of(scenario, found)
    if said.format == "markdown":
        return report.estimate_markdown(scenario, found, launches), DONE
    return _rendered(report.estimate(scenario, found, launches)), DONE


def _simulate(said: argparse.Namespace) -> Answer:
    from planner.rendering import simulated  # noqa: PLC0415
    from planner.search.search import resolve  # noqa: PLC0415
    from planner.simulation.simulation import simulate  # noqa: PLC0415

    scenario = resolve(_request(said))
    simulate_options.check_files(said)
    slow = simulate_options.slow_of(said)
    found = simulate(scenario, said.plan, even=said.even, slow=slow)
    if said.trace:
        write(simulated.trace(found), said.trace, "--trace")
    if said.format == "json":
        return _json(found.to_dict()), DONE
    from planner.rendering import report  # noqa: PLC0415

    style = {"table": simulated.text, "markdown": simulated.markdown, "html": simulated.html}
    notes = report.remarks_of(scenario, found.estimate)
    return style[said.format](found, report.headline(scenario), notes), DONE


def _capacity(said: argparse.Namespace) -> Answer:
    from planner.rendering import capacity as capacity_shown  # noqa: PLC0415

    found = capacity_options.answer(said)
    code = DONE if found.met else NO
    if said.format == "json":
        return _json(found.to_dict()), code
    style = {
        "table": capacity_shown.text,
        "markdown": capacity_shown.markdown,
        "html": capacity_shown.html,
    }
    return style[said.format](found), code


def _export(said: argparse.Namespace) -> Answer:
    from planner.export.engines import TITLES  # noqa: PLC0415
    from planner.export.export import export  # noqa: PLC0415

    if said.backend in TITLES and not said.engine:
        said.engine = said.backend  # its folder says what to expect of that engine
    made = export(
        _request(said),
        said.plan,
        said.backend,
        said.output,
        force=said.force,
        version=said.tensorrt_version,
        multi_device=said.multi_device_attention,
        scales=said.scales,
    )
    said.output = None  # the folder; what it holds goes to the screen
    if said.format == "json":
        return _json(made.to_dict()), DONE
    return made.markdown() if said.format == "markdown" else made.line(), DONE


def _collectives(said: argparse.Namespace) -> Answer:
    from planner import collectives  # noqa: PLC0415
    from planner.request.request import told_of_nothing  # noqa: PLC0415

    if said.topology == said.compare == "-":
        raise InputError("--topology and --compare: got - for both, wanted one file at least")
    said.topology = _piped(said.topology)
    subset = _subset(said) if said.topology or said.detect else None
    if subset is None and said.pcie_generation is not None:
        raise told_of_nothing("pcie_generation", said.pcie_generation)
    if said.compare is not None:
        return _compared(said, subset), DONE
    table = collectives.table(
        said.op or "all_reduce",
        said.bytes or collectives.USUAL,
        gpus=(8 if subset is None else subset.gpus) if said.gpus is None else said.gpus,
        hardware=said.hardware or "h100-sxm",
        nodes=said.nodes,
        algorithm=said.algorithm,
        launch=said.launch or "graph",
        subset=subset,
        profile=said.profile,
        here=said.detect,
    )
    if said.format == "json":
        return _json(table.to_dict()), DONE
    return table.written(said.format), DONE


def _log(name: str) -> str:
    """Read a log, of a size that logs have, or what is piped in as ``-``."""
    try:
        data = piped(LARGEST_LOG) if name == "-" else content(name, LARGEST_LOG)
        return data.decode("utf-8", errors="replace")
    except InputError as error:
        raise InputError(f"--compare {name[:60]}: {error}") from None


def _compared(said: argparse.Namespace, subset: "Subset | None") -> str:
    from costmodels.collectives import read_launch  # noqa: PLC0415
    from planner import collectives  # noqa: PLC0415
    from validate.nccl_tests import compare  # noqa: PLC0415
    from validate.nccl_tests import shown as compared  # noqa: PLC0415

    if said.launch is not None and read_launch(said.launch) != "graph":
        raise InputError(f"launch: got {said.launch}, as PyTorch calls, wanted graph beside a log")
    within = {} if said.bytes is None else {"sizes": collectives.ranges_of(said.bytes)}
    text = _log(said.compare)
    found = compare.compare_all(
        text,
        compare.Setting(
            hardware=said.hardware or "",
            gpus=said.gpus,
            nodes=said.nodes,
            subset=subset,
            op=said.op or "",
            name=Path(said.compare).name,
            algorithm=said.algorithm,
            profile=said.profile,
            here=said.detect,
            **within,
        ),
    )
    if said.format == "json":
        return _json({"tables": [one.to_dict() for one in found]})
    return compared.written(found, said.format)


def _models(said: argparse.Namespace) -> Answer:
    from costmodels.tables import check_profile  # noqa: PLC0415
    from planner import models  # noqa: PLC0415

    check_profile(said.profile)
    if said.action == "list":
        arguments.check_nameless(said)
        return _model_list(said.format), DONE
    if said.name is None:
        raise InputError(f"models {said.action}: wanted a name or a file")
    described = models.read_model(said.name).to_dict()
    if said.format == "json" or said.action == "import":
        return _json(described), DONE
    from planner.rendering.models import facts  # noqa: PLC0415

    return _written(facts(described), said.format), DONE


def _model_list(style: str) -> str:
    from planner.rendering.models import roster, roster_json, roster_table  # noqa: PLC0415

    found = roster()
    if style == "json":
        return _json(roster_json(found))
    table = roster_table(found)
    return table.markdown() if style == "markdown" else replace(table, head=()).text()


def _written(table: "Table", style: str) -> str:
    return table.markdown() if style == "markdown" else table.text()


def _topology(said: argparse.Namespace) -> Answer:
    from costmodels.tables import check_profile  # noqa: PLC0415
    from topology.drawing import report  # noqa: PLC0415
    from topology.readers.read import named  # noqa: PLC0415

    check_profile(said.profile)
    if said.action in ("list", "detect"):
        arguments.check_nameless(said)
    if said.action == "list":
        arguments.check_alone(said, "hardware", "nodes", "pcie_generation")
        return _hardware_list(said.format), DONE
    machine = named(
        None if said.name is None else _piped(said.name),
        here=said.action == "detect",
        kind=said.hardware,
        nodes=1 if said.nodes is None else said.nodes,
        pcie_generation=said.pcie_generation,
    )
    if said.format == "json" or said.action == "import":
        return _json(machine.to_dict()), DONE
    if said.format == "markdown":
        return report.markdown(machine), DONE
    if said.format == "html":
        return report.html(machine), DONE
    return _rendered(report.report(machine)), DONE


def _hardware_list(style: str) -> str:
    from topology.catalogue import all_hardware  # noqa: PLC0415
    from topology.catalogue.listing import roster  # noqa: PLC0415
    from topology.drawing import report  # noqa: PLC0415

    known = list(all_hardware().values())
    if style == "json":
        return _json({"hardware": roster(known)})
    if style == "html":
        raise InputError("topology list: got --format html, wanted table, json or markdown")
    table = report.hardware_table(known)
    return table.markdown() if style == "markdown" else _rendered([table])


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _rendered(parts: "Iterable[str | Line | Table]") -> str:
    from topology.drawing.table import terminal  # noqa: PLC0415

    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = os.get_terminal_size().columns if on_terminal else WIDTH
    return terminal(parts, max(width, 60), colour=on_terminal)


if __name__ == "__main__":
    sys.exit(main())
