"""Head counts, windows, mixtures and hybrids of language models, and what vetoes a degree."""

import json

import numpy as np
import pytest
from testmodels import kept_bytes

from planner.lowering import work
from planner.models import read_model
from topology.base import InputError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def read(**changes):
    return read_model(json.dumps({**LLAMA, **changes}))


def blocks(model):
    return [(block.name, block.count) for block in model.blocks]


@pytest.mark.parametrize(
    ("changes", "query", "key_value", "size"),
    [
        ({}, 32, 32, 128),
        ({"num_key_value_heads": 8}, 32, 8, 128),
        ({"hidden_size": 6656, "num_attention_heads": 52}, 52, 52, 128),  # LLaMA-33B
        ({"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10}, 40, 10, 128),
        ({"hidden_size": 5120, "num_attention_heads": 64, "head_dim": 128}, 64, 64, 128),
        ({"model_type": "falcon", "multi_query": True}, 32, 1, 128),
    ],
)
def test_heads(changes, query, key_value, size):
    heads = read(**changes).main.heads

    assert (heads.query, heads.key_value, heads.size) == (query, key_value, size)


def test_old_names_of_keys_are_known():
    model = read_model(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_embd": 1600,
                "n_head": 25,
                "n_layer": 48,
                "n_positions": 1024,
                "vocab_size": 50257,
            }
        )
    )

    assert (model.layers, model.main.heads.query, model.vocabulary) == (48, 25, 50257)
    assert model.main.ffn.width == 4 * 1600
    assert not model.main.ffn.gated
    assert model.tied_embeddings


@pytest.mark.parametrize(
    "nest",
    [
        lambda inner: {"model_type": "qwen3_vl", "text_config": inner},
        lambda inner: {"architectures": ["InternVLChatModel"], "llm_config": inner},
        lambda inner: {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": inner}},
        lambda inner: {"model_type": "kimi_vl", "language_config": inner},
    ],
)
def test_the_language_model_may_be_nested(nest):
    model = read_model(json.dumps(nest(LLAMA)))

    assert (model.layers, model.main.hidden, model.vocabulary) == (32, 4096, 32000)


def test_heads_of_a_vision_tower_veto_too():
    # InternVL2-26B: 48 heads in the language model, 25 in InternViT-6B (vllm-project/vllm#8097)
    vision = {"hidden_size": 3200, "num_attention_heads": 25, "num_hidden_layers": 45}
    model = read_model(
        json.dumps(
            {
                "architectures": ["InternVLChatModel"],
                "llm_config": LLAMA,
                "vision_config": {**vision, "intermediate_size": 12800},
            }
        )
    )

    assert model.vetoes == (25,)
    # 45 layers of 123 M
    assert model.to_dict()["parameters"] - read().to_dict()["parameters"] == pytest.approx(
        5.54e9, rel=0.01
    )


def test_a_configuration_without_a_class_is_read_and_says_so():
    config = {key: LLAMA[key] for key in LLAMA if key not in {"architectures", "model_type"}}

    model = read_model(json.dumps(config))

    assert model.layers == 32
    assert "no class is named" in model.assumed[0]


def packed(form="pack-quantized", inputs=None, **weights):
    """Return what llm-compressor writes."""
    activations = None if inputs is None else {"num_bits": inputs, "type": "int"}
    group = {"weights": weights, "input_activations": activations, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize(
    ("quantization", "group"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ("int4", 128, 0)),
        ({"quant_method": "awq", "q_group_size": 64}, ("int4", 64, 0)),
        ({"quant_method": "gptq", "group_size": -1}, ("int4", 0, 0)),
        ({"bits": 4, "group_size": 128, "desc_act": False}, ("int4", 128, 0)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", 128, 128)),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8", 0, 0)),
        ({"quant_method": "mxfp4"}, ("mxfp4", 0, 0)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("int4", 0, 0)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", 16, 0)),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, ("fp8", 0, 0)),
        (packed(num_bits=4, type="int", group_size=128), ("int4", 128, 0)),
        (packed(num_bits=4, type="float", group_size=16), ("nvfp4", 16, 0)),
        (packed("mxfp4-pack-quantized", num_bits=4, type="float"), ("mxfp4", 0, 0)),
        (packed(num_bits=8, type="float", strategy="channel"), ("fp8", 0, 0)),
        (
            packed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
            ("fp8", 128, 128),
        ),
        (packed(num_bits=8, inputs=8, type="int"), ("int8", 0, 0)),
    ],
)
def test_weights_are_quantised_as_published(quantization, group):
    found = read(quantization_config=quantization).quantisation

    assert (found.precision, found.group, found.block) == group


def test_a_scheme_without_weights_is_none():
    stored = {"config_groups": {"group_0": {"weights": None}}}

    assert read(quantization_config=stored).quantisation is None
    assert read(quantization_config={"load": True}).quantisation is None


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "hqq"}, "quant_method: got 'hqq', wanted one of gptq"),
        ({"quant_method": "gptq", "bits": 3}, "bits: got 3, wanted 4"),
        ({"quant_algo": "W4A8"}, "quant_algo: got 'W4A8', wanted one of FP8"),
        (packed(num_bits=2, type="int"), "num_bits: got 2, wanted 4, or 8 of weights and inputs"),
        (packed(num_bits=8, type="int"), "num_bits: got 8, wanted 4, or 8 of weights and inputs"),
    ],
)
def test_unknown_quantisation_is_one_line(quantization, message):
    with pytest.raises(InputError) as error:
        read(quantization_config=quantization)

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["model.layers.*.self_attn", "lm_head"], ("attention", "output")),
        (["lm_head", "model.embed_tokens", "gate"], ()),
        ([f"model.layers.{n}.self_attn.q_proj" for n in range(32)], ("attention",)),
        (["model.layers.0.mlp.down_proj"], ()),
        ([f"model.layers.{n}.self_attn.o_proj" for n in range(32)], ("output",)),
        ([f"model.layers.{n}.self_attn.indexer.k_norm" for n in range(32)], ()),
        (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], ("feed_forward",)),
        (["re:.*mlp.experts.*", "re:.*shared_expert.*"], ("experts", "shared")),
    ],
)
def test_what_stays_in_16_bits(names, kept):
    stored = {"quant_method": "fp8", "modules_to_not_convert": names}

    assert read(quantization_config=stored).quantisation.kept == kept


