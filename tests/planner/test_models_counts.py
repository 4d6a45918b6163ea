"""Parameters come out as the published classes have them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models import names, read_model
from planner.models.readers.count import linear

# Counted by building the class of diffusers or transformers from the configuration without weights.
TOTALS = {
    "cogvideox-2b": 1_693_783_872,
    "cogvideox-5b": 5_570_283_072,
    "cosmos-predict2-14b": 14_265_285_632,
    "cosmos-predict2-2b": 1_956_413_440,
    "cosmos-predict2-2b-image": 1_956_405_248,
    "cosmos-predict2.5-14b": 14_368_047_104,
    "cosmos-predict2.5-2b": 2_059_174_912,
    "cosmos1-14b": 14_267_149_312,
    "cosmos1-7b": 7_236_192_256,
    "cosmos3-edge": 3_369_657_024,
    "cosmos3-nano": 15_173_669_120,
    "cosmos3-super": 64_019_736_832,
    "deepseek-v3": 671_026_404_352,
    "flux.1-dev": 11_901_408_320,
    "flux.1-schnell": 11_891_178_560,
    "flux.2-dev": 32_223_281_152,
    "flux.2-klein-4b": 3_875_544_576,
    "flux.2-klein-9b": 9_078_581_248,
    "gemma-3-27b": 27_009_346_304,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "hidream-i1": 17_105_733_184,
    "hunyuanvideo": 12_821_012_544,
    "hunyuanvideo-1.5": 8_326_608_160,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "ltx-2": 18_876_174_592,
    "ltx-video": 1_923_385_472,
    "ltx-video-13b": 13_042_569_344,
    "lumina2": 2_609_769_152,
    "mistral-large": 122_610_069_504,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "mochi-1": 10_027_677_744,
    "pixart-sigma": 610_856_096,
    "qwen-image": 20_430_401_088,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "sana-1.6b": 1_604_462_752,
    "sd3.5-large": 8_056_627_520,
    "sd3.5-medium": 2_243_171_520,
    "wan2.1-1.3b": 1_418_996_800,
    "wan2.1-14b": 14_288_491_584,
    "wan2.1-i2v-14b": 16_394_878_784,
    "wan2.2-5b": 4_999_787_712,
    "wan2.2-a14b": 2 * 14_288_491_584,
    "wan2.2-i2v-a14b": 2 * 14_288_901_184,
    "z-image": 6_154_908_736,
    "deepseek-r1": 671_026_404_352,
    "deepseek-v3.1": 671_026_404_352,
    "deepseek-v3.2": 671_877_929_216,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-4b": 3_880_263_168,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "glm-5": 743_911_199_232,
    "kimi-k2": 1_026_408_209_408,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "minimax-m2": 228_689_748_992,
    "minimax-m2.5": 228_689_748_992,
    "mistral-small": 23_572_403_200,
    "nemotron-3-nano": 31_577_937_344,
    "nemotron-3-super": 120_668_687_360,
    "nemotron-h-56b": 56_324_350_464,
    "phi-4": 14_659_507_200,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-27b": 27_356_728_560,
    "qwen3.5-35b-a3b": 35_107_181_936,
    "qwen3.5-397b-a17b": 396_802_360_816,
}

# Counted likewise, but the tower of vision is counted by its matrices alone.
WITH_VISION = {
    "gemma-4-26b-a4b": 25_805_933_872,
    "gemma-4-31b": 31_273_086_512,
    "kimi-k2.5": 1_026_879_353_328,
    "llama-4-maverick": 401_583_781_376,
    "llama-4-scout": 108_641_793_536,
}

# Parameters of one layer of a block, from the same classes.
LAYERS = {
    ("flux.1-dev", "double"): 339_831_296,
    ("flux.1-dev", "single"): 141_591_808,
    ("flux.2-dev", "double"): 981_467_648,
    ("flux.2-dev", "single"): 490_733_824,
    ("sd3.5-large", "joint"): 212_999_680,
    ("sd3.5-large", "last"): 136_085_248,
    ("sd3.5-medium", "dual"): 101_506_944,
    ("sd3.5-medium", "joint"): 84_980_992,
    ("qwen-image", "double"): 339_831_296,
    ("pixart-sigma", "layers"): 21_255_552,
    ("hidream-i1", "double"): 424_089_600,
    ("hidream-i1", "single"): 305_438_720,
    ("z-image", "single"): 180_910_336,
    ("z-image", "noise_refiner"): 180_910_336,
    ("z-image", "context_refiner"): 176_962_816,
    ("lumina2", "single"): 87_312_576,
    ("wan2.1-14b", "layers"): 351_394_304,
    ("wan2.1-1.3b", "layers"): 46_440_704,
    ("wan2.1-i2v-14b", "layers"): 403_838_464,
    ("wan2.2-5b", "layers"): 163_656_704,
    ("hunyuanvideo", "double"): 339_831_296,
    ("hunyuanvideo", "single"): 141_591_808,
    ("hunyuanvideo", "refiner"): 132_166_656,
    ("hunyuanvideo-1.5", "double"): 151_056_896,
    ("cogvideox-5b", "joint"): 132_197_632,
    ("mochi-1", "joint"): 207_641_600,
    ("mochi-1", "last"): 169_886_720,
    ("ltx-video", "layers"): 67_155_968,
    ("ltx-2", "layers"): 386_074_624,
    ("cosmos1-7b", "layers"): 255_853_056,
    ("cosmos-predict2-14b", "layers"): 393_216_512,
    ("cosmos-predict2-2b", "layers"): 69_206_528,
    ("cosmos3-nano", "layers"): 385_892_864,
    ("cosmos3-super", "layers"): 975_196_672,
    ("cosmos3-edge", "layers"): 100_671_872,
    ("sana-1.6b", "layers"): 77_920_640,
    ("deepseek-v3", "full_dense"): 583_483_392,
    ("deepseek-v3", "full_experts"): 11_507_286_016,
    ("gpt-oss-20b", "sliding_experts"): 823_186_976,
    ("gemma-3-27b", "sliding_dense"): 412_898_560,
}

# Billions of parameters in all and that a token meets, as published. Some count the embedding of
# the input among the latter, some neither it nor the head.
PUBLISHED = [
    ("deepseek-v3", 671.0, 36.6, "head", "deepseek-ai/DeepSeek-V3 README_WEIGHTS.md"),
    ("deepseek-r1", 671.0, 36.6, "head", "the same weights"),
    ("deepseek-v3.1", 671.0, 36.6, "head", "the same weights"),
    ("gemma-4-26b-a4b", 25.8, 3.8, "both", "transformers' class; google/gemma-4-26B-A4B card"),
    ("glm-4.5", 355.0, 32.0, "", "zai-org/GLM-4.5 README"),
    ("glm-4.5-air", 106.0, 12.0, "", "zai-org/GLM-4.5 README"),
    ("glm-5", 744.0, 40.0, "head", "zai-org/GLM-5 card; without its indexers"),
    ("gpt-oss-120b", 116.8, 5.1, "head", "openai/gpt-oss model card, table 1"),
    ("gpt-oss-20b", 20.9, 3.6, "head", "openai/gpt-oss model card, table 1"),
    ("hidream-i1", 17.1, 12.0, "both", "diffusers' class"),
    ("kimi-k2", 1026.0, 32.6, "both", "transformers' class; Kimi K2 report, arXiv:2507.20534"),
    ("llama-4-maverick", 400.0, 17.0, "both", "meta-llama/Llama-4-Maverick-17B-128E card"),
    ("llama-4-scout", 109.0, 17.0, "both", "meta-llama/Llama-4-Scout-17B-16E card"),
    ("minimax-m2", 230.0, 10.0, "head", "MiniMaxAI/MiniMax-M2 card"),
    ("mixtral-8x22b", 141.0, 39.0, "both", "mistral.ai, Mixtral 8x22B"),
    ("mixtral-8x7b", 46.7, 12.9, "both", "Mixtral of Experts, arXiv:2401.04088"),
    ("nemotron-3-nano", 31.6, 3.6, "both", "NVIDIA Nemotron 3 Nano report"),
    ("nemotron-3-super", 120.6, 12.7, "both", "NVIDIA Nemotron 3 Super report"),
    ("qwen3-235b-a22b", 235.0, 22.0, "both", "Qwen/Qwen3-235B-A22B card"),
    ("qwen3-30b-a3b", 30.5, 3.35, "both", "Qwen/Qwen3-30B-A3B card, which cuts it off to 3.3"),
    ("qwen3-coder-480b-a35b", 480.0, 35.0, "both", "Qwen/Qwen3-Coder-480B-A35B-Instruct card"),
    ("qwen3-next-80b-a3b", 80.0, 3.0, "", "Qwen/Qwen3-Next-80B-A3B-Instruct card"),
    ("qwen3.5-35b-a3b", 35.0, 3.0, "head", "Qwen/Qwen3.5-35B-A3B card"),
    ("qwen3.5-397b-a17b", 397.0, 17.0, "both", "Qwen/Qwen3.5-397B-A17B card"),
]


# Billions of parameters of language models every token meets all of: in all, and without embeddings
# where that was published too.
DENSE = [
    ("gemma-3-4b", 3.88, 3.209, "Gemma 3 report, arXiv:2503.19786, table 1, without vision"),
    ("gemma-3-12b", 11.77, 10.759, "Gemma 3 report, arXiv:2503.19786, table 1, without vision"),
    ("gemma-3-27b", 27.01, 25.6, "Gemma 3 report, arXiv:2503.19786, table 1, without vision"),
    ("gemma-4-31b", 31.0, None, "google/gemma-4-31B-it, its name"),
    ("llama-2-7b", 6.74, None, "meta-llama/Llama-2-7b-hf, size of its safetensors"),
    ("llama-2-13b", 13.0, None, "meta-llama/Llama-2-13b-hf, size of its safetensors"),
    ("llama-2-70b", 69.0, None, "meta-llama/Llama-2-70b-hf, size of its safetensors"),
    ("llama-3.1-8b", 8.03, None, "meta-llama/Llama-3.1-8B, size of its safetensors"),
    ("llama-3.1-70b", 70.6, None, "meta-llama/Llama-3.1-70B, size of its safetensors"),
    ("llama-3.1-405b", 406.0, None, "meta-llama/Llama-3.1-405B, size of its safetensors"),
    ("llama-3.2-1b", 1.23, None, "meta-llama/Llama-3.2-1B card"),
    ("llama-3.2-3b", 3.21, None, "meta-llama/Llama-3.2-3B card"),
    ("llama-3.3-70b", 70.6, None, "meta-llama/Llama-3.3-70B-Instruct, as 3.1"),
    ("mistral-large", 123.0, None, "mistral.ai, Large Enough: 123 billion"),
    ("mistral-small", 23.6, None, "mistralai/Mistral-Small-24B-Base-2501, its safetensors"),
    ("nemotron-h-56b", 56.0, None, "NVIDIA Nemotron-H report, arXiv:2504.03624: 56B"),
    ("phi-4", 14.7, None, "microsoft/phi-4, size of its safetensors"),
    ("qwen2.5-7b", 7.61, 6.53, "Qwen/Qwen2.5-7B card"),
    ("qwen2.5-14b", 14.7, 13.1, "Qwen/Qwen2.5-14B card"),
    ("qwen2.5-32b", 32.5, 31.0, "Qwen/Qwen2.5-32B card"),
    ("qwen2.5-72b", 72.7, 70.0, "Qwen/Qwen2.5-72B card"),
    ("qwen3-8b", 8.2, 6.95, "Qwen/Qwen3-8B card"),
    ("qwen3-32b", 32.8, 31.2, "Qwen/Qwen3-32B card"),
    ("qwen3.5-27b", 27.0, None, "Qwen/Qwen3.5-27B, its name"),
]
LIKE = {"deepseek-v3.2": "deepseek-v3", "kimi-k2.5": "kimi-k2", "minimax-m2.5": "minimax-m2"}
"""Models of mixtures whose layers are those of another, by their cards."""


def test_every_language_model_has_a_published_figure_with_its_source():
    figures = {row[0] for row in (*PUBLISHED, *DENSE)} | LIKE.keys()
    assert {name for name in names() if read_model(name).kind == "decoder"} <= figures
    assert all(row[-1] for row in (*PUBLISHED, *DENSE))


@pytest.mark.parametrize(
    ("name", "total", "inside", "source"), DENSE, ids=[row[0] for row in DENSE]
)
def test_dense_models_are_as_large_as_published(name, total, inside, source):
    """Within 1 %, or half of the last figure; some cards round down."""
    model = read_model(name)
    tables = (1 if model.tied_embeddings else 2) * model.vocabulary * model.main.hidden
    parameters = model.parameters - model.vision_parameters

    assert parameters / 1e9 == pytest.approx(total, abs=rounded(total)), source
    if inside is not None:
        assert (parameters - tables) / 1e9 == pytest.approx(inside, rel=0.01), source


@pytest.mark.parametrize("name", LIKE)
def test_models_of_the_same_layers_are_as_large(name):
    model, other = read_model(name), read_model(LIKE[name])
    own = model.parameters - model.vision_parameters
    assert own == pytest.approx(other.parameters - other.vision_parameters, rel=0.01)


def test_every_entry_has_a_published_count():
    assert sorted(TOTALS | WITH_VISION) == list(names())


@pytest.mark.parametrize("name", WITH_VISION)
def test_totals_with_vision_are_as_built(name):
    assert read_model(name).parameters == pytest.approx(WITH_VISION[name], rel=5e-4)


def test_totals_are_as_built():
    for name, total in TOTALS.items():
        assert read_model(name).parameters == total, name


def test_layers_are_as_built():
    for (name, block), parameters in LAYERS.items():
        (found,) = [each for each in read_model(name).blocks if each.name == block]

        assert found.parameters == parameters, (name, block)


def rounded(figure):
    """1 %, or half of the last figure that was written down."""
    return max(0.01 * figure, 0.5 if figure == int(figure) else 0.05)


@pytest.mark.parametrize(
    ("name", "total", "active", "counted", "source"), PUBLISHED, ids=[row[0] for row in PUBLISHED]
)
def test_parameters_are_as_published(name, total, active, counted, source):
    model = read_model(name)
    table = model.vocabulary * model.main.hidden / 1e9
    left_out = {"both": 0, "head": 1, "": 2}[counted] * table
    if model.main.indexer:
        towers = [(block.count, block.towers[0]) for block in model.blocks]
        indexers = (n * t.indexer.parameters(t.hidden, t.latent.query_rank) for n, t in towers)
        left_out += sum(indexers) / 1e9

    assert source
    assert model.parameters / 1e9 == pytest.approx(total, abs=rounded(total))
    assert model.active_parameters / 1e9 - left_out == pytest.approx(active, abs=rounded(active))


def test_the_generator_tower_of_cosmos3_is_half_the_layers():
    """6.95 B of 15.17 B in Nano's video tower."""
    nano = read_model("cosmos3-nano")
    (block,) = nano.blocks
    (video,) = [tower for tower in block.towers if tower.streams == ("video",)]

    assert block.count * video.parameters == pytest.approx(6.95e9, rel=2e-3)


