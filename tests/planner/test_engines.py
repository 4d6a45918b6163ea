"""What a request says of its engine, and what a model's own repository does."""

import json
import re
import tomllib
from dataclasses import replace

import pytest
from commands import assert_refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from recommendations import GPUS, HARDWARE, recommended, wrong

import planner
from costmodels.tables import profile_for, runtime
from planner.command.cli import main
from planner.engines.engine import load_engines
from planner.engines.tables import allowed, find_engine
from planner.export.export import files
from planner.models import names, read_model
from planner.models.architecture import Own
from planner.models.entries import load_entry
from planner.rendering import report
from planner.request.request import EXECUTOR, Request
from planner.runners.launch import launch_of
from planner.runners.refusal import footnotes, refusal
from planner.scenario.keywords import request_of
from planner.scenario.scenario import resolve
from planner.search.evaluate import Shared, price
from planner.strategies import parse_plan
from topology.base import CatalogueError, InputError
from topology.base.table import terminal

pytestmark = pytest.mark.usefixtures("asked_once")

ENTRY = """
kind = "assumed"
source = "-"
[config]
_class_name = "FluxTransformer2DModel"
[own]
kind = "derived"
source = "lines of its code"
token_modulation = true
[own.traffic]
norm = "3.5"
"""


def deployment(model="cosmos3", gpus=1, **asked):
    return resolve(request_of(model, gpus, asked)).deployment


def breakdown(model, gpus=1, plan="single", **asked):
    diffusion = planner.read_model(model).kind == "diffusion"
    found = planner.estimate(model, gpus=gpus, plan=plan, offload=diffusion, **asked)
    return found.breakdown_s


@pytest.mark.parametrize("name", ["vllm-omni", "vLLM-Omni"])
def test_an_engine_brings_its_runtime(name):
    found = request_of("cosmos3", 1, {"engine": name})
    resolved = resolve(found).resolved

    assert (resolved.engine, resolved.runtime) == ("vllm-omni", "torch-compile")
    assert request_of("cosmos3", 1, {"runtime": name}) == found


def test_a_runtime_that_was_asked_for_is_kept():
    asked = {"engine": "vllm-omni", "runtime": "torch-eager"}

    assert request_of("cosmos3", 1, asked).runtime == "torch-eager"
    assert resolve(request_of("cosmos3", 1, {"runtime": None})).resolved.runtime == "tensorrt"


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="unknown engine 'vllm-onmi': did you mean"):
        request_of("cosmos3", 1, {"engine": "vllm-onmi"})


def test_engines_that_keep_keys_of_the_text_are_faster():
    """transformer_cosmos3.py: vLLM-Omni caches them, Diffusers computes both towers each time."""
    asked = {"runtime": "torch-compile", "attention": "cudnn"}
    once, again = (
        planner.estimate("cosmos3", engine=name, **asked) for name in ("vllm-omni", "diffusers")
    )

    usual = planner.estimate("cosmos3", **asked)
    assert once.latency_s < again.latency_s
    # but for the time until the first kernel is launched
    assert usual.stages_s["denoise"] == pytest.approx(once.stages_s["denoise"], rel=1e-6)


def test_what_was_asked_goes_before_the_habit():
    asked = {"engine": "diffusers", "text_tower": "once"}

    assert deployment(**asked).habits.text_tower == "once"


def test_a_pipeline_runs_the_text_with_every_step():
    usual, again = (
        planner.estimate("cosmos3", gpus=2, plan="pp2", **more)
        for more in ({}, {"text_tower": "every_step"})
    )

    assert usual.latency_s == again.latency_s
    with pytest.raises(InputError, match="not cut into pipeline stages"):
        planner.estimate("cosmos3", gpus=2, plan="pp2", text_tower="once")


