"""What each layer of a decoder mixes tokens with, and what follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast

from planner.models.architecture import Activation, Ffn
from planner.models.fields import CONTEXT, EXPERTS, HEAD_SIZE, HEADS, LAYERS, Fields
from planner.models.mixers import DeltaRule, Heads, Mamba
from topology.base.values import dataclass

Kind = Literal["attention", "delta", "mamba", "none"]

_WINDOWS: Final = {
    "sliding_attention": "sliding", "chunked_attention": "sliding", "full_attention": "full",
    "attention": "full", "global": "full", "local": "sliding", "linear_attention": "delta",
    "deepseek_sparse_attention": "full", "mamba": "mamba", "moe": "none", "mlp": "none",
}  # fmt: skip
_LETTERS: Final = {"M": "mamba", "*": "full", "-": "none", "E": "none"}
_HYBRID_LETTERS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Letters of ``hybrid_override_pattern`` by entries of ``layers_block_type`` of the same class."""
_NOT_GATED: Final = {
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron",
    "nemotron_h", "opt", "persimmon", "phi", "starcoder2",
}  # fmt: skip
_DENSE_WIDTHS: Final = (
    "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff", "hidden_dim",
)  # fmt: skip
_ALWAYS_SLIDING: Final = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral")
_NOT_ROTATED: Final = {"bloom", "gpt2", "gpt_bigcode", "mpt", "nemotron_h", "opt"}
_SIGMOID_ROUTERS: Final = {
    "deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm4v_moe", "glm_moe_dsa", "kimi_k2",
    "llama4", "llama4_text", "minimax_m2", "nemotron_h",
}  # fmt: skip
BIASED_TYPES: Final = {
    "bloom", "gpt2", "gpt_bigcode", "gpt_neox", "opt", "phi", "starcoder2",
}  # fmt: skip
"""Classes whose every matrix has a bias."""
_ITEMSIZES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """How a layer mixes tokens, in the words of `Tower`; `heads` None means the usual ones."""

    name: str
    kind: Kind = "attention"
    heads: Heads | None = None
    recurrence: DeltaRule | Mamba | None = None
    window: int = 0
    chunked: bool = False
    rotates: bool = True
    rotary: float = 1.0
    gate: bool = False
    shares_values: bool = False
    reuses_choice: bool = False


def mixers_of(fields: Fields, kind: str, layers: int) -> tuple[Mixer, ...]:
    """Name the mixer of every layer.

    Raises `InputError` if a listed pattern has another length than the model, or an unknown entry.
    """
    pattern = _pattern(fields, kind, layers)
    mixers = {name: mixer_of(fields, kind, name) for name in set(pattern)}
    choices = _entries(fields, "indexer_types", layers, ("full", "shared")) or ("full",) * layers
    followers = {
        name: replace(mixer, name=f"{mixer.name}_follows", reuses_choice=True)
        for name, mixer in mixers.items()
    }
    return tuple(
        followers[name] if choice == "shared" else mixers[name]
        for name, choice in zip(pattern, choices, strict=True)
    )


