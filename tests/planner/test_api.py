"""The Python face, as it was promised."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import CLUSTER, LLAMA, run
from generators import nonsense, tried
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from costmodels.collectives import OPS
from topology.base import IllegalPlanError
from topology.catalogue import all_hardware

pytestmark = pytest.mark.usefixtures("asked_once")

NAMES = """
cosmos3 cosmos3-nano cosmos3-super cosmos3-edge flux.1-dev flux flux.1-schnell flux.2-dev
sd3.5-large qwen-image hunyuanvideo hunyuanvideo-1.5 wan2.1-1.3b wan2.1-14b wan2.2-a14b wan2.2-5b
cogvideox-5b mochi-1 ltx-video pixart-sigma hidream-i1 z-image lumina2 cosmos-predict2-2b
cosmos-predict2-14b llama-3.1-8b llama-3.1-70b llama-3.1-405b qwen3-8b qwen3-32b qwen3-235b-a22b
mixtral-8x7b mixtral-8x22b deepseek-v3 gpt-oss-120b gpt-oss-20b gemma-3-27b mistral-large
"""
GPUS = """
h100-sxm h100-nvl h100-pcie h200-sxm h200-nvl h20 h800-sxm a100-sxm-40gb a100-sxm-80gb
a100-pcie-80gb b200 b300 gb200 gb300 l40s l40 l20 l4 a10g rtx-pro-6000 rtx-5090 rtx-4090 rtx-3090
rtx-a6000 v100-sxm t4
"""
MODELS, HARDWARE = NAMES.split(), GPUS.split()
OLD = ("v100-sxm", "t4")  # without bf16
PRECISIONS = ("bf16", "fp16", "fp8", "nvfp4", "int8")


@pytest.mark.parametrize("name", MODELS)
def test_promised_models_are_answered(name):
    """On GPUs with room; where there is none, every plan says why not."""
    answer = planner.recommend(name, gpus=2, hardware="b300").to_dict()

    assert set(answer) >= {"request", "plans", "rejected"}
    assert answer["request"]["model"] == name
    assert answer["plans"] or all(one["reason"] for one in answer["rejected"])


def test_promised_hardware_is_answered():
    for name in HARDWARE:
        precision = "fp16" if name in OLD else "bf16"
        plan = planner.estimate(
            "pixart-sigma",
            gpus=4,
            hardware=name,
            plan="ulysses4",
            precision=precision,
            offload=True,
        )

        assert plan.to_dict()["hardware"] == name, name
        assert name in all_hardware(), name
        assert plan.latency_s > 0, name


def test_promised_models_describe_themselves():
    for name in MODELS:
        shown = planner.read_model(name).to_dict()

        for key in ("parameters", "layers", "hidden", "heads", "kv_heads", "head_dim"):
            assert type(shown[key]) is int, key
            assert shown[key] > 0, key
        assert isinstance(shown["family"], str), name
        assert shown["heads"] % shown["kv_heads"] == 0 or shown["kv_heads"] % shown["heads"] == 0, (
            name
        )
        assert json.loads(json.dumps(shown, allow_nan=False))["name"] == shown["name"], name


def test_the_example_of_the_contract():
    plan = planner.estimate(
        "cosmos3",
        gpus=8,
        hardware="h100-sxm",
        plan="cfg2.ulysses4",
        height=720,
        width=1280,
        frames=189,
        steps=35,
        runtime="torch-compile",
    )
    shown = plan.to_dict()

    assert (shown["model"], shown["gpus"], shown["plan"]) == ("cosmos3-nano", 8, "cfg2.ulysses4")
    assert shown["runtime"] == "torch-compile"
    assert shown["throughput_per_s"] == pytest.approx(1 / shown["latency_s"])


def test_a_recommendation_holds_estimates():
    answer = planner.recommend("flux.1-dev", gpus=4)
    first = answer.to_dict()["plans"][0]

    ways = {name: first[name] for name in ("plan", "engine", "runtime")}
    same = planner.estimate("flux.1-dev", gpus=4, **ways).to_dict()
    assert same == first
    order = [(one.unproven, one.latency_s) for one in answer.runnable]
    assert order == sorted(order)


def test_everything_is_json():
    for answer in (planner.recommend("llama-3.1-8b", gpus=4), planner.recommend("flux", gpus=2)):
        shown = answer.to_dict()
        assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_what_estimate_refuses_recommend_rejects():
    with pytest.raises(IllegalPlanError) as error:
        planner.estimate("wan2.1-1.3b", gpus=8, plan="ulysses8")

    rejected = {
        one["plan"]: one["reason"]
        for one in planner.recommend("wan2.1-1.3b", gpus=8).to_dict()["rejected"]
    }
    assert rejected["ulysses8"] in str(error.value)
    assert "nearest that can" in str(error.value)
    assert isinstance(error.value, planner.InputError)
    assert isinstance(error.value, ValueError)


def test_a_plan_may_be_left_out_on_one_gpu_only():
    assert planner.estimate("flux").to_dict()["plan"] == "single"
    with pytest.raises(planner.InputError, match="a plan is needed for 2 GPUs"):
        planner.estimate("flux", gpus=2)


def test_a_plan_may_be_the_value_of_another_estimate():
    first = planner.recommend("flux", gpus=2, runtime="tensorrt").plans[0]

    assert planner.estimate("flux", gpus=2, plan=first.plan, engine=first.engine) == first


# Kernels and collectives: numbers and arrays


@pytest.mark.parametrize("op", OPS)
def test_collectives_of_arrays_are_those_of_their_numbers(op):
    for hardware in ("h100-sxm", "a100-sxm-80gb", "b200", "l40s"):
        sizes = np.array([[0.0, 1e3, 1e4], [1e6, 1e8, 1e9]])
        together = planner.collective(op, sizes, gpus=8, hardware=hardware)

        apart = [
            [planner.collective(op, float(one), gpus=8, hardware=hardware) for one in row]
            for row in sizes
        ]
        assert together.shape == sizes.shape, hardware
        assert together == pytest.approx(np.array(apart), rel=1e-12), hardware
        assert np.all(np.diff(together.ravel()) >= 0), hardware


@pytest.mark.parametrize("launch", ["graph", "stream"])
@pytest.mark.parametrize("algorithm", ["auto", "ring", "engine", "multishot", "oneshot", "twoshot"])
def test_collectives_take_their_options(algorithm, launch):
    seconds = planner.collective(
        "all_reduce", 2**20, gpus=8, hardware="h100-sxm", algorithm=algorithm, launch=launch
    )

    assert type(seconds) is float
    assert 1e-6 < seconds < 1e-3


def test_a_rank_alone_sends_nothing():
    assert planner.collective("all_reduce", 1e9, gpus=1) == 0.0


def test_more_nodes_take_longer():
    inside = planner.collective("all_reduce", 1e9, gpus=8)
    across = planner.collective("all_reduce", 1e9, gpus=16, nodes=2)

    assert across > inside


@given(
    m=st.lists(st.integers(1, 2**16), min_size=1, max_size=4),
    n=st.integers(1, 2**14),
    k=st.integers(1, 2**14),
)
@settings(max_examples=25)
def test_products_of_arrays_are_those_of_their_numbers(m, n, k):
    together = planner.matmul(np.array(m), n, k)

    assert together == pytest.approx(np.array([planner.matmul(one, n, k) for one in m]), rel=1e-12)
    assert np.all(together > 0)


@given(tokens=st.lists(st.integers(1, 2**14), min_size=1, max_size=4), ep=st.sampled_from([1, 8]))
@settings(max_examples=25)
def test_layers_of_experts_of_arrays_are_those_of_their_numbers(tokens, ep):
    layer = partial(planner.experts, hidden=4096, intermediate=1536, experts=128, top_k=8, ep=ep)

    together = layer(np.array(tokens))

    assert together == pytest.approx(np.array([layer(one) for one in tokens]), rel=1e-9)
    assert np.all(together > 0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ep": 3}, "ep: got 3, wanted a divisor of 128 experts"),
        ({"tp": 7}, "tp: got 7, wanted a divisor of intermediate 1536"),
        ({"top_k": 129}, "experts of a token: got 129 of 128"),
        ({"experts": 0}, "experts: got 0"),
        ({"distribution": "flat"}, "distribution: got 'flat', wanted balanced"),
        ({"distribution": [1, 2]}, "distribution: got 2 numbers, wanted one for each of 128"),
        ({"distribution": None}, "distribution: got None"),
        ({"gated": 3}, "gated: got 3, wanted True or False"),
        ({"engine": "vlm"}, "unknown engine with kernels of its own 'vlm'"),
        ({"precision": "nvfp4"}, "no tensor cores for nvfp4"),
        ({"tokens": 0}, "tokens: got 0"),
    ],
)
def test_experts_that_cannot_be_are_one_line(asked, said):
    layer = {"tokens": 8, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8}
    result, told = tried(planner.experts, **{**layer, **asked})

    assert result is None
    assert said in told
    assert is_one_line(told)


@given(
    tokens=st.lists(st.integers(1, 2**14), min_size=1, max_size=4),
    phase=st.sampled_from(["dispatch", "combine"]),
    distribution=st.sampled_from(["balanced", "power_law_1.01"]),
)
@settings(max_examples=25)
def test_messages_of_arrays_are_those_of_their_numbers(tokens, phase, distribution):
    layer = partial(
        planner.dispatch, hidden=7168, experts=256, top_k=8, gpus=16, hardware="h200-sxm", nodes=2,
        phase=phase, distribution=distribution,
    )  # fmt: skip

    together = layer(np.array(tokens))

    assert together == pytest.approx(np.array([layer(one) for one in tokens]), rel=1e-9)
    assert np.all(together > 0)


def test_the_fastest_way_is_taken_where_none_is_named():
    layer = partial(planner.dispatch, 128, 7168, 256, 8, 8, "b200")
    ways = ["all_to_all", "allgather_reducescatter", "deepep_normal", "deepep_low_latency"]

    times = [layer(way=way) for way in [*ways, "nvlink_one_sided"]]

    assert layer() == min(times)
    assert planner.dispatch(128, 7168, 256, 8, 8, "l40s") > layer()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": 3}, "gpus: got 3, wanted a divisor of 256 experts"),
        ({"top_k": 257}, "experts of a token: got 257 of 256"),
        ({"phase": "scatter"}, "unknown exchange 'scatter'"),
        ({"way": "deepep"}, "unknown way of tokens 'deepep'"),
        ({"way": "nvlink_one_sided", "nodes": 2}, "by nvlink_one_sided: it stays inside one node"),
        ({"precision": "fp5"}, "unknown precision 'fp5'"),
        ({"engine": "vlm"}, "unknown engine with kernels of its own 'vlm'"),
        ({"launch": "eager"}, "unknown launch 'eager'"),
        ({"tokens": 0}, "tokens: got 0"),
        ({"hardware": 5}, "hardware: got 5"),
    ],
)
def test_messages_that_cannot_be_are_one_line(asked, said):
    layer = {"tokens": 8, "hidden": 4096, "experts": 256, "top_k": 8, "gpus": 8}
    result, told = tried(planner.dispatch, **{**layer, **asked})

    assert result is None
    assert said in told
    assert is_one_line(told)


def test_experts_may_be_told_what_was_seen():
    layer = partial(planner.experts, 512, 4096, 1536, 128, 8, ep=8)

    assert layer(distribution=np.ones(128)) == layer(distribution="uniform")


@given(
    queries=st.lists(st.integers(1, 2**15), min_size=1, max_size=4),
    keys=st.integers(1, 2**15),
    heads=st.sampled_from([1, 8, 24, 40]),
    causal=st.booleans(),
)
@settings(max_examples=25)
def test_attention_of_arrays_is_that_of_its_numbers(queries, keys, heads, causal):
    together = planner.attention(heads, np.array(queries), keys, 128, causal=causal)

    apart = [planner.attention(heads, one, keys, 128, causal=causal) for one in queries]
    assert together == pytest.approx(np.array(apart), rel=1e-12)
    assert np.all(together > 0)


def test_every_gpu_prices_its_precisions_and_refuses_others():
    """8192 cubed is 1.1 TFLOP: not faster than the data sheet, and within reason of it."""
    for name in HARDWARE:
        for precision in PRECISIONS:
            seconds, said = tried(planner.matmul, 8192, 8192, 8192, name, precision)
            peak = all_hardware()[name].device.peak(precision)
            assert (seconds is None) == (peak is None), name
            assert said == "" or f"{name} has no tensor cores for {precision}" in said, name
            assert peak is None or 0.3 < 2 * 8192**3 / peak.value / seconds <= 1, name


@pytest.mark.parametrize(
    "value", [-1, math.nan, math.inf, 1e300, 10**400, "8", None, [[1], [1, 2]]]
)
def test_what_is_no_size_is_one_line(value):
    calls = (
        lambda: planner.collective("all_reduce", value, gpus=8),
        lambda: planner.matmul(value, 8, 8),
        lambda: planner.attention(8, value, 8, 128),
        lambda: planner.attention(8, 8, 8, 128, kv_heads=value or "none"),
    )
    for call in calls:
        result, said = tried(call)
        assert result is None
        assert is_one_line(said)


def is_one_line(said):
    return said and "\n" not in said and len(said) < 200


def test_zero_is_a_message_but_no_shape():
    assert planner.collective("all_reduce", 0, gpus=8) > 0
    for shape in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        assert tried(planner.matmul, *shape)[0] is None
    assert tried(planner.attention, 0, 8, 8, 128)[0] is None
    assert tried(planner.attention, 8, 8, 8, 128, kv_heads=0)[0] is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": "cosmos4"}, "unknown model 'cosmos4': did you mean cosmos3"),
        ({"model": None}, "model: got None"),
        ({"model": "/no/such/config.json"}, "no such file or folder"),
        ({"gpus": 0}, "gpus: got 0"),
        ({"gpus": "8"}, "gpus: got '8', wanted a whole number"),
        ({"gpus": 10**400}, "gpus: got 1000"),
        ({"hardware": "h1000"}, "unknown hardware 'h1000': did you mean h100-sxm"),
        ({"hardware": 8}, "hardware: got 8, wanted a name"),
        ({"runtime": "torch"}, "unknown runtime 'torch': did you mean torch-graph or torch-eager"),
        ({"precision": "fp64"}, "unknown precision 'fp64'"),
        ({"algorithm": "rings"}, "unknown algorithm 'rings': did you mean ring"),
        ({"attention": "fa9"}, "unknown attention kernel 'fa9'"),
        ({"height": 0}, "height: got 0"),
        ({"steps": math.nan}, "steps: got nan"),
        ({"batch": -1}, "batch: got -1"),
        ({"nodes": 3}, "3 nodes"),
        ({"colour": "red"}, "unknown argument 'colour': expected one of"),
        ({"plan": "tp3"}, "degrees multiply to 3"),
        ({"plan": "sp2"}, "unknown axis 'sp'"),
        ({"plan": 3}, "plan: got 3, wanted axes and degrees"),
    ],
)
def test_bad_input_is_named(asked, said):
    with pytest.raises(planner.InputError) as error:
        planner.estimate(**{"model": "flux", "gpus": 2, "plan": "ulysses2", **asked})

    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["op", "hardware", "algorithm", "launch"])
@pytest.mark.parametrize("value", [3, b"ring", [1], "nonsense"])
def test_names_of_collectives_are_words_that_are_known(name, value):
    asked = {"op": "all_reduce", "hardware": "h100-sxm", "algorithm": "auto", "launch": "graph"}
    result, said = tried(planner.collective, message_bytes=1e6, gpus=8, **{**asked, name: value})

    assert result is None
    assert is_one_line(said.partition(": ")[0])


@given(value=st.one_of(nonsense, st.none(), st.floats(), st.integers(), st.lists(st.integers())))
@settings(max_examples=8)
def test_any_value_anywhere_is_an_answer_or_one_line(value):
    asked = {"model": "flux.1-schnell", "gpus": 1, "plan": "single"}
    for name in ("gpus", "plan", "hardware", "runtime", "precision", "height", "steps", "nodes"):
        _, said = tried(planner.estimate, **{**asked, name: value})
        assert "\n" not in said


@pytest.mark.parametrize("kv_heads", [3, 16, 0.5, np.array([1, 3])])
def test_key_value_heads_divide_the_heads(kv_heads):
    with pytest.raises(planner.InputError, match=r"kv_heads: got .*, wanted"):
        planner.attention(8, 128, 128, 64, kv_heads=kv_heads)


def test_key_value_heads_may_be_an_array():
    seconds = planner.attention(8, 1, 2**16, 128, batch=16, kv_heads=np.array([1, 2, 4, 8]))

    assert seconds.shape == (4,)
    assert np.all(np.diff(seconds) >= 0)
    assert seconds[-1] == pytest.approx(planner.attention(8, 1, 2**16, 128, batch=16, kv_heads=8))


@pytest.mark.parametrize(
    ("length", "causal", "ms"),
    [(32768, False, 33.12), (16384, True, 4.357), (8192, False, 2.149), (4096, True, 0.322)],
)
def test_attention_in_8_bits_goes_along_with_16_bits_that_a_machine_measured(length, causal, ms):
    """NVIDIA cudnn-frontend, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn,
    llama3.1 in fp8, cuDNN 9.19; nothing is fitted to 8 bits there."""
    shape = {"heads": 64, "kv_heads": 8, "queries": length, "keys": length, "head_dim": 128}

    took = planner.attention(
        **shape, hardware="h200-sxm", causal=causal, precision="fp8", kernel="cudnn"
    )

    assert took == pytest.approx(ms / 1e3, rel=0.11)


def test_sizes_broadcast_or_are_refused():
    with pytest.raises(planner.InputError, match=r"queries \(2,\), keys \(3,\), wanted ones that"):
        planner.attention(8, [1, 2], [1, 2, 3], 64)
    with pytest.raises(planner.InputError, match=r"sizes: got shapes m \(2,\), n \(3,\)"):
        planner.matmul([1, 2], [1, 2, 3], 64)
    assert planner.matmul(np.ones((2, 1)), np.ones(3), 64).shape == (2, 3)


@pytest.mark.parametrize("nothing", [None, 3, [], {}, b"GPU0"])
def test_a_machine_is_a_text_or_a_path(nothing):
    with pytest.raises(planner.InputError, match=r"topology: got .*, wanted the text or the path"):
        planner.read_topology(nothing)


@pytest.mark.parametrize("nothing", [3, [], {}, b"h100-sxm", False])
def test_names_are_words(nothing):
    calls = (
        lambda: planner.collective("all_reduce", 1024, 8, hardware=nothing),
        lambda: planner.collective("all_reduce", 1024, 8, profile=nothing),
        lambda: planner.collective("all_reduce", 1024, 8, topology=nothing),
        lambda: planner.matmul(1, 1, 1, hardware=nothing),
        lambda: planner.matmul(1, 1, 1, precision=nothing),
        lambda: planner.matmul(1, 1, 1, profile=nothing),
        lambda: planner.attention(8, 1, 1, 64, kernel=nothing),
        lambda: planner.attention(8, 1, 1, 64, precision=nothing),
        lambda: planner.recommend(nothing),
        lambda: planner.recommend("flux", hardware=nothing),
    )
    for call in calls:
        with pytest.raises(planner.InputError, match=r"got .*, wanted a name") as error:
            call()
        assert "\n" not in str(error.value)


def test_hardware_left_out_is_the_usual_one():
    usual = planner.collective("all_reduce", 2**20, 8, hardware="h100-sxm")

    assert planner.collective("all_reduce", 2**20, 8, hardware=None) == usual


def test_a_machine_gives_all_its_gpus_where_nobody_says_how_many():
    words = ("--model", "flux.1-dev", "--topology", CLUSTER, "--plan", "dp16.ulysses8")
    _, out, _ = run("estimate", *words, "--format", "json")
    found = planner.estimate("flux.1-dev", plan="dp16.ulysses8", topology=CLUSTER)

    assert found.gpus == 128
    assert found.to_dict() == json.loads(out)
    with pytest.raises(planner.InputError, match="128 GPUs"):
        planner.estimate("flux.1-dev", plan="ulysses8", topology=CLUSTER)


def test_a_machine_takes_the_kind_of_its_gpus_by_name():
    text = "GPU0 GPU1\nGPU0 X PHB\nGPU1 PHB X\n"

    found = planner.read_topology(text, hardware="RTX-4090").to_dict()["gpus"]

    assert [gpu["hardware"] for gpu in found] == ["rtx-4090"] * 2
    for kind, said in (("rtx-490", "did you mean rtx-4090"), (4090, "hardware: got 4090")):
        with pytest.raises(planner.InputError, match=said):
            planner.read_topology(text, hardware=kind)


def test_a_model_that_was_read_is_taken_as_its_name_or_file_is(tmp_path):
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))

    for source in ("flux", path):
        model = planner.read_model(source)
        by_name = planner.recommend(source, gpus=2).to_dict()
        by_model = planner.recommend(model, gpus=2).to_dict()
        assert by_model.pop("request") == {**by_name.pop("request"), "model": model.name}
        lines = {"launch": (), "engines": ()}
        assert {**by_model, **lines} == {**by_name, **lines}
        assert all(len(by_model[name]) == len(by_name[name]) for name in lines)


def test_a_machine_that_was_read_is_taken_as_its_text_is():
    text = "GPU0 GPU1\nGPU0 X PHB\nGPU1 PHB X\n"
    machine = planner.read_topology(text, hardware="rtx-4090")
    by_text = planner.estimate("sd3.5-medium", plan="cfg2", topology=text, hardware="rtx-4090")

    assert planner.estimate("sd3.5-medium", plan="cfg2", topology=machine) == by_text
    assert planner.collective("all_reduce", 2**20, gpus=2, topology=machine) == planner.collective(
        "all_reduce", 2**20, gpus=2, topology=text, hardware="rtx-4090"
    )
    with pytest.raises(planner.InputError, match="wanted its hardware"):
        planner.estimate("sd3.5-medium", plan="cfg2", topology=machine, hardware="l4")


def test_paths_are_taken_as_text_is(tmp_path):
    cluster = Path(CLUSTER)

    assert planner.recommend("sd3.5-medium", gpus=2, topology=cluster).request.topology == CLUSTER
    with pytest.raises(planner.InputError, match="nowhere"):
        planner.matmul(8, 8, 8, profile=tmp_path / "nowhere.toml")
    with pytest.raises(planner.InputError, match="nowhere"):
        planner.estimate(tmp_path / "nowhere.json")


def test_what_only_looks_like_a_machine_or_a_number_is_refused():
    plan = planner.estimate("flux", 2, "ulysses2")
    with pytest.raises(planner.InputError, match=r"topology: got <PlanEstimate .*, wanted a name"):
        planner.estimate("flux", 2, "ulysses2", topology=plan)
    with pytest.raises(planner.InputError, match=r"topology: got <PlanEstimate .*, wanted a name"):
        planner.collective("all_reduce", 1024, 2, topology=plan)
    with pytest.raises(planner.InputError, match=r"gpus: got .*True.*, wanted a whole number"):
        planner.estimate("flux", np.bool_(True))


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("flux.1-dev", {"height": 1024, "width": 1024, "steps": 28}),
        ("llama-3.1-8b", {"input_tokens": 2048, "output_tokens": 128}),
    ],
)
def test_a_request_comes_back_with_its_usual_sizes(model, sizes):
    usual = {"gpus": 2, "runtime": "torch-compile"}
    request = planner.recommend(model, **usual).to_dict()["request"]

    assert request | sizes == request
    asked = planner.recommend(model, **usual, **{name: 2 * size for name, size in sizes.items()})
    assert asked.to_dict()["request"] == request | {n: 2 * size for n, size in sizes.items()}
