"""HunyuanVideo 1.0: double-stream, then single-stream layers behind a text refiner."""

from planner.models.architecture import Block, Heads, Model, Stream
from planner.models.count import perceptron
from planner.models.fields import Fields
from planner.models.readers.parts import (
    TIME,
    Grid,
    adaptive_ends,
    assemble,
    grid_of,
    heads_of,
    joint_towers,
    layers_before,
    layers_of,
    refined_text,
    refiner,
    single_tower,
    text_stream,
    time_text,
    widened,
)

STREAMS = ("video", "text")


def read(fields: Fields) -> Model:
    """Read a `HunyuanVideoTransformer3DModel`."""
    heads = heads_of(fields, query=24, size=128)
    grid = grid_of(fields, strides=(8, 4), patch=2, channels=(16, 16))
    return assemble(
        fields,
        "hunyuanvideo",
        blocks=_blocks(fields, heads),
        streams=(text_stream(256), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def usual(fields: Fields) -> str:
    """Name the one size there is."""
    del fields
    return "hunyuanvideo"


def _blocks(fields: Fields, heads: Heads) -> tuple[Block, ...]:
    width = widened(fields, heads.query_width, default=4.0)
    double = joint_towers(STREAMS, heads=heads, width=width)
    single = single_tower(STREAMS, heads=heads, width=width)
    before = layers_before(fields, "num_refiner_layers")
    return (
        *refiner("text", heads=heads, width=4 * heads.query_width, layers=before),
        Block(name="double", count=layers_of(fields, default=20), towers=double),
        Block(
            name="single",
            count=layers_of(fields, default=40, name="num_single_layers"),
            towers=(single,),
        ),
    )


def _outer(fields: Fields, hidden: int, grid: Grid) -> int:
    text = fields.integer("text_embed_dim", default=4096)
    refined = refined_text(hidden, text)
    pooled = time_text(hidden, fields.integer("pooled_projection_dim", default=768))
    guided = fields.boolean("guidance_embeds", default=True)
    guidance = perceptron(TIME, hidden) if guided else 0
    return refined + pooled + guidance + adaptive_ends(hidden, grid)
