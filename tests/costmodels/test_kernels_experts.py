"""Layers of experts: laws of their time, and what the busiest rank has to multiply."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.expert_routing import Routing, expert_loads, routing_of
from costmodels.formats import FORMATS, SERVING
from costmodels.kernels import experts_time
from costmodels.kernels.expert_loads import HEIGHTS, load
from costmodels.kernels.experts import served_as
from costmodels.kernels.parameters import ExpertsParameters
from costmodels.kernels.tables import shipped_records
from costmodels.price import Target, price
from costmodels.program import Matmul, Part, Tensor, Weight
from costmodels.runtime import Runtime
from costmodels.tables import runtimes
from topology.base import InputError
from topology.catalogue import all_devices

DEVICES = all_devices()
H100 = DEVICES["h100-sxm"]
SLACK = 1 + 1e-9

gpus = st.sampled_from(list(DEVICES.values()))
engines = st.sampled_from(["", *SERVING])
tokens = st.integers(1, 20000)
ways = st.sampled_from(["balanced", "uniform", "power_law", "power_law_1.01"])
layers = st.sampled_from([(4096, 1536, 128, 8), (7168, 2048, 256, 8), (4096, 14336, 8, 2)])


def formats(device):
    return [name for name in FORMATS if works(device, name)]


def works(device, name):
    try:
        experts_time(1, 1024, 1024, Routing(experts=8, top_k=2), device, precision=name)
    except InputError:
        return False
    return True


def priced(count, layer, device, *, way="balanced", ep=1, **options):
    hidden, inner, experts, top_k = layer
    routing = routing_of(way, experts, top_k)
    return experts_time(count, hidden, inner, routing, device, ep=ep, **options)


@given(
    device=gpus, engine=engines, layer=layers, way=st.sampled_from(["balanced", "uniform"]),
    count=tokens, ep=st.sampled_from([1, 4, 8]),
)  # fmt: skip
def test_more_tokens_never_take_less_time(device, engine, layer, way, count, ep):
    """Of a power law that is not so: its exponent is that of benchmarks, which deal the popularity
    of experts out anew for each number of tokens, and the busiest rank may then have fewer."""
    time = partial(priced, layer=layer, device=device, way=way, ep=ep, engine=engine)
    time = partial(time, precision=formats(device)[0])

    assert 0 < time(count) <= time(count + 1 + count // 7) * SLACK


@given(device=gpus, engine=engines, layer=layers, way=ways, count=tokens, data=st.data())
def test_a_layer_keeps_the_promises_of_the_data_sheet(device, engine, layer, way, count, data):
    precision = data.draw(st.sampled_from(formats(device)))
    form, (hidden, inner, experts, top_k) = FORMATS[precision], layer
    half = "bf16" if device.peak("bf16") else "fp16"
    one = load(np.array(float(count)), routing_of(way, experts, top_k))

    time = priced(count, layer, device, way=way, engine=engine, precision=precision)

    weights = one.touched * 3 * hidden * inner * form.weights
    flop = one.rows * 6 * hidden * inner
    assert time >= weights / device.memory_bandwidth.value / SLACK
    assert time >= flop / device.peak(form.multiplied or half).value / SLACK


@given(way=ways, layer=layers, counts=st.lists(tokens, min_size=1, max_size=5))
def test_arrays_are_priced_as_their_numbers(way, layer, counts):
    together = priced(np.array(counts), layer, H100, way=way, ep=4)

    apart = [priced(one, layer, H100, way=way, ep=4) for one in counts]
    assert together == pytest.approx(np.array(apart), rel=1e-9)


@given(layer=layers, count=tokens, way=ways, ep=st.sampled_from([1, 2, 8]))
def test_a_rank_touches_no_more_experts_than_it_has_nor_than_it_has_rows(layer, count, way, ep):
    _, _, experts, top_k = layer
    one = load(np.array(float(count)), routing_of(way, experts, top_k), ep)

    assert 0 < one.touched <= min(experts // ep, one.rows) * SLACK
    assert one.rows >= count * top_k / ep / SLACK
    assert np.all(np.diff(one.tiles) <= 1e-9)  # higher tiles, fewer of them
    assert np.all(one.tiles * HEIGHTS >= one.rows / SLACK)


def test_chance_touches_the_experts_that_a_textbook_says():
    one = load(np.array([1.0, 32.0, 1000.0]), routing_of("uniform", 128, 8))

    wanted = 128 * (1 - (1 - 8 / 128) ** np.array([1.0, 32.0, 1000.0]))
    assert one.touched == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("tokens", [8, 64, 256])
def test_popular_experts_draw_their_tokens_as_a_router_that_is_simulated(tokens):
    """Each token takes 4 different experts of 128; benchmarks of kernels deal them out evenly."""
    law = routing_of("power_law", 128, 4)
    shares = expert_loads(float(tokens), law) / (4.0 * tokens)
    random = np.random.default_rng(0)
    drawn = [
        [random.choice(128, 4, replace=False, p=shares) for _ in range(tokens)] for _ in range(20)
    ]

    touched = load(float(tokens), replace(law, chance=True)).touched
    assert touched == pytest.approx(np.mean([np.unique(one).size for one in drawn]), rel=0.04)
    assert touched < 0.9 * load(float(tokens), law).touched


def test_skewed_tokens_touch_fewer_experts_and_wait_for_the_busiest_rank():
    layer = (4096, 1536, 128, 8)
    few = [priced(64, layer, H100, way=way) for way in ("balanced", "power_law")]
    many = [priced(8192, layer, H100, way=way, ep=8) for way in ("balanced", "power_law")]

    assert few[1] < few[0]
    assert many[1] > many[0]


def test_what_was_seen_is_waited_for():
    hidden, inner, experts, top_k = 4096, 1536, 128, 8
    alike = routing_of((1.0,) * experts, experts, top_k)
    skewed = routing_of((10.0,) * 16 + (1.0,) * 112, experts, top_k)

    times = [experts_time(4096, hidden, inner, routing, H100, ep=8) for routing in (alike, skewed)]
    assert times[1] > 2 * times[0]
    assert times[0] == priced(4096, (hidden, inner, experts, top_k), H100, way="uniform", ep=8)


@pytest.mark.parametrize("seen", [(1.0,) * 7, (0.0,) * 8, (-1.0,) + (1.0,) * 7])
def test_what_was_seen_is_of_all_experts(seen):
    with pytest.raises(InputError, match="distribution: got"):
        routing_of(seen, 8, 2)


def test_engines_serve_what_tensor_cores_take():
    assert served_as("mxfp4", DEVICES["b200"]) == "mxfp4_mxfp8"
    assert served_as("mxfp4", H100) == "mxfp4"
    assert served_as("fp8", H100) == "fp8_block"


def test_both_products_of_a_program_are_the_layer():
    experts, top_k, hidden, inner = 64, 4, 2048, 768
    target = Target(device=H100, fabrics={}, runtime=usual(), engine="vllm")
    route = Tensor("route", (1, 32, top_k), 4)
    up = Weight(name="up", rows=(Part(hidden),), columns=(Part(inner),) * 2, experts=experts)
    down = Weight(name="down", rows=(Part(inner),), columns=(Part(hidden),), experts=experts)
    x, wide = Tensor("x", (1, 32, hidden)), Tensor("wide", (1, 32, top_k, 2 * inner))
    thin, back = (Tensor("thin", (1, 32, top_k, n)) for n in (inner, hidden))

    parts = [
        price(Matmul(x=x, weight=up, out=wide, route=route), target),
        price(Matmul(x=thin, weight=down, out=back, route=route), target),
    ]

    routing = replace(routing_of("power_law", experts, top_k), chance=True)
    whole = experts_time(32, hidden, inner, routing, H100, engine="vllm", sustained=True)
    assert sum(float(part.seconds) for part in parts) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("count", "layer", "us"),
    [
        (96, (4096, 1536, 128, 8), 2749.5),
        (16, (6144, 2560, 160, 8), 3561.0),
        (128, (2688, 928, 128, 6), 1093.1),
        (256, (2688, 928, 128, 6), 1644.4),
    ],
)
def test_vllm_on_a100_takes_blocks_of_few_rows_while_every_token_has_an_expert(count, layer, us):
    """aiconfigurator-core's moe table (Apache-2.0), vLLM 0.14: 1.75 TB/s of weights up to a token
    an expert, 1.2 beyond."""
    way = "power_law_1.01" if layer[1] == 928 else "power_law_1.2"

    took = priced(count, layer, DEVICES["a100-sxm-80gb"], way=way, engine="vllm")

    assert took == pytest.approx(us / 1e6, rel=0.22)


def usual() -> Runtime:
    return runtimes()["tensorrt"]


def test_every_engine_falls_back_on_all_of_them():
    table = shipped_records(ExpertsParameters)
    for title in table:
        form, _, rest = title.partition(".")
        if rest:
            engine, _, generation = rest.rpartition("-")
            assert engine in (*SERVING, "planner")
            assert f"{form}-{generation}" in table
