"""Where answers go: the screen, or a file that is written whole or not at all."""

import io
import os
import sys
from pathlib import Path

from topology.errors import InputError


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
