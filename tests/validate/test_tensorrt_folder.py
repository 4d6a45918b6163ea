"""Exported folders: engines, weights and norms of checkpoints in them."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import testmodels
from engines import FAST, TRT, fresh, share, written
from faketensorrt import learned_drawn
from readback import read_back

from planner.export.files import write_folder
from planner.export.tensorrt import tensorrt_folder
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.search.evaluate import price
from planner.strategies import parse_plan
from planner.tensorrt import Recipe, document_of
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.assemble import assemble
from planner.tensorrt.runner.build import build
from planner.tensorrt.runner.external_weights import is_outside, read, writer
from planner.tensorrt.runner.formats import encoded
from planner.tensorrt.runner.weights import drawn
from topology.base.table import terminal
from validate.plans.cases import Case
from validate.reference import shrink
from validate.tensorrt.check import How, check
from validate.tensorrt.evaluate import Held, evaluate, run_together


@pytest.mark.parametrize("plan", ["cfg2.ulysses2", "tp2"])
def test_a_plan_is_checked_as_far_as_this_host_can(plan, tmp_path):
    case = Case(model="wan2.1-1.3b", plan=plan)

    report = check(case, "h100-sxm", tmp_path, lambda line: None)

    assert report.passed
    assert report.number_error < 1e-6
    assert report.engines == {"cfg2.ulysses2": 2, "tp2": 3}[plan]
    assert "does not run those of several GPUs" in report.left_out[0]
    said = report.to_dict()
    assert said["passed"] is True
    assert [said[name] for name in ("error", "bound", "step_s", "predicted_s")] == [None] * 4
    assert "engines:" in terminal(report.parts())


def test_a_plan_is_checked_with_weights_beside_its_engines(tmp_path):
    case = Case(model="wan2.1-1.3b", plan="tp2")

    within, beside = (
        check(case, "h100-sxm", tmp_path, lambda line: None, How(outside=outside))
        for outside in (False, True)
    )

    assert within.engines == beside.engines == 3
    assert 0 < beside.engine_bytes != within.engine_bytes


@pytest.fixture(scope="module")
def exported():
    """Files of a small FLUX.1 over two tensor-parallel ranks."""
    scenario, plan = resolve(Request(model="flux.1-dev", gpus=2)), parse_plan("tp2")
    model, workload = shrink(scenario.model, scenario.workload, plan)
    little = replace(scenario, model=model, workload=workload)
    return tensorrt_folder(little, price(little, plan))


@pytest.fixture
def folder(exported, tmp_path):
    """A folder of them, to damage."""
    return write_folder(exported, str(tmp_path / "out"))


def command(folder, *words):
    argv = [sys.executable, "-m", "runner", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def tensors_of(folder):
    """Key and shape of every tensor that the plan's weights, norms and biases are made of."""
    plan = json.loads((folder / "plan.json").read_text())["checkpoint"]
    layers = json.loads((folder / "networks" / "forward.json").read_text())["layers"]
    for layer in [one for one in layers if one["kind"] == "weight"]:
        rows, columns = (sum(u * n for u, n in layer[key]) for key in ("rows", "columns"))
        keys = plan["weights"][layer["weight"]]
        parts = [u * n for u, n in layer["columns"]] if len(keys) > 1 else [columns]
        for key, count in zip(keys if "#" not in keys[0] else keys[:1], parts, strict=True):
            yield key.partition("#")[0].format(layer=layer["layer"]), (count, rows)
    for one in [one for layer in layers for one in layer.get("learned", [])]:
        keys = plan["gains" if one["kind"] == "gain" else "biases"].get(one["name"], [])
        parts = one["parts"] if len(keys) > 1 else [[1, sum(u * n for u, n in one["parts"])]]
        for key, (units, size) in zip(keys, parts, strict=False):
            plain = key.partition("#")[0]
            yield (
                plain.format(layer=one["layer"]),
                (size if one["kind"] == "gain" else units * size,),
            )


def checkpoint(folder):
    """Write a safetensors file with every tensor that there is a place for, and one without."""
    header, data = {}, b""
    for name, shape in [*tensors_of(folder), ("spare.weight", (4, 4))]:
        raw = np.ones(shape, np.float16).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    (folder / "weights").mkdir()
    file = folder / "weights" / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


QUICK = ("--level", "0", "--capability", "SM120")


@pytest.mark.parametrize(
    ("weights", "keep", "beside"),
    [
        ("filler", [], False),
        ("filler", ["--keep", "file"], True),
        ("weights", [], True),
        ("weights", ["--keep", "engine"], False),
        ("weights", ["--streaming"], False),
    ],
)
def test_an_exported_folder_builds_its_engines(folder, weights, keep, beside):
    """Numbers of a checkpoint lie beside the engines; made-up ones within, as do all if asked."""
    checkpoint(folder)

    done = command(folder, "build", "--weights", weights, *keep, *QUICK)

    assert done.returncode == 0, done.stderr
    built = {path.name for path in (folder / "engines").iterdir()}
    engines = {"combine.engine", "forward.rank0.engine", "forward.rank1.engine", "built.json"}
    assert built == engines | ({f"forward.rank{n}.weights" for n in range(2)} if beside else set())
    assert "forward.rank1.engine: " in done.stdout
    said = "1 tensors of the checkpoint have no place: spare\n"
    assert (said in done.stdout) == (weights == "weights")
    assert "2 of 2 engines built" in command(folder, "show").stdout


