"""What is kept of a sweep until it is done: a folder with a file for each portion."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from planner.sweeping.portion import Row
from planner.sweeping.questions import Questions
from topology.base import InputError, held, write_whole

ABOUT: Final = "sweep.txt"
"""File that says of which sweep the folder is."""


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Say in one line what the system refuses."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--output: {path}: {error.strerror}") from None


def write(path: Path, rows: bytes) -> None:
    """Write all rows.

    Raises `InputError` if they cannot be written.
    """
    with _said(path):
        write_whole(path, rows)


def keep(folder: Path, name: str, rows: Sequence[Row]) -> None:
    """Keep the rows of a portion."""
    with _said(folder):
        kept = {"sha256": _sum(rows), "rows": rows}
        write_whole(folder / f"{name}.json", json.dumps(kept, allow_nan=False))


def _sum(rows: Sequence[Row]) -> str:
    """Sum up rows, so that those that somebody has altered are not taken for what was found."""
    return hashlib.sha256(json.dumps(rows, allow_nan=False).encode()).hexdigest()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder that is there; raises InputError if another sweep does."""
    with held(folder, f"--resume: {folder} is in use by another, wanted one sweep at a time"):
        yield


def taken_up(asked: Questions, folder: Path) -> dict[str, list[Row]]:
    """Read the portions that an earlier run has finished; make the folder where there is none."""
    about = folder / ABOUT
    if not folder.exists():
        with _said(folder):
            folder.mkdir()
            write_whole(about, asked.digest)
        return {}
    if not about.is_file() or about.read_bytes().strip() != asked.digest.encode():
        raise InputError(f"--resume: {folder} is of another sweep: remove it, or ask the same")
    names = {portion.name for portion in asked.portions()}
    kept = {path.stem: _rows(path) for path in folder.glob("*.json") if path.stem in names}
    return {name: rows for name, rows in kept.items() if rows}


def _rows(path: Path) -> list[Row]:
    """Read the rows of a portion; none of one that is damaged or altered, which is done again."""
    try:
        kept = json.loads(path.read_bytes()) if path.is_file() else {}  # a pipe never ends
        rows: list[Row] = kept["rows"]
        return rows if kept["sha256"] == _sum(rows) else []
    except (OSError, ValueError, RecursionError, TypeError, LookupError):
        return []


def remove(folder: Path) -> None:
    """Remove what was kept of a sweep that is written."""
    shutil.rmtree(folder, ignore_errors=True)