def test_only_its_own_repository_has_its_bytes():
    """Without a profile: that of H100 has measured 6 % more bytes in the executor's own kernels."""
    asked = {"runtime": "torch-eager", "profile": "none"}
    own, diffusers, executor = (
        breakdown("wan2.1-14b", engine=name, **asked)["pointwise"]
        for name in ("", "diffusers", EXECUTOR)
    )

    assert own > 1.1 * diffusers
    assert diffusers > 1.5 * executor
    assert deployment("wan2.1-14b", runtime="torch-eager").habits.repository
    assert not deployment("wan2.1-14b").habits.repository


def test_modulations_of_every_token_are_not_split():
    """Wan2.2, 80 forwards of 75,600 tokens: 2 x 5120 x 7 x 5120 FLOP at half the rate a token."""
    model = read_model("wan2.2-a14b")
    assert model.own.token_modulation

    asked = {"runtime": "torch-eager", "attention": "fa3"}
    extra = [
        breakdown("wan2.2-a14b", gpus, plan, **asked)["gemm"]
        - breakdown("wan2.2-a14b", gpus, plan, engine=EXECUTOR, **asked)["gemm"]
        for gpus, plan in ((1, "single"), (8, "ulysses8"))
    ]
    flop = 80 * 75_600 * 2 * 5120 * 2 * 7 * 5120

    assert extra[0] == pytest.approx(extra[1], rel=0.01)
    assert 0.4 * 989e12 < flop / extra[0] < 989e12


@pytest.mark.parametrize(
    ("model", "hardware", "asked", "kernel"),
    [
        ("flux.1-dev", "h100-sxm", {"engine": "diffusers"}, "cudnn"),
        ("flux.1-dev", "h100-sxm", {"engine": "diffusers", "attention": "fa3"}, "fa3"),
        ("flux.1-dev", "a100-sxm-80gb", {"engine": "diffusers"}, "auto"),
        ("cosmos3", "h100-sxm", {"engine": "diffusers"}, "cudnn"),
        ("hunyuanvideo-1.5", "l40s", {"engine": "diffusers"}, "xformers"),
        ("wan2.1-14b", "h20", {"engine": "xdit"}, "fa2"),
        ("wan2.2-a14b", "h20", {"engine": "xdit"}, "fa3"),
        ("wan2.2-a14b", "h20", {"engine": "sglang"}, "fa3"),
        ("wan2.2-a14b", "b200", {"engine": "sglang"}, "auto"),
    ],
)
def test_an_engine_has_its_attention_kernel(model, hardware, asked, kernel):
    """And repositories that call xDiT bring theirs: Wan 2.1 FlashAttention-2, Wan 2.2 3."""
    assert deployment(model, hardware=hardware, **asked).attention_of(read_model(model)) == kernel


def test_a_repository_is_as_fast_by_the_name_of_the_engine_in_it():
    """Multi-GPU tables of HunyuanVideo and Wan are of their repositories and xDiT together."""
    for model in ("hunyuanvideo", "wan2.1-14b"):
        own, named = (
            planner.estimate(
                model, gpus=4, plan="ulysses4", runtime="torch-eager", engine=engine, offload=True
            )
            for engine in ("", "xdit")
        )
        assert named.latency_s == pytest.approx(own.latency_s, rel=0.05)


def test_eager_code_of_an_engine_is_that_of_the_models_it_runs():
    flux, wan = read_model("flux.1-dev"), read_model("wan2.1-14b")
    xdit, diffusers, sglang = (
        deployment("flux.1-dev", engine=name, runtime="torch-eager", profile="none")
        for name in ("xdit", "diffusers", "sglang")
    )

    ours, theirs = (dict(one.runtime_of(wan).functions) for one in (xdit, diffusers))
    assert ours.pop("merge").kernels < theirs.pop("merge").kernels  # of rings, its own
    assert ours.pop("copy").cycles < theirs.pop("copy").cycles  # around exchanges
    assert ours == theirs
    assert sglang.runtime_of(flux).fusion("rotary").kernels == 1  # of its own
    assert xdit.runtime_of(flux).fusion("rotary").traffic > 12  # of FLUX an older code
    assert xdit.runtime_of(flux).fusion("norm") == runtime("torch-eager").fusion("norm")
    assert xdit.runtime_of(flux).host_kernel.value > sglang.runtime_of(flux).host_kernel.value
    compiled = deployment("flux.1-dev", engine="xdit", runtime="torch-compile", profile="none")
    assert dict(compiled.runtime_of(flux).functions) == dict(runtime("torch-compile").functions)


