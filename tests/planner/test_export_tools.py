"""Texts for other tools in a TensorRT folder: scripts on stand-ins, lines by the tools' parsers."""

import json
import shlex
import subprocess
import sys
import threading
import types
from dataclasses import replace

import numpy as np
import pytest
from engineparsers import PARSERS, complaints

from planner.export.export import files
from planner.request.request import Request

SCRIPT = "tools/run_torch_tensorrt.py"
WAN = Request(model="wan2.1-1.3b", gpus=2, height=256, width=256)
LLAMA = Request(model="llama-3.1-8b", gpus=2, output_tokens=16)


def lines(found, start):
    """Commands of a README that begin with a word."""
    rows = [row.strip() for row in found["README.md"].decode().splitlines()]
    return [row for row in rows if row.startswith(start)]


class Anything:
    """What takes every call, and says of what it was."""

    def __getattr__(self, name):
        return Anything()

    def __call__(self, *words, **more):
        return Anything()

    def __getitem__(self, key):
        return Anything()

    def __iter__(self):
        return iter(())

    def keys(self):
        return ()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __eq__(self, other):
        return False

    __hash__ = None


def ran(script, monkeypatch, **own):
    """Run a script on stand-ins for what it imports; some of them are our `own`."""
    for name in (
        "torch", "torch.distributed", "torch.distributed.device_mesh", "torch.distributed.tensor",
        "torch.distributed.tensor.parallel", "torch_tensorrt", "diffusers", "diffusers.utils",
        "transformers",
    ):  # fmt: skip
        module = types.ModuleType(name)
        module.__getattr__ = lambda word: own.get(word, Anything())
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(sys, "argv", ["run", "TEXT"])
    monkeypatch.setattr("os._exit", lambda code: None)
    scope = {"__name__": "__main__"}
    exec(compile(script, "run", "exec"), scope)  # our own script
    return scope


@pytest.mark.parametrize(
    ("model", "plan", "cut"),
    [
        ("flux.1-dev", "tp2", "TensorParallelConfig(tp_degree=2)"),
        ("flux.1-dev", "ulysses2", "ContextParallelConfig(ulysses_degree=2)"),
        ("wan2.1-1.3b", "ulysses2", "ContextParallelConfig(ulysses_degree=2)"),
        ("wan2.2-a14b", "ulysses2", "ContextParallelConfig(ulysses_degree=2)"),
    ],
)
def test_a_transformer_is_cut_and_then_compiled(model, plan, cut, monkeypatch):
    request = Request(model=model, gpus=2, height=256, width=256)
    found = files(request, plan, "tensorrt")
    script, (line,) = found[SCRIPT].decode(), lines(found, "torchrun")
    calls = [row for row in script.splitlines() if row.startswith("pipe.")]

    ran(script, monkeypatch)
    called = [row.split(".")[1].split("(")[0] for row in calls]
    towers = 2 if model == "wan2.2-a14b" else 1
    assert sum(cut in row for row in calls) == towers
    assert sum('.compile(backend="torch_tensorrt"' in row for row in calls) == towers
    assert called == [*called[:towers], "to", *called[:towers]]
    assert not list(complaints(line, PARSERS["torch-tensorrt"]))


def test_a_decoder_is_cut_as_its_weights_are(monkeypatch):
    found = files(LLAMA, "tp2", "tensorrt")
    cuts, compiled = [], []

    class Model(Anything):
        def eval(self):
            return self

        def to(self, where):
            return self

        def compile(self, **more):
            compiled.append(more)

    loaded = types.SimpleNamespace(from_pretrained=lambda name, dtype: Model())
    ran(
        found[SCRIPT].decode(), monkeypatch, AutoModelForCausalLM=loaded,
        parallelize_module=lambda model, mesh, plan: cuts.append(plan),
        ColwiseParallel=lambda **more: "columns", RowwiseParallel=lambda **more: "rows",
    )  # fmt: skip

    network = json.loads(found["networks/prefill.json"])
    weights = [layer for layer in network["layers"] if layer["kind"] == "weight"]
    split = {layer["weight"].rpartition(".")[2]: layer["split"] for layer in weights}
    kinds = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "out", "gate": "up", "up": "up"}
    for module, how in cuts[0].items():
        last = module.rpartition(".")[2].removesuffix("_proj")
        assert how == split[{**kinds, "lm_head": "head"}.get(last, last)], module
    assert len(cuts[0]) == 8
    assert set(compiled[0]["options"]) <= set(PARSERS["torch-tensorrt"]["options"])


