"""Run the work of many ranks as events: streams in order, and messages that ranks meet in.

A rank has streams. Tasks of one stream run one after another, in the order given, once what they
wait for is done and a host has issued them. A message belongs to several ranks and starts when it
has come up on all of them. While it runs, compute beside it keeps a part of its pace, and messages
that meet on a rank share its links evenly.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from topology.base import ModelError
from topology.base.values import dataclass

Lane = tuple[int, str]
"""A stream of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work of a rank, or of the ranks that exchange a message.

    seconds : on its own. after : numbers of tasks that must be done; each rank waits for its own.
    issued : seconds at which hosts have issued it. beside : share of its pace that compute keeps
    while this message runs.
    """

    ranks: tuple[int, ...]
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    issued: float = 0.0
    beside: float = 1.0
    message: bool = False


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


def run(tasks: Sequence[Task], lanes: Mapping[Lane, Sequence[int]] | None = None) -> TaskTimes:
    """Run tasks.

    lanes : numbers of tasks in the order in which a rank's stream has them; as they are given,
        where it is left out.

    Raises ModelError if tasks wait for each other.

    A message beside compute that keeps half its pace, and compute that waits for the message:

    >>> send = Task(ranks=(0, 1), stream="comm", seconds=2.0, beside=0.5, message=True)
    >>> work = [Task(ranks=(rank,), stream="compute", seconds=3.0) for rank in (0, 1)]
    >>> use = Task(ranks=(0,), stream="compute", seconds=1.0, after=(0,))
    >>> done = run([send, *work, use])
    >>> done.end
    [2.0, 4.0, 4.0, 5.0]
    """
    return _Clock(tasks, in_order(tasks) if lanes is None else lanes).run()


class _Clock:
    """What is under way, and the events to come.

    came : when a task had come up, by rank. left, since, pace : seconds of a running task that
    were still to do at a moment, and how fast it goes on since then; an event of another version
    was planned at an older pace.
    """

    def __init__(self, tasks: Sequence[Task], lanes: Mapping[Lane, Sequence[int]]) -> None:
        self.tasks, self.lanes, self.now = tasks, lanes, 0.0
        self.events: list[tuple[float, int, int, int]] = []
        self.heads = dict.fromkeys(lanes, 0)
        self.streams: dict[int, list[Lane]] = defaultdict(list)
        for lane in lanes:
            self.streams[lane[0]].append(lane)
        self.start, self.end = [-1.0] * len(tasks), [-1.0] * len(tasks)
        self.came: list[dict[int, float]] = [{} for _ in tasks]
        self.left: dict[int, float] = {}
        self.since, self.pace = [0.0] * len(tasks), [-1.0] * len(tasks)
        self.version = [0] * len(tasks)
        self.active: dict[int, set[int]] = defaultdict(set)

    def run(self) -> TaskTimes:
        for lane in self.lanes:
            self._look(lane)
        while self.events:
            self.now, number, version, _ = heapq.heappop(self.events)
            if version < 0:
                for rank in self.tasks[number].ranks:
                    self._look((rank, self.tasks[number].stream))
            elif version == self.version[number] and number in self.left:
                self._finish(number)
        stuck = sum(end < 0 for end in self.end)
        if stuck:
            raise ModelError(f"{stuck} of {len(self.tasks)} tasks wait for each other")
        came = [
            tuple(came[rank] for rank in task.ranks)
            for task, came in zip(self.tasks, self.came, strict=True)
        ]
        return TaskTimes(start=self.start, end=self.end, came=came)

    def _look(self, lane: Lane) -> None:
        """Let the first task of a stream come up, if nothing holds it back."""
        head, rank = self.heads[lane], lane[0]
        if head == len(self.lanes[lane]):
            return
        number = self.lanes[lane][head]
        task, came = self.tasks[number], self.came[number]
        if rank in came or any(
            self.end[before] < 0 and rank in self.tasks[before].ranks for before in task.after
        ):
            return
        if task.issued > self.now:
            heapq.heappush(self.events, (task.issued, number, -1, rank))
            return
        came[rank] = self.now
        if len(came) == len(task.ranks):
            self._start(number)

    def _start(self, number: int) -> None:
        task = self.tasks[number]
        self.start[number] = self.since[number] = self.now
        self.left[number] = task.seconds
        for rank in task.ranks:
            self.active[rank].add(number)
        self._repace(task)

    def _finish(self, number: int) -> None:
        task = self.tasks[number]
        del self.left[number]
        self.end[number] = self.now
        for rank in task.ranks:
            self.active[rank].discard(number)
            self.heads[rank, task.stream] += 1
        self._repace(task)
        for rank in task.ranks:
            for lane in self.streams[rank]:
                self._look(lane)

    def _repace(self, changed: Task) -> None:
        """Go on at another pace with what runs where something started or ended."""
        for number in sorted({running for rank in changed.ranks for running in self.active[rank]}):
            pace = self._pace_of(number)
            if pace == self.pace[number]:
                continue
            done = (self.now - self.since[number]) * max(0.0, self.pace[number])
            left = self.left[number] = max(0.0, self.left[number] - done)
            self.since[number], self.pace[number] = self.now, pace
            self.version[number] += 1
            if pace or not left:
                at = self.now + (left / pace if left else 0.0)
                heapq.heappush(self.events, (at, number, self.version[number], 0))

    def _pace_of(self, number: int) -> float:
        task = self.tasks[number]
        if task.message:
            return 1.0 / max(len(self._messages(rank)) for rank in task.ranks)
        return prod(message.beside for message in self._messages(task.ranks[0]))

    def _messages(self, rank: int) -> list[Task]:
        running = (self.tasks[number] for number in self.active[rank])
        return [task for task in running if task.message]
