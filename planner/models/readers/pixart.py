"""PixArt-Alpha and -Sigma: self attention over the image, cross attention to the prompt."""

from dataclasses import replace

from planner.models.architecture import Block, Heads, Model, Stream, Tower
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import perceptron

CLASSES = ("PixArtTransformer2DModel",)


def read(fields: Fields) -> Model:
    """Read a `PixArtTransformer2DModel`; half of its output channels are a variance."""
    heads = parts.heads_of(fields, query=16, size=72)
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(4, 8))
    layers = parts.layers_of(fields, default=28)
    return parts.assemble(
        fields,
        "pixart",
        usual="pixart-sigma",
        blocks=(Block(name="layers", count=layers, towers=(_tower(fields, heads),)),),
        streams=(parts.text_stream(300, static=True), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _tower(fields: Fields, heads: Heads) -> Tower:
    width = fields.integer("cross_attention_dim", default=1152)
    tower = parts.crossed_tower("image", heads=heads, width=4 * heads.query_width, text=width)
    return replace(tower, rotates=False)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = perceptron(fields.integer("caption_channels", default=4096), hidden)
    sizes = 0
    if fields.boolean("use_additional_conditions", default=False):
        sizes = 2 * perceptron(parts.TIME, max(hidden // 3, 1))
    return parts.shared_time(hidden) + text + sizes + parts.table_ends(hidden, grid)
