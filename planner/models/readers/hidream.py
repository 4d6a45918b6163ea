"""HiDream-I1: double- and single-stream layers whose image FFN is a mixture of experts."""

from planner.models.architecture import Block, Ffn, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import EXPERTS, LAYERS, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased

CLASSES = ("HiDreamImageTransformer2DModel",)
STREAMS = ("image", "text")
_TEXT_TOKENS = 3 * 128  # T5, the last Llama layer, and the Llama layer of this block
_ROUND = 256


def read(fields: Fields) -> Model:
    """Read a `HiDreamImageTransformer2DModel`."""
    heads = parts.heads_of(fields, query=20, size=128)
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(64, 0), rounds="down")
    return parts.assemble(
        fields,
        "hidream",
        usual="hidream-i1",
        blocks=_blocks(fields, heads),
        streams=(parts.text_stream(_TEXT_TOKENS), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _blocks(fields: Fields, heads: Heads) -> tuple[Block, ...]:
    dense = Ffn(width=_inner(4 * heads.query_width), gated=True, activation="silu")
    experts = _experts(fields, heads.query_width)
    double = (_tower(("image",), heads, experts), _tower(("text",), heads, dense))
    return (
        Block(name="double", count=parts.layers_of(fields, default=16), towers=double),
        Block(
            name="single",
            count=parts.layers_of(fields, default=32, name="num_single_layers"),
            towers=(_tower(STREAMS, heads, experts),),
        ),
    )


def _experts(fields: Fields, hidden: int) -> Ffn:
    count = fields.integer("num_routed_experts", high=EXPERTS, default=4)
    return Ffn(
        width=_inner(4 * hidden),
        gated=True,
        activation="silu",
        experts=count,
        active=fields.integer("num_activated_experts", high=count, default=min(2, count)),
        shared=_inner(2 * hidden),
    )


def _inner(width: int) -> int:
    """Two thirds of a width, up to the next multiple of 256."""
    return -(-(2 * width // 3) // _ROUND) * _ROUND


def _tower(streams: tuple[str, ...], heads: Heads, ffn: Ffn) -> Tower:
    hidden = heads.query_width
    tower = Tower(
        streams=streams,
        hidden=hidden,
        heads=heads,
        keys=STREAMS,
        ffn=ffn,
        modulation=Modulation(inputs=hidden, outputs=6 * hidden),
        extra=2 * hidden,
    )
    return biased(tower, "qkv", "out", "modulation")


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    conditions = parts.time_text(hidden, fields.integer("text_emb_dim", default=2048))
    captions = fields.integers("caption_channels", low=1, default=(4096, 4096))
    layers = fields.integers("llama_layers", high=LAYERS, default=(0,) * 48)
    llama, prompt = (captions[-1], captions[0]) if captions else (0, 0)
    projections = hidden * (len(layers) * llama + prompt)
    return conditions + projections + parts.adaptive_ends(hidden, grid)
