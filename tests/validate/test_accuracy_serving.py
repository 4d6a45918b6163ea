"""What clients see under load, beside measured runs: within their bounds and their intervals."""

from importlib.resources import files

import numpy as np
import pytest

from validate.accuracy.serving import groups, held, read_figures, regrets, runs

TEXT = files("validate").joinpath("data", "serving_figures.csv").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def served():
    """Measured runs, and what is predicted of them."""
    return runs(read_figures(TEXT))


@pytest.fixture(scope="module")
def errors(served):
    """Relative errors of TPOT, TTFT and tokens/s, by whether their runs were in a fit."""
    found = {}
    for words, row in groups(served).items():
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


def test_two_in_three_runs_are_within_their_intervals(served):
    assert all(0.55 < np.mean(hits) < 0.8 for hits in held(served).values())


def test_the_choice_of_a_plan_and_its_load_loses_little(served):
    lost = regrets(served)

    assert len(lost) > 10
    assert np.mean(lost) < 0.02
