"""Names, files and folders lead to a model, or to one line that says why not."""

import json
import os
import tomllib

import pytest

from planner.models import names, read_model
from planner.models.catalogue import ALIASES
from planner.models.entries import load_encoders, load_entry, load_repositories, load_vaes
from topology.base import CatalogueError, InputError

PROMISED = [
    "cosmos3",
    "cosmos3-nano",
    "cosmos3-super",
    "cosmos3-edge",
    "flux.1-dev",
    "flux",
    "flux.1-schnell",
    "flux.2-dev",
    "sd3.5-large",
    "qwen-image",
    "hunyuanvideo",
    "hunyuanvideo-1.5",
    "wan2.1-1.3b",
    "wan2.1-14b",
    "wan2.2-a14b",
    "wan2.2-5b",
    "cogvideox-5b",
    "mochi-1",
    "ltx-video",
    "pixart-sigma",
    "hidream-i1",
    "z-image",
    "lumina2",
    "cosmos-predict2-2b",
    "cosmos-predict2-14b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-235b-a22b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "deepseek-v3",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "gemma-3-27b",
    "mistral-large",
]
WAN = {"_class_name": "WanTransformer3DModel", "num_layers": 40}
UMT5 = {"model_type": "umt5", "d_model": 64, "d_ff": 128, "num_heads": 2, "num_layers": 3}


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_promised_names_lead_to_a_model():
    for name in PROMISED:
        model = read_model(name.upper())

        assert model.name == ALIASES.get(name, name), name
        assert not model.assumed, name
        assert model.source, name


def test_diffusion_models_know_their_request_and_their_autoencoder():
    for name in names():
        model = read_model(name)
        if model.kind == "diffusion":
            assert min(model.defaults.height, model.defaults.width, model.defaults.steps) > 0, name
            assert model.vae is not None, name
            assert model.vae.flop_per_pixel > 0, name
            assert model.latent is not None, name
            assert model.streams[-1].tokens == 0, name  # the last stream is what is made
        else:
            assert [stream.name for stream in model.streams] == ["tokens"], name


def test_a_name_that_is_not_there_brings_the_near_ones():
    with pytest.raises(InputError, match=r"unknown model 'flux.1-div': did you mean flux.1-dev"):
        read_model("flux.1-div")


def test_a_configuration_file_takes_what_is_usual_for_its_class(tmp_path):
    model = read_model(write(tmp_path, "mine/config.json", WAN))

    assert model.name == "mine"
    assert model.vae.name == "wan2.1"
    assert model.defaults.steps == 50
    assert model.assumed == (
        "size, steps and passes of a request, autoencoder and encoders as of wan2.1-14b",
    )
    assert read_model(tmp_path / "mine").to_dict() == model.to_dict()


def test_text_may_stand_for_a_file():
    assert read_model(json.dumps(WAN)).main.hidden == 5120


def test_the_original_file_of_wan_reads_like_the_converted_one():
    original = {"_class_name": "WanModel", "dim": 1536, "ffn_dim": 8960, "num_heads": 12}

    shown = read_model(json.dumps({**original, "num_layers": 30, "model_type": "t2v"})).to_dict()

    assert shown["parameters"] == read_model("wan2.1-1.3b").to_dict()["parameters"]


PIPELINE = {
    "_class_name": "WanPipeline",
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
}


@pytest.fixture
def pipeline(tmp_path):
    write(tmp_path, "model_index.json", PIPELINE)
    write(tmp_path, "transformer/config.json", WAN)
    write(tmp_path, "transformer_2/config.json", WAN)
    write(tmp_path, "vae/config.json", {"_class_name": "AutoencoderKLWan", "z_dim": 16})
    write(tmp_path, "text_encoder/config.json", UMT5)
    return tmp_path


def test_a_pipeline_has_all_its_parts(pipeline):
    model = read_model(pipeline)

    assert model.transformers == 2
    assert model.defaults.steps == 40
    assert model.vae.name == "wan2.1"
    assert [(e.name, e.layers, e.hidden, e.tokens) for e in model.encoders] == [
        ("text_encoder", 3, 64, 512)
    ]


