"""Entries of the catalogue that engines are made of, and a benchmark run to its end, with a log."""

import subprocess
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


def run(argv: Sequence[str], log: Path) -> tuple[int, str]:
    """Run a command to its end, with what it prints in a log; give its code, and what it printed.

    It is of this process's group, and ends with it.
    """
    with log.open("wb") as file:
        process = subprocess.run(  # noqa: S603  # the caller's own command
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def clear(path: Path) -> None:
    """Make the folder of a file that will be written, and forget the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
