"""Quantised checkpoints that users asked about, with the answers that were right."""

import json
from dataclasses import replace

import pytest

import planner
from planner.lowering import lower
from planner.models import read_model
from planner.rendering.report import headline
from planner.request.plan import Plan
from planner.request.request import Request
from planner.request.workload import DEFAULT_HABITS
from planner.runners.launch import launched
from planner.scenario.scenario import resolve
from planner.search.plan_memory import parts_of
from planner.strategies import parse_plan
from topology.base import InputError

GIB = 2**30


def config(**values):
    return json.dumps({"tie_word_embeddings": False, **values})


def qwen2(**values):
    return config(architectures=["Qwen2ForCausalLM"], model_type="qwen2", **values)


def stored(method, **values):
    return {"quant_method": method, "bits": 4, "group_size": 128, **values}


# vllm-project/vllm#5675: 29,568 columns are 231 groups of 128
AWQ = qwen2(
    hidden_size=8192, intermediate_size=29568, num_hidden_layers=80, num_attention_heads=64,
    num_key_value_heads=8, vocab_size=152064, max_position_embeddings=32768,
    quantization_config=stored("awq", version="gemm", zero_point=True, modules_to_not_convert=None),
)  # fmt: skip
# intel/auto-round#643: half of the attention's 896 outputs are 3.5 groups
SMALL = qwen2(
    hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
    num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768,
    quantization_config=stored("gptq", sym=True, desc_act=False),
)  # fmt: skip
# QwenLM/Qwen#1035, vllm-project/vllm#2699: intermediate_size is that of gate and up together
FIRST = config(
    architectures=["QWenLMHeadModel"], model_type="qwen", hidden_size=5120,
    intermediate_size=27392, num_hidden_layers=40, num_attention_heads=40, kv_channels=128,
    seq_length=2048, max_position_embeddings=8192, vocab_size=152064, no_bias=True,
    quantization_config=stored("gptq", sym=True, desc_act=False),
)  # fmt: skip
# vllm-project/vllm#17569: an eighth of 1,536 is a block and a half
EXPERTS = config(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=4096,
    intermediate_size=12288, moe_intermediate_size=1536, num_experts=128, num_experts_per_tok=8,
    num_hidden_layers=94, num_attention_heads=64, num_key_value_heads=4, head_dim=128,
    vocab_size=151936, decoder_sparse_step=1, max_position_embeddings=40960,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
)  # fmt: skip


def refusal(model, gpus, plan, **options):
    with pytest.raises(InputError) as error:
        planner.estimate(model, gpus=gpus, plan=plan, **options)
    return str(error.value)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_awq_groups_of_the_ffn_are_not_parted(degree):
    words = f"the FFN width 29568 over tp{degree} is not a multiple of the quantisation group 128"

    assert words in refusal(AWQ, degree, f"tp{degree}")


def test_four_bits_of_72_billion_weights_fit_on_one_gpu():
    plan = planner.estimate(AWQ, gpus=1, hardware="h100-sxm").to_dict()

    assert plan["precision"] == "int4"
    assert plan["memory_parts_bytes"]["transformer_weights"] == pytest.approx(41.5e9, rel=0.02)


def test_small_groups_have_more_scales():
    """Kimi K2.5: 16 bits of scale for 32 of its experts' weights, which are 1.01 trillion."""
    plan = planner.estimate("kimi-k2.5", gpus=8, plan="tp8", hardware="h200-sxm").to_dict()
    experts = 60 * 384 * 3 * 7168 * 2048
    low_ranks = 61 * 7168 * (1536 + 576)  # whole on every rank

    assert plan["precision"] == "int4"
    assert 8 * plan["memory_parts_bytes"]["transformer_weights"] == pytest.approx(
        experts * (0.5 + 2 / 32) + 2 * (1.027e12 - experts + 7 * low_ranks), rel=0.015
    )


