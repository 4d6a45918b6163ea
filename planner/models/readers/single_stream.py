"""Lumina-Image 2.0 and Z-Image: single-stream layers behind refiners of each stream."""

from dataclasses import replace

from planner.models.architecture import Block, Ffn, Model, Modulation, Stream, Tower
from planner.models.fields import CHANNELS, HEADS, WIDTH, Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("Lumina2Transformer2DModel", "ZImageTransformer2DModel")
_REFINERS = {"text": "context_refiner", "image": "noise_refiner"}
_TEXT_TOKENS = 128  # of Z-Image: prompts keep their real length, of at most 512
_MULTIPLE = 32  # tokens to which Z-Image pads each stream
_TIME_HIDDEN = 1024


def read(fields: Fields) -> Model:
    """Read a model of one stream, Z-Image or Lumina 2."""
    return _lumina(fields) if fields.text("_class_name") == CLASSES[0] else _z_image(fields)


def _lumina(fields: Fields) -> Model:
    hidden = fields.integer("hidden_size", default=2304)
    grid = parts.grid_of(fields, strides=(8, 1), patch=2, channels=(16, 0))
    names = ("hidden_size", "num_attention_heads", "num_kv_heads")
    heads = _heads(fields, hidden, names, query=24, shared=8)
    tower = _tower(("text", "image"), heads, _width(fields, hidden))
    text = fields.integer("cap_feat_dim", default=1024)
    time = min(hidden, _TIME_HIDDEN)
    ends = linear(grid.inputs, hidden) + linear(time, hidden) + linear(hidden, grid.outputs)
    return parts.assemble(
        fields,
        "lumina2",
        usual="lumina2",
        blocks=(
            *_refiners(fields, "num_refiner_layers", tower, time),
            *parts.uniform_blocks(fields, _modulated(tower, time), layers=26, name="single"),
        ),
        streams=(parts.text_stream(256), Stream(name="image")),
        grid=grid,
        outer=perceptron(parts.TIME, time) + text + linear(text, hidden) + ends,
    )


def _z_image(fields: Fields) -> Model:
    hidden = fields.integer("dim", default=3840)
    heads = _heads(fields, hidden, ("dim", "n_heads", "n_kv_heads"), query=30, shared=HEADS)
    patch = fields.integers("all_patch_size", low=1, high=parts.PATCH, default=(2,))[:1] or (2,)
    channels = fields.integer("in_channels", high=CHANNELS, default=16)
    features = channels * patch[0] ** 2
    latent = parts.latent_of((8, 1), channels, (1, patch[0], patch[0]))
    tower = replace(
        _tower(("image", "text"), heads, max(hidden * 8 // 3, 1)),
        qk_norm=fields.boolean("qk_norm", default=True),
    )
    text = fields.integer("cap_feat_dim", default=2560)
    time = perceptron(parts.TIME, _TIME_HIDDEN, parts.TIME) + linear(parts.TIME, hidden)
    ends = linear(features, hidden) + linear(hidden, features)
    layers = parts.layers_of(fields, default=30, name="n_layers")
    joint = _modulated(tower, min(hidden, parts.TIME))
    return parts.assemble(
        fields,
        "z-image",
        usual="z-image",
        blocks=(
            *_refiners(fields, "n_refiner_layers", tower, min(hidden, parts.TIME)),
            Block(name="single", count=layers, towers=(joint,)),
        ),
        streams=(
            Stream(name="text", tokens=_TEXT_TOKENS, multiple=_MULTIPLE, pads=True),
            Stream(name="image", multiple=_MULTIPLE),
        ),
        grid=parts.Grid(latent=latent, inputs=features, outputs=features),
        outer=time + text + linear(text, hidden) + 2 * hidden + ends,
    )


def _heads(
    fields: Fields, hidden: int, names: tuple[str, str, str], *, query: int, shared: int
) -> Heads:
    """Read heads of Lumina or Z-Image by three keys: features, heads, those of keys and values."""
    count = fields.integer(names[1], high=HEADS, default=query)
    key_value = fields.integer(names[2], high=HEADS, default=min(shared, count))
    if hidden % count:
        raise fields.refused(names[0], hidden, f"a multiple of {names[1]} {count}")
    if count % key_value:
        raise fields.refused(names[2], key_value, f"a divisor of {names[1]} {count}")
    return Heads(query=count, key_value=key_value, size=hidden // count)


def _width(fields: Fields, hidden: int) -> int:
    """Take four times the hidden size, scaled, up to a multiple of `multiple_of`."""
    scale = fields.number("ffn_dim_multiplier", low=1 / 64, high=64.0, default=1.0)
    step = fields.integer("multiple_of", high=WIDTH, default=256)
    return -(-max(int(4 * hidden * scale), 1) // step) * step


def _tower(streams: tuple[str, str], heads: Heads, width: int) -> Tower:
    tower = parts.tower_of(streams, heads, Ffn(width=width, gated=True, activation="silu"))
    return replace(tower, extra=4 * tower.hidden + 2 * heads.size)


def _modulated(tower: Tower, inputs: int) -> Tower:
    modulation = Modulation(inputs=inputs, outputs=4 * tower.hidden)
    return biased(replace(tower, modulation=modulation), "modulation")


def _refiners(fields: Fields, name: str, tower: Tower, inputs: int) -> list[Block]:
    """Build a refiner of each stream, if any; the time modulates that of the image alone."""
    count = parts.layers_before(fields, name)
    blocks = []
    for stream in tower.streams if count else ():
        stream_tower = _modulated(tower, inputs) if stream == "image" else tower
        refiner_tower = replace(stream_tower, streams=(stream,), keys=(stream,))
        blocks.append(
            Block(name=_REFINERS[stream], count=count, towers=(refiner_tower,), prelude=True)
        )
    return blocks
