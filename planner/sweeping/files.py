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
from topology.base import InputError, locked_folder, write_whole

DIGEST_FILE: Final = "sweep.txt"
"""File that says of which sweep the folder is."""


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    """Say in one line what the system refuses."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--output: {path}: {error.strerror}") from None


def write(path: Path, rows: bytes) -> None:
    """Write all rows.

    Raises `InputError` if they cannot be written.
    """
    with _output_errors(path):
        write_whole(path, rows)


def keep(folder: Path, name: str, rows: Sequence[Row]) -> None:
    """Keep the rows of a portion."""
    with _output_errors(folder):
        document = {"sha256": _row_digest(rows), "rows": rows}
        write_whole(folder / f"{name}.json", json.dumps(document, allow_nan=False))


def _row_digest(rows: Sequence[Row]) -> str:
    """Sum up rows, so that those that somebody has altered are not taken for what was found."""
    return hashlib.sha256(json.dumps(rows, allow_nan=False).encode()).hexdigest()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder that is there; raises InputError if another sweep does."""
    with locked_folder(
        folder, f"--resume: {folder} is in use by another, wanted one sweep at a time"
    ):
        yield


def taken_up(asked: Questions, folder: Path) -> dict[str, list[Row]]:
    """Read the portions that an earlier run has finished; make the folder where there is none."""
    question_file = folder / DIGEST_FILE
    if not folder.exists():
        with _output_errors(folder):
            folder.mkdir()
            write_whole(question_file, asked.digest)
        return {}
    if not question_file.is_file() or question_file.read_bytes().strip() != asked.digest.encode():
        raise InputError(f"--resume: {folder} is of another sweep: remove it, or ask the same")
    names = {portion.name for portion in asked.portions()}
    stored_rows = {
        path.stem: _stored_rows(path) for path in folder.glob("*.json") if path.stem in names
    }
    return {name: rows for name, rows in stored_rows.items() if rows}


def _stored_rows(path: Path) -> list[Row]:
    """Read the rows of a portion; none of one that is damaged or altered, which is done again."""
    try:
        document = json.loads(path.read_bytes()) if path.is_file() else {}  # a pipe never ends
        rows: list[Row] = document["rows"]
        return rows if document["sha256"] == _row_digest(rows) else []
    except (OSError, ValueError, RecursionError, TypeError, LookupError):
        return []


def remove(folder: Path) -> None:
    """Remove what was kept of a sweep that is written."""
    shutil.rmtree(folder, ignore_errors=True)
