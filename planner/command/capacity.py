"""``planner capacity``: how many GPUs a demand needs."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.command import options as common
from planner.command.files import render_parts
from topology.base import InputError

if TYPE_CHECKING:
    from planner.fleet.answers import Capacity

PERCENTILE: Final = 95.0
_DEMAND_OPTIONS: Final = {
    "--demand FILE": "demands in TOML: [[demand]] with model, rate, slo and sizes (default: the "
    "one that --model, --rate and --slo say)",
    "--model NAME|FILE": "a catalogue name, a config.json, an ONNX file or a pipeline folder "
    "(default: --demand's)",
    "--rate": "requests, such as 0.5/min (default: --demand's)",
    "--slo": "time a request may take, waiting included, such as 60s (default: --demand's, or none "
    "beside --slo-ttft or --slo-tpot)",
}
_HARDWARE: Final = "kinds of GPU to compare, names or files, joined by commas (default: h100-sxm)"
_ENGINE: Final = "as for recommend; of several the best is taken (default: all that run the model)"
_REFUSED_OPTIONS: Final = {
    "--concurrency": "wanted --rate: how many requests are served at once is found",
    "--gpus": "wanted none: how many GPUs it takes is found (recommend is told)",
    "--plan": "wanted none: the best plan is found (estimate is told)",
}
_PRICE: Final = (
    "what a GPU costs an hour: a number for the only kind, or TOML with currency, and [gpu_hour] "
    "with a number for each kind (default: the fewest GPUs are best)"
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    common.add_named(parser, _DEMAND_OPTIONS)
    share = "percentage of requests that are to be done in that time (default: 95)"
    common.add_numbers(parser, {"--percentile P": share}, common.real, PERCENTILE)
    common.add_named(parser, {"--hardware NAMES|FILES": _HARDWARE}, default="h100-sxm")
    common.add_named(parser, {"--price N|FILE": _PRICE})
    common.add_sizes(parser)
    common.add_precision(parser)
    parser.add_argument("--runtime", help="as for recommend (default: each engine's fastest)")
    common.add_named(parser, {"--engine": _ENGINE})
    served = parser.add_argument_group("language models")
    common.add_named(served, {"--arrivals FILE": common.ARRIVALS})
    common.add_serving(served)
    common.add_refused(parser, _REFUSED_OPTIONS)
    common.add_profile(parser)
    common.add_output(parser, common.ROWS)


def _capacity_of(options: argparse.Namespace) -> "Capacity":
    """Read what is asked for, and plan it."""
    from planner.fleet import demand_file as files  # noqa: PLC0415
    from planner.fleet.fleet import capacity  # noqa: PLC0415  # slow to load

    if options.demand:
        _check_alone(options)
        text = files.text_of(options.demand, "demand", files.DEMANDS)
        demands = files.read_demands(text, Path(options.demand).name, options.profile)
    else:
        token_limits = options.slo_ttft or options.slo_tpot
        substitutes = {"model": "", "rate": options.arrivals, "slo": token_limits}
        for name, substitute in substitutes.items():
            if not (getattr(options, name) or substitute):
                raise InputError(f"{name}: got none, wanted --model, --rate and --slo, or --demand")
        options_given = {
            name: value for name, value in vars(options).items() if name in files.OPTIONS
        }
        sizes = {name: value for name, value in options_given.items() if value is not None}
        demands = [files.demand_of(options.model, options.model, options.rate, options.slo, sizes)]
    names = [name.strip() for name in options.hardware.split(",") if name.strip()]
    if not names:
        raise InputError(f"hardware: got {options.hardware[:60]!r}, wanted names joined by commas")
    names = list(dict.fromkeys(names))
    return capacity(demands, names, files.prices_of(options.price, names), options.note)


def _check_alone(options: argparse.Namespace) -> None:
    """Refuse what a file says of each of its demands."""
    from planner.fleet import demand_file as files  # noqa: PLC0415  # slow to load
    from planner.request.request import Request  # noqa: PLC0415

    defaults = {name: field.default for name, field in Request.__dataclass_fields__.items()}
    defaults["percentile"] = PERCENTILE
    for name in ("model", "rate", "slo", *files.OPTIONS):
        value = getattr(options, name, None) if name != "profile" else None
        if value not in (None, "", defaults.get(name)):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"demand: got {option} {value} beside a file, which says it of each")


def _run_command(options: argparse.Namespace) -> common.Answer:
    from planner.rendering import capacity as shown  # noqa: PLC0415

    capacity = _capacity_of(options)
    parts = partial(shown.parts, capacity)
    text = render_parts(options, capacity.to_dict, capacity.rows, parts, "Capacity")
    return text, common.DONE if capacity.met else common.NO


COMMAND: Final = common.Command(
    help="how many GPUs a demand needs",
    text="Find the plan and the number of replicas with which a share of requests are done in\n"
    "time, for each kind of hardware: the least money, or the fewest GPUs.",
    examples="planner capacity --model flux --rate 30/min --slo 10s --hardware h100-sxm,l40s\n"
    "    fleets of both kinds, the best one first, and GPUs by rate\n"
    "planner capacity --demand examples/demand.toml --format html --output report.html\n"
    "    several demands, as a page",
    exit_1="a demand that no hardware meets",
    add=_add_options,
    run=_run_command,
)
