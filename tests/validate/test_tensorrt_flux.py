"""Networks of FLUX.1 with weights of a checkpoint against PyTorch: they compute the model."""

import numpy as np
import pytest
from computedmodels import compared, compared_rounded, made, refused, save
from fluxmodel import CONFIG, KINDS, SIZES, checkpoint, predicted, told

from planner.tensorrt.runner.weights import drawn
from validate.tensorrt.numbers import Numbers, run_networks

pytest.importorskip("torch")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", ["single", "tp2", "ulysses2", "allgather_kv2"])
def test_a_step_is_that_of_the_model(tmp_path, kind, plan):
    config = KINDS[kind]

    compared(tmp_path, config, checkpoint(config), told(config), predicted, plan, SIZES)


def test_steps_beyond_those_exported_repeat_the_last(tmp_path):
    """As where a runner is told of more steps than the plan has, to time them."""
    save(tmp_path, CONFIG, checkpoint(CONFIG))
    (networks, order), _ = made(tmp_path, "single", {**SIZES, "steps": 2})
    read = {"turns": []}

    def given(name, forward, shape):
        if name == "change":
            return np.array([[[1.0], [0.0]]])
        return np.ones(shape)

    def watch(layer, inputs):
        if layer["name"] == "change.now":
            read["turns"].append(int(inputs[1].item()))

    numbers = Numbers(weights=drawn(), given=given, watch=watch)
    run_networks(networks, {**order, "steps": 4}, numbers)

    assert read["turns"] == [0, 1, 1, 1]


def test_a_step_of_a_checkpoint_in_16_bits_is_near(tmp_path):
    compared_rounded(tmp_path, CONFIG, checkpoint(CONFIG), told(CONFIG), predicted, SIZES)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("time_text_embed.guidance_embedder.linear_2.weight", "guidance.down"),
        ("context_embedder.weight", "text"),
        ("norm_out.linear.bias", "final.mod"),
        ("single_transformer_blocks.1.attn.norm_k.weight", "single.text+image.rotated"),
    ],
)
def test_a_tensor_that_is_missing_is_named(tmp_path, lacks, said):
    found = refused(tmp_path, CONFIG, checkpoint(CONFIG), lacks, SIZES)

    assert found == f"{said}: the checkpoint has no {lacks}"
