"""SANA: linear self attention over the image, softmax cross attention, a convolutional FFN."""

from dataclasses import replace

from planner.models.architecture import Cross, Ffn, Model, Stream, Tower
from planner.models.fields import HEAD_SIZE, HEADS, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased, perceptron

CLASSES = ("SanaTransformer2DModel",)
_KERNEL = 9  # the depthwise convolution between the FFN's matrices is 3 x 3


def read(fields: Fields) -> Model:
    """Read a `SanaTransformer2DModel`: one token is a latent pixel of a 32x autoencoder."""
    heads = parts.heads_of(fields, query=70, size=32)
    hidden = heads.query_width
    grid = parts.grid_of(fields, strides=(32, 1), patch=1, channels=(32, 32))
    text = perceptron(fields.integer("caption_channels", default=2304), hidden) + hidden
    conditions = parts.shared_time(hidden) + text + parts.guidance(fields, hidden)
    return parts.assemble(
        fields,
        "sana",
        usual="sana-1.6b",
        blocks=parts.uniform_blocks(fields, _tower(fields, heads), layers=20),
        streams=(parts.text_stream(300, static=True), Stream(name="image")),
        grid=grid,
        outer=conditions + parts.table_ends(hidden, grid),
    )


def _tower(fields: Fields, heads: Heads) -> Tower:
    count = fields.integer("num_cross_attention_heads", high=HEADS, default=20)
    size = fields.integer("cross_attention_head_dim", high=HEAD_SIZE, default=112)
    prompt = fields.integer("cross_attention_dim", default=2240)
    cross_heads = Heads(query=count, key_value=count, size=size)
    width = parts.ffn_width(fields, heads.query_width, default=2.5)
    ffn = Ffn(width=width, gated=True, activation="silu", convolved=True)
    tower = replace(
        parts.tower_of(("image",), heads, ffn),
        cross=(Cross(context="text", width=prompt, heads=cross_heads),),
        qk_norm=False,
        mixer="relu_linear",
        extra=6 * heads.query_width + 2 * width * (1 + 1 + _KERNEL),
    )
    return biased(tower, "out", "cross")
