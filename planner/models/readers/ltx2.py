"""LTX-2: a video and a sound stream that attend to the prompt and to each other."""

from dataclasses import replace

from planner.models.architecture import Block, Cross, Model, Stream, Tower
from planner.models.fields import Fields
from planner.models.mixers import Heads
from planner.models.readers import parts
from planner.models.readers.count import biased, linear, perceptron
from topology.base.values import dataclass

CLASSES = ("LTX2VideoTransformer3DModel",)
_FRAMES_PER_SECOND = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two streams: its widths, and the letters before its keys."""

    stream: str
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
    video = _side(fields, "video", "", size=128, text=4096)
    audio = _side(fields, "audio", "audio_", size=64, text=2048)
    towers = (_tower(fields, video, audio), _tower(fields, audio, video))
    outer = _outer(fields, video) + _outer(fields, audio)
    if fields.boolean("use_keyframes_abs_pos_embedding", default=False):
        outer += video.hidden
    strides = parts.three_of(fields, "vae_scale_factors", default=(8, 32, 32))
    patch = parts.patch_of(fields, default=1)
    latent = parts.latent_of((strides[1], strides[0]), video.outputs, patch)
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


def _side(fields: Fields, stream: str, prefix: str, *, size: int, text: int) -> _Side:
    inputs, outputs = parts.channels_of(fields, inputs=128, outputs=128, prefix=prefix)
    return _Side(
        stream=stream,
        prefix=prefix,
        heads=parts.heads_of(fields, query=32, size=size, prefix=prefix),
        text=fields.integer(f"{prefix}cross_attention_dim", default=text),
        inputs=inputs,
        outputs=outputs,
    )


def _audio_rate(fields: Fields) -> float:
    """Count the latents a second of sound."""
    hop = fields.integer("audio_hop_length", default=160)
    scale = fields.integer("audio_scale_factor", high=1024, default=4)
    return fields.integer("audio_sampling_rate", default=16000) / hop / scale


def _gated(fields: Fields, side: _Side) -> bool:
    return fields.boolean(f"{side.prefix}gated_attn", default=False)


def _modulated(fields: Fields, side: _Side) -> bool:
    """Whether the prompt's cross attention has an adaptive norm too."""
    return fields.boolean(f"{side.prefix}cross_attn_mod", default=False)


def _tower(fields: Fields, side: _Side, other_side: _Side) -> Tower:
    audio_heads = side.heads if side.stream == "audio" else other_side.heads
    tower = replace(
        parts.tower_of((side.stream,), side.heads, 4 * side.hidden),
        cross=(
            Cross(context="text", width=side.text, heads=side.heads),
            Cross(context=other_side.stream, width=other_side.hidden, heads=audio_heads),
        ),
        extra=_small_parameters(fields, side, audio_heads),
    )
    tower = biased(tower, "qkv", "out", "cross")
    return biased(tower, "ffn") if fields.boolean(f"{side.prefix}ff_bias", default=True) else tower


def _small_parameters(fields: Fields, side: _Side, audio_heads: Heads) -> int:
    """Tables, norms and per-head gates of one side of a layer."""
    tables = 5 + (9 + 2 if _modulated(fields, side) else 6)
    norms = 4 * side.hidden + 2 * audio_heads.query_width
    gates = (
        linear(side.hidden, 2 * side.heads.query + audio_heads.query) if _gated(fields, side) else 0
    )
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
