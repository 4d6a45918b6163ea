"""Tensors of published checkpoints: each has its place, and a model made of them is the model."""

import json
import re
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

from planner.export.checkpoints import checkpoint_of
from planner.export.tables import checkpoints
from planner.lowering import lower
from planner.models import names, read_model
from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, written
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.runner.checkpoint import contents, from_checkpoint, learned_from, numbered
from planner.tensorrt.runner.errors import InputError
from planner.tensorrt.runner.weights import drawn, sizes
from planner.tensorrt.schedule import schedule_of
from validate.reference import run_plan, shrink
from validate.tensorrt import numbers
from validate.tensorrt.numbers import run_networks

LAYOUTS = Path(__file__).parent.parent / "checkpointlayouts.txt"
DECODERS = ("llama-3.1-8b", "mistral-large", "qwen3-8b", "mixtral-8x7b", "qwen3-235b-a22b")
LEFT_OUT = {
    "deepseek_v3", "deepseek_v32", "gemma3_text", "gemma4_text", "glm4_moe", "glm_moe_dsa",
    "gpt_oss", "kimi_k2", "llama4_text", "minimax_m2", "nemotron_h", "phi3", "qwen2",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
}  # fmt: skip
"""Families of latent attention, of layers of two kinds that take turns, of experts in 4 bits, of
biases, and whose projections a checkpoint has in one."""


def test_models_that_are_computed_are_named_where_their_tensors_are():
    computed = {model.family for model in map(read_model, names()) if model.numerics is not None}

    assert computed | {"mistral"} == {  # Mistral Large says no epsilon in the catalogue
        family for family, entry in checkpoints().items() if "computes" in entry
    }


def layouts():
    """Keys and shapes of every tensor, by model."""
    found, here = {}, {}
    for line in LAYOUTS.read_text().splitlines():
        if line.startswith("["):
            here = found[line[1:-1]] = {}
        elif line and not line.startswith("#"):
            key, *bias, shape = line.split(" ")
            shape = tuple(map(int, shape.split("x")))
            for one in every(key):
                here[one] = shape
                if bias:
                    here[one.removesuffix("weight") + "bias"] = shape[:1]
    return found


def every(key):
    """Write out ``{0..18}``."""
    pieces = re.split(r"\{(\d+)\.\.(\d+)\}", key)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(pieces[1::3], pieces[2::3], strict=True)]
    for chosen in product(*ranges):
        made = [piece + str(n) for piece, n in zip(pieces[::3], chosen, strict=False)]
        yield "".join([*made, pieces[-1]])


@cache
def wanted(model):
    """Every weight of the networks with its layer, and every place of a bias or norm.

    They are the same whatever the size of the picture.
    """
    sizes = {"height": 256, "width": 256, "frames": 1}
    if read_model(model).kind == "decoder":
        sizes = {"input_tokens": 64}
    scenario = resolve(Request(model=model, **sizes))
    model, work = scenario.model, scenario.workload
    if model.numerics is None:
        made = networks_of(lower(model, work, Plan()), Recipe())
    else:
        made = written(model, work, Plan(), Recipe(numerics=model.numerics))[0]
    found = []
    for network in made:
        for layer in (*network.layers, *network.unused):
            if layer.kind == "weight":
                found.append(("weight", layer.attributes))
            found += [(one["kind"], one) for one in layer.attributes.get("learned", [])]
    return found


LAID = layouts()


@pytest.mark.parametrize("model", LAID)
def test_every_tensor_of_a_checkpoint_has_its_place(model):
    """At full depth: no weight without tensors of its shape, no tensor that nobody speaks of."""
    laid, known = LAID[model], checkpoint_of(read_model(model))
    used = set()
    for kind, one in wanted(model):
        if kind == "weight":
            experts, rows, columns = sizes(one)
            places, parts = known["weights"][one["weight"]], [[1, columns]]
        else:
            experts, rows, columns = 1, 1, sum(units * size for units, size in one["parts"])
            places = known["gains" if kind == "gain" else "biases"].get(one["name"], [])
            parts = one["parts"]
        for expert in range(experts if places else 0):
            found = list(tensors(laid, places, one["layer"], expert))
            used |= {key for key, _ in found}
            if kind != "weight":
                found = [(key, (prod(shape),)) for key, shape in found]
            assert {prod(shape[1:]) for _, shape in found} <= {rows}, (one, found)
            assert total(kind, [shape[0] for _, shape in found], parts) in (columns, 0), (
                one,
                found,
            )
            assert found or kind == "gain"

    reasons = [re.escape(name).replace(r"\*", "[0-9]+") for name in known["unused"]]
    left = [key for key in laid if key not in used]
    assert [key for key in left if not re.search("|".join(reasons), key)] == []
    assert [one for one in reasons if not any(re.search(one, key) for key in laid)] == [] or (
        model not in WHOLE
    )


WHOLE = ("flux.1-dev", "hunyuanvideo", "mochi-1", "ltx-2", "z-image", "lumina2", "hidream-i1")
"""Of their family all that is said to be unused is there."""


def total(kind, sizes, parts):
    """Numbers of tensors end to end; what all heads share is there once."""
    if kind == "gain" and len(sizes) == len(parts):
        sizes = [
            n * size if n * size == have * n else have
            for have, (n, size) in zip(sizes, parts, strict=True)
        ]
    return sum(sizes)


