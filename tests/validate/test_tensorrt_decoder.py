"""Networks of a decoder with weights of a checkpoint against PyTorch: they compute the model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensorsfiles import safetensors

from planner.export.checkpoints import checkpoint_of
from planner.export.export import files
from planner.export.tensorrt import one_token
from planner.lowering import lower
from planner.models import read_model
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, networks_of, schedule_of
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.harness import Folder, embedding_of, given_from, weights_from
from topology.base import InputError
from validate.tensorrt.numbers import Numbers, run_networks

torch = pytest.importorskip("torch")

HIDDEN, HEADS, SHARED, SIZE, WIDE, TOKENS, LAYERS = 64, 4, 2, 16, 112, 96, 2
ROWS = 24
CONFIG = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": SHARED, "intermediate_size": WIDE,
    "vocab_size": TOKENS, "rms_norm_eps": 0.01, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "max_position_embeddings": 128,
}  # fmt: skip
SLOWED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
KINDS = {
    "llama": CONFIG,
    "llama-2": {key: value for key, value in CONFIG.items() if key != "rope_theta"},
    "llama-3.1": {**CONFIG, "rope_scaling": SLOWED},
    "tied": {**CONFIG, "tie_word_embeddings": True},
    "transformers-5": {
        **{key: value for key, value in CONFIG.items() if key != "rope_theta"},
        "rope_parameters": {**SLOWED, "rope_theta": 10000.0},
    },
    "mistral": {**CONFIG, "model_type": "mistral", "sliding_window": None},
    "qwen3": {**CONFIG, "model_type": "qwen3", "head_dim": SIZE},
}


def checkpoint(config):
    """Random weights in the layout of transformers, of a spread that keeps values near one."""
    random = np.random.default_rng(7)

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def gain(size):
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(TOKENS, HIDDEN) * 8}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        tensors |= {
            f"{start}.input_layernorm.weight": gain(HIDDEN),
            f"{start}.self_attn.q_proj.weight": matrix(HEADS * SIZE, HIDDEN) * 3,
            f"{start}.self_attn.k_proj.weight": matrix(SHARED * SIZE, HIDDEN) * 3,
            f"{start}.self_attn.v_proj.weight": matrix(SHARED * SIZE, HIDDEN),
            f"{start}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * SIZE),
            f"{start}.post_attention_layernorm.weight": gain(HIDDEN),
            f"{start}.mlp.gate_proj.weight": matrix(WIDE, HIDDEN),
            f"{start}.mlp.up_proj.weight": matrix(WIDE, HIDDEN),
            f"{start}.mlp.down_proj.weight": matrix(HIDDEN, WIDE),
        }
        if config["model_type"] == "qwen3":
            tensors[f"{start}.self_attn.q_norm.weight"] = gain(SIZE)
            tensors[f"{start}.self_attn.k_norm.weight"] = gain(SIZE)
    tensors["model.norm.weight"] = gain(HIDDEN)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(TOKENS, HIDDEN)
    return tensors


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
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(0, 1).reshape(len(ids), -1)
        x = x + out @ weights[f"{start}.self_attn.o_proj.weight"].T
        h = norm(x, f"{start}.post_attention_layernorm.weight")
        gate, up = (h @ weights[f"{start}.mlp.{one}_proj.weight"].T for one in ("gate", "up"))
        both = torch.nn.functional.silu(gate) * up
        x = x + both @ weights[f"{start}.mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return (norm(x[-1], "model.norm.weight") @ head.T).double().numpy()


def ran(folder, plan, output_tokens, inputs):
    """Scores of every rank, by the networks that are exported."""
    chosen = parse_plan(plan)
    request = Request(
        model=str(folder), gpus=chosen.gpus, input_tokens=ROWS, output_tokens=output_tokens
    )
    scenario = resolve(request)
    model, work = scenario.model, one_token(scenario.workload)
    assert model.numerics is not None
    program = lower(model, work, chosen, ordered=True)
    networks = networks_of(program, Recipe(compute="fp32", numerics=model.numerics))
    order = schedule_of(networks, program, work, chosen)
    source = weights_from(str(folder), {"model": "m", "checkpoint": checkpoint_of(model)})
    assert not [name for name in source.unused if "embed_tokens" not in name]
    given = given_from(inputs, source.embedding)
    numbers = Numbers(weights=source.weights, learned=source.learned, given=given)
    return [one[0, -1] for one in run_networks(networks, order, numbers)]


@pytest.fixture(params=KINDS)
def saved(request, tmp_path):
    """A checkpoint in a folder; its configuration, and its tensors as they were stored."""
    config = KINDS[request.param]

    def save(dtype):
        tensors = checkpoint(config)
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes(safetensors(tensors, dtype).tobytes())
        if dtype == "bf16":
            tensors = {
                name: torch.tensor(one).bfloat16().float().numpy() for name, one in tensors.items()
            }
        return tmp_path, config, tensors

    return save


def write_ids(folder, ids):
    inputs = folder / "inputs"
    inputs.mkdir()
    np.save(inputs / "prompt.tokens#0.npy", np.asarray(ids[:ROWS])[None])
    np.save(inputs / "next.tokens#0.npy", np.asarray(ids[ROWS:])[None])
    return inputs


IDS = np.random.default_rng(3).integers(0, TOKENS, ROWS + 1).tolist()


@pytest.mark.parametrize("plan", ["single", "tp2"])
@pytest.mark.parametrize("output_tokens", [0, 1])
def test_scores_are_those_of_the_model(saved, plan, output_tokens):
    folder, config, tensors = saved("fp32")
    wanted = scores(config, tensors, IDS[: ROWS + output_tokens], torch.float64)

    found = ran(folder, plan, output_tokens, write_ids(folder, IDS))

    for one in found:
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


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
