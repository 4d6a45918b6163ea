"""Z-Image: single-stream layers behind refiners of each stream."""

from dataclasses import replace

from planner.models.architecture import Block, Ffn, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import CHANNELS, HEADS, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("ZImageTransformer2DModel",)
STREAMS = ("image", "text")
_TEXT_TOKENS = 128  # prompts keep their real length, of at most 512
_MULTIPLE = 32
_TIME_HIDDEN = 1024


def read(fields: Fields) -> Model:
    """Read a `ZImageTransformer2DModel`; each stream is padded to a multiple of 32."""
    hidden, heads = fields.integer("dim", default=3840), _heads(fields)
    patch = fields.integers("all_patch_size", low=1, high=parts.PATCH, default=(2,))[:1] or (2,)
    channels = fields.integer("in_channels", high=CHANNELS, default=16)
    features = channels * patch[0] ** 2
    grid = parts.Grid(
        latent=parts.latent_of((8, 1), channels, (1, patch[0], patch[0])),
        inputs=features,
        outputs=features,
    )
    return parts.assemble(
        fields,
        "z-image",
        usual="z-image",
        blocks=_blocks(fields, hidden, heads),
        streams=(
            Stream(name="text", tokens=_TEXT_TOKENS, multiple=_MULTIPLE, pads=True),
            Stream(name="image", multiple=_MULTIPLE),
        ),
        grid=grid,
        outer=_outer(fields, hidden, grid),
    )


def _heads(fields: Fields) -> Heads:
    hidden = fields.integer("dim", default=3840)
    count = fields.integer("n_heads", high=HEADS, default=30)
    shared = fields.integer("n_kv_heads", high=HEADS, default=count)
    if hidden % count:
        raise fields.refused("dim", hidden, f"a multiple of n_heads {count}")
    if count % shared:
        raise fields.refused("n_kv_heads", shared, f"a divisor of n_heads {count}")
    return Heads(query=count, key_value=shared, size=hidden // count)


def _blocks(fields: Fields, hidden: int, heads: Heads) -> tuple[Block, ...]:
    plain = Tower(
        streams=STREAMS,
        hidden=hidden,
        heads=heads,
        keys=STREAMS,
        ffn=Ffn(width=max(hidden * 8 // 3, 1), gated=True, activation="silu"),
        qk_norm=fields.boolean("qk_norm", default=True),
        extra=4 * hidden + 2 * heads.size,
    )
    adaptive = replace(
        plain, modulation=Modulation(inputs=min(hidden, parts.TIME), outputs=4 * hidden)
    )
    joint = biased(adaptive, "modulation")
    image = replace(joint, streams=("image",), keys=("image",))
    text = replace(plain, streams=("text",), keys=("text",))
    before = parts.layers_before(fields, "n_refiner_layers")
    refiners = (
        Block(name="noise_refiner", count=before, towers=(image,), prelude=True),
        Block(name="context_refiner", count=before, towers=(text,), prelude=True),
    )
    layers = Block(
        name="single", count=parts.layers_of(fields, default=30, name="n_layers"), towers=(joint,)
    )
    return (*(refiners if before else ()), layers)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    text = fields.integer("cap_feat_dim", default=2560)
    time = perceptron(parts.TIME, _TIME_HIDDEN, parts.TIME) + linear(parts.TIME, hidden)
    ends = linear(grid.inputs, hidden) + linear(hidden, grid.outputs)
    return time + text + linear(text, hidden) + 2 * hidden + ends
