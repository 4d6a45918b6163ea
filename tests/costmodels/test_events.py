"""The event engine: streams keep their order, messages wait for all of their ranks."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costmodels.events import Task, contended_links, fair_paces, in_order, run
from topology.base import ModelError

SECONDS = st.floats(0.0, 10.0)
USES = st.dictionaries(st.integers(0, 3), st.floats(0.05, 1.0), max_size=3).map(
    lambda shares: tuple(shares.items())
)


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
                uses=draw(USES) if message else (),
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


def test_two_rings_on_one_link_share_it():
    """Two of one second, the second from half-way: each at half its pace while both run."""
    one = Task(ranks=(0, 1), stream="comm", seconds=1.0, message=True, uses=((0, 1.0),))
    other = Task(
        ranks=(2, 3), stream="comm", seconds=1.0, issued=0.5, message=True, uses=((0, 1.0),)
    )

    assert run([one, other]).end == pytest.approx([1.5, 2.0], abs=1e-12)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8), st.floats(0.0, 0.9))
def test_a_full_link_carries_all_that_is_sent_and_no_more(seconds, taken):
    """Messages that each want all of a link, of which others have a part: it never rests."""
    sent = [
        Task(ranks=(n,), stream="comm", seconds=time, message=True, uses=((0, 1.0),))
        for n, time in enumerate(seconds)
    ]
    found = run(sent, taken={0: taken})

    assert found.seconds == pytest.approx(sum(seconds) / (1 - taken))
    order = sorted(range(len(sent)), key=lambda number: seconds[number])
    assert [found.end[number] for number in order] == sorted(found.end)


@given(works())
def test_it_ends_between_the_longest_chain_and_the_sum(tasks):
    """Where nothing shares a link or an engine, work that waits for work is all that takes time."""
    plain = [
        Task(
            ranks=t.ranks, stream=t.stream, seconds=t.seconds, after=t.after, issued=t.issued,
            message=t.message,
        )
        for t in tasks
    ]  # fmt: skip
    ends: list[float] = []
    last: dict[tuple[int, str], float] = {}
    for task in plain:
        before = [ends[n] for n in task.after if set(plain[n].ranks) & set(task.ranks)]
        before += [last.get((rank, task.stream), 0.0) for rank in task.ranks]
        ends.append(max(task.issued, *before) + task.seconds)
        last |= {(rank, task.stream): ends[-1] for rank in task.ranks}
    found = run(plain)

    assert found.end == pytest.approx(ends)  # each chain, by hand
    latest = max(task.issued for task in plain)
    assert max(ends) <= latest + sum(task.seconds for task in plain) + 1e-9


def test_a_schedule_of_three_ranks_and_four_operations():
    """By hand: the link of the messages is full from 2 to 5 s, so that the first ends at 4 s.

    It has run alone for a second, and then at a pace of 1 / 1.5 for its other 4/3 s; the second
    has 2/3 s left when it is alone again. Beside the first, compute of rank 0 keeps half its pace.
    """
    work = [
        Task(ranks=(0, 1), stream="comm", seconds=7 / 3, issued=1.0, message=True, beside=0.5,
             uses=((7, 0.75), (8, 0.2))),
        Task(ranks=(0,), stream="compute", seconds=3.0),
        Task(ranks=(2,), stream="compute", seconds=2.0),
        Task(ranks=(2,), stream="comm", seconds=2.0, after=(2,), message=True,
             uses=((7, 0.75), (9, 1.0))),
    ]  # fmt: skip

    found = run(work)

    assert found.start == pytest.approx([1.0, 0.0, 0.0, 2.0], abs=1e-12)
    assert found.end == pytest.approx([4.0, 4.5, 2.0, 4.0 + 2 / 3], abs=1e-12)


@given(st.lists(USES, max_size=8), st.lists(st.floats(0.0, 0.9), min_size=4, max_size=4))
@example([(), ((2, 1.0),)], [0.0, 0.0, 2.5e-11, 0.0])
def test_shares_are_max_min_fair(wanted, traffic):
    """A pace below 1 passes a full link on which nobody is faster; no link carries too much."""
    paces = fair_paces(dict(enumerate(wanted)), dict(enumerate(traffic)))
    carried = {
        link: traffic[link]
        + sum(paces[n] * dict(uses).get(link, 0.0) for n, uses in enumerate(wanted))
        for link in range(4)
    }

    assert all(total <= 1 + 1e-9 for total in carried.values())
    for number, uses in enumerate(wanted):
        fastest = {
            link: max(paces[n] for n, other in enumerate(wanted) if link in dict(other))
            for link, _ in uses
        }
        assert paces[number] == 1.0 or any(
            carried[link] >= 1 - 1e-6 and paces[number] >= fastest[link] - 1e-6 for link, _ in uses
        )


@given(works())
def test_links_that_are_never_full_need_no_notice(tasks):
    full = contended_links(tasks)
    fewer = [
        Task(
            ranks=t.ranks, stream=t.stream, seconds=t.seconds, after=t.after, issued=t.issued,
            beside=t.beside, message=t.message, uses=tuple(u for u in t.uses if u[0] in full),
        )
        for t in tasks
    ]  # fmt: skip

    assert run(fewer).end == pytest.approx(run(tasks).end)


@given(works())
def test_work_of_a_lone_stream_is_as_it_is_beside_another(tasks):
    """It goes on to the next message at once; beside a stream that has nothing it is looked at."""
    lanes = in_order(tasks)
    beside = {(rank, "none"): [] for rank, _ in lanes}

    assert run(tasks, {**lanes, **beside}) == run(tasks, lanes)


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
