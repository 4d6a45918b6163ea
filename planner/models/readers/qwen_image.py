"""Qwen-Image: double-stream layers all the way."""

from planner.models.architecture import Block, Model, Stream
from planner.models.fields import CHANNELS, Fields
from planner.models.readers import parts
from planner.models.readers.count import linear, perceptron

CLASSES = ("QwenImageTransformer2DModel",)
STREAMS = ("text", "image")
_TEXT_TOKENS = 128  # prompts keep their real length, of at most 512


def read(fields: Fields) -> Model:
    """Read a `QwenImageTransformer2DModel`; 2 x 2 latents are packed before it."""
    heads = parts.heads_of(fields, query=24, size=128)
    hidden = heads.query_width
    towers = parts.joint_towers(STREAMS, heads=heads, width=4 * hidden)
    patch = fields.integer("patch_size", high=parts.PATCH, default=2)
    channels = fields.integer("out_channels", high=CHANNELS, default=16)
    grid = parts.Grid(
        latent=parts.latent_of((8, 1), channels, (1, patch, patch), "down"),
        inputs=fields.integer("in_channels", high=CHANNELS, default=64),
        outputs=channels * patch**2,
    )
    text = fields.integer("joint_attention_dim", default=3584)
    embeddings = perceptron(parts.TIME, hidden) + text + linear(text, hidden)
    return parts.assemble(
        fields,
        "qwen-image",
        usual="qwen-image",
        blocks=(Block(name="double", count=parts.layers_of(fields, default=60), towers=towers),),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="image")),
        grid=grid,
        outer=embeddings + parts.adaptive_ends(hidden, grid),
    )
