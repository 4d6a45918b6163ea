"""A sweep gives every request what it gets alone."""

from dataclasses import replace

import numpy as np
import pytest
from generators import asked
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels import price
from planner.search.batched import Programs, sizes, sweep
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


def test_plans_that_share_programs_and_prices_have_the_columns_that_they_have_by_themselves():
    """Whatever was found before, on other hardware and numbers of GPUs."""
    programs, on = Programs(), {}
    for hardware, gpus in (("h100-sxm", 4), ("l40s", 4), ("l40s", 8), ("h100-sxm", 2)):
        every = list(plans(asked("flux.1-dev").model, gpus))
        scenario, work, _ = swept("flux.1-dev", every[:1], hardware=hardware)
        scenario = replace(scenario.on(gpus), workload=work)
        columns = on.setdefault(hardware, programs.on_hardware())
        found = sweep(scenario, every, programs, columns)
        for row in range(0, len(every), 7):
            by_itself = sweep(scenario, [every[row]])
            np.testing.assert_array_equal(found.latency_s[row], by_itself.latency_s[0])
            np.testing.assert_array_equal(found.memory_bytes[row], by_itself.memory_bytes[0])
    assert all(plan.degree("dp") == 1 for plan, _ in programs.lowered)
    for hardware, columns in on.items():
        kinds = {(plan, work) for plan, work, _ in columns.found}
        assert (len(kinds) < len(columns.found)) == (hardware == "l40s")  # replicas share PCIe


def test_which_operations_are_alike_is_found_once_for_all_hardware(monkeypatch):
    programs, looked_at, content = Programs(), [], price.content_of
    monkeypatch.setattr(price, "content_of", lambda op: looked_at.append(op) or content(op))
    every = [parse_plan(text) for text in ("tp4", "ulysses2.ring2")]
    for hardware in ("h100-sxm", "l40s"):
        scenario, work, _ = swept("flux.1-dev", every, hardware=hardware)
        looked_at.clear()
        sweep(replace(scenario, workload=work), every, programs, programs.on_hardware())
        assert bool(looked_at) == (hardware == "h100-sxm")


def test_many_requests_are_priced_in_one_go_as_in_parts():
    sides, programs = 16 * np.arange(16, 316), Programs()
    every = [parse_plan(text) for text in ("pp4", "ring4", "dp2.tp2")]
    scenario, work, found = swept("flux.1-dev", every, sides)
    sweep(replace(scenario, workload=work), every, programs)
    parts = [swept("flux.1-dev", every, side)[2].latency_s for side in np.array_split(sides, 3)]

    np.testing.assert_allclose(found.latency_s, np.concatenate(parts, axis=-1), rtol=1e-12)
    assert len(programs.lowered) == len(every)


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
