"""What is kept of a sweep until it is done: a folder with a file for each chunk."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from planner.sweeping.chunk import Row
from planner.sweeping.grid import Grid
from topology.base import InputError, write_whole


def keep(folder: Path, name: str, rows: Sequence[Row]) -> None:
    """Keep the rows of a chunk."""
    write_whole(folder / f"{name}.json", json.dumps(rows, allow_nan=False))


def taken_up(grid: Grid, folder: Path) -> dict[str, list[Row]]:
    """Read the chunks that an earlier run has finished; make the folder where there is none."""
    about = folder / "sweep.txt"
    if not folder.exists():
        folder.mkdir()
        write_whole(about, grid.digest)
        return {}
    if not about.is_file() or about.read_text("utf-8").strip() != grid.digest:
        raise InputError(f"--resume: {folder} is of another sweep: remove it, or ask the same")
    names = {chunk.name for chunk in grid.chunks()}
    return {
        path.stem: json.loads(path.read_text("utf-8"))
        for path in folder.glob("*.json")
        if path.stem in names
    }


def remove(folder: Path) -> None:
    """Remove what was kept of a sweep that is written."""
    shutil.rmtree(folder, ignore_errors=True)