def test_functions_of_the_executor_are_not_those_of_repositories():
    """The profile of H100 measured the executor's norms, which read and write once."""
    profile, eager = profile_for("h100-sxm", ""), runtime("torch-eager")

    assert profile.runtime(eager, lean=False).functions == eager.functions
    assert profile.runtime(eager).fusion("norm") != eager.fusion("norm")
    assert profile.runtime(eager, lean=False).host_kernel == profile.runtime(eager).host_kernel


def test_a_runtime_moves_what_it_is_told():
    eager = runtime("torch-eager")
    moving = eager.moving({"norm": 9.0})

    assert moving.fusion("norm").traffic == 9.0
    assert moving.fusion("norm").kernels == eager.fusion("norm").kernels
    assert moving.fusion("rotary") == eager.fusion("rotary")
    assert eager.moving({}) is eager


def test_an_entry_says_what_its_repository_does():
    own = load_entry("x", tomllib.loads(ENTRY)).own

    assert own == Own(traffic=(("norm", 3.5),), token_modulation=True)
    assert load_entry("x", tomllib.loads(ENTRY.partition("[own]")[0])).own == Own()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('source = "lines of its code"', "", "no source"),
        ("token_modulation", "token_modulations", "unknown key"),
        ('"3.5"', '"3.5 s"', "norm"),
    ],
)
def test_an_entry_that_is_wrong_is_refused(old, new, said):
    with pytest.raises(CatalogueError, match=said):
        load_entry("x", tomllib.loads(ENTRY.replace(old, new)))


def test_the_header_names_the_engine():
    scenario = resolve(request_of("flux", 1, {"engine": "xdit"}))
    one = planner.estimate("flux", engine="xdit")

    text = terminal(report.estimate(scenario, one, []), 200)
    assert "torch-compile · xdit" in text


def test_plans_that_the_named_engine_cannot_run_are_marked_with_what_it_can():
    found = planner.recommend("cosmos3", gpus=8, engine="xdit")
    marks = {str(mark.plan): mark for mark in found.refusals}

    assert marks["cfg2.allgather_kv4"].reason.startswith("has no allgather_kv axis")
    assert marks["cfg2.allgather_kv4"].nearest
    assert not marks.keys() & {"cfg2.ulysses4", "cfg2.ring4"}  # TensorRT's obstacles are not its


def test_all_words_are_about_the_first_plan_that_the_engine_runs():
    found = planner.recommend("qwen-image", gpus=8, engine="diffusers", runtime="torch-eager")

    assert found.to_dict()["recommended"] == str(found.lead.plan) == str(found.plans[0].plan)
    assert next(one for one in found.launch if one.engine == "diffusers").line
    assert found.advice[0].startswith(str(found.lead.plan))
    barred = {str(mark.plan) for mark in found.refusals}
    assert barred
    assert not any(name in line for name in barred for line in found.advice)
    assert not barred & {str(one.plan) for one in found.scaling}
    ranked = [str(one.plan) in barred for one in found.plans]
    assert ranked == sorted(ranked)


def test_a_parallel_decode_is_offered_only_by_an_engine_that_has_one():
    with_it = planner.recommend("cosmos3", gpus=8, engine="vllm-omni")
    without = planner.recommend("cosmos3", gpus=8, engine="trtmc")

    assert any("/vae8" in line for line in with_it.advice)
    assert not any("/vae8" in line for line in without.advice)


