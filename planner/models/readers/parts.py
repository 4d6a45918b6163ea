"""Pieces that several diffusion transformers share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from planner.models.architecture import (
    Block,
    Cross,
    Embedding,
    Ffn,
    Latent,
    Model,
    Modulation,
    Stream,
    Tower,
)
from planner.models.fields import CHANNELS, HEAD_SIZE, HEADS, LAYERS, REFINERS, Fields
from planner.models.mixers import Heads
from planner.models.readers.count import Part, biased, linear, perceptron
from topology.base.values import dataclass

TIME: Final = 256  # features of a sinusoidal timestep embedding
THETA: Final = 10_000  # base of rotary angles
EPSILON: Final = 10.0**-6  # added to mean squares in norms
PATCH: Final = 64  # latents a side of a patch, at most
BIASED_PARTS: Final[tuple[Part, ...]] = ("qkv", "out", "ffn", "modulation")
CROSS_PARTS: Final[tuple[Part, ...]] = ("qkv", "out", "ffn", "cross")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How latents become tokens, and the features that enter and leave one."""

    latent: Latent
    inputs: int
    outputs: int


def heads_of(fields: Fields, *, query: int, size: int, prefix: str = "") -> Heads:
    """Read `num_attention_heads` and `attention_head_dim`."""
    count = fields.integer(f"{prefix}num_attention_heads", high=HEADS, default=query)
    width = fields.integer(f"{prefix}attention_head_dim", high=HEAD_SIZE, default=size)
    return Heads(query=count, key_value=count, size=width)


def layers_of(fields: Fields, *, default: int, name: str = "num_layers") -> int:
    """Read a number of layers."""
    return fields.integer(name, high=LAYERS, default=default)


def layers_before(fields: Fields, name: str) -> int:
    """Count the layers that stand before the others, two where nothing says; each is laid out."""
    return fields.integer(name, low=0, high=REFINERS, default=2)


def uniform_blocks(
    fields: Fields, tower: Tower, *, layers: int, name: str = "layers"
) -> tuple[Block, ...]:
    """Build a model whose layers are all of one tower; `layers` where no number is given."""
    return (Block(name=name, count=layers_of(fields, default=layers), towers=(tower,)),)


def double_single(
    fields: Fields, double: tuple[Tower, ...], single: Tower, *, layers: tuple[int, int]
) -> tuple[Block, Block]:
    """Build layers with a tower for each stream, then layers of one tower over all of them."""
    single_count = layers_of(fields, default=layers[1], name="num_single_layers")
    return (
        Block(name="double", count=layers_of(fields, default=layers[0]), towers=double),
        Block(name="single", count=single_count, towers=(single,)),
    )


def channels_of(
    fields: Fields, *, inputs: int, outputs: int = 0, prefix: str = ""
) -> tuple[int, int]:
    """Read `in_channels` and `out_channels`; without `outputs` the latter default to the former."""
    entering = fields.integer(f"{prefix}in_channels", high=CHANNELS, default=inputs)
    leaving = fields.integer(f"{prefix}out_channels", high=CHANNELS, default=outputs or entering)
    return entering, leaving


def ffn_width(fields: Fields, hidden: int, *, default: float) -> int:
    """Read a FFN width given as a multiple of the hidden size."""
    ratio = fields.number("mlp_ratio", low=1 / 64, high=256.0, default=default)
    return max(int(hidden * ratio), 1)


def tower_of(streams: Sequence[str], heads: Heads, ffn: Ffn | int) -> Tower:
    """Build a tower as wide as its heads that attends to its own streams; a FFN, or its width."""
    feed = ffn if isinstance(ffn, Ffn) else Ffn(width=ffn, gated=False)
    own_streams = tuple(streams)
    return Tower(
        streams=own_streams, hidden=heads.query_width, heads=heads, keys=own_streams, ffn=feed
    )


def modulated(tower: Tower, rows: int) -> Tower:
    """Give a tower an adaptive norm: `rows` vectors as wide as it, from one of that width."""
    return replace(tower, modulation=Modulation(inputs=tower.hidden, outputs=rows * tower.hidden))


def joint_towers(
    streams: Sequence[str], *, heads: Heads, width: int, qk_norm: bool = True
) -> tuple[Tower, ...]:
    """Build towers with adaptive norms and biases that attend to all of `streams` together."""
    tower = modulated(tower_of(streams, heads, width), 6)
    normed_tower = replace(tower, qk_norm=qk_norm, extra=2 * heads.size if qk_norm else 0)
    return tuple(on(stream, biased(normed_tower, *BIASED_PARTS)) for stream in streams)


def single_tower(streams: Sequence[str], *, heads: Heads, width: int) -> Tower:
    """Build a tower over the joined streams whose attention and FFN run side by side."""
    tower = modulated(tower_of(streams, heads, width), 3)
    return biased(replace(tower, parallel=True, extra=2 * heads.size), *BIASED_PARTS)


def crossed_tower(stream: str, *, heads: Heads, width: int, text: int) -> Tower:
    """Build a tower with biases that attends to itself, then to a prompt of `text` features."""
    tower = tower_of((stream,), heads, width)
    cross = (Cross(context="text", width=text, heads=heads),)
    return biased(replace(tower, cross=cross, qk_norm=False, extra=6 * tower.hidden), *CROSS_PARTS)