LAYER = "model.layers.{}"
MODULES = {
    **{f"{LAYER.format(n)}.self_attn.q_proj": {"quant_algo": "FP8"} for n in range(32)},
    **{f"{LAYER.format(n)}.self_attn.o_proj": {"quant_algo": "FP8"} for n in range(32)},
    **{f"{LAYER.format(n)}.mlp.experts": {"quant_algo": "NVFP4"} for n in range(32)},
}
FORMS = {"NVFP4": {"num_bits": 4, "type": "float", "group_size": 16},
         "FP8": {"num_bits": 8, "type": "float"}}  # fmt: skip
GROUPS = {
    f"group_{name}": {
        "weights": form,
        "targets": [key for key in MODULES if MODULES[key]["quant_algo"] == name],
    }
    for name, form in FORMS.items()
}


@pytest.mark.parametrize("stored", [{"quantized_layers": MODULES}, {"config_groups": GROUPS}])
def test_parts_may_be_stored_in_different_precisions(stored):
    """As modelopt writes MIXED_PRECISION: the experts' is the usual one."""
    stated = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", **stored}
    model = read(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
                 quantization_config=stated)  # fmt: skip
    found = model.quantisation

    assert (found.precision, found.group) == ("nvfp4", 16)
    assert found.others == (("attention", "fp8"), ("output", "fp8"))
    assert found.kept == ("feed_forward", "shared")
    assert "attention in fp8, feed-forward, shared in 16 bits" in found.words
    parts = ("experts", "attention", "shared")
    formats = [work.weight_format(model, "nvfp4", part) for part in parts]
    assert formats == ["nvfp4", "fp8", ""]
    assert work.weight_format(model, "bf16", "attention") == "bf16"


def test_windows_alternate_as_the_class_says():
    assert blocks(read_model("gpt-oss-120b")) == [("sliding_experts", 18), ("full_experts", 18)]
    assert blocks(read_model("gemma-3-27b")) == [("sliding_dense", 52), ("full_dense", 10)]
    assert read_model("gemma-3-27b").blocks[0].towers[0].window == 1024
    assert read_model("gemma-3-27b").main.window == 0


def test_listed_layers_go_before_rules():
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    model = read(num_hidden_layers=4, layer_types=kinds, sliding_window=512)

    assert blocks(model) == [("sliding_dense", 3), ("full_dense", 1)]


def test_a_window_as_long_as_the_context_is_none():
    model = read(model_type="mistral", sliding_window=4096, max_position_embeddings=4096)

    assert blocks(model) == [("full_dense", 32)]


def test_an_unused_window_is_none():
    assert read(model_type="qwen2", sliding_window=99, use_sliding_window=False).main.window == 0