@pytest.mark.parametrize("engine", ["", "planner", "xdit", "xdit,sglang"])
def test_the_plan_to_run_is_the_first(engine):
    found = planner.recommend("cosmos3", gpus=2, engine=engine)
    rows = found.to_dict()["engines"]
    able = [row for row in rows if "reason" not in row]

    assert found.lead == found.plans[0]
    assert found.scaling[-1].plan == found.plans[0].plan
    assert able[0]["latency_s"] == found.lead.latency_s == min(row["latency_s"] for row in able)
    assert (able[0]["plan"], able[0]["runtime"]) == (str(found.lead.plan), found.lead.runtime)
    assert found.lead.engine in ("", able[0]["engine"])


def test_an_engine_that_does_not_run_a_model_recommends_nothing():
    found = planner.recommend("lumina2", gpus=2, engine="trtmc")
    below = footnotes(resolve(found.request), found.plans, found.refusals)
    reason = "does not run the lumina2 family"

    assert found.lead is None
    assert {mark.plan for mark in found.refusals} >= {one.plan for one in found.plans}
    assert below == [f"! not with TensorRT Model Connect: any of these: {reason}"]
    assert found.to_dict()["engines"] == [{"engine": "trtmc", "reason": reason}]
    code, out, _ = run("recommend", "--model", "lumina2", "--gpus", "2", "--engine", "trtmc")
    assert code == 1
    assert "nothing that is known runs these" in out


def test_engines_are_compared_at_their_own_runtimes_and_plans():
    rows = planner.recommend("flux.1-dev", gpus=4, engine="xdit,sglang,diffusers").to_dict()

    ways = {(row["engine"], row["runtime"]) for row in rows["engines"]}
    for name in ("xdit", "sglang", "diffusers"):
        assert {(name, "torch-eager"), (name, "torch-compile")} <= ways
    for row in rows["engines"]:
        alone = planner.estimate(
            "flux.1-dev", 4, row["plan"], engine=row["engine"], runtime=row["runtime"]
        )
        assert alone.latency_s == pytest.approx(row["latency_s"])
        assert row["version"]
        assert row["command"]
    assert rows["recommended"] == rows["engines"][0]["plan"]


@pytest.mark.parametrize("engine", ["xdit", "sglang", "vllm-omni", "diffusers", "trtmc"])
def test_an_engine_runs_in_one_runtime_wherever_none_is_asked_for(engine):
    """In the one that its launch line starts: compiled where that has a flag for it."""
    asked = {"gpus": 2, "engine": engine}
    led = planner.recommend("flux.1-dev", **asked).lead
    estimate = planner.estimate("flux.1-dev", plan=str(led.plan), **asked)
    folder = files(Request(model="flux.1-dev", gpus=2), str(led.plan), engine)
    written = json.loads(folder["plan.json"])
    scenario, told = resolve(request_of("flux.1-dev", 2, asked)), find_engine(engine)
    line = launch_of(scenario, told, led.plan)

    assert led.runtime == estimate.runtime == written["expected"]["runtime"] == line.runtime
    assert led.latency_s == pytest.approx(estimate.latency_s)
    assert estimate.latency_s == pytest.approx(written["expected"]["latency_s"])
    assert line == launch_of(scenario.run_by(engine, led.runtime), told, led.plan)


def test_language_engines_are_compared_at_what_each_takes_alone():
    """Prices that one has found are not those of the next, whose kernels for messages differ."""
    asked = {"input_tokens": 1024, "output_tokens": 128}
    for row in planner.recommend("llama-3.1-8b", 4, **asked).to_dict()["engines"]:
        alone = planner.estimate("llama-3.1-8b", 4, row["plan"], engine=row["engine"], **asked)
        assert alone.latency_s == pytest.approx(row["latency_s"], rel=1e-9)


