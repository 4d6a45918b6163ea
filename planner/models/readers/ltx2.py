"""LTX-2: a video and a sound stream that attend to the prompt and to each other."""

from dataclasses import dataclass

from planner.models.architecture import Block, Cross, Ffn, Heads, Model, Stream, Tower
from planner.models.fields import CHANNELS, HEAD_SIZE, HEADS, Fields
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron

CLASSES = ("LTX2VideoTransformer3DModel",)
_FRAMES_PER_SECOND = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two streams: its widths, and the letters before its keys."""

    stream: str
    other: str
    prefix: str
    heads: Heads
    text: int
    inputs: int
    outputs: int

    @property
    def hidden(self) -> int:
        return self.heads.query_width


def read(fields: Fields) -> Model:
    """Read a `LTX2VideoTransformer3DModel`; sound has four latents a hop of 160 samples."""
    video, audio = _video(fields), _audio(fields)
    towers = (_tower(fields, video, audio), _tower(fields, audio, video))
    outer = _outer(fields, video) + _outer(fields, audio)
    if fields.boolean("use_keyframes_abs_pos_embedding", default=False):
        outer += video.hidden
    patch = fields.integer("patch_size", high=parts.PATCH, default=1)
    frames = fields.integer("patch_size_t", high=parts.PATCH, default=1)
    strides = parts.three_of(fields, "vae_scale_factors", default=(8, 32, 32))
    latent = parts.latent_of((strides[1], strides[0]), video.outputs, (frames, patch, patch))
    return parts.assemble(
        fields,
        "ltx2",
        usual="ltx-2",
        blocks=(Block(name="layers", count=parts.layers_of(fields, default=48), towers=towers),),
        streams=(
            parts.text_stream(1024, static=True),
            Stream(name="audio", per_frame=_audio_rate(fields) / _FRAMES_PER_SECOND),
            Stream(name="video"),
        ),
        grid=parts.Grid(latent=latent, inputs=video.inputs, outputs=video.outputs),
        outer=outer,
    )


def _video(fields: Fields) -> _Side:
    inputs, outputs = parts.channels_of(fields, inputs=128, outputs=128)
    return _Side(
        stream="video",
        other="audio",
        prefix="",
        heads=parts.heads_of(fields, query=32, size=128),
        text=fields.integer("cross_attention_dim", default=4096),
        inputs=inputs,
        outputs=outputs,
    )


def _audio(fields: Fields) -> _Side:
    count = fields.integer("audio_num_attention_heads", high=HEADS, default=32)
    size = fields.integer("audio_attention_head_dim", high=HEAD_SIZE, default=64)
    return _Side(
        stream="audio",
        other="video",
        prefix="audio_",
        heads=Heads(query=count, key_value=count, size=size),
        text=fields.integer("audio_cross_attention_dim", default=2048),
        inputs=fields.integer("audio_in_channels", high=CHANNELS, default=128),
        outputs=fields.integer("audio_out_channels", high=CHANNELS, default=128),
    )


def _audio_rate(fields: Fields) -> float:
    """Latents a second of sound."""
    hop = fields.integer("audio_hop_length", default=160)
    scale = fields.integer("audio_scale_factor", high=1024, default=4)
    return fields.integer("audio_sampling_rate", default=16000) / hop / scale


def _gated(fields: Fields, side: _Side) -> bool:
    return fields.boolean(f"{side.prefix}gated_attn", default=False)


def _modulated(fields: Fields, side: _Side) -> bool:
    """Whether the prompt's cross attention has an adaptive norm too."""
    return fields.boolean(f"{side.prefix}cross_attn_mod", default=False)


def _tower(fields: Fields, side: _Side, other: _Side) -> Tower:
    sound = side.heads if side.stream == "audio" else other.heads
    tower = Tower(
        streams=(side.stream,),
        hidden=side.hidden,
        heads=side.heads,
        keys=(side.stream,),
        ffn=Ffn(width=4 * side.hidden, gated=False),
        cross=(
            Cross(context="text", width=side.text, heads=side.heads),
            Cross(context=side.other, width=other.hidden, heads=sound),
        ),
        extra=_small(fields, side, sound),
    )
    tower = biased(tower, "qkv", "out", "cross")
    return biased(tower, "ffn") if fields.boolean(f"{side.prefix}ff_bias", default=True) else tower


def _small(fields: Fields, side: _Side, sound: Heads) -> int:
    """Tables, norms and per-head gates of one side of a layer."""
    tables = 5 + (9 + 2 if _modulated(fields, side) else 6)
    norms = 4 * side.hidden + 2 * sound.query_width
    gates = linear(side.hidden, 2 * side.heads.query + sound.query) if _gated(fields, side) else 0
    return tables * side.hidden + norms + gates


def _outer(fields: Fields, side: _Side) -> int:
    hidden, modulated = side.hidden, _modulated(fields, side)
    rows = [9 if modulated else 6, 4, 1]  # self and prompt, other stream, its gate
    if modulated and fields.boolean("use_prompt_adaln_single", default=True):
        rows.append(2)
    times = sum(perceptron(parts.TIME, hidden) + linear(hidden, row * hidden) for row in rows)
    text = 0
    if fields.boolean("use_prompt_embeddings", default=True):
        text = perceptron(fields.integer("caption_channels", default=3840), hidden)
    ends = linear(side.inputs, hidden) + linear(hidden, side.outputs) + 2 * hidden
    return times + text + ends
