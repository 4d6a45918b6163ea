"""What an engine refuses, against tables that its makers published, and what was really run."""

import pytest

import planner
from planner.engines.tables import engines, find_engine
from planner.models import read_model
from planner.request.request import Request
from planner.runners import refusal as refusing
from planner.runners.launch_settings import Settings
from planner.runners.refusal import refusal, refusal_of, refuser
from planner.scenario.scenario import resolve
from planner.search.plans import objections, plans
from planner.strategies import parse_plan

# Tencent/HunyuanVideo README at fa14b00, Supported Parallel Configurations, 129 frames:
# numbers of GPUs with the degrees of Ulysses and Ring that each can have.
TABLE = {
    (1280, 720): {8: "8x1 4x2 2x4 1x8", 5: "1x5", 4: "4x1 2x2 1x4", 3: "3x1 1x3", 2: "2x1 1x2"},
    (1104, 832): {4: "4x1 2x2 1x4", 3: "3x1 1x3", 2: "2x1 1x2"},
    (960, 960): {6: "6x1 3x2 2x3 1x6", 4: "4x1 2x2 1x4", 3: "3x1 1x3", 2: "2x1 1x2"},
    (960, 544): {6: "6x1 3x2 2x3 1x6", 4: "4x1 2x2 1x4", 3: "3x1 1x3", 2: "2x1 1x2"},
    (832, 624): {4: "4x1 2x2 1x4", 3: "3x1 1x3", 2: "2x1 1x2"},
    (720, 720): {5: "1x5", 3: "3x1 1x3"},
}
# 60 rows of tokens divide by 5, and its code takes them; the table leaves them out.
UNLISTED = {((960, 960), (1, 5)), ((960, 544), (1, 5))}


def reason(engine, model, plan, **asked):
    """Say why an engine refuses a plan at some sizes; empty where it does not."""
    found, video = read_model(model), asked.pop("video", True)
    sizes = {name: asked.pop(name) for name in ("height", "width", "frames") if name in asked}
    told = Settings(sizes=sizes, video=video, **asked)
    return refusal_of(find_engine(engine), found, parse_plan(plan), told)


