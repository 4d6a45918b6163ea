"""A stage of a program as tasks of all ranks: what `costmodels.events` runs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import exp
from random import Random
from statistics import NormalDist
from typing import Final

import numpy as np

from costmodels.events import Lane, Task, TaskTimes, Traffic, run
from costmodels.overlap import hidden_share
from costmodels.price import Class, FoundPrices, Priced, Target, cached_price, host_seconds
from costmodels.program import Attention, Communication, Loop, Op, SendReceive, Tensor
from planner.simulation.links import Group, MessageKind, sent_by
from planner.simulation.symmetry import Alike
from topology.base.values import dataclass
from topology.catalogue import Device

FORWARD: Final = "forward"
"""The loop of which places of a pipeline take turns."""
MOST_PACES: Final = 64
"""Ranks up to which each has a pace of its own."""

MessageKey = tuple[str, Group, int]
"""What tells messages apart: the axis, the ranks, and how many the ranks had there before."""
Prices = defaultdict[Device, FoundPrices]
"""Prices of operations that were found so far, by device."""
Waiting = tuple["Step", tuple[int, ...], float]
"""A step, the numbers of those that it waits for, and when a host that never paused issues it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLabel:
    """What a task is. loop, turn : the innermost loop, and how often it was entered before."""

    name: str
    kind: Class
    loop: str
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A task on one of its ranks.

    task : its number. came_s : when it could have run there, had all others come. sent : by a
    message.
    """

    task: int
    rank: int
    stream: str
    label: TaskLabel
    came_s: float
    start_s: float
    end_s: float
    sent: MessageKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTasks:
    """Tasks with their labels, in the order of every rank's streams.

    sent : what the messages among them send, by their numbers. taken : parts of links that others
    take.
    """

    tasks: Sequence[Task]
    labels: Sequence[TaskLabel]
    lanes: Mapping[Lane, Sequence[int]]
    sent: Mapping[int, MessageKind] = field(default_factory=dict)
    taken: Traffic = field(default_factory=dict)

    def run(self) -> TaskTimes:
        """Run them."""
        return run(self.tasks, self.lanes, self.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operation of an unrolled program."""

    op: Op
    priced: Priced
    label: TaskLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLoop:
    """What some ranks of a stage do.

    place : of a pipeline. target : what their operations are priced on.
    """

    loop: Loop
    place: int
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """A stage, and the ranks that run it.

    works : that differ. work_of : every rank, the number of its own. paces : how many times as long
    as usual each computes. paused : seconds that their hosts issue nothing for at first. same :
    which ranks are alike.
    """

    works: Sequence[PlacedLoop]
    work_of: Sequence[int]
    paces: Sequence[float]
    paused: Mapping[int, float]
    same: Alike

    @property
    def name(self) -> str:
        return self.works[0].loop.name

    @property
    def turns(self) -> float:
        return float(np.max(self.works[0].loop.count))


def tasks_of(stage: StageRun, prices: Prices) -> RankTasks:
    """Write one turn of a stage down for all ranks that are run; `prices` are added to."""
    places = 1 + max(work.place for work in stage.works)
    steps = [list(_waiting(work, places, prices[work.target.device])) for work in stage.works]
    draft = _Draft(stage)
    for rank in stage.same.leads:
        draft.add_rank(rank, steps[stage.work_of[rank]])
    return draft.made()


def messages_of(works: Sequence[PlacedLoop], prices: Prices) -> list[MessageKind]:
    """List the kinds of messages in a stage."""
    return [
        sent_by(op, float(cached_price(op, target, found).seconds), target)
        for target, found, loop in ((w.target, prices[w.target.device], w.loop) for w in works)
        for op in loop.walk()
        if isinstance(op, Communication)
    ]


def _priced(op: Op, target: Target, prices: FoundPrices) -> Priced:
    if isinstance(op, Attention) and not op.pairs:  # of keys that are all masked
        return Priced(kind="attention", seconds=0.0)
    return cached_price(op, target, prices)


class _Turns:
    """How often loops were entered, and which forwards a place of a pipeline really has.

    Of all turns of a pipeline a place works in as many as there are forwards; before them and
    behind them it only waits for its neighbours.
    """

    def __init__(self, place: int, forwards: int) -> None:
        self.place, self.forwards = place, forwards
        self.entered: dict[str, int] = defaultdict(int)

    def enter(self, name: str) -> int:
        turn = self.entered[name]
        self.entered[name] += 1
        return turn

    def idle(self, name: str, turn: int) -> bool:
        return name == FORWARD and not 0 <= turn - self.place < self.forwards


def _forwards(loop: Loop) -> int:
    """Count the turns of a stage's forwards."""
    return sum(
        int(np.max(item.count)) * (1 if item.name == FORWARD else _forwards(item))
        for item in loop.body
        if isinstance(item, Loop)
    )


def _steps(loop: Loop, target: Target, prices: FoundPrices, turns: _Turns) -> Iterator[Step]:
    """Unroll a turn of a loop: each operation, labelled by the loop it stands in."""
    turn = turns.enter(loop.name)
    idle = turns.idle(loop.name, turn)
    for item in loop.body:
        if isinstance(item, Loop):
            for _ in range(0 if idle else int(np.max(item.count))):
                yield from _steps(item, target, prices, turns)
        elif not idle or isinstance(item, SendReceive):
            priced = _priced(item, target, prices)
            name = item.writes[0].name if item.writes else getattr(item, "name", "")
            label = TaskLabel(name=name, kind=priced.kind, loop=loop.name, turn=turn)
            yield Step(op=item, priced=priced, label=label)


