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


def _blocks(fields: Fields, heads: Heads, dual_layers: tuple[int, ...]) -> tuple[Block, ...]:
    """Build layers; those `dual_layers` attend to the image twice."""
    layers, normed = parts.layers_of(fields, default=18), fields.has("qk_norm")
    text, image = parts.joint_towers(
        STREAMS, heads=heads, width=4 * heads.query_width, qk_norm=normed
    )
    last_layer = layers - 1
    dual = {layer for layer in dual_layers if layer < layers}
    dual_image, last_text = _dual_tower(image), _last_text_tower(text)
    counts = (
        ("dual", len(dual - {last_layer}), (text, dual_image)),
        ("joint", last_layer - len(dual - {last_layer}), (text, image)),
        ("last", 1, (last_text, dual_image if last_layer in dual else image)),
    )
    return tuple(Block(name=name, count=n, towers=towers) for name, n, towers in counts if n)


def _dual_tower(image: Tower) -> Tower:
    cross = (Cross(context="image", width=image.hidden, heads=image.heads),)
    dual_tower = replace(image, cross=cross, extra=4 * image.heads.size if image.qk_norm else 0)
    return biased(parts.modulated(dual_tower, 9), *parts.BIASED_PARTS, "cross")


def _last_text_tower(text: Tower) -> Tower:
    text_tower = replace(text, ends=True, extra=2 * text.heads.size if text.qk_norm else 0)
    return biased(parts.modulated(text_tower, 2), *parts.BIASED_PARTS)
