"""Where answers go, the screen or a file written whole or not at all; and what is piped in."""

import io
import os
import sys
from pathlib import Path

from topology.errors import InputError


def standard_input() -> str:
    """Read what is piped or typed, as text that is never taken for the name of a file.

    Raises
    ------
    InputError
        If it is longer than files may be, or no text.
    """
    from topology.readers.catalogue import decoded  # noqa: PLC0415  # only pipes need it
    from topology.readers.lines import MOST_CHARACTERS as most  # noqa: N811, PLC0415

    stream = getattr(sys.stdin, "buffer", None)
    data = sys.stdin.read(most + 1).encode() if stream is None else stream.read(most + 1)
    if len(data) > most:
        raise InputError(f"standard input: more than {most} bytes")
    return f"{decoded(data, 'standard input')}\n"


def write(text: str, output: str | None) -> None:
    """Print, or write a file whole or not at all."""
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # bars on a terminal that has none
        print(text, flush=True)
        return
    target = Path(output)
    try:
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            draft.write_text(text + "\n", encoding="utf-8")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror}") from None
    except ValueError:  # no name, or a null character
        raise InputError(f"--output {output[:60]!r}: wanted the path of a file") from None
