"""How far steps are from what `planner validate` measured of them on GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from validate.accuracy.kernels import Score, summary
from validate.plans.compare import Comparison, compare, rankings
from validate.plans.measured import read_measured

MODES: Final = {"graph": "CUDA graph", "eager": "eager", "compile": "compiled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine that plans were run on, with a profile that is fitted to other work.

    Examples
    --------
    >>> one = Machine(words="2 x H100", hardware="h100-sxm", gpus=2, date="2026-11-28")
    >>> one.folder, one.profile
    ('2026-11-28-h100-sxm-x2', 'h100-sxm-x2-2026-11-28')
    """

    words: str
    hardware: str
    gpus: int
    date: str

    @property
    def folder(self) -> str:
        """Folder of `validate/data` that holds its results."""
        return f"{self.date}-{self.hardware}-x{self.gpus}"

    @property
    def profile(self) -> str:
        """Name of its profile, of kernels and collectives alone."""
        return f"{self.hardware}-x{self.gpus}-{self.date}"


MACHINES: Final = (
    Machine(words="2 x H100", hardware="h100-sxm", gpus=2, date="2026-11-28"),
    Machine(words="2 x H200", hardware="h200-sxm", gpus=2, date="2026-11-28"),
)


def score(text: str, machine: Machine) -> list[Score]:
    """Compare runs on a machine with what the planner says, a way to launch a line.

    Parameters
    ----------
    text : lines of results; those that ran out of memory or were wrong do not count.
    """
    rows = [row for row in read_measured(text, machine.folder) if row.status == "done"]
    usual = compare(rows, machine.hardware)
    known = compare(rows, machine.hardware, machine.profile)
    return [
        *_modes(usual, machine.words),
        *_calibrated(known, machine.words),
        *_choices(usual, machine.words),
        *_choices(known, f"{machine.words}, with its profile"),
    ]


def _modes(found: list[Comparison], where: str) -> Iterator[Score]:
    for mode, words in MODES.items():
        errors = [one.step_error for one in found if one.measured.case.mode == mode]
        yield summary((f"steps run on {where}, {words}",), np.array(errors))
    memory = np.array([one.memory_error for one in found])
    yield summary((f"peak memory on {where}",), memory)


def _calibrated(found: list[Comparison], where: str) -> Iterator[Score]:
    errors = [one.step_error for one in found]
    yield summary((f"steps run on {where}, with its profile",), np.array(errors))


def _choices(found: list[Comparison], where: str) -> Iterator[Score]:
    regrets = [ranking.regret for ranking in rankings(found)]
    yield summary((f"time lost by the planner's choice on {where}",), np.array(regrets))
