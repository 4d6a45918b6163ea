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
from costmodels.program import Attention, Communication, Loop, Op, SendReceive
from planner.simulation.links import Group, MessageKind, sent_by
from planner.simulation.symmetry import Alike
from topology.base.values import dataclass
from topology.catalogue import Device

FORWARD: Final = "forward"
"""The loop of which places of a pipeline take turns."""
MOST_PACES: Final = 64
"""Ranks up to which each has a pace of its own."""

NO_STEPS: Final[frozenset[int]] = frozenset()
MessageKey = tuple[str, Group, int]
"""What tells messages apart: the axis, the ranks, and how many the ranks had there before."""
Prices = defaultdict[Device, FoundPrices]
"""Prices of operations that were found so far, by device."""


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
    take. ahead : seconds by which hosts began before.
    """

    tasks: Sequence[Task]
    labels: Sequence[TaskLabel]
    lanes: Mapping[Lane, Sequence[int]]
    sent: Mapping[int, MessageKind] = field(default_factory=dict)
    taken: Traffic = field(default_factory=dict)
    ahead: float = 0.0

    def amid(self, first_s: float) -> "RankTasks":
        """Take the turn from amid others, before which hosts were as far ahead as they get.

        They issue without waiting, so that they are done with a turn before the ranks are.

        first_s : seconds of the first turn, before which they were not.
        """
        host_s = max((task.issued for task in self.tasks), default=0.0)
        return replace(self, ahead=first_s - host_s if host_s else 0.0)

    def run(self) -> TaskTimes:
        """Run them."""
        return run(self.tasks, self.lanes, self.taken, self.ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOp:
    """An operation as it is whenever it is run on one target.

    seconds : on its stream. host_s : to issue it. runs : on a stream, as views do not. sends : the
    operation, where it is a message.
    """

    kind: Class
    seconds: float
    host_s: float
    runs: bool
    sends: Communication | None
    name: str
    stream: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operation of an unrolled program.

    after : numbers of the steps that it waits for on other streams. issued : when a host that never
    paused issues it.
    """

    work: PricedOp
    label: TaskLabel
    after: tuple[int, ...]
    issued: float


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
    steps = [list(_run_steps(work, places, prices[work.target.device])) for work in stage.works]
    draft = _Draft(stage)
    for rank in stage.same.leads:
        draft.add_rank(rank, steps[stage.work_of[rank]])
    return draft.made()


def messages_of(works: Sequence[PlacedLoop], prices: Prices) -> list[MessageKind]:
    """List the kinds of messages in a stage."""
    return [
        sent_by(op, float(cached_price(op, target, op_prices).seconds), target)
        for target, op_prices, loop in ((w.target, prices[w.target.device], w.loop) for w in works)
        for op in loop.walk()
        if isinstance(op, Communication)
    ]


def _priced_op(op: Op, target: Target, prices: FoundPrices) -> PricedOp:
    fully_masked = isinstance(op, Attention) and not op.pairs  # of keys that are all masked
    priced = (
        Priced(kind="attention", seconds=0.0) if fully_masked else cached_price(op, target, prices)
    )
    sends = op if isinstance(op, Communication) else None
    return PricedOp(
        kind=priced.kind,
        seconds=float(priced.seconds),
        host_s=float(host_seconds(op, priced, target.runtime)),
        runs=bool(priced.kernels) or sends is not None,
        sends=sends,
        name=op.writes[0].name if op.writes else getattr(op, "name", ""),
        stream=op.stream,
        reads=tuple(tensor.name for tensor in op.reads),
        writes=tuple(tensor.name for tensor in op.writes),
    )


class _LoopTurns:
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


def _forward_turns(loop: Loop) -> int:
    """Count the turns of a stage's forwards."""
    return sum(
        int(np.max(item.count)) * (1 if item.name == FORWARD else _forward_turns(item))
        for item in loop.body
        if isinstance(item, Loop)
    )


def _unroll_loop(loop: Loop, turns: _LoopTurns, unrolled: list[tuple[Op, str, int]]) -> None:
    """Write the operations of a turn of a loop down, each with its loop and the turn of that."""
    turn = turns.enter(loop.name)
    idle = turns.idle(loop.name, turn)
    for item in loop.body:
        if isinstance(item, Loop):
            for _ in range(0 if idle else int(np.max(item.count))):
                _unroll_loop(item, turns, unrolled)
        elif not idle or isinstance(item, SendReceive):
            unrolled.append((item, loop.name, turn))


def _run_steps(placed: PlacedLoop, places: int, prices: FoundPrices) -> Iterator[Step]:
    """Give the steps of a turn that are run."""
    unrolled: list[tuple[Op, str, int]] = []
    _unroll_loop(
        placed.loop, _LoopTurns(placed.place, _forward_turns(placed.loop) - places + 1), unrolled
    )
    works = {
        id(op): _priced_op(op, placed.target, prices)
        for op in {id(op): op for op, _, _ in unrolled}.values()
    }
    ready: dict[str, frozenset[int]] = {}
    streams: list[str] = []
    many_streams = len({work.stream for work in works.values() if work.runs}) > 1
    issued = 0.0
    for op, loop, turn in unrolled:
        work = works[id(op)]
        issued += work.host_s
        after = _makers_of(ready, work.reads) if many_streams else NO_STEPS
        if work.runs:
            other_streams = tuple(sorted([n for n in after if streams[n] != work.stream]))
            label = TaskLabel(name=work.name, kind=work.kind, loop=loop, turn=turn)
            yield Step(work=work, label=label, after=other_streams, issued=issued)
            after = frozenset((len(streams),)) if many_streams else NO_STEPS
            streams.append(work.stream)
        for name in work.writes:  # of a view, what it waits for
            ready[name] = after


