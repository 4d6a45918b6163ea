"""What a model is made of: towers of weights over streams of tokens.

A *stream* is a sequence of tokens with one hidden width (``image``, ``text``, ``video`` ...).
A *tower* is one set of block weights; it is applied to the tokens of one stream, or of several
streams laid end to end. Which streams a tower's queries look at is `Tower.keys`: towers of a block
with equal `keys` and `causal` are attended in one kernel ("joint attention").

============================  =====================================================
FLUX, SD3, Qwen-Image double  two towers, each with keys (text, image)
FLUX single                   one tower over (text, image), `parallel` attention and FFN
Wan, LTX, PixArt, SANA        one tower with keys (video), and a `Cross` to text
Cosmos 3                      tower text: keys (text), causal; tower video: keys (text, video)
Llama, Qwen                   one tower, keys (tokens), causal
============================  =====================================================

A tower's matrices follow from its widths; `Tower.extra` has the rest of a layer (biases, norms,
tables), so that parameters sum up to what the published classes have.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, field
from typing import Final, Literal

from planner.models.mixers import DeltaRule, Heads, Indexer, Kept, LatentAttention, Mamba
from planner.models.quantisation import Quantisation
from topology.base.facts import facts
from topology.base.values import dataclass

_HEAD_FIELDS: Final = (
    "name", "family", "kind", "source", "repository", "parameters", "active_parameters",
    "draft_parameters", "vision_parameters", "transformers", "layers",
)  # fmt: skip
"""What is said of a model first."""
_ATTENTION_FIELDS: Final = ("rotary", "window", "chunked", "sinks", "gate", "shares_values")
"""How a tower attends, beside its heads."""
Activation = Literal["gelu", "silu", "relu2"]
Kind = Literal["diffusion", "decoder", "encoder"]
Exports = Literal["results", "numbers", "times"]
Masters = Literal["", "sharded", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn:
    """Feed-forward: two matrices of `width` inner features, or three if `gated`.

    biased : each matrix has a bias, and the router too. convolved : between the matrices stand an
    activation and a 3 x 3 convolution of every inner feature over the image, before the gate.

    With `experts` > 0 each token passes `active` routed experts of `width` and one dense
    expert of `shared` inner features (0: none).

    shared_gated : the dense expert's output is scaled by a sigmoid of one projection.
    groups, active_groups : the active experts are chosen within so many of the groups that the
    experts are in, the best ones; 1 of 1 where they are chosen among all.
    scoring, scale : how scores of experts become weights, and what the sum of the routed experts is
    multiplied by.
    latent : features that the routed experts take and give, by a projection before and one after
    them; 0 where they take the token's own.
    copies : of popular experts, which a request asks for beside the model's own.
    """

    width: int
    gated: bool
    activation: Activation = "gelu"
    biased: bool = False
    convolved: bool = False
    experts: int = 0
    active: int = 0
    shared: int = 0
    shared_gated: bool = False
    groups: int = 1
    active_groups: int = 1
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    scale: float = 1.0
    latent: int = 0
    copies: int = 0

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def parameters(self, hidden: int) -> int:
        """Count the weights of all experts and their router, at `hidden` features a token."""
        router = self.experts * (hidden + (1 if self.biased else 0))
        around = 2 * hidden * self.latent
        gate = hidden if self.shared_gated else 0
        copies = max(self.experts, 1) * self._expert(hidden)
        return copies + self.matrices * hidden * self.shared + router + around + gate

    def idle_parameters(self, hidden: int) -> int:
        """Count the weights of the routed experts that a token does not pass."""
        return (self.experts - self.active) * self._expert(hidden)

    def to_dict(self) -> dict[str, object]:
        """Describe it in numbers and text; what is of experts alone where there are some."""
        all_fields = asdict(self)
        if self.experts:
            return all_fields
        return {name: all_fields[name] for name in ("width", "gated", "activation", "biased")}

    def _expert(self, hidden: int) -> int:
        features = self.latent or hidden
        biases = (self.matrices - 1) * self.width + features if self.biased else 0
        return self.matrices * features * self.width + biases


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """Adaptive norm: a matrix from `inputs` to `outputs` features on one row a sample and block.

    `rank` > 0 puts a bottleneck of that width between them. `copies` such maps stand side by side.
    """

    inputs: int
    outputs: int
    rank: int = 0
    copies: int = 1

    @property
    def parameters(self) -> int:
        if not self.rank:
            return self.copies * self.inputs * self.outputs
        return self.copies * self.rank * (self.inputs + self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """Cross attention to another stream of `width` features.

    `context` may be the tower's own stream (SD3.5-medium's second self attention) or one that
    changes from layer to layer (LTX-2's audio): only a static stream's keys are known beforehand.
    `added` marks a second context that shares the query and output projections of the one
    before it (Wan's image context).
    """

    context: str
    width: int
    heads: Heads
    added: bool = False

    def parameters(self, hidden: int) -> int:
        """Count the weights for queries of `hidden` features."""
        shared = 2 * self.width * self.heads.key_value_width
        return shared if self.added else shared + 2 * hidden * self.heads.query_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """One set of block weights and the streams it is applied to.

    parallel : attention and FFN read the same normed input, their projections fused (FLUX single).
    rotates : attention sees positions by a rotation of its queries and keys; of the first `rotary`
    features of each head alone, where that is not 0.
    window : keys a query sees, 0 for all. chunked : the window starts anew at its every multiple,
    and a query sees what its own has so far (Llama 4).
    sinks : each query head has a learned score that takes part in the softmax (gpt-oss).
    latent : low-rank queries, keys and values in place of those that `heads` says.
    indexer : chooses the keys that a query sees.
    mixer : what stands in place of softmax attention. Of "delta" and "mamba" `recurrence` says
    the sizes, and `heads` are those that tensor parallelism cuts; "relu_linear" is the operation
    `LinearAttention`, "none" is a FFN alone.
    shares_values : values are the keys before their norm and rotation; both are kept (Gemma 4).
    gate : the attention output is gated by a projection as wide as the queries.
    ends : attention output and FFN are left out (SD3's last text tower).
    extra : parameters of a layer in biases, norms, tables and small convolutions.
    """

    streams: tuple[str, ...]
    hidden: int
    heads: Heads
    keys: tuple[str, ...]
    causal: bool = False
    ffn: Ffn | None = None
    modulation: Modulation | None = None
    cross: tuple[Cross, ...] = ()
    parallel: bool = False
    ends: bool = False
    qk_norm: bool = True
    rotates: bool = True
    rotary: int = 0
    window: int = 0
    chunked: bool = False
    sinks: bool = False
    latent: LatentAttention | None = None
    indexer: Indexer | None = None
    mixer: Literal["attention", "delta", "mamba", "relu_linear", "none"] = "attention"
    recurrence: DeltaRule | Mamba | None = None
    shares_values: bool = False
    gate: bool = False
    extra: int = 0

    @property
    def parameters(self) -> int:
        """Count the weights of one layer.

        One Llama-3.1-8B layer: queries and output 4096 x 4096 twice, keys and values 4096 x 1024
        twice, three FFN matrices 4096 x 14336.

        >>> layer = Tower(streams=("tokens",), hidden=4096, keys=("tokens",), causal=True,
        ...               heads=Heads(query=32, key_value=8, size=128),
        ...               ffn=Ffn(width=14336, gated=True, activation="silu"))
        >>> layer.parameters == 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
        True
        """
        return (
            self._attention_parameters
            + sum(cross.parameters(self.hidden) for cross in self.cross)
            + (self.modulation.parameters if self.modulation else 0)
            + (self.ffn.parameters(self.hidden) if self.ffn and not self.ends else 0)
            + self.extra
        )

    @property
    def _attention_parameters(self) -> int:
        hidden, heads = self.hidden, self.heads
        if self.mixer == "none":
            return 0
        if self.recurrence is not None:
            return self.recurrence.parameters(hidden)
        if self.latent is not None:
            rank = self.latent.query_rank
            indexer = self.indexer.parameters(hidden, rank) if self.indexer else 0
            return self.latent.parameters(hidden, heads.query) + indexer
        shared = (1 if self.shares_values else 2) * heads.key_value_width
        out = 0 if self.ends else heads.query_width
        gate = heads.query_width if self.gate else 0
        sinks = heads.query if self.sinks else 0
        return hidden * (heads.query_width + shared + out + gate) + sinks

    def to_dict(self) -> dict[str, object]:
        """Describe how tokens are mixed, what follows, and what is kept of a sequence."""
        heads = self.heads if self.mixer == "attention" else None
        return {
            "mixer": self.mixer,
            "heads": heads.query if heads else 0,
            "kv_heads": heads.key_value if heads else 0,
            "head_dim": heads.size if heads else 0,
            **{name: getattr(self, name) for name in _ATTENTION_FIELDS},
            "latent": asdict(self.latent) if self.latent else None,
            "indexer": asdict(self.indexer) if self.indexer else None,
            "recurrence": asdict(self.recurrence) if self.recurrence else None,
            "ffn": self.ffn.to_dict() if self.ffn else None,
            "kept": asdict(self.kept()),
        }

    def kept(self, degree: int = 1) -> Kept:
        """Say what a layer keeps of a sequence, on each of `degree` ranks that share its heads.

        >>> from planner.models import read_model
        >>> latent, windowed = read_model("deepseek-v3").main, read_model("gpt-oss-20b").towers[0]
        >>> latent.kept(8).row, windowed.kept(8).row, windowed.kept().window
        (576, 128, 128)
        """
        if self.mixer == "none":
            return Kept()
        if self.recurrence is not None:
            return Kept(state=self.recurrence.kept(degree))
        row = self.latent.row_size if self.latent else self.heads.row(degree)
        return Kept(row=row, window=self.window, indexed=self.indexer.kept if self.indexer else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`count` layers of the same towers.

    prelude : runs before the layers proper and is not counted among them (token refiners).
    """

    name: str
    count: int
    towers: tuple[Tower, ...] = field(hash=False)
    prelude: bool = False

    @property
    def parameters(self) -> int:
        """Count the weights of one layer, all its towers."""
        return sum(tower.parameters for tower in self.towers)

    def to_dict(self) -> dict[str, object]:
        """Describe the block in numbers, text and lists; layers of a language model in full."""
        return {
            "name": self.name,
            "layers": self.count,
            "parameters": self.parameters,
            "streams": [list(tower.streams) for tower in self.towers],
            "prelude": self.prelude,
            **(self.towers[0].to_dict() if self.towers[0].causal and not self.towers[1:] else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A sequence of tokens.

    tokens : usual length; 0 where it follows from height, width and frames.
    per_frame : tokens a video frame, for sound that lasts as long as the video.
    static : the same at every step and layer, read through cross attention only.
    pads : engines that split it over ranks pad it to a multiple of the group; others refuse.
    multiple : the model itself pads it to a multiple of this many tokens.
    """

    name: str
    tokens: int = 0
    per_frame: float = 0.0
    static: bool = False
    pads: bool = False
    multiple: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """From pixels to tokens: VAE strides, then patches.

    One token covers `spatial` * `patch_height` pixels down, `spatial` * `patch_width` across
    and `temporal` * `patch_frames` frames; the first frame stands alone (`1 + (F - 1) / temporal`).
    rounds : how the pipeline makes odd sizes whole tokens; those of no way refuse them.
    """

    spatial: int
    temporal: int
    channels: int
    patch_frames: int = 1
    patch_height: int = 2
    patch_width: int = 2
    rounds: Literal["", "up", "down"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vae:
    """The decoder from latents to pixels.

    flop_per_pixel : of one pixel of one frame. peak_bytes_per_pixel : activations at the widest
    point, per pixel of one frame, times the `frames_at_once` that are decoded together (0: all).
    tile : pixels a side of the tiles that everybody cuts a frame into; 0 where it may be whole.
    may_tile : pixels of a tile where an engine asks for tiles, whose overlap makes the decode
    `overlap` times as long; 0 where it has no such way.
    parallel : engines exist that split the decode over GPUs.
    eager : FLOP for which eager code keeps a multiprocessor a cycle with norms and copies; 0 where
    nobody measured it. eager_work : FLOP at the peak of 16 bits that take as long as one in eager
    code, where that is known, and eager_bytes_per_pixel what such code moves beside.
    """

    name: str
    parameters: int
    flop_per_pixel: float
    peak_bytes_per_pixel: float
    frames_at_once: int = 0
    tile: int = 0
    may_tile: float = 0.0
    overlap: float = 1.0
    parallel: bool = False
    eager: float = 0.0
    eager_work: float = 1.0
    eager_bytes_per_pixel: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A text (or image) encoder run once a prompt over `tokens`.

    kept : parameters that stay in 32 bits where all others are in fp16.
    """

    name: str
    parameters: int
    layers: int
    hidden: int
    tokens: int
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The request assumed when none is made.

    passes : forwards a step (2 with CFG). picture_steps : of one frame, where a model of videos
    takes others for it.
    """

    height: int = 0
    width: int = 0
    frames: int = 1
    steps: int = 1
    passes: int = 1
    picture_steps: int = 0

    def steps_of(self, frames: int) -> int:
        """Give the steps of so many frames."""
        return self.picture_steps if frames == 1 and self.picture_steps else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """How a model's own repository runs it in eager PyTorch, where that costs more than usual.

    traffic : bytes that element-wise functions move, over those of their inputs and outputs in 16
    bits, by function. token_modulation : the time embedding is projected to shifts, scales and
    gates for every token of the whole sequence, on every rank and in 32 bits. masters : weights
    stay in 32 bits, and each product casts its own: those that FSDP shards, or any.
    """

    traffic: tuple[tuple[str, float], ...] = ()
    token_modulation: bool = False
    masters: Masters = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What matrices make of an input: two with an activation between them, or one without.

    name : of the input and of its matrices. features : of the input; inner : between the matrices,
    as many as they make where 0. waves : cosines and sines of a number, by `factor`, that the first
    matrix takes in its place; 0 for none. epsilon : of norms before and after; 0 for no such norms.
    """

    name: str
    features: int = 1
    activation: Literal["silu", "gelu", "gelu_erf", ""] = "silu"
    inner: int = 0
    waves: int = 0
    factor: float = 1.0
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What a model's numbers depend on beside its weights.

    epsilon : added to mean squares in norms. theta : base of the angles that heads are turned by.
    normed : queries and keys, each head or all of them together. slower : as Llama 3.1 has it,
    angles of which `context` tokens hold fewer turns than `few` grow so many times slower, and
    those of `many` as they are.

    Of a diffusion model also: centred : norms of rows take their mean off. axes : features of a
    head that turn with frames, rows and columns; alternating : these take turns, at the frequencies
    of one axis. adjacent : features that turn together are neighbours, not halves. behind : tokens
    of a prompt turn along all axes, and frames count on so far behind them; none turn where None.
    points : latents of a token, each of whose features the last product makes one after another.
    channels_last : they lie so in the latents too.
    conditions : what is added up to the row of a step, and rows : what is made of other streams'.
    timed : what the row does: it is projected for every layer (``layers``) or for all of them,
    which then add a row of their own (``tables``), or it is added to the latents (``rows``).
    """

    epsilon: float
    theta: float
    normed: Literal["", "head", "all"] = ""
    slower: float = 1.0
    few: float = 0.0
    many: float = 1.0
    context: float = 0.0
    centred: bool = False
    axes: tuple[int, ...] = ()
    alternating: bool = False
    adjacent: bool = False
    behind: int | None = None
    points: int = 1
    channels_last: bool = False
    conditions: tuple[Embedding, ...] = ()
    rows: tuple[Embedding, ...] = ()
    timed: Literal["", "layers", "tables", "rows"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as its configuration describes it.

    order : number of the block of each layer, in order; empty where blocks follow one another.
    draft : layers that predict tokens after the next one (multi-token prediction), which are run
    where speculative decoding is asked for, and are not among `blocks` nor in any count of them.
    transformers : sets of weights that take turns over the steps (Wan 2.2 A14B has two).
    outer_parameters : weights outside the blocks (embeddings, heads, time projections, a vision
    tower). vision_parameters : of these, the vision tower's, which no token of text meets.
    reuses : streams whose tower does not depend on the step, so that its keys and values may be
    computed once (Cosmos 3's text tower).
    vetoes : head counts of other towers that a tensor-parallel degree must divide too.
    quantisation : how the checkpoint stores its weights; None for 16 bits.
    repository : of the weights, as engines are told it; empty where none is known.
    attention : kernel that the model's own repository calls on Hopper, empty for the framework's.
    own : what else that repository does, where it runs the model in eager PyTorch.
    numerics : of a model that networks can compute; None where more belongs to it, or the
    configuration does not say.
    usual : catalogue entry whose request, autoencoder and encoders are assumed where a
    configuration has none.
    assumed : what the configuration did not say and was taken from the class's usual values.
    """

    name: str
    family: str
    kind: Kind
    source: str
    blocks: tuple[Block, ...]
    streams: tuple[Stream, ...]
    order: tuple[int, ...] = ()
    draft: tuple[Block, ...] = ()
    defaults: Defaults = Defaults()
    latent: Latent | None = None
    vae: Vae | None = None
    encoders: tuple[Encoder, ...] = ()
    input_features: int = 0
    output_features: int = 0
    vocabulary: int = 0
    tied_embeddings: bool = False
    context: int = 0
    outer_parameters: int = 0
    vision_parameters: int = 0
    transformers: int = 1
    reuses: tuple[str, ...] = ()
    vetoes: tuple[int, ...] = ()
    quantisation: Quantisation | None = None
    repository: str = ""
    attention: str = ""
    own: Own = Own()
    numerics: Numerics | None = None
    usual: str = ""
    assumed: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)

    def named_in(self, names: Collection[str]) -> bool:
        """Whether the model or its family is among names."""
        return self.name in names or self.family in names

    @property
    def exports(self) -> Exports:
        """Say what `planner export` writes of it for TensorRT gives, built of its weights.

        ``results`` of a prompt on one host, the ``numbers`` of its layers on several; or ``times``
        alone.
        """
        return "times" if self.numerics is None else "results"

    @property
    def towers(self) -> tuple[Tower, ...]:
        """List the towers of all blocks."""
        return tuple(tower for block in self.blocks for tower in block.towers)

    @property
    def main(self) -> Tower:
        """Find the tower that does most of the work: the last of the widest ones."""
        return max(reversed(self.towers), key=lambda tower: tower.hidden)

    @property
    def kinds(self) -> tuple[int, ...]:
        """Give the number of the block of each layer, in order."""
        if self.order:
            return self.order
        return tuple(kind for kind, block in enumerate(self.blocks) for _ in range(block.count))

    @property
    def has_experts(self) -> bool:
        """Whether some layers are mixtures of experts."""
        return any(tower.ffn is not None and tower.ffn.experts for tower in self.towers)

    @property
    def layers(self) -> int:
        return sum(block.count for block in self.blocks if not block.prelude)

    @property
    def parameters(self) -> int:
        """Count all weights, of every transformer that takes turns over the steps."""
        return self.transformers * self.transformer_parameters

    @property
    def transformer_parameters(self) -> int:
        """Count the weights that are in use at one step: one transformer, all experts."""
        blocks = sum(block.count * block.parameters for block in self.blocks)
        return blocks + self.outer_parameters

    @property
    def active_parameters(self) -> int:
        """Count the weights that one token meets: of routed experts the active ones, no vision."""
        layers = [(block.count, tower) for block in self.blocks for tower in block.towers]
        idle = sum(n * t.ffn.idle_parameters(t.hidden) for n, t in layers if t.ffn)
        return self.transformer_parameters - self.vision_parameters - idle

    @property
    def draft_parameters(self) -> int:
        """Count the weights of the layers that predict tokens after the next one."""
        return sum(block.count * block.parameters for block in self.draft)

    def _cache_sizes(self) -> dict[str, int]:
        """Say what a sequence takes in 16 bits: each token where no window ends, and at once."""
        towers = [(block.count, tower.kept()) for block in self.blocks for tower in block.towers]
        unwindowed = [(n, kept) for n, kept in towers if not kept.window]
        return {
            "a_token": sum(n * (2 * kept.row + kept.indexed) for n, kept in unwindowed),
            "a_sequence": sum(n * kept.state for n, kept in towers),
            "windows": sum(n * 2 * kept.row * kept.window for n, kept in towers),
        }

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.kind}, {self.layers} layers>"

    def _repr_html_(self) -> str:
        return facts(self.to_dict()).html()

    def to_dict(self) -> dict[str, object]:
        """Return what ``planner models show --format json`` prints.

        >>> from planner.models import read_model
        >>> shown = read_model("mixtral-8x7b").to_dict()
        >>> shown["layers"], shown["heads"], shown["kv_heads"], shown["head_dim"], shown["ffn"]
        (32, 32, 8, 128, 14336)
        >>> f"{shown['parameters']:,}"
        '46,702,792,704'
        """
        heads, feeds = self.main.heads, [tower.ffn for tower in self.towers if tower.ffn]
        widest = max((ffn.width for ffn in feeds), default=0)
        mixture = next((ffn for ffn in reversed(feeds) if ffn.experts), None)
        return {
            **{name: getattr(self, name) for name in _HEAD_FIELDS},
            "hidden": self.main.hidden,
            "heads": heads.query,
            "kv_heads": heads.key_value,
            "head_dim": heads.size,
            "ffn": self.main.ffn.width if self.main.ffn else widest,
            "experts": mixture.experts if mixture else 0,
            "active_experts": mixture.active if mixture else 0,
            "vocabulary": self.vocabulary,
            "context": self.context,
            "kept_bytes": self._cache_sizes() if self.kind == "decoder" else None,
            "blocks": [block.to_dict() for block in self.blocks],
            "draft": [block.to_dict() for block in self.draft],
            "streams": [asdict(stream) for stream in self.streams],
            "latent": asdict(self.latent) if self.latent else None,
            "vae": asdict(self.vae) if self.vae else None,
            "encoders": [asdict(encoder) for encoder in self.encoders],
            "defaults": None if self.kind == "decoder" else asdict(self.defaults),
            "vetoes": list(self.vetoes),
            "group": self.quantisation.group if self.quantisation else 0,
            "quantisation": asdict(self.quantisation) if self.quantisation else None,
            "assumed": list(self.assumed),
        }


def unsupported(model: Model) -> Iterator[str]:
    """Yield what in a model no operation of ours stands for."""
    towers = [tower for block in model.blocks for tower in block.towers]
    if any(tower.indexer is not None for tower in towers):
        yield "attention to keys that an indexer chooses is not modelled yet"
    if any(tower.parallel and tower.gate for tower in towers):
        yield "gated attention beside its feed-forward is not modelled"
    if model.kind == "encoder":
        yield "a text encoder is not planned on its own"