def tensors(laid, places, layer, expert):
    for place in places:
        plain, _, part = place.partition("#")
        key = numbered(plain.rstrip("?"), layer, expert)
        if key in laid or not plain.endswith("?"):
            shape = laid[key]
            yield key, (shape[0] // int(part.split("/")[1] if part else 1), *shape[1:])


def test_every_model_that_has_tensors_is_known():
    """All of the catalogue but those whose tensors are not weights of ours."""
    models = [read_model(name) for name in names()]

    assert {model.family for model in models if not checkpoint_of(model)} == LEFT_OUT


def test_a_head_that_is_the_embedding_is_that_tensor():
    tied, untied = (checkpoint_of(read_model(f"llama-3.{name}")) for name in ("2-1b", "1-8b"))

    assert tied["weights"]["head"] == ["model.embed_tokens.weight"]
    assert untied["weights"]["head"] == ["lm_head.weight"]
    assert list(untied["unused"]) == ["model.embed_tokens"]
    assert not tied["unused"]


@pytest.mark.parametrize("model", [*LAID, *DECODERS])
def test_norms_and_biases_have_places(model):
    known = checkpoint_of(read_model(model))
    there = {(kind, one["name"]) for kind, one in wanted(model) if kind != "weight"}
    blocks = {block.name for block in read_model(model).blocks} | {"final", "embed", "head"}

    def here(kind):
        return {
            (kind, n)
            for n in known[{"gain": "gains", "bias": "biases"}[kind]]
            if n.split(".")[0] in blocks and "image_context" not in n
        }

    assert here("gain") <= there
    assert here("bias") <= there


def small(model, text):
    scenario = resolve(Request(model=model))
    plan = parse_plan(text)
    tiny, workload = shrink(scenario.model, scenario.workload, plan)
    return tiny, replace(workload, output_tokens=0), plan


def made_up(made, known):
    """Tensors that hold what is drawn by name, laid out as the checkpoint's are."""
    pieces = {}
    for network in made:
        for layer in network.of("weight"):
            one = {**layer.attributes, "split": "none", "degree": 1}
            full = drawn()(one, 0)
            places = known["weights"][one["weight"]]
            columns = [units * size for units, size in one["columns"]]
            for expert in range(len(full)):
                spans = (
                    columns
                    if len(places) == len(columns)
                    else [full.shape[2] // len(places)] * len(places)
                )
                ends = np.cumsum([0, *spans])
                for place, start, stop in zip(places, ends, ends[1:], strict=False):
                    plain, _, part = place.partition("#")
                    key = numbered(plain.rstrip("?"), one["layer"], expert)
                    number = int(part.split("/")[0]) if part else 0
                    pieces.setdefault(key, {})[number] = full[expert, :, start:stop].T
    return {key: np.concatenate([parts[n] for n in sorted(parts)]) for key, parts in pieces.items()}


def safetensors(given):
    header, data = {}, b""
    for name, array in given.items():
        raw = array.astype(np.float32).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    return np.frombuffer(len(text).to_bytes(8, "little") + text + data, np.uint8)


ALIKE = {"cosmos1-7b", "sd3.5-large", "hunyuanvideo-1.5", "cosmos3-edge", "wan2.1-1.3b"}
"""Of a family of which another model is here."""
CASES = [
    *[(model, "single") for model in (*LAID, *DECODERS) if model not in ALIKE],
    ("flux.1-dev", "tp2"), ("ltx-2", "tp2"), ("mochi-1", "tp2"), ("hidream-i1", "tp2"),
    ("mixtral-8x7b", "tp2"), ("cosmos3-edge", "ulysses2"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "text"), CASES)
def test_a_model_out_of_a_checkpoint_is_the_model(model, text):
    """What the unsplit model gives on weights drawn by name, networks give on tensors of them."""
    tiny, workload, plan = small(model, text)
    program = lower(tiny, workload, plan)
    made = networks_of(program, Recipe(compute="fp32"))
    known = checkpoint_of(tiny)
    given = made_up(made, known)
    weights = from_checkpoint(contents("a", safetensors(given)), known["weights"])

    order = schedule_of(made, program, workload, plan)
    outs = run_networks(made, order, replace(numbers.drawn_numbers(), weights=weights))

    whole = run_plan(tiny, workload, Plan())[0]
    for out in outs:
        np.testing.assert_allclose(out, whole[: len(out)], atol=1e-4 * np.abs(whole).max())


def test_a_tensor_that_is_no_pair_is_refused():
    tiny, workload, plan = small("mochi-1", "single")
    made = networks_of(lower(tiny, workload, plan), Recipe())
    known = checkpoint_of(tiny)
    given = made_up(made, known)
    key = "transformer_blocks.0.ff.net.0.proj.weight"
    given[key] = given[key][1:]
    weights = from_checkpoint(contents("a", safetensors(given)), known["weights"])
    up = next(
        one for one in made[0].of("weight") if one.attributes["weight"] == "joint.video.ffn.up"
    )

    with pytest.raises(InputError, match=r"is \[\d+, \d+\], wanted 2 equal parts"):
        weights(up.attributes, 0)


def test_norms_that_a_smaller_model_lacks_are_left_out():
    """Cosmos3-Edge has no norm of the text's queries and keys."""
    known = checkpoint_of(read_model("cosmos3-edge"))
    learned = learned_from({}, known["gains"], known["biases"])
    entry = {"kind": "gain", "name": "layers.text.rotated", "layer": 0, "once": False}

    assert learned(entry, 0) is None