def test_an_empty_second_transformer_is_none(pipeline):
    write(pipeline, "model_index.json", {**PIPELINE, "transformer_2": [None, None]})

    assert read_model(pipeline).transformers == 1


def test_the_strides_of_a_pipelines_autoencoder_count(pipeline):
    vae = {"_class_name": "AutoencoderKLMine", "spatial_compression_ratio": 32}
    write(pipeline, "vae/config.json", vae)

    model = read_model(pipeline)

    assert model.latent.spatial == 32
    assert "an autoencoder nobody has measured" in model.assumed[-1]


def test_an_encoder_nobody_knows_leaves_the_usual_ones(pipeline):
    write(pipeline, "text_encoder/config.json", {"model_type": "mystery"})

    model = read_model(pipeline)

    assert [encoder.name for encoder in model.encoders] == ["umt5-xxl"]
    assert "mystery" in model.assumed[-1]


BROKEN = {
    "truncated.json": '{"_class_name": "FluxTransformer2DModel"',
    "list.json": "[1, 2]",
    "text.json": "a config",
    "empty.json": "",
    "null.json": "null",
    "deep.json": "[" * 100_000,
    "deep_object.json": '{"a":' * 100_000,
    "long.json": '{"num_layers": ' + "9" * 10_000 + "}",
    "unknown.json": '{"_class_name": "FluxTransformer3DModel"}',
    "other.json": '{"name": "left-pad", "version": "1.0"}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_one_line(tmp_path, name):
    path = write(tmp_path, name, BROKEN[name])

    with pytest.raises(InputError) as refused:
        read_model(path)

    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00\x01")

    with pytest.raises(InputError, match="not UTF-8"):
        read_model(path)


def test_a_byte_order_mark_is_not_an_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(WAN).encode())

    assert read_model(path).layers == 40


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(11 * 2**20)

    with pytest.raises(InputError, match="larger than 10 MiB"):
        read_model(path)


def test_what_is_not_a_file_is_refused(tmp_path):
    fifo = tmp_path / "config.json"
    os.mkfifo(fifo)

    with pytest.raises(InputError, match="not a file"):
        read_model(fifo)


@pytest.mark.parametrize(
    "path", ["", "no/such/config.json", "nothing.json", "x" * 10_000, "a\0b", "\ud800", "a\nb.json"]
)
def test_paths_that_lead_nowhere_are_refused_in_one_line(path):
    with pytest.raises(InputError) as refused:
        read_model(path)

    assert "\n" not in str(refused.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json and no model_index\.json"):
        read_model(tmp_path)


@pytest.mark.parametrize("index", [{}, {"transformer": [None, None]}, {"unet": ["a", "b"]}])
def test_a_pipeline_without_a_transformer_is_refused(tmp_path, index):
    write(tmp_path, "model_index.json", index)

    with pytest.raises(InputError, match="wanted a pipeline with a transformer"):
        read_model(tmp_path)


@pytest.mark.parametrize("thing", [None, 3, ["flux"]])
def test_what_is_neither_a_name_nor_a_path_is_refused(thing):
    with pytest.raises(InputError, match="wanted a name or a path"):
        read_model(thing)


ENTRY = 'kind = "assumed"\nsource = "made up"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY, "got no config"),
        ('kind = "assumed"\n[config]\n', "got no source"),
        ('source = "made up"\n[config]\n', "got no kind"),
        (ENTRY + "colour = 3\n[config]\n", "unknown key"),
        (ENTRY + "[config]\n[defaults]\nsteps = 3\n", "got no kind"),
        (ENTRY + "[config]\n[defaults]\n" + ENTRY + "rounds = 3\n", "unknown key"),
    ],
)
def test_a_malformed_entry_is_refused(text, message):
    with pytest.raises(CatalogueError, match=message):
        load_entry("mine", tomllib.loads(text))


