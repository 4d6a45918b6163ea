"""LTX-Video: self attention over the video, cross attention to the prompt."""

from dataclasses import replace

from planner.models.architecture import Model, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import perceptron

CLASSES = ("LTXVideoTransformer3DModel",)


def read(fields: Fields) -> Model:
    """Read a `LTXVideoTransformer3DModel`: one token a latent pixel."""
    heads = parts.heads_of(fields, query=32, size=64)
    hidden, patch = heads.query_width, parts.patch_of(fields, default=1)
    inputs, outputs = parts.channels_of(fields, inputs=128, outputs=128)
    channels = max(outputs // (patch[0] * patch[1] ** 2), 1)
    latent = parts.latent_of((32, 8), channels, patch)
    grid = parts.Grid(latent=latent, inputs=inputs, outputs=outputs)
    prompt = fields.integer("cross_attention_dim", default=2048)
    tower = parts.crossed_tower("video", heads=heads, width=4 * hidden, text=prompt)
    tower = replace(tower, qk_norm=True, extra=tower.extra + 4 * hidden)
    text = perceptron(fields.integer("caption_channels", default=4096), hidden)
    return parts.assemble(
        fields,
        "ltx",
        usual="ltx-video",
        blocks=parts.uniform_blocks(fields, tower, layers=28),
        streams=(parts.text_stream(128, static=True), Stream(name="video")),
        grid=grid,
        outer=parts.shared_time(hidden) + text + parts.table_ends(hidden, grid),
    )
