"""A small Wan: checkpoints, inputs of a step, and the model in PyTorch."""

import re

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

HEADS, SIZE, TEXT, CHANNELS, FFN, LAYERS = 2, 16, 24, 3, 40, 2
HIDDEN, AXES, TOKENS, POINTS = HEADS * SIZE, (8, 4, 4), 7, 4
FRAMES, HIGH, WIDE = 2, 3, 4  # tokens
CONFIG = {
    "_class_name": "WanTransformer3DModel", "attention_head_dim": SIZE, "cross_attn_norm": True,
    "ffn_dim": FFN, "freq_dim": 256, "in_channels": CHANNELS, "num_attention_heads": HEADS,
    "num_layers": LAYERS, "out_channels": CHANNELS, "patch_size": [1, 2, 2], "text_dim": TEXT,
}  # fmt: skip
MASKED = {**CONFIG, "in_channels": 2 * CHANNELS + 1}
"""A first frame and its mask beside the latents, as Wan 2.2 I2V A14B has it."""
PICTURE = {**CONFIG, "image_dim": 20, "added_kv_proj_dim": HIDDEN}
"""A picture beside the prompt, as Wan 2.1 I2V has it."""
ORIGINAL = {
    "_class_name": "WanModel", "dim": HIDDEN, "ffn_dim": FFN, "freq_dim": 256, "in_dim": CHANNELS,
    "model_type": "t2v", "num_heads": HEADS, "num_layers": LAYERS, "out_dim": CHANNELS,
    "text_dim": TEXT, "eps": 1e-6,
}  # fmt: skip
"""The same by the configuration of the first repository."""
FIRST = {
    r"condition_embedder\.time_embedder\.linear_1": "time_embedding.0",
    r"condition_embedder\.time_embedder\.linear_2": "time_embedding.2",
    r"condition_embedder\.text_embedder\.linear_1": "text_embedding.0",
    r"condition_embedder\.text_embedder\.linear_2": "text_embedding.2",
    r"condition_embedder\.time_proj": "time_projection.1",
    r"^proj_out": "head.head",
    r"^scale_shift_table": "head.modulation",
    r"(blocks\.\d+)\.scale_shift_table": r"\1.modulation",
    r"attn1\.to_([qkv])": r"self_attn.\1",
    r"attn2\.to_([qkv])": r"cross_attn.\1",
    r"attn1\.to_out\.0": "self_attn.o",
    r"attn2\.to_out\.0": "cross_attn.o",
    r"attn1\.norm_": "self_attn.norm_",
    r"attn2\.norm_": "cross_attn.norm_",
    r"norm2\.": "norm3.",
    r"ffn\.net\.0\.proj": "ffn.0",
    r"ffn\.net\.2": "ffn.2",
}
"""Its names of tensors, wan/modules/model.py of github.com/Wan-Video/Wan2.1."""
SIZES = {"frames": 1 + 4 * (FRAMES - 1), "height": 16 * HIGH, "width": 16 * WIDE,
         "text_tokens": TOKENS}  # fmt: skip


def original(tensors):
    """Call tensors of diffusers as the first repository does."""
    for there, first in FIRST.items():
        tensors = {re.sub(there, first, key): tensor for key, tensor in tensors.items()}
    return tensors


def checkpoint(config):
    """Random weights in the layout of diffusers."""
    made = RandomWeights()
    inputs, outputs = POINTS * config["in_channels"], POINTS * config["out_channels"]
    made.linear("patch_embedding", inputs, HIDDEN)
    kernel = made.tensors["patch_embedding.weight"]
    made.tensors["patch_embedding.weight"] = kernel.reshape(HIDDEN, -1, 1, 2, 2)
    for name, features in (("time", 256), ("text", TEXT)):
        made.linear(f"condition_embedder.{name}_embedder.linear_1", features, HIDDEN)
        made.linear(f"condition_embedder.{name}_embedder.linear_2", HIDDEN, HIDDEN)
    made.linear("condition_embedder.time_proj", HIDDEN, 6 * HIDDEN)
    made.array("scale_shift_table", 1, 2, HIDDEN)
    made.linear("proj_out", HIDDEN, outputs)
    if "image_dim" in config:
        start, width = "condition_embedder.image_embedder", config["image_dim"]
        made.linear(f"{start}.ff.net.0.proj", width, width)
        made.linear(f"{start}.ff.net.2", width, HIDDEN)
        for name, features in (("norm1", width), ("norm2", HIDDEN)):
            made.gain(f"{start}.{name}.weight", features)
            made.array(f"{start}.{name}.bias", features)
    for number in range(LAYERS):
        start = f"blocks.{number}"
        if "image_dim" in config:
            made.linear(f"{start}.attn2.add_k_proj", HIDDEN, HIDDEN)
            made.linear(f"{start}.attn2.add_v_proj", HIDDEN, HIDDEN)
            made.gain(f"{start}.attn2.norm_added_k.weight", HIDDEN)
        made.array(f"{start}.scale_shift_table", 1, 6, HIDDEN)
        for attn in ("attn1", "attn2"):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                made.linear(f"{start}.{attn}.{name}", HIDDEN, HIDDEN)
            for name in ("norm_q", "norm_k"):
                made.gain(f"{start}.{attn}.{name}.weight", HIDDEN)
        made.gain(f"{start}.norm2.weight", HIDDEN)
        made.array(f"{start}.norm2.bias", HIDDEN)
        made.linear(f"{start}.ffn.net.0.proj", HIDDEN, FFN)
        made.linear(f"{start}.ffn.net.2", FFN, HIDDEN)
    return made.tensors


