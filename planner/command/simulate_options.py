"""The options of ``planner simulate``."""

import argparse

from planner.command.arguments import FORMATS, Named, add_output, add_plan, add_request, whole
from planner.command.files import place
from topology.base import InputError


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner simulate``."""
    add_request(parser)
    add_plan(parser)
    parser.add_argument(
        "--even",
        action="store_true",
        help="all GPUs are equally fast (default: as far apart as those of one kind are)",
    )
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        type=_slow,
        metavar="RANK=TIMES",
        help="a rank computes so many times as long as usual, such as 3=1.1; may be repeated "
        "(default: none does)",
    )
    parser.add_argument(
        "--trace",
        default="",
        action=Named,
        metavar="FILE",
        help="write every operation of a turn as trace events, for Perfetto or chrome://tracing "
        "(default: none is written)",
    )
    add_output(parser, (*FORMATS, "html"))


def check_files(said: argparse.Namespace) -> None:
    """Refuse one file for both a trace and the answer, and an answer that has no place."""
    if not said.trace or not said.output:
        return
    output = place(said.output)
    if place(said.trace) == output:
        raise InputError(f"trace: got {said.trace[:60]}, which --output names too")
    if not output.parent.is_dir():
        raise InputError(f"--output {said.output}: No such file or directory")


def slow_of(said: argparse.Namespace) -> dict[int, float]:
    """Gather what is said of ranks, of each once."""
    found = dict(said.slow)
    if len(found) < len(said.slow):
        raise InputError("slow: got one rank twice, wanted each once")
    return found


def _slow(text: str) -> tuple[int, float]:
    """Read a rank and how many times as long as usual it computes."""
    rank, equals, times = text.partition("=")
    try:
        number = float(times)
    except ValueError:
        equals = ""
    if not equals or not rank.strip().isdecimal():
        raise argparse.ArgumentTypeError(
            f"got {text[:40]!r}, wanted a rank and a number such as 3=1.1"
        )
    return whole(rank), number