@pytest.mark.parametrize(
    "asked", [{"attention": "cudnn"}, {"hardware": "v100-sxm"}, {"hardware": "t4", "gpus": 64}]
)
def test_where_no_engine_runs_it_nothing_else_is_recommended(asked):
    """Of language models TensorRT's networks stand in no list, and for no engine."""
    words = [f"--{name}={value}" for name, value in asked.items()]
    code, out, err = run("recommend", "--model", "gpt-oss-20b", *words)
    answer = planner.recommend("gpt-oss-20b", **asked).to_dict()

    assert (code, err, answer["recommended"]) == (1, "", None)
    assert all("reason" in row for row in answer["engines"])
    assert answer["engines"][0]["reason"] in re.sub(r"\s+", " ", out)


def test_an_engine_that_is_named_twice_is_compared_once():
    listed = "vllm@0.33, vllm ,vLLM@0.33.0,sglang-llm"
    rows = planner.recommend("llama-3.1-8b", 1, engine=listed).to_dict()["engines"]

    assert sorted(row["engine"] for row in rows) == ["sglang-llm", "vllm"]


def test_eager_rows_of_language_engines_are_there_where_they_are_asked_for():
    asked = {"gpus": 1, "engine": "vllm"}
    usual, eager = (planner.recommend("llama-3.1-8b", runtime=name, **asked).to_dict()["engines"]
                    for name in (None, "torch-eager"))  # fmt: skip

    assert [row["runtime"] for row in usual] == ["tensorrt"]
    assert [row["runtime"] for row in eager] == ["torch-eager"]


def test_a_runtime_that_an_engine_has_not_is_refused():
    for several in ("xdit", "diffusers,xdit"):
        with pytest.raises(InputError, match=r"runtime: got tensorrt, which \w+ has not: wanted"):
            planner.recommend("flux.1-dev", 1, engine=several, runtime="tensorrt")
    for ask in (planner.estimate, planner.simulate, planner.sweep):
        with pytest.raises(InputError, match="wanted torch-compile or torch-eager"):
            ask("flux.1-dev", gpus=1, engine="diffusers", runtime="tensorrt")


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "cost"])
def test_no_plan_is_better_than_the_one_an_engine_is_compared_at(objective):
    """The search for it stops early: no plan is better in eager PyTorch than compiled."""
    asked = {"engine": "xdit", "objective": objective, "at_most_gpus": True}
    both = planner.recommend("wan2.1-14b", gpus=4, **asked).to_dict()["engines"]
    eager = planner.recommend("wan2.1-14b", gpus=4, runtime="torch-eager", **asked)

    assert eager.to_dict()["engines"][0] in both


def test_several_engines_are_for_comparisons_alone():
    assert_refused(
        *run("estimate", "--model", "flux.1-dev", "--engine", "xdit,sglang"),
        "engine: got xdit,sglang, wanted one",
    )
    with pytest.raises(InputError, match="did you mean xdit"):
        planner.recommend("flux.1-dev", engine="sglang,xdt")
    with pytest.raises(InputError, match="got tensorrt-llm, which does not run diffusion"):
        planner.recommend("flux.1-dev", engine="xdit,tensorrt-llm")


def test_pipelines_are_no_obstacle_to_an_engine_that_has_them():
    found = planner.recommend("llama-3.1-70b", gpus=8, engine="vllm")

    assert any("pp" in str(one.plan) for one in found.runnable)


@pytest.mark.parametrize(
    ("model", "named", "meant"),
    [
        ("llama-3.1-8b", "sglang", ["sglang-llm"]),
        ("llama-3.1-8b", "SGLang Diffusion@0.5.23", ["sglang-llm@0.5.23"]),
        ("llama-3.1-8b", "vllm-omni,sglang", ["vllm", "sglang-llm"]),
        ("flux.1-schnell", "vllm", ["vllm-omni"]),
        ("flux.1-schnell", "sglang-llm,vllm,vllm-omni", ["sglang", "vllm-omni"]),
        ("flux.1-schnell", "sglang", ["sglang"]),
    ],
)
def test_the_family_of_a_model_decides_which_engine_of_a_name_is_meant(model, named, meant):
    found = planner.recommend(model, gpus=1, engine=named).to_dict()

    assert {row["engine"] for row in found["engines"]} == {name.split("@")[0] for name in meant}
    assert found["request"]["engine"] in meant


