"""Whose fault it is that a run stands still, by what each rank has said of its messages.

A rank that has started fewer messages of a group than another is waited for. Whoever is waited for
and waits for nobody is late, unless others are past the message that it waits in: those left one
out, or run another program. Between two such sides the smaller one is at fault.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from topology.base.values import dataclass
from validate.launch.causes import where
from validate.launch.progress import Beat, Group

PATIENCE_S: Final = 10.0
"""Seconds in which nothing changes until a run is taken to stand still."""
IDLE: Final = 0.02
"""Share of a processor below which a rank does nothing."""
TRANSPORT: Final = ("distributed_c10d.py", "streams.py")
"""Files of PyTorch in which a host waits for a message: of gloo, and on its GPU."""
COMPILES: Final = "compile"
"""What an operation begins with whose rank may wait for processes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is seen of a rank: its exit code, if any, its heartbeat and its log's end.

    at : when it was seen, of `time.monotonic`. stopped : by a signal. quiet_s : since what it says
    has changed. used_s : of a processor, since then. silent_s : since it said that it lives.
    """

    rank: int
    code: int | None
    beat: Beat
    log: str = ""
    at: float = 0.0
    stopped: bool = False
    quiet_s: float = 0.0
    used_s: float = 0.0
    silent_s: float = 0.0

    def after(self, before: "Seen | None") -> "Seen":
        """Return the same with what has passed since nothing changes, by an earlier look."""
        if before is None or before.said != self.said:
            return self
        return replace(
            self,
            quiet_s=before.quiet_s + self.at - before.at,
            used_s=before.used_s + self.beat.cpu_s - before.beat.cpu_s,
            silent_s=(self.beat.lived == before.beat.lived)
            * (before.silent_s + self.at - before.at),
        )

    @property
    def idle(self) -> bool:
        """Whether it does nothing, not even compile."""
        return self.used_s < IDLE * self.quiet_s and not self.beat.op.startswith(COMPILES)

    @property
    def said(self) -> tuple[object, ...]:
        """What changes as long as it moves."""
        return self.beat.since, self.beat.count, self.beat.waits, self.stopped, self.code


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The rank at fault, and why. parted : it is at another message than the others."""

    rank: Seen
    cause: str
    parted: bool = False

    def event(self, when: str) -> str:
        """Say how the rank stands, where and when."""
        return f"{'stands still' if self.parted else 'late'}{where(self.rank.beat)}, {when}"


def stands_still(ranks: Sequence[Seen]) -> Blame | None:
    """Blame a rank before its time is over, if no rank will move again."""
    if any(rank.quiet_s < PATIENCE_S for rank in ranks):
        return None
    blame = find_blame(ranks)
    return blame if blame and (blame.parted or blame.rank.idle) else None


def find_blame(ranks: Sequence[Seen]) -> Blame | None:
    """Find the rank that the others wait for; None where none is behind another."""
    ranks = [_before_message(rank) if _is_elsewhere(rank, ranks) else rank for rank in ranks]
    waiting = [rank for rank in ranks if rank.beat.waits]
    starts = [rank for rank in waiting if rank.beat.group and _late_members(rank, ranks)]
    starts = starts or [rank for rank in waiting if _ranks_past(rank, ranks)]
    starts = starts or [rank for rank in waiting if _late_members(rank, ranks)]
    return _follow([starts[0]], ranks) if starts else None


def _is_elsewhere(rank: Seen, ranks: Sequence[Seen]) -> bool:
    """Whether a rank has begun a message, but is in other code than those that wait in it."""
    waiting_ranks = _same_message(rank, ranks) if rank.beat.waits and rank.beat.group else []
    return not _in_transport(rank) and any(_in_transport(other) for other in waiting_ranks)


def _in_transport(rank: Seen) -> bool:
    return any(file in rank.beat.code for file in TRANSPORT)


def _before_message(rank: Seen) -> Seen:
    """Return a rank as it was before its last message."""
    beat, group = rank.beat, rank.beat.group or ()
    turns = {**beat.turns, group: beat.turns[group] - 1}
    return replace(rank, beat=replace(beat, waits=False, turns=turns))


def _follow(chain: list[Seen], ranks: Sequence[Seen]) -> Blame:
    """Go from who waits to whom it waits for, until one waits for nobody."""
    last_rank, late_ranks = chain[-1], _late_members(chain[-1], ranks)
    ranks_past = _ranks_past(last_rank, ranks) if last_rank.beat.waits else []
    if ranks_past:
        return _blame_smaller(ranks_past, _same_message(last_rank, ranks))
    if not last_rank.beat.waits or not late_ranks:
        waiting_ranks = _same_message(chain[-2], ranks)
        return Blame(
            rank=last_rank, cause=f"{_waiting_text(waiting_ranks)}, to which it has not come"
        )
    # who agrees on words is through with its messages, and those behind it are in them
    if len(chain) > 1 and (not last_rank.beat.group or late_ranks[0] in chain):
        return _blame_smaller(_same_message(last_rank, ranks), _same_message(chain[-2], ranks))
    return _follow([*chain, late_ranks[0]], ranks)


def waiting_words(ranks: Sequence[Seen]) -> str:
    """Say which ranks wait in the first message that any waits in; nothing where none does."""
    waiting = [rank for rank in ranks if rank.beat.waits]
    return f": {_waiting_text(_same_message(waiting[0], ranks))}" if waiting else ""


def _late_members(rank: Seen, ranks: Sequence[Seen]) -> list[Seen]:
    """Members of the group of a rank's last message that have not come to it."""
    group = rank.beat.group
    if group is None:
        return []
    turn = rank.beat.turns[group]
    return [other for other in _members(group, ranks) if other.beat.turns.get(group, 0) < turn]


def _ranks_past(rank: Seen, ranks: Sequence[Seen]) -> list[Seen]:
    """Members past the message of all to all in which a rank waits: nobody may be."""
    beat = rank.beat
    if not beat.group or beat.op.startswith(("send_recv", "broadcast")):
        return []
    turn, waiting_ranks = beat.turns[beat.group], _same_message(rank, ranks)
    arrived = [
        member
        for member in _members(beat.group, ranks)
        if member.beat.turns.get(beat.group, 0) >= turn
    ]
    return [member for member in arrived if member not in waiting_ranks]


def _same_message(rank: Seen, ranks: Sequence[Seen]) -> list[Seen]:
    """Ranks that wait in the same message as this one."""
    return [other for other in ranks if other.beat.waits and _message(other) == _message(rank)]


def _message(rank: Seen) -> tuple[Group | None, int, str]:
    beat = rank.beat
    return beat.group, beat.turns.get(beat.group, 0) if beat.group is not None else 0, beat.op


def _members(group: Group, ranks: Sequence[Seen]) -> list[Seen]:
    return [rank for rank in ranks if not group or rank.rank in group]


def _blame_smaller(side_a: Sequence[Seen], side_b: Sequence[Seen]) -> Blame:
    """Blame the smaller side of two that are at different messages; the first of two alike."""
    guilty_side, waiting_side = (side_a, side_b) if len(side_a) <= len(side_b) else (side_b, side_a)
    cause = f"{_waiting_text(waiting_side)}: this one left out a message, or runs another program"
    return Blame(rank=guilty_side[0], cause=cause, parted=True)


def _waiting_text(ranks: Sequence[Seen]) -> str:
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    plural = len(ranks) > 1
    return f"rank{'s' * plural} {numbers} wait{'s' * (not plural)} in {ranks[0].beat.op}"