def refiner(fields: Fields, stream: str, heads: Heads) -> tuple[Block, ...]:
    """Build the token refiner in front of HunyuanVideo's layers, none where it has no layers."""
    tower = modulated(tower_of((stream,), heads, 4 * heads.query_width), 2)
    refiner_tower = biased(replace(tower, qk_norm=False, extra=4 * tower.hidden), *BIASED_PARTS)
    count = layers_before(fields, "num_refiner_layers")
    return (
        (Block(name="refiner", count=count, towers=(refiner_tower,), prelude=True),)
        if count
        else ()
    )


def on(stream: str, tower: Tower) -> Tower:
    """Put the same weights' shape on another stream."""
    return replace(tower, streams=(stream,))


def text_stream(tokens: int, *, static: bool = False) -> Stream:
    """Build the prompt's stream; engines that split it pad it or keep it whole."""
    return Stream(name="text", tokens=tokens, static=static, pads=not static)


def grid_of(
    fields: Fields,
    *,
    strides: tuple[int, int],
    patch: int,
    channels: tuple[int, int],
    rounds: Literal["", "up", "down"] = "",
) -> Grid:
    """Read patches and channels; `strides` are the autoencoder's pixels and frames a latent."""
    frames, side, _ = sizes = patch_of(fields, default=patch)
    inputs, outputs = channels_of(fields, inputs=channels[0], outputs=channels[1])
    latent = latent_of(strides, min(inputs, outputs), sizes, rounds)
    patch_latents = frames * side**2
    return Grid(latent=latent, inputs=inputs * patch_latents, outputs=outputs * patch_latents)


def patch_of(fields: Fields, *, default: int) -> tuple[int, int, int]:
    """Read the frames, rows and columns of a square patch."""
    side = fields.integer("patch_size", high=PATCH, default=default)
    return fields.integer("patch_size_t", high=PATCH, default=1), side, side


def packed_grid(fields: Fields, *, inputs: int) -> Grid:
    """Read the channels of a model before which 2 x 2 latents are packed into one."""
    entering, leaving = channels_of(fields, inputs=inputs)
    latent = latent_of((8, 1), max(leaving // 4, 1), (1, 2, 2), "down")
    return Grid(latent=latent, inputs=entering, outputs=leaving)


def latent_of(
    strides: tuple[int, int],
    channels: int,
    patch: tuple[int, int, int],
    rounds: Literal["", "up", "down"] = "",
) -> Latent:
    """Build the geometry of tokens; `patch` has frames, rows and columns."""
    return Latent(
        spatial=strides[0],
        temporal=strides[1],
        channels=channels,
        patch_frames=patch[0],
        patch_height=patch[1],
        patch_width=patch[2],
        rounds=rounds,
    )


def three_of(fields: Fields, name: str, *, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Read a list of three sizes."""
    values = fields.integers(name, low=1, high=HEAD_SIZE, default=default)
    if len(values) != 3:
        raise fields.refused(name, list(values), "three whole numbers")
    return values[0], values[1], values[2]


def assemble(  # noqa: PLR0913  # all that a model is made of
    fields: Fields,
    family: str,
    *,
    usual: str,
    blocks: tuple[Block, ...],
    streams: tuple[Stream, ...],
    grid: Grid,
    outer: int,
) -> Model:
    """Put a diffusion model together; its name and source are where it was read from.

    usual : the catalogue entry that completes a configuration of this size.
    """
    return Model(
        name=fields.where,
        family=family,
        kind="diffusion",
        source=fields.where,
        blocks=blocks,
        streams=streams,
        latent=grid.latent,
        input_features=grid.inputs,
        output_features=grid.outputs,
        outer_parameters=outer,
        usual=usual,
    )


def time_text(hidden: int, pooled: int) -> int:
    """Count a timestep embedding plus a pooled text embedding."""
    return perceptron(TIME, hidden) + perceptron(pooled, hidden)


def guidance(fields: Fields, hidden: int, *, default: bool = False) -> int:
    """Count the embedding of the guidance, of a model that has one."""
    embedded = fields.boolean("guidance_embeds", default=default)
    return perceptron(TIME, hidden) if embedded else 0


def refined_text(hidden: int, text: int) -> int:
    """Count what leads prompts of `text` features into a token refiner."""
    return time_text(hidden, text) + linear(text, hidden)


def adaptive_ends(hidden: int, grid: Grid) -> int:
    """Count the projection from patches, the last adaptive norm and the projection back."""
    return linear(grid.inputs, hidden) + linear(hidden, 2 * hidden) + linear(hidden, grid.outputs)


def table_ends(hidden: int, grid: Grid) -> int:
    """Count the projections from and to patches, and a table of shift and scale."""
    return linear(grid.inputs, hidden) + linear(hidden, grid.outputs) + 2 * hidden


def timestep(*, waves: int = TIME, factor: float = 1.0) -> Embedding:
    """Build the embedding of a step's number."""
    return Embedding(name="time", waves=waves, factor=factor)


def shared_time(hidden: int, frequencies: int = TIME) -> int:
    """Count the timestep embedding whose six modulations all layers share."""
    return perceptron(frequencies, hidden) + linear(hidden, 6 * hidden)