def test_messages_name_the_engine_of_the_model_s_kind():
    code, out, _ = run("estimate", "--model", "llama-3.1-8b", "--engine", "sglang")

    assert code == 0
    assert out.splitlines()[0].endswith("sglang-llm")
    assert_refused(
        *run("estimate", "--model", "flux.1-dev", "--engine", "vllm@0.33.0"),
        "unknown version of vllm-omni '0.33.0': expected one of 0.30.0",
    )


@pytest.mark.parametrize(
    ("model", "engine"),
    [("cosmos3", "tensorrt-llm"), ("flux.1-dev", "tensorrt-llm"), ("llama-3.1-8b", "xdit")],
)
def test_an_engine_of_another_kind_of_model_is_refused(model, engine):
    with pytest.raises(InputError, match=f"engine: got {engine}, which does not run"):
        planner.recommend(model, gpus=2, engine=engine)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("--runtime", "vllm-omni", "--engine", "diffusers"),
            "runtime: got vllm-omni, an engine beside the engine diffusers: wanted one",
        ),
        (("--runtime", "planner", "--engine", "xdit"), "got planner, an engine beside"),
        (("--runtime", "torch-eagr", "--engine", "xdit"), "unknown runtime 'torch-eagr'"),
        (("--runtime", "", "--engine", "xdit"), "unknown runtime ''"),
        (("--engine", "?"), "repository, planner"),
        (("--engine", "tensorrt-llm"), "trtmc, repository, planner"),
    ],
)
def test_what_contradicts_an_engine_is_said(asked, said):
    assert_refused(*run("estimate", "--model", "flux.1-dev", *asked), said)


@pytest.mark.parametrize("name", ["--engine", "--attention", "--topology", "--profile"])
def test_an_empty_name_is_no_name(name):
    """What a script's variable leaves that is not set."""
    assert_refused(*run("recommend", "--model", "flux.1-dev", name, ""), f"{name}: got ''")


@pytest.mark.parametrize("asked", [{"runtime": "Planner"}, {"engine": "PLANNER"}])
def test_the_executor_is_an_engine_like_others(asked):
    found = resolve(request_of("flux.1-dev", 1, asked)).resolved

    assert (found.engine, found.runtime) == (EXECUTOR, "tensorrt")


def test_one_engine_may_be_said_twice():
    twice = {"engine": "xdit", "runtime": "xDiT"}

    assert request_of("flux.1-dev", 1, twice) == request_of("flux.1-dev", 1, {"engine": "xdit"})


@pytest.mark.parametrize(("asked", "engine"), [((), ""), (("--engine", "xDiT"), "xdit")])
def test_data_names_the_engine(asked, engine):
    code, out, _ = run("estimate", "--model", "flux.1-dev", *asked, "--format", "json")

    assert code == 0
    assert json.loads(out)["engine"] == engine


@pytest.mark.parametrize(
    ("engine", "rings"),
    [
        ("diffusers", "gathered"),
        ("xdit", "passed"),
        ("sglang", "gathered"),
        ("vllm-omni", "passed"),
        ("planner", "urgent"),
    ],
)
def test_messages_of_a_ring_hide_where_their_stream_has_priority(engine, rings):
    """Compiled, FLUX.1 by ring2 on 2 x H200: 84.0 ms without priority, 74.9 with it."""
    asked = {"height": 4096, "width": 4096, "runtime": "torch-compile", "engine": engine}
    one = planner.estimate("flux.1-dev", 4, "ring4", **asked)

    assert deployment("flux.1-dev", 4, **asked).habits.rings == rings
    assert (one.communication_hidden_s > 1e-9) == (rings == "urgent")


