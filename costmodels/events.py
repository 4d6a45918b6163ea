"""Run the work of many ranks as events: streams in order, and messages that ranks meet in.

A rank has streams. Tasks of one stream run one after another, in the order given, once what they
wait for is done and a host has issued them. A message belongs to several ranks and starts when it
has come up on all of them. While it runs, compute beside it keeps a part of its pace, and messages
that want more of a link than there is go on at paces that are max-min fair.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final

from topology.base import ModelError
from topology.base.values import dataclass

Lane = tuple[int, str]
"""A stream of a rank."""
Uses = tuple[tuple[int, float], ...]
"""Numbers of links, and the share of each that a message takes while nothing holds it up."""
Traffic = Mapping[int, float]
"""Numbers of links, and the part of each that others take."""
NO_TRAFFIC: Final[Traffic] = MappingProxyType({})
_LOOK, _BEGIN = -1, -2
"""Versions of events that end nothing: a host has issued a task, a message begins."""
_FULL_SHARE: Final = 1 + 2.0**-30
"""What messages may want of a link together before one of them is held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work of a rank, or of the ranks that exchange a message.

    seconds : on its own. after : numbers of tasks that must be done; each rank waits for its own.
    issued : seconds at which hosts have issued it. beside : share of its pace that compute keeps
    while this message runs. uses : links that it loads.
    """

    ranks: tuple[int, ...]
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    issued: float = 0.0
    beside: float = 1.0
    message: bool = False
    uses: Uses = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """When each task started and ended, and when it had come up on each of its ranks."""

    start: Sequence[float]
    end: Sequence[float]
    came: Sequence[tuple[float, ...]]

    @property
    def seconds(self) -> float:
        """When the last one was done."""
        return max(self.end, default=0.0)


def in_order(tasks: Sequence[Task]) -> dict[Lane, list[int]]:
    """Put tasks on their ranks' streams in the order in which they are given."""
    lanes: dict[Lane, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        for rank in task.ranks:
            lanes[rank, task.stream].append(number)
    return lanes


def fair_paces(wanted: Mapping[int, Uses], taken: Traffic = NO_TRAFFIC) -> dict[int, float]:
    """Share links among messages: no pace can rise without one that is no higher falling.

    All rise together up to their own pace, 1; those that pass a link that is full then stop.

    taken : parts of links that are not theirs.

    References
    ----------
    Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2.

    Examples
    --------
    Two rings that take all of link 0, and a message that takes half of links 0 and 1:

    >>> fair_paces({1: ((0, 1.0),), 2: ((0, 1.0),), 3: ((0, 0.5), (1, 0.5)), 4: ((1, 0.9),)})
    {1: 0.4, 2: 0.4, 3: 0.4, 4: 0.888888888888889}
    >>> fair_paces({1: ((0, 1.0),), 2: ((0, 0.2),)}, {0: 0.4})
    {1: 0.5, 2: 0.5}
    """
    paces: dict[int, float] = {}
    free_shares = {link: 1.0 - taken.get(link, 0.0) for uses in wanted.values() for link, _ in uses}
    while rising := {number: uses for number, uses in wanted.items() if number not in paces}:
        requested: dict[int, float] = defaultdict(float)
        for uses in rising.values():
            for link, share in uses:
                requested[link] += share
        level = min((free_shares[link] / requested[link] for link in requested), default=1.0)
        full_links = {
            link for link in requested if free_shares[link] <= requested[link] * level * _FULL_SHARE
        }
        for number, uses in rising.items():
            if level * _FULL_SHARE >= 1 or any(link in full_links for link, _ in uses):
                paces[number] = 1.0 if level * _FULL_SHARE >= 1 else level
                for link, share in uses:
                    free_shares[link] = max(0.0, free_shares[link] - paces[number] * share)
    return paces


def contended_links(tasks: Sequence[Task], taken: Traffic = NO_TRAFFIC) -> frozenset[int]:
    """Find the links of which messages that may run at once want more than there is.

    Messages of one stream that have a rank in common do not.

    taken : parts of links that are not theirs.
    """
    users: dict[tuple[int, str], dict[tuple[int, ...], float]] = defaultdict(dict)
    distinct_tasks = {(id(task.uses), task.ranks, task.stream): task for task in tasks if task.uses}
    for task in distinct_tasks.values():
        for link, share in task.uses:
            groups = users[link, task.stream]
            groups[task.ranks] = max(groups.get(task.ranks, 0.0), share)
    peak_shares: dict[int, float] = defaultdict(float)
    for (link, _), groups in users.items():
        common_ranks = frozenset.intersection(*map(frozenset, groups))
        peak_shares[link] += max(groups.values()) if common_ranks else sum(groups.values())
    return frozenset(
        link
        for link, share in peak_shares.items()
        if share > _FULL_SHARE * (1.0 - taken.get(link, 0.0))
    )


def run(
    tasks: Sequence[Task],
    lanes: Mapping[Lane, Sequence[int]] | None = None,
    taken: Traffic = NO_TRAFFIC,
    ahead: float = 0.0,
) -> TaskTimes:
    """Run tasks.

    lanes : numbers of tasks in the order in which a rank's stream has them; as they are given,
        where it is left out.
    taken : parts of links that others take, who give way to no message.
    ahead : seconds by which hosts began before.

    Raises ModelError if tasks wait for each other.

    A message beside compute that keeps half its pace, and compute that waits for the message:

    >>> send = Task(ranks=(0, 1), stream="comm", seconds=2.0, beside=0.5, message=True)
    >>> work = [Task(ranks=(rank,), stream="compute", seconds=3.0) for rank in (0, 1)]
    >>> use = Task(ranks=(0,), stream="compute", seconds=1.0, after=(0,))
    >>> done = run([send, *work, use])
    >>> done.end
    [2.0, 4.0, 4.0, 5.0]
    """
    return _Clock(tasks, in_order(tasks) if lanes is None else lanes, taken, ahead).run()


class _Rank:
    """Streams of a rank, and what is under way on it: messages and work, by number."""

    __slots__ = ("messages", "number", "streams", "working")

    def __init__(self, number: int) -> None:
        self.number = number
        self.streams: list[_Stream] = []
        self.messages: list[int] = []
        self.working: list[int] = []


class _Stream:
    """Tasks of a stream in order, the last first, and whether the next one has come up.

    alone : it is its rank's only one, so that nothing runs beside its tasks.
    """

    __slots__ = ("alone", "numbers", "rank", "up")

    def __init__(self, rank: _Rank, numbers: Sequence[int]) -> None:
        self.rank, self.numbers, self.up, self.alone = rank, [*reversed(numbers)], False, True


class _Clock:
    """What is under way, and the events to come.

    on : streams that a task is on, by number, but for work of a rank's only one. came : when a
    message had come up, by rank; ranks that have but one stream say so ahead. left, since, pace :
    seconds of a task that were still to do at a moment, and how fast it goes on since then; an
    event of another version was planned at an older pace. sharing, fair : messages under way on
    contended links, what they want of these, and their paces.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        lanes: Mapping[Lane, Sequence[int]],
        taken: Traffic,
        ahead: float,
    ) -> None:
        self.tasks, self.taken, self.ahead, self.now = tasks, taken, ahead, 0.0
        self.events: list[tuple[float, int, int]] = []
        self.on: dict[int, list[_Stream]] = defaultdict(list)
        self.ranks: dict[int, _Rank] = {}
        for (number, _), numbers in lanes.items():
            rank = self.ranks.setdefault(number, _Rank(number))
            rank.streams.append(_Stream(rank, numbers))
        for rank in self.ranks.values():
            for stream in rank.streams:
                stream.alone = len(rank.streams) == 1
                for task in stream.numbers:
                    if not stream.alone or tasks[task].message:
                        self.on[task].append(stream)
        self.start, self.end = [-1.0] * len(tasks), [-1.0] * len(tasks)
        self.came: dict[int, dict[int, float]] = defaultdict(dict)
        self.left, self.since = [task.seconds for task in tasks], [0.0] * len(tasks)
        self.pace, self.version = [-1.0] * len(tasks), [0] * len(tasks)
        self.contended = contended_links(tasks, taken)
        self.sharing: dict[int, Uses] = {}
        self.fair: Mapping[int, float] = {}

    def run(self) -> TaskTimes:
        for rank in self.ranks.values():
            for stream in rank.streams:
                self._start_next(stream)
        events, versions = self.events, self.version
        while events:
            self.now, number, version = heapq.heappop(events)
            if version == versions[number]:
                self._finish(number)
            elif version == _BEGIN:
                self._begin(number)
            elif version == _LOOK:
                for stream in self.on[number]:
                    self._start_next(stream)
        stuck = sum(end < 0 for end in self.end)
        if stuck:
            raise ModelError(f"{stuck} of {len(self.tasks)} tasks wait for each other")
        arrivals: list[tuple[float, ...]] = [(start,) for start in self.start]
        for number, times in self.came.items():
            arrivals[number] = tuple([times[rank] for rank in self.tasks[number].ranks])
        return TaskTimes(start=self.start, end=self.end, came=arrivals)

    def _start_next(self, stream: _Stream) -> None:
        """Let the first task of a stream come up, if nothing holds it back."""
        if stream.up or not stream.numbers:
            return
        if stream.alone:
            self._run_alone(stream)
            return
        number = stream.numbers[-1]
        task, now = self.tasks[number], self.now
        if task.after and self._waits(task, stream):
            return
        issued = task.issued - self.ahead
        if issued > now:
            heapq.heappush(self.events, (issued, number, _LOOK))
            return
        stream.up = True
        if task.message:
            self._arrive(number, stream, now)
            return
        rank = stream.rank
        self.start[number] = self.since[number] = now
        rank.working.append(number)
        self._repace(number, self._work_pace(rank) if rank.messages else 1.0)

    def _waits(self, task: Task, stream: _Stream) -> bool:
        """Whether a task waits for another one of its rank that is not done."""
        rank = stream.rank.number
        return any(
            self.end[earlier] < 0 and rank in self.tasks[earlier].ranks for earlier in task.after
        )

    def _run_alone(self, stream: _Stream) -> None:
        """Do the work of a rank's only stream up to its next message, which nothing can change."""
        tasks, numbers, starts, ends = self.tasks, stream.numbers, self.start, self.end
        time, ahead = self.now, self.ahead
        while numbers:
            number = numbers[-1]
            task = tasks[number]
            if task.after and self._waits(task, stream):
                return
            time = max(time, task.issued - ahead)
            if task.message:
                stream.up = True
                self._arrive(number, stream, time)
                return
            starts[number] = time
            ends[number] = time = time + task.seconds
            numbers.pop()

    def _arrive(self, number: int, stream: _Stream, time: float) -> None:
        """Let a rank come to a message at a time; it begins when the last one has."""
        ranks, arrivals = self.tasks[number].ranks, self.came[number]
        arrivals[stream.rank.number] = time
        if len(arrivals) < len(ranks):
            return
        start = max(arrivals.values())
        if start > self.now:
            heapq.heappush(self.events, (start, number, _BEGIN))
        else:
            self._begin(number)

    def _begin(self, number: int) -> None:
        self.start[number] = self.since[number] = self.now
        self._send(number, self.tasks[number])

    def _send(self, number: int, task: Task) -> None:
        uses = tuple([use for use in task.uses if use[0] in self.contended])
        if uses:
            self.sharing[number] = uses
        for stream in self.on[number]:
            if not stream.alone:
                stream.rank.messages.append(number)
        if not uses:
            self._repace(number, 1.0)
        self._repace_beside(number, shared=bool(uses))

    def _finish(self, number: int) -> None:
        self.end[number] = self.now
        message, streams = self.tasks[number].message, self.on[number]
        for stream in streams:
            if not stream.alone:
                rank = stream.rank
                (rank.messages if message else rank.working).remove(number)
            stream.numbers.pop()
            stream.up = False
        if message:
            self._repace_beside(number, shared=self.sharing.pop(number, None) is not None)
        for stream in streams:
            if stream.alone:
                self._start_next(stream)
                continue
            for sibling in stream.rank.streams:
                if not sibling.up:
                    self._start_next(sibling)

    def _repace_beside(self, message: int, *, shared: bool) -> None:
        """Go on at another pace with what runs beside a message that started or ended."""
        for stream in self.on[message]:
            for number in stream.rank.working:
                self._repace(number, self._work_pace(stream.rank))
        if shared:
            self.fair = fair_paces(self.sharing, self.taken)
            for number in self.sharing:
                self._repace(number, self.fair[number])

    def _work_pace(self, rank: _Rank) -> float:
        """Say at what pace a rank computes: a part of its own is kept beside each message."""
        return prod([self.tasks[message].beside for message in rank.messages])

    def _repace(self, number: int, pace: float) -> None:
        """Plan the end of a task at the pace that it has now."""
        old_pace = self.pace[number]
        if pace == old_pace:
            return
        remaining, now = self.left[number], self.now
        if old_pace >= 0.0:
            remaining = self.left[number] = max(
                0.0, remaining - (now - self.since[number]) * old_pace
            )
            self.since[number] = now
        self.pace[number] = pace
        self.version[number] = version = self.version[number] + 1
        if pace or not remaining:
            heapq.heappush(
                self.events, (now + (remaining / pace if remaining else 0.0), number, version)
            )
