"""``planner serve``: the pages of recommend, estimate and capacity on this machine."""

import argparse
import os
import socket
from collections.abc import Container, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from planner.command import cli
from planner.command import options as common
from planner.command.files import tell
from topology.base import InputError, ModelError

if TYPE_CHECKING:
    from planner.web.app import Told
    from planner.web.fields import Field, Groups

PORT: Final = 8421
MOST_PORT: Final = 2**16 - 1
LIMIT_S: Final = 20.0
"""Of an answer."""
CONNECTIONS: Final = 64
_PRELOADED: Final = (
    "planner.command.serve", "planner.command.recommend", "planner.command.estimate",
    "planner.command.capacity", "planner.recommendation", "planner.rendering.report",
    "planner.rendering.capacity", "planner.serving.serving", "planner.web.app",
)  # fmt: skip
"""What every answer needs, loaded once."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    port = f"0 for any that is free (default: {PORT})"
    common.add_numbers(parser, {"--port N": port}, default=PORT)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; whoever reaches it can ask (default: 127.0.0.1, this machine "
        "alone)",
    )


def pages() -> "dict[str, Groups]":
    """List the fields of each page: those of its form, and below them all options that it lacks."""
    from planner.web.fields import FORMS, fields_of  # noqa: PLC0415

    return {
        name: (*groups, ("Other options", tuple(_other_fields(name, fields_of(groups)))))
        for name, groups in FORMS.items()
    }


def _other_fields(command: str, known: Container[str]) -> "Iterator[Field]":
    """Yield the options of a command as fields, but for those that are known and the format."""
    from planner.web.fields import Field  # noqa: PLC0415

    parser = common.Parser(add_help=False)
    cli.command_of(command).add(parser)
    for action in parser._actions:  # noqa: SLF001  # argparse lists them nowhere else
        for name in (option.removeprefix("--") for option in action.option_strings):
            if name not in known and name != "format":
                yield Field(
                    name=name,
                    label=name,
                    kind=_field_kind(action),
                    hint=str(action.metavar or ""),
                    repeats=isinstance(action, common.PairAction),
                    says=str(action.help).replace("%%", "%"),
                )


def _field_kind(action: argparse.Action) -> str:
    """Say what kind of field an option is."""
    if action.dest == "detect" or "FILE" in str(action.metavar):
        return "file"
    if isinstance(action, common.Unmodelled):
        return "unmodelled"
    if action.nargs == 0:
        return "flag"
    return "text" if action.type is None or action.type is common.share else "number"


def told(words: list[str]) -> "Told":
    """Run a command, and say what it would print."""
    from planner.web.app import Told  # noqa: PLC0415  # an optional package

    try:
        options = cli.parsed(words)
        text, _ = cli.answer(options)
    except InputError as error:
        return Told(text=str(error), wrong="input")
    except ModelError as error:
        return Told(text=str(error), wrong="model")
    return Told(text=text)


def _run_command(options: argparse.Namespace) -> common.Answer:
    try:
        import uvicorn  # noqa: PLC0415  # an optional package

        from planner.web.apart import apart, load  # noqa: PLC0415
        from planner.web.app import app  # noqa: PLC0415
    except ImportError as error:
        remedy = "pip install 'multi-gpu-planner[serve]'"
        raise InputError(f"serve: {error.name} is not installed: {remedy}") from None
    listener = _listening_socket(options.host, options.port)
    host, port = listener.getsockname()[:2]
    shown_host = f"[{host}]" if ":" in host else host
    host_names = ["127.0.0.1", "localhost", "[::1]", shown_host] if _is_loopback(host) else ["*"]
    load(_PRELOADED)
    ask = partial(apart, told, limit_s=LIMIT_S)
    config = uvicorn.Config(
        app(ask, pages(), host_names, os.cpu_count() or 1), log_level="error", access_log=False,
        limit_concurrency=CONNECTIONS, timeout_keep_alive=5, timeout_graceful_shutdown=1,
        server_header=False, lifespan="off",
    )  # fmt: skip
    tell("serve", f"http://{shown_host}:{port}/ (Ctrl-C stops it)")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    raise SystemExit(cli.INTERRUPTED)  # who stops it wants no word about it


def _is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    return host.startswith("127.") or host == "::1"


def _listening_socket(host: str, port: int) -> socket.socket:
    """Take the port."""
    if not 0 <= port <= MOST_PORT:
        raise InputError(f"port: got {port}, wanted a whole number from 0 to {MOST_PORT}")
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no address"
        raise InputError(f"serve: {host[:60]} port {port}: {reason}") from None


COMMAND: Final = common.Command(
    help="recommend, estimate and capacity as pages on this machine",
    text="Serve pages that ask for a model, hardware or a pasted topology, sizes, a plan or a\n"
    "demand, and answer with the charts of --format html; with format=json beside the fields\n"
    "the answer is that of --format json. On the loopback address; nothing is kept.",
    examples="planner serve\n"
    "    pages at http://127.0.0.1:8421/, until Ctrl-C\n"
    "planner serve --port 0\n"
    "    the same at a port that is free",
    add=_add_options,
    run=_run_command,
)
