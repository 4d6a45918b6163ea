"""How much of a collective is hidden beside compute, and where rows stand in a cut stream."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collectives import OPS
from costmodels.overlap import hidden_share
from costmodels.program import Span
from costmodels.program.rows import positions


@pytest.mark.parametrize("kind", OPS)
def test_every_collective_hides_a_part_of_itself(kind):
    """Never all of it: its kernels take multiprocessors and power from the compute."""
    shares = hidden_share(kind, np.array([1e-6, 1e-4, 1e-3, 1.0]))

    assert shares[0] == 0
    assert 0 < shares[1] < shares[2] < shares[3] < 1


@pytest.mark.parametrize(
    ("kind", "seconds", "low", "high"),
    [
        ("send_recv", 94e-6, 0.14, 0.21),
        ("send_recv", 266e-6, 0.48, 0.54),
        ("all_gather", 73e-6, 0.10, 0.15),
        ("all_gather", 166e-6, 0.30, 0.35),
        ("all_reduce", 93e-6, 0.11, 0.23),
        ("all_to_all", 150e-6, 0.24, 0.37),
    ],
)
def test_small_messages_hide_little(kind, seconds, low, high):
    """Shares beside products and attention, on 2 x H100 and 2 x H200."""
    assert low - 0.06 <= hidden_share(kind, seconds) <= high + 0.06


@st.composite
def cuts(draw):
    """A stream cut over one to three axes, finer cuts of the plan inside."""
    names = draw(st.lists(st.sampled_from(["ring", "ulysses", "kv"]), unique=True, max_size=3))
    axes = tuple((name, draw(st.integers(2, 4))) for name in names)
    parts = math.prod(degree for _, degree in axes)
    grain = parts * draw(st.integers(1, 3)) if axes else 1
    tokens = draw(st.integers(1, 200))
    return Span("video", tokens, axes, grain, zigzag=bool(axes) and draw(st.booleans()))


def every_rank(span):
    """The rows of every rank, by its indices along the axes."""
    shape = [degree for _, degree in span.axes]
    for place in np.ndindex(*shape):
        index = {axis: int(i) for (axis, _), i in zip(span.axes, place, strict=True)}
        yield positions(span, index)


@given(span=cuts())
def test_ranks_hold_every_row_once(span):
    held = np.concatenate(list(every_rank(span)))

    assert sorted(held[held >= 0]) == list(range(span.tokens))


@given(span=cuts())
def test_every_rank_holds_as_many_rows_and_padding_is_short(span):
    rows = list(every_rank(span))

    assert {row.size for row in rows} == {span.rows}
    padding = sum(int((row < 0).sum()) for row in rows)
    assert padding < (2 * span.grain if span.zigzag else span.grain)


@given(span=cuts())
def test_putting_rows_together_undoes_a_cut(span):
    """Ranks along the innermost axis hold, one after the other, what the span without it holds."""
    if not span.axes or (span.zigzag and len(span.axes) == 1):
        return
    axis, degree = span.axes[-1]
    outer = {name: 0 for name, _ in span.axes[:-1]}
    pieces = [positions(span, {**outer, axis: index}) for index in range(degree)]
    together = np.concatenate(pieces)

    whole = positions(span.within(axis), outer)
    assert list(together[together >= 0]) == list(whole[whole >= 0])


@given(span=cuts())
def test_a_later_stream_starts_where_it_says(span):
    later = Span(span.stream, span.tokens, span.axes, span.grain, span.zigzag, start=1000)
    for here, there in zip(every_rank(span), every_rank(later), strict=True):
        assert list(there) == [row + 1000 if row >= 0 else -1 for row in here]
