"""What commands share: how one is described and added, and the options that several take."""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final, NoReturn

from planner.command.files import standard_input, write
from topology.base import InputError, number_in, unknown
from topology.base.values import dataclass

if TYPE_CHECKING:
    from planner.request.request import Request

DONE, NO = 0, 1
FORMATS: Final = ("table", "json", "markdown")
NOT_WRITTEN: Final = (".pdf", ".docx", ".xlsx", ".png", ".svg", ".yaml", ".yml", ".xml")
"""Endings of what people ask for, and no answer is written as."""
ENDINGS: Final = {".json": "json", ".md": "markdown", ".csv": "csv", ".html": "html"}
"""Of files, and the format that each says."""
ROWS: Final = (*FORMATS, "csv", "html")
"""Of answers that have rows, and a page."""
_OPTION: Final = re.compile(r"--?[A-Za-z]")
_DIGITS: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_NEGATIVE: Final = re.compile(r"-\.?[0-9]")
_USUAL_DEFAULT: Final = "(default: the model's usual one)"

_ENGINE: Final = (
    "price an engine's habits: vllm-omni, sglang, xdit, diffusers, trtmc, vllm, tensorrt-llm, "
    "sglang-llm or repository, the model's own, each with a version behind @ or the newest known; "
    "vllm and sglang are the one of the name that runs the model; "
    "or planner, the executor of `planner validate`; recommend and capacity compare several, with "
    "commas (default: all that run the model for these, else none; torch-eager is then the model's "
    "own repository)"
)
_ATTENTION: Final = "kernel to price: fa2, fa3, fa4, cudnn, trtllm ... (default: the runtime's)"
_HARDWARE: Final = (
    "a name of `planner topology list`, or a TOML file of your own (default: h100-sxm); with "
    "--topology the kind of GPU where the text names none"
)
_TOPOLOGY: Final = "the machine: nvidia-smi topo -m, XML, a cluster ...; - reads what is piped in"
_LINK: Final = (
    "links that are slower than usual, faster or down: all between two ends, such as "
    "GPU0-NVSwitch=0.5 or NIC0-network=0, or all of a kind, nvlink=2; on every host alike; may be "
    "repeated; `planner topology show` has their ends (default: none is)"
)
_PROFILE: Final = (
    "calibration to predict with: a file, a name of `planner profile list`, or none, which leaves "
    "measured profiles out and takes the tables of the GPU's generation alone (default: the one "
    "that ships for the hardware, if any)"
)
_TENSORRT: Final = "of the TensorRT that runs it, such as 11.2.1.2 (default: the newest known)"
_NETWORK_FLAGS: Final = {
    "--wide-collectives": "collectives carry 32-bit numbers between casts, twice the bytes of "
    "bf16, as some TensorRT networks do",
    "--scattered-inputs": "each rank cuts its part of an input by a reduce-scatter, not by a "
    "slice, as networks that do not know their rank do: more traffic, one network for all ranks",
}
_SIZE_OPTIONS: Final = {
    "height": "pixels", "width": "pixels", "frames": "of a video", "steps": "of denoising",
    "input-tokens": "of a language model's prompt", "output-tokens": "that a language model writes",
    "text-tokens": "of a diffusion model's prompt",
}  # fmt: skip
_CONCURRENCY: Final = (
    "requests that clients keep in flight; each place sends ten, the first all at once (default: "
    "searched by recommend, none for estimate)"
)
_CHUNK: Final = "tokens of a step, prompts and answers together (default: the engine's)"
_RATE: Final = "requests that come at random, such as 5/s, in place of --concurrency"
ARRIVALS: Final = (
    "requests of a trace, in place of --concurrency or --rate: CSV with arrival_s, input_tokens, "
    "output_tokens"
)
_LENGTHS: Final = (
    "how long requests are, in place of --input-tokens, --output-tokens and --spread: CSV with "
    "input_tokens, output_tokens and, if they differ, count"
)
_LIMIT_OPTIONS: Final = {
    "--slo-ttft T": "time to the first token that is wanted, such as 500ms",
    "--slo-tpot T": "time of each later token that is wanted, such as 30ms",
}
_PERCENTILES: Final = {
    f"--{name}-percentile P": f"percentage of requests that are to keep --slo-{name} "
    "(default: their mean)"
    for name in ("ttft", "tpot")
}
_SPECULATIVE: Final = (
    "tokens that are drafted for each step of speculative decoding (default: none)"
)
_DRAFT: Final = (
    "model that drafts them, a name or a path, or mtp, the model's own layers for that (default: "
    "mtp where it has some)"
)
_ACCEPTANCE: Final = (
    "share of drafted tokens that is accepted, each where those before it were (default: as "
    "published, 0.85 of mtp and 0.71 of a model)"
)
_REDUNDANT: Final = (
    "copies of popular experts in each layer with experts, which engines place by load (default: "
    "none)"
)
_DISTRIBUTION: Final = (
    "how tokens choose experts: balanced, uniform (by chance), power_law, power_law_1.01, or a "
    "file of the tokens that each expert took, in order (default: power_law, of exponent 1.2)"
)
_CACHE: Final = (
    "skip steps by a cache of features: teacache, fbcache or cache-dit, with a threshold behind = "
    "(teacache=0.2), or skip=0.4, the share of steps that yours skips; the result is another one "
    "than the model's (default: none)"
)
_PREFIX_HIT: Final = "share of each prompt that is cached already (default: 0)"
_SPREAD: Final = (
    "lengths are uniform within this share of their mean (default: one length, and requests come "
    "apart as each engine lets them)"
)
_BURST: Final = "squared variation of times between requests of --rate (default: 1, Poisson)"
_PRECISION_OPTIONS: Final = {
    "--precision": "bf16, fp16, fp8, nvfp4, int8, or weights alone in int4 or mxfp4 "
    "(default: the checkpoint's own, or bf16, fp16 on GPUs without it)",
    "--kv-precision": "of keys and values that language models keep: bf16 or fp8 "
    "(default: the checkpoint's own, or bf16)",
}
_TEXT_TOWER: Final = (
    "run the tower of a model that does not look at the step, as in Cosmos 3: once or every_step "
    "(default: the engine's habit, or once)"
)
_WARMUP: Final = "steps that PipeFusion runs exactly ahead of the others (default: 1)"
_GENERATION: Final = "of a topology that does not say (default: the kind of GPU's)"

