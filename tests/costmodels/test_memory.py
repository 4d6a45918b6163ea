"""Bytes held at once, on programs small enough to count by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels import memory
from costmodels.program import (
    Collective,
    Loop,
    Matmul,
    Part,
    Pointwise,
    Rearrange,
    SendReceive,
    Tensor,
    Weight,
)


def tensor(name, size):
    return Tensor(name, (size,), 1)


def step(after, name, size):
    """Write `name` of `size` bytes from tensors (name, size) in `after`."""
    inputs = tuple(tensor(*one) for one in after)
    return Pointwise(function="norm", inputs=inputs, outputs=(tensor(name, size),))


def view(of, name, size):
    return Rearrange(
        move="split_features", inputs=(tensor(*of),), outputs=(tensor(name, size),), view=True
    )


def loop(*body, count=1, **more):
    return Loop(name=more.pop("name", "loop"), count=count, body=body, **more)


X, A, B, C = ("x", 10), ("a", 20), ("b", 30), ("c", 5)


@pytest.mark.parametrize(
    ("body", "peak"),
    [
        ([], 0),
        ([step([X], *A)], 30),  # x comes from outside and stays: 10 + 20
        ([step([X], *A), step([A], *B)], 60),  # 10 + 20 + 30 while b is written
        ([step([X], *A), step([A], *B), step([B], *C)], 60),  # a is gone when c is written
        ([step([X], *A), step([A], *B), step([A, B], *C)], 65),  # a is read once more
        ([step([X], *A), step([X], *A)], 30),  # written again in place
        ([step([], *A), step([], *B)], 30),  # a is read by nobody
        # a view of a keeps a: 10 + 20, then c beside both
        ([step([X], *A), view(A, "v", 20), step([("v", 20)], *B), step([("v", 20)], *C)], 60),
        # a view of a view
        ([step([X], *A), view(A, "v", 20), view(("v", 20), "w", 20), step([("w", 20)], *C)], 35),
    ],
)
def test_straight_programs_counted_by_hand(body, peak):
    assert memory.activations(loop(*body)) == peak


def test_a_loop_inside_stands_on_what_is_alive_around_it():
    """Around: x 10 and a 20, which is read later; inside: b 30 from a, then c 5 from b."""
    inside = loop(step([A], *B), step([B], *C), count=7)

    assert memory.activations(loop(step([X], *A), inside, step([A], "d", 1))) == 10 + 20 + 30 + 5


def test_a_body_that_stands_twice_counts_what_is_alive_around_each():
    """What is known of a body is used again only where the same is alive around it."""
    inside, bodies = loop(step([A], *B)), memory.Bodies()
    alone, beside = (
        loop(step([], *A), inside),
        loop(step([], *C), step([], *A), inside, view(C, "v", 5)),
    )

    found = [memory.activations(one, bodies) for one in (alone, beside, alone)]

    assert found == [20 + 30, 5 + 20 + 30, 20 + 30]


def test_the_number_of_turns_holds_no_more():
    body = (step([X], *A), step([A], *B))

    assert memory.activations(loop(*body, count=50)) == memory.activations(loop(*body))


def test_what_is_stored_is_no_activation():
    """It is counted among the caches."""
    kept = Rearrange(move="store", inputs=(tensor(*A),), outputs=(tensor("cache.a", 20),))

    assert memory.activations(loop(step([X], *A), kept)) == 30


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=8), factor=st.integers(1, 9))
def test_a_chain_holds_two_neighbours_and_its_input(sizes, factor):
    names = [f"t{place}" for place in range(len(sizes))]
    chain = list(zip(names, [size * factor for size in sizes], strict=True))
    body = [step([X] if not place else [chain[place - 1]], *one) for place, one in enumerate(chain)]

    pairs = [chain[0][1], *(one[1] + two[1] for one, two in pairwise(chain))]
    assert memory.activations(loop(*body)) == X[1] + max(pairs)


def test_sizes_may_be_arrays():
    sizes = np.array([1, 100])
    body = [
        Pointwise(
            function="norm",
            inputs=(Tensor("x", (sizes,), 2),),
            outputs=(Tensor("y", (sizes, 3), 2),),
        )
    ]

    assert list(memory.activations(loop(*body))) == [2 + 6, 200 + 600]


def product(name, rows, columns, **more):
    weight = Weight(name=name, rows=(Part(rows),), columns=(Part(columns),), **more)
    return Matmul(x=tensor("x", 1), weight=weight, out=tensor("y", 1))


def test_weights_of_layers_are_counted_layer_by_layer():
    layers = loop(product("w", 10, 20), product("v", 10, 5), count=3, layers=True)

    assert memory.weights([layers]) == 3 * (10 * 20 + 10 * 5) * 2


def test_weights_outside_the_layers_are_left_out():
    """Whoever knows the whole model counts embeddings and heads, once."""
    layers = loop(product("w", 10, 20), product("head", 10, 50, layered=False), layers=True)

    assert memory.weights([layers]) == 10 * 20 * 2


def test_steps_and_forwards_use_the_same_weights():
    layers = loop(product("w", 10, 20), count=3, layers=True)
    steps = loop(loop(layers, count=2), count=50)

    assert memory.weights([steps]) == memory.weights([layers])
    assert memory.weights([layers, layers]) == memory.weights([layers])


def test_a_share_of_a_weight_is_what_counts():
    """Columns over 4 ranks; 16 experts; 4 bits a weight, and 8 for 16 of them."""
    one = product("w", 8, 64, split="columns", degree=4, experts=16, precision="nvfp4")

    assert memory.weights([loop(one)]) == 16 * 8 * (64 / 4) * 0.5625


def test_caches_are_kept_for_every_layer_and_forward():
    kept = Rearrange(move="store", inputs=(tensor(*A),), outputs=(tensor("cache", 20),))
    layers = loop(kept, count=5, layers=True)

    assert memory.caches([layers]) == 5 * 20
    assert memory.caches([loop(layers, name="text_tower", count=2, keeps=2)]) == 2 * 5 * 20
    assert memory.caches([loop(layers, name="prefill", count=2)]) == 5 * 20
    assert (
        memory.caches([loop(loop(layers, name="forward"), loop(layers, name="forward"))]) == 5 * 20
    )


def test_one_communicator_an_axis():
    x = tensor("x", 8)
    reduction = Collective(kind="all_reduce", x=x, out=x, axis="tp", degree=2)
    gather = Collective(kind="all_gather", x=x, out=x, axis="tp", degree=2)
    send = SendReceive(x=x, out=x, axis="ring", degree=2)

    assert memory.groups([loop(product("w", 2, 2))]) == 0
    assert memory.groups([loop(reduction, gather)]) == 1
    assert memory.groups([loop(reduction), loop(loop(send))]) == 2
