"""What runs of engines read and write: the catalogue, cases, rows, complaints, the environment."""

import os
import sys
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
    """Read a file of text."""
    return path.read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    """Write a file of text anew."""
    path.write_text(text, encoding="utf-8")


def append(path: Path, line: str) -> None:
    """Add a line to a file at once, so that what follows cannot lose it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def lines(path: Path) -> int:
    """Count the lines of a file; none where there is no file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def tell(line: str) -> None:
    """Say something to who runs this."""
    print(line, file=sys.stderr)


def remove(path: Path) -> None:
    """Remove a file."""
    path.unlink()


def environment(**more: str) -> dict[str, str]:
    """Give the variables of this process, with others."""
    return {**os.environ, **more}