def _waiting(work: PlacedLoop, places: int, prices: FoundPrices) -> Iterator[Waiting]:
    """Give the steps of a turn that are run, with what each waits for on another stream."""
    turns = _Turns(work.place, _forwards(work.loop) - places + 1)
    ready: dict[str, frozenset[int]] = {}
    streams: list[str] = []
    issued = 0.0
    for step in _steps(work.loop, work.target, prices, turns):
        op, priced = step.op, step.priced
        issued += float(host_seconds(op, priced, work.target.runtime))
        after = _after(ready, op.reads)
        if priced.kernels or isinstance(op, Communication):
            others = tuple(n for n in sorted(after) if streams[n] != op.stream)
            yield step, others, issued
            after = frozenset((len(streams),))
            streams.append(op.stream)
        ready.update((tensor.name, after) for tensor in op.writes)  # of a view, what it waits for


class _Draft:
    """Tasks so far, and the messages that some rank has come to.

    kinds : of messages, by operation and target. waits, issued : of messages, what their ranks wait
    for, and when the last host issues them.
    """

    def __init__(self, stage: StageRun) -> None:
        self.stage, self.same = stage, stage.same
        self.tasks: list[Task] = []
        self.labels: list[TaskLabel] = []
        self.lanes: dict[Lane, list[int]] = defaultdict(list)
        self.messages: dict[MessageKey, int] = {}
        self.sent: dict[int, MessageKind] = {}
        self.kinds: dict[tuple[int, int], MessageKind] = {}
        self.waits: dict[int, list[int]] = defaultdict(list)
        self.issued: dict[int, float] = defaultdict(float)

    def add_rank(self, rank: int, steps: Sequence[Waiting]) -> None:
        """Add the tasks of one rank; messages that another rank has come to are joined."""
        pace, paused = self.stage.paces[rank], self.stage.paused.get(rank, 0.0)
        target = self.stage.works[self.stage.work_of[rank]].target
        numbers: list[int] = []
        sent: dict[str, int] = defaultdict(int)
        for step, others, after_s in steps:
            op, after, issued = step.op, tuple(numbers[one] for one in others), paused + after_s
            if isinstance(op, Communication):
                key = op.axis, self.same.groups[op.axis, rank], sent[op.axis]
                sent[op.axis] += 1
                number = self._message(key, op, step, target)
                self.waits[number] += after
                self.issued[number] = max(self.issued[number], issued)
            else:
                seconds = float(step.priced.seconds) * pace
                task = Task(
                    ranks=(rank,), stream=op.stream, seconds=seconds, after=after, issued=issued
                )
                number = self._add(task, step)
            numbers.append(number)
            self.lanes[rank, op.stream].append(number)

    def made(self) -> RankTasks:
        """Return all tasks, each message with what its ranks wait for."""
        for number, after in self.waits.items():
            task, issued = self.tasks[number], self.issued[number]
            self.tasks[number] = replace(task, after=tuple(after), issued=issued)
        return RankTasks(
            tasks=self.tasks,
            labels=self.labels,
            lanes=self.lanes,
            sent=self.sent,
            taken=self.same.taken,
        )

    def _message(self, key: MessageKey, op: Communication, step: Step, target: Target) -> int:
        """Find a message among the tasks, or add it."""
        if key not in self.messages:
            seconds = float(step.priced.seconds)
            alone = op.stream == "compute"
            share = hidden_share(op.kind, seconds, target.profile, urgent=target.hides)
            kept = 1.0 if alone else float(share)
            same = id(op), id(target)
            sent = self.kinds.get(same) or sent_by(op, seconds, target)
            self.kinds[same] = sent
            task = Task(
                ranks=key[1],
                stream=op.stream,
                seconds=seconds,
                beside=kept,
                message=True,
                uses=self.same.uses.get((sent, key[1]), ()),
            )
            number = self.messages[key] = self._add(task, step)
            self.sent[number] = sent
        return self.messages[key]

    def _add(self, task: Task, step: Step) -> int:
        self.tasks.append(task)
        self.labels.append(step.label)
        return len(self.tasks) - 1


def jittered(work: RankTasks, jitter: float, seed: int) -> RankTasks:
    """Let each task take longer or less long by chance: logarithms deviate by `jitter`."""
    draw = Random(seed)  # noqa: S311  # no secret
    tasks = [
        replace(task, seconds=task.seconds * exp(draw.gauss(0.0, jitter))) for task in work.tasks
    ]
    return replace(work, tasks=tasks)


def _after(ready: Mapping[str, frozenset[int]], reads: Sequence[Tensor]) -> frozenset[int]:
    """Numbers of the tasks that made what is read."""
    return frozenset().union(*(ready.get(tensor.name, frozenset()) for tensor in reads))


def paces_of(ranks: int, spread: float, slow: Mapping[int, float]) -> list[float]:
    """Say how many times as long as usual each rank computes.

    As many draws from a normal distribution as they are on average, dealt out to ranks in an
    order that is always the same. Of very many one is as slow as the slowest is on average, and
    the others are alike.

    >>> paces_of(2, 0.0, {1: 1.1})
    [1.0, 1.1]
    """
    usual = NormalDist(1.0, spread) if spread else None
    paces = [
        1.0 if usual is None else usual.inv_cdf((place + 0.625) / (ranks + 0.25))
        for place in range(ranks)
    ]
    if spread and ranks > MOST_PACES:
        paces = [(ranks - paces[-1]) / (ranks - 1)] * (ranks - 1) + paces[-1:]
    Random(ranks).shuffle(paces)  # noqa: S311  # no secret
    return [pace * slow.get(rank, 1.0) for rank, pace in enumerate(paces)]
