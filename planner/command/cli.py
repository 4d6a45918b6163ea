"""The command line: reads words, runs one command, prints its answer, decides the exit code.

The one place that may reach up to `validate`, and only when a command needs it.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Final, NoReturn, cast

from planner.command.files import at_work, own_version, tell, write
from planner.command.options import DONE, NO, Answer, Command, Parser, settle_format
from topology.base import InputError, ModelError, unknown
from topology.base.errors import one_line
from topology.base.shell import shell_word

BAD_INPUT, INTERRUPTED = 2, 130
OWN_PACKAGES: Final = ("topology", "costmodels", "planner", "validate")
SHELLS: Final = ("bash", "zsh", "tcsh")
OWN_COMMANDS: Final = (
    "recommend", "estimate", "simulate", "capacity", "sweep", "collectives", "models",
    "topology", "export", "serve",
)  # fmt: skip
"""Commands of this layer, each a file of this folder, loaded when it is asked for."""
UPPER_COMMANDS: Final = ("validate", "calibrate", "profile", "doctor")
"""Commands of the layer above."""
GC_THRESHOLD: Final = 10**6
"""Values that are made before those in circles are looked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        options = parsed(sys.argv[1:] if argv is None else list(argv))
        text, code = answer(options)
        write(text, options.output)
    except ModelError as error:
        tell("planner", str(error))
        return BAD_INPUT if isinstance(error, InputError) else NO
    except (ModuleNotFoundError, MemoryError) as error:
        return _report_missing(error)
    except KeyboardInterrupt:
        tell("planner", "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:  # such as a folder that may not be looked into
        if error.filename is None:
            raise
        tell("planner", one_line(f"{error.filename}: {error.strerror}"))
        return BAD_INPUT
    return code


def _report_missing(error: ModuleNotFoundError | MemoryError) -> int:
    """Say which package is not there, or that memory is short; returns the exit code."""
    if isinstance(error, MemoryError):
        tell("planner", "this machine has too little memory for the answer")
        return NO
    if (error.name or OWN_PACKAGES[0]).partition(".")[0] in OWN_PACKAGES:
        raise error
    remedy = "wanted all packages that come with this project"
    tell("planner", f"{error.name} is not installed, {remedy}")
    return BAD_INPUT


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Read the words of a command line, which pages show below."""
    if not words or words[0] == "help":
        words = [*words[1:], "--help"]
    options = parser_of(words[0]).parse_args(words)
    options.typed = " ".join(map(shell_word, ["planner", *map(_shortened, words)]))
    settle_format(options)
    return options


def _shortened(argument: str) -> str:
    """Put the name of a file in the place of a text that was pasted."""
    return f"{argument.partition('=')[0]}=FILE" if "\n" in argument else argument


def command_of(name: str) -> Command:
    """Find what a command says of itself, and what runs it."""
    if name in OWN_COMMANDS:
        return cast("Command", import_module(f"planner.command.{name}").COMMAND)
    from validate.cli import COMMANDS  # noqa: PLC0415  # the imports that point up

    return COMMANDS[name]


def parser_of(command: str) -> argparse.ArgumentParser:
    """Make the parser of a command, or of all commands where it is an option.

    >>> parser_of("recomend")
    Traceback (most recent call last):
    topology.base.errors.InputError: unknown command 'recomend': did you mean recommend?
    """
    names = (*OWN_COMMANDS, *UPPER_COMMANDS)
    if command and not command.startswith("-") and command not in names:
        raise unknown("command", command, names)
    parser = Parser(prog="planner")
    WHOLE.describe(parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument(
        "--print-completion", action=_Completion, choices=SHELLS, metavar="SHELL",
        help=f"print what completes commands and options in {', '.join(SHELLS)}",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [command] if command in names else names:
        described_command = command_of(name)
        subparser = commands.add_parser(name, help=described_command.help)
        described_command.describe(subparser)
        described_command.add(subparser)
    return parser


def answer(options: argparse.Namespace) -> Answer:
    """Run the command that options are of."""
    if options.command == "collectives" and options.compare is not None:
        from validate.cli import compare  # noqa: PLC0415

        return compare(options)
    if (
        options.command in OWN_COMMANDS
    ):  # no product of matrices is worth the start of numpy's threads
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        sys.modules.setdefault("numpy", _LazyModule("numpy"))  # one request needs no arrays
        gc.set_threshold(
            GC_THRESHOLD
        )  # frozen values are in no circles, so that there is little to find
    with at_work(options):
        return command_of(options.command).run(options)


class _LazyModule(ModuleType):
    """A package that is imported when something of it is first used."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        package = import_module(self.__name__)
        vars(self).update(vars(package))
        return getattr(package, name)


class _Completion(argparse.Action):
    """Prints a script for a shell."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: object, shell: object, *__: object
    ) -> NoReturn:
        try:
            import shtab  # noqa: PLC0415  # an optional package
        except ImportError:
            remedy = "pip install 'multi-gpu-planner[completion]'"
            raise InputError(f"--print-completion: shtab is not installed: {remedy}") from None
        write(shtab.complete(parser, shell=str(shell)), None)
        parser.exit(DONE)


class _Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        write(own_version(), None)
        parser.exit(DONE)


WHOLE: Final = Command(
    help="",
    text="Say how to split a generative model over GPUs, how fast it will be, and whether it fits.",
    examples="planner recommend --model cosmos3 --gpus 8\n"
    "    every way to split it, best first\n"
    "planner recommend --help\n"
    "    options of a command",
    exit_1="no plan can run, a gate was missed, or doctor says that something is missing",
    add=lambda _: None,
    run=lambda _: ("", DONE),
)


if __name__ == "__main__":
    sys.exit(main())
