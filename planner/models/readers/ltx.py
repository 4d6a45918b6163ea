"""LTX-Video: self attention over the video, cross attention to the prompt."""

from dataclasses import replace

from planner.models.architecture import Block, Heads, Model, Stream, Tower
from planner.models.count import perceptron
from planner.models.fields import Fields
from planner.models.readers.parts import (
    PATCH,
    Grid,
    assemble,
    channels_of,
    crossed_tower,
    heads_of,
    latent_of,
    layers_of,
    shared_time,
    table_ends,
    text_stream,
)


def read(fields: Fields) -> Model:
    """Read a `LTXVideoTransformer3DModel`: one token a latent pixel."""
    heads = heads_of(fields, query=32, size=64)
    patch = fields.integer("patch_size", high=PATCH, default=1)
    frames = fields.integer("patch_size_t", high=PATCH, default=1)
    inputs, outputs = channels_of(fields, inputs=128, outputs=128)
    channels = max(outputs // (patch**2 * frames), 1)
    latent = latent_of((32, 8), channels, (frames, patch, patch))
    grid = Grid(latent=latent, inputs=inputs, outputs=outputs)
    layers = layers_of(fields, default=28)
    return assemble(
        fields,
        "ltx",
        blocks=(Block(name="layers", count=layers, towers=(_tower(fields, heads),)),),
        streams=(text_stream(128, static=True), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def usual(fields: Fields) -> str:
    """Name the one entry: the sizes share everything but the transformer."""
    del fields
    return "ltx-video"


def _tower(fields: Fields, heads: Heads) -> Tower:
    width = fields.integer("cross_attention_dim", default=2048)
    tower = crossed_tower("video", heads=heads, width=4 * heads.query_width, text=width)
    return replace(tower, qk_norm=True, extra=tower.extra + 4 * heads.query_width)


def _outer(fields: Fields, hidden: int, grid: Grid) -> int:
    text = perceptron(fields.integer("caption_channels", default=4096), hidden)
    return shared_time(hidden) + text + table_ends(hidden, grid)
