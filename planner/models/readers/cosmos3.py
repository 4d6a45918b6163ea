"""Cosmos 3: two towers with one layer index; video attends to the prompt's keys, not back."""

from dataclasses import replace
from typing import Final

from planner.models.architecture import (
    Activation,
    Block,
    Ffn,
    Model,
    Numerics,
    Stream,
    Tower,
)
from planner.models.fields import CHANNELS, CONTEXT, HEAD_SIZE, HEADS, VOCABULARY, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import linear, perceptron

CLASSES = ("Cosmos3OmniTransformer",)
# A JSON prompt is some 2,500 tokens, the negative one some 4,000; one pass sees each.
_TEXT_TOKENS = 3250
_AXES: Final = (24, 20, 20)
_THETA: Final = 5_000_000
_MARGIN: Final = 15_000
_TIME_SCALE: Final = 1 / 10**3


def read(fields: Fields) -> Model:
    """Read a `Cosmos3OmniTransformer`. Its text tower does not depend on the step."""
    hidden, grid = fields.integer("hidden_size", default=4096), _grid(fields)
    vocabulary = fields.integer("vocab_size", high=VOCABULARY, default=151936)
    layers = parts.layers_of(fields, default=36, name="num_hidden_layers")
    model = parts.assemble(
        fields,
        "cosmos3",
        usual=_usual_entry(hidden),
        blocks=(Block(name="layers", count=layers, towers=_towers(fields, hidden)),),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="video", pads=True)),
        grid=grid,
        outer=2 * vocabulary * hidden + 2 * hidden + _end_parameters(fields, hidden, grid.inputs),
    )
    context = fields.integer("max_position_embeddings", high=CONTEXT, default=0)
    return replace(
        model,
        vocabulary=vocabulary,
        context=context,
        reuses=("text",),
        numerics=_numerics(fields, _heads(fields).size),
    )


def _numerics(fields: Fields, size: int) -> Numerics | None:
    """Say what the numbers of Cosmos 3 depend on.

    None where videos read other norms of the prompt's keys, or count rows behind the prompt.
    """
    scaling = fields.table("rope_scaling")
    default = _AXES if scaling is None else scaling.integers("mrope_section", default=_AXES)
    pairs = fields.integers("rope_axes_dim", default=default)
    computable = fields.boolean("qk_norm_for_text", default=True)
    computable = computable and fields.boolean("unified_3d_mrope_reset_spatial_ids", default=True)
    computable = computable and not fields.boolean("attention_bias", default=False)
    if not computable or len(pairs) != len(_AXES) or sum(pairs) != size // 2:
        return None
    return Numerics(
        epsilon=fields.number("rms_norm_eps", high=1.0, default=parts.EPSILON),
        theta=fields.number("rope_theta", low=1.0, high=CONTEXT, default=_THETA),
        normed="head",
        axes=tuple(2 * count for count in pairs),
        alternating=True,
        behind=fields.integer("unified_3d_mrope_temporal_modality_margin", low=0, default=_MARGIN),
        conditions=(
            parts.timestep(factor=fields.number("timestep_scale", high=1.0, default=_TIME_SCALE)),
        ),
        timed="rows",
        channels_last=True,
    )


def _usual_entry(hidden: int) -> str:
    """Tell three sizes apart by their width."""
    if hidden <= 2048:
        return "cosmos3-edge"
    return "cosmos3-nano" if hidden <= 4096 else "cosmos3-super"


def _grid(fields: Fields) -> parts.Grid:
    patch = fields.integer("latent_patch_size", high=parts.PATCH, default=2)
    channels = fields.integer("latent_channel", high=CHANNELS, default=48)
    features = fields.integer("patch_latent_dim", default=min(channels * patch**2, CHANNELS))
    latent = parts.latent_of((16, 4), channels, (1, patch, patch), "up")
    return parts.Grid(latent=latent, inputs=features, outputs=features)


def _heads(fields: Fields) -> Heads:
    count = fields.integer("num_attention_heads", high=HEADS, default=32)
    heads_key, default_heads = "num_attention_heads", min(8, count)
    key_value_heads = fields.divisor(
        "num_key_value_heads", of=heads_key, whole=count, default=default_heads
    )
    size = fields.integer("head_dim", high=HEAD_SIZE, default=128)
    return Heads(query=count, key_value=key_value_heads, size=size)


def _ffn(fields: Fields) -> Ffn:
    squared = fields.text("hidden_act", default="silu") == "relu2"
    activation: Activation = "relu2" if squared else "silu"
    width = fields.integer("intermediate_size", default=12288)
    return Ffn(width=width, gated=not squared, activation=activation)


def _towers(fields: Fields, hidden: int) -> tuple[Tower, Tower]:
    heads = _heads(fields)
    video_base = parts.tower_of(("video",), heads, _ffn(fields))
    extra = 2 * hidden + 2 * heads.size
    video = replace(video_base, hidden=hidden, keys=("text", "video"), extra=extra)
    normed = fields.boolean("qk_norm_for_text", default=True)
    has_key_norm = fields.boolean("use_und_k_norm_for_gen", default=False)
    text_extra = (
        2 * hidden + (2 if normed else 0) * heads.size + (heads.size if has_key_norm else 0)
    )
    text = replace(
        video, streams=("text",), keys=("text",), causal=True, qk_norm=normed, extra=text_extra
    )
    return text, video


def _end_parameters(fields: Fields, hidden: int, features: int) -> int:
    ends = linear(features, hidden) + linear(hidden, features) + perceptron(parts.TIME, hidden)
    if fields.boolean("action_gen", default=False):
        action = fields.integer("action_dim", high=CHANNELS, default=64)
        domains = fields.integer("num_embodiment_domains", high=CHANNELS, default=32)
        ends += hidden + domains * (linear(action, hidden) + linear(hidden, action))
    if fields.boolean("sound_gen", default=False):
        sound = fields.integer("sound_dim", high=CHANNELS, default=64)
        ends += hidden + linear(sound, hidden) + linear(hidden, sound)
    return ends
