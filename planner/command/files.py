"""Where answers go, the screen or a file written whole or not at all; and what is piped in."""

import io
import json
import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, TextIO

from topology.base import MOST_CHARACTERS, InputError, decoded_text, place, write_whole
from topology.base.rows import csv_text
from topology.base.table import Part, document, terminal

WIDTH: Final = 118
"""Columns of what is not printed on a terminal."""
LEAST_COLUMNS: Final = 60
QUIET_S: Final = 2.0
"""Seconds before a terminal is told that an answer takes its time."""
LOGGED_S: Final = 10.0
"""Seconds before a log is."""
SELF_REPORTING: Final = ("sweep", "serve")
"""Commands that say themselves how far they are."""


def standard_input() -> str:
    """Read what is piped or typed, as text that is never taken for the name of a file.

    Raises `InputError` if it is longer than files may be, or no text.
    """
    return f"{decoded_text(piped(MOST_CHARACTERS), 'standard input')}\n"


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


def _print_answer(text: str) -> None:
    if sys.stdout is None:
        raise InputError("standard output: closed, wanted a place for the answer")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_output()
        raise InputError(f"standard output: {error.strerror}") from None


def _abandon_output() -> None:
    """Let go of what could not be printed, so that it is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(text: str, output: str | None, option: str = "--output") -> None:
    """Print, or write a file whole or not at all; `option` is what names it."""
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # bars on a terminal that has none
        _print_answer(text)
        return
    target = place(output, option=option)
    try:
        if target.exists() and not target.is_file():  # a pipe, a device: there is nothing to keep
            target.write_text(text + "\n", encoding="utf-8")
            return
        write_whole(target, text + "\n")
    except OSError as error:
        raise InputError(f"{option} {output}: {error.strerror}") from None


def say(line: str) -> None:
    """Write a line on standard error, if it can be written."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def tell(what: str, text: str) -> None:
    """Say how far something is, or what is wrong."""
    say(f"{what}: {text}")


@contextmanager
def at_work(options: Namespace) -> Iterator[None]:
    """Say how long an answer has taken so far, and what `options.note` was told last.

    A terminal is told from two seconds on, each second, in one line that goes when the answer
    comes; a log that standard error goes to is told after ten seconds, and twice as many each time.
    """
    progress = [""]
    options.note = lambda text: progress.__setitem__(0, f", {text}")
    if options.command in SELF_REPORTING or not _is_open(sys.stderr):
        yield
        return
    finished = threading.Event()
    watcher = _watch_on_terminal if sys.stderr.isatty() else _watch_in_log
    thread = threading.Thread(
        target=watcher, args=(options.command, progress, finished), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _is_open(stream: TextIO | None) -> bool:
    """Whether a stream goes out of this process."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _watch_on_terminal(command: str, progress: Sequence[str], finished: threading.Event) -> None:
    start_s, wait, line_shown = time.monotonic(), QUIET_S, False
    while not finished.wait(wait):
        wait, line_shown = 1.0, True
        elapsed = f"{time.monotonic() - start_s:.0f} s so far"
        print(
            f"{_ERASE_LINE}{command}: {elapsed}{progress[0]}", end="", file=sys.stderr, flush=True
        )
    if line_shown:
        print(_ERASE_LINE, end="", file=sys.stderr, flush=True)


def _watch_in_log(command: str, progress: Sequence[str], finished: threading.Event) -> None:
    elapsed_s = LOGGED_S
    wait = elapsed_s
    while not finished.wait(wait):
        tell(command, f"{elapsed_s:.0f} s so far{progress[0]}")
        wait, elapsed_s = elapsed_s, 2 * elapsed_s


_ERASE_LINE: Final = "\r\x1b[K"


def render(
    style: str,
    data: Callable[[], object],
    parts: Callable[[], Iterable[Part]],
    **others: Callable[[], str],
) -> str:
    """Write an answer in the style that is asked for, of its parts or as `others` say."""
    styles: dict[str, Callable[[], str]] = {
        "json": lambda: json.dumps(data(), indent=2, allow_nan=False),
        "table": lambda: on_screen(parts(), None),
        "markdown": lambda: document(parts()),
    }
    return {**styles, **others}[style]()


def render_parts(
    options: Namespace,
    data: Callable[[], object],
    rows: Callable[[], Sequence[Mapping[str, object]]],
    parts: Callable[[], Iterable[Part]],
    title: str,
    **others: Callable[[], str],
) -> str:
    """Write an answer that has rows, and a page of that `title`, in any style."""
    styles: dict[str, Callable[[], str]] = {
        "csv": lambda: csv_text(rows()),
        "html": lambda: on_page(title, parts(), options.typed),
    }
    return render(options.format, data, parts, **styles, **others)


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
    """Write parts as wide as ``COLUMNS`` says, or the terminal is; in colours if it is one.

    elsewhere : columns where it is none and nothing says; None for as many as there are.
    """
    columns_text = os.environ.get("COLUMNS", "")
    columns = (
        int(columns_text)
        if columns_text.isascii() and columns_text.isdecimal() and len(columns_text) < 6
        else 0
    )
    if sys.stdout is None or not sys.stdout.isatty():
        return terminal(parts, columns or elsewhere)
    return terminal(
        parts, max(columns or os.get_terminal_size().columns, LEAST_COLUMNS), colour=True
    )