def test_gptq_groups_of_the_attention_output_are_not_parted():
    words = "the attention output's width 896 over tp2 is not a multiple of the quantisation group"

    assert words in refusal(SMALL, 2, "tp2")
    assert planner.estimate(SMALL, gpus=2, plan="tp2", precision="bf16").gpus == 2


def test_the_first_qwen_counts_gate_and_up_together():
    model = read_model(FIRST)

    assert model.main.ffn.width == 13696
    assert model.parameters == pytest.approx(14.2e9, rel=0.01)
    assert "the FFN width 13696 over tp2" in refusal(FIRST, 2, "tp2")


def test_blocks_of_experts_are_not_parted():
    assert "the FFN width 1536 over tp8 is not a multiple of the quantisation block 128" in (
        refusal(EXPERTS, 8, "tp8")
    )
    assert planner.estimate(EXPERTS, gpus=4, plan="tp4").precision == "fp8"


def test_gpt_oss_fits_on_one_gpu_of_80_gigabytes():
    """Its experts have 4 bits and a scale for 32 of them, the rest 16: 60.8 GiB published."""
    plan = planner.estimate("gpt-oss-120b", gpus=1, hardware="h100-sxm").to_dict()

    assert plan["precision"] == "mxfp4"
    assert plan["memory_parts_bytes"]["transformer_weights"] / GIB == pytest.approx(60.8, rel=0.01)


def test_what_was_published_is_the_default_and_is_said():
    answer = planner.recommend(AWQ, gpus=1, hardware="h100-sxm")

    assert answer.to_dict()["request"]["precision"] == "int4"
    assert "int4 (awq), groups of 128" in headline(resolve(Request(model=AWQ)))
    runs = {row.engine: row for row in answer.launch}
    assert "--quantization" not in runs["vLLM"].line
    assert "does not read awq" in runs["TensorRT-LLM"].reason


def test_numbers_that_a_gpu_cannot_multiply_are_16_bits_there():
    plan = planner.estimate(EXPERTS, gpus=8, hardware="a100-sxm-80gb", plan="tp8")

    assert plan.precision == "bf16"
    asked = Request(model=EXPERTS, gpus=8, hardware="a100-sxm-80gb")
    assert "bf16, published as fp8" in headline(resolve(asked))


@pytest.mark.parametrize("precision", ["int4", "mxfp4"])
def test_weights_alone_are_asked_for_of_any_model(precision):
    small, whole = (
        planner.estimate("llama-3.1-8b", gpus=1, precision=name).to_dict()
        for name in (precision, "bf16")
    )

    assert (
        small["memory_parts_bytes"]["transformer_weights"]
        < 0.45 * (whole["memory_parts_bytes"]["transformer_weights"])
    )
    assert small["stages_s"]["decode"] < 0.6 * whole["stages_s"]["decode"]
    assert small["stages_s"]["prefill"] > whole["stages_s"]["prefill"]


# google/gemma-3-27b: 52 of 62 layers see 1,024 tokens (their cache: vllm-project/vllm#43308)
def test_layers_with_a_window_keep_what_they_see():
    sizes = {"hardware": "h200-sxm", "input_tokens": 131071, "output_tokens": 1}

    def kept(**more):
        plan = planner.estimate("gemma-3-27b", gpus=1, **sizes, **more).to_dict()
        return plan["memory_parts_bytes"]["kv"]

    whole, sliding = 10 * 131072, 52 * 1024
    assert kept() == pytest.approx((whole + sliding) * 2 * 16 * 128 * 2, rel=1e-6)
    assert kept() == pytest.approx(11.2e9, rel=0.01)
    assert kept(kv_precision="fp8") == kept() / 2


