"""Mochi: joint attention of a wide video stream and a narrow text stream."""

from dataclasses import replace

from planner.models.architecture import Block, Ffn, Model, Modulation, Stream, Tower
from planner.models.fields import WIDTH, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("MochiTransformer3DModel",)
STREAMS = ("text", "video")


def read(fields: Fields) -> Model:
    """Read a `MochiTransformer3DModel`; `pooled_projection_dim` is the text stream's width."""
    heads = parts.heads_of(fields, query=24, size=128)
    grid = parts.grid_of(fields, strides=(8, 6), patch=2, channels=(12, 0))
    tokens = fields.integer("max_sequence_length", high=WIDTH, default=256)
    text_width = fields.integer("pooled_projection_dim", default=1536)
    layers = parts.layers_of(fields, default=48)
    video, text = _tower("video", heads, heads.query_width), _tower("text", heads, text_width)
    last_towers = (_tower("text", heads, text_width, ends=True), video)
    joint = Block(name="joint", count=layers - 1, towers=(text, video))
    return parts.assemble(
        fields,
        "mochi",
        usual="mochi-1",
        blocks=(*((joint,) if layers > 1 else ()), Block(name="last", count=1, towers=last_towers)),
        streams=(parts.text_stream(tokens), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads, text_width) + parts.adaptive_ends(heads.query_width, grid),
    )


def _tower(stream: str, heads: Heads, hidden: int, *, ends: bool = False) -> Tower:
    width = max(4 * hidden * 2 // 3, 1)
    tower = replace(
        parts.tower_of(STREAMS, heads, Ffn(width=width, gated=True, activation="silu")),
        hidden=hidden,
        modulation=Modulation(inputs=heads.query_width, outputs=(1 if ends else 4) * hidden),
        ends=ends,
        extra=2 * heads.size,
    )
    return biased(parts.on(stream, tower), "out", "modulation")


def _outer(fields: Fields, heads: Heads, text_width: int) -> int:
    hidden = heads.query_width
    text = fields.integer("text_embed_dim", default=4096)
    pooler = linear(text, 2 * text) + linear(text, text) + linear(text, hidden)
    time = perceptron(fields.integer("time_embed_dim", default=parts.TIME), hidden)
    return pooler + linear(text, text_width) + time + 3 * heads.query * (heads.size // 2)
