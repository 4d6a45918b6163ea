"""Text encoders: T5 and UMT5 (the encoder half), and CLIP's text tower."""

from typing import Final

from planner.models.architecture import Block, Ffn, Model, Stream, Tower
from planner.models.fields import CONTEXT, HEAD_SIZE, HEADS, LAYERS, VOCABULARY, Fields
from planner.models.mixers import Heads
from planner.models.readers import model_type
from planner.models.readers.count import biased, linear

MODEL_TYPES: Final = {
    "t5": ("T5ForConditionalGeneration", "T5EncoderModel", "T5Model"),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5EncoderModel", "UMT5Model"),
    "clip": ("CLIPModel",),
    "clip_text_model": ("CLIPTextModel", "CLIPTextModelWithProjection"),
}
"""Values of ``model_type``, and the ``architectures`` that stand for each."""
STREAMS: Final = ("tokens",)


def read(fields: Fields) -> Model:
    """Read the config.json of a text encoder."""
    kind = model_type(fields, MODEL_TYPES)
    return _clip(fields) if kind.startswith("clip") else _t5(fields, kind)


def _t5(fields: Fields, kind: str) -> Model:
    hidden = fields.integer("d_model", default=512)
    count = fields.integer("num_heads", high=HEADS, default=8)
    size = fields.integer("d_kv", high=HEAD_SIZE, default=64)
    layers = fields.integer("num_layers", high=LAYERS, default=8 if kind == "umt5" else 6)
    is_umt5 = kind == "umt5"  # T5 has its position table in the first layer alone
    feed = fields.text("feed_forward_proj", default="gated-gelu" if is_umt5 else "relu")
    width = fields.integer("d_ff", default=1024 if is_umt5 else 2048)
    vocabulary = fields.integer("vocab_size", high=VOCABULARY, default=32128)
    buckets = fields.integer("relative_attention_num_buckets", high=2**16, default=32) * count
    tower = Tower(
        streams=STREAMS,
        hidden=hidden,
        heads=Heads(query=count, key_value=count, size=size),
        keys=STREAMS,
        ffn=Ffn(width=width, gated=feed.startswith("gated")),
        qk_norm=False,
        extra=2 * hidden + (buckets if is_umt5 else 0),
    )
    outer = vocabulary * hidden + hidden + (0 if is_umt5 else buckets)
    return _model(fields, kind, tower, layers=layers, vocabulary=vocabulary, outer=outer)


def _clip(fields: Fields) -> Model:
    fields = fields.table("text_config") or fields
    hidden = fields.integer("hidden_size", default=512)
    count = fields.divisor("num_attention_heads", of="hidden_size", whole=hidden, default=8)
    vocabulary = fields.integer("vocab_size", high=VOCABULARY, default=49408)
    positions = fields.integer("max_position_embeddings", high=CONTEXT, default=77)
    tower = Tower(
        streams=STREAMS,
        hidden=hidden,
        heads=Heads(query=count, key_value=count, size=hidden // count),
        keys=STREAMS,
        causal=True,
        ffn=Ffn(width=fields.integer("intermediate_size", default=2048), gated=False),
        qk_norm=False,
        extra=4 * hidden,
    )
    outer = (vocabulary + positions + 2) * hidden
    if "CLIPTextModelWithProjection" in fields.texts("architectures", default=()):
        outer += linear(hidden, fields.integer("projection_dim", default=512), bias=False)
    layers = fields.integer("num_hidden_layers", high=LAYERS, default=12)
    biased_tower = biased(tower, "qkv", "out", "ffn")
    return _model(fields, "clip", biased_tower, layers=layers, vocabulary=vocabulary, outer=outer)


def _model(
    fields: Fields, family: str, tower: Tower, *, layers: int, vocabulary: int, outer: int
) -> Model:
    return Model(
        name=fields.where,
        family=family,
        kind="encoder",
        source=fields.where,
        blocks=(Block(name="layers", count=layers, towers=(tower,)),),
        streams=(Stream(name="tokens"),),
        input_features=tower.hidden,
        output_features=tower.hidden,
        vocabulary=vocabulary,
        tied_embeddings=True,
        outer_parameters=outer,
    )