def test_engines_keep_of_windows_what_their_caches_have_room_for():
    def kept(model, engine):
        sizes = {"input_tokens": 131_000, "output_tokens": 1, "kv_precision": "bf16"}
        plan = planner.estimate(
            model, gpus=4, hardware="h200-sxm", plan="tp4", engine=engine, **sizes
        )
        return 4 * plan.to_dict()["memory_parts_bytes"]["kv"]

    gemma, oss = (
        {engine: kept(model, engine) for engine in ("vllm", "sglang-llm", "tensorrt-llm")}
        for model in ("gemma-3-27b", "gpt-oss-120b")
    )
    assert gemma["vllm"] == pytest.approx(11.2e9, rel=0.01)
    assert gemma["sglang-llm"] == gemma["tensorrt-llm"] == pytest.approx(66.6e9, rel=0.01)
    assert oss["sglang-llm"] == pytest.approx((1 + 0.8) / 2 * oss["tensorrt-llm"])


def test_a_cache_of_8_bits_takes_half_and_is_read_faster():
    sizes = {"hardware": "h100-sxm", "plan": "tp4", "batch": 32, "input_tokens": 4096}

    def of(kv_precision):
        plan = planner.estimate("llama-3.1-70b", gpus=4, kv_precision=kv_precision, **sizes)
        return plan.to_dict()

    small, whole = of("fp8"), of("bf16")
    assert small["memory_parts_bytes"]["kv"] * 2 == whole["memory_parts_bytes"]["kv"]
    assert small["stages_s"]["decode"] < whole["stages_s"]["decode"]
    assert small["breakdown_s"]["gemm"] == whole["breakdown_s"]["gemm"]


def test_a_checkpoint_with_scales_for_its_cache_has_one_of_8_bits():
    stored_cache = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    model = json.loads(SMALL) | {"quantization_config": stored_cache}

    assert resolve(Request(model=json.dumps(model))).workload.kv_precision == "fp8"
    asked = Request(model=json.dumps(model), kv_precision="bf16")
    assert resolve(asked).workload.kv_precision == "bf16"


def test_engines_are_told_of_the_cache():
    answer = planner.recommend("llama-3.1-8b", gpus=1, kv_precision="fp8")

    lines = {launch.engine: launch for launch in answer.launch}
    assert "--kv-cache-dtype fp8" in lines["vLLM"].line
    assert "--kv-cache-dtype fp8_e4m3" in lines["SGLang"].line


def test_bad_precisions_of_the_cache_are_one_line():
    words = "unknown kv_precision 'int4'"
    assert words in refusal("llama-3.1-8b", 1, "single", kv_precision="int4")
    words = "kv_precision: got fp8, wanted none: flux.1-dev is no language model"
    assert words in refusal("flux.1-dev", 1, "single", kv_precision="fp8")


@pytest.mark.parametrize(
    ("sizes", "batch", "tokens_per_s"),
    [
        ((128, 2048), 64, 1622),
        ((2048, 128), 32, 581),
        ((2048, 2048), 16, 531),
    ],
)
def test_memory_with_its_check_bits_keeps_the_pace_that_was_published(sizes, batch, tokens_per_s):
    """TensorRT-LLM's docs/source/performance.md of 0.6.1: Llama 2 7B in fp8 on an L40S."""
    prompt, output = sizes

    estimate = planner.estimate(
        "llama-2-7b", hardware="l40s", engine="tensorrt-llm", precision="fp8", batch=batch,
        input_tokens=prompt, output_tokens=output,
    )  # fmt: skip

    assert estimate.tokens[2] == pytest.approx(tokens_per_s, rel=0.1)


def test_gpus_that_multiply_no_bf16_take_fp16_and_engines_are_told() -> None:
    for hardware, precision, told in (("t4", "fp16", True), ("l4", "bf16", False)):
        scenario = resolve(Request(model="qwen3-8b", hardware=hardware, engine="vllm"))
        assert scenario.workload.precision == precision
        assert ("--dtype float16" in launched(scenario, Plan()).line) is told


def test_what_stands_against_a_plan_twice_is_said_once():
    """Shared experts and those that are chosen among are as wide as each other."""
    found = planner.recommend("deepseek-v3", 12, hardware="gb200", engine="vllm").rejected
    reasons = {str(row.plan): row.reason.split("; ") for row in found}

    assert len(reasons["tp12"]) > 2
    assert all(len(set(said)) == len(said) for said in reasons.values())
