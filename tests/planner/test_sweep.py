"""A sweep gives every request what it gets alone."""

from dataclasses import replace

import numpy as np
import pytest
from generators import asked
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.search.batched import sizes, sweep
from planner.search.evaluate import evaluate
from planner.search.plans import objections, plans
from planner.strategies import parse_plan

SIDE = np.array([256, 512, 1024, 528])


def swept(name, every, height=SIDE, steps=20, **more):
    scenario = asked(name, every[0].gpus, **more)
    frames = scenario.model.defaults.frames
    work = sizes(scenario.model, scenario.workload, height, 512, frames, steps)
    return scenario, work, sweep(replace(scenario, workload=work), every)


def alone(scenario, work, plan, place):
    """Latency and memory of one request of a sweep, or NaN where it is illegal."""

    def one(value):
        return int(np.asarray(value)[place]) if np.ndim(value) else value

    single = replace(
        work,
        tokens=tuple((name, one(value)) for name, value in work.tokens),
        steps=one(work.steps),
        pixels=one(work.pixels),
        frames=one(work.frames),
        line=one(work.line),
    )
    if any(objections(scenario.model, single, plan, plan.gpus)):
        return np.nan, np.nan
    found = evaluate(replace(scenario, workload=single), plan)
    return found.latency_s, found.memory_bytes


@pytest.mark.parametrize("name", ["flux.1-dev", "wan2.1-14b", "cosmos3-nano", "sd3.5-large"])
@pytest.mark.parametrize("runtime", ["tensorrt", "torch-compile"])
def test_columns_are_what_each_request_gets_alone(name, runtime):
    texts = (
        "tp4",
        "ulysses4",
        "ring4",
        "allgather_kv4",
        "cfg2.ulysses2",
        "ring2.tp2",
        "dp4",
        "pp4",
    )
    every = [parse_plan(text) for text in texts]
    scenario, work, found = swept(name, every, runtime=runtime)

    for row, plan in enumerate(every):
        for column in range(SIDE.size):
            latency, held = alone(scenario, work, plan, column)
            assert found.latency_s[row, column] == pytest.approx(latency, rel=1e-9, nan_ok=True)
            assert found.memory_bytes[row, column] == pytest.approx(held, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("hardware", ["h100-sxm", "l40s"])
def test_replicas_of_plans_that_were_priced_have_the_columns_that_they_have_by_themselves(hardware):
    known = {}
    for gpus in (8, 4):
        every = list(plans(asked("flux.1-dev").model, gpus))
        scenario, work, by_itself = swept("flux.1-dev", every, hardware=hardware)
        found = sweep(replace(scenario, workload=work), every, replicas=known)

        np.testing.assert_array_equal(found.latency_s, by_itself.latency_s)
        np.testing.assert_array_equal(found.memory_bytes, by_itself.memory_bytes)
    assert all(plan.degree("dp") == 1 for plan in known) == (hardware == "h100-sxm")


def test_illegal_requests_are_holes_in_both_tables():
    """528 x 512 pixels are 33 x 32 tokens, which do not divide by 64."""
    _, _, found = swept("flux.1-dev", [parse_plan("ring64")])

    assert list(np.isnan(found.latency_s[0])) == [False, False, False, True]
    assert np.array_equal(np.isnan(found.latency_s), np.isnan(found.memory_bytes))


def test_a_plan_that_no_request_can_use_is_a_row_of_holes():
    _, _, found = swept("flux.1-dev", [parse_plan("cfg2"), parse_plan("ulysses2")])

    assert np.isnan(found.latency_s[0]).all()
    assert not np.isnan(found.latency_s[1]).any()


@given(steps=st.lists(st.integers(1, 100), min_size=1, max_size=5))
@settings(max_examples=10)
def test_steps_may_be_the_array(steps):
    _, _, found = swept("flux.1-dev", [parse_plan("ulysses2")], height=512, steps=np.array(steps))

    order = np.argsort(steps, kind="stable")
    assert found.latency_s.shape == (1, len(steps))
    assert np.all(np.diff(found.latency_s[0][order]) >= 0)


def test_every_plan_of_eight_gpus_has_a_row():
    every = list(plans(asked("flux.1-dev").model, 8))
    _, _, found = swept("flux.1-dev", every)

    assert found.plans == tuple(every)
    assert found.latency_s.shape == found.memory_bytes.shape == (len(every), SIDE.size)
    assert np.isfinite(found.latency_s).sum() > len(every)
