"""Stable Diffusion 3 and 3.5: joint layers; the last one drops the text stream."""

from dataclasses import replace

from planner.models.architecture import Block, Cross, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import LAYERS, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear

CLASSES = ("SD3Transformer2DModel",)
STREAMS = ("text", "image")
_TEXT_TOKENS = 77 + 256  # CLIP and T5 prompts end to end


def read(fields: Fields) -> Model:
    """Read a `SD3Transformer2DModel`; `dual_attention_layers` attend to the image twice."""
    heads = parts.heads_of(fields, query=18, size=64)
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(16, 16))
    return parts.assemble(
        fields,
        "sd3",
        usual=_usual(fields),
        blocks=_blocks(fields, heads),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _usual(fields: Fields) -> str:
    """Tell medium from large: only the former has dual attention."""
    return "sd3.5-medium" if fields.integers("dual_attention_layers", default=()) else "sd3.5-large"


def _blocks(fields: Fields, heads: Heads) -> tuple[Block, ...]:
    layers = parts.layers_of(fields, default=18)
    normed = fields.has("qk_norm")
    text, image = parts.joint_towers(
        STREAMS, heads=heads, width=4 * heads.query_width, qk_norm=normed
    )
    last = layers - 1
    listed = fields.integers("dual_attention_layers", high=LAYERS, default=())
    dual = {layer for layer in listed if layer < layers}
    counts = (
        ("dual", len(dual - {last}), (text, _dual(image, normed=normed))),
        ("joint", last - len(dual - {last}), (text, image)),
        ("last", 1, (_ending(text), _dual(image, normed=normed) if last in dual else image)),
    )
    return tuple(Block(name=name, count=n, towers=towers) for name, n, towers in counts if n)


def _dual(image: Tower, *, normed: bool) -> Tower:
    hidden = image.hidden
    twice = replace(
        image,
        cross=(Cross(context="image", width=hidden, heads=image.heads),),
        modulation=Modulation(inputs=hidden, outputs=9 * hidden),
        extra=(4 if normed else 0) * image.heads.size,
    )
    return biased(twice, *parts.ALL, "cross")


def _ending(text: Tower) -> Tower:
    ended = replace(
        text,
        ends=True,
        modulation=Modulation(inputs=text.hidden, outputs=2 * text.hidden),
        extra=2 * text.heads.size if text.qk_norm else 0,
    )
    return biased(ended, *parts.ALL)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = linear(
        fields.integer("joint_attention_dim", default=4096),
        fields.integer("caption_projection_dim", default=1152),
    )
    pooled = fields.integer("pooled_projection_dim", default=2048)
    return text + parts.time_text(hidden, pooled) + parts.adaptive_ends(hidden, grid)
