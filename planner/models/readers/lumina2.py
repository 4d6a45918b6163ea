"""Lumina-Image 2.0: single-stream layers with grouped keys behind refiners of each stream."""

from dataclasses import replace

from planner.models.architecture import Block, Ffn, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import HEADS, WIDTH, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("Lumina2Transformer2DModel",)
STREAMS = ("text", "image")
_TIME_HIDDEN = 1024


def read(fields: Fields) -> Model:
    """Read a `Lumina2Transformer2DModel`."""
    hidden = fields.integer("hidden_size", default=2304)
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(16, 0))
    return parts.assemble(
        fields,
        "lumina2",
        usual="lumina2",
        blocks=_blocks(fields, hidden),
        streams=(parts.text_stream(256), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, hidden, grid),
    )


def _heads(fields: Fields, hidden: int) -> Heads:
    count = fields.integer("num_attention_heads", high=HEADS, default=24)
    shared = fields.integer("num_kv_heads", high=HEADS, default=min(8, count))
    if hidden % count:
        raise fields.refused("hidden_size", hidden, f"a multiple of num_attention_heads {count}")
    if count % shared:
        raise fields.refused("num_kv_heads", shared, f"a divisor of num_attention_heads {count}")
    return Heads(query=count, key_value=shared, size=hidden // count)


def _width(fields: Fields, hidden: int) -> int:
    """Four times the hidden size, scaled, up to a multiple of `multiple_of`."""
    scale = fields.number("ffn_dim_multiplier", low=1 / 64, high=64.0, default=1.0)
    step = fields.integer("multiple_of", high=WIDTH, default=256)
    return -(-max(int(4 * hidden * scale), 1) // step) * step


def _blocks(fields: Fields, hidden: int) -> tuple[Block, ...]:
    heads = _heads(fields, hidden)
    plain = Tower(
        streams=STREAMS,
        hidden=hidden,
        heads=heads,
        keys=STREAMS,
        ffn=Ffn(width=_width(fields, hidden), gated=True, activation="silu"),
        extra=4 * hidden + 2 * heads.size,
    )
    modulation = Modulation(inputs=min(hidden, _TIME_HIDDEN), outputs=4 * hidden)
    joint = biased(replace(plain, modulation=modulation), "modulation")
    image = replace(joint, streams=("image",), keys=("image",))
    text = replace(plain, streams=("text",), keys=("text",))
    before = parts.layers_before(fields, "num_refiner_layers")
    refiners = (
        Block(name="context_refiner", count=before, towers=(text,), prelude=True),
        Block(name="noise_refiner", count=before, towers=(image,), prelude=True),
    )
    layers = Block(name="single", count=parts.layers_of(fields, default=26), towers=(joint,))
    return (*(refiners if before else ()), layers)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = fields.integer("cap_feat_dim", default=1024)
    time = min(hidden, _TIME_HIDDEN)
    ends = linear(grid.inputs, hidden) + linear(time, hidden) + linear(hidden, grid.outputs)
    return perceptron(parts.TIME, time) + text + linear(text, hidden) + ends
