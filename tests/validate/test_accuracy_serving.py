"""What clients see under load, beside measured runs: within their bounds and their intervals."""

from importlib.resources import files

import numpy as np
import pytest

import planner
from validate.accuracy.serving import groups, read_figures

TEXT = files("validate").joinpath("data", "serving_figures.csv").read_text(encoding="utf-8")
FIGURES = read_figures(TEXT)
NAMES = ("hardware", "precision", "engine", "plan", "input_tokens", "output_tokens", "concurrency")


@pytest.fixture(scope="module")
def errors():
    """Relative errors of TPOT, TTFT and tokens/s, by whether their runs were in a fit."""
    found = {}
    for words, row in groups(FIGURES).items():
        name = words.removeprefix("serving ").partition(",")[0]
        found.setdefault((name, words.endswith("in no fit")), []).extend(row)
    return found


@pytest.mark.parametrize(
    ("name", "unseen", "bound"),
    [
        ("TPOT", False, 0.07),
        ("TPOT", True, 0.12),
        ("tokens/s", False, 0.07),
        ("tokens/s", True, 0.12),
        ("TTFT", False, 0.33),
        ("TTFT", True, 0.40),
    ],
)
def test_runs_under_load_are_as_far_off_as_is_wanted_at_most(errors, name, unseen, bound):
    assert np.median(np.abs(errors[name, unseen])) < bound


def test_two_in_three_runs_are_within_their_intervals():
    within = {"ttft": [], "tpot": [], "tokens_per_s": []}
    for figure in FIGURES:
        asked = {name: getattr(figure, name) for name in NAMES}
        serving = planner.estimate(figure.model, **asked).to_dict()["serving"]
        measured = (figure.ttft_s, figure.tpot_s, figure.tokens_per_s)
        names = ("ttft_interval_s", "tpot_interval_s", "tokens_per_s_interval")
        for row, value, name in zip(within.values(), measured, names, strict=True):
            low, high = serving[name]
            row.append(low <= value <= high)

    assert all(0.55 < np.mean(row) < 0.8 for row in within.values())
