"""Wan 2.1 and 2.2: self attention over the video, cross attention to the prompt."""

from dataclasses import replace
from math import prod

from planner.models.architecture import Cross, Embedding, Model, Numerics, Stream, Tower
from planner.models.fields import CHANNELS, HEADS, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased, perceptron

CLASSES = ("WanTransformer3DModel", "WanModel")
_IMAGE_TOKENS = 257  # of CLIP ViT-H/14 at 224 x 224, its class token included
_IMAGE_WIDTH = 1280
_IMAGE_EPSILON = 1 / 10**5


def read(fields: Fields) -> Model:
    """Read a `WanTransformer3DModel`, or the `WanModel` of the original repository."""
    heads, grid, image = _heads(fields), _grid(fields), _image_width(fields)
    text = parts.text_stream(fields.integer("text_len", high=2**20, default=512), static=True)
    context = Stream(name="image_context", tokens=_IMAGE_TOKENS, static=True)
    model = parts.assemble(
        fields,
        "wan",
        usual=_usual_entry(fields, heads, image),
        blocks=parts.uniform_blocks(
            fields,
            _tower(fields, heads, image=image > 0),
            layers=32 if _is_original(fields) else 40,
        ),
        streams=(text, *((context,) if image else ()), Stream(name="video", pads=True)),
        grid=grid,
        outer=_outer(fields, heads.query_width, image) + parts.table_ends(heads.query_width, grid),
    )
    return replace(model, numerics=_numerics(fields, heads.size, image))


def _numerics(fields: Fields, size: int, image: int) -> Numerics | None:
    """Say what the numbers of Wan depend on.

    None without a norm ahead of cross attention, with positions of two pictures, or where the
    original file says that there is a picture, and not how it is read.
    """
    has_cross_norm = fields.boolean("cross_attn_norm", default=True)
    unread_image = _is_original(fields) and image > 0
    if not has_cross_norm or unread_image or fields.has("pos_embed_seq_len"):
        return None
    text = fields.integer("text_dim", default=4096)
    rows = [Embedding(name="text", features=text, activation="gelu")]
    if image:
        rows.append(
            Embedding(
                name="image_context",
                features=image,
                inner=image,
                activation="gelu_erf",
                epsilon=_IMAGE_EPSILON,
            )
        )
    side = 2 * (size // 6)
    return Numerics(
        epsilon=fields.number("eps", high=1.0, default=parts.EPSILON),
        theta=parts.THETA,
        normed="all",
        centred=True,
        axes=(size - 2 * side, side, side),
        adjacent=True,
        points=prod(_patch(fields)),
        conditions=(parts.timestep(waves=fields.integer("freq_dim", default=parts.TIME)),),
        rows=tuple(rows),
        timed="tables",
    )


def _usual_entry(fields: Fields, heads: Heads, image: int) -> str:
    """See the autoencoder in the channels and the size in the heads."""
    inputs, outputs = _channels(fields)
    if outputs == 48:
        return "wan2.2-5b"
    if image:
        return "wan2.1-i2v-14b"
    if inputs > 2 * outputs:  # a first frame and its mask beside the latent
        return "wan2.2-i2v-a14b"
    return "wan2.1-1.3b" if heads.query_width <= 2048 else "wan2.1-14b"


def _is_original(fields: Fields) -> bool:
    return fields.text("_class_name") == "WanModel"


def _heads(fields: Fields) -> Heads:
    if not _is_original(fields):
        return parts.heads_of(fields, query=40, size=128)
    hidden = fields.integer("dim", default=2048)
    count = fields.integer("num_heads", high=HEADS, default=16)
    if hidden % count:
        raise fields.refused("dim", hidden, f"a multiple of num_heads {count}")
    return Heads(query=count, key_value=count, size=hidden // count)


def _channels(fields: Fields) -> tuple[int, int]:
    if not _is_original(fields):
        return parts.channels_of(fields, inputs=16, outputs=16)
    inputs = fields.integer("in_dim", high=CHANNELS, default=16)
    return inputs, fields.integer("out_dim", high=CHANNELS, default=16)


def _grid(fields: Fields) -> parts.Grid:
    patch = _patch(fields)
    inputs, outputs = _channels(fields)
    patch_latents = patch[0] * patch[1] * patch[2]
    latent = parts.latent_of((16 if outputs == 48 else 8, 4), outputs, patch)
    return parts.Grid(latent=latent, inputs=inputs * patch_latents, outputs=outputs * patch_latents)


def _patch(fields: Fields) -> tuple[int, int, int]:
    return parts.three_of(fields, "patch_size", default=(1, 2, 2))


def _image_width(fields: Fields) -> int:
    """Count the features of the image context, 0 without one (Wan 2.2 and text to video)."""
    if _is_original(fields):
        return _IMAGE_WIDTH if fields.text("model_type", default="t2v") == "i2v" else 0
    if not fields.has("added_kv_proj_dim"):
        return 0
    return fields.integer("image_dim", default=_IMAGE_WIDTH)


def _tower(fields: Fields, heads: Heads, *, image: bool) -> Tower:
    width = fields.integer("ffn_dim", default=8192 if _is_original(fields) else 13824)
    base_tower = parts.tower_of(("video",), heads, width)
    text = Cross(context="text", width=base_tower.hidden, heads=heads)
    context = replace(text, context="image_context", added=True)
    norms = 2 if fields.boolean("cross_attn_norm", default=True) else 0
    tower = replace(
        base_tower,
        cross=(text, context) if image else (text,),
        extra=(6 + 2 + 2 + norms + (1 if image else 0)) * base_tower.hidden,
    )
    return biased(tower, *parts.CROSS_PARTS)


def _outer(fields: Fields, hidden: int, width: int) -> int:
    time = parts.shared_time(hidden, fields.integer("freq_dim", default=parts.TIME))
    text = perceptron(fields.integer("text_dim", default=4096), hidden)
    image = 2 * width + perceptron(width, width, hidden) + 2 * hidden if width else 0
    return time + text + image