def test_a_ring_that_is_gathered_holds_the_keys_of_all_ranks():
    held = [
        planner.estimate("flux.1-dev", 4, "ring4", height=4096, width=4096, engine=name)
        for name in ("vllm-omni", "diffusers")
    ]

    assert held[0].memory_parts_bytes["activations"] < held[1].memory_parts_bytes["activations"]


def test_rings_hide_over_pcie_by_whatever_stream_they_are_passed_on():
    """PixArt-alpha of 4096 pixels takes a quarter of the time on four L40: 61 of 244.9 s."""
    asked = {"engine": "xdit", "runtime": "torch-eager", "height": 4096, "width": 4096}
    pcie, nvlink = (
        planner.estimate("pixart-sigma", 4, "ring4", hardware=name, **asked)
        for name in ("l40", "a100-sxm-80gb")
    )

    assert pcie.communication_hidden_s > 0.5 * pcie.breakdown_s["communication_exposed"]
    assert nvlink.communication_hidden_s < 1e-9


def test_a_graph_keeps_the_order_of_messages_whoever_runs_it():
    scenario = resolve(request_of("flux.1-dev", 2, {"runtime": "torch-graph"}))
    found = scenario.deployment
    passing = replace(found, habits=replace(found.habits, rings="passed"))
    hidden = [
        price(replace(scenario, deployment=each), parse_plan("ring2")).communication_hidden_s
        for each in (found, passing)
    ]

    assert hidden[0] == hidden[1] > 0


def test_two_forwards_of_a_step_are_one_of_a_batch_where_a_pipeline_does_so():
    """SD3 in diffusers, of its latents twice; on small images the host issues half as much."""
    asked = {"runtime": "torch-eager", "height": 512, "width": 512, "engine": "xdit"}
    ours = resolve(request_of("sd3.5-large", 2, asked))
    habits = replace(ours.workload.habits, batched_guidance=())
    apart = replace(ours, workload=replace(ours.workload, habits=habits))
    once, twice = (price(one, parse_plan("ulysses2")) for one in (ours, apart))
    side_by_side = [price(one, parse_plan("cfg2")).latency_s for one in (ours, apart)]

    assert once.stages_s["denoise"] < 0.6 * twice.stages_s["denoise"]
    assert side_by_side[0] == side_by_side[1]


def test_an_engine_that_decodes_on_all_ranks_by_itself_needs_no_flag_for_it():
    """SGLang shards frames of Wan's decoder by default, and those of FLUX.1's not."""
    plan = "cfg2.ulysses4"
    by_itself, asked_for, alone = (
        planner.estimate("cosmos3", 8, text, engine=engine).stages_s["vae_decode"]
        for engine, text in (("sglang", plan), ("sglang", f"{plan}/vae8"), ("vllm-omni", plan))
    )
    flux = [
        planner.estimate("flux.1-dev", gpus, text, engine="sglang").stages_s["vae_decode"]
        for gpus, text in ((1, "single"), (2, "ulysses2"))
    ]

    assert by_itself == asked_for < 0.35 * alone
    assert flux[0] == flux[1]


def test_kernels_that_an_engine_brings_are_fused_in_eager_code_too():
    """SGLang: norms, modulations and rotations are kernels of its own, compiled or not."""
    eager, compiled, xdit = (
        planner.estimate("flux.1-dev", engine=engine, runtime=runtime).breakdown_s["pointwise"]
        for engine, runtime in
        (("sglang", "torch-eager"), ("sglang", "torch-compile"), ("xdit", "torch-eager"))
    )  # fmt: skip

    assert eager == pytest.approx(compiled, rel=0.15)
    assert eager < 0.4 * xdit


