"""A small FLUX.1: checkpoints, inputs of a step, and the model in PyTorch."""

import numpy as np
from computedmodels import (
    RandomWeights,
    attention,
    layer_norm,
    mlp,
    rms_norm,
    turned,
    waves,
)

try:
    import torch
except ImportError:
    torch = None

HEADS, SIZE, TEXT, POOLED, CHANNELS = 2, 16, 24, 12, 16
HIDDEN, AXES, TOKENS = HEADS * SIZE, (4, 6, 6), 7
HIGH, WIDE = 5, 3  # tokens
CONFIG = {
    "_class_name": "FluxTransformer2DModel", "attention_head_dim": SIZE, "axes_dims_rope": AXES,
    "guidance_embeds": True, "in_channels": CHANNELS, "joint_attention_dim": TEXT,
    "num_attention_heads": HEADS, "num_layers": 2, "num_single_layers": 2,
    "pooled_projection_dim": POOLED,
}  # fmt: skip
PICTURE = {**CONFIG, "in_channels": 2 * CHANNELS, "out_channels": CHANNELS}
"""A picture beside the latents, as FLUX.1 Canny and Depth have it."""
MASKED = {**PICTURE, "in_channels": 2 * CHANNELS + 4 * 64}
"""What stays of it, and each pixel's mask, as FLUX.1 Fill has it."""
KINDS = {
    "dev": CONFIG, "schnell": {**CONFIG, "guidance_embeds": False},
    "depth": PICTURE, "fill": MASKED,
}  # fmt: skip
SIZES = {"height": 16 * HIGH, "width": 16 * WIDE, "text_tokens": TOKENS}


