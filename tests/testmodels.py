"""Small models of every family, for running programs on numbers."""

from dataclasses import replace

from planner.models import (
    Block,
    Cross,
    DeltaRule,
    Ffn,
    Heads,
    LatentAttention,
    Mamba,
    Model,
    Modulation,
    Stream,
    Tower,
)
from planner.request.workload import Habits, Workload

HEADS = Heads(query=4, key_value=4, size=4)
GROUPED = Heads(query=8, key_value=4, size=4)
HIDDEN = 16
LINE = 3  # points across an image of 24: eight lines
FLUX_CONFIG = {
    "_class_name": "FluxTransformer2DModel",
    "attention_head_dim": 8,
    "axes_dims_rope": [4, 2, 2],
    "in_channels": 16,
    "joint_attention_dim": 16,
    "num_attention_heads": 2,
    "num_layers": 1,
    "num_single_layers": 1,
    "pooled_projection_dim": 16,
}
"""A small FLUX as a config.json has it."""


def _model(name, blocks, streams, **more):
    return Model(
        name=name,
        family=name,
        kind=more.pop("kind", "diffusion"),
        source="made up for tests",
        blocks=tuple(blocks),
        streams=tuple(streams),
        input_features=6,
        output_features=6,
        **more,
    )


def _tower(*streams, keys, **more):
    defaults = {
        "hidden": HIDDEN,
        "heads": HEADS,
        "ffn": Ffn(width=32, gated=False),
        "modulation": Modulation(inputs=8, outputs=6 * HIDDEN),
    }
    return Tower(streams=streams, keys=keys, **{**defaults, **more})


BOTH = ("text", "image")
TEXT = Stream(name="text", tokens=8)
IMAGE = Stream(name="image")
VIDEO = Stream(name="video")

flux = _model(
    "flux",
    [
        Block(
            name="double", count=2, towers=(_tower("text", keys=BOTH), _tower("image", keys=BOTH))
        ),
        Block(
            name="single",
            count=2,
            towers=(
                _tower(
                    *BOTH,
                    keys=BOTH,
                    parallel=True,
                    modulation=Modulation(inputs=8, outputs=3 * HIDDEN),
                ),
            ),
        ),
    ],
    [TEXT, IMAGE],
)
asymmetric = _model(
    "asymmetric",
    [
        Block(
            name="joint",
            count=2,
            towers=(
                _tower("text", keys=BOTH, hidden=8, modulation=None, ffn=Ffn(width=16, gated=True)),
                _tower("image", keys=BOTH, ffn=Ffn(width=16, gated=True)),
            ),
        ),
        Block(
            name="last",
            count=1,
            towers=(
                _tower("text", keys=BOTH, hidden=8, modulation=None, ffn=None, ends=True),
                _tower(
                    "image",
                    keys=BOTH,
                    modulation=Modulation(inputs=8, outputs=48, rank=2, copies=2),
                ),
            ),
        ),
    ],
    [TEXT, IMAGE],
)
wan = _model(
    "wan",
    [
        Block(
            name="block",
            count=2,
            towers=(
                _tower(
                    "video",
                    keys=("video",),
                    cross=(
                        Cross(context="text", width=12, heads=HEADS),
                        Cross(context="picture", width=10, heads=HEADS, added=True),
                    ),
                    modulation=None,
                ),
            ),
        )
    ],
    [
        Stream(name="text", tokens=5, static=True),
        Stream(name="picture", tokens=3, static=True),
        VIDEO,
    ],
)
cosmos3 = _model(
    "cosmos3",
    [
        Block(
            name="layer",
            count=3,
            towers=(
                _tower(
                    "text",
                    keys=("text",),
                    causal=True,
                    heads=GROUPED,
                    modulation=None,
                    ffn=Ffn(width=32, gated=True),
                ),
                _tower(
                    "video",
                    keys=("text", "video"),
                    heads=GROUPED,
                    modulation=None,
                    ffn=Ffn(width=32, gated=True),
                ),
            ),
        )
    ],
    [Stream(name="text", tokens=7), Stream(name="video", pads=True)],
    reuses=("text",),
)
refined = _model(
    "refined",
    [
        Block(name="noise", count=1, towers=(_tower("image", keys=("image",)),)),
        Block(name="context", count=1, towers=(_tower("text", keys=("text",), modulation=None),)),
        Block(name="main", count=2, towers=(_tower(*BOTH, keys=BOTH),)),
    ],
    [TEXT, IMAGE],
)
experts = _model(
    "experts",
    [
        Block(
            name="double",
            count=2,
            towers=(
                _tower("text", keys=BOTH),
                _tower(
                    "image",
                    keys=BOTH,
                    ffn=Ffn(width=8, gated=True, experts=4, active=2, shared=16),
                ),
            ),
        )
    ],
    [TEXT, IMAGE],
)
sound = _model(
    "sound",
    [
        Block(
            name="block",
            count=2,
            towers=(
                _tower(
                    "video",
                    keys=("video",),
                    cross=(Cross(context="sound", width=HIDDEN, heads=HEADS),),
                ),
                _tower(
                    "sound",
                    keys=("sound",),
                    cross=(Cross(context="video", width=HIDDEN, heads=HEADS),),
                ),
            ),
        )
    ],
    [Stream(name="sound", pads=True), VIDEO],
)
llama = _model(
    "llama",
    [
        Block(
            name="layer",
            count=3,
            towers=(
                _tower(
                    "tokens",
                    keys=("tokens",),
                    causal=True,
                    heads=GROUPED,
                    modulation=None,
                    ffn=Ffn(width=32, gated=True),
                ),
            ),
        )
    ],
    [Stream(name="tokens", pads=True)],
    kind="decoder",
    vocabulary=24,
)
LATENT = LatentAttention(
    query_rank=10, key_value_rank=12, content_size=4, rotary_size=2, value_size=6
)


