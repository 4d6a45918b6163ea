"""Small checkpoints of diffusion models, networks run on them, and pieces of models in PyTorch."""

import json

import numpy as np
import pytest
from safetensorsfiles import safetensors

from planner.export.checkpoints import checkpoint_of
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, document_of, written
from planner.tensorrt.runner.errors import InputError
from planner.tensorrt.runner.harness import given_from, weights_from
from validate.tensorrt.numbers import Numbers, run_networks

try:
    import torch
except ImportError:
    torch = None


class RandomWeights:
    """Random tensors, of a spread that keeps values near one."""

    def __init__(self):
        self.tensors, self.random = {}, np.random.default_rng(7)

    def array(self, name, *shape, spread=1.0):
        self.tensors[name] = (spread * self.random.standard_normal(shape)).astype(np.float32)

    def matrix(self, name, inputs, outputs):
        self.array(f"{name}.weight", outputs, inputs, spread=1 / np.sqrt(inputs))

    def linear(self, name, inputs, outputs):
        self.matrix(name, inputs, outputs)
        self.array(f"{name}.bias", outputs, spread=0.2)

    def gain(self, name, size):
        self.tensors[name] = self.random.uniform(0.5, 1.5, size).astype(np.float32)


def save(folder, config, tensors, dtype="fp32"):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(tensors, dtype).tobytes())


def outputs(folder, given, plan, sizes):
    """Latents after one step by the networks that are exported, of every rank."""
    inputs = folder / "inputs"
    inputs.mkdir()
    for name, array in given.items():
        np.save(inputs / f"{name if '#' in name else f'{name}#0'}.npy", array)
    (networks, order), source = made(folder, plan, sizes)
    for name in order["buffers"]:
        if name.startswith("prompted#"):
            own = given.get(name.replace("prompted", "input.text"), given["input.text"])
            order["buffers"][name]["start"] = own.shape[1]
    numbers = Numbers(
        weights=source.weights,
        learned=source.learned,
        given=given_from(inputs, source.embedding, "input.text"),
    )
    return run_networks(networks, order, numbers)


def made(folder, plan, sizes):
    """Networks of a plan with their order, and the weights of the folder."""
    chosen = parse_plan(plan)
    scenario = resolve(Request(model=str(folder), gpus=chosen.gpus, **{"steps": 1, **sizes}))
    model = scenario.model
    assert model.numerics is not None
    recipe, known = Recipe(compute="fp32", numerics=model.numerics), checkpoint_of(model)
    source = weights_from(str(folder), {"model": "m", "checkpoint": known})
    assert not [one for one in source.unused if not any(key in one for key in known["unused"])]
    return written(model, scenario.workload, chosen, recipe), source


def refused(folder, config, tensors, lacks, sizes):
    """What is said of a checkpoint that lacks a tensor, before any engine is built."""
    save(folder, config, {name: array for name, array in tensors.items() if name != lacks})
    (networks, _), source = made(folder, "single", sizes)
    layers = [layer for network in networks for layer in document_of(network)["layers"]]
    with pytest.raises(InputError) as caught:
        source.check(layers)
    return str(caught.value)


def model_in(tensors, dtype):
    """Its weights, and what multiplies by one and adds its bias, if there is one."""
    weights = {name: torch.tensor(array).to(dtype) for name, array in tensors.items()}

    def linear(name, x):
        matrix = weights[f"{name}.weight"].flatten(1)
        return torch.nn.functional.linear(x.to(dtype), matrix, weights.get(f"{name}.bias"))

    return linear, weights


def compared(folder, config, tensors, given, predicted, plan, sizes):
    """Compare a step of every rank with the model in PyTorch, in 64 bits."""
    wanted = guided(config, tensors, given, predicted, torch.float64)
    assert wanted.std() > 0.1
    save(folder, config, tensors)
    for found in changes(folder, given, plan, sizes):
        latents, beside = np.split(found, [wanted.shape[-1]], axis=-1)
        np.testing.assert_allclose(latents, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
        assert not beside.any()


def guided(config, tensors, given, predicted, dtype):
    """What the model in PyTorch predicts, with the prompt and beyond what it does without."""
    linear, weights = model_in(tensors, dtype)

    def forward(number):
        own = {name: given.get(f"{name}#{number}", array) for name, array in given.items()}
        wide = dtype if dtype == torch.float64 else torch.float32
        inputs = {
            name: torch.tensor(array, dtype=wide if array.shape[-1] == 1 else dtype)
            for name, array in own.items()
        }
        return predicted(config, linear, weights, inputs).double().numpy()

    if "scale" not in given:
        return forward(0)
    return forward(1) + given["scale"] * (forward(0) - forward(1))


def changes(folder, given, plan, sizes):
    """What the networks of every rank predict, by what the step has changed."""
    main = next(name for name in given if name in ("input.image", "input.video"))
    for out in outputs(folder, given, plan, sizes):
        yield (out - given[main].astype(np.float32)) / given["change"]


def compared_rounded(folder, config, tensors, given, predicted, sizes):
    """Compare with PyTorch, which rounds every step to BF16; networks round the checkpoint."""
    wanted = guided(config, tensors, given, predicted, torch.bfloat16)
    save(folder, config, tensors, "bf16")
    (found,) = changes(folder, given, "single", sizes)
    assert np.sqrt(np.mean((found - wanted) ** 2)) < 1e-2 * np.abs(wanted).max()


def waves(number):
    """Cosines and sines of a step's number, as diffusers' embeddings.py has them."""
    each = torch.exp(-np.log(10000.0) * torch.arange(128, dtype=torch.float32) / 128)
    return torch.cat([(number * each).cos(), (number * each).sin()], -1)


def mlp(linear, start, x, activation=None):
    activation = activation or torch.nn.functional.silu
    return linear(f"{start}2", activation(linear(f"{start}1", x)))


def layer_norm(x, epsilon=1e-6):
    return torch.nn.functional.layer_norm(x.double(), x.shape[-1:], eps=epsilon).to(x.dtype)


def rms_norm(x, gain, epsilon=1e-6):
    wide = x.double()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * gain


def turned(x, angles):
    """Turn neighbouring features, ``[b, r, heads, f]`` by ``[r, f / 2]``."""
    cos, sin = (part[None, :, None] for part in (angles.cos(), angles.sin()))
    low, high = x.double().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([low * cos - high * sin, low * sin + high * cos], -1).flatten(-2).to(x.dtype)


def turned_halves(x, angles):
    """Turn both halves of heads, ``[b, r, heads, f]`` by ``[r, f / 2]``."""
    cos, sin = (torch.cat([part, part], -1)[None, :, None] for part in (angles.cos(), angles.sin()))
    low, high = x.double().chunk(2, -1)
    return (x.double() * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


def attention(q, k, v, **more):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)
    return out.transpose(1, 2).flatten(-2)
