"""Dispatch and combine: laws of any way, bounds of links, and what may be taken where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.basis import Basis
from costmodels.collectives.dispatch import WAYS, Exchange, obstacle
from costmodels.expert_routing import Routing
from costmodels.formats import token_bytes
from costmodels.kernels.parameters import DispatchParameters
from costmodels.kernels.tables import shipped_records
from topology.base import InputError
from topology.catalogue import find_hardware

DEEPSEEK = Routing(experts=256, top_k=8)
PHASES = ("dispatch", "combine")
KERNELS = [name for name, way in WAYS.items() if way.ops is None]
SLACK = 1 + 1e-9


def exchange(way, phase="dispatch", gpus=8, hardware="b200", routing=DEEPSEEK, nodes=0, **more):
    of = find_hardware(hardware)
    return Exchange(
        phase=phase, way=way, routing=routing, fabric=of.fabric(gpus, nodes), device=of.device,
        **more,
    )  # fmt: skip


anyway = st.sampled_from([*KERNELS, "allgather_reducescatter", "all_to_all"])
any_phase = st.sampled_from(PHASES)
any_gpus = st.sampled_from([2, 4, 8])
any_tokens = st.floats(1, 65536)


@given(anyway, any_phase, any_gpus, any_tokens, st.floats(1, 4))
def test_more_tokens_or_more_bytes_never_take_less_time(way, phase, gpus, tokens, factor):
    of = exchange(way, phase, gpus)
    time = of.time(tokens, 7392.0)
    assert time <= of.time(tokens * factor, 7392.0) * SLACK
    assert time <= of.time(tokens, 7392.0 * factor) * SLACK


@given(anyway, any_phase, any_tokens)
def test_no_exchange_is_faster_than_what_must_cross_the_links(way, phase, tokens):
    of = exchange(way, phase)
    crossing = tokens * 7392.0 * DEEPSEEK.reached(8) * 7 / 8
    assert of.time(tokens, 7392.0) >= crossing / of.fabric.bandwidth


@given(anyway, any_phase, any_tokens)
def test_popular_experts_never_make_it_faster(way, phase, tokens):
    skewed = exchange(way, phase, routing=Routing(experts=256, top_k=8, exponent=1.2))
    assert skewed.time(tokens, 7392.0) >= exchange(way, phase).time(tokens, 7392.0) / SLACK


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_alone_sends_nothing(way):
    alone = exchange(way, gpus=1, hardware="h100-sxm")
    assert alone.time(64.0, 7392.0) == 0
    assert alone.time(np.array([1.0, 64.0]), 7392.0).tolist() == [0, 0]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", [*KERNELS, "allgather_reducescatter", "all_to_all"])
def test_many_sizes_at_once_are_those_one_by_one(way, phase):
    of = exchange(way, phase, routing=Routing(experts=256, top_k=8, exponent=1.01))
    tokens, sizes = np.array([[1.0], [128.0], [4096.0]]), np.array([4096.0, 14336.0])
    together = of.time(tokens, sizes)
    assert together.shape == (3, 2)
    alone = [[of.time(float(t), float(size)) for size in sizes] for t in tokens[:, 0]]
    assert np.allclose(together, alone, rtol=0.05)


@given(any_phase, any_tokens, st.sampled_from(["h100-sxm", "b200"]))
def test_more_multiprocessors_are_never_slower(phase, tokens, hardware):
    times = [
        exchange("deepep_normal", phase, hardware=hardware, multiprocessors=count).time(
            tokens, 7392.0
        )
        for count in (4, 12, 24)
    ]
    assert times[0] >= times[1] >= times[2]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", ["deepep_normal", "deepep_low_latency"])
def test_nodes_cost_time_and_their_slowest_link_is_the_network(way, phase):
    near = exchange(way, phase, gpus=8, hardware="h100-sxm").time(4096.0, 14336.0)
    far = exchange(way, phase, gpus=16, hardware="h100-sxm", nodes=2)
    assert far.time(4096.0, 14336.0) > near
    _, _, leaving = far.copies()
    nics = far.fabric.network.bandwidth / far.fabric.local
    assert far.time(4096.0, 14336.0) >= 4096.0 * 14336.0 * leaving / nics


def test_one_copy_a_node_leaves_it_where_normal_kernels_pass_it_on():
    normal, direct = (
        exchange(way, gpus=32, hardware="h100-sxm", nodes=4).copies()
        for way in ("deepep_normal", "deepep_low_latency")
    )
    assert normal[2] < 3
    assert direct[2] == 6


def test_groups_of_experts_keep_a_token_on_fewer_nodes():
    limited = Routing(experts=256, top_k=8, groups=8, top_groups=4)
    free, kept = (
        exchange("deepep_normal", gpus=64, hardware="h100-sxm", nodes=8, routing=routing)
        for routing in (DEEPSEEK, limited)
    )
    assert kept.time(4096.0, 7392.0) < free.time(4096.0, 7392.0)


@pytest.mark.parametrize(
    ("way", "gpus", "hardware", "nodes", "reason"),
    [
        ("deepep_normal", 8, "l40s", 0, "Hopper and newer"),
        ("deepep_low_latency", 8, "a100-sxm-80gb", 0, "Hopper and newer"),
        ("deepep_normal", 4, "rtx-pro-6000", 0, "it needs NVLink"),
        ("nvlink_one_sided", 16, "b200", 2, "it stays inside one node"),
        ("nvlink_one_sided", 64, "gb200", 0, ""),
        ("deepep_normal", 64, "gb200", 0, "it joins 8 GPUs by NVLink at most, got 64"),
        ("allgather_reducescatter", 8, "l40s", 0, ""),
    ],
)
def test_a_way_is_taken_where_its_kernels_run(way, gpus, hardware, nodes, reason):
    of = find_hardware(hardware)
    said = obstacle(way, of.fabric(gpus, nodes), of.device)
    assert reason in said if reason else not said
    if said:
        with pytest.raises(InputError, match=f"dispatch by {way}: "):
            exchange(way, gpus=gpus, hardware=hardware, nodes=nodes)


def test_names_that_are_none_are_said():
    with pytest.raises(InputError, match="way of tokens"):
        exchange("carrier_pigeon")
    with pytest.raises(InputError, match="exchange"):
        exchange("deepep_normal", "gather")
    with pytest.raises(InputError, match="launch"):
        exchange("deepep_normal", launch="eager")


def test_how_well_a_time_is_known_follows_what_was_measured():
    def known(**more):
        return exchange("deepep_low_latency", **more).basis(128.0, 7392.0)

    assert known() == Basis.CALIBRATED
    assert known(hardware="b300") == known(gpus=4) == Basis.DATASHEET
    assert known(hardware="h100-sxm", gpus=16, nodes=2) == Basis.DATASHEET
    far = exchange("deepep_low_latency").basis(65536.0, 7392.0)
    assert far == Basis.ASSUMED


def test_a_replayed_kernel_takes_no_longer_than_one_that_an_engine_calls():
    for engine in ("vllm", "tensorrt-llm"):
        called, replayed = (
            exchange("deepep_low_latency", engine=engine, launch=launch).time(8.0, 14336.0)
            for launch in ("stream", "graph")
        )
        assert replayed < called


def test_hosts_learn_what_comes_before_normal_kernels_wherever_they_are_called():
    alone, called = (
        exchange("deepep_normal", engine=engine, launch="graph").time(8.0, 7392.0)
        for engine in ("", "sglang-llm")
    )
    assert called - alone > 20e-6


def test_scales_travel_with_numbers():
    assert token_bytes(128.0, "fp8") == 132
    assert token_bytes(128.0, "bf16") == 256
    assert token_bytes(128.0, "nvfp4") == 72


def test_every_kernel_has_a_way_and_a_phase():
    for name in shipped_records(DispatchParameters):
        way, phase = (
            name.partition(".")[0].removesuffix("-hopper").removesuffix("-blackwell").split("-")
        )
        assert way in WAYS
        assert phase in PHASES
