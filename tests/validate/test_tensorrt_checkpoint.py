"""Weights out of safetensors files: the right part for every rank, and clear refusals."""

import json

import numpy as np
import pytest

from costmodels.ops import Part
from planner.tensorrt.runner.checkpoint import contents, from_checkpoint
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.numbers import bits
from validate.reference.weights import own_features

NAMES = {"layer.qkv": ["l.{layer}.q", "l.{layer}.k", "l.{layer}.v"], "layer.out": ["l.{layer}.o"]}
TYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def safetensors(tensors, dtype="fp32"):
    """A file's bytes: the length of its table of contents, the table, the numbers."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = bits(array.astype(np.float32), dtype).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": TYPES[dtype], "shape": list(array.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    return np.frombuffer(len(text).to_bytes(8, "little") + text + data, np.uint8)


def layer(name, rows, columns, split="none", degree=1, number=3):
    return {
        "weight": name,
        "layer": number,
        "rows": [[part.units, part.size] for part in rows],
        "columns": [[part.units, part.size] for part in columns],
        "split": split,
        "degree": degree,
        "experts": 1,
    }


def tensors(seed=0):
    random = np.random.default_rng(seed)
    return {
        "l.3.q": random.standard_normal((8, 6)),
        "l.3.k": random.standard_normal((4, 6)),
        "l.3.v": random.standard_normal((4, 6)),
        "l.3.o": random.standard_normal((6, 8)),
    }


QKV = (Part(4, 2), Part(2, 2), Part(2, 2))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("rank", range(4))
def test_each_rank_reads_its_heads(rank, dtype):
    """Queries are cut in four, keys and values in two that are each read by two ranks."""
    given = tensors()
    weights = from_checkpoint(contents("a", safetensors(given, dtype)), NAMES)

    share = weights(layer("layer.qkv", (Part(6),), QKV, "columns", 4), rank)

    whole = np.concatenate([given["l.3.q"], given["l.3.k"], given["l.3.v"]]).T
    want = whole[:, own_features(QKV, 4, rank)]
    assert share.shape == (1, 6, 2 + 2 + 2)
    np.testing.assert_allclose(share[0], want, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("rank", range(2))
def test_each_rank_reads_its_rows(rank):
    given = tensors()
    weights = from_checkpoint(contents("a", safetensors(given)), NAMES)

    share = weights(layer("layer.out", (Part(4, 2),), (Part(6),), "rows", 2), rank)

    np.testing.assert_allclose(share[0], given["l.3.o"].T[4 * rank : 4 * rank + 4], rtol=1e-6)


@pytest.mark.parametrize("rank", range(3))
def test_what_is_beyond_the_end_of_a_ffn_is_zero(rank):
    """Gate and value of 7 columns over three ranks: 3, 3 and 1 with two columns of zeros."""
    random = np.random.default_rng(0)
    gate, up, down = (random.standard_normal(shape) for shape in ((7, 6), (7, 6), (6, 7)))
    given = {"g": gate, "u": up, "d": down}
    names = {"up": ["g", "u"], "down": ["d"]}
    weights = from_checkpoint(contents("a", safetensors(given)), names)

    both = weights(layer("up", (Part(6),), (Part(7), Part(7)), "columns", 3), rank)[0]
    back = weights(layer("down", (Part(7),), (Part(6),), "rows", 3), rank)[0]

    here = slice(3 * rank, 3 * rank + 3)
    count = len(gate[here])
    np.testing.assert_allclose(both[:, :count], gate[here].T, rtol=1e-6)
    np.testing.assert_allclose(both[:, 3 : 3 + count], up[here].T, rtol=1e-6)
    np.testing.assert_allclose(back[:count], down.T[here], rtol=1e-6)
    assert not both[:, count:3].any()
    assert not both[:, 3 + count :].any()
    assert not back[count:].any()


def test_a_convolution_s_kernel_is_a_matrix():
    """Wan's patches: [columns, channels, 1, 2, 2] is [columns, channels * 4]."""
    kernel = np.random.default_rng(0).standard_normal((5, 3, 1, 2, 2))
    weights = from_checkpoint(contents("a", safetensors({"p": kernel})), {"embed": ["p"]})

    share = weights(layer("embed", (Part(12),), (Part(5),), number=-1), 0)

    np.testing.assert_allclose(share[0], kernel.reshape(5, 12).T, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda t: t.pop("l.3.k"), "layer.qkv: the checkpoint has no l.3.k"),
        (lambda t: t.update({"l.3.k": np.zeros((4, 7))}), r"layer.qkv: l.3.k is \[4, 7\], wanted"),
        (lambda t: t.update({"l.3.k": np.zeros((5, 6))}), "have 17 rows, wanted 16"),
    ],
)
def test_a_wrong_checkpoint_is_refused_by_name(change, wanted):
    given = tensors()
    change(given)
    weights = from_checkpoint(contents("a", safetensors(given)), NAMES)

    with pytest.raises(RunError, match=wanted):
        weights(layer("layer.qkv", (Part(6),), QKV), 0)


def test_a_weight_without_tensors_is_refused():
    with pytest.raises(RunError, match="other: no tensors are known"):
        from_checkpoint({}, NAMES)(layer("other", (Part(1),), (Part(1),)), 0)


@pytest.mark.parametrize(
    "raw",
    [b"", b"short", b"\xff" * 40, b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b"{not json"],
)
def test_a_file_that_is_none_is_refused(raw):
    with pytest.raises(RunError, match=r"a\.safetensors: "):
        contents("a.safetensors", np.frombuffer(raw, np.uint8))


def test_a_file_that_is_cut_short_is_refused():
    with pytest.raises(RunError, match=r"l\.3\.o: .* bytes, wanted 192; the file may be cut short"):
        contents("a", safetensors(tensors())[:-8])


def test_a_type_that_is_not_read_is_named():
    text = json.dumps({"x": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    raw = len(text).to_bytes(8, "little") + text + bytes(8)

    with pytest.raises(RunError, match="a: x: stored as I64, wanted one of BF16, F16, F32"):
        contents("a", np.frombuffer(raw, np.uint8))
