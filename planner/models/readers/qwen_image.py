"""Qwen-Image: double-stream layers all the way."""

from dataclasses import replace

from planner.models.architecture import Block, Model, Stream
from planner.models.count import linear, perceptron
from planner.models.fields import CHANNELS, Fields
from planner.models.readers.parts import (
    PATCH,
    TIME,
    Grid,
    adaptive_ends,
    assemble,
    heads_of,
    joint_towers,
    latent_of,
    layers_of,
    text_stream,
)

STREAMS = ("text", "image")
_TEXT_TOKENS = 128  # prompts keep their real length, of at most 512


def read(fields: Fields) -> Model:
    """Read a `QwenImageTransformer2DModel`; 2 x 2 latents are packed before it."""
    heads = heads_of(fields, query=24, size=128)
    towers = joint_towers(STREAMS, heads=heads, width=4 * heads.query_width)
    patch = fields.integer("patch_size", high=PATCH, default=2)
    channels = fields.integer("out_channels", high=CHANNELS, default=16)
    latent = latent_of((8, 1), channels, (1, patch, patch))
    grid = Grid(
        latent=replace(latent, rounds="down"),
        inputs=fields.integer("in_channels", high=CHANNELS, default=64),
        outputs=channels * patch**2,
    )
    return assemble(
        fields,
        "qwen-image",
        blocks=(Block(name="double", count=layers_of(fields, default=60), towers=towers),),
        streams=(text_stream(_TEXT_TOKENS), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def usual(fields: Fields) -> str:
    """Name the one size there is."""
    del fields
    return "qwen-image"


def _outer(fields: Fields, hidden: int, grid: Grid) -> int:
    text = fields.integer("joint_attention_dim", default=3584)
    embeddings = perceptron(TIME, hidden) + text + linear(text, hidden)
    return embeddings + adaptive_ends(hidden, grid)
