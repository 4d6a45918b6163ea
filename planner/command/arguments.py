"""The options of each command, with what ``--help`` says of them."""

import argparse
import re
from collections.abc import Sequence
from typing import Final, NoReturn

from planner.command.manual import PAGES, WHOLE, Page
from topology.base import InputError, unknown

TOP: Final = 8
FORMATS: Final = ("table", "json", "markdown")
_DIGITS: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_USUAL: Final = "(default: the model's usual one)"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].lower()}{message[1:]}")


class Named(argparse.Action):
    """Takes a name or a file; an empty one is left by a variable of a script that is not set."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Keep the value, or refuse it where it is empty."""
        if values == "":
            parser.error(f"argument {option_string}: got '', wanted a name or no such option")
        setattr(namespace, self.dest, values)


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str
) -> argparse.ArgumentParser:
    """Add a command with its page of help, and no option yet."""
    return dressed(commands.add_parser(name, help=PAGES[name].help), PAGES[name])


def dressed(parser: argparse.ArgumentParser, page: Page = WHOLE) -> argparse.ArgumentParser:
    """Give a parser the words of a page."""
    parser.description, parser.epilog = page.text, page.epilog
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that there is not, with the nearest ones.

    >>> check_command(["recomend"])
    Traceback (most recent call last):
    topology.base.errors.InputError: unknown command 'recomend': did you mean recommend?
    """
    if words and not words[0].startswith("-") and words[0] not in PAGES:
        raise unknown("command", words[0], PAGES)


def check_nameless(said: argparse.Namespace) -> None:
    """Refuse a name where an action takes none, such as ``list``."""
    if said.name is not None:
        raise InputError(f"{said.command} {said.action}: got {said.name[:60]!r}, wanted no name")


def check_alone(said: argparse.Namespace, *names: str) -> None:
    """Refuse options that an action has no use for."""
    for name in names:
        value = getattr(said, name)
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{said.command} {said.action}: got {option} {value}, wanted none")


def whole(text: str) -> int:
    """Read a whole number, in plain digits."""
    if not _DIGITS.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a whole number")
    try:
        return int(text)
    except ValueError:  # thousands of digits
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a whole number") from None


def hosts(text: str) -> int:
    """Read a number of hosts; only where it is left out there may be as few as hold the GPUs."""
    if (count := whole(text)) == 0:
        raise argparse.ArgumentTypeError("got 0, wanted a whole number from 1")
    return count


def add_action(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add what a command is to do; one without is told the names."""
    parser.add_argument("action", choices=names, metavar="|".join(names), help="see above")


def add_output(
    parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS, *, file: bool = True
) -> None:
    """Add how and where an answer is written."""
    parser.add_argument(
        "--format", choices=formats, default="table", help="of the answer (default: table)"
    )
    if file:
        parser.add_argument("--output", metavar="FILE", help="write here instead of printing")


