"""FLUX.1: double-stream layers, then single-stream layers with parallel attention and FFN."""

from planner.models.architecture import Block, Model, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import linear, perceptron

CLASSES = ("FluxTransformer2DModel",)
STREAMS = ("text", "image")


def read(fields: Fields) -> Model:
    """Read a `FluxTransformer2DModel`: 2 x 2 latents are packed before it, so its patch is 1."""
    heads = parts.heads_of(fields, query=24, size=128)
    width = 4 * heads.query_width
    single = parts.single_tower(STREAMS, heads=heads, width=width)
    double = parts.joint_towers(STREAMS, heads=heads, width=width)
    grid = parts.packed_grid(fields, inputs=64)
    return parts.assemble(
        fields,
        "flux",
        usual=_usual(fields),
        blocks=(
            Block(name="double", count=parts.layers_of(fields, default=19), towers=double),
            Block(
                name="single",
                count=parts.layers_of(fields, default=38, name="num_single_layers"),
                towers=(single,),
            ),
        ),
        streams=(parts.text_stream(512 if _guided(fields) else 256), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _usual(fields: Fields) -> str:
    """Tell dev from schnell: only the former embeds its guidance."""
    return "flux.1-dev" if _guided(fields) else "flux.1-schnell"


def _guided(fields: Fields) -> bool:
    return fields.boolean("guidance_embeds", default=False)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = linear(fields.integer("joint_attention_dim", default=4096), hidden)
    conditions = parts.time_text(hidden, fields.integer("pooled_projection_dim", default=768))
    guidance = perceptron(parts.TIME, hidden) if _guided(fields) else 0
    return text + conditions + guidance + parts.adaptive_ends(hidden, grid)
