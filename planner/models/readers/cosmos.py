"""Cosmos 1, Predict2 and Predict2.5: self attention, cross attention, low-rank adaptive norms."""

from dataclasses import replace

from planner.models.architecture import Cross, Model, Modulation, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import linear

CLASSES = ("CosmosTransformer3DModel",)


def read(fields: Fields) -> Model:
    """Read a `CosmosTransformer3DModel`; Cosmos 1 is the one with learned positions."""
    heads = parts.heads_of(fields, query=32, size=128)
    patch = parts.three_of(fields, "patch_size", default=(1, 2, 2))
    hidden, grid = heads.query_width, _grid(fields, patch)
    text = fields.integer("text_embed_dim", default=1024)
    rank = fields.integer("adaln_lora_dim", default=256)
    tower = replace(
        parts.tower_of(("video",), heads, parts.ffn_width(fields, hidden, default=4.0)),
        modulation=Modulation(inputs=hidden, outputs=3 * hidden, rank=rank, copies=3),
        cross=(Cross(context="text", width=text, heads=heads),),
        extra=4 * heads.size,
    )
    head = rank * (hidden + 2 * hidden)
    ends = hidden * (grid.inputs + grid.outputs) + 4 * hidden * hidden + hidden
    return parts.assemble(
        fields,
        "cosmos",
        usual=_usual_entry(fields, large=hidden > 4096),
        blocks=parts.uniform_blocks(fields, tower, layers=28),
        streams=(parts.text_stream(512, static=True), Stream(name="video")),
        grid=grid,
        outer=ends + head + _positions(fields, hidden, patch) + _projection(fields),
    )


def _usual_entry(fields: Fields, *, large: bool) -> str:
    """Tell three generations and two sizes apart; the image model has no condition mask."""
    if _learns_positions(fields):
        return "cosmos1-14b" if large else "cosmos1-7b"
    if fields.boolean("use_crossattn_projection", default=False):
        return "cosmos-predict2.5-14b" if large else "cosmos-predict2.5-2b"
    if parts.channels_of(fields, inputs=16, outputs=16)[0] == 16:
        return "cosmos-predict2-2b-image"
    return "cosmos-predict2-14b" if large else "cosmos-predict2-2b"


def _learns_positions(fields: Fields) -> bool:
    """Whether positions are learned; the class's default is that they are, null that not."""
    if "extra_pos_embed_type" in fields.values and not fields.has("extra_pos_embed_type"):
        return False
    return fields.text("extra_pos_embed_type", default="learnable") == "learnable"


def _grid(fields: Fields, patch: tuple[int, int, int]) -> parts.Grid:
    inputs, outputs = parts.channels_of(fields, inputs=16, outputs=16)
    mask = 1 if fields.boolean("concat_padding_mask", default=True) else 0
    patch_latents = patch[0] * patch[1] * patch[2]
    latent = parts.latent_of((8, 8 if _learns_positions(fields) else 4), outputs, patch)
    return parts.Grid(
        latent=latent, inputs=(inputs + mask) * patch_latents, outputs=outputs * patch_latents
    )


def _positions(fields: Fields, hidden: int, patch: tuple[int, int, int]) -> int:
    if not _learns_positions(fields):
        return 0
    sizes = parts.three_of(fields, "max_size", default=(128, 240, 240))
    return hidden * sum(size // step for size, step in zip(sizes, patch, strict=True))


def _projection(fields: Fields) -> int:
    if not fields.boolean("use_crossattn_projection", default=False):
        return 0
    inputs = fields.integer("crossattn_proj_in_channels", default=1024)
    return linear(inputs, fields.integer("encoder_hidden_states_channels", default=1024))