def _entries(fields: Fields, name: str, layers: int, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Read a list with one of a few words for each layer; empty where there is none."""
    entries = fields.texts(name, default=())
    if entries:
        _check_length(fields, name, entries, layers)
    unknown_entry = next((word for word in entries if word not in choices), None)
    if unknown_entry is not None:
        raise fields.refused(name, unknown_entry, " or ".join(choices))
    return entries


def _check_length(fields: Fields, name: str, entries: Sequence[object], layers: int) -> None:
    if len(entries) != layers:
        raise fields.refused(name, list(entries), f"one entry for each of {layers} layers")


def _pattern(fields: Fields, kind: str, layers: int) -> tuple[str, ...]:
    explicit = _listed_mixers(fields, kind, layers)
    if explicit:
        return explicit
    if fields.has("full_attention_interval"):
        interval = fields.integer("full_attention_interval", high=LAYERS)
        return _periodic(layers, interval, "delta")
    interval = _full_interval(fields, kind)
    if interval and _window(fields):
        return _periodic(layers, interval, "sliding")
    return tuple(_sliding(fields, kind, layer) for layer in range(layers))


def _listed_mixers(fields: Fields, kind: str, layers: int) -> tuple[str, ...]:
    _check_softmax(fields, layers)
    letters = letters_of(fields, kind)
    entries = letters or fields.texts("layer_types", "layers_block_type", default=())
    if not entries:
        return ()
    name = "hybrid_override_pattern" if letters else "layer_types"
    _check_length(fields, name, entries, layers)
    return _meanings_of(fields, name, entries, _LETTERS if letters else _WINDOWS)


def _meanings_of(
    fields: Fields, name: str, entries: Sequence[str], meanings: Mapping[str, str]
) -> tuple[str, ...]:
    """Look up what entries of a pattern stand for."""
    unknown_entry = next((entry for entry in entries if entry not in meanings), None)
    if unknown_entry is not None:
        raise fields.refused(name, unknown_entry, f"entries among {', '.join(meanings)}")
    return tuple(meanings[entry] for entry in entries)


def letters_of(fields: Fields, kind: str, prefix: str = "") -> tuple[str, ...]:
    """Read the letters of Nemotron-H's layers, which its later files write out as words.

    prefix : of the keys, for layers that stand apart.
    """
    letters = fields.text(f"{prefix}hybrid_override_pattern", default="")
    if letters or kind != "nemotron_h":
        return tuple(letters)
    words = fields.texts(f"{prefix}layers_block_type", default=())
    return tuple(_HYBRID_LETTERS.get(word, word) for word in words)


def mixers_of_letters(fields: Fields, kind: str, letters: tuple[str, ...]) -> tuple[Mixer, ...]:
    """Name the mixers that letters of a hybrid pattern stand for."""
    names = _meanings_of(fields, "hybrid_override_pattern", letters, _LETTERS)
    return tuple(mixer_of(fields, kind, name) for name in names)


def _check_softmax(fields: Fields, layers: int) -> None:
    """Refuse lightning attention, which MiniMax lists as 0 beside softmax attention as 1."""
    entries = fields.integers("attn_type_list", low=0, high=1, default=())
    if entries:
        _check_length(fields, "attn_type_list", entries, layers)
    if 0 in entries:
        raise fields.refused("attn_type_list", 0, "1 alone; lightning attention is not read")


def _periodic(layers: int, interval: int, filler: str) -> tuple[str, ...]:
    """Every `interval`-th layer has full attention, the first ones do not."""
    return tuple("full" if (layer + 1) % interval == 0 else filler for layer in range(layers))


def _full_interval(fields: Fields, kind: str) -> int:
    """Give the distance of full layers in classes that alternate by rule, 0 for no known one."""
    default_interval = 0
    if kind in {"gpt_oss", "gemma2"}:
        default_interval = 2
    elif kind.startswith(("gemma3", "gemma4", "olmo3")):
        default_interval = 6 if kind.startswith("gemma") else 4
    elif kind.startswith(("llama4", "cohere2")):
        default_interval = 4
    names = ("sliding_window_pattern", "no_rope_layer_interval")
    return fields.integer(*names, high=LAYERS, default=default_interval) if default_interval else 0


def _sliding(fields: Fields, kind: str, layer: int) -> str:
    if not _window(fields):
        return "full"
    if kind in _ALWAYS_SLIDING:
        return "sliding"
    if fields.boolean("use_sliding_window", default=False):
        first_sliding = fields.integer("max_window_layers", low=0, high=LAYERS, default=0)
        return "sliding" if layer >= first_sliding else "full"
    return "full"


def _window(fields: Fields) -> int:
    """Count keys that a query of a windowed layer sees, 0 if that is all that there can be."""
    names = ("sliding_window", "attention_chunk_size")
    window = fields.integer(*names, low=0, high=CONTEXT, default=0)
    context = fields.integer("max_position_embeddings", low=0, high=CONTEXT, default=0)
    return 0 if context and window >= context else window


def mixer_of(fields: Fields, kind: str, name: str) -> Mixer:
    """Read what is called "full", "sliding", "delta", "mamba" or "none"."""
    if name == "delta":
        delta = _delta(fields)
        return Mixer(name="delta", kind="delta", heads=delta.heads, recurrence=delta, gate=True)
    if name == "mamba":
        mamba = _mamba(fields)
        return Mixer(name="mamba", kind="mamba", heads=mamba.heads, recurrence=mamba, gate=True)
    if name == "none":
        return Mixer(name="feed_forward", kind="none")
    default_gate = kind.startswith(("qwen3_next", "qwen3_5"))
    window = _window(fields) if name == "sliding" else 0
    is_full = not window
    llama4, gemma4 = kind.startswith("llama4"), kind.startswith("gemma4")
    alibi = fields.boolean("alibi", default=False)
    return Mixer(
        name="sliding" if window else "full",
        heads=_wide_heads(fields) if gemma4 and is_full else None,
        window=window,
        chunked=llama4 and not is_full,
        rotates=not (kind in _NOT_ROTATED or alibi or (llama4 and is_full)),
        rotary=_rotary_share(fields, "full_attention" if is_full else "sliding_attention"),
        gate=fields.boolean("attn_output_gate", default=default_gate),
        shares_values=is_full and fields.boolean("attention_k_eq_v", default=False),
    )


def _wide_heads(fields: Fields) -> Heads | None:
    """Read the heads of Gemma 4's full attention, which are fewer and wider."""
    if not fields.has("global_head_dim"):
        return None
    names = ("num_global_key_value_heads", "num_key_value_heads")
    return Heads(
        query=fields.integer("num_attention_heads", high=HEADS),
        key_value=fields.integer(*names, high=HEADS),
        size=fields.integer("global_head_dim", high=HEAD_SIZE),
    )


def _rotary_share(fields: Fields, layer: str) -> float:
    """Read the share of a head's features that are rotated; Gemma 4 has one for each kind."""
    names = ("partial_rotary_factor", "rotary_pct", "rotary_percentage")
    table = fields.table("rope_parameters")
    layer_table = table.values.get(layer) if table else None
    if table and isinstance(layer_table, Mapping):
        table = table.table(layer)
    source = table if table and table.has(*names) else fields
    return source.number(*names, low=0.0, high=1.0, default=1.0)


def _delta(fields: Fields) -> DeltaRule:
    values = fields.integer("linear_num_value_heads", high=HEADS)
    keys = fields.divisor("linear_num_key_heads", of="linear_num_value_heads", whole=values)
    size = fields.integer("linear_value_head_dim", high=HEAD_SIZE)
    return DeltaRule(
        key_heads=keys,
        value_heads=values,
        key_size=fields.integer("linear_key_head_dim", high=HEAD_SIZE, default=size),
        value_size=size,
        kernel=fields.integer("linear_conv_kernel_dim", high=64, default=4),
        itemsize=_itemsize(fields),
    )


def _mamba(fields: Fields) -> Mamba:
    count = fields.integer("mamba_num_heads", high=HEADS)
    groups = fields.divisor("n_groups", of="mamba_num_heads", whole=count, default=1)
    return Mamba(
        count=count,
        size=fields.integer("mamba_head_dim", high=HEAD_SIZE, default=64),
        groups=groups,
        state_size=fields.integer("ssm_state_size", high=HEAD_SIZE, default=128),
        kernel=fields.integer("conv_kernel", high=64, default=4),
        chunk=fields.integer("chunk_size", high=CONTEXT, default=256),
        itemsize=_itemsize(fields),
    )


def _itemsize(fields: Fields) -> int:
    """Read the bytes of a number of a recurrence's state, which engines keep in 32 bits."""
    name = fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default="float32")
    if name not in _ITEMSIZES:
        raise fields.refused("mamba_ssm_dtype", name, f"one of {', '.join(_ITEMSIZES)}")
    return _ITEMSIZES[name]


