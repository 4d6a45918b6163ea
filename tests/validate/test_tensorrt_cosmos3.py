"""Networks of Cosmos 3 with weights of a checkpoint against PyTorch: they compute the model."""

import json

import pytest
from computedmodels import compared, compared_rounded, refused
from cosmos3model import CONFIG, SIZES, TOKENS, checkpoint, predicted, told

from planner.models import read_model

pytest.importorskip("torch")


@pytest.mark.parametrize("plan", ["single", "tp2", "ulysses2", "allgather_kv2", "cfg2"])
def test_a_step_is_that_of_the_model(tmp_path, plan):
    compared(tmp_path, CONFIG, checkpoint(CONFIG), told(), predicted, plan, SIZES)


@pytest.mark.parametrize("plan", ["single", "tp2", "ulysses2", "allgather_kv2", "pp2"])
def test_prompts_may_be_shorter_each_its_own(tmp_path, plan):
    """Frames count on behind the last token that there is, and no later one is read."""
    given, (some, few) = told(), (TOKENS - 2, 3)
    given |= {"input.text": given["input.text"][:, :some]}
    given |= {"input.text#1": given["input.text#1"][:, :few]}

    compared(tmp_path, CONFIG, checkpoint(CONFIG), given, predicted, plan, SIZES)


def test_a_step_of_a_checkpoint_in_16_bits_is_near(tmp_path):
    compared_rounded(tmp_path, CONFIG, checkpoint(CONFIG), told(), predicted, SIZES)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("time_embedder.linear_2.bias", "time.down"),
        ("layers.1.self_attn.norm_added_k.weight", "layers.video.rotated"),
        ("norm_moe_gen.weight", "final"),
    ],
)
def test_a_tensor_that_is_missing_is_named(tmp_path, lacks, said):
    """Though it is of the second engine."""
    found = refused(tmp_path, CONFIG, checkpoint(CONFIG), lacks, SIZES)

    assert found == f"{said}: the checkpoint has no {lacks}"


@pytest.mark.parametrize(
    "more",
    [
        {"qk_norm_for_text": False, "use_und_k_norm_for_gen": True},
        {"unified_3d_mrope_reset_spatial_ids": False},
        {"attention_bias": True},
        {"rope_axes_dim": (2, 2, 2)},
    ],
)
def test_a_model_of_other_norms_or_positions_is_not_computed(more):
    assert read_model(json.dumps(CONFIG)).numerics is not None
    assert read_model(json.dumps(CONFIG | more)).numerics is None
