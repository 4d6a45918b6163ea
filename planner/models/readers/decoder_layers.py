"""What each layer of a decoder mixes tokens with, and what follows it."""

from dataclasses import dataclass
from typing import Final, Literal

from planner.models.architecture import Activation, Ffn, Heads
from planner.models.fields import CONTEXT, EXPERTS, HEAD_SIZE, HEADS, LAYERS, Fields

Kind = Literal["attention", "linear", "none"]

_WINDOWS: Final = {
    "sliding_attention": "sliding", "chunked_attention": "sliding", "full_attention": "full",
    "attention": "full", "global": "full", "local": "sliding", "linear_attention": "linear",
    "mamba": "mamba", "moe": "none", "mlp": "none",
}  # fmt: skip
_LETTERS: Final = {"M": "mamba", "*": "full", "-": "none", "E": "none"}
_NOT_GATED: Final = {
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron",
    "nemotron_h", "opt", "persimmon", "phi", "starcoder2",
}  # fmt: skip
_DENSE_WIDTHS: Final = (
    "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff", "hidden_dim",
)  # fmt: skip
_ALWAYS_SLIDING: Final = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """How a layer mixes tokens; `heads` None means those of the configuration."""

    name: str
    kind: Kind = "attention"
    heads: Heads | None = None
    window: int = 0
    gate: bool = False
    extra: int = 0


def mixers_of(fields: Fields, kind: str, layers: int) -> tuple[Mixer, ...]:
    """Name the mixer of every layer.

    Raises
    ------
    InputError
        If a listed pattern has another length than the model, or an unknown entry.
    """
    gated = kind.startswith(("qwen3_next", "qwen3_5"))
    gate = fields.boolean("attn_output_gate", default=gated)
    pattern = _pattern(fields, kind, layers)
    mixers = {name: _mixer(fields, name, gate=gate) for name in set(pattern)}
    return tuple(mixers[name] for name in pattern)


def _pattern(fields: Fields, kind: str, layers: int) -> tuple[str, ...]:
    listed = _listed(fields, layers)
    if listed:
        return listed
    if fields.has("full_attention_interval"):
        every = fields.integer("full_attention_interval", high=LAYERS)
        return _periodic(layers, every, "linear")
    every = _full_every(fields, kind)
    if every and _window(fields):
        return _periodic(layers, every, "sliding")
    return tuple(_sliding(fields, kind, layer) for layer in range(layers))


def _listed(fields: Fields, layers: int) -> tuple[str, ...]:
    letters = fields.text("hybrid_override_pattern", default="")
    entries = fields.texts("layer_types", "layers_block_type", default=()) or tuple(letters)
    if not entries:
        return ()
    name = "hybrid_override_pattern" if letters else "layer_types"
    meanings = _LETTERS if letters else _WINDOWS
    if len(entries) != layers:
        raise fields.refused(name, list(entries), f"one entry for each of {layers} layers")
    unknown = [entry for entry in entries if entry not in meanings]
    if unknown:
        raise fields.refused(name, unknown[0], f"entries among {', '.join(meanings)}")
    return tuple(meanings[entry] for entry in entries)


def _periodic(layers: int, every: int, other: str) -> tuple[str, ...]:
    """Every `every`-th layer has full attention, the first ones do not."""
    return tuple("full" if (layer + 1) % every == 0 else other for layer in range(layers))


def _full_every(fields: Fields, kind: str) -> int:
    """Distance between full layers in classes that alternate by rule, 0 where none is known."""
    usual = 0
    if kind in {"gpt_oss", "gemma2"}:
        usual = 2
    elif kind.startswith(("gemma3", "olmo3")):
        usual = 6 if kind.startswith("gemma3") else 4
    elif kind.startswith(("llama4", "cohere2")):
        usual = 4
    names = ("sliding_window_pattern", "no_rope_layer_interval")
    return fields.integer(*names, high=LAYERS, default=usual) if usual else 0


def _sliding(fields: Fields, kind: str, layer: int) -> str:
    if not _window(fields):
        return "full"
    if kind in _ALWAYS_SLIDING:
        return "sliding"
    if fields.boolean("use_sliding_window", default=False):
        first = fields.integer("max_window_layers", low=0, high=LAYERS, default=0)
        return "sliding" if layer >= first else "full"
    return "full"


def _window(fields: Fields) -> int:
    """Keys that a query of a windowed layer sees, 0 if that is all the context there can be."""
    names = ("sliding_window", "attention_chunk_size")
    window = fields.integer(*names, low=0, high=CONTEXT, default=0)
    context = fields.integer("max_position_embeddings", low=0, high=CONTEXT, default=0)
    return 0 if context and window >= context else window


def _mixer(fields: Fields, name: str, *, gate: bool) -> Mixer:
    if name == "linear":
        return _delta(fields)
    if name == "mamba":
        return _mamba(fields)
    if name == "none":
        return Mixer(name="feed_forward", kind="none")
    if name == "sliding" and _window(fields):
        return Mixer(name="sliding", window=_window(fields), gate=gate)
    return Mixer(name="full", gate=gate)


