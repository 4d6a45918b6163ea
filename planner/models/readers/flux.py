"""FLUX.1 and FLUX.2: double-stream, then single-stream layers with attention and FFN side by side.

FLUX.2 has gated FFNs, no biases, and one modulation that all layers share.
"""

from dataclasses import replace
from typing import Final

from planner.models.architecture import Embedding, Ffn, Model, Numerics, Stream
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import linear, perceptron

CLASSES = ("FluxTransformer2DModel", "Flux2Transformer2DModel")
STREAMS = ("text", "image")
_AXES: Final = (16, 56, 56)
_GUIDANCE: Final = Embedding(name="guidance", waves=parts.TIME, factor=1000.0)


def read(fields: Fields) -> Model:
    """Read either class: 2 x 2 latents are packed before it, so its patch is 1."""
    return _flux(fields) if fields.text("_class_name") == CLASSES[0] else _flux2(fields)


def _flux(fields: Fields) -> Model:
    """Read a `FluxTransformer2DModel`; only dev embeds its guidance, schnell does not."""
    heads = parts.heads_of(fields, query=24, size=128)
    hidden, grid = heads.query_width, parts.packed_grid(fields, inputs=64)
    double = parts.joint_towers(STREAMS, heads=heads, width=4 * hidden)
    single = parts.single_tower(STREAMS, heads=heads, width=4 * hidden)
    guidance = parts.guidance(fields, hidden)
    text = fields.integer("joint_attention_dim", default=4096)
    pooled = fields.integer("pooled_projection_dim", default=768)
    conditions = linear(text, hidden) + parts.time_text(hidden, pooled) + guidance
    model = parts.assemble(
        fields,
        "flux",
        usual="flux.1-dev" if guidance else "flux.1-schnell",
        blocks=parts.double_single(fields, double, single, layers=(19, 38)),
        streams=(parts.text_stream(512 if guidance else 256), Stream(name="image")),
        grid=grid,
        outer=conditions + parts.adaptive_ends(hidden, grid),
    )
    embeddings = (*([_GUIDANCE] if guidance else []), Embedding(name="pooled", features=pooled))
    return replace(model, numerics=_numerics(fields, heads.size, text, embeddings))


def _numerics(
    fields: Fields, size: int, text: int, embeddings: tuple[Embedding, ...]
) -> Numerics | None:
    """Say what the numbers of FLUX.1 depend on; None where axes do not make up a head."""
    axes = fields.integers("axes_dims_rope", default=_AXES)
    if len(axes) != len(_AXES) or sum(axes) != size or any(axis % 2 for axis in axes):
        return None
    return Numerics(
        epsilon=parts.EPSILON,
        theta=parts.THETA,
        normed="head",
        centred=True,
        axes=axes,
        adjacent=True,
        conditions=(parts.timestep(), *embeddings),
        rows=(Embedding(name="text", features=text, activation=""),),
        timed="layers",
    )


def _flux2(fields: Fields) -> Model:
    """Read a `Flux2Transformer2DModel`."""
    heads = parts.heads_of(fields, query=48, size=128)
    hidden, grid = heads.query_width, parts.packed_grid(fields, inputs=128)
    width = parts.ffn_width(fields, hidden, default=3.0)
    ffn = Ffn(width=width, gated=True, activation="silu")
    tower = replace(parts.tower_of(STREAMS, heads, ffn), extra=2 * heads.size)
    double = tuple(parts.on(stream, tower) for stream in STREAMS)
    single = replace(tower, parallel=True)
    time = fields.integer("timestep_guidance_channels", default=256)
    embeddings = 2 if fields.boolean("guidance_embeds", default=True) else 1
    text = fields.integer("joint_attention_dim", default=15360)
    modulation = (6 + 6 + 3 + 2) * hidden  # image, text, single layers, head
    maps = hidden * (modulation + grid.inputs + grid.outputs + text)
    return parts.assemble(
        fields,
        "flux2",
        usual=_usual_entry(hidden),
        blocks=parts.double_single(fields, double, single, layers=(8, 48)),
        streams=(parts.text_stream(512), Stream(name="image")),
        grid=grid,
        outer=maps + embeddings * perceptron(time, hidden, bias=False),
    )


def _usual_entry(hidden: int) -> str:
    """Tell the sizes apart by their width: klein models have a half or two thirds of it."""
    if hidden <= 3072:
        return "flux.2-klein-4b"
    return "flux.2-klein-9b" if hidden <= 4096 else "flux.2-dev"