def feeds_of(fields: Fields, kind: str, layers: int) -> tuple[Ffn | None, ...]:
    """Name what follows the mixer of every layer: a dense FFN, experts or nothing."""
    letters = letters_of(fields, kind)
    if letters:
        return feeds_of_letters(fields, kind, letters)
    experts, dense = _experts(fields, kind), None
    sparse = _layers_with_experts(fields, layers) if experts else [False] * layers
    if not all(sparse):
        dense = _dense_ffn(fields, kind)
    return tuple(experts if has_experts else dense for has_experts in sparse)


def feeds_of_letters(fields: Fields, kind: str, letters: tuple[str, ...]) -> tuple[Ffn | None, ...]:
    """Name what stands for each letter of a hybrid pattern: a mixer or a FFN is a layer alone."""
    experts = _experts(fields, kind) if "E" in letters else None
    if "E" in letters and experts is None:
        raise fields.refused("n_routed_experts", None, "their number, as the pattern has experts")
    feeds = {"-": _dense_ffn(fields, kind) if "-" in letters else None, "E": experts}
    return tuple(feeds.get(letter) for letter in letters)


def _layers_with_experts(fields: Fields, layers: int) -> list[bool]:
    """Say of every layer of a mixture whether it has experts."""
    words = _entries(fields, "mlp_layer_types", layers, ("dense", "sparse"))
    if words:
        return [word == "sparse" for word in words]
    listed = fields.values.get("moe_layer_freq")
    if isinstance(listed, list):
        marks = fields.integers("moe_layer_freq", low=0, high=1)
        _check_length(fields, "moe_layer_freq", marks, layers)
        return [mark == 1 for mark in marks]
    dense = fields.integers("mlp_only_layers", high=LAYERS, default=())
    return [layer not in dense and _is_sparse(fields, layer) for layer in range(layers)]


