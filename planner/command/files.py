"""Where answers go, the screen or a file written whole or not at all; and what is piped in."""

import io
import os
import sys
from pathlib import Path

from topology.base import MOST_CHARACTERS, InputError, decoded, write_whole


def standard_input() -> str:
    """Read what is piped or typed, as text that is never taken for the name of a file.

    Raises
    ------
    InputError
        If it is longer than files may be, or no text.
    """
    return f"{decoded(piped(MOST_CHARACTERS), 'standard input')}\n"


def piped(most: int) -> bytes:
    """Read what is piped or typed, of at most `most` bytes.

    Raises
    ------
    InputError
        If it is longer, or standard input is closed.
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


def place(output: str, what: str = "a file", option: str = "--output") -> Path:
    """Give the place that an option names, links followed, whether or not something is there.

    Raises
    ------
    InputError
        If there can be nothing of that name: none, too long, a circle of links, a null character.
    """
    try:
        path = Path(output).resolve()
        path.exists()
        named = bool(path.name) and output.strip() != ""
    except OSError as error:
        raise InputError(f"{option} {output}: {error.strerror}") from None
    except (RuntimeError, ValueError):
        named = False
    if not named:
        raise InputError(f"{option} {output[:60]!r}: wanted the path of {what}")
    return path


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
