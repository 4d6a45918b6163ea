"""What no kernel model may break, on every GPU of the catalogue."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.formats import FORMATS
from costmodels.kernels import (
    attention_basis,
    attention_time,
    chain_time,
    matmul_basis,
    matmul_time,
    pointwise_basis,
    pointwise_time,
)
from costmodels.kernels.attention import KERNELS
from costmodels.kernels.tables import KernelCalibration, attention_record
from topology.base import InputError
from topology.catalogue import all_devices

DEVICES = list(all_devices().values())
H100, A100, B200 = (all_devices()[name] for name in ("h100-sxm", "a100-sxm-80gb", "b200"))
SLACK = 1 + 1e-9

gpus = st.sampled_from(DEVICES)
sizes = st.integers(1, 20000)
heads = st.integers(1, 64)
tokens = st.integers(1, 60000)
head_dims = st.sampled_from([64, 72, 80, 96, 104, 128, 256])


def half(device):
    return "bf16" if device.peak("bf16") else "fp16"


def kernels(device):
    return [name for name in KERNELS if works(device, name)]


def works(device, kernel, precision=None):
    try:
        attention_time(1, 1, 1, 64, device, kernel=kernel, precision=precision or half(device))
    except InputError:
        return False
    return True


@given(device=gpus, m=sizes, n=sizes, k=sizes, batch=st.integers(1, 64), which=st.integers(0, 3))
def test_a_larger_product_never_takes_less_time(device, m, n, k, batch, which):
    shape, longer = [m, n, k, batch], [m, n, k, batch]
    longer[which] += 1 + longer[which] // 7

    small, large = (
        matmul_time(*s[:3], device, precision=half(device), batch=s[3]) for s in (shape, longer)
    )

    assert 0 < small <= large * SLACK


@given(device=gpus, m=sizes, n=sizes, k=sizes, batch=st.integers(1, 64), data=st.data())
def test_a_product_keeps_the_promises_of_the_data_sheet(device, m, n, k, batch, data):
    precision = data.draw(st.sampled_from([*quantised(device), half(device)]))
    form = FORMATS[precision]
    peak = device.peak(form.multiplied or half(device)).value

    time = matmul_time(m, n, k, device, precision=precision, batch=batch)

    moved = batch * (form.inputs * m * k + form.weights * k * n + 2 * m * n)
    assert time >= 2 * m * n * k * batch / peak / SLACK
    assert time >= moved / device.memory_bandwidth.value / SLACK


@given(device=gpus, shape=st.tuples(sizes, sizes, sizes), which=st.integers(0, 2), data=st.data())
def test_a_larger_quantised_product_never_takes_less_time(device, shape, which, data):
    """Whoever's kernels they are."""
    precision = data.draw(st.sampled_from(sorted(quantised(device))))
    engine = data.draw(st.sampled_from(["", "tensorrt-llm", "vllm", "sglang-llm", "xdit"]))
    longer = list(shape)
    longer[which] += 1 + longer[which] // 7

    small, large = (
        matmul_time(*s, device, precision=precision, engine=engine) for s in (shape, longer)
    )

    assert 0 < small <= large * SLACK


def quantised(device):
    return {name for name in FORMATS if name not in ("bf16", "fp16") and multiplies(device, name)}


def multiplies(device, precision):
    try:
        matmul_time(1, 1, 1, device, precision=precision)
    except InputError:
        return False
    return True


@given(device=gpus, m=st.integers(8192, 65536), n=st.integers(4096, 65536))
def test_eight_bits_pay_in_large_products_where_the_gpu_multiplies_them_faster(device, m, n):
    """Scaling and rounding the inputs grows with two of the sizes, the product with three."""
    if device.peak("fp8"):
        fp8, bf16 = (matmul_time(m, n, 8192, device, precision=p) for p in ("fp8", "bf16"))

        assert fp8 <= bf16 * SLACK


@given(device=gpus, n=st.integers(4096, 65536), k=st.integers(4096, 65536))
def test_weights_of_four_bits_pay_where_memory_is_what_is_waited_for(device, n, k):
    int4, plain = (matmul_time(1, n, k, device, precision=p) for p in ("int4", half(device)))

    assert int4 <= plain