Group = argparse._ActionsContainer  # noqa: SLF001  # parsers and their groups alike
Answer = tuple[str, int]
"""Text to print, and the exit code."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; options are written out, lest one is taken for another."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401  # as argparse has them
        super().__init__(**{**kwargs, "allow_abbrev": False})
        self._negative_number_matcher = _NEGATIVE  # values such as -5ms are no options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401  # as argparse has them
        """Read words; an option that there is not is named before one that is missing.

        A value of two dashes alone would be dropped, as those that end the options are.
        """
        names = [name for action in self._actions for name in action.option_strings]
        args = sys.argv[1:] if args is None else args
        words = args[:1] if self._subparsers else args
        for word in itertools.takewhile("--".__ne__, words):
            option, _, value = word.partition("=")
            if _OPTION.match(option) and option not in names:
                raise unknown("option", option, [name for name in names if name.startswith("--")])
            if value == "--":
                self.error(f"argument {option}: got '--', wanted a value")
        return super().parse_known_args(args, namespace)

    def print_help(self, _: object = None) -> None:
        """Print what the command takes, and say where that is not possible."""
        write(self.format_help().removesuffix("\n"), None)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].lower()}{message[1:]}")


class _ValueAction(argparse.Action):
    """An option whose value is `taken` beside what it had before, or refused in one line."""

    def taken(self, value: str, before: Any) -> object:  # noqa: ANN401  # its default's kind
        """Return what to keep; raises `ValueError` with what is wrong."""
        raise NotImplementedError

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Keep the value, or refuse it."""
        try:
            new_value = self.taken(str(values), getattr(namespace, self.dest))
        except ValueError as error:
            parser.error(f"argument {option_string}: {error}")
        setattr(namespace, self.dest, new_value)


class Named(_ValueAction):
    """Takes a name or a file; an empty one is left by a variable of a script that is not set."""

    def taken(self, value: str, _: object) -> object:
        if not value:
            raise ValueError("got '', wanted a name or no such option")
        return value