def test_experts_that_take_turns_count_twice_in_all_and_once_in_use():
    model = read_model("wan2.2-a14b")

    assert model.parameters == 2 * model.transformer_parameters
    assert model.active_parameters == model.transformer_parameters


# Encoders and decoders outside the catalogue: sizes of their config.json, counts as above.
OTHERS = [
    (
        {
            "model_type": "t5",
            "architectures": ["T5EncoderModel"],
            "d_model": 4096,
            "d_ff": 10240,
            "num_heads": 64,
            "num_layers": 24,
            "feed_forward_proj": "gated-gelu",
        },
        4_762_310_656,
    ),
    (
        {
            "model_type": "umt5",
            "vocab_size": 256384,
            "d_model": 4096,
            "d_ff": 10240,
            "num_heads": 64,
            "num_layers": 24,
        },
        5_680_910_336,
    ),
    (
        {
            "model_type": "clip_text_model",
            "architectures": ["CLIPTextModelWithProjection"],
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_attention_heads": 20,
            "num_hidden_layers": 32,
            "projection_dim": 1280,
        },
        694_659_840,
    ),
    (
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": 1600,
            "n_head": 25,
            "n_layer": 48,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        1_557_611_200,
    ),
    (
        {
            "model_type": "qwen2_5_vl",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "vision_config": {
                "depth": 32,
                "hidden_act": "silu",
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "num_heads": 16,
                "out_hidden_size": 3584,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
        },
        8_292_166_656,
    ),
    (
        {
            "architectures": ["NemotronForCausalLM"],
            "hidden_size": 18432,
            "intermediate_size": 73728,
            "num_hidden_layers": 96,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "vocab_size": 256000,
            "hidden_act": "relu2",
        },
        341_029_195_776,
    ),
    (
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
        15_706_484_224,
    ),
    (
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "vocab_size": 151936,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "linear_conv_kernel_dim": 4,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "full_attention_interval": 4,
        },
        79_674_391_296,
    ),
    (
        {
            "architectures": ["NemotronHForCausalLM"],
            "hidden_size": 2688,
            "intermediate_size": 1856,
            "num_hidden_layers": 52,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 131072,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "n_shared_experts": 1,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "mlp_hidden_act": "relu2",
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        },
        31_577_937_344,
    ),
]


