"""The event engine: streams keep their order, messages wait for all of their ranks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.events import Task, in_order, run
from topology.base import ModelError

SECONDS = st.floats(0.0, 10.0)


@st.composite
def works(draw):
    """Tasks of up to four ranks, messages among them, in an order that every rank keeps."""
    ranks = draw(st.integers(1, 4))
    made = []
    for number in range(draw(st.integers(1, 14))):
        message = ranks > 1 and draw(st.booleans())
        members = draw(st.sets(st.integers(0, ranks - 1), min_size=1 + message, max_size=ranks))
        mine = tuple(sorted(members)) if message else (min(members),)
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        made.append(
            Task(
                ranks=mine,
                stream=draw(st.sampled_from(["compute", "comm"])) if message else "compute",
                seconds=draw(SECONDS),
                after=tuple(sorted(after)),
                issued=draw(SECONDS),
                beside=draw(st.floats(0.1, 1.0)),
                message=message,
            )
        )
    return made


@given(works())
def test_streams_keep_their_order_and_nothing_starts_early(tasks):
    found = run(tasks)

    for numbers in in_order(tasks).values():
        for one, other in pairwise(numbers):
            assert found.end[one] <= found.start[other]
    for number, task in enumerate(tasks):
        start = found.start[number]
        assert start >= task.issued
        assert start == max(found.came[number])
        for before in task.after:
            if set(tasks[before].ranks) & set(task.ranks):
                assert found.end[before] <= start


@given(works())
def test_it_takes_no_less_than_the_work_of_a_stream_and_ends(tasks):
    found = run(tasks)

    for (rank, stream), numbers in in_order(tasks).items():
        work = sum(tasks[number].seconds for number in numbers)
        assert found.seconds >= work * (1 - 1e-9), (rank, stream)
    for number, task in enumerate(tasks):
        assert found.end[number] - found.start[number] >= task.seconds * (1 - 1e-9) - 1e-12


@given(works(), st.integers(0, 13), SECONDS)
def test_ranks_that_never_overlap_only_lose_by_more_work(tasks, which, more):
    """With one stream a rank there is no interference: more work is never faster."""
    plain = [
        Task(ranks=t.ranks, stream="compute", seconds=t.seconds, message=t.message) for t in tasks
    ]
    number = which % len(plain)
    longer = [
        Task(ranks=t.ranks, stream="compute", seconds=t.seconds + more, message=t.message)
        if place == number
        else t
        for place, t in enumerate(plain)
    ]

    assert run(longer).seconds >= run(plain).seconds * (1 - 1e-9)


def test_compute_keeps_a_part_of_its_pace_beside_a_message():
    send = Task(ranks=(0, 1), stream="comm", seconds=2.0, beside=0.25, message=True)
    work = [Task(ranks=(rank,), stream="compute", seconds=2.0) for rank in (0, 1)]

    found = run([send, *work])

    # half a second of it in the two of the message, and the rest behind
    assert found.end == pytest.approx([2.0, 3.5, 3.5])


def test_messages_that_meet_on_a_rank_share_its_links():
    """Two of one second, the second from half-way: each at half its pace while both run."""
    one = Task(ranks=(0, 1), stream="comm", seconds=1.0, message=True)
    other = Task(ranks=(1, 2), stream="compute", seconds=1.0, issued=0.5, message=True)

    assert run([one, other]).end == pytest.approx([1.5, 2.0])


def test_a_message_starts_when_its_last_rank_has_come():
    work = [Task(ranks=(rank,), stream="compute", seconds=1.0 + rank) for rank in (0, 1)]
    meet = Task(ranks=(0, 1), stream="compute", seconds=1.0, message=True)

    found = run([*work, meet])

    assert found.came[2] == (1.0, 2.0)
    assert (found.start[2], found.end[2]) == (2.0, 3.0)


def test_tasks_that_wait_for_each_other_are_said():
    crossed = [
        Task(ranks=(0,), stream="compute", seconds=1.0, after=(1,)),
        Task(ranks=(0,), stream="comm", seconds=1.0, after=(0,)),
    ]

    with pytest.raises(ModelError, match="2 of 2 tasks wait for each other"):
        run(crossed)