def test_hybrids_keep_plain_attention_last():
    hybrid = {
        "model_type": "qwen3_5_text",
        "head_dim": 256,
        "num_key_value_heads": 4,
        "full_attention_interval": 4,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
    }
    model = read(**hybrid)

    assert blocks(model) == [("delta_dense", 24), ("full_dense", 8)]
    delta, full = (block.towers[0] for block in model.blocks)
    assert (delta.mixer, delta.heads.query, delta.heads.key_value) == ("delta", 48, 16)
    assert (full.mixer, full.heads.size, full.gate) == ("attention", 256, True)
    assert model.main is full


def test_mixtures_may_start_dense_and_share_an_expert():
    model = read_model("deepseek-v3")

    assert blocks(model) == [("full_dense", 3), ("full_experts", 58)]
    ffn = model.main.ffn
    assert (ffn.experts, ffn.active, ffn.width, ffn.shared) == (256, 8, 2048, 2048)
    assert model.main.latent.key_value_rank == 512


def test_mixtures_may_come_every_other_layer():
    llama4 = {
        "model_type": "llama4_text",
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "attention_chunk_size": 8192,
        "num_hidden_layers": 48,
    }
    found = dict(blocks(read(**llama4)))

    # every fourth layer sees all, every second has experts
    assert found == {"sliding_dense": 24, "sliding_experts": 12, "full_experts": 12}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads: got 0, wanted a whole number 1 to 4096"),
        ({"num_attention_heads": 33}, "num_attention_heads: got 33, wanted a divisor of"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: got 5, wanted a divisor of"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers: got 1000000000000, wanted"),
        ({"hidden_size": "4096"}, "hidden_size: got '4096', wanted a whole number"),
        ({"hidden_size": True}, "hidden_size: got True, wanted a whole number"),
        ({"hidden_size": 4096.0}, "hidden_size: got 4096.0, wanted a whole number"),
        ({"vocab_size": None}, "vocab_size: got nothing, wanted a whole number"),
        ({"vocab_size": -1}, "vocab_size: got -1, wanted"),
        ({"vocab_size": 10**300}, "vocab_size: got a number of more than 38 digits, wanted"),
        ({"vocab_size": {"a": 1}}, "vocab_size: got an object, wanted"),
        ({"text_config": [1]}, "text_config: got a list of 1, wanted an object"),
        ({"layer_types": ["full_attention"]}, "layer_types: got a list of 1, wanted one entry"),
        ({"layer_types": ["odd"] * 32}, "layer_types: got 'odd', wanted entries among"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok: got 9, wanted"),
        ({"architectures": "LlamaForCausalLM"}, "architectures: got 'LlamaForCausalLM', wanted"),
        ({"model_type": 3}, "model_type: got 3, wanted a text"),
    ],
)
def test_absurd_values_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError) as refused:
        read(**changes)

    assert str(refused.value).startswith(f"config.json: {message}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"_class_name": "FluxTransformerModel"}, "did you mean FluxTransformer2DModel"),
        ({"architectures": ["Llama3ForCausalLM"]}, "did you mean LlamaForCausalLM"),
        ({"model_type": "lama"}, "did you mean llama"),
    ],
)
def test_unknown_classes_bring_the_near_ones(config, message):
    with pytest.raises(InputError, match=message):
        read_model(json.dumps(config))


