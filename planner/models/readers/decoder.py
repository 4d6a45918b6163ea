"""Language models: Llama-like decoders, mixtures of experts, latent attention, hybrids.

Each layer becomes a tower of its own; equal towers are then one block, plain attention last.
"""

from collections import Counter
from dataclasses import replace
from typing import Final

from planner.models.architecture import Block, Ffn, Model, Numerics, Stream, Tower
from planner.models.fields import CONTEXT, HEAD_SIZE, HEADS, LAYERS, VOCABULARY, Fields
from planner.models.mixers import Heads, Indexer, LatentAttention
from planner.models.quantisation import Quantisation, read_quantisation
from planner.models.readers import model_type
from planner.models.readers.count import biased
from planner.models.readers.decoder_layers import (
    BIASED_TYPES,
    Mixer,
    feeds_of,
    feeds_of_letters,
    letters_of,
    mixer_of,
    mixers_of,
    mixers_of_letters,
)
from planner.models.readers.vision import vision_heads, vision_parameters
from topology.base.values import dataclass

MODEL_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "arcee": ("ArceeForCausalLM",), "baichuan": ("BaichuanForCausalLM",),
    "bloom": ("BloomForCausalLM",), "chatglm": ("ChatGLMModel",),
    "codegen": ("CodeGenForCausalLM",), "cohere": ("CohereForCausalLM",),
    "cohere2": ("Cohere2ForCausalLM",), "deepseek": ("DeepseekForCausalLM",),
    "deepseek_v2": ("DeepseekV2ForCausalLM",), "deepseek_v3": ("DeepseekV3ForCausalLM",),
    "deepseek_v32": ("DeepseekV32ForCausalLM",), "dots1": ("Dots1ForCausalLM",),
    "ernie4_5": ("Ernie4_5ForCausalLM",), "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM",),
    "exaone": ("ExaoneForCausalLM",), "exaone4": ("Exaone4ForCausalLM",),
    "falcon": ("FalconForCausalLM",), "gemma": ("GemmaForCausalLM",),
    "gemma2": ("Gemma2ForCausalLM",), "gemma3": ("Gemma3ForConditionalGeneration",),
    "gemma3_text": ("Gemma3ForCausalLM",), "gemma4": ("Gemma4ForConditionalGeneration",),
    "gemma4_text": ("Gemma4ForCausalLM",), "glm": ("GlmForCausalLM",),
    "glm4": ("Glm4ForCausalLM",), "glm4_moe": ("Glm4MoeForCausalLM",),
    "glm4v": ("Glm4vForConditionalGeneration",),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration",), "glm4v_moe_text": (),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM",), "gpt2": ("GPT2LMHeadModel",),
    "gpt_bigcode": ("GPTBigCodeForCausalLM",), "gpt_neox": ("GPTNeoXForCausalLM",),
    "gpt_oss": ("GptOssForCausalLM",), "gptj": ("GPTJForCausalLM",),
    "granite": ("GraniteForCausalLM",), "granitemoe": ("GraniteMoeForCausalLM",),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM",),
    "hunyuan_v1_moe": ("HunYuanMoEV1ForCausalLM",), "internlm": ("InternLMForCausalLM",),
    "internlm2": ("InternLM2ForCausalLM",), "internlm3": ("InternLM3ForCausalLM",),
    "internvl": ("InternVLForConditionalGeneration",), "internvl_chat": ("InternVLChatModel",),
    "kimi_k2": ("KimiK2ForCausalLM",), "kimi_k25": ("KimiK25ForConditionalGeneration",),
    "kimi_vl": ("KimiVLForConditionalGeneration",),
    "llama": ("LlamaForCausalLM",), "llama4": ("Llama4ForConditionalGeneration",),
    "llama4_text": ("Llama4ForCausalLM",), "llava": ("LlavaForConditionalGeneration",),
    "llava_next": ("LlavaNextForConditionalGeneration",),
    "llava_onevision": ("LlavaOnevisionForConditionalGeneration",),
    "minicpm": ("MiniCPMForCausalLM",), "minicpm3": ("MiniCPM3ForCausalLM",),
    "minimax_m2": ("MiniMaxM2ForCausalLM",), "ministral": ("MinistralForCausalLM",),
    "mistral": ("MistralForCausalLM",), "mistral3": ("Mistral3ForConditionalGeneration",),
    "mixtral": ("MixtralForCausalLM",), "mpt": ("MptForCausalLM",),
    "nemotron": ("NemotronForCausalLM",), "nemotron_h": ("NemotronHForCausalLM",),
    "olmo": ("OlmoForCausalLM",), "olmo2": ("Olmo2ForCausalLM",), "olmo3": ("Olmo3ForCausalLM",),
    "olmoe": ("OlmoeForCausalLM",), "opt": ("OPTForCausalLM",), "orion": ("OrionForCausalLM",),
    "paligemma": ("PaliGemmaForConditionalGeneration",), "persimmon": ("PersimmonForCausalLM",),
    "phi": ("PhiForCausalLM",), "phi3": ("Phi3ForCausalLM",), "phi3_v": ("Phi3VForCausalLM",),
    "phi4_multimodal": ("Phi4MultimodalForCausalLM",), "phimoe": ("PhiMoEForCausalLM",),
    "pixtral": ("PixtralForConditionalGeneration",), "qwen": ("QWenLMHeadModel",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen2_5_omni": ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel"),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",), "qwen2_5_vl_text": (),
    "qwen2_moe": ("Qwen2MoeForCausalLM",), "qwen2_vl": ("Qwen2VLForConditionalGeneration",),
    "qwen3": ("Qwen3ForCausalLM",), "qwen3_5": ("Qwen3_5ForConditionalGeneration",),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration",),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM",), "qwen3_5_text": ("Qwen3_5ForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM",), "qwen3_next": ("Qwen3NextForCausalLM",),
    "qwen3_omni_moe": ("Qwen3OmniMoeForConditionalGeneration",),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration",),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration",), "qwen3_vl_moe_text": (),
    "qwen3_vl_text": (), "seed_oss": ("SeedOssForCausalLM",), "smollm3": ("SmolLM3ForCausalLM",),
    "solar": ("SolarForCausalLM",), "stablelm": ("StableLmForCausalLM",),
    "starcoder2": ("Starcoder2ForCausalLM",), "step3": ("Step3ForCausalLM",),
    "yi": ("YiForCausalLM",),
}  # fmt: skip
"""Values of ``model_type``, and the ``architectures`` that stand for each."""
STREAMS: Final = ("tokens",)
_LANGUAGE_KEYS: Final = ("thinker_config", "text_config", "language_config", "llm_config")
_LEARNED_POSITIONS: Final = {"gpt2", "gpt_bigcode", "opt"}
_LAYER_NORM: Final = BIASED_TYPES | {"codegen", "falcon", "gptj", "mpt", "nemotron"}
_TIED_EMBEDDINGS: Final = _LEARNED_POSITIONS | {
    "bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4",
    "gemma4_text", "mpt", "starcoder2",
}  # fmt: skip
_NETWORK_TYPES: Final = {"llama", "mistral", "qwen3"}
_THETA: Final = 10_000
"""Base of rotary angles where nothing is said, as transformers has it."""
_UNREAD_KEYS: Final = {
    "hidden_size_per_layer_input": "embeddings of each layer",
    "num_kv_shared_layers": "layers that look at the keys of others",
}
"""Keys of small Gemma 4 models, and what they add."""
_DEFAULTS: Final = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072, "sliding_window": 4096,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What all layers share."""

    kind: str
    layers: int
    hidden: int
    heads: Heads
    latent: LatentAttention | None
    indexer: Indexer | None


def read(fields: Fields) -> Model:
    """Read a decoder's config.json; one with other towers nests the language model's keys.

    Raises `InputError` if sizes are missing or absurd, or do not go together.
    """
    language = language_of(fields)
    inner_type = language.text("model_type", default="")
    kind = inner_type if inner_type in MODEL_TYPES else model_type(fields, MODEL_TYPES)
    language = _with_defaults(language, kind)
    sizes = _sizes(language, kind)
    vocabulary = language.integer("vocab_size", "padded_vocab_size", high=VOCABULARY)
    tied = language.boolean("tie_word_embeddings", default=kind in _TIED_EMBEDDINGS)
    tied = fields.boolean("tie_word_embeddings", default=tied)
    vision = vision_parameters(fields, sizes.hidden)
    blocks, order = _blocks(language, sizes)
    return Model(
        name=fields.where,
        family=kind or "decoder",
        kind="decoder",
        source=fields.where,
        blocks=blocks,
        order=order,
        streams=(Stream(name="tokens", pads=True),),
        draft=_draft(language, sizes),
        input_features=sizes.hidden,
        output_features=vocabulary,
        vocabulary=vocabulary,
        tied_embeddings=tied,
        context=_context(language),
        outer_parameters=_outer(language, sizes, vocabulary, tied=tied) + vision,
        vision_parameters=vision,
        vetoes=vision_heads(fields),
        quantisation=_quantisation(fields, sizes),
        numerics=_numerics(language, kind),
        assumed=() if kind else ("no class is named; read as a Llama-like decoder",),
    )


def _numerics(fields: Fields, kind: str) -> Numerics | None:
    """Read what the numbers of a plain Llama-like decoder depend on; None of any other."""
    table = fields.table("rope_parameters")
    scaling, rope_table = table or fields.table("rope_scaling"), table or fields
    rope_type = (
        "default" if scaling is None else scaling.text("rope_type", "type", default="default")
    )
    has_bias = any(fields.boolean(name, default=False) for name in ("attention_bias", "mlp_bias"))
    if kind not in _NETWORK_TYPES or has_bias or rope_type not in ("default", "llama3"):
        return None
    if not fields.has("rms_norm_eps") or fields.text("hidden_act", default="silu") != "silu":
        return None
    numerics = Numerics(
        epsilon=fields.number("rms_norm_eps", high=1.0),
        theta=rope_table.number("rope_theta", low=1.0, high=CONTEXT, default=_THETA),
        normed="head" if kind == "qwen3" else "",
    )
    if rope_type == "default" or scaling is None:
        return numerics
    low_factor = scaling.number("low_freq_factor")
    high_factor = scaling.number("high_freq_factor")
    if high_factor <= low_factor:
        raise scaling.refused(
            "high_freq_factor", high_factor, f"more than low_freq_factor {low_factor:g}"
        )
    return replace(
        numerics,
        slower=scaling.number("factor", low=1.0),
        few=low_factor,
        many=high_factor,
        context=scaling.number("original_max_position_embeddings", low=1.0, high=CONTEXT),
    )


def language_of(fields: Fields) -> Fields:
    """Descend to the object that holds the language model's keys."""
    for _ in _LANGUAGE_KEYS:
        child = fields.table(*_LANGUAGE_KEYS)
        if child is None:
            break
        fields = child
    return fields


