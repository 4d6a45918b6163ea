"""``planner topology``: machines, of the catalogue and from files."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn, cast

from planner.command import options as common
from planner.command.files import on_screen, render_parts
from topology.base import InputError
from topology.base.rows import flat

if TYPE_CHECKING:
    from topology.machine import Machine


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_action(parser, "list", "show", "import", "detect")
    parser.add_argument("name", nargs="?", help="a catalogue name, a file, or - for a pipe")
    parser.add_argument("--topology", action=_RefusedTopology, help=argparse.SUPPRESS)
    common.add_named(parser, {"--hardware": "kind of GPU, where the file does not say"}, None)
    common.add_numbers(parser, {"--nodes N": "hosts, all alike (default: 1)"})
    common.add_generation(parser)
    common.add_links(parser)
    common.add_checked_profile(parser)
    common.add_output(parser, common.ROWS)


class _RefusedTopology(argparse.Action):
    """Refuses the option that other commands have for the file."""

    def __call__(self, *_: object) -> NoReturn:
        raise InputError("--topology: the file stands by itself here: planner topology show FILE")


def _run_command(options: argparse.Namespace) -> common.Answer:
    from topology import drawing  # noqa: PLC0415
    from topology.readers import named_machine  # noqa: PLC0415

    common.check_profile(options.profile)
    if options.action in ("list", "detect"):
        common.check_nameless(options)
    if options.action == "list":
        return _list_hardware(options), common.DONE
    machine = named_machine(
        None if options.name is None else common.piped(options.name),
        here=options.action == "detect",
        kind=options.hardware,
        nodes=1 if options.nodes is None else options.nodes,
        pcie_generation=options.pcie_generation,
    )
    if options.links:
        machine = _altered_machine(machine, options.links)
    options.format = common.style_of(options)
    text = render_parts(
        options, machine.to_dict,
        lambda: list(map(flat, cast("list[dict[str, object]]", machine.to_dict()["links"]))),
        lambda: drawing.parts(machine), machine.name,
        table=lambda: on_screen(drawing.parts(machine)),
    )  # fmt: skip
    return text, common.DONE


def _altered_machine(machine: "Machine", links: Mapping[str, float]) -> "Machine":
    from planner.request.request import check_links  # noqa: PLC0415  # few ask for it
    from topology.machine import altered  # noqa: PLC0415

    check_links(tuple(links.items()))
    return altered(machine, links)


def _list_hardware(options: argparse.Namespace) -> str:
    from topology.catalogue import all_hardware  # noqa: PLC0415
    from topology.drawing import hardware_table  # noqa: PLC0415

    for name in ("hardware", "nodes", "pcie_generation"):
        value = getattr(options, name)
        if value is not None:
            raise InputError(f"topology list: got --{name.replace('_', '-')} {value}, wanted none")
    if options.links:
        raise InputError(f"topology list: got --link {next(iter(options.links))}, wanted none")
    if options.format == "html":
        raise InputError("topology list: got --format html, wanted table, json, markdown or csv")
    hardware = list(all_hardware().values())
    table = hardware_table(hardware)
    hardware_facts = [kind.to_dict() for kind in hardware]
    return render_parts(
        options, lambda: {"hardware": hardware_facts}, lambda: list(map(flat, hardware_facts)),
        lambda: [table], "", table=lambda: on_screen([table]),
    )  # fmt: skip


COMMAND: Final = common.Command(
    help="machines: catalogue names and files",
    text="list: the hardware that has a name (what --hardware takes).\n"
    "show: a machine by that name or from a file: its links, what NCCL makes of them, what\n"
    "was assumed, and what is worrying. Files are nvidia-smi topo -m, nvidia-smi -q -x, XML\n"
    "of NCCL, a cluster in TOML, or JSON of this program; - reads what is piped in.\n"
    "import: the same as JSON, a file that --topology takes.\n"
    "detect: the machine this runs on.",
    examples="planner topology list\n"
    "    name, GPUs, memory, links and precisions of each\n"
    "nvidia-smi topo -m | planner topology show - --hardware h100-sxm\n"
    "    this machine",
    add=_add_options,
    run=_run_command,
)
