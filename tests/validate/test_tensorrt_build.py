"""Networks that TensorRT's own builder accepts, reads back and serialises; no GPU is needed.

TensorRT-RTX builds for a GPU that is not there when it is told its compute capability.
"""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import testmodels

from planner.compose import objections, plans
from planner.export.harness import write_folder
from planner.export.tensorrt import tensorrt_folder
from planner.lowering.lower import lower
from planner.models import read_model
from planner.plan import Plan, parse_plan
from planner.request import Request
from planner.search import price, question_of
from planner.tensorrt.document import arrays_of, counts, document_of
from planner.tensorrt.network import Recipe, networks
from planner.tensorrt.obstacles import obstacles
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.assemble import assemble
from planner.tensorrt.runner.build import Log, Options, build, logger
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.kinds import Share
from planner.tensorrt.runner.library import is_rtx, load
from planner.tensorrt.runner.weights import drawn, learned_drawn
from planner.tensorrt.sheet import Network
from topology.catalogue import hardware
from validate.cases import Case
from validate.small import shrink
from validate.tensorrt_backend.check import check
from validate.tensorrt_backend.evaluate import Held, evaluate, together
from validate.tensorrt_backend.read_back import read_back

try:
    TRT = load()
except RunError:
    pytest.skip("neither TensorRT nor TensorRT-RTX is installed", allow_module_level=True)
if not is_rtx(TRT):
    pytest.skip("TensorRT builds on a machine with a GPU only", allow_module_level=True)

FAMILIES = (*testmodels.DIFFUSION, testmodels.llama)
PLANS = ["tp2", "ulysses4", "allgather_kv4", "allgather_kv2.ulysses2", "cfg2"]
FAST = Options(level=0, capability="SM120")


def written(model, text, recipe, **changes):
    plan = parse_plan(text)
    alone = {"passes": 1, "output_tokens": 0} if model.kind == "decoder" else {}
    work = testmodels.workload(model, batch=2, **{**alone, **changes})
    if any(objections(model, work, plan, plan.gpus)):
        pytest.skip("illegal for this model")
    return networks(lower(model, work, plan), recipe)


def share(network, rank=0, weights=None):
    return Share(
        document=document_of(network),
        arrays=arrays_of(network),
        weights=weights or drawn(),
        rank=rank,
    )


def fresh():
    builder = TRT.Builder(logger(TRT, Log()))
    typed = 1 << int(TRT.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    return builder, builder.create_network(typed)


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.name)
@pytest.mark.parametrize("text", PLANS)
def test_every_strategy_and_family_becomes_an_engine(model, text):
    for network in written(model, text, Recipe(layers=1)):
        made = build(TRT, share(network, network.ranks - 1), FAST)

        assert len(made.plan) > 10_000