@pytest.mark.parametrize(
    ("request_", "plan", "said"),
    [
        (WAN, "cfg2", "Torch-TensorRT: the axis cfg: wanted tp"),
        (WAN, "tp2", "its transformer has no _tp_plan"),
        (replace(LLAMA, gpus=16, nodes=2), "tp16", "8 heads of keys do not divide by 16"),
        (replace(LLAMA, model="mixtral-8x7b"), "tp2", "no linear layer of transformers is known"),
        (Request(model="flux.1-dev", gpus=2), "allgather_kv2", "wanted --model FILE.onnx"),
        (Request(model="flux.1-dev", gpus=2), "ulysses2", "it shards ONNX graphs by allgather_kv"),
        (LLAMA, "tp2", "trtexec: it hands over no communicator, and every engine"),
    ],
)
def test_what_a_tool_cannot_do_is_said(request_, plan, said):
    found = files(request_, plan, "tensorrt")

    assert said in found["README.md"].decode()


def test_trtexec_times_engines_without_collectives():
    found = files(Request(model="flux.1-dev", gpus=2), "ulysses2", "tensorrt")

    (line,) = lines(found, "trtexec")
    assert "--loadEngine=engines/combine.engine" in line
    assert not list(complaints(line, PARSERS["trtexec"]))


@pytest.fixture
def graph(tmp_path):
    """A small FLUX in an ONNX file."""
    for package in ("onnx", "torch"):
        pytest.importorskip(package)
    from onnxmodels import exported

    rows = {"latents": {1: "rows"}, "prompt": {1: "words"}}
    return exported("image", "script", tmp_path / "model.onnx", dynamic_axes=rows)


def test_graphs_that_polygraphy_cannot_shard_are_said(graph, tmp_path):
    from onnxmodels import exported

    told = {
        "image": "wanted free rows, and a fixed batch",
        "video": "wanted latents as rows, and no text apart",
        "image-dynamo-23": "no mask, no one operator",
    }
    for name, said in told.items():
        kind, _, way = name.partition("-")
        path = exported(kind, way or "script", tmp_path / f"{kind}{len(way)}.onnx")
        found = files(Request(model=str(path), gpus=2), "allgather_kv2", "tensorrt")
        assert said in found["README.md"].decode()
        assert "tools/hints.json" not in found


def sharded(graph, tmp_path):
    """What polygraphy makes of a graph with the hints of a folder."""
    for package in ("polygraphy", "onnx_graphsurgeon"):
        pytest.importorskip(package)
    found = files(Request(model=str(graph), gpus=2), "allgather_kv2", "tensorrt")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "hints.json").write_bytes(found["tools/hints.json"])
    (line,) = lines(found, "polygraphy")
    build = lines(found, "trtexec --onnx")
    assert not list(complaints(line, PARSERS["polygraphy"]))
    assert not list(complaints(build[0], PARSERS["trtexec"]))
    start = "import sys; from polygraphy.tools import main; sys.exit(main())"
    words = [sys.executable, "-c", start, *shlex.split(line)[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path / "sharded.onnx"


def sorted_nodes(model):
    """Put nodes where their inputs are made: Polygraphy writes its own behind all others."""
    there = {one.name for one in [*model.graph.input, *model.graph.initializer]} | {""}
    left, nodes = list(model.graph.node), []
    while left:
        ready = [node for node in left if there.issuperset(node.input)]
        assert ready, "nodes wait for each other"
        nodes += ready
        there.update(name for node in ready for name in node.output)
        left = [node for node in left if not there.issuperset(node.output)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def test_a_graph_that_polygraphy_sharded_computes_the_same(graph, tmp_path):
    """Two ranks in numpy, each a thread that waits in every collective for the other."""
    path = sharded(graph, tmp_path)
    import onnx
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun
    from onnxmodels import MADE

    barrier, given = threading.Barrier(2, timeout=300), {}
    here = threading.local()

    class DistCollective(OpRun):
        def _run(self, x, collective_operation=None, reduce_op=None, nb_rank=None, **more):
            assert nb_rank == 2
            given[here.rank] = x
            barrier.wait()
            both = np.stack([given[0], given[1]])
            barrier.wait()
            if collective_operation == "all_gather":
                return (np.concatenate(list(both)),)
            assert (collective_operation, reduce_op) == ("reduce_scatter", "max")
            return (np.split(both.max(axis=0), 2)[here.rank],)

    random = np.random.default_rng(0)
    whole = onnx.load(str(graph))
    inputs = {
        name: random.standard_normal(one.shape).astype(np.float32)
        for name, one in MADE["image"][1].items()
    }
    wanted = ReferenceEvaluator(whole).run(None, inputs)[0]
    made = {}
    ordered = sorted_nodes(onnx.load(str(path)))

    def rank(number):
        here.rank = number
        evaluator = ReferenceEvaluator(ordered, new_ops=[DistCollective])
        made[number] = evaluator.run(None, inputs)[0]

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(2):
        np.testing.assert_allclose(made[number], wanted, rtol=1e-4, atol=1e-5)