def test_engines_that_are_there_are_said_and_kept(folder):
    command(folder, "build", *QUICK)
    before = (folder / "engines" / "forward.rank0.engine").stat()
    (folder / "engines" / "forward.rank1.engine").unlink()

    done = command(folder, "build", *QUICK)

    assert done.returncode == 0, done.stderr
    assert "forward.rank0.engine: there already\n" in done.stdout
    assert "forward.rank1.engine: there already" not in done.stdout
    assert (folder / "engines" / "forward.rank0.engine").stat() == before
    assert "2 of 2 engines built" in command(folder, "show").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", "weights"], "built with --weights drawn, got "),
        (["--keep", "file"], "built with --keep engine, got file"),
        (["--streaming"], "built with --streaming False, got True"),
    ],
)
def test_engines_that_were_built_otherwise_are_not_taken_for_those_asked_for(folder, words, said):
    """A checkpoint's numbers beside made-up ones of another rank would give wrong results."""
    checkpoint(folder)
    command(folder, "build", *QUICK)

    done = command(folder, "build", *words, *QUICK)
    anew = command(folder, "build", *words, "--again", *QUICK)

    assert done.returncode == 2
    assert re.fullmatch(rf"runner: .*engines/\S+: {said}.*; --again builds it anew\n", done.stderr)
    assert anew.returncode == 0, anew.stderr
    assert "there already" not in anew.stdout
    assert json.loads((folder / "engines" / "built.json").read_text())["level"] == 0


def test_weights_within_an_engine_leave_no_file_beside_it(folder):
    """One that an earlier build left would be of another engine."""
    checkpoint(folder)
    command(folder, "build", "--weights", "weights", *QUICK)

    command(folder, "build", "--weights", "filler", "--again", *QUICK)

    left = {path.name for path in (folder / "engines").iterdir() if path.suffix == ".weights"}
    assert left == set()


def test_streamed_weights_are_in_the_engine(folder):
    done = command(folder, "build", "--streaming", "--keep", "file")

    assert done.returncode == 2
    assert done.stderr == "runner: --keep: got file, wanted engine with --streaming\n"


@pytest.mark.parametrize(
    ("precision", "text"), [("bf16", "tp2"), ("bf16", "ulysses2"), ("fp8", "tp2"), ("int8", "tp2")]
)
def test_weights_beside_an_engine_are_its_rank_s_share(precision, text, tmp_path):
    """What the library reads as inputs means what the constants would."""
    recipe = Recipe(precision=precision, layers=1)
    network = written(testmodels.flux, text, recipe, precision=precision)[0]
    for rank in range(network.ranks):
        file = bytearray()
        mine = share(network, rank)
        _, empty = fresh()
        assemble(TRT, empty, replace(mine, outside=writer(mine.document, file.extend)))
        found = read("weights", np.frombuffer(bytes(file), np.uint8))

        inputs = {empty.get_input(n).name: empty.get_input(n) for n in range(empty.num_inputs)}
        weights = [one for one in mine.document["layers"] if is_outside(one)]
        starts = {one.name: one.start for one in found.weights}
        assert {one["name"] for one in weights} == set(starts) <= set(inputs)
        for layer in weights:
            dtype = layer["outputs"][0]["dtype"]
            want = encoded(drawn()(layer, rank), layer["encoding"], dtype)["values"]
            start = starts[layer["name"]]
            got = found.data[start : start + want.nbytes].view(want.dtype)
            np.testing.assert_array_equal(got.reshape(want.shape), want)
            assert tuple(inputs[layer["name"]].shape) == want.shape


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int8", "nvfp4"])
@pytest.mark.parametrize("model", ["flux", "wan", "cosmos3", "sana", "llama"])
def test_engines_that_read_their_weights_are_built(model, precision):
    """Of every family and width of weights; nothing that is large stays within."""
    recipe = Recipe(precision=precision, layers=1)
    for network in written(getattr(testmodels, model), "tp2", recipe, precision=precision):
        file = bytearray()
        mine = replace(share(network, 1), outside=writer(document_of(network), file.extend))

        assert build(TRT, mine, FAST).plan


@pytest.mark.parametrize("known", [None, 7.0])
def test_a_checkpoint_s_scales_of_activations_are_the_engine_s(known):
    """Where the exporter measured none; 16 where neither knows."""
    recipe = Recipe(precision="fp8", layers=1, reaches={"block.video.out@0": 3.0})
    network = written(testmodels.wan, "tp2", recipe, precision="fp8")[0]
    mine = replace(share(network), reaches=lambda layer: known)
    _, empty = fresh()
    kept = assemble(TRT, empty, mine)

    layers = [empty.get_layer(n) for n in range(empty.num_layers)]
    found = {}
    for one in layers:
        if one.name.startswith("reach."):
            one.__class__ = TRT.IConstantLayer
            found[one.name] = float(np.array(one.weights).item())
    wanted = {one.name: (known or 16.0) / 448 for one in network.of("reach")}
    assert found == pytest.approx({**wanted, "reach.block.video.out@0": 3 / 448})
    del kept


