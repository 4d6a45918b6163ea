"""CogVideoX: one set of weights over prompt and video laid end to end."""

from dataclasses import replace

from planner.models.architecture import Model, Modulation, Stream
from planner.models.fields import WIDTH, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("CogVideoXTransformer3DModel",)
STREAMS = ("text", "video")


def read(fields: Fields) -> Model:
    """Read a `CogVideoXTransformer3DModel`; 1.5 patches frames in pairs."""
    heads = parts.heads_of(fields, query=30, size=64)
    hidden = heads.query_width
    frames = fields.integer("temporal_compression_ratio", high=parts.PATCH, default=4)
    grid = parts.grid_of(fields, strides=(8, frames), patch=2, channels=(16, 16))
    time = fields.integer("time_embed_dim", default=512)
    tower = replace(
        parts.tower_of(STREAMS, heads, 4 * hidden),
        modulation=Modulation(inputs=time, outputs=6 * hidden, copies=2),
        extra=4 * hidden + 4 * heads.size,
    )
    has_bias = fields.boolean("attention_bias", default=True)
    tokens = fields.integer("max_text_seq_length", high=WIDTH, default=226)
    return parts.assemble(
        fields,
        "cogvideox",
        usual="cogvideox-2b" if heads.query < 48 else "cogvideox-5b",
        blocks=parts.uniform_blocks(
            fields,
            biased(tower, *parts.BIASED_PARTS[0 if has_bias else 1 :]),
            layers=30,
            name="joint",
        ),
        streams=(parts.text_stream(tokens), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, hidden, time, grid),
    )


def _outer(fields: Fields, hidden: int, time: int, grid: parts.Grid) -> int:
    text = linear(fields.integer("text_embed_dim", default=4096), hidden)
    speed = fields.integer("ofs_embed_dim", default=0)
    ofs = perceptron(speed, speed) if speed else 0
    norms = linear(time, 2 * hidden) + 4 * hidden
    patches = linear(grid.inputs, hidden, bias=fields.boolean("patch_bias", default=True))
    return perceptron(hidden, time) + ofs + text + norms + patches + linear(hidden, grid.outputs)
