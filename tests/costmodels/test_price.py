"""One operation, one price: the kernel and collective models with the right sizes in them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.collectives import collective_time
from costmodels.kernels import attention_time, matmul_time, pointwise_time
from costmodels.price import FoundPrices, Target, cached_price, price
from costmodels.program import (
    Attention,
    Collective,
    Convolve,
    Depthwise,
    LinearAttention,
    Matmul,
    Part,
    Pointwise,
    Rearrange,
    SendReceive,
    Span,
    Tensor,
    Weight,
)
from costmodels.tables import profile_for, runtime
from topology.base import InputError
from topology.catalogue import all_devices, all_hardware, find_hardware

NODE = find_hardware("h100-sxm")
H100 = NODE.device
TARGET = Target(
    device=H100,
    fabrics={"tp": NODE.fabric(8), "ring": NODE.fabric(4)},
    runtime=runtime("tensorrt"),
    graph_mixing=False,
)


def product(rows=4096, columns=8192, **more):
    weight = Weight(**{"name": "w", "rows": (Part(4096),), "columns": (Part(columns),), **more})
    x = Tensor("x", (1, rows, 4096))
    return Matmul(x=x, weight=weight, out=Tensor("y", (1, rows, weight.local_columns)))


def attention(queries=4096, keys=4096, heads=24, **more):
    q, k = Tensor("q", (2, queries, heads * 128)), Tensor("k", (2, keys, heads * 128))
    spans = (Span("image", queries),), (Span("image", keys),)
    given_ = {"heads": heads, "key_value_heads": heads, "size": 128, **more}
    return Attention(q=q, k=k, v=k, out=q, query_spans=spans[0], key_spans=spans[1], **given_)


def test_a_product_is_as_large_as_this_rank_holds():
    whole = price(product(split="columns", degree=8), TARGET)

    assert whole.kind == "gemm"
    assert whole.kernels == 1
    assert whole.seconds == matmul_time(
        4096, 8192 / 8, 4096, H100, precision="bf16", batch=1, sustained=True
    )


def test_a_weight_says_how_it_is_multiplied():
    fp8, plain = (price(product(precision=name), TARGET).seconds for name in ("fp8", ""))

    assert fp8 < plain == price(product(precision="bf16"), TARGET).seconds
    assert product(precision="int4").weight.bytes == 4096 * 8192 * 0.52


def test_attention_is_one_kernel():
    found = price(attention(key_value_heads=8), TARGET)

    assert found.kind == "attention"
    assert found.seconds == attention_time(
        24, 4096, 4096, 128, H100, batch=2, kv_heads=8, precision="bf16", sustained=True
    )


def test_half_the_pairs_cost_about_half():
    """A step of a causal ring sees every query, and half the keys."""
    whole, half = (price(attention(16384, 16384, pairs=p), TARGET).seconds for p in (1.0, 0.5))

    assert half == pytest.approx(whole / 2, rel=0.1)


def test_a_window_bounds_the_keys():
    """Keys that no query of these sees are neither read nor multiplied."""
    windowed = price(attention(1024, 65536, window=1024, causal=True), TARGET).seconds

    assert windowed == price(attention(1024, 2047, window=1024, causal=True), TARGET).seconds
    assert windowed < price(attention(1024, 2047), TARGET).seconds
    assert price(attention(1, 4096, window=128, causal=True), TARGET).seconds == (
        price(attention(1, 128), TARGET).seconds
    )


def test_a_prompt_with_a_window_is_work_of_rows_times_window():
    """Twice the rows are twice the work, and not four times as much; so they are in length."""
    short, long, whole = (
        price(attention(rows, rows, window=window, causal=True), TARGET).seconds
        for rows, window in ((32768, 1024), (65536, 1024), (65536, 0))
    )

    assert long == pytest.approx(2 * short, rel=0.1)
    assert long < whole / 10
    wide = price(attention(2048, 2048, window=2048, causal=True), TARGET).seconds
    assert wide == price(attention(2048, 2048, causal=True), TARGET).seconds


@pytest.mark.parametrize("name", ["tensorrt", "torch-compile", "torch-eager"])
def test_row_wise_work_costs_what_the_runtime_moves(name):
    x = Tensor("x", (1, 4096, 3072))
    op = Pointwise(function="norm", inputs=(x,), outputs=(x,))
    fusion = runtime(name).fusion("norm")
    found = price(op, replace(TARGET, runtime=runtime(name)))

    moved = 2 * 4096 * 3072 * 2 * fusion.traffic
    each = pointwise_time(moved / fusion.kernels, H100)
    assert found.kernels == fusion.kernels
    assert found.seconds == pytest.approx(fusion.kernels * each)


def test_a_view_is_free_and_a_copy_is_not():
    x = Tensor("x", (1, 4096, 3072))
    view = Rearrange(move="split_rows", inputs=(x,), outputs=(x,), view=True)
    copy = Rearrange(move="concat_rows", inputs=(x,), outputs=(x,))

    assert price(view, TARGET).seconds == 0
    assert price(view, TARGET).kernels == 0
    assert price(copy, TARGET).seconds == pointwise_time(2 * 4096 * 3072 * 2, H100)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_collective_runs_on_the_links_of_its_axis(kind):
    small, large = Tensor("x", (1, 2**20)), Tensor("y", (8, 2**20))
    op = Collective(kind=kind, x=small, out=large, axis="tp", degree=8)
    found = price(op, TARGET)

    assert (found.kind, found.calls, found.kernels) == ("communication", 1, 0)
    assert found.seconds == collective_time(kind, 8.0 * 2**20 * 2, NODE.fabric(8))


def test_a_send_goes_to_a_neighbour():
    x = Tensor("x", (1, 2**20))
    op = SendReceive(x=x, out=x, axis="ring", degree=4)

    assert price(op, TARGET).seconds == collective_time("send_recv", 2.0 * 2**20, NODE.fabric(4))


def test_an_algorithm_is_asked_for_where_it_serves():
    """A ring all-reduce can be had, a ring all-to-all cannot: that one stays with NCCL."""
    asked = replace(TARGET, algorithm="nvls")
    x = Tensor("x", (8, 2**20))
    for kind, algorithm in (("all_reduce", "nvls"), ("all_to_all", "auto")):
        op = Collective(kind=kind, x=x, out=x, axis="tp", degree=8)
        want = collective_time(kind, 8.0 * 2**20 * 2, NODE.fabric(8), algorithm=algorithm)
        assert price(op, asked).seconds == want


def test_what_eager_decoders_do_besides_comes_after_their_products():
    """By hand on an H100 SXM: 132 multiprocessors at 1980 MHz, 989.4 TFLOP/s."""
    eager = price(Convolve(name="vae", flop=1e15, traffic=1.0, eager=500), TARGET).seconds
    compiled = price(Convolve(name="vae", flop=1e15, traffic=1.0), TARGET).seconds
    assert eager == pytest.approx(1e15 / 989.4e12 + 1e15 / (132 * 1.98e9 * 500), rel=0.01)
    assert eager > compiled


def test_passes_of_eager_decoders_come_after_their_products_at_the_pace_of_memory():
    moved = price(Convolve(name="vae", flop=1e15, traffic=1.0, passes=3.35e12), TARGET).seconds
    assert moved == pytest.approx(1e15 / 989.4e12 + 1.0, rel=0.01)


def test_a_decoder_in_eager_code_is_not_taken_for_the_compiled_one_that_was_priced_before():
    prices = FoundPrices()
    compiled, eager = Convolve(name="vae", flop=1e15, traffic=1.0), {"eager": 500, "passes": 1e12}
    known = cached_price(compiled, TARGET, prices).seconds
    for name, value in eager.items():
        assert cached_price(replace(compiled, **{name: value}), TARGET, prices).seconds != known


def test_convolutions_are_bound_by_arithmetic_or_memory():
    heavy = price(Convolve(name="vae", flop=1e15, traffic=1.0), TARGET).seconds
    wide = price(Convolve(name="vae", flop=1.0, traffic=3.35e12), TARGET).seconds

    assert heavy >= 1e15 / H100.peak("bf16").value
    assert wide == pytest.approx(1.0)


# PyTorch 2.11 with CUDA 13.0 on an H100 SXM, bf16, 70 heads of 32 and 11200 features, us
SANA_KERNELS = {
    ("torch-eager", 16384): (1228, 594, 1037),
    ("torch-eager", 4096): (328, 161, 265),
    ("torch-eager", 1024): (88, 45, 66),
    ("torch-compile", 16384): (728, 342, 503),
    ("torch-compile", 4096): (196, 96, 129),
    ("torch-compile", 1024): (40, 26, 37),
}


@pytest.mark.parametrize(("name", "rows"), SANA_KERNELS)
def test_linear_attention_and_depthwise_convolutions_take_what_they_took(name, rows):
    target = replace(TARGET, runtime=runtime(name))
    x, key = Tensor("x", (1, rows, 11200)), Tensor("k", (1, rows, 2240))
    state = Tensor("s", (1, 70, 32, 33), 4)
    heads = {"heads": 70, "size": 32}
    ops = (
        LinearAttention(part="sum", inputs=(key, key), out=state, **heads),
        LinearAttention(part="read", inputs=(key, state), out=key, **heads),
        replace(OPS["depthwise"](rows), x=x, out=x),
    )

    close = 0.15 if rows >= 4096 else 0.45  # what lies in the L2 is not streamed
    for op, took in zip(ops, SANA_KERNELS[name, rows], strict=True):
        assert price(op, target).seconds * 1e6 == pytest.approx(took, rel=close)


def test_without_units_for_a_precision_there_is_no_price():
    v100 = all_devices()["v100-sxm"]
    with pytest.raises(InputError, match="v100-sxm has no tensor cores"):
        price(product(precision="bf16"), replace(TARGET, device=v100))


OPS = {
    "product": lambda rows: product(rows=rows),
    "attention": lambda rows: attention(queries=rows, keys=rows),
    "pointwise": lambda rows: Pointwise(
        function="norm", inputs=(Tensor("x", (rows, 512)),), outputs=(Tensor("y", (rows, 512)),)
    ),
    "copy": lambda rows: Rearrange(
        move="concat_rows", inputs=(Tensor("x", (rows, 512)),), outputs=(Tensor("y", (rows, 512)),)
    ),
    "all_to_all": lambda rows: Collective(
        kind="all_to_all",
        x=Tensor("x", (8, rows, 512)),
        out=Tensor("y", (8, rows, 512)),
        axis="tp",
        degree=8,
    ),
    "sums": lambda rows: LinearAttention(
        part="sum",
        inputs=(Tensor("k", (1, rows, 256)), Tensor("v", (1, rows, 256))),
        out=Tensor("s", (1, 8, 32, 33), 4),
        heads=8,
        size=32,
    ),
    "depthwise": lambda rows: Depthwise(
        x=Tensor("x", (1, rows, 512)),
        weight=Weight(name="kernels", rows=(Part(9),), columns=(Part(512),)),
        out=Tensor("y", (1, rows, 512)),
        span=Span("image", rows),
        line=32,
    ),
    "send": lambda rows: SendReceive(
        x=Tensor("x", (rows, 512)), out=Tensor("y", (rows, 512)), axis="ring", degree=4
    ),
}


@pytest.mark.parametrize("make", OPS.values(), ids=OPS)
@given(rows=st.lists(st.integers(1, 2**17), min_size=1, max_size=4))
def test_arrays_of_sizes_cost_what_each_costs(make, rows):
    together = price(make(np.array(rows)), TARGET).seconds

    apart = [float(price(make(one), TARGET).seconds) for one in rows]
    assert np.asarray(together) == pytest.approx(np.array(apart), rel=1e-12)


@pytest.mark.parametrize("make", OPS.values(), ids=OPS)
@given(one=st.integers(1, 2**12), factor=st.integers(2, 64))
def test_twice_the_rows_or_more_never_cost_less(make, one, factor):
    """Rows in whole tiles, so that no ragged edge is compared with an even one."""
    few, many = (float(price(make(64 * rows), TARGET).seconds) for rows in (one, one * factor))

    assert 0 < few <= many * (1 + 1e-9)


@pytest.mark.parametrize("make", OPS.values(), ids=OPS)
def test_every_gpu_has_a_price_for_every_operation(make):
    for name in sorted(all_hardware()):
        node = find_hardware(name)
        fabrics = {"tp": node.fabric(8), "ring": node.fabric(4)}
        target = replace(TARGET, device=node.device, fabrics=fabrics)

        found = price(make(4096), target)
        assert 0 < float(found.seconds) < 60, name
        assert isinstance(found.basis, Basis), name


@pytest.mark.parametrize(
    ("part", "op"),
    [
        ("matmul", product(rows=2**18)),
        ("attention", OPS["attention"](2**20)),
    ],
)
def test_the_range_of_a_profile_binds_its_own_parts_alone(part, op):
    """A shipped record goes beyond the sizes that it was fitted to; a measured one does not."""
    profile = profile_for("h100-sxm", "h100-sxm-x2-2026-11-28")
    without = () if part == "attention" else None
    kernels = replace(profile.kernels, identity=f"without {part}", **{part: without})

    assert price(op, replace(TARGET, profile=profile)).basis > Basis.CALIBRATED
    rest = replace(TARGET, profile=replace(profile, kernels=kernels))
    assert price(op, rest).basis == price(op, TARGET).basis == Basis.CALIBRATED


WINDOWED = (
    # GPU, engine, cache, batch, tokens, heads, key-value heads, size, us
    ("h100-sxm", "vllm", "bf16", 4, 12288, 40, 1, 64, 558.8),
    ("h100-sxm", "tensorrt-llm", "bf16", 2, 12288, 24, 2, 64, 388.0),
    ("b200", "vllm", "bf16", 2, 10240, 16, 8, 128, 168.4),
    ("b200", "tensorrt-llm", "fp8", 1, 16384, 40, 8, 64, 267.2),
    ("b200", "tensorrt-llm", "fp8", 4, 10240, 32, 4, 64, 499.4),
)
"""Attention of engines over prompts with a window of 128 tokens, as AIConfigurator's tables
(`context_attention`, Apache-2.0) have it: vLLM 0.24.0, TensorRT-LLM 1.3.0rc20."""


def test_attention_with_a_window_takes_what_was_measured_of_engines():
    errors, whole = [], []
    for gpu, engine, cache, batch, tokens, heads, shared, size, us in WINDOWED:
        for window, found in ((127, errors), (0, whole)):
            seconds = attention_time(
                heads, tokens, tokens, size, all_devices()[gpu], batch=batch, kv_heads=shared,
                causal=True, kernel="engine", engine=engine, kv_precision=cache, window=window,
                sustained=True,
            )  # fmt: skip
            found.append(abs(seconds * 1e6 / us - 1))

    assert max(errors) < 0.5
    assert all(np.less(errors, whole))
    assert sorted(whole)[len(whole) // 2] > 1.0
