"""Networks of a decoder with weights of a checkpoint against PyTorch: they compute the model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from decodermodel import (
    CONFIG,
    HEADS,
    KINDS,
    LAYERS,
    ROWS,
    SHARED,
    SIZE,
    SLOWED,
    TOKENS,
    checkpoint,
    save,
)

from planner.export.checkpoints import checkpoint_of
from planner.export.export import files
from planner.models import read_model
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, written
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.harness import Folder, embedding_of, given_from, weights_from
from planner.tensorrt.runner.texts import FILLED, Likeliest, padded
from topology.base import InputError
from validate.tensorrt.numbers import Numbers, run_networks

torch = pytest.importorskip("torch")

SHORT, TURNS = 19, 12


def frequencies(config):
    """Angles that the turns of a head grow by, as transformers' modeling_rope_utils has them."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta", 10000.0)
    plain = 1 / theta ** (torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
    if not rope:
        return plain
    context, made = rope["original_max_position_embeddings"], []
    for one in plain:
        length = 2 * torch.pi / one
        if length < context / rope["high_freq_factor"]:
            made.append(one)
        elif length > context / rope["low_freq_factor"]:
            made.append(one / rope["factor"])
        else:
            between = rope["high_freq_factor"] - rope["low_freq_factor"]
            smooth = (context / length - rope["low_freq_factor"]) / between
            made.append((1 - smooth) * one / rope["factor"] + smooth * one)
    return torch.stack(made)


def scores(config, tensors, ids, dtype):
    """Scores of the token behind `ids`, by the model in PyTorch."""
    weights = {name: torch.tensor(array).to(dtype) for name, array in tensors.items()}

    def norm(x, name):
        wide = x.float() if dtype != torch.float64 else x
        mean = wide.pow(2).mean(-1, keepdim=True)
        return weights[name] * (wide * torch.rsqrt(mean + config["rms_norm_eps"])).to(dtype)

    angles = torch.arange(len(ids), dtype=torch.float64)[:, None] * frequencies(config)
    cos, sin = (torch.cat([part, part], -1).to(dtype) for part in (angles.cos(), angles.sin()))

    def turned(x):
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-high, low], dim=-1) * sin

    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        h = norm(x, f"{start}.input_layernorm.weight")
        q, k, v = (
            (h @ weights[f"{start}.self_attn.{one}_proj.weight"].T).view(len(ids), -1, SIZE)
            for one in "qkv"
        )
        if config["model_type"] == "qwen3":
            q = norm(q, f"{start}.self_attn.q_norm.weight")
            k = norm(k, f"{start}.self_attn.k_norm.weight")
        q, k, v = turned(q.transpose(0, 1)), turned(k.transpose(0, 1)), v.transpose(0, 1)
        k, v = (one.repeat_interleave(HEADS // SHARED, dim=0) for one in (k, v))
        apart = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
        seen = (apart >= 0) & (apart < (config.get("sliding_window") or len(ids)))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out = out.transpose(0, 1).reshape(len(ids), -1)
        x = x + out @ weights[f"{start}.self_attn.o_proj.weight"].T
        h = norm(x, f"{start}.post_attention_layernorm.weight")
        gate, up = (h @ weights[f"{start}.mlp.{one}_proj.weight"].T for one in ("gate", "up"))
        both = torch.nn.functional.silu(gate) * up
        x = x + both @ weights[f"{start}.mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return (norm(x[-1], "model.norm.weight") @ head.T).double().numpy()


def ran(folder, plan, output_tokens, inputs, follow=None, lengths=(SHORT,)):
    """Scores of every rank, by the networks that are exported.

    follow : of a rank, by the embedding of the checkpoint; prompts are then of `lengths`.
    """
    chosen = parse_plan(plan)
    request = Request(
        model=str(folder), gpus=chosen.gpus, input_tokens=ROWS, output_tokens=output_tokens,
        batch=len(lengths),
    )  # fmt: skip
    scenario = resolve(request)
    model = scenario.model
    assert model.numerics is not None
    recipe = Recipe(compute="fp32", numerics=model.numerics)
    networks, order = written(model, scenario.workload, chosen, recipe)
    source = weights_from(str(folder), {"model": "m", "checkpoint": checkpoint_of(model)})
    assert not source.unused
    given = given_from(inputs, source.embedding, "prompt.tokens")
    numbers = Numbers(weights=source.weights, learned=source.learned, given=given)
    if follow is not None:
        order["buffers"][FILLED]["start"] = np.reshape(lengths, (-1, 1, 1))
        ranks = [follow(rank, source.embedding) for rank in range(chosen.gpus)]
        numbers = replace(numbers, follow=ranks)
    found = run_networks(networks, order, numbers)
    return [one[0, -1] if len(one) == 1 else one[:, -1] for one in found]


@pytest.fixture(params=KINDS)
def saved(request, tmp_path):
    """A checkpoint in a folder; its configuration, and its tensors as they were stored."""
    config = KINDS[request.param]

    def stored(dtype):
        tensors = checkpoint(config)
        save(tmp_path, config, tensors, dtype)
        if dtype == "bf16":
            tensors = {
                name: torch.tensor(one).bfloat16().float().numpy() for name, one in tensors.items()
            }
        return tmp_path, config, tensors

    return stored


def write_ids(folder, ids):
    inputs = folder / "inputs"
    inputs.mkdir()
    np.save(inputs / "prompt.tokens#0.npy", np.asarray(ids[:ROWS])[None])
    np.save(inputs / "next.tokens#0.npy", np.asarray(ids[ROWS:])[None])
    return inputs


IDS = np.random.default_rng(3).integers(0, TOKENS, ROWS + 1).tolist()


@pytest.mark.parametrize("plan", ["single", "tp2", "pp2"])
@pytest.mark.parametrize("output_tokens", [0, 1])
def test_scores_are_those_of_the_model(saved, plan, output_tokens):
    folder, config, tensors = saved("fp32")
    wanted = scores(config, tensors, IDS[: ROWS + output_tokens], torch.float64)

    found = ran(folder, plan, output_tokens, write_ids(folder, IDS))

    for one in found:
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("plan", ["single", "tp2", "pp2"])
def test_every_token_of_a_text_is_the_model_s(saved, plan):
    """Behind a prompt that is shorter than the engine takes, until the cache is full."""
    folder, config, tensors = saved("fp32")
    ids, found = list(IDS[:SHORT]), {}

    def follow(rank, embedding):
        said, most = [], TURNS + 1
        on = Likeliest(name="next.tokens", embedding=embedding, vocabulary=TOKENS, most=most)
        found[rank] = said, on.chosen
        return lambda scores: (said.append(scores[0, 0]), on(scores))[1]

    (folder / "inputs").mkdir()
    np.save(folder / "inputs" / "prompt.tokens#0.npy", np.asarray(ids)[None])
    last = ran(folder, plan, TURNS, folder / "inputs", follow)
    for turn in range(TURNS + 1):
        wanted = scores(config, tensors, ids, torch.float64)
        for rank, (said, chosen) in found.items():
            one = said[turn] if turn < TURNS else last[rank]
            np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
            assert turn == TURNS or chosen[turn] == [np.argmax(wanted)]
        ids.append(int(np.argmax(wanted)))
    assert config["tie_word_embeddings"] or len({*ids[SHORT:]}) > 3


@pytest.mark.parametrize("plan", ["single", "pp2"])
def test_prompts_of_other_lengths_go_on_side_by_side(saved, plan):
    """Each text of a batch is what the model makes of its prompt alone."""
    folder, config, tensors = saved("fp32")
    texts, found = [list(IDS[:SHORT]), list(IDS[3:5]), list(IDS[:ROWS])], {}

    def follow(rank, embedding):
        said = found[rank] = []
        on = Likeliest(name="next.tokens", embedding=embedding, vocabulary=TOKENS, most=9)
        return lambda scores: (said.append(scores[:, 0]), on(scores))[1]

    (folder / "inputs").mkdir()
    np.save(folder / "inputs" / "prompt.tokens#0.npy", padded(texts))
    inputs, turns = folder / "inputs", 4
    last = ran(folder, plan, turns, inputs, follow, [len(text) for text in texts])
    for turn in range(turns + 1):
        for sample, ids in enumerate(texts):
            wanted = scores(config, tensors, ids, torch.float64)
            for rank, said in found.items():
                one = (said[turn] if turn < turns else last[rank])[sample]
                np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
            ids.append(int(np.argmax(wanted)))


def test_scores_of_a_checkpoint_in_16_bits_are_near(saved):
    """PyTorch rounds every step to BF16; networks here round what the checkpoint holds."""
    folder, config, tensors = saved("bf16")
    wanted = scores(config, tensors, IDS[:ROWS], torch.bfloat16)

    (found,) = ran(folder, "single", 0, write_ids(folder, IDS))

    assert np.sqrt(np.mean((found - wanted) ** 2)) < 1e-2 * np.abs(wanted).max()


def test_tokens_that_a_checkpoint_has_no_rows_for_are_refused(saved):
    folder, *_ = saved("fp32")

    with pytest.raises(RunError, match=r"prompt.tokens: got 0 to 96, wanted rows of model.embed_"):
        ran(folder, "single", 0, write_ids(folder, [*IDS[: ROWS - 2], 0, TOKENS]))


def test_engines_of_drawn_weights_embed_no_tokens(tmp_path):
    rows = embedding_of(Folder(path=tmp_path, plan={}, documents=()))

    with pytest.raises(RunError, match=r"prompt\.tokens: whole numbers, and engines of drawn"):
        rows("prompt.tokens", np.zeros((1, 2), np.int64))


@pytest.mark.parametrize(
    ("more", "computed"),
    [
        ({}, True),
        ({"attention_bias": True}, False),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, False),
        ({"rms_norm_eps": None}, False),
        ({"hidden_act": "gelu"}, False),
        ({"model_type": "gemma"}, False),
    ],
)
def test_folders_say_whether_their_networks_compute_the_model(more, computed):
    request = Request(model=json.dumps(CONFIG | more), gpus=2, input_tokens=ROWS, output_tokens=1)

    found = files(request, "tp2", "tensorrt")

    said = "the networks compute the model" in found["README.md"].decode()
    assert said == json.loads(found["plan.json"])["computes"] == computed


def test_turns_that_cannot_be_slowed_are_refused():
    config = {**CONFIG, "rope_scaling": {**SLOWED, "high_freq_factor": 1.0}}

    with pytest.raises(InputError, match=r"high_freq_factor: got 1\.0, wanted more than low_freq"):
        read_model(json.dumps(config))