MEASURED = """
import os, sys, threading
from pathlib import Path
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.build import Options

def anonymous():
    text = Path("/proc/self/status").read_text()
    return next(int(one.split()[1]) for one in text.splitlines() if one.startswith("RssAnon"))

most, done = [0], threading.Event()

def look():
    while not done.wait(0.002):
        most[0] = max(most[0], anonymous())

folder = harness.open_folder(sys.argv[1])
options = Options(level=0, capability="SM120", outside=sys.argv[2] == "file")
watch = threading.Thread(target=look)
watch.start()
harness.load()
harness.build_all(folder, harness.weights_from("filler", folder.plan), options, lambda line: None)
done.set()
watch.join()
print(most[0] * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux' own counts")
def test_a_build_holds_less_than_its_weights(tmp_path):
    """Six of Wan's thirty layers, 0.56 GB: the builder copies what it is given as constants."""
    scenario, plan = resolve(Request(model="wan2.1-1.3b", gpus=2)), parse_plan("ulysses2")
    (block,) = scenario.model.blocks
    model = replace(scenario.model, blocks=(replace(block, count=6),))
    little = replace(scenario, model=model)
    files = tensorrt_folder(little, price(little, plan))
    held, weights = {}, 0
    for keep in ("engine", "file"):
        folder = write_folder(files, str(tmp_path / keep))
        words = [sys.executable, "-c", MEASURED, str(folder), keep]
        held[keep] = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        weights = max(path.stat().st_size for path in (folder / "engines").iterdir())

    assert weights > 500e6
    assert held["engine"] > 1.2 * weights
    assert held["file"] < 0.6 * weights


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_checkpoint_that_lacks_a_tensor_is_named(folder, kind):
    file, key = checkpoint(folder), f"x_embedder.{kind}"
    file.write_bytes(file.read_bytes().replace(key.encode(), b"y" + key[1:].encode()))

    done = command(folder, "build", "--weights", "weights", "--level", "0", "--capability", "SM120")

    assert done.returncode == 2
    assert done.stderr == f"runner: embed: the checkpoint has no {key}\n"
    assert not (folder / "engines").exists()


@pytest.mark.parametrize("name", ["flux", "wan", "llama"])
def test_biases_and_norms_stand_where_they_belong(name):
    """Two ranks give what one gives, with weights, biases and norms drawn by name."""
    outs = {}
    for text in ("single", "tp2"):
        network = written(getattr(testmodels, name), text, Recipe(compute="fp32"))[0]
        with_them, without = [], []
        for rank in range(network.ranks):
            mine = replace(share(network, rank), learned=learned_drawn())
            with_them.append(read_and_evaluated(network, mine))
            without.append(read_and_evaluated(network, replace(mine, learned=None)))
        outs[text], plain = run_together(with_them), run_together(without)
        both = zip(outs[text], plain, strict=True)
        assert max(np.abs(a[key] - b[key]).max() for a, b in both for key in a) > 0.1

    (key,) = [key for key in outs["single"][0] if not key.startswith("keep")][:1]
    for mine in outs["tp2"]:
        np.testing.assert_allclose(mine[key], outs["single"][0][key], rtol=1e-4, atol=1e-4)


def read_and_evaluated(network, mine):
    """What the library's own layers give, on inputs that depend on their names alone."""
    builder, empty = fresh()
    kept = assemble(TRT, empty, mine)
    found = read_back(TRT, empty, mine.document)
    held = Held(arrays={**mine.arrays, **found.arrays}, weights=drawn(), rank=mine.rank)
    inputs = {
        value.name: np.random.default_rng(len(value.name)).standard_normal(value.shape)
        for value in network.inputs
    }
    del builder, kept
    return evaluate(found.document, held, inputs)


def test_numbers_that_are_held_on_disk_make_the_same_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "PAGE", 64)
    network = written(testmodels.wan, "single", Recipe())[0]
    with (tmp_path / "scratch").open("w+b") as file, (tmp_path / "engine").open("wb") as engine:
        held = replace(share(network), hold=lambda array: harness.on_disk(file, array))
        made = build(TRT, held, FAST, write=engine.write)

    whole = build(TRT, share(network), FAST).plan
    assert made.plan == b""
    assert (tmp_path / "scratch").stat().st_size > 0
    assert (tmp_path / "engine").stat().st_size == pytest.approx(len(whole), rel=0.01)


def test_a_full_disk_is_what_the_build_says():
    network = written(testmodels.wan, "single", Recipe())[0]

    def write(piece):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        build(TRT, share(network), FAST, write=write)
