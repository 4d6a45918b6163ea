"""FLUX.2: as FLUX.1, with gated FFNs, no biases, and one modulation shared by all layers."""

from planner.models.architecture import Block, Ffn, Heads, Model, Stream, Tower
from planner.models.fields import Fields
from planner.models.readers import parts
from planner.models.readers.count import perceptron

CLASSES = ("Flux2Transformer2DModel",)
STREAMS = ("text", "image")


def read(fields: Fields) -> Model:
    """Read a `Flux2Transformer2DModel`."""
    heads = parts.heads_of(fields, query=48, size=128)
    width = parts.widened(fields, heads.query_width, default=3.0)
    single = _tower(STREAMS, heads, width, parallel=True)
    double = _tower(STREAMS[:1], heads, width, parallel=False)
    grid = parts.packed_grid(fields, inputs=128)
    return parts.assemble(
        fields,
        "flux2",
        usual=_usual(fields),
        blocks=(
            Block(
                name="double",
                count=parts.layers_of(fields, default=8),
                towers=tuple(parts.on(stream, double) for stream in STREAMS),
            ),
            Block(
                name="single",
                count=parts.layers_of(fields, default=48, name="num_single_layers"),
                towers=(single,),
            ),
        ),
        streams=(parts.text_stream(512), Stream(name="image")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _usual(fields: Fields) -> str:
    """Tell the sizes apart by their width: klein models have a half or two thirds of it."""
    hidden = parts.heads_of(fields, query=48, size=128).query_width
    if hidden <= 3072:
        return "flux.2-klein-4b"
    return "flux.2-klein-9b" if hidden <= 4096 else "flux.2-dev"


def _tower(streams: tuple[str, ...], heads: Heads, width: int, *, parallel: bool) -> Tower:
    return Tower(
        streams=streams,
        hidden=heads.query_width,
        heads=heads,
        keys=STREAMS,
        ffn=Ffn(width=width, gated=True, activation="silu"),
        parallel=parallel,
        extra=2 * heads.size,
    )


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    time = fields.integer("timestep_guidance_channels", default=256)
    embeddings = 2 if fields.boolean("guidance_embeds", default=True) else 1
    text = fields.integer("joint_attention_dim", default=15360)
    modulation = (6 + 6 + 3 + 2) * hidden  # image, text, single layers, head
    maps = hidden * (modulation + grid.inputs + grid.outputs + text)
    return maps + embeddings * perceptron(time, hidden, bias=False)