# Sizes of the published configurations, less what no reader looks at.
QWEN35 = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 4096, "num_hidden_layers": 60,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
    "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_value_head_dim": 128,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "rope_parameters": {"partial_rotary_factor": 0.25},
}  # fmt: skip
SUPER = {
    "model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072, "mamba_num_heads": 128,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128,
    "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
    "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376, "n_shared_experts": 1,
    "routed_scaling_factor": 5.0, "mlp_hidden_act": "relu2", "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
    "EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip


def test_a_delta_rule_has_key_and_value_heads_a_state_and_a_convolution():
    model = read_model(json.dumps(QWEN35))
    delta, full = (block.towers[0] for block in model.blocks)

    rule = delta.recurrence
    assert (rule.key_heads, rule.key_size, rule.value_heads, rule.value_size) == (16, 128, 64, 128)
    assert (rule.convolved, rule.kernel, rule.state) == (12288, 4, 64 * 128 * 128)
    assert (full.rotary, full.gate, delta.gate) == (64, True, True)
    assert (full.ffn.shared_gated, full.ffn.scoring) == (True, "softmax")


def test_mamba_has_groups_a_state_and_a_convolution_and_experts_may_be_latent():
    model = read_model(json.dumps(SUPER))
    towers = {block.name: block.towers[0] for block in model.blocks}

    assert model.layers == 88
    mamba = towers["mamba"].recurrence
    assert (mamba.count, mamba.size, mamba.groups, mamba.state_size) == (128, 64, 8, 128)
    assert (mamba.convolved, mamba.kernel, mamba.chunk) == (128 * 64 + 2 * 8 * 128, 4, 128)
    ffn = towers["feed_forward_experts"].ffn
    assert (ffn.latent, ffn.scale, ffn.scoring, ffn.gated) == (1024, 5.0, "sigmoid", False)
    assert not towers["full"].rotates
    assert [block.name for block in model.draft] == ["draft_full", "draft_feed_forward_experts"]


def test_later_files_write_a_hybrid_pattern_as_words():
    words = {"M": "mamba", "E": "moe", "*": "attention"}
    pattern = SUPER["hybrid_override_pattern"]
    written = {**SUPER, "layers_block_type": [words[letter] for letter in pattern]}
    del written["hybrid_override_pattern"]

    assert read_model(json.dumps(written)).blocks == read_model(json.dumps(SUPER)).blocks


def test_a_state_is_as_long_for_one_token_as_for_many_and_a_window_has_an_end():
    """Kept of a sequence, by hand: 16-bit rows, states in 32 bits, three inputs of convolutions."""
    model = read_model(json.dumps(QWEN35))
    state = 45 * (64 * 128 * 128 * 4 + 3 * 12288 * 2)
    rows = 15 * 2 * 2 * 256 * 2

    assert kept_bytes(model, 1) == state + rows
    assert kept_bytes(model, 1000) == state + 1000 * rows
    assert kept_bytes(model, 1000, itemsize=1) == state + 1000 * rows / 2
    oss = read_model("gpt-oss-120b")
    assert kept_bytes(oss, 1000) == 18 * (128 + 1000) * 2 * 8 * 64 * 2
    both = kept_bytes(oss, np.array([64, 1000]))
    assert list(both) == [kept_bytes(oss, 64), kept_bytes(oss, 1000)]


def test_a_latent_row_is_whole_on_every_rank_and_heads_are_cut():
    main = read_model("deepseek-v3").main

    assert main.kept(8) == main.kept()
    assert main.kept().row == 576
    assert read_model("llama-3.1-8b").main.kept(4).row == 2 * 2 * 128
    assert read_model("llama-3.1-8b").main.kept(32).row == 2 * 128


def test_an_indexer_chooses_keys_and_keeps_one_a_token():
    sparse = read_model(json.dumps({**DEEPSEEK, "index_topk": 2048, "index_n_heads": 64,
                                    "index_head_dim": 128}))  # fmt: skip
    dense = read_model(json.dumps(DEEPSEEK))

    assert sparse.main.indexer.chosen == 2048
    # queries, keys, their norm and the heads' weights of 61 layers
    more = 61 * (1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64)
    assert sparse.parameters - dense.parameters == more
    assert kept_bytes(sparse, 10) - kept_bytes(dense, 10) == 61 * 132 * 10


DEEPSEEK = {
    "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 3,
    "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1, "vocab_size": 129280, "max_position_embeddings": 163840,
}  # fmt: skip


def test_layers_may_look_at_what_an_earlier_one_chose():
    """GLM-5.2: 57 of 78 layers have no indexer of their own, which transformers' class has not."""
    glm = {
        **DEEPSEEK, "model_type": "glm_moe_dsa", "hidden_size": 6144, "intermediate_size": 12288,
        "num_hidden_layers": 78, "num_attention_heads": 64, "q_lora_rank": 2048,
        "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1, "topk_group": 1,
        "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "vocab_size": 154880,
        "indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
    }  # fmt: skip
    model = read_model(json.dumps(glm))

    assert model.parameters == 743_377_000_704
    assert kept_bytes(model, 1) == 78 * 576 * 2 + 21 * 132
    assert all(tower.indexer.chosen == 2048 for tower in model.towers)
    assert model.layers == 78


def test_draft_layers_are_counted_apart():
    """DeepSeek-V3's module of 11.5 billion: a layer, and a projection of two rows to one."""
    with_draft = read_model(json.dumps(DEEPSEEK))
    without = read_model(json.dumps({**DEEPSEEK, "num_nextn_predict_layers": 0}))

    assert with_draft.parameters == without.parameters
    assert without.draft_parameters == 0
    assert with_draft.draft_parameters == pytest.approx(11.5e9, rel=0.01)
    assert with_draft.draft_parameters == (
        with_draft.blocks[-1].parameters + 2 * 7168**2 + 3 * 7168
    )


def test_experts_are_chosen_within_groups_and_scaled():
    ffn = read_model(json.dumps(DEEPSEEK)).main.ffn

    assert (ffn.groups, ffn.active_groups, ffn.scale, ffn.scoring) == (8, 4, 2.5, "sigmoid")


def test_windows_of_llama4_are_chunks_and_full_layers_do_not_rotate():
    llama4 = {"model_type": "llama4_text", "attention_chunk_size": 8192, "num_hidden_layers": 48,
              "max_position_embeddings": 1048576}  # fmt: skip
    chunked, full = (block.towers[0] for block in read(**llama4).blocks)

    assert (chunked.window, chunked.chunked, chunked.rotates) == (8192, True, True)
    assert (full.window, full.chunked, full.rotates) == (0, False, False)


def test_sinks_are_of_gpt_oss():
    assert read_model("gpt-oss-20b").main.sinks
    assert not read().main.sinks


def test_full_attention_of_gemma4_has_fewer_and_wider_heads():
    gemma4 = {
        "model_type": "gemma4_text", "hidden_size": 2816, "intermediate_size": 2112,
        "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
        "attention_k_eq_v": True, "sliding_window": 1024, "max_position_embeddings": 262144,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "vocab_size": 262144,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25},
                            "sliding_attention": {"rope_theta": 10000.0}},
    }  # fmt: skip
    sliding, full = (block.towers[0] for block in read_model(json.dumps(gemma4)).blocks)

    assert (sliding.heads.key_value, sliding.heads.size, sliding.rotary) == (8, 256, 0)
    assert (full.heads.key_value, full.heads.size, full.rotary) == (2, 512, 128)
    assert (full.shares_values, sliding.shares_values) == (True, False)
    assert (full.ffn.experts, full.ffn.active, full.ffn.shared) == (128, 8, 2112)
    assert full.kept().row == 2 * 2 * 512


