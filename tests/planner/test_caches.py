"""Caches of features: steps that take the change of layers from a step before."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.request.request import Request
from planner.request.workload import Reuse
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from validate.reference.proof import prove
from validate.reference.run import run_plan
from validate.reference.small import shrink


def _latency(cache: str, plan: str = "single", gpus: int = 1) -> float:
    estimate = planner.estimate("flux.1-dev", gpus=gpus, plan=plan, steps=28, cache=cache)
    return estimate.stages_s["denoise"]


def test_a_step_that_is_skipped_costs_next_to_nothing_and_its_first_layers_where_they_run() -> None:
    whole, half = _latency(""), _latency("skip=0.5")
    assert half == pytest.approx(whole / 2, rel=0.02)
    skipped = round(28 * 0.393)  # as cache-dit counted them
    first = whole * (28 - skipped) / 28 + skipped * whole / 28 / 57
    assert _latency("cache-dit=0.08") == pytest.approx(first, rel=0.03)


def test_the_share_of_steps_lies_between_thresholds_and_is_known_for_no_others() -> None:
    assert _latency("teacache=0.25") > _latency("teacache=0.3") > _latency("teacache=0.4")
    with pytest.raises(planner.InputError, match=r"wanted 0.25 to 0.8"):
        _latency("teacache=0.9")
    with pytest.raises(planner.InputError, match="not for z-image"):
        planner.estimate("z-image", cache="cache-dit")
    with pytest.raises(planner.InputError, match="did you mean teacache"):
        _latency("teecache=0.2")
    with pytest.raises(planner.InputError, match="wanted a share, 0 or more and less than 1"):
        _latency("skip=1")


@pytest.mark.parametrize(("plan", "layers"), [("cfg2.ulysses2", 1), ("tp2", 0)])
def test_split_steps_reuse_what_unsplit_ones_do(plan: str, layers: int) -> None:
    scenario = resolve(Request(model="qwen-image", gpus=2))
    workload = replace(scenario.workload, reuse=Reuse("skip=0.5", 0.5, layers))
    assert prove(scenario.model, workload, parse_plan(plan)).ok


def test_a_skipped_step_is_another_result_but_nearer_than_none() -> None:
    single = parse_plan("single")
    scenario = resolve(Request(model="flux.1-dev"))
    small, twice = shrink(scenario.model, scenario.workload, single)
    once, reused = replace(twice, steps=1), replace(twice, reuse=Reuse("skip=0.5", 0.5))
    first, other, right = (run_plan(small, work, single)[0] for work in (once, reused, twice))
    assert 1e-6 < np.linalg.norm(other - right) < np.linalg.norm(first - right)