def told(config):
    """Inputs of a forward: latents, of each feature all points of a token, prompt, step."""
    random = np.random.default_rng(5)
    shape = (1, FRAMES * HIGH * WIDE, POINTS * config["in_channels"])
    picture = random.standard_normal((1, 257, config.get("image_dim", 1)))
    rows = {f"input.image_context{end}": picture for end in ("", "#1")}
    return (rows if "image_dim" in config else {}) | {
        "input.video": random.standard_normal(shape),
        "input.text": random.standard_normal((1, TOKENS, TEXT)),
        "input.text#1": random.standard_normal((1, TOKENS, TEXT)),
        "scale": np.full((1, 1, 1), 3.0),
        "time": np.full((1, 1, 1), 437.5),
        "change": np.full((1, 1, 1), -0.25),
    }


def image_of(rows, channels):
    """Latents ``[b, channels, frames, height, width]`` of rows of tokens."""
    grid = rows.reshape(1, FRAMES, HIGH, WIDE, channels, 2, 2)
    return grid.permute(0, 4, 1, 2, 5, 3, 6).reshape(1, channels, FRAMES, 2 * HIGH, 2 * WIDE)


def predicted(config, linear, weights, given):
    """What the model in PyTorch predicts, from diffusers' transformer_wan.py."""
    image = image_of(given["input.video"], config["in_channels"])
    patches = torch.nn.functional.conv3d(
        image, weights["patch_embedding.weight"], weights["patch_embedding.bias"], stride=(1, 2, 2)
    )
    x = patches.flatten(2).transpose(1, 2)
    embed = "condition_embedder"
    row = mlp(linear, f"{embed}.time_embedder.linear_", waves(given["time"][:, 0]))
    vectors = linear(f"{embed}.time_proj", torch.nn.functional.silu(row)).unflatten(1, (6, -1))
    text = mlp(linear, f"{embed}.text_embedder.linear_", given["input.text"], gelu)
    picture = pictured(linear, weights, given.get("input.image_context"))
    places = torch.cartesian_prod(*map(torch.arange, (FRAMES, HIGH, WIDE))).double()
    each = [10000 ** -(torch.arange(0, axis, 2).double() / axis) for axis in AXES]
    angles = torch.cat([places[:, [n]] * one for n, one in enumerate(each)], -1)

    def attended(start, x, context, turn):
        q, k = (
            turn(rms_norm(linear(f"{start}.to_{n}", one), weights[f"{start}.norm_{n}.weight"]))
            for n, one in (("q", x), ("k", context))
        )
        met = attention(q, k, heads(linear(f"{start}.to_v", context)))
        if context is text and picture is not None:
            gain = weights[f"{start}.norm_added_k.weight"]
            k = heads(rms_norm(linear(f"{start}.add_k_proj", picture), gain))
            met = met + attention(q, k, heads(linear(f"{start}.add_v_proj", picture)))
        return linear(f"{start}.to_out.0", met)

    def heads(x):
        return x.unflatten(-1, (HEADS, SIZE))

    for number in range(LAYERS):
        start = f"blocks.{number}"
        own = weights[f"{start}.scale_shift_table"].float() + vectors.float()
        own = own.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        shift, scale, gate, shift2, scale2, gate2 = own.chunk(6, 1)
        h = (layer_norm(x) * (1 + scale) + shift).to(x.dtype)
        met = attended(f"{start}.attn1", h, h, lambda one: turned(heads(one), angles))
        x = (x + met * gate).to(x.dtype)
        h = layer_norm(x) * weights[f"{start}.norm2.weight"] + weights[f"{start}.norm2.bias"]
        x = x + attended(f"{start}.attn2", h, text, heads)
        h = (layer_norm(x) * (1 + scale2) + shift2).to(x.dtype)
        h = linear(f"{start}.ffn.net.2", gelu(linear(f"{start}.ffn.net.0.proj", h)))
        x = (x + h * gate2).to(x.dtype)
    shift, scale = (weights["scale_shift_table"] + row[:, None]).chunk(2, 1)
    out = linear("proj_out", layer_norm(x) * (1 + scale) + shift)
    return out.unflatten(-1, (POINTS, -1)).transpose(-1, -2).flatten(-2)


def pictured(linear, weights, rows):
    """Rows of a picture as layers read them; norms here have PyTorch's usual epsilon."""
    if rows is None:
        return None
    start = "condition_embedder.image_embedder"

    def norm(x, name):
        plain = layer_norm(x, 1e-5)
        return plain * weights[f"{start}.{name}.weight"] + weights[f"{start}.{name}.bias"]

    inner = linear(f"{start}.ff.net.0.proj", norm(rows, "norm1"))
    return norm(linear(f"{start}.ff.net.2", torch.nn.functional.gelu(inner)), "norm2")


def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")
