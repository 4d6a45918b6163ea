"""SANA: linear self attention over the image, softmax cross attention, a convolutional FFN."""

from planner.models.architecture import Block, Cross, Ffn, Heads, Model, Stream, Tower
from planner.models.fields import HEAD_SIZE, HEADS, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, perceptron

CLASSES = ("SanaTransformer2DModel",)
_KERNEL = 9  # the depthwise convolution between the FFN's matrices is 3 x 3


def read(fields: Fields) -> Model:
    """Read a `SanaTransformer2DModel`: one token is a latent pixel of a 32x autoencoder."""
    heads = parts.heads_of(fields, query=70, size=32)
    grid = parts.grid_of(fields, strides=(32, 1), patch=1, channels=(32, 32))
    layers = parts.layers_of(fields, default=20)
    return parts.assemble(
        fields,
        "sana",
        usual="sana-1.6b",
        blocks=(Block(name="layers", count=layers, towers=(_tower(fields, heads),)),),
        streams=(parts.text_stream(300, static=True), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _tower(fields: Fields, heads: Heads) -> Tower:
    hidden = heads.query_width
    count = fields.integer("num_cross_attention_heads", high=HEADS, default=20)
    size = fields.integer("cross_attention_head_dim", high=HEAD_SIZE, default=112)
    width = parts.widened(fields, hidden, default=2.5)
    tower = Tower(
        streams=("image",),
        hidden=hidden,
        heads=heads,
        keys=("image",),
        ffn=Ffn(width=width, gated=True, activation="silu", convolved=True),
        cross=(
            Cross(
                context="text",
                width=fields.integer("cross_attention_dim", default=2240),
                heads=Heads(query=count, key_value=count, size=size),
            ),
        ),
        qk_norm=False,
        mixer="relu_linear",
        extra=6 * hidden + 2 * width * (1 + 1 + _KERNEL),
    )
    return biased(tower, "out", "cross")


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = perceptron(fields.integer("caption_channels", default=2304), hidden) + hidden
    guidance = (
        perceptron(parts.TIME, hidden) if fields.boolean("guidance_embeds", default=False) else 0
    )
    return parts.shared_time(hidden) + text + guidance + parts.table_ends(hidden, grid)
