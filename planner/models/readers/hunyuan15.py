"""HunyuanVideo 1.5: double-stream layers over video and three texts laid end to end."""

from planner.models.architecture import Block, Heads, Model, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import linear, perceptron

CLASSES = ("HunyuanVideo15Transformer3DModel",)
STREAMS = ("video", "text")
_TEXT_TOKENS = 1000 + 256 + 729  # Qwen2.5-VL, ByT5 and the image slots, masked but carried
_SOURCES = 3


def read(fields: Fields) -> Model:
    """Read a `HunyuanVideo15Transformer3DModel`."""
    heads = parts.heads_of(fields, query=16, size=128)
    grid = parts.grid_of(fields, strides=(16, 4), patch=1, channels=(65, 32))
    return parts.assemble(
        fields,
        "hunyuanvideo-1.5",
        usual="hunyuanvideo-1.5",
        blocks=_blocks(fields, heads),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _blocks(fields: Fields, heads: Heads) -> tuple[Block, ...]:
    width = parts.widened(fields, heads.query_width, default=4.0)
    towers = parts.joint_towers(STREAMS, heads=heads, width=width)
    before = parts.layers_before(fields, "num_refiner_layers")
    return (
        *parts.refiner("text", heads=heads, width=4 * heads.query_width, layers=before),
        Block(name="double", count=parts.layers_of(fields, default=54), towers=towers),
    )


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = fields.integer("text_embed_dim", default=3584)
    glyphs = fields.integer("text_embed_2_dim", default=1472)
    image = fields.integer("image_embed_dim", default=1152)
    refined = parts.refined_text(hidden, text)
    second = 2 * glyphs + perceptron(glyphs, hidden) + linear(hidden, hidden)
    images = 2 * image + perceptron(image, image, hidden) + 2 * hidden
    if fields.boolean("use_meanflow", default=False):
        refined += perceptron(parts.TIME, hidden)
    embeddings = refined + second + images + perceptron(parts.TIME, hidden) + _SOURCES * hidden
    return embeddings + parts.adaptive_ends(hidden, grid)
