"""Sizes become sequence lengths as the pipelines make them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models import lengths, read_model
from topology.base import InputError

PUBLISHED = [
    # model, height, width, frames, tokens; cosmos-framework flex_attention_bench: 920 a frame
    ("cosmos3", 720, 1280, 189, 44_160),
    ("cosmos3", 480, 832, 189, 18_720),
    ("cosmos3", 192, 320, 189, 2_880),
    ("cosmos3-edge", 480, 832, 121, 12_090),
    ("cosmos3", 720, 1280, 1, 920),
    ("cosmos3", 1024, 1024, 1, 1_024),
    # NeMo's latent of 88 x 160, Predict2's state_t of 24
    ("cosmos1-7b", 704, 1280, 121, 56_320),
    ("cosmos-predict2-2b", 704, 1280, 93, 84_480),
    ("cosmos-predict2-2b-image", 768, 1360, 1, 4_080),
    ("wan2.2-a14b", 720, 1280, 81, 75_600),  # ModelTC/LightX2V seq_len
    ("wan2.1-1.3b", 480, 832, 81, 32_760),  # FastVideo MODEL_SEQLEN
    ("wan2.2-5b", 704, 1280, 121, 27_280),  # NVIDIA/TensorRT-Model-Connect num_patches
    ("cogvideox-5b", 480, 720, 49, 17_550),  # xDiT consisid_transformer_3d
    ("hunyuanvideo", 720, 1280, 129, 118_800),  # 33 x 45 x 80
    ("hunyuanvideo-1.5", 720, 1280, 121, 111_600),  # 31 x 45 x 80
    ("hunyuanvideo-1.5", 480, 848, 121, 49_290),  # 31 x 30 x 53
    ("mochi-1", 480, 848, 163, 44_520),  # 28 x 30 x 53
    ("ltx-video", 512, 704, 161, 7_392),  # 21 x 16 x 22
    ("ltx-2", 512, 768, 121, 6_144),  # 16 x 16 x 24
    ("flux", 1024, 1024, 1, 4_096),  # TensorRT-Model-Connect's flux plugin
    ("flux", 1008, 1008, 1, 3_969),  # diffusers' distributed inference guide
    ("sana-1.6b", 1024, 1024, 1, 1_024),
]


@pytest.mark.parametrize(("name", "height", "width", "frames", "tokens"), PUBLISHED)
def test_lengths_are_as_published(name, height, width, frames, tokens):
    model = read_model(name)

    assert lengths(model, height, width, frames)[model.streams[-1].name] == tokens


def test_prompts_have_their_usual_length_or_the_asked_one():
    model = read_model("sd3.5-large")

    assert lengths(model, 1024, 1024, 1)["text"] == 77 + 256
    assert lengths(model, 1024, 1024, 1, text_tokens=100)["text"] == 100


def test_streams_are_padded_as_the_model_pads_them():
    # 17 x 17 latents' patches are 289 tokens, ten times 32 is the next multiple
    assert lengths(read_model("z-image"), 272, 272, 1, text_tokens=33) == {"text": 64, "image": 320}


def test_sound_lasts_as_long_as_the_video():
    # 121 frames at 24 a second are 5.04 s, with 16000 / 160 / 4 = 25 latents a second
    assert lengths(read_model("ltx-2"), 512, 768, 121)["audio"] == 126


def test_arrays_broadcast():
    model = read_model("ltx-2")
    frames = np.array([1, 121])

    swept = lengths(model, np.array([[512], [1024]]), 768, frames)

    assert swept["video"].tolist() == [[384, 6144], [768, 12288]]
    assert swept["audio"].tolist() == [1, 126]
    assert swept["text"] == 1024


REFUSED = [
    ("wan2.1-14b", (721, 1280, 81), "height: got 721, wanted a multiple of 16 (720 or 736)"),
    ("wan2.2-5b", (720, 1280, 81), "height: got 720, wanted a multiple of 32 (704 or 736)"),
    ("ltx-video", (8, 704, 9), "height: got 8, wanted a multiple of 32 (32)"),
    ("flux", (1024, 1024, 2), "frames: got 2, wanted 1: flux.1-dev makes one image"),
    ("flux", (0, 1024, 1), "height: got 0, wanted a whole number 1 to 65536"),
    ("flux", (1024, 10**9, 1), "width: got 1000000000, wanted a whole number 1 to 65536"),
    ("wan2.1-14b", (720, 1280, -3), "frames: got -3, wanted a whole number 1 to 65536"),
    ("flux", (1024.5, 1024, 1), "height: got 1024.5, wanted a whole number 1 to 65536"),
    ("flux", (True, 1024, 1), "height: got True, wanted a whole number 1 to 65536"),
    ("llama-3.1-8b", (1024, 1024, 1), "llama-3.1-8b: got an image size, wanted a number of"),
]


@pytest.mark.parametrize(("name", "size", "message"), REFUSED)
def test_sizes_that_cannot_be_are_refused_in_one_line(name, size, message):
    with pytest.raises(InputError) as refused:
        lengths(read_model(name), *size)

    assert str(refused.value).startswith(message)


def test_arrays_with_one_bad_size_are_refused():
    with pytest.raises(InputError, match="height: got an array, wanted a multiple of 16"):
        lengths(read_model("wan2.1-14b"), np.array([720, 721]), 1280, 81)


def test_a_prompt_cannot_be_empty():
    with pytest.raises(InputError, match="text tokens: got 0"):
        lengths(read_model("flux"), 1024, 1024, 1, text_tokens=0)


@given(
    name=st.sampled_from(["cosmos3", "flux", "qwen-image", "hidream-i1"]),
    height=st.integers(16, 4096),
    width=st.integers(16, 4096),
    more=st.integers(0, 512),
)
def test_models_that_round_take_every_size_and_more_pixels_never_mean_fewer_tokens(
    name, height, width, more
):
    model = read_model(name)
    main = model.streams[-1].name

    small = lengths(model, height, width, 1)[main]

    assert 1 <= small <= lengths(model, height + more, width, 1)[main]


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("cosmos3", (720, 1280, 1), 23 * 40),  # 45 rows of latents, in twos, up
        ("flux", (1000, 1024, 1), 62 * 64),  # FluxPipeline crops to 992 x 1024
        ("flux", (1008, 1008, 1), 63 * 63),
        ("wan2.1-14b", (720, 1280, 81), 21 * 45 * 80),
        ("wan2.1-14b", (720, 1280, 80), 20 * 45 * 80),  # 77 frames
        ("hunyuanvideo", (720, 1280, 80), 20 * 45 * 80),
    ],
)
def test_sizes_are_rounded_as_pipelines_do(name, size, tokens):
    model = read_model(name)

    assert lengths(model, *size)[model.streams[-1].name] == tokens


@pytest.mark.parametrize("name", ["flux", "qwen-image", "hidream-i1"])
def test_a_picture_has_a_token_at_least(name):
    with pytest.raises(InputError, match="height: got 15, wanted 16 at least"):
        lengths(read_model(name), 15, 1024, 1)
