"""What runs of engines read and write: the catalogue, cases, rows, complaints, the environment."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path


def catalogue_text(model: str) -> str:
    """Read the entry of a model of the catalogue, by its own name."""
    path = resources.files("planner.models") / "data" / f"{model}.toml"
    return path.read_text(encoding="utf-8")


def kinds_text() -> str:
    """Read what kinds of element-wise kernels take."""
    return (resources.files("validate.engines") / "kinds.toml").read_text(encoding="utf-8")


def read(path: Path) -> str:
    """Read a file of a run."""
    return path.read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    """Write a case or the rows of a run anew, and the folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def append(path: Path, line: str) -> None:
    """Add a line to a file at once, so that what follows cannot lose it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def lines(path: Path) -> int:
    """Count the lines of a file; none where there is no file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def size(path: Path) -> int:
    """Count the bytes of a file; none where there is no file."""
    return path.stat().st_size if path.exists() else 0


def run(argv: Sequence[str], log: Path) -> tuple[int, str]:
    """Run a command to its end, with what it prints in a log; give its code, and what it printed.

    It is of this process's group, and ends with it.
    """
    with log.open("wb") as file:
        done = subprocess.run(  # noqa: S603  # the caller's own command
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    return done.returncode, log.read_text(encoding="utf-8", errors="replace")


def tell(line: str) -> None:
    """Print a line on stderr, for who runs the benchmark."""
    print(line, file=sys.stderr)


def clear(path: Path) -> None:
    """Make the folder of a file that will be written, and forget the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file of a benchmark."""
    path.unlink()


def environment(**more: str) -> dict[str, str]:
    """Give the variables of this process, with others."""
    return {**os.environ, **more}
