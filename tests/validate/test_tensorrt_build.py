"""Networks that TensorRT's own builder accepts, reads back and serialises; no GPU is needed."""

import os
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import testmodels
from engines import FAST, TRT, fresh, share, written
from faketensorrt import learned_drawn
from readback import read_back

from planner.engines.tables import allowed
from planner.lowering import lower
from planner.request.plan import Plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.strategies import parse_plan
from planner.tensorrt import EngineNetwork, Recipe, arrays_of, counts, document_of
from planner.tensorrt import written as whole
from planner.tensorrt.draft import Draft
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.network import Value
from planner.tensorrt.runner.assemble import assemble
from planner.tensorrt.runner.build import Log, Options, build, logger
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.weights import drawn, filler
from topology.catalogue import find_hardware
from validate.reference import shrink
from validate.tensorrt.evaluate import Held, evaluate, run_together
from validate.tensorrt.selftest import network_of

FAMILIES = (*testmodels.DIFFUSION, testmodels.llama)
PLANS = [
    "tp2",
    "ulysses4",
    "allgather_kv4",
    "allgather_kv2.ulysses2",
    "cfg2",
    "pp2",
    "cfg2.pp2.tp2",
]


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

        for mine, theirs in zip(run_together(said), run_together(read), strict=True):
            for name, value in mine.items():
                np.testing.assert_allclose(theirs[name], value, rtol=1e-9, atol=1e-9)


COMPUTED = ("flux.1-dev", "wan2.1-1.3b", "wan2.1-i2v-14b", "cosmos3", "llama-3.1-8b", "qwen3-8b")


