"""Runs a sweep chunk by chunk, on this machine or a Dask cluster, and keeps what is done."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from planner.scenario.scenario import resolve
from planner.sweeping.chunk import Row
from planner.sweeping.executors import Done, Executor
from planner.sweeping.files import keep, taken_up
from planner.sweeping.grid import Chunk, Grid
from planner.sweeping.rows import Rows
from topology.base import InputError, ModelError, format_seconds

QUIET_S: Final = 2.0
"""Seconds between two lines of progress, and before the first."""

Tell = Callable[[str], None]


def run(grid: Grid, executor: Executor, tell: Tell) -> Rows:
    """Answer a sweep; nothing is kept of one that is stopped.

    Raises
    ------
    InputError
        If a name or a size cannot be right.
    """
    check(grid)
    return _joined(grid, dict(_told(executor(grid.chunks()), len(grid.chunks()), tell)))


def run_kept(grid: Grid, executor: Executor, tell: Tell, folder: Path) -> Rows:
    """Answer a sweep, and keep every chunk that is done in a folder, from which it can go on.

    Raises
    ------
    InputError
        If a name or a size cannot be right, or the folder is of another sweep.
    """
    check(grid)
    done = taken_up(grid, folder)
    left = [chunk for chunk in grid.chunks() if chunk.name not in done]
    if done:
        tell(f"{len(done)} of {len(grid.chunks())} chunks were done before")
    for name, rows in _told(executor(left), len(left), tell):
        keep(folder, name, rows)
        done[name] = rows
    return _joined(grid, done)


def check(grid: Grid) -> None:
    """Look up every name and size of a sweep before the first chunk starts.

    Raises
    ------
    InputError
        If one cannot be right.
    """
    for chunk in (chunk for chunk in grid.chunks() if chunk.gpus == grid.gpus[0]):
        for place, sizes in enumerate(chunk.sizes()):
            for hardware in grid.hardware if not place else grid.hardware[:1]:
                _resolve(chunk, hardware, sizes)


def _resolve(chunk: Chunk, hardware: str, sizes: Mapping[str, int]) -> None:
    try:
        resolve(chunk.request(hardware, sizes))
    except InputError:
        raise
    except ModelError:
        return  # so many GPUs there are not: its rows will say so


def _told(done: Iterator[Done], count: int, tell: Tell) -> Iterator[Done]:
    """Say now and then how many chunks are done, and how long the others may take."""
    begun = said = time.monotonic()
    for number, one in enumerate(done, 1):
        yield one
        now = time.monotonic()
        if now - said >= QUIET_S and number < count:
            left = (now - begun) / number * (count - number)
            tell(f"{number} of {count} chunks done, about {format_seconds(left)} left")
            said = now


def _joined(grid: Grid, done: Mapping[str, list[Row]]) -> Rows:
    return Rows(tuple(row for chunk in grid.chunks() for row in done[chunk.name]))