class _Draft:
    """Tasks so far, and the messages that some rank has come to.

    kinds : of messages, with the share of its pace that compute beside them keeps, by operation and
    target. waits, issued : of messages, what their ranks wait for, and when the last host issues
    them.
    """

    def __init__(self, stage: StageRun) -> None:
        self.stage, self.same = stage, stage.same
        self.tasks: list[Task] = []
        self.labels: list[TaskLabel] = []
        self.lanes: dict[Lane, list[int]] = {}
        self.messages: dict[MessageKey, int] = {}
        self.sent: dict[int, MessageKind] = {}
        self.kinds: dict[tuple[int, int], tuple[MessageKind, float]] = {}
        self.waits: dict[int, list[int]] = defaultdict(list)
        self.issued: dict[int, float] = defaultdict(float)

    def add_rank(self, rank: int, steps: Sequence[Step]) -> None:
        """Add the tasks of one rank; messages that another rank has come to are joined."""
        pace, paused, ranks = self.stage.paces[rank], self.stage.paused.get(rank, 0.0), (rank,)
        lanes: dict[str, list[int]] = defaultdict(list)
        target = self.stage.works[self.stage.work_of[rank]].target
        numbers: list[int] = []
        sent: dict[str, int] = defaultdict(int)
        for step in steps:
            work, issued = step.work, paused + step.issued
            after = (
                tuple([numbers[step_number] for step_number in step.after]) if step.after else ()
            )
            if work.sends is not None:
                axis = work.sends.axis
                key = axis, self.same.groups[axis, rank], sent[axis]
                sent[axis] += 1
                number = self._message(key, work.sends, step, target)
                self.waits[number] += after
                self.issued[number] = max(self.issued[number], issued)
            else:
                seconds, stream = work.seconds * pace, work.stream
                number = len(self.tasks)
                self.tasks.append(
                    Task(ranks=ranks, stream=stream, seconds=seconds, after=after, issued=issued)
                )
                self.labels.append(step.label)
            numbers.append(number)
            lanes[work.stream].append(number)
        self.lanes |= {(rank, stream): lane for stream, lane in lanes.items()}

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
            sent, compute_share = self._sent(op, step.work.seconds, target)
            task = Task(
                ranks=key[1],
                stream=op.stream,
                seconds=step.work.seconds,
                beside=compute_share,
                message=True,
                uses=self.same.uses.get((sent, key[1]), ()),
            )
            number = self.messages[key] = self._add(task, step)
            self.sent[number] = sent
        return self.messages[key]

    def _sent(self, op: Communication, seconds: float, target: Target) -> tuple[MessageKind, float]:
        """Say what a message sends, and what share of its pace compute beside it keeps."""
        op_key = id(op), id(target)
        if op_key not in self.kinds:
            share = hidden_share(op.kind, seconds, target.profile, urgent=target.hides(op.axis))
            compute_share = 1.0 if op.stream == "compute" else float(share)
            self.kinds[op_key] = sent_by(op, seconds, target), compute_share
        return self.kinds[op_key]

    def _add(self, task: Task, step: Step) -> int:
        self.tasks.append(task)
        self.labels.append(step.label)
        return len(self.tasks) - 1


def jittered(work: RankTasks, jitter: float, seed: int) -> RankTasks:
    """Let each task take longer or less long by chance: logarithms deviate by `jitter`."""
    generator = Random(seed)  # noqa: S311  # no secret
    tasks = [
        replace(task, seconds=task.seconds * exp(generator.gauss(0.0, jitter)))
        for task in work.tasks
    ]
    return replace(work, tasks=tasks)


def _makers_of(ready: Mapping[str, frozenset[int]], reads: Sequence[str]) -> frozenset[int]:
    """Numbers of the tasks that made what is read."""
    after = NO_STEPS
    for name in reads:
        makers = ready.get(name, NO_STEPS)
        after = after | makers if after else makers
    return after


def paces_of(ranks: int, spread: float, slow: Mapping[int, float]) -> list[float]:
    """Say how many times as long as usual each rank computes.

    As many draws from a normal distribution as they are on average, dealt out to ranks in an
    order that is always the same. Of very many one is as slow as the slowest is on average, and
    the others are alike.

    >>> paces_of(2, 0.0, {1: 1.1})
    [1.0, 1.1]
    """
    distribution = NormalDist(1.0, spread) if spread else None
    paces = [
        1.0 if distribution is None else distribution.inv_cdf((position + 0.625) / (ranks + 0.25))
        for position in range(ranks)
    ]
    if spread and ranks > MOST_PACES:
        paces = [(ranks - paces[-1]) / (ranks - 1)] * (ranks - 1) + paces[-1:]
    Random(ranks).shuffle(paces)  # noqa: S311  # no secret
    return [pace * slow.get(rank, 1.0) for rank, pace in enumerate(paces)]
