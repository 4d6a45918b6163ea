"""``planner recommend``: rank every way to split a model."""

import argparse
from typing import Final

from planner.command import options as common
from planner.command.files import on_screen, render_parts

TOP: Final = 8
_AT_MOST: Final = (
    "--gpus is what there is, not what must be used: a plan of fewer GPUs comes first where more "
    "of them gain less than 3 %%"
)
_TOP: Final = f"plans to print (default: {TOP}, and all of them in JSON)"
_SIMULATE: Final = "run the first plans as events, and rank them again by what they take then"
_DISAGGREGATE: Final = (
    "search workers that run prompts and others that decode too, of all GPUs, beside the best plan"
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_request(parser)
    common.add_load(parser)
    parser.add_argument(
        "--objective",
        help="what the best plan has least or most of: latency, the least seconds a result, under "
        "a load the mean of its requests; throughput, the most results or tokens a second; memory, "
        "the fewest bytes on a GPU; cost, the fewest GPU-seconds (GPUs x s) per result or "
        "token (default: latency, or throughput where --slo-ttft or --slo-tpot is wanted without a "
        "rate or a trace)",
    )
    common.add_flags(parser, {"--at-most-gpus": _AT_MOST})
    common.add_numbers(parser, {"--top": _TOP, "--simulate K": _SIMULATE})
    common.add_flags(
        parser, {"--disaggregate": _DISAGGREGATE, "--rejected": "print why plans were rejected"}
    )
    common.add_output(parser, common.ROWS)


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.recommendation import recommend_plans, shortened  # noqa: PLC0415
    from planner.rendering import report  # noqa: PLC0415
    from planner.scenario.scenario import resolve  # noqa: PLC0415

    scenario = resolve(common.request_of(options), several=True)
    answer = recommend_plans(scenario, simulated=options.simulate)
    if options.top is not None:
        answer = shortened(answer, options.top)
    top, rejected = options.top or TOP, options.rejected
    text = render_parts(
        options, answer.to_dict, answer.rows,
        lambda: report.recommendation_page(answer, top=top), report.asked(answer.scenario),
        table=lambda: on_screen(report.recommendation(answer, top=top, rejected=rejected)),
    )  # fmt: skip
    return text, common.DONE if answer.runs_something else common.NO


COMMAND: Final = common.Command(
    help="rank every way to split a model",
    text="Try every plan that splits a model over the GPUs, and rank those that can run and\n"
    "fit. Sizes that are left out are the model's usual ones.",
    examples="planner recommend --model cosmos3 --gpus 8\n"
    "    plans on 8 H100, fastest first\n"
    "planner recommend --model flux --gpus 8 --hardware l40s --at-most-gpus\n"
    "    fewer GPUs come first where more gain less than 3 % of the time",
    exit_1="nothing runs a plan of the model",
    add=_add_options,
    run=_run_command,
)
