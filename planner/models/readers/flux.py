"""FLUX.1: double-stream layers, then single-stream layers with parallel attention and FFN."""

from planner.models.architecture import Block, Model, Stream
from planner.models.count import linear, perceptron
from planner.models.fields import Fields
from planner.models.readers.parts import (
    TIME,
    Grid,
    adaptive_ends,
    assemble,
    heads_of,
    joint_towers,
    layers_of,
    packed_grid,
    single_tower,
    text_stream,
    time_text,
)

STREAMS = ("text", "image")


def read(fields: Fields) -> Model:
    """Read a `FluxTransformer2DModel`: 2 x 2 latents are packed before it, so its patch is 1."""
    heads = heads_of(fields, query=24, size=128)
    width = 4 * heads.query_width
    single = single_tower(STREAMS, heads=heads, width=width)
    double = joint_towers(STREAMS, heads=heads, width=width)
    grid = packed_grid(fields, inputs=64)
    return assemble(
        fields,
        "flux",
        blocks=(
            Block(name="double", count=layers_of(fields, default=19), towers=double),
            Block(
                name="single",
                count=layers_of(fields, default=38, name="num_single_layers"),
                towers=(single,),
            ),
        ),
        streams=(text_stream(512 if _guided(fields) else 256), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def usual(fields: Fields) -> str:
    """Tell dev from schnell: only the former embeds its guidance."""
    return "flux.1-dev" if _guided(fields) else "flux.1-schnell"


def _guided(fields: Fields) -> bool:
    return fields.boolean("guidance_embeds", default=False)


def _outer(fields: Fields, hidden: int, grid: Grid) -> int:
    text = linear(fields.integer("joint_attention_dim", default=4096), hidden)
    conditions = time_text(hidden, fields.integer("pooled_projection_dim", default=768))
    guidance = perceptron(TIME, hidden) if _guided(fields) else 0
    return text + conditions + guidance + adaptive_ends(hidden, grid)