def test_numbers_of_autoencoders_and_encoders_need_a_source():
    vae = 'kind = "derived"\nclass = "A"\nchannels = 4\nparameters = "3"\nflop_per_pixel = "1 FLOP"'
    with pytest.raises(CatalogueError, match="no source"):
        load_vaes(tomllib.loads(f"[mine]\n{vae}\n"))
    with pytest.raises(CatalogueError, match="no source"):
        load_encoders({"mine": {"kind": "derived", "parameters": "3"}})
    with pytest.raises(CatalogueError, match="wanted a table"):
        load_vaes({"mine": 3})


def test_the_decoder_of_wan_runs_at_a_believable_rate():
    """GB200 decodes 80 frames of 720p in 2.72 s (TensorRT-LLM tech blog 25): 9 % of its peak."""
    vae = read_model("wan2.2-a14b").vae
    rate = vae.flop_per_pixel * 720 * 1280 * 80 / 2.72

    assert 0.05 < rate / 2.5e15 < 0.5


def test_the_decoder_of_cosmos3_fits_beside_the_weights_as_published():
    """Peak of 46 GiB on B300 at 720p (vLLM-Omni's recipe), 28.3 GiB of it the transformer."""
    vae = read_model("cosmos3").vae
    decoded = vae.peak_bytes_per_pixel * vae.frames_at_once * 720 * 1280

    assert 8 * 2**30 < decoded < 17 * 2**30


IDS = [
    ("deepseek-ai/DeepSeek-R1", "deepseek-r1", "fp8", ()),
    ("nvidia/DeepSeek-R1-NVFP4", "deepseek-r1", "nvfp4", ("attention", "output")),
    ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-r1", "nvfp4", ("attention",)),
    ("moonshotai/Kimi-K2.5", "kimi-k2.5", "int4",
     ("attention", "output", "feed_forward", "shared")),
    ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", "fp8", ()),
    ("zai-org/GLM-5-FP8", "glm-5", "fp8", ()),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", "fp8", ()),
    ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "int4", ()),
    ("nvidia/Gemma-4-26B-A4B-NVFP4", "gemma-4-26b-a4b", "nvfp4",
     ("attention", "output", "feed_forward", "shared")),
]  # fmt: skip


@pytest.mark.parametrize(("repository", "name", "precision", "kept"), IDS)
def test_repositories_lead_to_a_model_with_their_own_weights(repository, name, precision, kept):
    model = read_model(repository.lower())

    assert (model.name, model.repository) == (name, repository)
    assert (model.quantisation.precision, model.quantisation.kept) == (precision, kept)


def test_a_model_by_its_name_has_its_usual_repository():
    assert read_model("qwen3-235b-a22b").repository == "Qwen/Qwen3-235B-A22B"
    assert read_model("qwen3-235b-a22b").quantisation is None


def test_how_weights_are_stored_may_stand_in_a_file_beside(tmp_path):
    write(tmp_path, "config.json", {"model_type": "llama", "hidden_size": 64, "vocab_size": 9,
                                    "num_hidden_layers": 1, "num_attention_heads": 2})  # fmt: skip
    stored = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write(tmp_path, "hf_quant_config.json", {"quantization": stored})

    for path in (tmp_path, tmp_path / "config.json"):
        found = read_model(path).quantisation
        assert (found.precision, found.group, found.cache) == ("nvfp4", 16, "fp8")


def test_repositories_of_quantised_weights_need_a_source_and_what_their_files_say():
    row = 'model = "llama-3.1-8b"\n'
    with pytest.raises(CatalogueError, match="got no kind"):
        list(load_repositories({}, tomllib.loads(f'["a/b"]\n{row}')))
    stored = '["a/b".quantization_config]\nquant_method = "fp8"\n'
    text = f'["a/b"]\n{row}{ENTRY}{stored}'
    (found,) = load_repositories({}, tomllib.loads(text))
    assert (found.name, found.model, found.quantization) == (
        "a/b", "llama-3.1-8b", {"quant_method": "fp8"},
    )  # fmt: skip
