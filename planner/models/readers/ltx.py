"""LTX-Video: self attention over the video, cross attention to the prompt."""

from dataclasses import replace

from planner.models.architecture import Block, Heads, Model, Stream, Tower
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import perceptron

CLASSES = ("LTXVideoTransformer3DModel",)


def read(fields: Fields) -> Model:
    """Read a `LTXVideoTransformer3DModel`: one token a latent pixel."""
    heads = parts.heads_of(fields, query=32, size=64)
    patch = fields.integer("patch_size", high=parts.PATCH, default=1)
    frames = fields.integer("patch_size_t", high=parts.PATCH, default=1)
    inputs, outputs = parts.channels_of(fields, inputs=128, outputs=128)
    channels = max(outputs // (patch**2 * frames), 1)
    latent = parts.latent_of((32, 8), channels, (frames, patch, patch))
    grid = parts.Grid(latent=latent, inputs=inputs, outputs=outputs)
    layers = parts.layers_of(fields, default=28)
    return parts.assemble(
        fields,
        "ltx",
        usual="ltx-video",
        blocks=(Block(name="layers", count=layers, towers=(_tower(fields, heads),)),),
        streams=(parts.text_stream(128, static=True), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _tower(fields: Fields, heads: Heads) -> Tower:
    width = fields.integer("cross_attention_dim", default=2048)
    tower = parts.crossed_tower("video", heads=heads, width=4 * heads.query_width, text=width)
    return replace(tower, qk_norm=True, extra=tower.extra + 4 * heads.query_width)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = perceptron(fields.integer("caption_channels", default=4096), hidden)
    return parts.shared_time(hidden) + text + parts.table_ends(hidden, grid)