class PairAction(_ValueAction):
    """Takes names with what is said of each, such as ``GPU0-NVSwitch=0.5``, each name once.

    name, value : how the two are read. like : what is wanted.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:  # noqa: ANN401  # argparse's
        self.name, self.value, self.like = (named.pop(field) for field in ("name", "value", "like"))
        super().__init__(option_strings, dest, **{"default": {}, **named})

    def taken(self, value: str, before: dict[object, object]) -> object:
        left, _, right = value.rpartition("=")
        try:
            name, pair_value = self.name(left), self.value(right)
        except (ValueError, argparse.ArgumentTypeError):
            left = ""
        if not left:
            raise ValueError(f"got {value[:60]!r}, wanted {self.like}")
        if name in before:
            raise ValueError(f"got {left[:60]} twice, wanted each once")
        return {**before, name: pair_value}


class Unmodelled(_ValueAction):
    """Says why something that people ask for has no price here, or what to ask for instead."""

    def taken(self, _: str, __: object) -> object:
        from planner.request.request import UNMODELLED  # noqa: PLC0415  # slow to load

        raise ValueError(self.const or UNMODELLED[self.dest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: what ``--help`` says of it, its options, and what runs it.

    help : a line in the list of commands. text : what it does. examples : lines to type, and
    below each, indented, what comes back. exit_1 : what exit code 1 means, empty where it does not
    occur.
    add : adds the options. run : answers what was asked for.
    """

    help: str
    text: str
    examples: str
    exit_1: str = ""
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Answer]

    def describe(self, parser: argparse.ArgumentParser) -> None:
        """Give a parser the words: examples and exit codes stand below the options."""
        exit_1 = f"\n  1   {self.exit_1}" if self.exit_1 else ""
        codes = f"exit codes:\n  0   done{exit_1}\n  2   bad input, said in one line"
        codes += "\n  130 stopped by Ctrl-C"
        parser.description = self.text
        parser.epilog = f"examples:\n{indent(self.examples, '  ')}\n\n{codes}"
        parser.formatter_class = argparse.RawDescriptionHelpFormatter


def whole(text: str) -> int:
    """Read a whole number, in plain digits."""
    with suppress(ValueError):  # of thousands of digits
        if _DIGITS.fullmatch(text.strip()):
            return int(text)
    raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a whole number")


