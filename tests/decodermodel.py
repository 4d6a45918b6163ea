"""Small language models: configurations, and checkpoints in the layout of transformers."""

import json

import numpy as np
from safetensorsfiles import safetensors

HIDDEN, HEADS, SHARED, SIZE, WIDE, TOKENS, LAYERS = 64, 4, 2, 16, 112, 96, 2
ROWS = 24
CONFIG = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": SHARED, "intermediate_size": WIDE,
    "vocab_size": TOKENS, "rms_norm_eps": 0.01, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "max_position_embeddings": 128,
}  # fmt: skip
SLOWED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
KINDS = {
    "llama": CONFIG,
    "llama-2": {key: value for key, value in CONFIG.items() if key != "rope_theta"},
    "llama-3.1": {**CONFIG, "rope_scaling": SLOWED},
    "tied": {**CONFIG, "tie_word_embeddings": True},
    "transformers-5": {
        **{key: value for key, value in CONFIG.items() if key != "rope_theta"},
        "rope_parameters": {**SLOWED, "rope_theta": 10000.0},
    },
    "mistral": {**CONFIG, "model_type": "mistral", "sliding_window": None},
    "windowed": {**CONFIG, "model_type": "mistral", "sliding_window": 8},
    "qwen3": {**CONFIG, "model_type": "qwen3", "head_dim": SIZE},
}


def checkpoint(config):
    """Random weights in the layout of transformers, of a spread that keeps values near one."""
    random = np.random.default_rng(7)

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def gain(size):
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(TOKENS, HIDDEN) * 8}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        tensors |= {
            f"{start}.input_layernorm.weight": gain(HIDDEN),
            f"{start}.self_attn.q_proj.weight": matrix(HEADS * SIZE, HIDDEN) * 3,
            f"{start}.self_attn.k_proj.weight": matrix(SHARED * SIZE, HIDDEN) * 3,
            f"{start}.self_attn.v_proj.weight": matrix(SHARED * SIZE, HIDDEN),
            f"{start}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * SIZE),
            f"{start}.post_attention_layernorm.weight": gain(HIDDEN),
            f"{start}.mlp.gate_proj.weight": matrix(WIDE, HIDDEN),
            f"{start}.mlp.up_proj.weight": matrix(WIDE, HIDDEN),
            f"{start}.mlp.down_proj.weight": matrix(HIDDEN, WIDE),
        }
        if config["model_type"] == "qwen3":
            tensors[f"{start}.self_attn.q_norm.weight"] = gain(SIZE)
            tensors[f"{start}.self_attn.k_norm.weight"] = gain(SIZE)
    tensors["model.norm.weight"] = gain(HIDDEN)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(TOKENS, HIDDEN)
    return tensors


def save(folder, config, tensors, dtype="fp32"):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(tensors, dtype).tobytes())
