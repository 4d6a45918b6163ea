"""The critical path: the chain of work that a turn could not have been shorter than."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from costmodels.events import TaskTimes
from planner.simulation.links import MessageKind
from planner.simulation.tasks import RankTasks
from topology.base.values import dataclass

HOST: Final = "launch"
"""What is waited for where nothing runs: a host that has not issued the work yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPiece:
    """A piece of the path: work of a kind on a rank, or waiting for the host of that rank.

    kind : class of the work. name : what it makes. seconds : that it adds to the path. sent : by a
    message.
    """

    kind: str
    name: str
    rank: int
    seconds: float
    sent: MessageKind | None = None


def critical_path(work: RankTasks, ran: TaskTimes) -> list[PathPiece]:
    """Walk back from what ended last to what it waited for, and so on; the first piece is first.

    The seconds of all pieces add up to those of the turn.

    >>> from costmodels.events import Task, in_order, run
    >>> from planner.simulation.tasks import TaskLabel
    >>> tasks = [Task(ranks=(0,), stream="compute", seconds=1.0),
    ...          Task(ranks=(1,), stream="compute", seconds=3.0),
    ...          Task(ranks=(0, 1), stream="compute", seconds=2.0, message=True)]
    >>> labels = [TaskLabel(name=name, kind="gemm", loop="", turn=0) for name in "abc"]
    >>> work = RankTasks(tasks=tasks, labels=labels, lanes=in_order(tasks))
    >>> [(one.name, one.rank, one.seconds) for one in critical_path(work, run(tasks))]
    [('b', 1, 3.0), ('c', 1, 2.0)]
    """
    return list(reversed(list(_path_backwards(work, ran))))


def _path_backwards(work: RankTasks, ran: TaskTimes) -> Iterator[PathPiece]:
    if not work.tasks:
        return
    predecessors = {
        (lane[0], number): previous
        for lane, numbers in work.lanes.items()
        for previous, number in pairwise(numbers)
    }
    number = max(range(len(work.tasks)), key=lambda number: ran.end[number])
    while number >= 0:
        task, label, came_s = work.tasks[number], work.labels[number], ran.came[number]
        rank = max(zip(task.ranks, came_s, strict=True), key=lambda pair: pair[1])[0]
        yield PathPiece(
            kind=label.kind,
            name=label.name,
            rank=rank,
            seconds=ran.end[number] - ran.start[number],
            sent=work.sent.get(number),
        )
        awaited = [
            task_number for task_number in task.after if rank in work.tasks[task_number].ranks
        ]
        if (rank, number) in predecessors:
            awaited.append(predecessors[rank, number])
        latest = max(awaited, key=lambda task_number: ran.end[task_number], default=-1)
        idle = ran.start[number] - (ran.end[latest] if latest >= 0 else 0.0)
        if idle > 0:
            yield PathPiece(kind=HOST, name="", rank=rank, seconds=idle)
        number = latest


def by_kind(path: Sequence[PathPiece]) -> Mapping[str, float]:
    """Add up the seconds of a path by the kind of work, the longest first."""
    spent: dict[str, float] = defaultdict(float)
    for piece in path:
        spent[piece.kind] += piece.seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def by_work(path: Sequence[PathPiece]) -> Mapping[tuple[str, str], float]:
    """Add up the seconds of a path by what the work makes, the longest first."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for piece in path:
        if piece.name:
            spent[piece.kind, piece.name] += piece.seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
