"""CogVideoX: one set of weights over prompt and video laid end to end."""

from planner.models.architecture import Block, Ffn, Heads, Model, Modulation, Stream, Tower
from planner.models.fields import WIDTH, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("CogVideoXTransformer3DModel",)
STREAMS = ("text", "video")


def read(fields: Fields) -> Model:
    """Read a `CogVideoXTransformer3DModel`; 1.5 patches frames in pairs."""
    heads = parts.heads_of(fields, query=30, size=64)
    frames = fields.integer("temporal_compression_ratio", high=parts.PATCH, default=4)
    grid = parts.grid_of(fields, strides=(8, frames), patch=2, channels=(16, 16))
    tokens = fields.integer("max_text_seq_length", high=WIDTH, default=226)
    layers = parts.layers_of(fields, default=30)
    return parts.assemble(
        fields,
        "cogvideox",
        usual=_usual(fields),
        blocks=(Block(name="joint", count=layers, towers=(_tower(fields, heads),)),),
        streams=(parts.text_stream(tokens), Stream(name="video")),
        grid=grid,
        outer=_outer(fields, heads.query_width, grid),
    )


def _usual(fields: Fields) -> str:
    """Tell the two sizes apart by their heads."""
    return (
        "cogvideox-2b" if parts.heads_of(fields, query=30, size=64).query < 48 else "cogvideox-5b"
    )


def _tower(fields: Fields, heads: Heads) -> Tower:
    hidden = heads.query_width
    time = fields.integer("time_embed_dim", default=512)
    tower = Tower(
        streams=STREAMS,
        hidden=hidden,
        heads=heads,
        keys=STREAMS,
        ffn=Ffn(width=4 * hidden, gated=False),
        modulation=Modulation(inputs=time, outputs=6 * hidden, copies=2),
        extra=4 * hidden + 4 * heads.size,
    )
    biases = parts.ALL if fields.boolean("attention_bias", default=True) else parts.ALL[1:]
    return biased(tower, *biases)


def _outer(fields: Fields, hidden: int, grid: parts.Grid) -> int:
    time = fields.integer("time_embed_dim", default=512)
    text = linear(fields.integer("text_embed_dim", default=4096), hidden)
    speed = fields.integer("ofs_embed_dim", default=0)
    ofs = perceptron(speed, speed) if speed else 0
    norms = linear(time, 2 * hidden) + 4 * hidden
    patches = linear(grid.inputs, hidden, bias=fields.boolean("patch_bias", default=True))
    ends = patches + linear(hidden, grid.outputs)
    return perceptron(hidden, time) + ofs + text + norms + ends