def degrees_of(size, gpus):
    """List degrees of Ulysses and Ring that HunyuanVideo's own code takes, and the heads allow."""
    (width, height), taken = size, set()
    asked = {"model": "hunyuanvideo", "gpus": gpus, "height": height, "width": width}
    scenario = resolve(Request(**asked, frames=129, engine="repository"))
    for ulysses in (n for n in range(1, gpus + 1) if gpus % n == 0):
        axes = {"ulysses": ulysses, "ring": gpus // ulysses}
        plan = parse_plan(".".join(f"{axis}{n}" for axis, n in axes.items() if n > 1))
        barred = any(objections(scenario.model, scenario.workload, plan, gpus))
        if not barred and not refusal(scenario, plan):
            taken.add((ulysses, gpus // ulysses))
    return taken


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", TABLE)
def test_hunyuanvideo_has_the_degrees_of_its_table(size, turned):
    for gpus in range(2, 9):
        listed = {tuple(map(int, row.split("x"))) for row in TABLE[size].get(gpus, "").split()}
        taken = degrees_of(size[::-1] if turned else size, gpus)

        assert taken - listed == {pair for at, pair in UNLISTED if at == size} & taken
        assert listed <= taken


def test_xdit_cuts_the_flattened_sequence_of_hunyuanvideo():
    """33 x 45 x 80 tokens divide by 6; neither 45 rows nor 80 columns do."""
    said = "45 and 80 rows and columns of tokens do not divide by 6"
    size = {"height": 720, "width": 1280, "frames": 129}

    assert reason("repository", "hunyuanvideo", "ulysses6", **size) == said
    assert reason("xdit", "hunyuanvideo", "ulysses6", **size) == ""
    assert "118,800 tokens do not divide by 7" in reason("xdit", "hunyuanvideo", "ring7", **size)


@pytest.mark.parametrize(
    ("engine", "model", "plan", "asked", "said"),
    [
        # huggingface/diffusers#12996: 21 x 29 x 52 tokens
        ("diffusers", "wan2.1-14b", "ulysses8", {"height": 464, "width": 832, "frames": 81},
         "31,668 tokens do not divide by 8"),
        ("xdit", "wan2.1-14b", "ulysses8", {"height": 464, "width": 832, "frames": 81}, ""),
        ("vllm-omni", "wan2.1-14b", "ulysses8", {"height": 464, "width": 832, "frames": 81}, ""),
        ("vllm-omni", "wan2.1-14b", "ring8", {"height": 464, "width": 832, "frames": 81},
         "31,668 tokens, which a ring cannot pad, do not divide by 8"),
        # docs of diffusers, distributed inference: 63 x 63 tokens
        ("diffusers", "flux.1-dev", "ulysses4", {"height": 1008, "width": 1008}, "3,969 tokens"),
        ("xdit", "flux.1-dev", "ring4", {"height": 1008, "width": 1008}, "126 rows of latents"),
        ("repository", "wan2.1-1.3b", "ulysses4", {"height": 720, "width": 1280},
         "1280x720: expected one of 832x480, 480x832"),
        ("repository", "cosmos-predict2-2b", "ulysses8", {"frames": 93}, ""),
        ("repository", "cosmos-predict2-2b", "ulysses5", {"frames": 93}, "24 latent frames"),
        ("repository", "hunyuanvideo", "ulysses2", {"offload": True}, "exclude each other"),
        ("diffusers", "flux.2-dev", "tp2", {"precision": "fp8"}, "tp and fp8 exclude each other"),
        ("trtmc", "wan2.1-1.3b", "tp2", {}, "has no bf16"),
        ("sglang", "hunyuanvideo", "ulysses8", {"frames": 125}, ""),
        ("sglang", "hunyuanvideo", "ulysses8", {"frames": 129}, "33 latent frames"),
        ("xdit@0.4.5", "flux.2-dev", "ulysses2", {}, "does not run FLUX.2"),
    ],
)  # fmt: skip
def test_what_has_to_divide_and_what_excludes_what(engine, model, plan, asked, said):
    found = reason(engine, model, plan, **asked)

    assert said in found
    assert bool(said) == bool(found)


HD, HUNYUAN = {"height": 720, "width": 1280}, {"height": 720, "width": 1280, "frames": 129}
SQUARE = {"height": 960, "width": 960, "frames": 129}
SMALL = {"height": 480, "width": 832, "frames": 81}
RUN = [
    # xdit-project/xDiT docs/performance/hunyuanvideo.md, of HunyuanVideo's repository and xDiT
    *(("repository xdit", "hunyuanvideo", plan, HUNYUAN)
      for plan in ("single", "ulysses2", "ulysses4", "ulysses8")),
    *(("repository xdit", "hunyuanvideo", plan, SQUARE) for plan in ("ulysses3", "ulysses6")),
    # xdit-project/xDiT docs/performance/cogvideo.md
    *(("xdit", "cogvideox-5b", plan, {"height": 480, "width": 720, "frames": 49})
      for plan in ("cfg2", "cfg2.ring6", "cfg2.ulysses3.ring2", "ulysses2.ring3", "ring3")),
    # xdit-project/xDiT docs/performance/flux.md and sd3.md, pixart_alpha_legacy.md
    *(("xdit", "flux.1-dev", plan, {}) for plan in ("single", "ulysses8", "ulysses2.ring4")),
    *(("xdit", "flux.1-schnell", plan, {}) for plan in ("ulysses4", "ulysses2.ring2")),
    *(("xdit", "sd3.5-medium", plan, {}) for plan in ("cfg2", "ring8", "ulysses4")),
    *(("xdit", "pixart-sigma", plan, {}) for plan in ("tp8", "ulysses8", "ring16", "cfg2")),
    # Wan-Video/Wan2.1 README, Computational Efficiency
    ("repository", "wan2.1-1.3b", "ring8", SMALL),
    ("repository", "wan2.1-1.3b", "ulysses4", SMALL),
    *(("repository", "wan2.1-14b", f"ulysses{n}", HD) for n in (2, 4, 8)),
    *(("repository", "wan2.1-i2v-14b", f"ulysses{n}", SMALL) for n in (2, 4, 8)),
    # Wan-Video/Wan2.2 README, Computational Efficiency
    *(("repository", "wan2.2-a14b", f"ulysses{n}", HD) for n in (4, 8)),
    ("repository", "wan2.2-5b", "ulysses8", {"height": 704, "width": 1280, "frames": 121}),
    # nvidia-cosmos/cosmos-predict2.5 and NVIDIA/cosmos inference_benchmarks.md
    *(("repository", "cosmos-predict2.5-2b", f"ulysses{n}", {"frames": 93}) for n in (4, 8)),
    *(("vllm-omni", "cosmos3-nano", plan, {}) for plan in ("single", "tp4", "tp8")),
    ("diffusers", "cosmos3-super", "single", {}),
    # sgl-project/sglang docs, ring_sp_performance; lmsys.org/blog, SGLang Diffusion
    ("sglang", "wan2.2-5b", "ring2", {}),
    *(("sglang", model, plan, {}) for model, plan in (
        ("wan2.1-14b", "cfg2"), ("wan2.1-1.3b", "ulysses2"), ("flux.1-dev", "ulysses2"),
        ("qwen-image", "ring2"), ("z-image", "ulysses2"))),
    # vllm-project/vllm-omni#7737
    ("vllm-omni", "wan2.2-i2v-a14b", "ulysses2/vae2", SMALL),
    # NVIDIA/TensorRT-LLM perf-overview, vllm-project/vllm#11147
    *(("tensorrt-llm", "llama-2-70b", plan, {}) for plan in ("tp2", "tp4")),
    ("tensorrt-llm", "mixtral-8x7b", "tp2", {}),
    ("vllm", "llama-3.1-70b", "tp4", {}),
]  # fmt: skip
"""Engines that ran a plan of a model, its sizes, and above them who published it."""


def test_no_plan_that_was_run_is_refused():
    """At one version of the engine at least."""
    for names, model, plan, sizes in RUN:
        for name in names.split():
            versions = engines().versions(find_engine(name))
            hosts = 2 if parse_plan(plan).gpus > 8 else 1
            told = Settings(sizes=sizes, video=read_model(model).defaults.frames > 1, hosts=hosts)
            reasons = [
                refusal_of(engine, read_model(model), parse_plan(plan), told) for engine in versions
            ]
            assert "" in reasons, reasons


@pytest.mark.parametrize("engine", [engine.name for engine in engines().engines])
def test_one_function_answers_for_every_engine(engine):
    """And of TensorRT, in the same words of the same request."""
    model = "llama-3.1-8b" if find_engine(engine).kind == "decoder" else "flux.1-dev"
    scenario = resolve(Request(model=model, gpus=2, engine=engine))

    assert refusal(scenario, parse_plan("single")) == ""
    assert refusal(resolve(Request(model=model, gpus=2)), parse_plan("ring2")).startswith("ring ")


def test_the_own_repository_is_an_engine_with_its_habits():
    own, named = (
        planner.estimate("wan2.1-14b", gpus=8, plan="ulysses8", runtime="torch-eager", engine=name)
        for name in (None, "repository")
    )

    assert own.latency_s == named.latency_s


def test_what_is_asked_of_all_plans_of_as_many_gpus_is_collected_once(monkeypatch):
    """But for links that experts are spread over, which are a plan's own."""
    scenario = resolve(Request(model="mixtral-8x7b", gpus=8, engine="sglang-llm"))
    every = list(plans(scenario.model, 8))
    alone = {plan: refusal(scenario, plan) for plan in every}
    asked = []
    collect = refusing.settings_of
    monkeypatch.setattr(refusing, "settings_of", lambda *of: asked.append(of[1]) or collect(*of))
    refuses = refuser(scenario)

    assert {plan: refuses(plan) for plan in every} == alone
    assert len([plan for plan in asked if plan.degree("adp") == 1]) == 1


@pytest.mark.parametrize(
    ("engine", "model", "hardware", "said"),
    [
        ("vllm", "qwen3-8b", "v100-sxm", "7.5, and these have 7.0"),
        ("vllm@0.12", "qwen3-8b", "v100-sxm", ""),
        ("vllm", "qwen3-8b", "t4", ""),
        ("vllm", "gpt-oss-20b", "t4", "8.0 for mxfp4, and these have 7.5"),
        ("vllm@0.12", "gpt-oss-20b", "v100-sxm", "8.0 for mxfp4, and these have 7.0"),
        ("vllm", "gpt-oss-20b", "a100-sxm-80gb", ""),
        ("sglang-llm", "qwen3-8b", "t4", "8.0, and these have 7.5"),
        ("sglang-llm", "qwen3-8b", "a10g", ""),
        ("tensorrt-llm", "qwen3-8b", "t4", "8.0, and these have 7.5"),
        ("tensorrt-llm", "qwen3-8b", "a100-sxm-80gb", ""),
        ("sglang", "wan2.1-1.3b", "v100-sxm", "8.0, and these have 7.0"),
        ("sglang", "wan2.1-1.3b", "a100-sxm-80gb", ""),
        ("xdit", "pixart-sigma", "t4", "8.0, and these have 7.5"),
        ("xdit", "pixart-sigma", "a10g", ""),
        ("diffusers", "pixart-sigma", "t4", ""),
    ],
)
def test_engines_have_no_kernels_for_old_gpus(engine, model, hardware, said):
    scenario = resolve(Request(model=model, hardware=hardware, engine=engine))
    needs = said and f"needs GPUs of compute capability {said}"
    assert refusal(scenario, parse_plan("single")) == needs