def _latent(name, count, **more):
    defaults = {"modulation": None, "causal": True, "qk_norm": False, "latent": LATENT}
    tower = _tower("tokens", keys=("tokens",), **{**defaults, **more})
    return Block(name=name, count=count, towers=(tower,))


deepseek = _model(
    "deepseek",
    [
        _latent("dense", 1, ffn=Ffn(width=32, gated=True), latent=replace(LATENT, query_rank=0)),
        _latent("experts", 2, ffn=Ffn(width=8, gated=True, experts=8, active=3, shared=16)),
    ],
    [Stream(name="tokens", pads=True)],
    kind="decoder",
    vocabulary=24,
)
DELTA = DeltaRule(key_heads=4, value_heads=8, key_size=6, value_size=4, kernel=3)
MAMBA = Mamba(count=8, size=4, groups=4, state_size=6, kernel=4, chunk=16)


def _hybrid(name, count, **more):
    defaults = {"modulation": None, "causal": True, "ffn": None}
    return Block(
        name=name, count=count, towers=(_tower("tokens", keys=("tokens",), **{**defaults, **more}),)
    )


hybrid = _model(
    "hybrid",
    [
        _hybrid("delta", 2, mixer="delta", recurrence=DELTA, heads=DELTA.heads, gate=True),
        _hybrid("mamba", 1, mixer="mamba", recurrence=MAMBA, heads=MAMBA.heads),
        _hybrid("feed", 1, mixer="none", ffn=Ffn(width=32, gated=False, activation="relu2")),
        _hybrid("full", 1, gate=True, ffn=Ffn(width=8, gated=True, experts=4, active=2, latent=6)),
    ],
    [Stream(name="tokens", pads=True)],
    kind="decoder",
    vocabulary=24,
    order=(0, 2, 1, 0, 3),
)
sana = _model(
    "sana",
    [
        Block(
            name="layers",
            count=2,
            towers=(
                _tower(
                    "image",
                    keys=("image",),
                    cross=(
                        Cross(context="text", width=12, heads=Heads(query=2, key_value=2, size=6)),
                    ),
                    ffn=Ffn(width=12, gated=True, activation="silu", convolved=True),
                    modulation=None,
                    mixer="relu_linear",
                ),
            ),
        )
    ],
    [Stream(name="text", tokens=5, static=True), IMAGE],
)
uneven = _model(
    "uneven",
    [
        Block(
            name="double",
            count=1,
            towers=(
                _tower("text", keys=BOTH, ffn=Ffn(width=19, gated=True)),
                _tower(
                    "image", keys=BOTH, ffn=Ffn(width=7, gated=True, experts=4, active=2, shared=9)
                ),
            ),
        ),
        Block(
            name="single",
            count=1,
            towers=(
                _tower(
                    *BOTH,
                    keys=BOTH,
                    parallel=True,
                    ffn=Ffn(width=21, gated=False),
                    modulation=Modulation(inputs=8, outputs=3 * HIDDEN),
                ),
            ),
        ),
    ],
    [TEXT, IMAGE],
)
DECODERS = (llama, deepseek, hybrid)
DIFFUSION = (flux, asymmetric, wan, cosmos3, refined, experts, sound, sana, uneven)


HABITS = set(Habits.__dataclass_fields__)


def workload(model, **changes):
    """A request of a few tokens: uneven where the model pads."""
    uneven = any(stream.pads for stream in model.streams)
    lengths = {"text": 8, "image": 24, "video": 22 if uneven else 24, "sound": 10, "picture": 3}
    lengths |= {"tokens": 22}
    if model.name == "cosmos3":
        lengths["text"] = 7
    if model.name == "sound":
        lengths["video"] = 24
    if model.name in ("wan", "sana"):
        lengths["text"] = 5
    tokens = tuple((stream.name, lengths[stream.name]) for stream in model.streams)
    own = {name: changes.pop(name) for name in HABITS & changes.keys()}
    habits = Habits(**{"text_tower": "once", **own})
    sizes = {"tokens": tokens, "steps": 2, "passes": 2, "line": LINE, **changes}
    return Workload(habits=habits, **sizes)


def with_habits(work, **habits):
    """The same request, run by somebody with other habits."""
    return replace(work, habits=replace(work.habits, **habits))


def kept_bytes(model, length, itemsize=2):
    """Bytes that all layers keep of a sequence, on one GPU."""
    layers = [(block.count, tower) for block in model.blocks for tower in block.towers]
    return sum(count * tower.kept().bytes(length, itemsize) for count, tower in layers)
