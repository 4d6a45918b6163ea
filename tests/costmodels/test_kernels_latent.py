"""Latent attention: laws of its time, expanded and absorbed, and of products of a head."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.formats import SERVING
from costmodels.kernels import (
    head_product_time,
    latent_context_time,
    latent_decode_time,
    matmul_time,
)
from costmodels.kernels.latent import ROW
from costmodels.kernels.parameters import LatentContextParameters, LatentDecodeParameters
from costmodels.kernels.tables import shipped_records
from topology.catalogue import all_devices

DEVICES = all_devices()
H100 = DEVICES["h100-sxm"]
SLACK = 1 + 1e-9

gpus = st.sampled_from(list(DEVICES.values()))
engines = st.sampled_from(["", *SERVING])
caches = st.sampled_from(["bf16", "fp8"])
heads = st.sampled_from([1, 2, 8, 16, 64, 128])
lengths = st.integers(1, 60000)
batches = st.integers(1, 512)


@given(
    device=gpus,
    engine=engines,
    cache=caches,
    shape=st.tuples(heads, lengths, batches),
    which=st.integers(0, 2),
)
def test_more_decoding_never_takes_less_time(device, engine, cache, shape, which):
    longer = list(shape)
    longer[which] += 1 + longer[which] // 7

    small, large = (
        latent_decode_time(h, keys, device, batch=b, kv_precision=cache, engine=engine)
        for h, keys, b in (shape, longer)
    )

    assert 0 < small <= large * SLACK


@given(
    device=gpus,
    engine=engines,
    cache=caches,
    shape=st.tuples(heads, lengths, st.integers(1, 64)),
    which=st.integers(0, 2),
)
def test_more_prompts_never_take_less_time(device, engine, cache, shape, which):
    longer = list(shape)
    longer[which] += 1 + longer[which] // 7

    small, large = (
        latent_context_time(h, n, n, device, batch=b, kv_precision=cache, engine=engine)
        for h, n, b in (shape, longer)
    )

    assert 0 < small <= large * SLACK


@given(device=gpus, engine=engines, cache=caches, shape=st.tuples(heads, lengths, batches))
def test_decoding_keeps_the_promises_of_the_data_sheet(device, engine, cache, shape):
    h, keys, batch = shape
    half = "bf16" if device.peak("bf16") else "fp16"

    time = latent_decode_time(h, keys, device, batch=batch, kv_precision=cache, engine=engine)

    row = ROW[0] * (1 if cache == "fp8" else 2)
    assert time >= batch * keys * row / device.memory_bandwidth.value / SLACK
    assert time >= 2 * batch * h * keys * sum(ROW) / device.peak(half).value / SLACK


@given(device=gpus, engine=engines, h=heads, queries=lengths, more=st.integers(0, 60000))
def test_prompts_keep_the_promises_of_the_data_sheet(device, engine, h, queries, more):
    half = "bf16" if device.peak("bf16") else "fp16"

    time = latent_context_time(h, queries, queries + more, device, engine=engine)

    pairs = queries * (more + (queries + 1) / 2)
    assert time >= 2 * h * pairs * (192 + 128) / device.peak(half).value / SLACK


@given(counts=st.lists(lengths, min_size=1, max_size=4), cache=caches, engine=engines)
def test_arrays_are_priced_as_their_numbers(counts, cache, engine):
    options = {"kv_precision": cache, "engine": engine}
    for time in (
        lambda n: latent_decode_time(16, n, H100, batch=32, **options),
        lambda n: latent_context_time(16, n, n, H100, **options),
        lambda n: head_product_time(n, 512, 128, 16, H100, engine=engine),
    ):
        together = time(np.array(counts))
        assert together == pytest.approx(np.array([time(one) for one in counts]), rel=1e-12)


@pytest.mark.parametrize(("name", "least", "most"), [("h100-sxm", 1.0, 1.5), ("h20", 3.0, 9.0)])
def test_few_heads_wait_for_memory_and_many_for_multiplying(name, least, most):
    """128 heads multiply a row 242 times a byte: H100 does 295 in that time, H20 37."""
    device = DEVICES[name]
    one, every = (latent_decode_time(h, 8192, device, batch=128) for h in (1, 128))

    read = 128 * 8192 * ROW[0] * 2 / device.memory_bandwidth.value
    assert one < 1.5 * read
    assert least < every / one < most


def test_a_cache_of_bytes_pays_where_memory_is_waited_for():
    wide, thin = (
        latent_decode_time(1, 32768, H100, batch=64, kv_precision=cache, engine="tensorrt-llm")
        for cache in ("bf16", "fp8")
    )

    assert thin < 0.7 * wide


def test_products_of_heads_are_near_those_of_a_batch():
    own = head_product_time(4096, 512, 128, 128, H100)

    assert own == pytest.approx(matmul_time(4096, 512, 128, H100, batch=128), rel=0.4)


@pytest.mark.parametrize("form", [LatentContextParameters, LatentDecodeParameters])
def test_every_engine_falls_back_on_the_usual_one(form):
    table = shipped_records(form)
    for title in table:
        name, _, rest = title.partition(".")
        if rest:
            engine, _, generation = rest.rpartition("-")
            assert engine in SERVING
            assert f"{name}-{generation}" in table
