"""Where answers go, the screen or a file written whole or not at all; and what is piped in."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from topology.base import MOST_CHARACTERS, InputError, decoded, place, write_whole
from topology.base.table import Part, document, terminal

WIDTH = 118
"""Columns of what is not printed on a terminal."""


def standard_input() -> str:
    """Read what is piped or typed, as text that is never taken for the name of a file.

    Raises `InputError` if it is longer than files may be, or no text.
    """
    return f"{decoded(piped(MOST_CHARACTERS), 'standard input')}\n"


def piped(most: int) -> bytes:
    """Read what is piped or typed, of at most `most` bytes.

    Raises `InputError` if it is longer, or standard input is closed.
    """
    if sys.stdin is None:
        raise InputError("standard input: closed, wanted a pipe or a file")
    stream = getattr(sys.stdin, "buffer", None)
    data = sys.stdin.read(most + 1).encode() if stream is None else stream.read(most + 1)
    if len(data) > most:
        raise InputError(f"standard input: more than {most} bytes")
    return bytes(data)


def _print(text: str) -> None:
    if sys.stdout is None:
        raise InputError("standard output: closed, wanted a place for the answer")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon()
        raise InputError(f"standard output: {error.strerror}") from None


def _abandon() -> None:
    """Let go of what could not be printed, so that it is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(text: str, output: str | None, option: str = "--output") -> None:
    """Print, or write a file whole or not at all; `option` is what names it."""
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # bars on a terminal that has none
        _print(text)
        return
    target = place(output, option=option)
    try:
        if target.exists() and not target.is_file():  # a pipe, a device: there is nothing to keep
            target.write_text(text + "\n", encoding="utf-8")
            return
        write_whole(target, text + "\n")
    except OSError as error:
        raise InputError(f"{option} {output}: {error.strerror}") from None


def tell(what: str, text: str) -> None:
    """Say on standard error how far something is."""
    if sys.stderr is not None:
        print(f"{what}: {text}", file=sys.stderr, flush=True)


def render(style: str, document: Callable[[], object], **styles: Callable[[], str]) -> str:
    """Write an answer in the style that is asked for: as JSON, or as one of its other styles."""
    if style == "json":
        return json.dumps(document(), indent=2, allow_nan=False)
    return styles[style]()


def render_parts(
    style: str, data: Callable[[], object], parts: Iterable[Part], title: str, typed: str
) -> str:
    """Write an answer made of parts in any style; `title` is that of its page."""
    return render(
        style,
        data,
        table=lambda: on_screen(parts, None),
        markdown=lambda: document(parts),
        html=lambda: on_page(title, parts, typed),
    )


def on_page(title: str, parts: Iterable[Part], typed: str) -> str:
    """Write parts as a page, which says of what command, version and day it is."""
    from topology.base.page import web  # noqa: PLC0415  # tables and JSON start without it

    day = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return web(title, parts, {"command": typed, "version": own_version(), "written": day})


def own_version() -> str:
    """Name the version that is installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # slow to load

    try:
        return f"planner {version('multi-gpu-planner')}"
    except PackageNotFoundError:
        return "planner (not installed)"


def on_screen(parts: Iterable[Part], elsewhere: int | None = WIDTH) -> str:
    """Write parts as wide as the terminal is, in colours if it is one.

    elsewhere : columns where it is none; None for as many as there are.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        return terminal(parts, elsewhere)
    return terminal(parts, max(os.get_terminal_size().columns, 60), colour=True)
