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
    return _joined_rows(
        asked, dict(_with_progress(executor(asked.portions()), len(asked.portions()), tell))
    )


def run_kept(asked: Questions, executor: Executor, tell: Tell, folder: Path) -> Rows:
    """Answer a sweep, and keep every portion that is done in a folder, from which it can go on.

    Raises `InputError` if a name or a size cannot be right, or the folder is of another sweep, or
    in use by one.
    """
    check(asked)
    finished = taken_up(asked, folder)
    portions_left = [portion for portion in asked.portions() if portion.name not in finished]
    with alone(folder):
        if finished:
            tell(f"{len(finished)} of {len(asked.portions())} portions were done before")
        for name, rows in _with_progress(executor(portions_left), len(portions_left), tell):
            keep(folder, name, rows)
            finished[name] = rows
    return _joined_rows(asked, finished)


def check(asked: Questions) -> None:
    """Look up every name and size of a sweep before the first portion starts.

    Raises `InputError` if one cannot be right.
    """
    for portion in (portion for portion in asked.portions() if portion.gpus == asked.gpus[0]):
        for place, sizes in enumerate(portion.sizes()):
            for hardware in asked.hardware if not place else asked.hardware[:1]:
                _check_request(portion, hardware, sizes)


def _check_request(portion: Portion, hardware: str, sizes: Mapping[str, int]) -> None:
    try:
        resolve(portion.request(hardware, sizes))
    except InputError:
        raise
    except ModelError:
        return  # so many GPUs there are not: its rows will say so


def _with_progress(done: Iterator[Done], count: int, tell: Tell) -> Iterator[Done]:
    """Say now and then how many portions are done, and how long the others may take."""
    start_s = last_told_s = time.monotonic()
    for number, portion_rows in enumerate(done, 1):
        yield portion_rows
        now_s = time.monotonic()
        if now_s - last_told_s >= QUIET_S and number < count:
            seconds_left = (now_s - start_s) / number * (count - number)
            tell(f"{number} of {count} portions done, about {format_seconds(seconds_left)} left")
            last_told_s = now_s


def _joined_rows(asked: Questions, done: Mapping[str, list[Row]]) -> Rows:
    return Rows(tuple(row for portion in asked.portions() for row in done[portion.name]))
