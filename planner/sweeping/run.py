"""Runs a sweep portion by portion, on this machine or a Dask cluster, and keeps what is done."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from planner.scenario.scenario import resolve
from planner.sweeping.executors import Done, Executor
from planner.sweeping.files import alone, keep, taken_up
from planner.sweeping.portion import Row
from planner.sweeping.questions import Portion, Questions
from planner.sweeping.rows import Rows
from topology.base import InputError, ModelError, format_seconds

QUIET_S: Final = 2.0
"""Seconds between two lines of progress, and before the first."""

Tell = Callable[[str], None]


def run(asked: Questions, executor: Executor, tell: Tell) -> Rows:
    """Answer a sweep; nothing is kept of one that is stopped.

    Raises `InputError` if a name or a size cannot be right.
    """
    check(asked)
    return _joined(asked, dict(_told(executor(asked.portions()), len(asked.portions()), tell)))


def run_kept(asked: Questions, executor: Executor, tell: Tell, folder: Path) -> Rows:
    """Answer a sweep, and keep every portion that is done in a folder, from which it can go on.

    Raises `InputError` if a name or a size cannot be right, or the folder is of another sweep, or
    in use by one.
    """
    check(asked)
    done = taken_up(asked, folder)
    left = [portion for portion in asked.portions() if portion.name not in done]
    with alone(folder):
        if done:
            tell(f"{len(done)} of {len(asked.portions())} portions were done before")
        for name, rows in _told(executor(left), len(left), tell):
            keep(folder, name, rows)
            done[name] = rows
    return _joined(asked, done)


def check(asked: Questions) -> None:
    """Look up every name and size of a sweep before the first portion starts.

    Raises `InputError` if one cannot be right.
    """
    for portion in (portion for portion in asked.portions() if portion.gpus == asked.gpus[0]):
        for place, sizes in enumerate(portion.sizes()):
            for hardware in asked.hardware if not place else asked.hardware[:1]:
                _resolve(portion, hardware, sizes)


def _resolve(portion: Portion, hardware: str, sizes: Mapping[str, int]) -> None:
    try:
        resolve(portion.request(hardware, sizes))
    except InputError:
        raise
    except ModelError:
        return  # so many GPUs there are not: its rows will say so


def _told(done: Iterator[Done], count: int, tell: Tell) -> Iterator[Done]:
    """Say now and then how many portions are done, and how long the others may take."""
    begun = said = time.monotonic()
    for number, one in enumerate(done, 1):
        yield one
        now = time.monotonic()
        if now - said >= QUIET_S and number < count:
            left = (now - begun) / number * (count - number)
            tell(f"{number} of {count} portions done, about {format_seconds(left)} left")
            said = now


def _joined(asked: Questions, done: Mapping[str, list[Row]]) -> Rows:
    return Rows(tuple(row for portion in asked.portions() for row in done[portion.name]))
