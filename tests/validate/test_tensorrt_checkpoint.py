"""Weights out of safetensors files: the right part for every rank, and clear refusals."""

import json

import numpy as np
import pytest
from safetensorsfiles import safetensors

from costmodels.program import Part
from planner.tensorrt.runner.checkpoint import (
    check_all,
    contents,
    from_checkpoint,
    learned_from,
    reaches_from,
    unused,
    with_scales,
)
from planner.tensorrt.runner.errors import InputError, RunError
from planner.tensorrt.runner.formats import bits, encoded, floats
from planner.tensorrt.runner.weights import filler
from validate.reference.weights import own_features

NAMES = {"layer.qkv": ["l.{layer}.q", "l.{layer}.k", "l.{layer}.v"], "layer.out": ["l.{layer}.o"]}


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
    with pytest.raises(RunError, match=r"l\.3\.o: 184 bytes, wanted 192; .* cut short"):
        contents("a", safetensors(tensors())[:-8])


def test_a_type_that_is_not_read_is_named():
    text = json.dumps({"x": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    raw = len(text).to_bytes(8, "little") + text + bytes(8)

    with pytest.raises(RunError, match="a: x: stored as I64, wanted one of BF16, F16, F32, F8"):
        contents("a", np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("x", {"shape": [2], "data_offsets": [-8, 0]}),
        ("x", {"shape": [-2], "data_offsets": [0, -8]}),
        ("x", {"shape": [2.0], "data_offsets": [0, 8]}),
        ("x", {"shape": [2], "data_offsets": [False, 8]}),
        ("x\x1b[31m", {"shape": [2], "data_offsets": [0, 8]}),
    ],
)
def test_a_place_that_cannot_be_is_refused(name, given):
    text = json.dumps({name: {"dtype": "F32", **given}}).encode()
    raw = len(text).to_bytes(8, "little") + text + bytes(8)

    with pytest.raises(RunError, match=r"^a: its table of contents cannot be read$"):
        contents("a", np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "the checkpoint has no rows"),
        ({"rows": np.ones(4)}, r"rows is \[4\], wanted \[tokens, numbers\]"),
    ],
)
def test_an_embedding_is_looked_up_before_anything_is_built(tensors, said):
    known = {"weights": {}, "embeddings": {"tokens": ["rows"]}}

    with pytest.raises(RunError, match=said):
        check_all(contents("a", safetensors(tensors)), known, [])


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


EIGHT = {"qkv": ["l.{layer}.q.weight", "l.{layer}.k.weight"], "half": ["l.{layer}.q.weight#1/2"]}
"""Two weights side by side, and the second half of one."""


def eight_bits(scales, rows=260, columns=192):
    """Weights in 8 bits with scales of some kind, and what they stand for."""
    random = np.random.default_rng(0)
    given, whole = {}, []
    for name in ("q", "k"):
        kept = floats(
            bits(random.standard_normal((rows, columns)).astype(np.float32) * 99, "fp8"), "fp8"
        )
        shape, block = {
            "tensor": ((), (rows, columns)), "one": ((1,), (rows, columns)),
            "rows": ((rows, 1), (1, columns)), "flat": ((rows,), (1, columns)),
            "blocks": ((3, 2), (128, 128)),
        }[scales]  # fmt: skip
        scale = random.uniform(0.001, 0.01, shape).astype(np.float32)
        suffix = "weight_scale_inv" if scales == "blocks" else "weight_scale"
        given |= {f"l.3.{name}.weight": kept, f"l.3.{name}.{suffix}": scale}
        spread = scale if scales == "blocks" else scale.reshape(-1, 1)
        for axis in range(2):
            spread = np.repeat(spread, block[axis], axis)
        whole.append(kept * spread[:rows, :columns])
    return given, whole


@pytest.mark.parametrize("scales", ["tensor", "one", "rows", "flat", "blocks"])
def test_weights_in_8_bits_are_read_with_their_scales(scales):
    given, (q, k) = eight_bits(scales)
    found = with_scales(contents("a", safetensors(given, "fp8")))
    weights = from_checkpoint(found, EIGHT)

    both = weights(layer("qkv", (Part(192),), (Part(130, 2), Part(130, 2)), "columns", 2), 1)
    half = weights(layer("half", (Part(192),), (Part(130),)), 0)

    np.testing.assert_allclose(both[0], np.concatenate([q[130:], k[130:]]).T, rtol=1e-6)
    np.testing.assert_allclose(half[0], q[130:].T, rtol=1e-6)
    assert unused(given, {"weights": EIGHT}) == []


def test_weights_in_8_bits_stay_as_they_are_in_8_bits():
    """One scale a tensor, whose largest number is the largest of the format: nothing is rounded."""
    given, _ = eight_bits("tensor")
    given["l.3.q.weight"][0, 0] = 448
    weights = from_checkpoint(
        with_scales(contents("a", safetensors(given, "fp8"))), {"q": EIGHT["qkv"][:1]}
    )

    parts = encoded(weights(layer("q", (Part(192),), (Part(260),)), 0), "fp8", "fp8")

    np.testing.assert_array_equal(parts["values"][0], bits(given["l.3.q.weight"].T, "fp8"))
    np.testing.assert_allclose(parts["scale"], given["l.3.q.weight_scale"], rtol=1e-6)


@pytest.mark.parametrize(
    ("scale", "wanted"),
    [
        (np.ones((7, 1)), r"weight_scale: \[7, 1\], wanted \[1\], \[260, 1\] or \[3, 2\]"),
        (np.full(1, np.nan), "weight_scale: a scale is no number"),
    ],
)
def test_scales_that_fit_no_weight_are_refused(scale, wanted):
    given, _ = eight_bits("tensor")
    given["l.3.q.weight_scale"] = scale

    with pytest.raises(InputError, match=wanted):
        with_scales(contents("a", safetensors(given, "fp8")))


def test_the_largest_activation_of_a_product_is_the_largest_of_its_tensors():
    """Queries and keys read the same rows; calibrations write a scale for each."""
    given, _ = eight_bits("tensor")
    given |= {"l.3.q.input_scale": np.array(0.01), "l.3.k.input_scale": np.array(0.02)}
    given |= {f"l.3.e.{n}.input_scale": np.array(0.1 * (n + 1)) for n in range(3)}
    names = {**EIGHT, "up": ["l.{layer}.e.{expert}.weight"], "dot": ["l.{layer}.bias"]}
    reach = reaches_from(contents("a", safetensors(given, "fp8")), names)

    assert reach({"weight": "qkv", "layer": 3}) == pytest.approx(0.02 * 448)
    assert reach({"weight": "up", "layer": 3}) == pytest.approx(0.3 * 448)
    assert reach({"weight": "qkv", "layer": 4}) is None
    assert reach({"weight": "other", "layer": 3}) is None


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
