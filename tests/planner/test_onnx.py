"""Models in ONNX files, as PyTorch exports them: the same as their config.json, or refused."""

import json

import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import GraphProto, ModelProto, NodeProto, TensorProto  # noqa: E402
from onnxmodels import HIDDEN, MADE, exported, looked  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from planner.api import recommend  # noqa: E402
from planner.models import read_model  # noqa: E402
from topology.base import InputError  # noqa: E402


@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, "script") for name in MADE), ("image", "dynamo"), ("decoder", "dynamo-23")],
)
def test_an_exported_model_is_that_of_its_configuration(name, way, tmp_path):
    if way.startswith("dynamo"):
        pytest.importorskip("onnxscript")
    path = exported(name, way, tmp_path / "model.onnx")

    found, wanted = read_model(path), read_model(json.dumps(MADE[name][2]))

    assert found.blocks == wanted.blocks
    assert (found.streams, found.latent) == (wanted.streams, wanted.latent)
    assert found.parameters == wanted.parameters
    assert found.assumed[-1].startswith("read from a graph as ")
    assert not any("without a place" in line for line in found.assumed)
    ranked, asked = (recommend(model, gpus=4).to_dict() for model in (found, wanted))
    assert ranked["notes"] == [f"assumed: {line}" for line in found.assumed]
    assert [row["plan"] for row in ranked["plans"]] == [row["plan"] for row in asked["plans"]]


FREE = {
    "decoder": {"tokens": {0: "batch", 1: "rows"}},
    "video": {"latents": {0: "batch", 2: "frames", 3: "height", 4: "width"}, "prompt": {1: "rows"}},
    "image": {"latents": {0: "batch", 1: "rows"}, "prompt": {1: "rows"}},
}


@pytest.mark.parametrize("name", FREE)
def test_sizes_may_be_free(name, tmp_path):
    path = exported(name, "script", tmp_path / "model.onnx", dynamic_axes=FREE[name])

    assert read_model(path).blocks == read_model(json.dumps(MADE[name][2])).blocks


def test_weights_may_lie_in_another_file_that_is_there(tmp_path):
    path = exported("decoder", "script", tmp_path / "model.onnx")
    whole = read_model(path)
    onnx.save(
        onnx.load(path), path, save_as_external_data=True, location="model.data", size_threshold=0
    )

    assert read_model(path) == whole
    (tmp_path / "model.data").unlink()
    with pytest.raises(InputError, match=r"its external data 'model\.data' is not beside it"):
        read_model(path)


def test_products_without_a_place_are_said(tmp_path):
    path = exported("decoder", "script", tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.initializer.append(weight("extra", [256, 8]))
    (out,) = model.graph.output
    model.graph.node.append(node("MatMul", [out.name, "extra"], "more"))
    onnx.save(model, path)

    said = [line for line in read_model(path).assumed if "without a place" in line]
    assert said == ["products without a place in its layers: 256 x 8 (extra)"]


def weight(name, dims):
    zeros = bytes(4 * dims[0] * dims[1])
    return TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT, raw_data=zeros)


def node(kind, inputs, out, domain=""):
    return NodeProto(op_type=kind, input=inputs, output=[out], domain=domain)


def graph(path, nodes, *, opset=17, weights=()):
    made = ModelProto(ir_version=8, graph=GraphProto(node=nodes, initializer=weights, name="graph"))
    for names, name in ((made.graph.input, "x"), (made.graph.output, "y")):
        value = names.add(name=name)
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        for size in (1, 8, 16):
            value.type.tensor_type.shape.dim.add(dim_value=size)
    for domain in {"", *(one.domain for one in nodes)}:
        made.opset_import.add(domain=domain, version=opset)
    onnx.save(made, path)
    return path


PLAIN = node("MatMul", ["x", "w"], "y")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"nodes": [PLAIN], "weights": [weight("w", [16, 16])]}, "no attention is recognised"),
        ({"nodes": [PLAIN], "weights": [weight("w", [16, 16])], "opset": 11},
         "operator set 11, wanted 13 or newer"),
        ({"nodes": [node("Mine", ["x"], "y", "me")]},
         "operator Mine of me, wanted those of ai.onnx"),
        ({"nodes": []}, "an ONNX file without nodes"),
        ({"nodes": [node("MatMul", ["x"], "y")]}, "no graph of ONNX: Node .* has input size 1"),
    ],
)  # fmt: skip
def test_a_graph_that_is_no_model_is_refused(how, said, tmp_path):
    with pytest.raises(InputError, match=said):
        read_model(graph(tmp_path / "model.onnx", **how))


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x08\x07\x12"])
def test_a_file_that_is_none_is_refused(data, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)

    with pytest.raises(InputError, match=r"model\.onnx: (no|an) ONNX file"):
        read_model(path)


class Alone(nn.Module):
    """Attention over a picture, without a prompt."""

    def __init__(self):
        super().__init__()
        self.qkvo = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(4)])

    def forward(self, x):
        q, k, v, out = self.qkvo
        return x + out(looked(q(x), k(x), v(x)))


def test_layers_of_no_class_that_is_read_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(MADE, "alone", (Alone, {"x": torch.randn(1, 8, HIDDEN)}, {}))
    path = exported("alone", "script", tmp_path / "model.onnx")

    with pytest.raises(InputError, match=r"layers of no class that is read \(1 self\); wanted"):
        read_model(path)