OLD_AND_NEW = """
title = "Swift"
version = "2.1"
kind = "diffusion"
runtime = "torch-eager"
source = "-"
[line]
command = "swift"
[line.axes]
tp = "-t {n}"
[models.flux]
[models.wan]
[versions."1.0".models.wan]
reason = "has no Wan yet"
[versions."2.0".line.axes]
cfg = "-c"
"""


def test_an_older_version_of_an_engine_says_what_it_has_in_place_of_the_newest():
    listed = load_engines({"swift": tomllib.loads(OLD_AND_NEW)})
    newest, second, first = listed.versions(listed.named("Swift"))

    assert [one.version for one in (newest, second, first)] == ["2.1", "2.0", "1.0"]
    assert first.limits_of("", "wan").reason == "has no Wan yet"
    assert second.models == newest.models
    assert dict(second.line.axes) == {"tp": "-t {n}", "cfg": "-c"}
    assert first.line == newest.line


def test_our_executor_has_no_version_to_ask_for():
    with pytest.raises(InputError, match="engine: got planner@1, wanted planner without a version"):
        planner.estimate("flux", engine="planner@1")


@pytest.mark.parametrize("text", [OLD_AND_NEW.replace("2.0", "2.1"), OLD_AND_NEW + "[odd]"])
def test_a_version_that_is_no_older_one_is_refused(text):
    with pytest.raises(CatalogueError):
        load_engines({"swift": tomllib.loads(text)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("diffusers@9.9", "unknown version of diffusers '9.9'"),
        ("difusers@0.42", "unknown engine 'difusers': did you mean diffusers?"),
        ("xdit@", "version: got '', wanted numbers"),
        ("xdit@new", "version: got 'new', wanted numbers"),
    ],
)
def test_an_unknown_version_is_refused_in_a_line(text, said):
    assert_refused(*run("estimate", "--model", "flux.1-dev", "--engine", text), said)


@pytest.mark.parametrize(
    ("plan", "model", "more"),
    [
        ("ulysses8", "pixart-sigma", {"engine": "xdit", "precision": "fp16"}),  # docs/performance
        ("tp4", "pixart-sigma", {"engine": "xdit@0.4.5", "precision": "fp16"}),
        ("cfg2.ulysses4", "pixart-sigma", {"engine": "xdit@0.4.5", "precision": "fp16"}),
        ("ulysses3", "hunyuanvideo", {"engine": "xdit@0.4.5", "height": 960, "width": 960}),
        ("ulysses8", "wan2.2-a14b", {"engine": "repository"}),
        ("cfg2.ulysses2.ring3", "cogvideox-5b", {"engine": "xdit"}),
    ],
)
def test_what_was_published_as_run_is_not_refused(plan, model, more):
    asked = parse_plan(plan)
    assert refusal(resolve(request_of(model, asked.gpus, more)), asked) == ""


SAMPLE = st.tuples(*map(st.sampled_from, (names(), GPUS, HARDWARE)))


@given(sample=SAMPLE)
@settings(max_examples=3)
def test_no_recommendation_leads_with_a_plan_that_its_target_refuses(sample):
    """This draws some of all models on 1 to 16 GPUs of eight kinds: tests/recommendations.py."""
    model, gpus, hardware = sample

    assert not list(wrong(recommended(model, gpus, hardware, Shared())))


def test_what_is_unproven_stands_behind_what_is_proven():
    """TensorRT's collectives among some ranks of an engine: nobody has told that they are right."""
    asked = {"hardware": "b200", "height": 512, "width": 512, "engine": ""}
    found = planner.recommend("flux.1-schnell", 8, runtime="tensorrt", **asked)
    known = [one.unproven for one in found.runnable]

    assert known == sorted(known)
    assert set(known) == {False, True}
    assert str(found.runnable[0].plan) == "ulysses8"
    released = planner.recommend(
        "flux.1-schnell", 8, runtime="tensorrt", tensorrt_version="11.2.0.86", **asked
    )
    assert not any(one.unproven for one in released.runnable)
