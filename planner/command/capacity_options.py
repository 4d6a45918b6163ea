"""The options of ``planner capacity``, and what they ask for."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.command.arguments import FORMATS, Named, add_output, add_profile, add_sizes
from topology.base import InputError, content, decoded

if TYPE_CHECKING:
    from planner.fleet.fleet import Capacity

MOST: Final = 2**20  # B
PERCENTILE: Final = 95.0
_OF_REQUEST: Final = (
    "height", "width", "frames", "steps", "input_tokens", "output_tokens", "text_tokens",
    "runtime",
)  # fmt: skip


def add_capacity(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner capacity``."""
    parser.add_argument(
        "--demand",
        default="",
        action=Named,
        metavar="FILE",
        help="demands in TOML: [[demand]] with model, rate, slo and sizes (default: the one that "
        "--model, --rate and --slo say)",
    )
    parser.add_argument(
        "--model",
        action=Named,
        help="a catalogue name, a config.json, or a pipeline folder (default: --demand's)",
    )
    parser.add_argument(
        "--rate", action=Named, help="requests, such as 0.5/min (default: --demand's)"
    )
    parser.add_argument(
        "--slo",
        action=Named,
        help="time a request may take, waiting included, such as 60s (default: --demand's)",
    )
    parser.add_argument(
        "--percentile",
        type=float,
        default=PERCENTILE,
        metavar="P",
        help="percentage of requests that are to be done in that time (default: 95)",
    )
    parser.add_argument(
        "--hardware",
        default="h100-sxm",
        action=Named,
        metavar="NAMES",
        help="kinds of GPU to compare, names or files, joined by commas (default: h100-sxm)",
    )
    parser.add_argument(
        "--price",
        default="",
        action=Named,
        metavar="FILE",
        help="what a GPU costs an hour, in TOML: currency, and [gpu_hour] with a number for each "
        "kind (default: the fewest GPUs are best)",
    )
    add_sizes(parser)
    parser.add_argument(
        "--precision", default="bf16", help="bf16, fp16, fp8, nvfp4 or int8 (default: bf16)"
    )
    parser.add_argument("--runtime", help="as for recommend (default: the engine's, or tensorrt)")
    parser.add_argument(
        "--engine", default="", action=Named, help="as for recommend (default: none)"
    )
    add_profile(parser)
    add_output(parser, (*FORMATS, "html"))


def answer(said: argparse.Namespace) -> "Capacity":
    """Read what is asked for, and plan it."""
    from planner.fleet import demand_file as files  # noqa: PLC0415
    from planner.fleet.fleet import capacity  # noqa: PLC0415  # slow to load

    if said.demand:
        _check_alone(said)
        text = _content(said.demand, "demand", files.DEMANDS)
        demands = files.read_demands(text, Path(said.demand).name, said.profile)
    else:
        for name in ("model", "rate", "slo"):
            if not getattr(said, name):
                raise InputError(f"{name}: got none, wanted --model, --rate and --slo, or --demand")
        asked = {name: getattr(said, name) for name in _OF_REQUEST}
        sizes = {name: value for name, value in asked.items() if value is not None}
        sizes |= {"batch": said.batch, "precision": said.precision, "engine": said.engine}
        sizes |= {"profile": said.profile, "percentile": said.percentile}
        demands = [files.demand_of(said.model, said.model, said.rate, said.slo, sizes)]
    prices = None
    if said.price:
        text = _content(said.price, "price", files.PRICES)
        prices = files.read_prices(text, Path(said.price).name)
    names = [name.strip() for name in said.hardware.split(",") if name.strip()]
    if not names:
        raise InputError(f"hardware: got {said.hardware[:60]!r}, wanted names joined by commas")
    return capacity(demands, list(dict.fromkeys(names)), prices)


def _check_alone(said: argparse.Namespace) -> None:
    """Refuse what a file says of each of its demands."""
    usual = {"batch": 1, "precision": "bf16", "engine": "", "percentile": PERCENTILE}
    for name in ("model", "rate", "slo", *_OF_REQUEST, *usual):
        value = getattr(said, name)
        if value != usual.get(name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"demand: got {option} {value} beside a file, which says it of each")


def _content(source: str, what: str, wanted: str) -> str:
    """Read a file of an option, which is to hold what is wanted of it."""
    try:
        return decoded(content(source, MOST), source)
    except InputError as error:
        why = str(error).removeprefix(f"{source}: ")
        more = "" if "wanted" in why else f"; wanted {wanted}, in TOML"
        raise InputError(f"--{what} {source[:60]}: {why}{more}") from None
