"""Mochi: joint attention of a wide video stream and a narrow text stream."""

from dataclasses import replace

from planner.models.architecture import Block, Ffn, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import WIDTH, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("MochiTransformer3DModel",)
STREAMS = ("text", "video")


def read(fields: Fields) -> Model:
    """Read a `MochiTransformer3DModel`; `pooled_projection_dim` is the text stream's width."""
    heads = parts.heads_of(fields, query=24, size=128)
    grid = parts.grid_of(fields, strides=(8, 6), patch=2, channels=(12, 0))
    tokens = fields.integer("max_sequence_length", high=WIDTH, default=256)
    return parts.assemble(
        fields,
        "mochi",
        usual="mochi-1",
        blocks=_blocks(fields, heads),
        streams=(parts.text_stream(tokens), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads, grid),
    )


def _blocks(fields: Fields, heads: Heads) -> tuple[Block, ...]:
    layers = parts.layers_of(fields, default=48)
    width = heads.query_width
    narrow = fields.integer("pooled_projection_dim", default=1536)
    video = _tower("video", width, heads, width, outputs=4 * width)
    text = _tower("text", narrow, heads, width, outputs=4 * narrow)
    last = _tower("text", narrow, heads, width, outputs=narrow, ends=True)
    blocks = (
        Block(name="joint", count=layers - 1, towers=(text, video)),
        Block(name="last", count=1, towers=(last, video)),
    )
    return blocks[1:] if layers == 1 else blocks


def _tower(
    stream: str, hidden: int, heads: Heads, inputs: int, *, outputs: int, ends: bool = False
) -> Tower:
    tower = Tower(
        streams=(stream,),
        hidden=hidden,
        heads=heads,
        keys=STREAMS,
        ffn=Ffn(width=max(4 * hidden * 2 // 3, 1), gated=True, activation="silu"),
        modulation=Modulation(inputs=inputs, outputs=outputs),
        extra=2 * heads.size,
    )
    return biased(replace(tower, ends=ends), "out", "modulation")


def _outer(fields: Fields, heads: Heads, grid: parts.Grid) -> int:
    hidden = heads.query_width
    text = fields.integer("text_embed_dim", default=4096)
    narrow = fields.integer("pooled_projection_dim", default=1536)
    pooler = linear(text, 2 * text) + linear(text, text) + linear(text, hidden)
    time = perceptron(fields.integer("time_embed_dim", default=parts.TIME), hidden)
    positions = 3 * heads.query * (heads.size // 2)
    return pooler + linear(text, narrow) + time + positions + parts.adaptive_ends(hidden, grid)