def add_recommend(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner recommend``."""
    add_request(parser)
    parser.add_argument(
        "--objective",
        default="latency",
        help="what the best plan has least or most of: latency, the least seconds a result; "
        "throughput, the most results a second; memory, the fewest bytes on a GPU; cost, the "
        "fewest GPU-seconds a result (default: latency)",
    )
    parser.add_argument(
        "--at-most-gpus",
        action="store_true",
        dest="at_most_gpus",
        help="--gpus is what there is, not what must be used: a plan of fewer GPUs comes first "
        "where more of them gain less than 3 %%",
    )
    parser.add_argument(
        "--top", type=whole, help=f"plans to print (default: {TOP}, and all of them in JSON)"
    )
    parser.add_argument("--rejected", action="store_true", help="print why plans were rejected")
    add_output(parser)


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner estimate``."""
    add_request(parser)
    add_plan(parser)
    add_output(parser)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner export``."""
    add_request(parser)
    add_plan(parser)
    parser.add_argument(
        "--backend",
        default="tensorrt",
        help="tensorrt, networks with a builder and runners; or launch line and settings of "
        "xdit, diffusers, sglang, vllm-omni or trtmc (default: tensorrt)",
    )
    parser.add_argument(
        "--tensorrt-version",
        default="",
        action=Named,
        help="of the TensorRT that will build it, such as 11.2.1.2 (default: the newest known)",
    )
    parser.add_argument(
        "--multi-device-attention",
        action="store_true",
        help="attention reads keys where they lie: bf16 or fp16 on data-centre Blackwell",
    )
    parser.add_argument(
        "--scales",
        default="",
        metavar="FILE",
        help="largest activations, of python -m validate scales (default: the checkpoint's, or 16)",
    )
    parser.add_argument("--force", action="store_true", help="replace the folder, if there is one")
    add_output(parser, file=False)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the plan that is asked for."""
    parser.add_argument(
        "--plan",
        help="axes with their degrees, such as cfg2.ulysses4; needed on more than one GPU",
    )


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add what is asked of which model on what."""
    parser.add_argument(
        "--model", required=True, help="a catalogue name, a config.json, or a pipeline folder"
    )
    parser.add_argument(
        "--gpus",
        type=whole,
        help="in all (default: all of --topology or --detect, those of the plan, or 1)",
    )
    add_machine(parser)
    add_sizes(parser)
    parser.add_argument(
        "--precision", default="bf16", help="bf16, fp16, fp8, nvfp4 or int8 (default: bf16)"
    )
    parser.add_argument(
        "--runtime",
        help="tensorrt, torch-compile or torch-eager (default: the engine's, or tensorrt)",
    )
    parser.add_argument(
        "--engine",
        default="",
        action=Named,
        help="price an engine's habits: vllm-omni, sglang, xdit, diffusers, trtmc, vllm, "
        "tensorrt-llm or sglang-llm; or planner, the executor of `planner validate` (default: "
        "none; torch-eager is then the model's own repository)",
    )
    add_profile(parser)
    _add_variants(parser)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of a request."""
    sizes = {
        "height": "pixels",
        "width": "pixels",
        "frames": "of a video",
        "steps": "of denoising",
        "input-tokens": "of a language model's prompt",
        "output-tokens": "that a language model writes",
        "text-tokens": "of a diffusion model's prompt",
    }
    for name, what in sizes.items():
        parser.add_argument(f"--{name}", type=whole, metavar="N", help=f"{what} {_USUAL}")
    parser.add_argument(
        "--batch", type=whole, default=1, metavar="N", help="results at once (default: 1)"
    )


def _add_variants(parser: argparse.ArgumentParser) -> None:
    """Add how the model is run, where that is not the runtime's habit."""
    parser.add_argument(
        "--algorithm",
        default="auto",
        help="of collectives: auto, NCCL's choice; engine, the best of NCCL and serving engines' "
        "kernels; or one by name, such as ring, tree, nvls or twoshot (default: auto)",
    )
    parser.add_argument(
        "--attention",
        default="",
        action=Named,
        help="kernel to price: fa2, fa3, fa4, cudnn, trtllm ... (default: the runtime's)",
    )
    parser.add_argument(
        "--text-tower",
        help="run the tower of a model that does not look at the step, as in Cosmos 3: once or "
        "every_step (default: the engine's habit, or once)",
    )
    parser.add_argument(
        "--offload", action="store_true", help="text encoders leave the GPU before denoising"
    )
    parser.add_argument(
        "--kv-repeat",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tensor parallelism may copy keys and values where it has more ranks than the model "
        "has key-value heads; --no-kv-repeat refuses such plans (default: --kv-repeat)",
    )
    parser.add_argument(
        "--wide-collectives",
        action="store_true",
        help="collectives carry 32-bit numbers between casts, twice the bytes of bf16, as some "
        "TensorRT networks do",
    )
    parser.add_argument(
        "--scattered-inputs",
        action="store_true",
        help="each rank cuts its part of an input by a reduce-scatter, not by a slice, as networks "
        "that do not know their rank do: more traffic, one network for all ranks",
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add what a request runs on."""
    parser.add_argument(
        "--hardware",
        action=Named,
        help="a name of `planner topology list`, or a TOML file of your own (default: h100-sxm); "
        "with --topology the kind of GPU where the text names none",
    )
    parser.add_argument(
        "--topology",
        default="",
        action=Named,
        metavar="FILE",
        help="the machine: nvidia-smi topo -m, XML, a cluster ...; - reads what is piped in",
    )
    parser.add_argument("--detect", action="store_true", help="the machine this runs on")
    _add_generation(parser)
    parser.add_argument(
        "--nodes",
        type=hosts,
        default=0,
        metavar="N",
        help="hosts that share the GPUs evenly (default: as few as hold them)",
    )


def _generation(text: str) -> int:
    """Read a generation of PCIe."""
    from topology.catalogue import check_pcie_generation  # noqa: PLC0415  # tables take a while

    number = whole(text)
    try:
        check_pcie_generation(number, "wanted")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("wanted: ")) from None
    return number


def _add_generation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pcie-generation",
        type=_generation,
        metavar="N",
        help="of a topology that does not say (default: the kind of GPU's)",
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add the profile to predict with."""
    parser.add_argument(
        "--profile",
        default="",
        action=Named,
        help="calibration to predict with: a file, a name of `planner profile list`, or none, "
        "which leaves measured profiles out and takes the tables of the GPU's generation alone "
        "(default: the one that ships for the hardware, if any)",
    )


def add_checked_profile(parser: argparse.ArgumentParser) -> None:
    """Add the profile to a command that predicts nothing, for scripts that give it to all."""
    parser.add_argument(
        "--profile",
        default="",
        action=Named,
        help="a calibration, which is read and checked; nothing is priced",
    )


def add_collectives(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner collectives``."""
    add_machine(parser)
    parser.add_argument(
        "--gpus", type=whole, help="in all (default: 8, all of a machine's, or those of a log)"
    )
    parser.add_argument(
        "--op",
        action=Named,
        help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, "
        "scatter or send_recv (default: all_reduce, or that of a log)",
    )
    parser.add_argument(
        "--bytes",
        action=Named,
        help="a size, a range that doubles, low:high, or several with commas (default: 1KiB:1GiB, "
        "or all of a log)",
    )
    parser.add_argument(
        "--algorithm",
        default="auto",
        help="auto, NCCL's choice, or one by name, such as ring or nvls (default: auto)",
    )
    parser.add_argument(
        "--launch",
        action=Named,
        help="who starts a call: graph, a CUDA graph that is replayed; stream, the host each time, "
        "which small messages wait for (default: graph)",
    )
    add_profile(parser)
    parser.add_argument(
        "--compare",
        action=Named,
        metavar="LOG",
        help="put an output of nccl-tests beside what is predicted; - reads what is piped in",
    )
    add_output(parser, (*FORMATS, "csv"))


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner models``."""
    add_action(parser, "list", "show", "import")
    parser.add_argument("name", nargs="?", help="a catalogue name, a config.json or a folder")
    add_checked_profile(parser)
    add_output(parser)


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner topology``."""
    add_action(parser, "list", "show", "import", "detect")
    parser.add_argument("name", nargs="?", help="a catalogue name, a file, or - for a pipe")
    parser.add_argument("--hardware", action=Named, help="kind of GPU, where the file does not say")
    parser.add_argument("--nodes", type=whole, metavar="N", help="hosts, all alike (default: 1)")
    _add_generation(parser)
    add_checked_profile(parser)
    add_output(parser, (*FORMATS, "html"))
