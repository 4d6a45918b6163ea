"""``planner collectives``: what collectives cost, or cost as a log of nccl-tests has it."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Final

from planner.command import options as common
from planner.command.files import on_screen, render_parts
from topology.base import InputError

if TYPE_CHECKING:
    from planner.collective_table import CollectiveTable, OverGpus, SideBySide
    from planner.request.subset import Subset


USUAL_GPUS: Final = 8
_LOG_OPTIONS: Final = {
    "--op": "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, "
    "scatter or send_recv (default: all_reduce, or that of a log)",
    "--bytes": "a size, a range that doubles, low:high, or several with commas (default: "
    "1KiB:1GiB, or all of a log)",
}
_LAUNCH: Final = (
    "who starts a call: graph, a CUDA graph that is replayed; stream, the host each time, which "
    "small messages wait for (default: graph)"
)
_COMPARE: Final = "put an output of nccl-tests beside what is predicted; - reads what is piped in"


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_machine(parser)
    parser.add_argument(
        "--gpus",
        type=_gpu_numbers,
        help="in all, or numbers such as 2,4,8 or 2:72 that algorithms are compared on (default: "
        "8, all of a machine's, or those of a log)",
    )
    common.add_named(parser, _LOG_OPTIONS, default=None)
    parser.add_argument(
        "--algorithm",
        default="auto",
        help="auto, NCCL's choice, or one by name, such as ring or nvls; several with commas are "
        "put side by side, as ring,multishot (default: auto)",
    )
    common.add_named(parser, {"--launch": _LAUNCH}, default=None)
    common.add_profile(parser)
    common.add_named(parser, {"--compare LOG": _COMPARE}, default=None)
    common.add_output(parser, common.ROWS)


def _gpu_numbers(text: str) -> tuple[int, ...]:
    """Read one number of GPUs, or several as a sweep takes them."""
    if not {*text} & {",", ":"}:
        return (common.whole(text),)
    from planner.sweeping.questions import read_numbers  # noqa: PLC0415  # takes a while to import

    try:
        return read_numbers("gpus", text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def machine_of(options: argparse.Namespace) -> "Subset | None":
    """Read the machine that is asked for; None for catalogue hardware.

    Raises `InputError` if it cannot be read, or an option describes a machine where none is given.
    """
    from planner.collective_table import check_gpus  # noqa: PLC0415
    from planner.request.request import machine_field_error  # noqa: PLC0415
    from planner.request.subset import read_machine, usual_machine  # noqa: PLC0415

    if options.topology == options.compare == "-":
        raise InputError("--topology and --compare: got - for both, wanted one file at least")
    options.topology = common.piped(options.topology)
    if options.topology or options.detect:
        return read_machine(
            options.topology,
            detect=options.detect,
            hardware=options.hardware or "",
            pcie_generation=options.pcie_generation,
            nodes=options.nodes,
            links=options.links,
        )
    if options.links:
        most_gpus = max(options.gpus or (USUAL_GPUS,))
        check_gpus(most_gpus)
        return usual_machine(
            options.hardware or "h100-sxm", most_gpus, options.nodes, options.links
        )
    if options.pcie_generation is not None:
        raise machine_field_error("pcie_generation", options.pcie_generation)
    return None


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner import collective_table  # noqa: PLC0415

    subset = machine_of(options)
    usual_gpus = USUAL_GPUS if subset is None else subset.gpus
    gpus = options.gpus or (usual_gpus,)
    table_options = {
        "gpus": gpus[0],
        "hardware": options.hardware or "h100-sxm",
        "nodes": options.nodes,
        "launch": options.launch or "graph",
        "subset": subset,
        "profile": options.profile,
        "here": options.detect,
    }
    op, sizes = options.op or "all_reduce", options.bytes or collective_table.USUAL
    algorithms = options.algorithm.split(",")
    table: CollectiveTable | SideBySide | OverGpus
    table_renderer = {}
    if len(gpus) > 1:
        table = collective_table.over_gpus(op, sizes, algorithms, **{**table_options, "gpus": gpus})
    elif len(algorithms) > 1:
        table = collective_table.side_by_side(op, sizes, algorithms, **table_options)
    else:
        table = collective_table.table(op, sizes, algorithm=options.algorithm, **table_options)
        table_renderer = {"table": partial(on_screen, table.parts(bars=True), None)}
    title = f"{op} by {'GPUs' if len(gpus) > 1 else 'size'}"
    text = render_parts(
        options, table.to_dict, table.csv_rows, table.parts, title, **table_renderer
    )
    return text, common.DONE


COMMAND: Final = common.Command(
    help="what collectives cost",
    text="Price a collective over a range of sizes, as a table of nccl-tests; or put the\n"
    "output of nccl-tests beside what is predicted, and say why the two part.",
    examples="planner collectives --op all_to_all --gpus 8 --bytes 1MiB:1GiB\n"
    "    time, bandwidths, algorithm and protocol of each size\n"
    "planner collectives --gpus 8 --algorithm ring,multishot\n"
    "    how much faster two steps are than a ring's 2N - 2, and up to which size\n"
    "planner collectives --hardware gb200 --gpus 2,8,36,72 --algorithm ring,multishot\n"
    "    the same on several numbers of GPUs, a row each\n"
    "planner collectives --compare all_reduce.log --hardware h100-sxm\n"
    "    measured and predicted times, a plot, and reasons",
    add=_add_options,
    run=_run_command,
)
