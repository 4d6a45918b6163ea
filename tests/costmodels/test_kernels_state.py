"""Layers that keep a state: laws of their convolutions, passes over prompts and updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.formats import SERVING
from costmodels.kernels.parameters import (
    StateConvolutionParameters,
    StateScanParameters,
    StateUpdateParameters,
)
from costmodels.kernels.state import convolution_time, scan_time, update_time
from costmodels.kernels.tables import shipped_records
from topology.catalogue import all_devices

DEVICES = all_devices()
H100 = DEVICES["h100-sxm"]
SLACK = 1 + 1e-9

gpus = st.sampled_from(list(DEVICES.values()))
engines = st.sampled_from(["", *SERVING])
rules = st.sampled_from(["delta", "ssd"])
tokens = st.integers(1, 100000)
batches = st.integers(1, 512)
heads = st.integers(1, 128)


def longer(shape, which):
    more = list(shape)
    more[which] += 1 + more[which] // 7
    return more


@given(
    device=gpus, engine=engines, rule=rules, shape=st.tuples(tokens, heads, batches),
    which=st.integers(0, 2),
)  # fmt: skip
def test_a_longer_pass_never_takes_less_time(device, engine, rule, shape, which):
    small, large = (
        scan_time(n, h, 384 * h, device, rule=rule, batch=b, engine=engine)
        for n, h, b in (shape, longer(shape, which))
    )

    assert 0 < small <= large * SLACK


@given(
    device=gpus, engine=engines, new=st.booleans(), shape=st.tuples(tokens, heads, batches),
    which=st.integers(0, 2),
)  # fmt: skip
def test_a_longer_convolution_never_takes_less_time(device, engine, new, shape, which):
    small, large = (
        convolution_time(n, 384 * h, device, batch=b, new=new, engine=engine)
        for n, h, b in (shape, longer(shape, which))
    )

    assert 0 < small <= large * SLACK


@given(device=gpus, engine=engines, shape=st.tuples(heads, batches), which=st.integers(0, 1))
def test_a_larger_update_never_takes_less_time(device, engine, shape, which):
    small, large = (
        update_time(h, device, batch=b, engine=engine) for h, b in (shape, longer(shape, which))
    )

    assert 0 < small <= large * SLACK


@given(device=gpus, engine=engines, rule=rules, n=tokens, h=heads, b=batches)
def test_no_kernel_beats_the_data_sheet(device, engine, rule, n, h, b):
    bandwidth = device.memory_bandwidth.value
    peak = device.peak("bf16" if device.peak("bf16") else "fp16").value
    kept, rows = 2 * 4 * b * h * 128**2, 2 * b * n * 384 * h

    scanned = scan_time(n, h, 384 * h, device, rule=rule, batch=b, engine=engine)
    convolved = convolution_time(n, 384 * h, device, batch=b, engine=engine)
    updated = update_time(h, device, batch=b, engine=engine)

    assert scanned >= (kept + rows) / bandwidth / SLACK
    assert scanned >= 4 * b * n * h * 128**2 / peak / SLACK
    assert convolved >= 2 * rows / bandwidth / SLACK
    assert updated >= kept / bandwidth / SLACK


@given(counts=st.lists(tokens, min_size=1, max_size=4), rule=rules, engine=engines)
def test_arrays_are_priced_as_their_numbers(counts, rule, engine):
    for time in (
        lambda n: scan_time(n, 16, 8192, H100, rule=rule, engine=engine),
        lambda n: convolution_time(n, 8192, H100, engine=engine),
        lambda n: update_time(16, H100, batch=n, engine=engine),
    ):
        together = time(np.array(counts))
        assert together == pytest.approx(np.array([time(one) for one in counts]), rel=1e-12)


def test_a_prompt_alone_waits_for_its_chunks():
    """One head follows its chunks; as many as multiprocessors run side by side."""
    one, many = (scan_time(65536, h, 384 * h, H100, engine="vllm") for h in (1, 128))

    assert many < 2 * one


def test_faster_memory_does_not_speed_up_what_multiprocessors_pull():
    """H200 has H100's multiprocessors, and an L40S more of them than its memory feeds."""
    shapes = {convolution_time: (8192, 8192), scan_time: (65536, 128, 49152)}
    for priced, shape in shapes.items():
        here, faster = (
            priced(*shape, DEVICES[name], batch=16) for name in ("h100-sxm", "h200-sxm")
        )
        assert faster == pytest.approx(here)
    slow, fast = (
        convolution_time(8192, 8192, DEVICES[n], batch=16) for n in ("l40s", "rtx-pro-6000")
    )
    ratio = DEVICES["rtx-pro-6000"].memory_bandwidth.value / DEVICES["l40s"].memory_bandwidth.value
    assert slow / fast == pytest.approx(ratio, rel=0.05)


def test_multiprocessors_pull_alike_on_all_generations():
    found = shipped_records(StateConvolutionParameters)
    for generation in ("ampere", "hopper", "blackwell"):
        assert 8 < found[f"conv-{generation}"].cycle_bytes < 12


def test_a_state_of_half_the_bytes_is_updated_in_half_the_time():
    wide, thin = (update_time(64, H100, batch=512, state_bytes=size) for size in (4.0, 2.0))

    assert thin == pytest.approx(wide / 2, rel=0.05)


@pytest.mark.parametrize(
    "form", [StateConvolutionParameters, StateScanParameters, StateUpdateParameters]
)
def test_every_engine_falls_back_on_all_of_them(form):
    table = shipped_records(form)
    for title in table:
        name, _, rest = title.partition(".")
        if rest:
            engine, _, generation = rest.rpartition("-")
            assert engine in (*SERVING, "planner")
            assert f"{name}-{generation}" in table
