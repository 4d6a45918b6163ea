"""Scales of activations: measured, kept in a file, read by the exporter; or out of a checkpoint."""

import json
from dataclasses import replace

import numpy as np
import pytest
import testmodels
from faketensorrt import learned_drawn

from planner.command.cli import main
from planner.lowering import lower
from planner.request.plan import Plan
from planner.strategies import parse_plan
from planner.tensorrt import Recipe
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.runner.harness import Source
from planner.tensorrt.runner.weights import drawn, named
from planner.tensorrt.schedule import schedule_of
from validate.__main__ import main as validate_main
from validate.tensorrt.numbers import drawn_numbers, largest_activations, run_networks

WAN = {
    "_class_name": "WanTransformer3DModel", "num_attention_heads": 2, "attention_head_dim": 12,
    "num_layers": 2, "ffn_dim": 32, "in_channels": 16, "out_channels": 16, "text_dim": 24,
    "patch_size": [1, 2, 2],
}  # fmt: skip


def numbers(times=1.0):
    """Weights and inputs drawn by name, the latents larger or smaller than usual."""
    plain = drawn_numbers()

    def given(name, forward, shape):
        return plain.given(name, forward, shape) * times

    return replace(plain, given=given)


def outs(model, text, recipe, found, **changes):
    plan = parse_plan(text)
    work = testmodels.workload(model, steps=1, **changes)
    program = lower(model, work, plan)
    made = networks_of(program, recipe)
    return run_networks(made, schedule_of(made, program, work, plan), found)


@pytest.mark.parametrize("text", ["single", "tp2"])
@pytest.mark.parametrize(
    ("precision", "times", "share"),
    [
        ("fp8", 300, 0.4),  # numbers with an exponent suffer only where they clip
        ("int8", 300, 0.4), ("int8", 1, 0.5), ("int8", 0.01, 0.5),
    ],
)  # fmt: skip
def test_measured_scales_are_right_where_the_assumed_one_clips_or_drowns(
    precision, times, share, text
):
    """Inputs larger or smaller than usual; ranks share the scales of the whole model."""
    given, model = numbers(times), testmodels.wan
    exact = outs(model, "single", Recipe(compute="fp32"), given)[0]
    work = testmodels.workload(model, steps=1)
    found = largest_activations(model, work, Source(weights=drawn()), given.given)

    def error(reaches):
        recipe = Recipe(compute="fp32", precision=precision, reaches=reaches)
        out = outs(model, text, recipe, given, precision=precision)[0]
        return np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2))

    assert error(found) < share * error({})


def test_every_product_is_measured_with_norms_and_biases():
    """What a checkpoint has learned is part of what products are given."""
    model, work = testmodels.flux, testmodels.workload(testmodels.flux, steps=1)
    plain = largest_activations(model, work, Source(weights=drawn()), drawn_numbers().given)
    learned = Source(weights=drawn(), learned=learned_drawn())
    other = largest_activations(model, work, learned, drawn_numbers().given)
    program = lower(model, replace(work, precision="fp8"), Plan())
    reaches = [
        named(one.attributes["weight"], one.attributes["layer"])
        for network in networks_of(program, Recipe(precision="fp8"))
        for one in network.of("reach")
    ]

    assert set(reaches) <= set(plain)
    assert len(reaches) == len(set(reaches))
    assert plain.keys() == other.keys()
    assert plain["double.image.out@0"] != other["double.image.out@0"]


def test_a_largest_activation_is_that_of_the_rows():
    model, work = testmodels.wan, testmodels.workload(testmodels.wan, steps=1)

    found = largest_activations(model, work, Source(weights=drawn()), numbers(3.0).given)

    def most(name, shape, forward=0):
        return np.abs(numbers(3.0).given(name, forward, shape)).max()

    shapes = {one.name: tuple(map(int, one.shape)) for one in lower(model, work, Plan()).inputs}
    texts = [most("context.text", shapes["context.text"], n) for n in range(int(work.passes))]
    assert found["embed"] == pytest.approx(most("input.video", shapes["input.video"]))
    assert found["block.video.to_text.kv@0"] == pytest.approx(max(texts))


