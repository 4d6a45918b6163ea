"""Counts of what diffusers launches: kinds of kernels, places in the code, shares of functions."""

import math

import pytest

from planner.engines.tables import find_engine
from validate.engines.diffusers_counts import (
    SAMPLES,
    Kernel,
    KernelWork,
    Known,
    Operand,
    kind_of,
    place_of,
    program_counts,
    table,
    work_of,
)

ROWS, WIDTH = 4096, 3072


def operand(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] = ()) -> Operand:
    size = {"bfloat16": 2, "float32": 4, "bool": 1}[dtype]
    dense = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return Operand(shape, strides or dense, size, dtype)


X, WIDE = operand(1, ROWS, WIDTH), operand(1, ROWS, WIDTH, dtype="float32")
GATE = operand(1, 1, WIDTH)


def kernel(name: str, inputs: tuple[Operand, ...], out: Operand, place: str = "norm") -> Kernel:
    return Kernel(name=name, inputs=inputs, outputs=(out,), place=place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "inputs", "out", "kind"),
    [
        ("add", (X, X), X, ""),
        ("mul", (X, GATE), X, "broadcast_16"),
        ("mul", (WIDE, operand(1, 1, WIDTH, dtype="float32")), WIDE, "broadcast_32"),
        ("mul", (X, WIDE), WIDE, "mixed"),
        ("_to_copy", (X,), WIDE, "widen"),
        ("_to_copy", (WIDE,), X, ""),
        ("clone", (operand(1, ROWS, WIDTH, strides=(0, 1, ROWS)),), X, "copy_strided"),
        ("cat", (X, X), operand(1, 2 * ROWS, WIDTH), ""),
        ("cat", (X, X), operand(1, ROWS, 2 * WIDTH), "interleave_16"),
        ("native_layer_norm", (X,), X, "layer_row"),
    ],
)
def test_kinds(name: str, inputs: tuple[Operand, ...], out: Operand, kind: str) -> None:
    """A kernel streams where all is flat and of one type, and not otherwise."""
    assert kind_of(kernel(name, inputs, out)) == kind


def test_work_is_bytes_or_cycles() -> None:
    """What is slower decides: a stream has bytes alone, a broadcast of few bytes cycles alone."""
    cycles = {"broadcast_16": 0.6, "layer_row": 300.0}
    assert work_of(kernel("add", (X, X), X), cycles) == KernelWork(bytes=3 * X.bytes, kernels=1)
    gated = work_of(kernel("mul", (X, GATE), X), cycles)
    assert (gated.bytes, gated.cycles) == (0.0, pytest.approx(0.6 * X.elements))
    heads = operand(1, ROWS, 24, 128)
    normed = work_of(kernel("native_layer_norm", (heads,), heads), cycles)
    assert normed.cycles == pytest.approx(300.0 * ROWS * 24)
    assert work_of(kernel("native_layer_norm", (X,), X), cycles).bytes == 2 * X.bytes


def test_masks_are_priced_with_the_attention() -> None:
    """A mask of pairs grows with the square of the tokens, as no function of a program does."""
    mask = operand(1, 1, ROWS, ROWS, dtype="bool")
    assert work_of(kernel("bitwise_and", (mask, mask), mask), {}) == KernelWork(kernels=1)


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([("", "apply_rotary_emb", ""), ("FluxAttnProcessor", "__call__", "")], "attention"),
        ([("GELU", "forward", ""), ("FeedForward", "forward", "")], "feed_forward"),
        ([("WanTransformerBlock", "forward", "x = (x.float() + y * gate_msa)")], "residual"),
        ([("Block", "forward", "x = self.norm(x) * (1 + scale) + shift")], "norm"),
        ([("AdaLayerNormZero", "forward", ""), ("FluxTransformerBlock", "forward", "")], "norm"),
    ],
)
def test_places(frames: list[tuple[str, str, str]], place: str) -> None:
    assert place_of(frames) == place


def test_shares_add_up_to_what_was_counted() -> None:
    """Bytes and kernels of a place come back from its functions; products go to attention."""
    program = Known({"norm": (8.0e6, 2), "rotary": (4.0e6, 1)}, (0.0, 0.0), 1)
    kernels = [
        kernel("add", (X, X), X),
        kernel("add", (X, X), X, "residual"),  # for which the program has no function
        *[kernel("mm", (X, X), X, "attention")] * 3,
    ]
    rows = table(kernels, program)
    assert rows["norm"][0] * 8.0e6 == pytest.approx(6 * X.bytes)
    assert rows["norm"][2] * 2 == pytest.approx(2)
    assert rows["rotary"][2] == pytest.approx(2)


def test_a_program_without_layers_has_less() -> None:
    sample = SAMPLES["mochi"]
    whole = program_counts(sample.model, sample.height, sample.width, sample.frames)
    short = program_counts(sample.model, sample.height, sample.width, sample.frames, 46)
    assert short.products < whole.products / 10
    assert short.functions.keys() == whole.functions.keys()


def test_every_sample_has_its_table() -> None:
    """What can be counted anew is in the engine's file."""
    habits = find_engine("diffusers").habits
    assert SAMPLES.keys() == habits.eager.keys()