def _is_sparse(fields: Fields, layer: int) -> bool:
    first_sparse = fields.integer("first_k_dense_replace", low=0, high=LAYERS, default=0)
    if layer < first_sparse:
        return False
    if fields.has("moe_layer_freq"):
        return layer % fields.integer("moe_layer_freq", high=LAYERS) == 0
    names = ("decoder_sparse_step", "interleave_moe_layer_step")
    return (layer + 1) % fields.integer(*names, high=LAYERS, default=1) == 0


def _dense_ffn(fields: Fields, kind: str) -> Ffn:
    extra_keys = ("intermediate_size_mlp",) if kind.startswith("llama4") else ()
    hidden = fields.integer("hidden_size", "n_embd", "d_model", "n_embed", "dim")
    width = fields.integer(*extra_keys, *_DENSE_WIDTHS, default=4 * hidden)
    if kind == "qwen":  # the first Qwen counts gate and up together
        width //= 2
    return _ffn(fields, kind, width)


def _ffn(fields: Fields, kind: str, width: int) -> Ffn:
    names = ("hidden_activation", "hidden_act", "mlp_hidden_act", "activation_function")
    default_activation = "gelu" if kind in {"gpt2", "bloom", "falcon", "gpt_neox"} else "silu"
    name, activation = fields.text(*names, default=default_activation), "silu"
    if name.startswith("relu2"):
        activation = "relu2"
    elif "gelu" in name:
        activation = "gelu"
    return Ffn(
        width=width,
        gated=kind not in _NOT_GATED and activation != "relu2",
        activation=cast("Activation", activation),
        biased=fields.boolean("mlp_bias", default=kind in BIASED_TYPES or kind == "gpt_oss"),
    )


def _experts(fields: Fields, kind: str) -> Ffn | None:
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    count = fields.integer(*names, low=0, high=EXPERTS, default=0)
    if count < 2:
        return None
    width = fields.integer("moe_intermediate_size", "expert_ffn_hidden_size", default=0, low=0)
    width = width or fields.integer("intermediate_size", "ffn_hidden_size", "ffn_dim")
    active_keys = (
        "num_experts_per_tok", "experts_per_token", "moe_top_k", "moe_topk", "moe_k",
        "top_k_experts",
    )  # fmt: skip
    shared_width = _shared_width(fields, kind, width)
    groups = fields.integer("n_group", high=count, default=1)
    if count % groups:
        raise fields.refused("n_group", groups, f"a divisor of the {count} experts")
    return replace(
        _ffn(fields, kind, width),
        experts=count,
        active=fields.integer(*active_keys, high=count),
        shared=shared_width,
        shared_gated=bool(shared_width) and kind.startswith("qwen"),
        groups=groups,
        active_groups=fields.integer("topk_group", high=groups, default=groups),
        scoring=_scoring(fields, kind),
        scale=fields.number("routed_scaling_factor", default=1.0),
        latent=fields.integer("moe_latent_size", low=0, default=0),
    )


def _scoring(fields: Fields, kind: str) -> Literal["softmax", "sigmoid"]:
    default_scoring = "sigmoid" if kind in _SIGMOID_ROUTERS else "softmax"
    name = fields.text("scoring_func", "moe_router_activation_func", default=default_scoring)
    if name not in ("softmax", "sigmoid"):
        raise fields.refused("scoring_func", name, "softmax or sigmoid")
    return "sigmoid" if name == "sigmoid" else "softmax"


def _shared_width(fields: Fields, kind: str, width: int) -> int:
    if kind.startswith("llama4"):
        return width
    if kind.startswith("gemma4"):  # a dense FFN stands beside the experts
        return fields.integer("intermediate_size")
    names = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    stated_width = fields.integer(*names, "shared_intermediate_size", low=0, default=0)
    count = fields.integer("n_shared_experts", "num_shared_experts", low=0, high=EXPERTS, default=0)
    return stated_width or count * width
