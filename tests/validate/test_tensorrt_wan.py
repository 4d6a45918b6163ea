"""Networks of Wan 2.1 and 2.2 with weights of a checkpoint against PyTorch: they compute it."""

import numpy as np
import pytest
from computedmodels import changes, compared, compared_rounded, guided, refused, save
from wanmodel import CONFIG, MASKED, ORIGINAL, PICTURE, SIZES, checkpoint, original, predicted, told

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("plan", ["single", "tp2", "ulysses2", "allgather_kv2", "cfg2"])
def test_a_step_is_that_of_the_model(tmp_path, plan):
    compared(tmp_path, CONFIG, checkpoint(CONFIG), told(CONFIG), predicted, plan, SIZES)


def test_latents_move_and_what_stands_beside_them_stays(tmp_path):
    compared(tmp_path, MASKED, checkpoint(MASKED), told(MASKED), predicted, "single", SIZES)


@pytest.mark.parametrize("plan", ["single", "tp2"])
def test_a_picture_beside_the_prompt_is_read(tmp_path, plan):
    compared(tmp_path, PICTURE, checkpoint(PICTURE), told(PICTURE), predicted, plan, SIZES)


@pytest.mark.parametrize("plan", ["single", "tp2"])
def test_files_of_the_first_repository_are_read(tmp_path, plan):
    """Tensors under its own names, and its own configuration."""
    tensors = checkpoint(CONFIG)
    wanted = guided(CONFIG, tensors, told(CONFIG), predicted, torch.float64)
    save(tmp_path, ORIGINAL, original(tensors))

    for found in changes(tmp_path, told(CONFIG), plan, SIZES):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_step_of_a_checkpoint_in_16_bits_is_near(tmp_path):
    compared_rounded(tmp_path, CONFIG, checkpoint(CONFIG), told(CONFIG), predicted, SIZES)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("condition_embedder.time_proj.bias", "time.mod"),
        ("condition_embedder.text_embedder.linear_1.weight", "text.up"),
        ("blocks.1.scale_shift_table", "layers.video.mod"),
        ("blocks.1.attn2.norm_k.weight", "layers.video.to_text.k_normed"),
    ],
)
def test_a_tensor_that_is_missing_is_named(tmp_path, lacks, said):
    found = refused(tmp_path, CONFIG, checkpoint(CONFIG), lacks, SIZES)

    assert found == f"{said}: the checkpoint has no {lacks}"
