"""HunyuanVideo 1.0: double-stream, then single-stream layers behind a text refiner."""

from planner.models.architecture import Block, Heads, Model, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import perceptron

CLASSES = ("HunyuanVideoTransformer3DModel",)
STREAMS = ("video", "text")


def read(fields: Fields) -> Model:
    """Read a `HunyuanVideoTransformer3DModel`."""
    heads = parts.heads_of(fields, query=24, size=128)
    grid = parts.grid_of(fields, strides=(8, 4), patch=2, channels=(16, 16))
    return parts.assemble(
        fields,
        "hunyuanvideo",
        usual="hunyuanvideo",
        blocks=_blocks(fields, heads),
        streams=(parts.text_stream(256), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _blocks(fields: Fields, heads: Heads) -> tuple[Block, ...]:
    width = parts.widened(fields, heads.query_width, default=4.0)
    double = parts.joint_towers(STREAMS, heads=heads, width=width)
    single = parts.single_tower(STREAMS, heads=heads, width=width)
    before = parts.layers_before(fields, "num_refiner_layers")
    return (
        *parts.refiner("text", heads=heads, width=4 * heads.query_width, layers=before),
        Block(name="double", count=parts.layers_of(fields, default=20), towers=double),
        Block(
            name="single",
            count=parts.layers_of(fields, default=40, name="num_single_layers"),
            towers=(single,),
        ),
    )


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = fields.integer("text_embed_dim", default=4096)
    refined = parts.refined_text(hidden, text)
    pooled = parts.time_text(hidden, fields.integer("pooled_projection_dim", default=768))
    guided = fields.boolean("guidance_embeds", default=True)
    guidance = perceptron(parts.TIME, hidden) if guided else 0
    return refined + pooled + guidance + parts.adaptive_ends(hidden, grid)