def _delta(fields: Fields) -> Mixer:
    """Gated delta rule: value heads and fewer key heads, a short convolution over both."""
    values = fields.integer("linear_num_value_heads", high=HEADS)
    keys = fields.integer("linear_num_key_heads", high=HEADS)
    size = fields.integer("linear_value_head_dim", high=HEAD_SIZE)
    if values % keys:
        wanted = f"a divisor of linear_num_value_heads {values}"
        raise fields.refused("linear_num_key_heads", keys, wanted)
    hidden = fields.integer("hidden_size")
    kernel = fields.integer("linear_conv_kernel_dim", high=64, default=4)
    width = (values + 2 * keys) * size
    extra = kernel * width + 2 * values * (hidden + 1) + size
    heads = Heads(query=values, key_value=keys, size=size)
    return Mixer(name="linear", kind="linear", heads=heads, gate=True, extra=extra)


def _mamba(fields: Fields) -> Mixer:
    """Mamba-2: groups share the state's inputs, which are not as wide as a head."""
    count = fields.integer("mamba_num_heads", high=HEADS)
    groups = fields.integer("n_groups", high=HEADS, default=1)
    size = fields.integer("mamba_head_dim", high=HEAD_SIZE, default=64)
    state = fields.integer("ssm_state_size", high=HEAD_SIZE, default=128)
    kernel = fields.integer("conv_kernel", high=64, default=4)
    hidden = fields.integer("hidden_size")
    width = count * size + 2 * groups * state
    wider = 2 * groups * (state - size) * hidden
    extra = wider + hidden * count + (kernel + 1) * width + 3 * count + count * size
    heads = Heads(query=count, key_value=groups, size=size)
    return Mixer(name="mamba", kind="linear", heads=heads, gate=True, extra=extra)


def feeds_of(fields: Fields, kind: str, layers: int) -> tuple[Ffn | None, ...]:
    """Name what follows the mixer of every layer: a dense FFN, experts or nothing."""
    letters = fields.text("hybrid_override_pattern", default="")
    if letters:
        feeds = {"-": _dense(fields, kind), "E": _experts(fields, kind), "M": None, "*": None}
        return tuple(feeds[letter] for letter in letters)
    experts, dense = _experts(fields, kind), None
    sparse = [experts is not None and _is_sparse(fields, layer) for layer in range(layers)]
    if not all(sparse):
        dense = _dense(fields, kind)
    return tuple(experts if chosen else dense for chosen in sparse)


def _is_sparse(fields: Fields, layer: int) -> bool:
    if layer in fields.integers("mlp_only_layers", high=LAYERS, default=()):
        return False
    first = fields.integer("first_k_dense_replace", low=0, high=LAYERS, default=0)
    names = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
    every = fields.integer(*names, high=LAYERS, default=1)
    return layer >= first and (layer + 1) % every == 0


def _dense(fields: Fields, kind: str) -> Ffn:
    other = ("intermediate_size_mlp",) if kind.startswith("llama4") else ()
    hidden = fields.integer("hidden_size", "n_embd", "d_model", "n_embed", "dim")
    width = fields.integer(*other, *_DENSE_WIDTHS, default=4 * hidden)
    if kind == "qwen":  # the first Qwen counts gate and up together
        width //= 2
    return Ffn(width=width, gated=_gated(fields, kind), activation=_activation(fields, kind))


def _experts(fields: Fields, kind: str) -> Ffn | None:
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    count = fields.integer(*names, low=0, high=EXPERTS, default=0)
    if count < 2:
        return None
    width = fields.integer("moe_intermediate_size", "expert_ffn_hidden_size", default=0)
    width = width or fields.integer("intermediate_size", "ffn_hidden_size", "ffn_dim")
    chosen = ("num_experts_per_tok", "experts_per_token", "moe_top_k", "moe_topk", "moe_k")
    return Ffn(
        width=width,
        gated=_gated(fields, kind),
        activation=_activation(fields, kind),
        experts=count,
        active=fields.integer(*chosen, high=count),
        shared=_shared(fields, kind, width),
    )


def _shared(fields: Fields, kind: str, width: int) -> int:
    if kind.startswith("llama4"):
        return width
    names = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    stated = fields.integer(*names, "shared_intermediate_size", low=0, default=0)
    count = fields.integer("n_shared_experts", "num_shared_experts", low=0, high=EXPERTS, default=0)
    return stated or count * width


def _gated(fields: Fields, kind: str) -> bool:
    return kind not in _NOT_GATED and _activation(fields, kind) != "relu2"


def _activation(fields: Fields, kind: str) -> Activation:
    names = ("hidden_activation", "hidden_act", "mlp_hidden_act", "activation_function")
    usual = "gelu" if kind in {"gpt2", "bloom", "falcon", "gpt_neox"} else "silu"
    name = fields.text(*names, default=usual)
    if name.startswith("relu2"):
        return "relu2"
    return "gelu" if "gelu" in name else "silu"
