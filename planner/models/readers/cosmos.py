"""Cosmos 1, Predict2 and Predict2.5: self attention, cross attention, low-rank adaptive norms."""

from planner.models.architecture import Block, Cross, Ffn, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import linear

CLASSES = ("CosmosTransformer3DModel",)


def read(fields: Fields) -> Model:
    """Read a `CosmosTransformer3DModel`; Cosmos 1 is the one with learned positions."""
    heads = parts.heads_of(fields, query=32, size=128)
    patch = parts.three_of(fields, "patch_size", default=(1, 2, 2))
    grid = _grid(fields, patch)
    layers = parts.layers_of(fields, default=28)
    return parts.assemble(
        fields,
        "cosmos",
        usual=_usual(fields),
        blocks=(Block(name="layers", count=layers, towers=(_tower(fields, heads),)),),
        streams=(parts.text_stream(512, static=True), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid, patch),
    )


def _usual(fields: Fields) -> str:
    """Tell three generations and two sizes apart; the image model has no condition mask."""
    large = parts.heads_of(fields, query=32, size=128).query_width > 4096
    if _learned(fields):
        return "cosmos1-14b" if large else "cosmos1-7b"
    if fields.boolean("use_crossattn_projection", default=False):
        return "cosmos-predict2.5-14b" if large else "cosmos-predict2.5-2b"
    if parts.channels_of(fields, inputs=16, outputs=16)[0] == 16:
        return "cosmos-predict2-2b-image"
    return "cosmos-predict2-14b" if large else "cosmos-predict2-2b"


def _learned(fields: Fields) -> bool:
    """Whether positions are learned; the class's default is that they are, null that not."""
    if "extra_pos_embed_type" in fields.values and not fields.has("extra_pos_embed_type"):
        return False
    return fields.text("extra_pos_embed_type", default="learnable") == "learnable"


def _grid(fields: Fields, patch: tuple[int, int, int]) -> parts.Grid:
    inputs, outputs = parts.channels_of(fields, inputs=16, outputs=16)
    mask = 1 if fields.boolean("concat_padding_mask", default=True) else 0
    covered = patch[0] * patch[1] * patch[2]
    latent = parts.latent_of((8, 8 if _learned(fields) else 4), outputs, patch)
    return parts.Grid(latent=latent, inputs=(inputs + mask) * covered, outputs=outputs * covered)


def _tower(fields: Fields, heads: Heads) -> Tower:
    hidden = heads.query_width
    text = fields.integer("text_embed_dim", default=1024)
    rank = fields.integer("adaln_lora_dim", default=256)
    return Tower(
        streams=("video",),
        hidden=hidden,
        heads=heads,
        keys=("video",),
        ffn=Ffn(width=parts.widened(fields, hidden, default=4.0), gated=False),
        modulation=Modulation(inputs=hidden, outputs=3 * hidden, rank=rank, copies=3),
        cross=(Cross(context="text", width=text, heads=heads),),
        extra=4 * heads.size,
    )


def _outer(fields: Fields, hidden: int, grid: parts.Grid, patch: tuple[int, int, int]) -> int:
    rank = fields.integer("adaln_lora_dim", default=256)
    time = hidden * hidden + 3 * hidden * hidden + hidden
    positions = 0
    if _learned(fields):
        sizes = parts.three_of(fields, "max_size", default=(128, 240, 240))
        positions = hidden * sum(size // step for size, step in zip(sizes, patch, strict=True))
    projection = 0
    if fields.boolean("use_crossattn_projection", default=False):
        projection = linear(
            fields.integer("crossattn_proj_in_channels", default=1024),
            fields.integer("encoder_hidden_states_channels", default=1024),
        )
    head = rank * (hidden + 2 * hidden)
    return hidden * (grid.inputs + grid.outputs) + time + head + positions + projection