@pytest.fixture
def measured(tmp_path):
    """A small model's folder, and the file that was measured of it."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(WAN))
    sizes = ["--height", "32", "--width", "32", "--frames", "1", "--text-tokens", "8"]
    words = ["scales", "--model", str(config), *sizes, "--output", str(tmp_path / "scales.json")]
    assert validate_main(words) == 0
    return tmp_path


def export(folder, *words, precision="fp8"):
    given = ["--model", str(folder / "config.json"), "--gpus", "2", "--plan", "tp2"]
    given += ["--hardware", "l40s", "--precision", precision, "--output", str(folder / "out")]
    return main(["export", *given, *words])


def reaches(folder):
    layers = json.loads((folder / "out" / "networks" / "forward.json").read_text())["layers"]
    return [one for one in layers if one["kind"] == "reach"]


def test_an_export_takes_the_scales_of_a_file(measured):
    assert export(measured, "--scales", str(measured / "scales.json")) == 0

    largest = json.loads((measured / "scales.json").read_text())["largest"]
    found = reaches(measured)
    assert found
    assert {one["largest"] for one in found} <= set(largest.values())
    assert all(one["measured"] for one in found)
    plan = json.loads((measured / "out" / "plan.json").read_text())
    assert not [one for one in plan["cautions"] if "fewer bits" in one]


def test_an_export_without_says_what_it_assumes(measured):
    assert export(measured) == 0

    found = reaches(measured)
    plan = json.loads((measured / "out" / "plan.json").read_text())
    assert {one["largest"] for one in found} == {16.0}
    assert [one for one in plan["cautions"] if one.startswith(f"{len(found)} products in fewer")]


def spoil(change):
    def spoilt(path):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return spoilt


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text("[1]"), "wanted an object"),
        (spoil(lambda d: d.pop("largest")), "wanted what python -m validate scales writes"),
        (
            spoil(lambda d: d["largest"].update(embed=10**400)),
            "got a number of more than 38 digits",
        ),
        (spoil(lambda d: d["largest"].update(embed="1")), "embed: got '1', wanted a number"),
        (lambda path: path.write_text("{"), "not JSON: Expecting property name"),
        (spoil(lambda d: d.update(model="other")), "got schema 1 of other, wanted schema 1 of"),
        (spoil(lambda d: d["largest"].update(embed=-1)), "embed: got -1, wanted a number"),
        (
            spoil(lambda d: d["largest"].pop("layers.video.qkv@1")),
            "products, such as layers.video.qkv@1",
        ),
    ],
)
def test_a_file_that_is_not_the_model_s_is_refused(measured, capsys, change, said):
    change(measured / "scales.json")

    assert export(measured, "--scales", str(measured / "scales.json")) == 2

    line = capsys.readouterr().err
    assert line.startswith("planner: --scales ")
    assert said in line
    assert line.count("\n") == 1
    assert not (measured / "out").exists()


def test_products_of_16_bits_take_no_scales(measured, capsys):
    assert export(measured, "--scales", str(measured / "scales.json"), precision="bf16") == 2
    assert "got --precision bf16, wanted fp8, nvfp4 or int8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", "nowhere"], "nowhere: No such file or directory"),
        (["--height", "31"], "height"),
        (["--batch", "x"], "--batch"),
    ],
)
def test_what_cannot_be_measured_is_one_line(measured, capsys, words, said):
    config = str(measured / "config.json")
    output = str(measured / "other.json")

    assert validate_main(["scales", "--model", config, *words, "--output", output]) == 2

    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not (measured / "other.json").exists()


def test_inputs_come_from_a_folder(measured):
    """Numbers that were drawn are only a stand-in for those of a request."""
    np.save(measured / "input.text#0.npy", np.full((1, 8, 24), 50.0, np.float32))
    given = {"--model": measured / "config.json", "--inputs": measured, "--frames": 1}
    given |= {"--height": 32, "--width": 32, "--text-tokens": 8}
    words = [str(word) for pair in given.items() for word in pair]

    assert validate_main(["scales", *words, "--output", str(measured / "b.json")]) == 0

    largest = json.loads((measured / "b.json").read_text())["largest"]
    assert largest["text.up"] == 50