def _with_defaults(fields: Fields, kind: str) -> Fields:
    """Put the class's own defaults under the keys that are written."""
    defaults = _DEFAULTS.get(kind.removesuffix("_text"), {})
    written_fields = {name: value for name, value in fields.values.items() if value is not None}
    return replace(fields, values={**defaults, **written_fields})


def _sizes(fields: Fields, kind: str) -> _Sizes:
    for name, feature in _UNREAD_KEYS.items():
        if fields.integer(name, low=0, default=0):
            raise fields.refused(name, fields.values[name], f"0; {feature} are not read")
    hidden = fields.integer("hidden_size", "n_embd", "d_model", "n_embed", "dim")
    heads = _heads(fields, hidden)
    latent = _latent(fields, heads)
    return _Sizes(
        kind=kind,
        layers=fields.integer(
            "num_hidden_layers", "n_layer", "num_layers", "n_layers", high=LAYERS,
            default=len(letters_of(fields, kind)) or None,  # of a hybrid's pattern, an entry each
        ),
        hidden=hidden,
        heads=replace(heads, size=latent.value_size) if latent else heads,
        latent=latent,
        indexer=_indexer(fields) if latent else None,
    )  # fmt: skip


def _heads(fields: Fields, hidden: int) -> Heads:
    names = (
        "num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads",
        "decoder_attention_heads",
    )  # fmt: skip
    count = fields.integer(*names, high=HEADS)
    if not fields.has("head_dim", "kv_channels", "kv_lora_rank") and hidden % count:
        wanted = f"a divisor of hidden_size {hidden}, or head_dim beside it"
        raise fields.refused("num_attention_heads", count, wanted)
    key_value_heads = _key_value_heads(fields, count)
    size = fields.integer(
        "head_dim", "kv_channels", "v_head_dim", high=HEAD_SIZE, default=max(hidden // count, 1)
    )
    return Heads(query=count, key_value=key_value_heads, size=size)


def _key_value_heads(fields: Fields, count: int) -> int:
    names = (
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num",
        "num_query_groups",
    )  # fmt: skip
    single_head = fields.boolean("multi_query", default=False) and not fields.has(*names)
    default_heads = 1 if single_head else count
    return fields.divisor(*names, of="num_attention_heads", whole=count, default=default_heads)


def _latent(fields: Fields, heads: Heads) -> LatentAttention | None:
    if not fields.has("kv_lora_rank"):
        return None
    return LatentAttention(
        query_rank=fields.integer("q_lora_rank", default=0, low=0),
        key_value_rank=fields.integer("kv_lora_rank"),
        content_size=fields.integer("qk_nope_head_dim", high=HEAD_SIZE, default=heads.size),
        rotary_size=fields.integer("qk_rope_head_dim", low=0, high=HEAD_SIZE, default=64),
        value_size=fields.integer("v_head_dim", high=HEAD_SIZE, default=heads.size),
    )


def _indexer(fields: Fields) -> Indexer | None:
    if not fields.has("index_topk"):
        return None
    return Indexer(
        heads=fields.integer("index_n_heads", high=HEADS),
        size=fields.integer("index_head_dim", high=HEAD_SIZE),
        chosen=fields.integer("index_topk", high=CONTEXT),
    )


def _draft(fields: Fields, sizes: _Sizes) -> tuple[Block, ...]:
    """Read layers that predict tokens after the next one.

    Each module takes the last layer's output beside the next token's embedding, both normed,
    through a projection; a norm follows, and the model's own head.
    """
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    count = fields.integer(*names, low=0, high=LAYERS, default=0)
    if not count:
        return ()
    letters = letters_of(fields, sizes.kind, "mtp_")
    if letters:
        mixers = mixers_of_letters(fields, sizes.kind, letters)
        feeds = feeds_of_letters(fields, sizes.kind, letters)
    else:
        mixers = (mixer_of(fields, sizes.kind, "full"),)
        feeds = feeds_of(fields, sizes.kind, sizes.layers)[-1:]
    projection = 2 * sizes.hidden**2 + 3 * sizes.hidden
    blocks = []
    for number, (mixer, feed) in enumerate(zip(mixers, feeds, strict=True)):
        tower = _tower(fields, sizes, mixer, feed)
        tower = tower if number else replace(tower, extra=tower.extra + projection)
        blocks.append(Block(name=f"draft_{_name(mixer, feed)}", count=count, towers=(tower,)))
    return tuple(blocks)


def _blocks(fields: Fields, sizes: _Sizes) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Read the kinds of layers, and which of them each layer is."""
    mixers = mixers_of(fields, sizes.kind, sizes.layers)
    feeds = feeds_of(fields, sizes.kind, sizes.layers)
    layers = list(zip(mixers, feeds, strict=True))
    counts = Counter(layers)
    kinds = sorted(counts, key=lambda kind: (kind[0].kind == "attention", kind[0].window == 0))
    blocks = (
        Block(name=_name(*kind), count=counts[kind], towers=(_tower(fields, sizes, *kind),))
        for kind in kinds
    )
    order = tuple(kinds.index(kind) for kind in layers)
    return tuple(blocks), order if order != tuple(sorted(order)) else ()


def _name(mixer: Mixer, feed: Ffn | None) -> str:
    if feed is None:
        return mixer.name
    return f"{mixer.name}_{'experts' if feed.experts else 'dense'}"


def _tower(fields: Fields, sizes: _Sizes, mixer: Mixer, feed: Ffn | None) -> Tower:
    softmax = mixer.kind == "attention"
    heads, indexer = mixer.heads or sizes.heads, sizes.indexer
    if indexer is not None and mixer.reuses_choice:
        indexer = replace(indexer, reused=True)
    tower = Tower(
        streams=STREAMS,
        hidden=sizes.hidden,
        heads=heads,
        keys=STREAMS,
        causal=True,
        ffn=feed,
        qk_norm=softmax and _qk_norm(fields, sizes.kind),
        rotates=softmax and mixer.rotates,
        rotary=_rotary(fields, mixer, heads.size),
        window=mixer.window,
        chunked=mixer.chunked,
        sinks=softmax and sizes.kind == "gpt_oss",
        latent=sizes.latent if softmax else None,
        indexer=indexer if softmax else None,
        mixer=mixer.kind,
        recurrence=mixer.recurrence,
        shares_values=mixer.shares_values,
        gate=mixer.gate,
        extra=_norms(sizes, mixer, feed),
    )
    tower = replace(tower, extra=tower.extra + _qk_norms(fields, sizes, tower))
    return _with_biases(fields, sizes, tower)


def _rotary(fields: Fields, mixer: Mixer, size: int) -> int:
    """Read how many features of a head are rotated, 0 for all of them."""
    if not mixer.rotates or mixer.kind != "attention":
        return 0
    share = int(mixer.rotary * size)
    rotated = fields.integer("rotary_dim", low=0, high=HEAD_SIZE, default=share)
    return rotated if rotated < size else 0


def _norms(sizes: _Sizes, mixer: Mixer, feed: Ffn | None) -> int:
    norms = (1 if mixer.kind != "none" else 0) + (1 if feed is not None else 0)
    if sizes.kind.startswith(("gemma2", "gemma3", "gemma4")):
        norms *= 2
    expert_extra = 0
    if sizes.kind.startswith("gemma4") and feed is not None and feed.experts:
        expert_extra = (
            4 * sizes.hidden + feed.experts
        )  # norms of the two FFNs, scales of the router
    return norms * sizes.hidden * (2 if sizes.kind in _LAYER_NORM else 1) + expert_extra


def _qk_norm(fields: Fields, kind: str) -> bool:
    """Whether queries and keys are normed; only some classes say so in their configuration."""
    default_norm = kind.startswith(("qwen3", "gemma3", "gemma4", "olmo2", "olmo3"))
    if kind.startswith("llama4"):
        return False  # its norm has no weights
    return fields.boolean("use_qk_norm", "qk_layernorm", default=default_norm)


def _qk_norms(fields: Fields, sizes: _Sizes, tower: Tower) -> int:
    if tower.latent is not None:
        return tower.latent.query_rank + tower.latent.key_value_rank
    if not tower.qk_norm:
        return 0
    if fields.text("qk_norm_type", default="") == "per_layer" or sizes.kind.startswith("olmo"):
        return tower.heads.query_width + tower.heads.key_value_width
    return 2 * tower.heads.size


def _with_biases(fields: Fields, sizes: _Sizes, tower: Tower) -> Tower:
    all_biased = sizes.kind in BIASED_TYPES
    query_bias = all_biased or sizes.kind.startswith("qwen2") or sizes.kind == "qwen"
    if tower.mixer == "attention" and tower.latent is None:
        if fields.boolean("attention_bias", "qkv_bias", "add_qkv_bias", default=query_bias):
            tower = biased(tower, "qkv")
        stated_bias = fields.boolean("attention_bias", default=False)
        if all_biased or (stated_bias and not sizes.kind.startswith("glm4")):
            tower = biased(tower, "out")
    return tower


def _context(fields: Fields) -> int:
    names = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")
    return fields.integer(*names, high=CONTEXT, default=0)


def _outer(fields: Fields, sizes: _Sizes, vocabulary: int, *, tied: bool) -> int:
    final_norm = sizes.hidden * (2 if sizes.kind in _LAYER_NORM else 1)
    positions = _context(fields) if sizes.kind in _LEARNED_POSITIONS else 0
    return sizes.hidden * (vocabulary * (1 if tied else 2) + positions) + final_norm


def _quantisation(fields: Fields, sizes: _Sizes) -> Quantisation | None:
    quantisation_table = fields.table("quantization_config", "compression_config")
    quantisation_table = quantisation_table or language_of(fields).table(
        "quantization_config", "compression_config"
    )
    quantisation = (
        None if quantisation_table is None else read_quantisation(quantisation_table, sizes.layers)
    )
    if quantisation and sizes.kind.startswith("gemma4") and "feed_forward" in quantisation.kept:
        return replace(
            quantisation, kept=(*quantisation.kept, "shared")
        )  # the FFN beside its experts
    return quantisation