@pytest.mark.parametrize("name", COMPUTED)
def test_networks_that_compute_a_model_mean_in_the_library_what_was_written(name):
    """Built with norms and biases that a checkpoint could have, and read back for all ranks."""
    scenario, plan = resolve(Request(model=name, gpus=2)), parse_plan("tp2")
    model, work = shrink(scenario.model, scenario.workload, plan)
    recipe = Recipe(compute="fp32", layers=1, numerics=model.numerics)
    for network in whole(model, work, plan, recipe)[0]:
        document, arrays = document_of(network), arrays_of(network)
        learned = learned_drawn()
        shares = [replace(share(network, n), learned=learned) for n in range(network.ranks)]
        inputs = {
            value.name: np.ones(value.shape) * (value.name != "turn") for value in network.inputs
        }
        read, kept = [], []
        for rank, one in enumerate(shares):
            builder, empty = fresh()
            kept.append((builder, empty, assemble(TRT, empty, one)))
            found = read_back(TRT, empty, document)
            held = Held(arrays={**arrays, **found.arrays}, weights=drawn(), rank=rank)
            read.append(evaluate(found.document, held, inputs))
        said = [
            evaluate(
                document, Held(arrays=arrays, weights=drawn(), rank=n, learned=learned), inputs
            )
            for n in range(network.ranks)
        ]

        assert build(TRT, shares[-1], FAST).plan
        for mine, theirs in zip(run_together(said), run_together(read), strict=True):
            for key, value in mine.items():
                np.testing.assert_allclose(theirs[key], value, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize(("precision", "share_of_bf16"), [("fp8", 0.5), ("nvfp4", 9 / 32)])
def test_weights_of_fewer_bits_stay_so_in_the_engine(precision, share_of_bf16):
    """Were pairs of quantize and dequantize folded away, it would be as large as in bf16."""
    scenario = resolve(Request(model="wan2.1-1.3b"))
    sizes, held = {}, 0
    for name in ("bf16", precision):
        work = replace(scenario.workload, precision=name)
        program = lower(scenario.model, work, parse_plan("single"))
        network = networks_of(program, Recipe(layers=1, precision=name))[0]
        sizes[name] = len(build(TRT, share(network, weights=filler()), FAST).plan)
        held = held or sum(prod(one.outputs[0].shape) for one in network.of("weight"))

    saved = sizes["bf16"] - sizes[precision]
    assert saved == pytest.approx(2 * held * (1 - share_of_bf16), rel=0.1)


@pytest.mark.parametrize(
    ("precision", "capability", "said"), [("fp8", "SM80", "fp8"), ("nvfp4", "SM89", "fp4")]
)
def test_the_library_refuses_what_the_table_refuses(precision, capability, said):
    """Capabilities in the planner's table are those of the builder."""
    network = written(testmodels.wan, "single", Recipe(precision=precision), precision=precision)[0]
    name = {"SM80": "a100-sxm-80gb", "SM89": "l40s"}[capability]

    with pytest.raises(RunError, match=f"forward of rank 0: .*{said}"):
        build(TRT, share(network), Options(level=0, capability=capability))
    assert list(allowed().obstacles(Plan(), find_hardware(name), precision=precision))


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


@pytest.mark.parametrize("op", allowed().since)
def test_each_collective_by_itself_becomes_an_engine(op):
    """What doctor runs on the GPUs of a machine."""
    assert build(TRT, share(network_of(op, 2**16, 4)), FAST).plan


def test_attention_that_is_not_built_is_built_as_products():
    """One query of one head of 256 features, with its keys and values side by side."""
    query, kept, said = Value("q", (1, 1, 256), "bf16"), Value("kept", (1, 24, 512), "bf16"), []
    draft = Draft("bf16", ({},))
    halves = [draft.take(kept, start, 256, 2, "half") for start in (0, 256)]
    heads = [
        draft.shuffle(one, (1, one.shape[1], 1, 256), "heads", second=(0, 2, 1, 3))
        for one in (draft.scaled(query, 1 / 16, "small"), *halves)
    ]
    out = draft.add("attention", heads, (1, 1, 1, 256), "bf16", "out", causal=False, ranks=1)
    alone = EngineNetwork(
        name="alone", axes=(), inputs=(query, kept), outputs=(("y", out),),
        layers=tuple(draft.layers), constants=draft.constants, tables={},
    )  # fmt: skip

    assert build(TRT, share(alone), FAST, said.append).plan
    assert any("as products instead" in line for line in said)


def test_a_cache_is_written_in_place():
    """Both of Llama's engines: TensorRT builds them where input and output are one buffer."""
    scenario = resolve(Request(model="llama-3.1-8b", gpus=2, output_tokens=3))
    plan = parse_plan("tp2")
    small, work = shrink(scenario.model, scenario.workload, plan)
    for network in networks_of(lower(small, work, plan), Recipe(layers=1)):
        assert len(network.of("cache")) == 2
        assert build(TRT, share(network), FAST).plan


FULL = """
import resource, time
from engines import TRT, fresh
from planner.lowering import lower
from planner.strategies import parse_plan
from planner.request.request import Request
from planner.scenario.scenario import resolve
from planner.tensorrt import arrays_of, counts, document_of
from planner.tensorrt import Recipe
from planner.tensorrt.from_program import networks_of
from planner.tensorrt.runner.assemble import assemble
from planner.tensorrt.runner.layers import Share

began = time.process_time()
scenario = resolve(Request(model="flux.1-dev", gpus=8))
program = lower(scenario.model, scenario.workload, parse_plan("ulysses8"))
network = networks_of(program, Recipe())[0]
_, empty = fresh()
share = Share(document=document_of(network), arrays=arrays_of(network), weights=None)
kept = assemble(TRT, empty, share)
assert counts(network) == {"all_to_all ulysses": 2 * 57, "all_gather ulysses": 1}
assert empty.num_layers > 5000
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(time.process_time() - began, most)
"""


def test_a_full_model_is_assembled_in_little_time_and_memory():
    """FLUX.1 at full depth and width; weights are pages of zeros that take no memory."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    seconds, most = map(float, done.stdout.split())
    assert seconds < 120  # some, where work grows in proportion
    assert most < 2e9


@pytest.mark.parametrize("capability", ["SM80", "SM86", "SM89"])
@pytest.mark.parametrize("text", ["tp2", "ulysses2", "allgather_kv2"])
def test_older_gpus_that_have_collectives_build_too(text, capability):
    """TensorRT-RTX knows none of the data-centre's 9.0 and 10.0."""
    network = written(testmodels.flux, text, Recipe(layers=1))[0]

    assert build(TRT, share(network), Options(level=0, capability=capability)).plan


def test_networks_have_only_kinds_that_are_tested():
    """A new kind of layer needs a meaning in the evaluator, and a way back from the library."""
    kinds = set()
    for model in FAMILIES:
        for network in written(model, "tp2", Recipe(precision="nvfp4"), precision="nvfp4"):
            kinds |= {layer.kind for layer in network.layers}

    assert isinstance(network, EngineNetwork)
    assert kinds <= {
        "constant", "weight", "matmul", "elementwise", "unary", "activation", "reduce", "cast",
        "shuffle", "slice", "concat", "gather", "softmax", "topk", "quantize", "dequantize",
        "dynamic_quantize", "collective", "attention", "convolution", "reach",
    }  # fmt: skip
