"""HiDream-I1: double- and single-stream layers whose image FFN is a mixture of experts."""

from dataclasses import replace

from planner.models.architecture import Ffn, Model, Stream, Tower
from planner.models.fields import EXPERTS, LAYERS, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased

CLASSES = ("HiDreamImageTransformer2DModel",)
STREAMS = ("image", "text")
_TEXT_TOKENS = 3 * 128  # T5, the last Llama layer, and the Llama layer of this block
_ROUND = 256


def read(fields: Fields) -> Model:
    """Read a `HiDreamImageTransformer2DModel`."""
    heads = parts.heads_of(fields, query=20, size=128)
    hidden = heads.query_width
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(64, 0), rounds="down")
    dense = Ffn(width=_inner(4 * hidden), gated=True, activation="silu")
    single = _tower(heads, _experts(fields, dense, hidden))
    double = (parts.on("image", single), parts.on("text", _tower(heads, dense)))
    conditions = parts.time_text(hidden, fields.integer("text_emb_dim", default=2048))
    captions = fields.integers("caption_channels", low=1, default=(4096, 4096))
    layers = fields.integers("llama_layers", high=LAYERS, default=(0,) * 48)
    llama, prompt = (captions[-1], captions[0]) if captions else (0, 0)
    projections = hidden * (len(layers) * llama + prompt)
    return parts.assemble(
        fields,
        "hidream",
        usual="hidream-i1",
        blocks=parts.double_single(fields, double, single, layers=(16, 32)),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="image")),
        grid=grid,
        outer=conditions + projections + parts.adaptive_ends(hidden, grid),
    )


def _experts(fields: Fields, dense: Ffn, hidden: int) -> Ffn:
    count = fields.integer("num_routed_experts", high=EXPERTS, default=4)
    active = fields.integer("num_activated_experts", high=count, default=min(2, count))
    return replace(dense, experts=count, active=active, shared=_inner(2 * hidden))


def _inner(width: int) -> int:
    """Take two thirds of a width, up to the next multiple of 256."""
    return -(-(2 * width // 3) // _ROUND) * _ROUND


def _tower(heads: Heads, ffn: Ffn) -> Tower:
    tower = parts.modulated(parts.tower_of(STREAMS, heads, ffn), 6)
    return biased(replace(tower, extra=2 * tower.hidden), "qkv", "out", "modulation")