@pytest.mark.parametrize(("config", "total"), OTHERS, ids=[str(total) for _, total in OTHERS])
def test_other_classes_are_counted_as_built(config, total):
    assert read_model(json.dumps(config)).parameters == pytest.approx(total, rel=1e-4)


def test_description_is_plain_data_with_the_promised_keys():
    shown = json.loads(json.dumps(read_model("cosmos3").to_dict()))

    assert shown["name"] == "cosmos3-nano"
    assert shown["family"] == "cosmos3"
    assert shown["parameters"] == 15_173_669_120
    assert (shown["layers"], shown["hidden"]) == (36, 4096)
    assert (shown["heads"], shown["kv_heads"], shown["head_dim"]) == (32, 8, 128)
    assert (shown["ffn"], shown["vocabulary"]) == (12288, 151936)


def test_refiners_are_not_counted_as_layers():
    assert read_model("z-image").layers == 30
    assert read_model("hunyuanvideo").layers == 60


SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "num_local_experts": 4,
}


@given(
    key=st.sampled_from(sorted(SIZES)),
    steps=st.integers(1, 8),
)
def test_a_larger_size_never_has_fewer_parameters(key, steps):
    base = {"model_type": "mixtral", "num_attention_heads": 8, "num_experts_per_tok": 2, **SIZES}
    larger = {**base, key: base[key] + 8 * steps}

    small, large = (read_model(json.dumps(config)) for config in (base, larger))

    assert small.parameters < large.parameters
    assert small.active_parameters <= large.active_parameters
    assert large.active_parameters <= large.parameters


def test_a_map_has_a_weight_for_each_pair_and_a_bias_for_each_output():
    assert linear(3, 5) == 3 * 5 + 5