def checkpoint(config):
    """Random weights in the layout of diffusers."""
    made = RandomWeights()
    embedders = ["timestep", "text", *(["guidance"] if config["guidance_embeds"] else [])]
    for name in embedders:
        inputs = POOLED if name == "text" else 256
        made.linear(f"time_text_embed.{name}_embedder.linear_1", inputs, HIDDEN)
        made.linear(f"time_text_embed.{name}_embedder.linear_2", HIDDEN, HIDDEN)
    made.linear("context_embedder", TEXT, HIDDEN)
    made.linear("x_embedder", config["in_channels"], HIDDEN)
    made.linear("norm_out.linear", HIDDEN, 2 * HIDDEN)
    made.linear("proj_out", HIDDEN, CHANNELS)
    for number in range(config["num_layers"]):
        start = f"transformer_blocks.{number}"
        for end, ff in (("", "ff"), ("_context", "ff_context")):
            made.linear(f"{start}.norm1{end}.linear", HIDDEN, 6 * HIDDEN)
            made.linear(f"{start}.{ff}.net.0.proj", HIDDEN, 4 * HIDDEN)
            made.linear(f"{start}.{ff}.net.2", 4 * HIDDEN, HIDDEN)
        names = ("to_q", "to_k", "to_v", "to_out.0")
        for name in (*names, "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            made.linear(f"{start}.attn.{name}", HIDDEN, HIDDEN)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            made.gain(f"{start}.attn.{name}.weight", SIZE)
    for number in range(config["num_single_layers"]):
        start = f"single_transformer_blocks.{number}"
        made.linear(f"{start}.norm.linear", HIDDEN, 3 * HIDDEN)
        made.linear(f"{start}.proj_mlp", HIDDEN, 4 * HIDDEN)
        made.linear(f"{start}.proj_out", 5 * HIDDEN, HIDDEN)
        for name in ("to_q", "to_k", "to_v"):
            made.linear(f"{start}.attn.{name}", HIDDEN, HIDDEN)
        for name in ("norm_q", "norm_k"):
            made.gain(f"{start}.attn.{name}.weight", SIZE)
    return made.tensors


def told(config):
    """Inputs of a forward: latents, prompt, its pooled row, the step's number, guidance."""
    random = np.random.default_rng(5)
    given = {
        "input.image": random.standard_normal((1, HIGH * WIDE, config["in_channels"])),
        "input.text": random.standard_normal((1, TOKENS, TEXT)),
        "pooled": random.standard_normal((1, 1, POOLED)),
        "time": np.full((1, 1, 1), 437.5),
        "change": np.full((1, 1, 1), -0.25),
    }
    if config["guidance_embeds"]:
        given["guidance"] = np.full((1, 1, 1), 3.5)
    return given


def predicted(config, linear, weights, given):
    """What the model in PyTorch predicts, from diffusers' transformer_flux.py."""
    silu = torch.nn.functional.silu
    embed = "time_text_embed"
    row = mlp(linear, f"{embed}.timestep_embedder.linear_", waves(given["time"][:, 0]))
    if config["guidance_embeds"]:
        number = waves(1000 * given["guidance"][:, 0])
        row = row + mlp(linear, f"{embed}.guidance_embedder.linear_", number)
    row = silu(row + mlp(linear, f"{embed}.text_embedder.linear_", given["pooled"][:, 0]))
    text = linear("context_embedder", given["input.text"])
    image = linear("x_embedder", given["input.image"])
    grid = torch.cartesian_prod(*map(torch.arange, (1, HIGH, WIDE)))
    places = torch.cat([torch.zeros(TOKENS, 3), grid]).double()
    each = [10000 ** -(torch.arange(0, axis, 2).double() / axis) for axis in AXES]
    angles = torch.cat([places[:, [n]] * one for n, one in enumerate(each)], -1)

    def heads(x, name, norm):
        x = linear(name, x).unflatten(-1, (HEADS, SIZE))
        return x if norm.endswith("v") else rms_norm(x, weights[f"{norm}.weight"])

    def modulated(x, shift, scale):
        return layer_norm(x) * (1 + scale[:, None]) + shift[:, None]

    def attended(q, k, v):
        return attention(turned(q, angles), turned(k, angles), v)

    for number in range(config["num_layers"]):
        start = f"transformer_blocks.{number}"
        own = {"": image, "_context": text}
        vectors = {end: linear(f"{start}.norm1{end}.linear", row).chunk(6, -1) for end in own}
        normed = {end: modulated(x, *vectors[end][:2]) for end, x in own.items()}
        a = f"{start}.attn"
        q, k, v = (
            torch.cat([
                heads(normed["_context"], f"{a}.add_{n}_proj", f"{a}.norm_added_{n}"),
                heads(normed[""], f"{a}.to_{n}", f"{a}.norm_{n}"),
            ], 1)
            for n in "qkv"
        )  # fmt: skip
        met = attended(q, k, v)
        out = {"_context": linear(f"{a}.to_add_out", met[:, :TOKENS])}
        out[""] = linear(f"{a}.to_out.0", met[:, TOKENS:])
        for end, ff in (("", "ff"), ("_context", "ff_context")):
            _, _, gate, shift, scale, last = vectors[end]
            x = own[end] + gate[:, None] * out[end]
            h = linear(f"{start}.{ff}.net.0.proj", modulated(x, shift, scale))
            h = linear(f"{start}.{ff}.net.2", torch.nn.functional.gelu(h, approximate="tanh"))
            own[end] = x + last[:, None] * h
        image, text = own[""], own["_context"]
    x = torch.cat([text, image], 1)
    for number in range(config["num_single_layers"]):
        start = f"single_transformer_blocks.{number}"
        shift, scale, gate = linear(f"{start}.norm.linear", row).chunk(3, -1)
        h = modulated(x, shift, scale)
        a = f"{start}.attn"
        met = attended(*(heads(h, f"{a}.to_{n}", f"{a}.norm_{n}") for n in "qkv"))
        inner = torch.nn.functional.gelu(linear(f"{start}.proj_mlp", h), approximate="tanh")
        x = x + gate[:, None] * linear(f"{start}.proj_out", torch.cat([met, inner], -1))
    scale, shift = linear("norm_out.linear", row).chunk(2, -1)
    return linear("proj_out", modulated(x[:, TOKENS:], shift, scale))
