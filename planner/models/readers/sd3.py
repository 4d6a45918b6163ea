"""Stable Diffusion 3 and 3.5: joint layers; the last one drops the text stream."""

from dataclasses import replace

from planner.models.architecture import Block, Cross, Model, Stream, Tower
from planner.models.fields import LAYERS, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased, linear

CLASSES = ("SD3Transformer2DModel",)
STREAMS = ("text", "image")
_TEXT_TOKENS = 77 + 256  # CLIP and T5 prompts end to end


def read(fields: Fields) -> Model:
    """Read a `SD3Transformer2DModel`; only medium has `dual_attention_layers`."""
    heads = parts.heads_of(fields, query=18, size=64)
    hidden = heads.query_width
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(16, 16))
    dual = fields.integers("dual_attention_layers", high=LAYERS, default=())
    prompt = fields.integer("joint_attention_dim", default=4096)
    text = linear(prompt, fields.integer("caption_projection_dim", default=1152))
    pooled = parts.time_text(hidden, fields.integer("pooled_projection_dim", default=2048))
    return parts.assemble(
        fields,
        "sd3",
        usual="sd3.5-medium" if dual else "sd3.5-large",
        blocks=_blocks(fields, heads, dual),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="image")),
        grid=grid,
        outer=text + pooled + parts.adaptive_ends(hidden, grid),
    )


def _blocks(fields: Fields, heads: Heads, listed: tuple[int, ...]) -> tuple[Block, ...]:
    """Build layers; those `listed` attend to the image twice."""
    layers, normed = parts.layers_of(fields, default=18), fields.has("qk_norm")
    text, image = parts.joint_towers(
        STREAMS, heads=heads, width=4 * heads.query_width, qk_norm=normed
    )
    last = layers - 1
    dual = {layer for layer in listed if layer < layers}
    twice, ending = _dual(image), _ending(text)
    counts = (
        ("dual", len(dual - {last}), (text, twice)),
        ("joint", last - len(dual - {last}), (text, image)),
        ("last", 1, (ending, twice if last in dual else image)),
    )
    return tuple(Block(name=name, count=n, towers=towers) for name, n, towers in counts if n)


def _dual(image: Tower) -> Tower:
    cross = (Cross(context="image", width=image.hidden, heads=image.heads),)
    twice = replace(image, cross=cross, extra=4 * image.heads.size if image.qk_norm else 0)
    return biased(parts.modulated(twice, 9), *parts.ALL, "cross")


def _ending(text: Tower) -> Tower:
    ended = replace(text, ends=True, extra=2 * text.heads.size if text.qk_norm else 0)
    return biased(parts.modulated(ended, 2), *parts.ALL)
