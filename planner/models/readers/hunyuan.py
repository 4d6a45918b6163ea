"""HunyuanVideo: double-stream layers behind a text refiner, and single-stream ones in 1.0.

In 1.5 the text is three texts laid end to end.
"""

from planner.models.architecture import Block, Model, Stream
from planner.models.fields import Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import linear, perceptron

CLASSES = ("HunyuanVideoTransformer3DModel", "HunyuanVideo15Transformer3DModel")
STREAMS = ("video", "text")
_TEXT_TOKENS = 1000 + 256 + 729  # Qwen2.5-VL, ByT5 and the image slots, masked but carried
_SOURCES = 3


def read(fields: Fields) -> Model:
    """Read a model of HunyuanVideo, of either class."""
    is_v1 = fields.text("_class_name") == CLASSES[0]
    heads = parts.heads_of(fields, query=24 if is_v1 else 16, size=128)
    width = parts.ffn_width(fields, heads.query_width, default=4.0)
    double = parts.joint_towers(STREAMS, heads=heads, width=width)
    layers: tuple[Block, ...]
    if is_v1:
        name, tokens, outer = "hunyuanvideo", 256, _outer
        grid = parts.grid_of(fields, strides=(8, 4), patch=2, channels=(16, 16))
        single = parts.single_tower(STREAMS, heads=heads, width=width)
        layers = parts.double_single(fields, double, single, layers=(20, 40))
    else:
        name, tokens, outer = "hunyuanvideo-1.5", _TEXT_TOKENS, _outer15
        grid = parts.grid_of(fields, strides=(16, 4), patch=1, channels=(65, 32))
        count = parts.layers_of(fields, default=54)
        layers = (Block(name="double", count=count, towers=double),)
    ends = parts.adaptive_ends(heads.query_width, grid)
    return parts.assemble(
        fields,
        name,
        usual=name,
        blocks=(*parts.refiner(fields, "text", heads), *layers),
        streams=(parts.text_stream(tokens), Stream(name="video")),
        grid=grid,
        outer=outer(fields, heads) + ends,
    )


def _outer(fields: Fields, heads: Heads) -> int:
    hidden = heads.query_width
    refined = parts.refined_text(hidden, fields.integer("text_embed_dim", default=4096))
    pooled = parts.time_text(hidden, fields.integer("pooled_projection_dim", default=768))
    return refined + pooled + parts.guidance(fields, hidden, default=True)


def _outer15(fields: Fields, heads: Heads) -> int:
    hidden = heads.query_width
    text = fields.integer("text_embed_dim", default=3584)
    glyphs = fields.integer("text_embed_2_dim", default=1472)
    image = fields.integer("image_embed_dim", default=1152)
    glyph_text = 2 * glyphs + perceptron(glyphs, hidden) + linear(hidden, hidden)
    images = 2 * image + perceptron(image, image, hidden) + 2 * hidden
    times = 2 if fields.boolean("use_meanflow", default=False) else 1
    embeddings = times * perceptron(parts.TIME, hidden) + _SOURCES * hidden
    return parts.refined_text(hidden, text) + glyph_text + images + embeddings
