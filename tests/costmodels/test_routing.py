"""Counting where tokens go: against draws, and the laws that any routing keeps."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.expert_routing import Routing, expert_loads, exponent_of
from topology.base import InputError

DRAWS = 4000


@cache
def drawn(routing):
    """Draw the experts of many tokens."""
    dice = np.random.default_rng(7)
    inside = routing.experts // routing.groups
    tokens = []
    for _ in range(DRAWS):
        chosen = dice.choice(routing.groups, routing.top_groups, replace=False)
        open_to = (chosen[:, None] * inside + np.arange(inside)).ravel()
        tokens.append(dice.choice(open_to, routing.top_k, replace=False))
    return np.array(tokens)


@pytest.mark.parametrize("parts", [1, 2, 8, 32, 256])
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (8, 4), (2, 1)])
def test_ranks_that_a_token_reaches_are_those_of_draws(parts, groups, top_groups):
    routing = Routing(experts=256, top_k=8, groups=groups, top_groups=top_groups)
    met = np.sort(drawn(routing) // (routing.experts // parts))
    reached = np.mean(1 + np.count_nonzero(np.diff(met), axis=1))
    assert routing.reached(parts) == pytest.approx(reached, rel=0.03)


def test_benchmarks_spread_a_token_over_as_many_ranks_as_it_has_experts():
    routing = Routing(experts=256, top_k=8, spread=True)
    assert [routing.reached(parts) for parts in (4, 8, 64)] == [4, 8, 8]


routings = st.builds(
    Routing,
    experts=st.sampled_from([16, 64, 256]),
    top_k=st.sampled_from([1, 2, 8]),
    exponent=st.sampled_from([0.0, 0.8, 1.0, 1.01, 1.2]),
)


@given(routings, st.sampled_from([1.0, 16.0, 1024.0, 65536.0]))
def test_every_token_is_counted_once_for_each_of_its_experts(routing, tokens):
    loads = expert_loads(tokens, routing)
    assert loads.size == routing.experts
    assert loads.sum() == pytest.approx(tokens * routing.top_k)
    assert loads.max() <= tokens * (1 + 1e-9)
    assert np.all(np.diff(loads) <= 1e-9)


@given(routings, st.sampled_from([2, 8, 16]), st.booleans())
def test_the_busiest_part_has_at_least_a_mean_share_and_at_most_all(routing, parts, once):
    excess = routing.excess(4096.0, parts, once=once)
    assert 1 - 1e-9 <= excess <= parts + 1e-9


def test_more_skew_makes_the_busiest_rank_busier():
    excess = [
        Routing(experts=256, top_k=8, exponent=exponent).excess(65536.0, 32, once=True)
        for exponent in (0.0, 1.01, 1.2)
    ]
    assert 1 == excess[0] < excess[1] < excess[2]


def test_many_sizes_at_once_are_those_one_by_one():
    routing = Routing(experts=64, top_k=4, exponent=1.2)
    sizes = np.array([1.0, 100.0, 5000.0])
    alone = [routing.excess(float(size), 8, once=True) for size in sizes]
    assert np.allclose(routing.excess(sizes, 8, once=True), alone, rtol=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Routing(experts=8, top_k=9), "experts of a token: got 9 of 8"),
        (lambda: Routing(experts=8, top_k=5, groups=2), "got 5 of 8, in 1 of 2 groups"),
        (lambda: exponent_of("zipf"), "distribution: got 'zipf', wanted balanced"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(make, message):
    with pytest.raises(InputError, match=message):
        make()


@given(
    parts=st.sampled_from([2, 4, 8, 16]), each=st.integers(1, 4), tokens=st.integers(64, 65536),
)  # fmt: skip
def test_copies_of_popular_experts_never_make_the_busiest_rank_busier(parts, each, tokens):
    """They share what one expert took; nobody is below the mean, and no token is lost."""
    plain = Routing(experts=64, top_k=4, exponent=1.2)
    copied = replace(plain, copies=each * parts)

    before, after = (float(one.busiest(tokens, parts).sum()) for one in (plain, copied))

    assert tokens * 4 / parts <= after * (1 + 1e-9)
    assert after <= before * (1 + 1e-9)
    assert len(copied.busiest(tokens, parts)) == 64 // parts + each