@pytest.mark.parametrize("fused", [True, False], ids=["attention", "products"])
@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.name)
@pytest.mark.parametrize("text", ["tp2", "allgather_kv2.ulysses2"])
def test_what_the_library_holds_means_what_was_written(model, text, fused):
    """Read back layer by layer, weights included, and evaluated for all ranks together."""
    for network in written(model, text, Recipe(compute="fp32")):
        document, arrays = document_of(network), arrays_of(network)
        random = np.random.default_rng(0)
        inputs = {value.name: random.standard_normal(value.shape) for value in network.inputs}
        read, kept = [], []
        for rank in range(network.ranks):
            builder, empty = fresh()
            kept.append((builder, empty, assemble(TRT, empty, share(network, rank), fused=fused)))
            found = read_back(TRT, empty, document)
            held = Held(arrays={**arrays, **found.arrays}, weights=drawn(), rank=rank)
            read.append(evaluate(found.document, held, inputs))
        said = [
            evaluate(document, Held(arrays=arrays, weights=drawn(), rank=rank), inputs)
            for rank in range(network.ranks)
        ]

        for mine, theirs in zip(together(said), together(read), strict=True):
            for name, value in mine.items():
                np.testing.assert_allclose(theirs[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("text", ["tp2", "ulysses4", "allgather_kv4", "cfg2.ulysses2"])
def test_collectives_of_the_library_are_the_program_s(text):
    for network in written(testmodels.flux, text, Recipe()):
        _, empty = fresh()
        kept = assemble(TRT, empty, share(network))
        layers = [empty.get_layer(n) for n in range(empty.num_layers)]
        found = [one for one in layers if one.type == TRT.LayerType.DIST_COLLECTIVE]

        assert len(found) == sum(counts(network).values())
        assert {one.num_ranks for one in found} <= {network.ranks}
        assert kept.kept or not network.of("weight")


def test_inputs_and_outputs_are_the_program_s():
    (forward, _) = written(testmodels.flux, "ulysses4", Recipe())
    _, empty = fresh()
    kept = assemble(TRT, empty, share(forward))
    inputs = {empty.get_input(n).name: empty.get_input(n) for n in range(empty.num_inputs)}

    assert {"input.text", "input.image", "conditioning8"} < set(inputs)
    assert tuple(inputs["input.image"].shape) == (2, 24, 6)
    assert inputs["input.image"].dtype == TRT.bfloat16
    assert empty.get_output(0).name == "prediction"
    assert tuple(empty.get_output(0).shape) == (2, 24, 6)
    del kept


@pytest.mark.parametrize(
    ("precision", "capability"),
    [("fp8", "SM89"), ("fp8", "SM120"), ("int8", "SM80"), ("nvfp4", "SM120"), ("fp16", "SM80")],
)
def test_products_in_fewer_bits_become_an_engine(precision, capability):
    recipe = Recipe(compute="fp16" if precision == "fp16" else "bf16", precision=precision)
    network = written(testmodels.flux, "tp2", recipe, precision=precision)[0]

    assert build(TRT, share(network), Options(level=0, capability=capability)).plan
    if precision != "fp16":
        assert network.of("dequantize")


@pytest.mark.parametrize(
    ("precision", "capability", "said"), [("fp8", "SM80", "fp8"), ("nvfp4", "SM89", "fp4")]
)
def test_the_library_refuses_what_the_table_refuses(precision, capability, said):
    """Capabilities in the planner's table are those of the builder."""
    network = written(testmodels.wan, "single", Recipe(precision=precision), precision=precision)[0]
    name = {"SM80": "a100-sxm-80gb", "SM89": "l40s"}[capability]

    with pytest.raises(RunError, match=f"forward of rank 0: .*{said}"):
        build(TRT, share(network), Options(level=0, capability=capability))
    assert list(obstacles(testmodels.wan, Plan(), hardware(name), precision=precision))


def test_attention_on_several_devices_is_refused_by_rtx():
    """It is for data-centre Blackwell; the network is written, its shapes are right."""
    network = written(testmodels.flux, "allgather_kv4", Recipe(multi_device=True))[0]
    assert counts(network)["attention allgather_kv"] == 4

    with pytest.raises(RunError, match=r"forward of rank 0: .*RingAttention unsupported"):
        build(TRT, share(network), FAST)


def test_a_layer_of_another_shape_is_named():
    network = written(testmodels.wan, "single", Recipe())[0]
    document = document_of(network)
    layer = next(one for one in document["layers"] if one["kind"] == "matmul")
    layer["outputs"][0]["shape"][-1] += 1
    _, empty = fresh()
    wrong = Share(document=document, arrays=arrays_of(network), weights=None)

    with pytest.raises(RunError, match=rf"{layer['name']}: TensorRT makes \(.*\), wanted \["):
        assemble(TRT, empty, wrong)


def test_a_layer_that_the_library_does_not_add_is_named_with_the_cause():
    network = written(testmodels.wan, "tp2", Recipe())[0]
    document = document_of(network)
    layer = next(one for one in document["layers"] if one["kind"] == "collective")
    layer["root"] = 0  # an all-reduce has none
    log = Log()
    builder = TRT.Builder(logger(TRT, log))
    empty = builder.create_network(1 << int(TRT.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    wrong = Share(document=document, arrays=arrays_of(network), weights=None)

    with pytest.raises(RunError, match=f"{layer['name']}: TensorRT adds no collective layer: "):
        assemble(TRT, empty, wrong, cause=log.cause)


def test_a_full_model_is_assembled_in_little_time_and_memory():
    """FLUX.1 at full depth and width; weights are pages of zeros that take no memory."""
    question = question_of(Request(model="flux.1-dev", gpus=8))
    program = lower(question.model, question.workload, parse_plan("ulysses8"))
    network = networks(program, Recipe())[0]
    _, empty = fresh()

    assemble(
        TRT, empty, Share(document=document_of(network), arrays=arrays_of(network), weights=None)
    )

    assert counts(network) == {"all_to_all ulysses": 2 * 57, "all_gather ulysses": 1}
    assert empty.num_layers > 5000


MODELS = ["flux.1-dev", "wan2.1-1.3b", "hunyuanvideo", "cosmos3", "llama-3.1-8b"]


def runnable(name, gpus):
    """Plans of a model that the planner says TensorRT can run."""
    decoder = read_model(name).kind == "decoder"
    question = question_of(Request(model=name, gpus=gpus, output_tokens=1 if decoder else None))
    model, work = question.model, question.workload
    for plan in plans(model, gpus):
        illegal = any(objections(model, work, plan, gpus))
        if not illegal and not any(obstacles(model, plan, question.site.hardware)):
            yield model, work, plan


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_every_plan_that_is_called_runnable_builds(name, gpus):
    """At reduced depth and width; networks that several plans share are built once."""
    found, done = list(runnable(name, gpus)), set()
    assert found
    for model, work, plan in found:
        small, shrunk = shrink(model, work, plan)
        for network in networks(lower(small, shrunk, plan), Recipe(layers=1)):
            what = json.dumps(document_of(network), sort_keys=True)
            if what not in done:
                assert build(TRT, share(network), FAST).plan, f"{plan}: {network.name}"
            done.add(what)


@pytest.mark.parametrize("capability", ["SM80", "SM86", "SM89"])
@pytest.mark.parametrize("text", ["tp2", "ulysses2", "allgather_kv2"])
def test_older_gpus_that_have_collectives_build_too(text, capability):
    """TensorRT-RTX knows none of the data-centre's 9.0 and 10.0."""
    network = written(testmodels.flux, text, Recipe(layers=1))[0]

    assert build(TRT, share(network), Options(level=0, capability=capability)).plan


@pytest.mark.parametrize("plan", ["cfg2.ulysses2", "tp2"])
def test_a_plan_is_checked_as_far_as_this_host_can(plan, tmp_path):
    case = Case(model="wan2.1-1.3b", plan=plan)

    report = check(case, "h100-sxm", tmp_path, lambda line: None)

    assert report.passed
    assert report.number_error < 1e-6
    assert report.engines == {"cfg2.ulysses2": 2, "tp2": 3}[plan]
    assert "does not run those of several GPUs" in report.left_out[0]
    assert report.to_dict()["passed"] is True
    assert "engines:" in report.text()


@pytest.fixture
def folder(tmp_path):
    """A small FLUX.1 over two tensor-parallel ranks, exported."""
    question, plan = question_of(Request(model="flux.1-dev", gpus=2)), parse_plan("tp2")
    model, workload = shrink(question.model, question.workload, plan)
    little = replace(question, model=model, workload=workload)
    return write_folder(tensorrt_folder(little, price(little, plan)), str(tmp_path / "out"))


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
        for key, count in zip(keys, parts, strict=True):
            yield key.format(layer=layer["layer"]), (count, rows)
    for one in [one for layer in layers for one in layer.get("learned", [])]:
        keys = plan["gains" if one["kind"] == "gain" else "biases"].get(one["name"], [])
        parts = one["parts"] if len(keys) > 1 else [[1, sum(u * n for u, n in one["parts"])]]
        for key, (units, size) in zip(keys, parts, strict=False):
            yield key.format(layer=one["layer"]), (size if one["kind"] == "gain" else units * size,)


def checkpoint(folder):
    """Write a safetensors file with every tensor that there is a place for, and one without."""
    header, data = {}, b""
    for name, shape in [*tensors_of(folder), ("norm_out.linear.weight", (4, 4))]:
        raw = np.ones(shape, np.float16).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    (folder / "weights").mkdir()
    file = folder / "weights" / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


@pytest.mark.parametrize("weights", ["filler", "weights"])
def test_an_exported_folder_builds_its_engines(folder, weights):
    checkpoint(folder)
    words = ["--weights", weights, "--level", "0", "--capability", "SM120"]

    done = command(folder, "build", *words)

    assert done.returncode == 0, done.stderr
    built = sorted(path.name for path in (folder / "engines").iterdir())
    assert built == ["combine.engine", "forward.rank0.engine", "forward.rank1.engine"]
    assert "forward.rank1.engine: " in done.stdout
    said = "1 tensors of the checkpoint have no place: norm_out.linear\n"
    assert (said in done.stdout) == (weights == "weights")
    assert "2 of 2 engines built" in command(folder, "show").stdout


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_checkpoint_that_lacks_a_tensor_is_named(folder, kind):
    file, key = checkpoint(folder), f"x_embedder.{kind}"
    file.write_bytes(file.read_bytes().replace(key.encode(), b"y" + key[1:].encode()))

    done = command(folder, "build", "--weights", "weights", "--level", "0", "--capability", "SM120")

    assert done.returncode == 1
    assert done.stderr == f"runner: embed: the checkpoint has no {key}\n"
    assert not list((folder / "engines").iterdir())


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
        outs[text], plain = together(with_them), together(without)
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


def test_networks_have_only_kinds_that_are_tested():
    """A new kind of layer needs a meaning in the evaluator, and a way back from the library."""
    kinds = set()
    for model in FAMILIES:
        for network in written(model, "tp2", Recipe(precision="nvfp4"), precision="nvfp4"):
            kinds |= {layer.kind for layer in network.layers}

    assert isinstance(network, Network)
    assert kinds <= {
        "constant", "weight", "matmul", "elementwise", "unary", "activation", "reduce", "cast",
        "shuffle", "slice", "concat", "gather", "softmax", "topk", "quantize", "dequantize",
        "dynamic_quantize", "collective", "attention",
    }  # fmt: skip
