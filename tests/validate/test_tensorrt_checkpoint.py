"""Weights out of safetensors files: the right part for every rank, and clear refusals."""

import json

import numpy as np
import pytest

from costmodels.ops import Part
from planner.tensorrt.runner.checkpoint import contents, from_checkpoint, learned_from, unused
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.formats import bits
from planner.tensorrt.runner.weights import filler
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


def entry(kind, name, parts, degree=1, *, once=False, number=3):
    shape = [1, 1, sum(units * size for units, size in parts) // degree]
    return {
        "kind": kind, "name": name, "layer": number, "parts": parts, "degree": degree,
        "once": once, "shape": shape,
    }  # fmt: skip


BIASES = {
    "layer.qkv": ["l.{layer}.qb", "l.{layer}.kb", "l.{layer}.vb"],
    "layer.out": ["l.{layer}.ob"],
}
GAINS = {"layer.rotated": ["l.{layer}.nq", "l.{layer}.nk"], "layer.h": ["l.{layer}.n"]}
LEARNED = {
    "l.3.qb": np.arange(8.0), "l.3.kb": np.arange(4.0) + 10, "l.3.vb": np.arange(4.0) + 20,
    "l.3.ob": np.arange(6.0), "l.3.nq": np.array([2.0, 3.0]), "l.3.nk": np.array([4.0, 5.0]),
    "l.3.n": np.arange(6.0) + 1,
}  # fmt: skip


def learned(change=lambda given: None):
    given = dict(LEARNED)
    change(given)
    return learned_from(contents("a", safetensors(given)), GAINS, BIASES)


@pytest.mark.parametrize("rank", range(2))
def test_biases_are_cut_as_the_columns_of_their_weight(rank):
    found = learned()(entry("bias", "layer.qkv", [[4, 2], [2, 2], [2, 2]], 2), rank)

    first = 4 * rank
    want = [*range(first, first + 4), 10 + 2 * rank, 11 + 2 * rank, 20 + 2 * rank, 21 + 2 * rank]
    assert found.tolist() == want


def test_a_bias_behind_a_sum_over_ranks_is_added_once():
    one = entry("bias", "layer.out", [[6, 1]], once=True)

    assert learned()(one, 0).tolist() == list(range(6))
    assert learned()(one, 1) is None


def test_a_norm_that_heads_share_is_repeated_for_each():
    found = learned()(entry("gain", "layer.rotated", [[4, 2], [2, 2]], 2), 1)

    assert found.tolist() == [2, 3, 2, 3, 4, 5]


def test_a_norm_of_all_heads_is_cut_between_ranks():
    """Wan's has a factor for every feature of every head."""

    def whole(given):
        given.update({"l.3.nq": np.arange(8.0), "l.3.nk": np.arange(4.0)})

    found = learned(whole)(entry("gain", "layer.rotated", [[4, 2], [2, 2]], 2), 1)

    assert found.tolist() == [4, 5, 6, 7, 2, 3]


def test_what_a_model_has_not_learned_is_left_out():
    assert learned()(entry("gain", "other", [[6, 1]]), 0) is None
    assert learned()(entry("bias", "layer.h", [[6, 1]]), 0) is None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda t: t.pop("l.3.kb"), "layer.qkv: the checkpoint has no l.3.kb"),
        (lambda t: t.update({"l.3.kb": np.zeros(5)}), "l.3.vb have 17 numbers, wanted 16"),
    ],
)
def test_a_wrong_bias_is_refused_by_name(change, wanted):
    with pytest.raises(RunError, match=wanted):
        learned(change)(entry("bias", "layer.qkv", [[4, 2], [2, 2], [2, 2]]), 0)


def test_tensors_without_a_place_are_named():
    keys = [*LEARNED, "l.12.qb", "l.x.qb", "time.weight"]
    known = {"weights": NAMES, "gains": GAINS, "biases": BIASES}

    assert unused(keys, known) == ["l.x.qb", "time.weight"]


def test_fillers_are_of_the_right_shape_and_none_equals_another():
    """TensorRT keeps equal weights once: engines would be smaller, and faster, than real ones."""

    def layer(name, number):
        return {
            "weight": name, "layer": number, "experts": 1, "rows": [[1, 8]], "columns": [[4, 2]],
            "split": "columns", "degree": 2,
        }  # fmt: skip

    made = [
        filler()(layer(name, number), rank)
        for name in ("up", "down")
        for number in range(3)
        for rank in range(2)
    ]

    assert {one.shape for one in made} == {(1, 8, 4)}
    assert len({one.tobytes() for one in made}) == len(made)
    assert (made[0] == filler()(layer("up", 0), 0)).all()
