"""PixArt-Alpha and -Sigma: self attention over the image, cross attention to the prompt."""

from dataclasses import replace

from planner.models.architecture import Model, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import perceptron

CLASSES = ("PixArtTransformer2DModel",)


def read(fields: Fields) -> Model:
    """Read a `PixArtTransformer2DModel`; half of its output channels are a variance."""
    heads = parts.heads_of(fields, query=16, size=72)
    hidden = heads.query_width
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(4, 8))
    prompt = fields.integer("cross_attention_dim", default=1152)
    tower = parts.crossed_tower("image", heads=heads, width=4 * hidden, text=prompt)
    text = perceptron(fields.integer("caption_channels", default=4096), hidden)
    has_sizes = fields.boolean("use_additional_conditions", default=False)
    sizes = 2 * perceptron(parts.TIME, max(hidden // 3, 1)) if has_sizes else 0
    return parts.assemble(
        fields,
        "pixart",
        usual="pixart-sigma",
        blocks=parts.uniform_blocks(fields, replace(tower, rotates=False), layers=28),
        streams=(parts.text_stream(300, static=True), Stream(name="image")),
        grid=grid,
        outer=parts.shared_time(hidden) + text + sizes + parts.table_ends(hidden, grid),
    )