@given(device=gpus, m=sizes, n=sizes, k=sizes)
def test_a_long_run_is_never_faster_than_a_short_one(device, m, n, k):
    short, long = (
        matmul_time(m, n, k, device, precision=half(device), sustained=s) for s in (False, True)
    )

    assert short <= long * SLACK


@given(
    device=gpus,
    shape=st.tuples(heads, tokens, tokens, st.integers(1, 16)),
    head_dim=head_dims,
    causal=st.booleans(),
    which=st.integers(0, 3),
    data=st.data(),
)
def test_more_attention_never_takes_less_time(device, shape, head_dim, causal, which, data):
    kernel = data.draw(st.sampled_from(kernels(device)))
    longer = list(shape)
    longer[which] += 1 + longer[which] // 7

    small, large = (
        attention_time(
            h, q, k, head_dim, device,
            batch=b, causal=causal, kernel=kernel, precision=half(device),
        )
        for h, q, k, b in (shape, longer)
    )  # fmt: skip

    assert 0 < small <= large * SLACK


@given(device=gpus, h=heads, n=tokens, head_dim=head_dims, data=st.data())
def test_self_attention_grows_with_its_sequence(device, h, n, head_dim, data):
    kernel = data.draw(st.sampled_from(kernels(device)))
    causal = data.draw(st.booleans())

    small, large = (
        attention_time(
            h, t, t, head_dim, device, causal=causal, kernel=kernel, precision=half(device)
        )
        for t in (n, n + 1 + n // 9)
    )

    assert small <= large * SLACK


@given(device=gpus, h=heads, q=tokens, k=tokens, head_dim=head_dims, data=st.data())
def test_a_mask_never_costs(device, h, q, k, head_dim, data):
    kernel = data.draw(st.sampled_from(sorted(set(kernels(device)) - {"engine"})))

    full, causal = (
        attention_time(h, q, k, head_dim, device, causal=c, kernel=kernel, precision=half(device))
        for c in (False, True)
    )
    window = attention_time(
        h, q, k, head_dim, device, causal=True, kernel=kernel, precision=half(device), window=128
    )

    assert window <= causal * SLACK
    assert causal <= full * SLACK


@given(device=gpus, h=heads, q=tokens, k=tokens, head_dim=head_dims, data=st.data())
def test_attention_keeps_the_promises_of_the_data_sheet(device, h, q, k, head_dim, data):
    kernel = data.draw(st.sampled_from(sorted(set(kernels(device)) - {"sage", "sage2"})))

    time = attention_time(h, q, k, head_dim, device, kernel=kernel, precision=half(device))

    assert time >= 4 * h * q * k * head_dim / device.peak(half(device)).value / SLACK
    assert time >= 2 * h * head_dim * (2 * q + 2 * k) / device.memory_bandwidth.value / SLACK


@given(device=gpus, h=heads, q=tokens, k=tokens, head_dim=head_dims, causal=st.booleans())
def test_eight_bit_attention_is_never_slower(device, h, q, k, head_dim, causal):
    if works(device, "auto", "fp8"):
        fp8, bf16 = (
            attention_time(h, q, k, head_dim, device, causal=causal, precision=p)
            for p in ("fp8", "bf16")
        )

        assert fp8 <= bf16 * SLACK


@given(device=gpus, h=st.integers(1, 8), group=st.integers(2, 8), k=tokens, batch=heads)
def test_sharing_keys_never_costs(device, h, group, k, batch):
    """Decoding: one query, all of it memory."""
    alone, shared = (
        attention_time(
            h * group, 1, k, 128, device, batch=batch, kv_heads=g, precision=half(device)
        )
        for g in (h * group, h)
    )

    assert shared <= alone * SLACK


@given(device=gpus, small=st.floats(0, 1e11), large=st.floats(0, 1e11))
def test_more_bytes_never_take_less_time(device, small, large):
    small, large = sorted([small, large])

    times = pointwise_time(np.array([small, large]), device)

    assert 0 < times[0] <= times[1]
    assert times[1] >= large / device.memory_bandwidth.value


@given(gpus, st.floats(1e3, 1e10), st.floats(1, 10), st.floats(1, 30), st.integers(1, 40))
def test_a_chain_of_kernels_is_between_its_ends_and_all_of_memory(
    device, once, growth, traffic, kernels
):
    """It reads and writes its inputs and outputs at least, and never gets faster with more."""
    time = chain_time(once, traffic, kernels, device)
    separate = kernels * pointwise_time(once * traffic / kernels, device)

    assert kernels * pointwise_time(once / kernels, device) <= time * SLACK
    assert time <= separate * SLACK
    assert time <= chain_time(once * growth, traffic, kernels, device) * SLACK
    assert time <= chain_time(once, traffic * growth, kernels, device) * SLACK


def test_tensors_that_fit_in_the_cache_are_handed_on_in_it():
    """96 MiB on L40S, 40 on A100, whose gain nobody has measured."""
    l40s = all_devices()["l40s"]

    assert chain_time(50e6, 10, 10, l40s) < 0.6 * 10 * pointwise_time(50e6, l40s)
    assert chain_time(250e6, 10, 10, l40s) == 10 * pointwise_time(250e6, l40s)
    assert chain_time(50e6, 1, 1, l40s) == pointwise_time(50e6, l40s)
    assert chain_time(10e6, 10, 10, A100) == 10 * pointwise_time(10e6, A100)


def test_kernels_that_are_slow_on_fast_memory_wait_for_slow_memory():
    """Casts: 2.1 TB/s on H200, as many cycles on A100, and the pace of GDDR on L40."""
    once, cycles = 400e6, 1.0

    def took(name):
        device = all_devices()[name]
        alone = chain_time(once, 4.0, 8.0, device)
        own = chain_time(once, 4.0, 8.0, device, cycles=cycles) - alone
        return own * device.multiprocessors.value * device.clock.value / once, own

    assert took("h200-sxm")[0] == pytest.approx(1.0)
    assert took("a100-sxm-80gb")[0] == pytest.approx(1.0)
    cycles_l40, seconds = took("l40")
    assert cycles_l40 > 3
    assert seconds == pytest.approx(7.4 * once / (0.9 * 810e9), rel=0.01)


def test_arrays_are_many_numbers():
    for device in DEVICES:
        m = np.array([1, 17, 512, 4097, 30000])
        n = np.array([[256], [5120]])
        precision = half(device)

        products = matmul_time(m, n, 4096, device, precision=precision)
        calls = attention_time(n // 128, m, 2 * m, 128, device, causal=True, precision=precision)

        for i, j in np.ndindex(2, 5):
            one, rows = int(n[i, 0]), int(m[j])
            alone = attention_time(
                one // 128, rows, 2 * rows, 128, device, causal=True, precision=precision
            )
            assert isinstance(alone, float), device.name
            assert calls[i, j] == pytest.approx(alone, rel=1e-12), device.name
            assert products[i, j] == pytest.approx(
                matmul_time(rows, one, 4096, device, precision=precision), rel=1e-12
            ), device.name
        many = matmul_time(np.tile(m, 300), n, 4096, device, precision=precision)
        assert np.array_equal(many, np.tile(products, 300)), device.name
        assert pointwise_time(m * 1e6, device).shape == m.shape, device.name


def test_every_gpu_has_its_common_kernels():
    for device in DEVICES:
        assert {"auto", "engine"} <= set(kernels(device)), device.name
        assert matmul_basis(device, half(device)) <= Basis.ASSUMED, device.name
        assert attention_basis(device, half(device)) <= Basis.ASSUMED, device.name
        assert pointwise_basis(device) <= Basis.ASSUMED, device.name


def test_decoding_reads_its_cache_at_the_pace_of_memory():
    """64 x 8 heads of 8192 keys and values of 128: 2.1 GB, at about 3 of 3.35 TB/s."""
    time = attention_time(32, 1, 8192, 128, H100, batch=64, kv_heads=8)

    cache = 64 * 8 * 8192 * 128 * 2 * 2
    assert cache / 3.35e12 < time < 1.3 * cache / 3.35e12


@pytest.mark.parametrize(
    ("device", "shape", "seconds"),
    [
        (A100, (1, 2048, 65536), 164.693e-6),
        (A100, (16, 6144, 65536), 519.178e-6),
        (H100, (16, 51200, 6144), 228.88e-6),
        (H100, (14, 7168, 65536), 326.494e-6),
    ],
)
def test_a_long_stream_of_weights_reaches_what_was_measured(device, shape, seconds):
    """aiconfigurator-core's gemm tables: TensorRT-LLM and SGLang, which nothing was fitted to."""
    assert matmul_time(*shape, device) == pytest.approx(seconds, rel=0.06)


def test_few_heads_leave_multiprocessors_idle():
    """One head of 4096 queries is 32 tiles for 132 multiprocessors."""
    one, four = (attention_time(h, 4096, 4096, 128, H100) for h in (1, 4))

    assert four < 1.3 * one


def test_keys_that_fill_no_last_block_cost_a_share():
    """The kernel looks for their end at every step; others stay as they are, masked work too."""
    h100 = all_devices()["h100-sxm"]
    known = replace(attention_record("cudnn", h100, None), ragged=0.1)
    calibration = KernelCalibration(identity="ragged", attention=(("cudnn", known),))

    def longer(keys, *, causal=False):
        usual, slower = (
            attention_time(24, 4096, keys, 128, h100, kernel="cudnn", causal=causal, calibration=c)
            for c in (None, calibration)
        )
        return slower / usual

    assert longer(16384) == 1.0
    assert longer(16380) == pytest.approx(1.1, abs=0.005)
    assert longer(16380, causal=True) < 1.001


def test_a_head_size_without_a_kernel_is_padded():
    same = [attention_time(24, 8192, 8192, d, H100, kernel="trtllm") for d in (72, 80, 128)]

    assert same[0] == pytest.approx(same[1], rel=0.01) == pytest.approx(same[2], rel=0.05)


def test_what_was_measured_is_better_known():
    assert matmul_basis(H100, m=4096, n=4096, k=4096) is Basis.CALIBRATED
    assert matmul_basis(H100, "fp8", m=4096, n=4096, k=4096) is Basis.CALIBRATED
    assert matmul_basis(H100, "int4", m=4096) is Basis.ASSUMED
    assert matmul_basis(all_devices()["l40s"], m=np.array([1, 4096])) is Basis.DATASHEET
    assert matmul_basis(H100, m=np.array([1, 10**6])) is Basis.ASSUMED
    assert attention_basis(H100, kernel="engine", head_dim=128) is Basis.CALIBRATED
    assert attention_basis(all_devices()["gb300"], kernel="cudnn") is Basis.DATASHEET
    assert attention_basis(H100, kernel="fa2", keys=10**6) is Basis.ASSUMED
    assert pointwise_basis(all_devices()["gb200"]) is Basis.CALIBRATED


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: matmul_time(1, 1, 1, A100, precision="fp8"),
            "a100-sxm-80gb has no tensor cores for 'fp8': it has bf16, fp16, int8",
        ),
        (
            lambda: attention_time(1, 1, 1, 64, A100, kernel="fa3"),
            "a100-sxm-80gb has no bf16 attention 'fa3': it has fa2, trtllm, xformers, sage",
        ),
        (
            lambda: attention_time(1, 1, 1, 64, B200, kernel="flash"),
            "unknown attention kernel 'flash': did you mean fa4 or fa3 or fa2?",
        ),
        (
            lambda: attention_time(1, 1, 1, 64, H100, precision="int8"),
            "unknown attention precision 'int8': expected one of bf16, fp16, fp8",
        ),
    ],
)
def test_what_a_gpu_cannot_do_is_said(call, message):
    with pytest.raises(InputError) as error:
        call()

    assert str(error.value) == message
