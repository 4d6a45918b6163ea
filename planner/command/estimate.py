"""``planner estimate``: one plan in full."""

import argparse
from functools import partial
from typing import Final

from planner.command import options as common
from planner.command.files import on_screen, render_parts


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_request(parser)
    common.add_load(parser)
    common.add_plan(parser)
    common.add_pools(parser)
    common.add_output(parser, common.ROWS)


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.advice.notes import misses  # noqa: PLC0415
    from planner.recommendation import estimate_plan, lines_of  # noqa: PLC0415
    from planner.rendering import report  # noqa: PLC0415
    from planner.scenario.scenario import resolve  # noqa: PLC0415

    scenario = resolve(common.request_of(options))
    estimate = estimate_plan(scenario, options.plan)
    lines = partial(lines_of, scenario, estimate)
    text = render_parts(
        options, estimate.to_dict, estimate.rows,
        lambda: report.estimate_page(scenario, estimate, lines()), estimate.name,
        table=lambda: on_screen(report.estimate(scenario, estimate, lines())),
    )  # fmt: skip
    misses_targets = any(misses(scenario.request, estimate.serving))
    return text, common.NO if misses_targets else common.DONE


COMMAND: Final = common.Command(
    help="one plan in full",
    text="Price one plan: time by stage and by part, memory by part, and how to run it.",
    examples="planner estimate --model cosmos3 --gpus 8 --plan cfg2.ulysses4\n"
    "    its latency, and what it is made of\n"
    "planner estimate --model llama-3.1-8b --output-tokens 128 --format json\n"
    "    the same as data, on one GPU, where no plan needs to be named",
    exit_1="the plan misses the times that are wanted, or more requests come than it serves",
    add=_add_options,
    run=_run_command,
)
