"""``planner simulate``: one plan as events on every rank."""

import argparse
from typing import Final

from planner.command import options as common
from planner.command.files import render_parts, write
from topology.base import InputError, number_in, place

_EVEN: Final = "all GPUs are equally fast (default: as far apart as those of one kind are)"
_TRACE: Final = (
    "write every operation of a turn as trace events, for Perfetto or chrome://tracing (default: "
    "none is written)"
)


def _add(parser: argparse.ArgumentParser) -> None:
    common.add_request(parser)
    common.add_load(parser)
    common.add_plan(parser)
    common.add_flags(parser, {"--even": _EVEN})
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        type=_slow,
        metavar="RANK=TIMES",
        help="a rank computes so many times as long as usual, such as 3=1.1; may be repeated "
        "(default: none does)",
    )
    common.add_named(parser, {"--trace FILE": _TRACE})
    common.add_output(parser, (*common.FORMATS, "html"))


def _check_files(options: argparse.Namespace) -> None:
    """Refuse one file for both a trace and the answer, and an answer that has no place."""
    if not options.trace or not options.output:
        return
    output = place(options.output)
    if place(options.trace) == output:
        raise InputError(f"trace: got {options.trace[:60]}, which --output names too")
    if not output.parent.is_dir():
        raise InputError(f"--output {options.output}: No such file or directory")


def _slow_ranks(options: argparse.Namespace) -> dict[int, float]:
    """Gather the ranks that are slow, each once."""
    slow = dict(options.slow)
    if len(slow) < len(options.slow):
        raise InputError("slow: got one rank twice, wanted each once")
    return slow


def _slow(text: str) -> tuple[int, float]:
    """Read a rank and how many times as long as usual it computes."""
    rank, equals, times = text.partition("=")
    try:
        number = number_in(times)
    except ValueError:
        equals = ""
    if not equals or not (rank.isascii() and rank.strip().isdecimal()):
        raise argparse.ArgumentTypeError(
            f"got {text[:40]!r}, wanted a rank and a number such as 3=1.1"
        )
    return common.whole(rank), number


def _run(options: argparse.Namespace) -> common.Answer:
    from planner.advice.advice import notes_on  # noqa: PLC0415
    from planner.rendering import report, simulated  # noqa: PLC0415
    from planner.scenario.scenario import resolve  # noqa: PLC0415
    from planner.simulation.simulation import simulate  # noqa: PLC0415

    scenario = resolve(common.request_of(options))
    _check_files(options)
    slow = _slow_ranks(options)
    simulation = simulate(scenario, options.plan, even=options.even, slow=slow)
    if options.trace:
        write(simulated.trace(simulation), options.trace, "--trace")
    headline = report.headline(scenario)
    notes = notes_on(scenario, simulation.estimate)
    parts = simulated.parts(simulation, headline, notes)
    title = str(simulation.estimate.plan)
    text = render_parts(options.format, simulation.to_dict, parts, title, options.typed)
    return text, common.DONE


COMMAND: Final = common.Command(
    help="one plan as events on every rank",
    text="Run one plan as events: every rank's kernels and messages on its streams, issued by\n"
    "its host, at the pace of its GPU. Says what each rank does and draws one layer.",
    examples=(
        (
            "planner simulate --model flux --gpus 4 --plan ring4",
            "time of each stage beside the closed form, of each rank, and a timeline",
        ),
        (
            "planner simulate --model flux --gpus 4 --plan ring4 --slow 3=1.1 --trace out.json",
            "what a GPU that is a tenth slower costs; every operation, for Perfetto",
        ),
    ),
    add=_add,
    run=_run,
)
