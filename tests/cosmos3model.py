"""A small Cosmos 3: its configuration, a checkpoint in the layout of diffusers, and its step."""

import numpy as np
from computedmodels import RandomWeights, attention, mlp, rms_norm, turned_halves, waves

try:
    import torch
except ImportError:
    torch = None

HEADS, SHARED, SIZE, HIDDEN, FFN, LAYERS = 4, 2, 16, 32, 40, 2
CHANNELS, WORDS, TOKENS, PAIRS = 3, 50, 7, (4, 2, 2)
FRAMES, HIGH, WIDE = 2, 3, 4  # tokens
CONFIG = {
    "_class_name": "Cosmos3OmniTransformer", "head_dim": SIZE, "hidden_size": HIDDEN,
    "intermediate_size": FFN, "latent_channel": CHANNELS, "latent_patch_size": 2,
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": SHARED,
    "patch_latent_dim": 4 * CHANNELS, "rope_axes_dim": PAIRS, "vocab_size": WORDS,
}  # fmt: skip
SIZES = {"frames": 1 + 4 * (FRAMES - 1), "height": 32 * HIGH, "width": 32 * WIDE,
         "text_tokens": TOKENS}  # fmt: skip
OWN = {"": ("to_q", "to_k", "to_v", "to_out", "norm_q", "norm_k", "mlp"),
       "_moe_gen": ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added_q",
                    "norm_added_k", "mlp_moe_gen")}  # fmt: skip
"""Names of either tower's parts, by the end of those of its norms."""


def checkpoint(config):
    """Random weights in the layout of diffusers."""
    made = RandomWeights()
    made.array("embed_tokens.weight", WORDS, HIDDEN)
    made.array("lm_head.weight", WORDS, HIDDEN)
    made.linear("proj_in", 4 * CHANNELS, HIDDEN)
    made.linear("proj_out", HIDDEN, 4 * CHANNELS)
    made.linear("time_embedder.linear_1", 256, HIDDEN)
    made.linear("time_embedder.linear_2", HIDDEN, HIDDEN)
    for end, (q, k, v, out, norm_q, norm_k, feed) in OWN.items():
        made.gain(f"norm{end}.weight", HIDDEN)
        for number in range(config["num_hidden_layers"]):
            start = f"layers.{number}"
            made.gain(f"{start}.input_layernorm{end}.weight", HIDDEN)
            made.gain(f"{start}.post_attention_layernorm{end}.weight", HIDDEN)
            for name, heads in ((q, HEADS), (k, SHARED), (v, SHARED)):
                made.matrix(f"{start}.self_attn.{name}", HIDDEN, heads * SIZE)
            made.matrix(f"{start}.self_attn.{out}", HEADS * SIZE, HIDDEN)
            for name in (norm_q, norm_k):
                made.gain(f"{start}.self_attn.{name}.weight", SIZE)
            made.matrix(f"{start}.{feed}.gate_proj", HIDDEN, FFN)
            made.matrix(f"{start}.{feed}.up_proj", HIDDEN, FFN)
            made.matrix(f"{start}.{feed}.down_proj", FFN, HIDDEN)
    return made.tensors


def told():
    """Inputs of a forward: latents, numbers of the prompt's tokens, step, guidance."""
    random = np.random.default_rng(5)
    return {
        "input.video": random.standard_normal((1, FRAMES * HIGH * WIDE, 4 * CHANNELS)),
        "input.text": random.integers(0, WORDS, (1, TOKENS)),
        "input.text#1": random.integers(0, WORDS, (1, TOKENS)),
        "scale": np.full((1, 1, 1), 3.0),
        "time": np.full((1, 1, 1), 437.5),
        "change": np.full((1, 1, 1), -0.25),
    }


def angles_of(places):
    """What heads are turned by, frames, rows and columns in turns: ``[r, 3]`` to ``[r, f / 2]``."""
    turns = places[:, :, None] * 5e6 ** -(torch.arange(0, SIZE, 2).double() / SIZE)
    chosen = turns[:, 0].clone()
    for axis in (1, 2):
        own = slice(axis, 3 * PAIRS[axis], 3)
        chosen[:, own] = turns[:, axis, own]
    return chosen


def predicted(config, linear, weights, given):
    """What the model in PyTorch predicts, from diffusers' transformer_cosmos3.py."""
    row = mlp(linear, "time_embedder.linear_", waves(given["time"][:, 0] * 0.001))
    rows = {
        "": weights["embed_tokens.weight"][given["input.text"].long()],
        "_moe_gen": linear("proj_in", given["input.video"]) + row[:, None],
    }
    tokens = given["input.text"].shape[1]
    words = torch.arange(tokens)[:, None].expand(-1, 3)
    grid = torch.cartesian_prod(*map(torch.arange, (FRAMES, HIGH, WIDE)))
    places = {"": words, "_moe_gen": grid + torch.tensor([tokens + 15000, 0, 0])}
    angles = {end: angles_of(place.double()) for end, place in places.items()}
    for number in range(config["num_hidden_layers"]):
        start, made = f"layers.{number}", {}
        for end, (q, k, v, _, norm_q, norm_k, _) in OWN.items():
            h = rms_norm(rows[end], weights[f"{start}.input_layernorm{end}.weight"])
            a = f"{start}.self_attn"
            asked, key, value = (
                linear(f"{a}.{one}", h).unflatten(-1, (-1, SIZE)) for one in (q, k, v)
            )
            asked = turned_halves(rms_norm(asked, weights[f"{a}.{norm_q}.weight"]), angles[end])
            key = turned_halves(rms_norm(key, weights[f"{a}.{norm_k}.weight"]), angles[end])
            made[end] = asked, key, value
        text, video = made.values()
        every = (torch.cat([one, other], 1) for one, other in zip(text[1:], video[1:], strict=True))
        met = {
            "": attention(*text, is_causal=True, enable_gqa=True),
            "_moe_gen": attention(video[0], *every, enable_gqa=True),
        }
        for end, (*_, out, _, _, feed) in OWN.items():
            x = rows[end] + linear(f"{start}.self_attn.{out}", met[end])
            h = rms_norm(x, weights[f"{start}.post_attention_layernorm{end}.weight"])
            gate = torch.nn.functional.silu(linear(f"{start}.{feed}.gate_proj", h))
            inner = gate * linear(f"{start}.{feed}.up_proj", h)
            rows[end] = x + linear(f"{start}.{feed}.down_proj", inner)
    return linear("proj_out", rms_norm(rows["_moe_gen"], weights["norm_moe_gen.weight"]))