def real(text: str) -> float:
    """Read a number, in plain digits."""
    try:
        return number_in(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, wanted a number") from None


def share(text: str) -> float:
    """Read a share, such as ``0.95`` or ``95%``."""
    from planner.request.quantities import read_share  # noqa: PLC0415  # few options are shares

    try:
        return read_share(text)
    except ValueError:
        expected = "wanted a share such as 0.95 or 95%"
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, {expected}") from None


def hosts(text: str) -> int:
    """Read a number of hosts; only where it is left out there may be as few as hold the GPUs."""
    if (count := whole(text)) == 0:
        raise argparse.ArgumentTypeError("got 0, wanted a whole number from 1")
    return count


def check_nameless(options: argparse.Namespace) -> None:
    """Refuse a name where an action takes none, such as ``list``."""
    if options.name is not None:
        raise InputError(
            f"{options.command} {options.action}: got {options.name[:60]!r}, wanted no name"
        )


def piped(source: str) -> str:
    """Read what is piped in where a source is ``-``; it can be read once."""
    return standard_input() if source == "-" else source


def request_of(options: argparse.Namespace) -> "Request":
    """Build the request that options ask for."""
    from planner.request.request import Request  # noqa: PLC0415
    from planner.scenario import keywords  # noqa: PLC0415  # slow to load

    options.topology = piped(options.topology)
    fields = {
        name: value
        for name, value in vars(options).items()
        if name in Request.__dataclass_fields__ and (name, value) != ("hardware", None)
    }
    model, gpus = fields.pop("model"), fields.pop("gpus")
    return keywords.request_of(model, gpus, fields, getattr(options, "plan", None))


def add_named(group: Group, named: Mapping[str, str], default: str | None = "") -> None:
    """Add options that take a name or a file, such as ``--price FILE``, each with what it is."""
    _add_options(group, named, action=Named, default=default)


def add_numbers(
    group: Group,
    numbers: Mapping[str, str],
    kind: Callable[[str], float] = whole,
    default: float | None = None,
) -> None:
    """Add options that take a `kind` of number, such as ``--top K``, each with what it is."""
    _add_options(group, numbers, type=kind, default=default)


def _add_options(group: Group, options: Mapping[str, str], **settings: Any) -> None:  # noqa: ANN401  # argparse's
    for option, text in options.items():
        name, _, metavar = option.partition(" ")
        group.add_argument(name, metavar=metavar or None, help=text, **settings)


def add_flags(parser: argparse.ArgumentParser, flags: Mapping[str, str]) -> None:
    """Add options that take nothing, each with what it does."""
    for name, text in flags.items():
        parser.add_argument(name, action="store_true", help=text)


def add_refused(group: Group, refused: Mapping[str, str]) -> None:
    """Add options that are refused, each with what to ask for instead; empty where not modelled."""
    for name, alternative in refused.items():
        group.add_argument(
            name, nargs="?", action=Unmodelled, const=alternative, help=argparse.SUPPRESS
        )


def add_action(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add what a command is to do; one without is told the names."""
    parser.add_argument("action", choices=names, metavar="|".join(names), help="see above")


def add_output(
    parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS, *, file: bool = True
) -> None:
    """Add how and where an answer is written."""
    usual_format = "that of the ending of --output, or table" if file else "table"
    parser.add_argument(
        "--format",
        choices=formats,
        default=None if file else "table",
        help=f"of the answer (default: {usual_format})",
    )
    if file:
        parser.add_argument(
            "--output", metavar="FILE", help="write here instead of printing (default: -)"
        )
        parser.set_defaults(formats=formats)


def settle_format(options: argparse.Namespace) -> None:
    """Take the format that the ending of ``--output`` says, where it says one; ``-`` is no file.

    Raises `InputError` if the answer has no such format, or another one is asked for.
    """
    if "formats" not in options:
        return
    options.output = None if options.output == "-" else options.output
    output = options.output or ""
    file_format = next(
        (style for ending, style in ENDINGS.items() if output.endswith(ending)), None
    )
    unsupported = output.lower().endswith(NOT_WRITTEN)
    if unsupported or (file_format is not None and file_format not in options.formats):
        endings = [ending for ending, style in ENDINGS.items() if style in options.formats]
        raise InputError(f"--output {output}: wanted a name that ends in {', '.join(endings)}")
    if file_format is not None and options.format not in (None, file_format):
        expected = f"--format {file_format}, or a name of another ending"
        raise InputError(f"--output {output}: got --format {options.format}, wanted {expected}")
    options.format = options.format or file_format or "table"


def style_of(options: argparse.Namespace) -> str:
    """Choose the format of an action, of which importing has one.

    Raises `InputError` if another is asked for.
    """
    if options.action != "import":
        return str(options.format)
    if options.format not in ("table", "json"):
        complaint = f"{options.command} import: got {options.format}"
        raise InputError(f"{complaint}, wanted json, which it always writes")
    return "json"


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the plan that is asked for."""
    parser.add_argument(
        "--plan",
        help="axes with their degrees, such as cfg2.ulysses4; needed on more than one GPU",
    )


def add_pools(parser: argparse.ArgumentParser) -> None:
    """Add the two plans of a disaggregated deployment, and numbers of workers."""
    group = parser.add_argument_group("workers for prompts, and others that decode")
    for pool, role in (("prefill", "that run prompts"), ("decode", "that decode")):
        plan_help = f"of workers {role}, such as tp4, in place of --plan"
        add_named(group, {f"--{pool}-plan P": plan_help})
        add_numbers(group, {f"--{pool}-workers N": f"how many there are {role} (default: 1)"})


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add what is asked of which model on what."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME|FILE",
        help="a catalogue name, a config.json, an ONNX file or a pipeline folder",
    )
    parser.add_argument(
        "--gpus",
        type=whole,
        help="in all (default: all of --topology or --detect, those of the plan, or 1)",
    )
    add_machine(parser)
    add_sizes(parser)
    add_precision(parser)
    parser.add_argument(
        "--runtime",
        help="tensorrt, torch-graph, torch-compile or torch-eager "
        "(default: the fastest for recommend, else the engine's, or tensorrt)",
    )
    add_named(parser, {"--engine": _ENGINE})
    add_profile(parser)
    _add_variants(parser)


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add the precision of weights, and of keys and values."""
    _add_options(parser, _PRECISION_OPTIONS)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of a request."""
    add_numbers(
        parser,
        {
            f"--{name} N": f"{description} {_USUAL_DEFAULT}"
            for name, description in _SIZE_OPTIONS.items()
        },
    )
    add_numbers(parser, {"--batch N": "results at once (default: 1)"}, default=1)


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add how many requests a language model is to serve, and how soon."""
    group = parser.add_argument_group("language models under load")
    add_numbers(group, {"--concurrency N": _CONCURRENCY})
    add_named(group, {"--rate R": _RATE}, None)
    add_named(group, {"--arrivals FILE": ARRIVALS})
    add_numbers(group, {"--redundant-experts N": _REDUNDANT})
    add_named(group, {"--expert-distribution LAW|FILE": _DISTRIBUTION})
    add_serving(group)


def add_serving(group: Group) -> None:
    """Add how a language model is served, and how soon tokens are wanted."""
    add_named(group, {"--lengths FILE": _LENGTHS})
    add_numbers(group, {"--chunk N": _CHUNK})
    add_named(group, _LIMIT_OPTIONS, None)
    add_numbers(group, _PERCENTILES, real)
    add_numbers(group, {"--prefix-hit F": _PREFIX_HIT}, share, 0.0)
    add_numbers(group, {"--spread F": _SPREAD}, share)
    add_numbers(group, {"--burst F": _BURST}, real, 1.0)
    add_numbers(group, {"--speculative N": _SPECULATIVE})
    add_named(group, {"--draft NAME|FILE": _DRAFT})
    add_numbers(group, {"--acceptance F": _ACCEPTANCE}, share)
    add_refused(group, {"--lora": ""})


def _add_variants(parser: argparse.ArgumentParser) -> None:
    """Add how the model is run, where that is not the runtime's habit."""
    parser.add_argument(
        "--algorithm",
        default="auto",
        help="of collectives: auto, NCCL's choice; engine, the best of NCCL and serving engines' "
        "kernels; or one by name, such as ring, tree, nvls or twoshot (default: auto)",
    )
    add_named(parser, {"--attention": _ATTENTION})
    parser.add_argument("--text-tower", help=_TEXT_TOWER)
    add_numbers(parser, {"--warmup-steps N": _WARMUP})
    add_named(parser, {"--cache NAME": _CACHE})
    add_refused(parser, {"--sparse-attention": "", "--async-ulysses": ""})
    add_flags(parser, {"--offload": "text encoders leave the GPU before denoising"})
    parser.add_argument(
        "--kv-repeat",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tensor parallelism may copy keys and values where it has more ranks than the model "
        "has key-value heads; --no-kv-repeat refuses such plans (default: --kv-repeat)",
    )
    add_named(parser, {"--tensorrt-version": _TENSORRT})
    add_flags(parser, _NETWORK_FLAGS)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add what a request runs on."""
    add_named(parser, {"--hardware NAME|FILE": _HARDWARE}, default=None)
    add_named(parser, {"--topology FILE": _TOPOLOGY})
    add_flags(parser, {"--detect": "the machine this runs on"})
    add_generation(parser)
    add_links(parser)
    nodes = "hosts that share the GPUs evenly (default: as few as hold them)"
    add_numbers(parser, {"--nodes N": nodes}, hosts, 0)


def _pcie_generation(text: str) -> int:
    """Read a generation of PCIe."""
    from topology.catalogue import check_pcie_generation  # noqa: PLC0415  # tables take a while

    number = whole(text)
    try:
        check_pcie_generation(number, "wanted")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("wanted: ")) from None
    return number


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add the generation of PCIe of a machine whose text does not say."""
    add_numbers(parser, {"--pcie-generation N": _GENERATION}, _pcie_generation)


def add_links(parser: argparse.ArgumentParser) -> None:
    """Add links that are not as usual."""
    parser.add_argument(
        "--link",
        dest="links",
        action=PairAction,
        name=str,
        value=number_in,
        like="a link and times its bandwidth, such as GPU0-NVSwitch=0.5",
        metavar="NAME=TIMES",
        help=_LINK,
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add the profile to predict with."""
    add_named(parser, {"--profile NAME|FILE": _PROFILE})


def add_checked_profile(parser: argparse.ArgumentParser) -> None:
    """Add the profile to a command that predicts nothing, for scripts that give it to all."""
    add_named(parser, {"--profile": "a calibration, which is read and checked; nothing is priced"})


def check_profile(asked: str) -> None:
    """Read the profile that a command without prices was given; most are given none."""
    if asked:
        from costmodels.tables import check_profile as read_and_check  # noqa: PLC0415

        read_and_check(asked)
