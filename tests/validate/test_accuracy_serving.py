"""What clients see under load, beside measured runs: within their bounds and their intervals."""

from importlib.resources import files

import numpy as np
import pytest

from validate.accuracy.serving import (
    ServingFigure,
    groups,
    interval_hits,
    read_figures,
    regrets,
    runs,
)

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
    assert all(0.55 < np.mean(hits) < 0.8 for hits in interval_hits(served).values())


def test_the_choice_of_a_plan_and_its_load_loses_little(served):
    lost = regrets(served)

    assert len(lost) > 10
    assert np.mean(lost) < 0.02


@pytest.mark.parametrize(
    ("hardware", "precision", "plan", "concurrency", "ttft_s"),
    [
        ("h200-sxm", "fp8", "single", 4, 0.17583),
        ("h200-sxm", "fp8", "tp2", 8, 0.14047),
        ("h200-sxm", "fp8", "tp8", 8, 0.08494),
        ("b200", "nvfp4", "tp8", 4, 0.05835),
    ],
)
def test_first_tokens_of_tensorrt_llm_come_as_they_are_made(
    hardware, precision, plan, concurrency, ttft_s
):
    """aiconfigurator-core's benchmark sample (Apache-2.0): Llama-3.1-70B, answers of 8192 tokens,
    which its server handed over one by one."""
    figure = ServingFigure(
        engine="tensorrt-llm", model="llama-3.1-70b", hardware=hardware, precision=precision,
        plan=plan, input_tokens=1024, output_tokens=8192, concurrency=concurrency, ttft_s=ttft_s,
        tpot_s=1.0, fitted="no", source="aiconfigurator-core",
    )  # fmt: skip

    assert figure.predicted().ttft.mean == pytest.approx(ttft_s, rel=0.2)
