"""How far steps are from what `planner validate` measured of them on GPUs."""

from collections.abc import Iterator

import numpy as np

from validate.accuracy_kernels import Score, summary
from validate.compare import Comparison, compare, rankings
from validate.measured import read_measured

HARDWARE = "h100-sxm"
MODES = {"graph": "CUDA graph", "eager": "eager", "compile": "compiled"}


def score(text: str, own: str) -> list[Score]:
    """Compare runs on 2 x H100 with what the planner says, a way to launch a line.

    Parameters
    ----------
    text : lines of results. own : the profile of the machine kind, fitted to other work than this.
    """
    rows = read_measured(text, "plans.jsonl")
    usual = compare(rows, HARDWARE)
    known = compare(rows, HARDWARE, own)
    return [*_modes(usual), *_calibrated(known), *_choices(usual, known)]


def _modes(found: list[Comparison]) -> Iterator[Score]:
    for mode, words in MODES.items():
        errors = [one.step_error for one in found if one.measured.case.mode == mode]
        yield summary((f"steps run on 2 x H100, {words}",), np.array(errors))
    yield summary(("peak memory of these",), np.array([one.memory_error for one in found]))


def _calibrated(found: list[Comparison]) -> Iterator[Score]:
    errors = [one.step_error for one in found]
    yield summary(("steps run on 2 x H100, with its profile",), np.array(errors))


def _choices(usual: list[Comparison], known: list[Comparison]) -> Iterator[Score]:
    for found, words in ((usual, ""), (known, ", with its profile")):
        regrets = [ranking.regret for ranking in rankings(found)]
        yield summary((f"time lost by the planner's choice{words}",), np.array(regrets))
