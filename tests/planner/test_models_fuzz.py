"""Whatever JSON a user has, the answer is a model or one line."""

import json
from importlib import import_module
from pkgutil import iter_modules

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testmodels import kept_bytes

from planner.models import Model, names, read_model, readers
from planner.models.readers import decoder, encoder
from topology.base import InputError

READERS = [
    import_module(found.name) for found in iter_modules(readers.__path__, f"{readers.__name__}.")
]
DIFFUSION = [name for reader in READERS for name in getattr(reader, "CLASSES", ())]
TYPES = {**decoder.MODEL_TYPES, **encoder.MODEL_TYPES}
KINDS = [*DIFFUSION, *TYPES, *(name for names in TYPES.values() for name in names)]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.integers(0, 300)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)

LIKE = {
    "decoder": {
        "model_type": "mixtral",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": 1000,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "gptq", "group_size": 128},
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128},
    },
    "hybrid": {
        "model_type": "nemotron_h",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 1000,
        "mamba_num_heads": 8,
        "n_groups": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "hybrid_override_pattern": "ME*-",
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "chunk_size": 64,
        "mamba_ssm_cache_dtype": "float32",
        "moe_latent_size": 64,
        "moe_shared_expert_intermediate_size": 128,
        "num_nextn_predict_layers": 1,
        "mtp_hybrid_override_pattern": "*E",
    },
    "delta": {
        "model_type": "qwen3_5_moe",
        "text_config": {"model_type": "qwen3_5_moe_text"},
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "exclude_modules": ["model.layers.*.self_attn*", "lm_head"],
            "kv_cache_quant_algo": "FP8",
        },
    },
    "words": {
        "model_type": "qwen3_next",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 1000,
        "full_attention_interval": 4,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_value_head_dim": 32,
        "linear_key_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "mtp_num_hidden_layers": 1,
        "partial_rotary_factor": 0.25,
        "attn_output_gate": True,
    },
    "wide": {
        "model_type": "gemma4_text",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "sliding_window": 128,
        "vocab_size": 1000,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25}},
    },
    "latent": {
        "model_type": "deepseek_v3",
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "num_attention_heads": 8,
        "q_lora_rank": 64,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "vocab_size": 1000,
        "n_group": 2,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5,
        "moe_layer_freq": 1,
        "index_topk": 16,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "attn_type_list": [1, 1, 1, 1],
    },
    "t5": {"model_type": "t5", "d_model": 64, "d_ff": 128, "num_heads": 2, "num_layers": 3},
    "clip": {"model_type": "clip_text_model", "hidden_size": 64, "num_attention_heads": 4},
}
LIKE["delta"]["text_config"] |= LIKE["words"]
LIKE |= {
    name: {
        "_class_name": name,
        "num_layers": 3,
        "num_single_layers": 2,
        "n_layers": 3,
        "num_hidden_layers": 3,
        "num_refiner_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_kv_heads": 2,
        "attention_head_dim": 16,
        "hidden_size": 64,
        "dim": 64,
        "num_heads": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "patch_size": [1, 2, 2] if name.startswith(("Wan", "CosmosT")) else 2,
        "in_channels": 16,
        "mlp_ratio": 4.0,
        "guidance_embeds": True,
        "dual_attention_layers": [0],
        "llama_layers": [0, 1],
        "vae_scale_factors": [8, 32, 32],
        "ffn_dim": 128,
    }
    for name in DIFFUSION
}
KEYS = sorted({key for config in LIKE.values() for key in config})


def read_or_line(text):
    try:
        return read_model(text)
    except InputError as error:
        return str(error)


def read(config):
    return read_or_line(json.dumps(config))


def sound(found):
    """Whether it is one line, or a model with parameters of which everything can be used."""
    if isinstance(found, str):
        return found != "" and "\n" not in found
    assert 0 < found.active_parameters <= found.parameters
    assert kept_bytes(found, 10) <= kept_bytes(found, 1000)
    return bool(json.dumps(found.to_dict(), allow_nan=False))


def test_likely_configurations_are_read():
    for name in LIKE:
        assert isinstance(model := read(LIKE[name]), Model), name
        assert sound(model), name


def test_one_layer_is_enough():
    for name in LIKE:
        layers = {"num_layers": 1, "n_layers": 1, "num_hidden_layers": 1}
        small = {**LIKE[name], **layers}
        if name in {"decoder", "hybrid", "latent"}:
            small |= {"layer_types": None, "hybrid_override_pattern": None, "attn_type_list": None}

        assert isinstance(model := read(small), Model), name
        assert sound(model), name


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    base=st.sampled_from(sorted(LIKE)),
    changes=st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=4),
)
def test_changed_configurations_are_a_model_or_one_line(base, changes):
    assert sound(read({**LIKE[base], **changes}))


@settings(max_examples=100)
@given(
    base=st.sampled_from(sorted(LIKE)),
    key=st.sampled_from(KEYS),
    value=st.integers(1, 2000),
)
def test_changed_sizes_are_a_model_or_one_line(base, key, value):
    assert sound(read({**LIKE[base], key: value}))


@settings(max_examples=100)
@given(
    config=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), values, max_size=8),
    kind=st.sampled_from(KINDS) | values,
    where=st.sampled_from(["_class_name", "model_type", "architectures"]),
)
def test_random_objects_are_a_model_or_one_line(config, kind, where):
    assert sound(read({**config, where: [kind] if where == "architectures" else kind}))


@settings(max_examples=100)
@given(text=st.text(max_size=40))
def test_random_text_is_a_model_or_one_line(text):
    line = read_or_line("{" + text)

    assert isinstance(line, str)
    assert "\n" not in line


@settings(max_examples=100)
@given(text=st.text(max_size=20))
def test_random_names_are_refused_in_one_line(text):
    if text.strip().lower() not in {*names(), ".", ".."}:
        with pytest.raises(InputError) as refused:
            read_model(f"no-such-{text}")
        assert "\n" not in str(refused.value)


@settings(max_examples=100)
@given(
    base=st.sampled_from(sorted(DIFFUSION)),
    key=st.sampled_from(["num_layers", "n_layers", "num_hidden_layers"]),
    layers=st.integers(3, 100),
    more=st.integers(1, 50),
)
def test_more_layers_never_mean_fewer_parameters(base, key, layers, more):
    few, many = ({**LIKE[base], key: count} for count in (layers, layers + more))

    assert read(few).parameters <= read(many).parameters
