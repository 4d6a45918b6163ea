"""``planner simulate``: one plan as events on every rank."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

from planner.command import options as common
from planner.command.files import render_parts, write
from topology.base import InputError, content, number_in, place

if TYPE_CHECKING:
    from planner.simulation.measured import Trace

_EVEN: Final = "all GPUs are equally fast (default: as far apart as those of one kind are)"
_TRACE: Final = (
    "write every operation of a turn as trace events, for Perfetto or chrome://tracing (default: "
    "none is written)"
)


_SLOW: Final = (
    "a rank of each replica computes so many times as long as usual, such as 3=1.1; may be "
    "repeated (default: none does)"
)
_PAUSE: Final = (
    "the host of a rank issues nothing for so many seconds at the start of a turn, such as "
    "3=0.01; may be repeated (default: none pauses)"
)
_JITTER: Final = (
    "by how much the time of every task differs by chance, such as 0.05 for 5 %% (default: 0)"
)
_ORDER: Final = (
    "how tokens that are attended causally lie on the ranks of a ring or a gather: zigzag, the "
    "i-th piece from either end; plain, neighbours; striped, every N-th (default: zigzag)"
)
_MIXED: Final = (
    "the GPU of a rank is of another kind, such as 3=a100-sxm-80gb; may be repeated (default: as "
    "the machine says, or all of one kind)"
)
_TRAFFIC: Final = (
    "others take this part of a link in both directions, on every host alike, such as "
    "NIC0-network=0.5 or pcie=0.3, named as for --link; may be repeated (default: none do)"
)
_RUNS: Final = "runs with other draws of --jitter, for percentiles (default: 1)"
_COMPARE: Final = (
    "a trace of one rank, to put beside the simulated turn: by PyTorch's profiler (Chrome's JSON, "
    "or .json.gz), or what nsys export --type sqlite wrote (default: none)"
)
_LINKS: Final = "say of each kind of message which link is the busiest, and how busy it is"
_BESIDE: Final = (
    "another model and its plan on the next GPUs of the same hosts, of the usual sizes, such as "
    "flux:ulysses4: what both jobs lose on links that they share (default: none)"
)
_WHAT_IF: Final = "run it again with one thing changed at a time: faster links, equal GPUs ..."


_RANK_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], object], str]]] = {
    "--slow RANK=TIMES": (_SLOW, number_in, "a rank and a number such as 3=1.1"),
    "--pause RANK=SECONDS": (_PAUSE, number_in, "a rank and seconds such as 3=0.01"),
    "--mixed RANK=HARDWARE": (_MIXED, str, "a rank and a kind of GPU such as 3=a100-sxm-80gb"),
}
_TRAFFIC_EXAMPLE: Final = "a link and the part of it that others take, such as NIC0-network=0.5"


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_request(parser)
    common.add_load(parser)
    common.add_plan(parser)
    common.add_flags(parser, {"--even": _EVEN})
    for option, (words, value, example) in _RANK_OPTIONS.items():
        name, metavar = option.split()
        parser.add_argument(
            name, action=common.PairAction, name=common.whole, value=value, like=example,
            metavar=metavar, help=words,
        )  # fmt: skip
    parser.add_argument(
        "--traffic", action=common.PairAction, name=str, value=common.share, like=_TRAFFIC_EXAMPLE,
        metavar="LINK=SHARE", help=_TRAFFIC,
    )  # fmt: skip
    common.add_named(parser, {"--order ORDER": _ORDER}, "zigzag")
    common.add_numbers(parser, {"--jitter F": _JITTER}, common.share, 0.0)
    common.add_numbers(parser, {"--runs N": _RUNS}, default=1)
    common.add_flags(parser, {"--what-if": _WHAT_IF})
    parser.add_argument("--links", action="store_true", dest="link_uses", help=_LINKS)
    common.add_named(parser, {"--beside MODEL:PLAN": _BESIDE})
    common.add_named(parser, {"--compare FILE": _COMPARE, "--trace FILE": _TRACE})
    common.add_output(parser, common.ROWS)


def _check_files(options: argparse.Namespace) -> None:
    """Refuse one file for both a trace and the answer, and an answer that has no place."""
    if not options.trace or not options.output:
        return
    output = place(options.output)
    if place(options.trace) == output:
        raise InputError(f"trace: got {options.trace[:60]}, which --output names too")
    if not output.parent.is_dir():
        raise InputError(f"--output {options.output}: No such file or directory")


def _measured_trace(path: str) -> "Trace | None":
    """Read the trace that was given, if any."""
    if not path:
        return None
    from planner.simulation.measured import MOST_BYTES, read_trace  # noqa: PLC0415

    try:
        return read_trace(content(path, MOST_BYTES))
    except InputError as error:
        raise InputError(f"--compare {path}: {error}") from None


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.advice.notes import notes_on  # noqa: PLC0415
    from planner.recommendation import estimate_plan  # noqa: PLC0415
    from planner.rendering import report, simulated  # noqa: PLC0415
    from planner.simulation.comparison import compare  # noqa: PLC0415
    from planner.simulation.cut import resolved  # noqa: PLC0415
    from planner.simulation.disturbances import Disturbances  # noqa: PLC0415
    from planner.simulation.jobs import beside  # noqa: PLC0415
    from planner.simulation.simulation import simulate  # noqa: PLC0415
    from planner.simulation.utilisation import link_uses  # noqa: PLC0415
    from planner.simulation.what_if import what_if  # noqa: PLC0415

    scenario = resolved(common.request_of(options), options.plan)
    _check_files(options)
    measured = _measured_trace(options.compare)
    disturbances = Disturbances(
        even=options.even,
        slow=options.slow,
        paused=options.pause,
        jitter=options.jitter,
        runs=options.runs,
        order=options.order,
        mixed=options.mixed,
        traffic=options.traffic,
    )
    simulation = simulate(scenario, estimate_plan(scenario, options.plan), disturbances)
    comparison = compare(simulation, measured) if measured else None
    jobs = beside(scenario, simulation, options.beside, disturbances) if options.beside else ()
    changes = what_if(scenario, simulation, disturbances) if options.what_if else ()
    headline = report.headline(scenario)
    notes = notes_on(scenario, simulation.estimate)
    uses = link_uses(simulation) if options.link_uses else ()
    extra_results = uses, changes, jobs, comparison
    parts = partial(simulated.parts, simulation, headline, notes, extra_results)
    title = str(simulation.estimate.plan)

    def document() -> dict[str, object]:
        changes_json = (
            {"what_if": [asdict(change) for change in changes]} if options.what_if else {}
        )
        comparison_json = {"compared": comparison.to_dict()} if comparison else {}
        jobs_json = {"beside": [asdict(job) for job in jobs]} if jobs else {}
        links_json = {"links": [asdict(use) for use in uses]} if options.link_uses else {}
        return {
            **simulation.to_dict(),
            **links_json,
            **changes_json,
            **jobs_json,
            **comparison_json,
        }

    if options.trace:  # once nothing is left that may be refused
        write(simulated.trace(simulation), options.trace, "--trace")
    return render_parts(options, document, simulation.rows, parts, title), common.DONE


COMMAND: Final = common.Command(
    help="one plan as events on every rank",
    text="Run one plan as events: every rank's kernels and messages on its streams, issued by\n"
    "its host, at the pace of its GPU. Says what each rank does and draws one layer.",
    examples="planner simulate --model flux --gpus 4 --plan ring4\n"
    "    time of each stage beside the closed form, of each rank, and a timeline\n"
    "planner simulate --model flux --gpus 4 --plan ring4 --slow 3=1.1 --trace out.json\n"
    "    what a GPU that is a tenth slower costs; every operation, for Perfetto\n"
    "planner simulate --model flux --gpus 4 --plan ring4 --link nvlink=0.5 --what-if\n"
    "    with NVLinks at half their speed, and what else would change the time",
    add=_add_options,
    run=_run_command,
)