def test_some_features_of_a_head_are_rotated():
    assert read(model_type="minimax_m2", rotary_dim=64).main.rotary == 64
    assert read(model_type="glm4_moe", partial_rotary_factor=0.5).main.rotary == 64
    assert read(rotary_dim=128).main.rotary == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_type_list": [1, 0] * 16}, "attn_type_list: got 0, wanted 1 alone"),
        ({"attn_type_list": [1]}, "attn_type_list: got a list of 1, wanted one entry for each"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "MX" * 16},
            "hybrid_override_pattern: got 'X', wanted entries among M",
        ),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "*E" * 16},
            "n_routed_experts: got nothing, wanted their number",
        ),
        ({"num_local_experts": -1}, "num_local_experts: got -1, wanted a whole number 0 to"),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 0},
            "num_experts_per_tok: got 0, wanted a whole number 1 to 8",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "n_group": 3},
            "n_group: got 3, wanted a divisor of the 8 experts",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "scoring_func": "odd"},
            "scoring_func: got 'odd', wanted softmax or sigmoid",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["odd"] * 32},
            "mlp_layer_types: got 'odd', wanted dense or sparse",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["dense"]},
            "mlp_layer_types: got a list of 1, wanted one entry for",
        ),
        ({"indexer_types": ["odd"] * 32}, "indexer_types: got 'odd', wanted full or shared"),
        ({**QWEN35, "mamba_ssm_dtype": "fp4"}, "mamba_ssm_dtype: got 'fp4', wanted one of float32"),
        (
            {**SUPER, "num_hidden_layers": 88, "n_groups": 3},
            "n_groups: got 3, wanted a divisor of mamba_num_heads 128",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1]},
            "moe_layer_freq: got a list of 2, wanted one entry for each of 32 layers",
        ),
    ],
)
def test_mixtures_and_hybrids_that_cannot_be_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError) as refused:
        read(**changes)

    assert str(refused.value).startswith(f"config.json: {message}")


def test_a_language_model_shows_how_its_layers_mix_and_what_they_keep():
    shown = json.loads(json.dumps(read_model(json.dumps(QWEN35)).to_dict()))
    delta, full = shown["blocks"]

    assert (delta["mixer"], full["mixer"]) == ("delta", "attention")
    assert delta["recurrence"]["key_heads"] == 16
    assert (delta["heads"], full["heads"], full["rotary"]) == (0, 32, 64)
    assert full["ffn"]["shared_gated"] is True
    assert shown["kept_bytes"]["a_token"] == 15 * 2 * 2 * 256 * 2
    assert shown["kept_bytes"]["a_sequence"] == 45 * delta["kept"]["state"]
    assert shown["draft"][0]["name"] == "draft_full_experts"
    assert read_model("gpt-oss-20b").to_dict()["kept_bytes"]["windows"] == 12 * 128 * 1024 * 2
