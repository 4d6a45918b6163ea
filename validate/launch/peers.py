"""Ranks watch each other where no parent of ours does: torchrun and mpirun only start and end them.

Each tells the others its heartbeat, through the store where they meet. Who moves asks no more than
that; who stands still looks at all of them, and judges as the parent does. All see the same, so
that one of them speaks.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from topology.base.values import dataclass
from validate.launch.blame import PATIENCE_S, Blame, Seen, stands_still, waiting_words
from validate.launch.causes import where
from validate.launch.progress import Progress, read

_INTERVAL: Final = 1.0  # s
SILENT_S: Final = 15.0
"""Seconds without a heartbeat until a process is taken to be stopped: code that lets no other
thread run may take a few."""
_GONE: Final = "its process is stopped, or its host is gone"
_LATE_S: Final = 5.0
_SPEAK_S: Final = 3.0  # s, for the rank that speaks to do so before a launcher ends it


class Board(Protocol):
    """Where ranks leave heartbeats for each other; raises `OSError` where it is not there."""

    def tell(self, rank: int, beat: bytes) -> None:
        """Leave one's own."""

    def hear(self) -> Sequence[bytes]:
        """Read those of all ranks, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All ranks as one of them saw them last; only itself while it moves."""

    at: float
    own: Seen
    ranks: tuple[Seen, ...] = ()


def watch(progress: Progress, board: Board, host: str) -> None:
    """Exchange heartbeats from here on, and end this rank when none will move again.

    host : who has the board, of whom is said that it is gone.
    """
    looks: deque[Look] = deque([_look(progress, None, time.monotonic())], maxlen=1)
    for work in (_exchange, _judge):
        threading.Thread(target=work, args=(progress, board, host, looks), daemon=True).start()


def _look(
    progress: Progress, last_look: Look | None, now: float, beats: Sequence[bytes] = ()
) -> Look:
    earlier = dict(enumerate(last_look.ranks if last_look else ()))
    own = Seen(rank=progress.place.rank, code=None, beat=progress.beat, at=now)
    ranks = (
        Seen(rank=rank, code=None, beat=read(beat), at=now).after(earlier.get(rank))
        for rank, beat in enumerate(beats)
    )
    return Look(at=now, own=own.after(last_look.own if last_look else None), ranks=tuple(ranks))


def _exchange(progress: Progress, board: Board, _: str, looks: "deque[Look]") -> None:
    """Tell and hear in a thread that may wait for a board that is gone."""
    while progress.beat.phase != "done":
        time.sleep(_INTERVAL)
        last_look = looks[-1]
        try:
            board.tell(progress.place.rank, bytes(progress.memory))
            beats = board.hear() if last_look.own.quiet_s > 0 else ()
        except OSError:
            return
        looks.append(_look(progress, last_look, time.monotonic(), beats))


def _judge(progress: Progress, _: Board, host: str, looks: "deque[Look]") -> None:
    while progress.beat.phase != "done":
        time.sleep(_INTERVAL)
        look, own_rank = looks[-1], progress.place.rank
        silent_s = time.monotonic() - look.at
        if silent_s > SILENT_S and look.own.said == _own_state(progress):
            waiting = waiting_words([look.own])
            _end(
                f"{host}: silent for {silent_s:.0f} s; likely cause: {_GONE}{waiting}", speaks=True
            )
        blame = verdict(look.ranks)
        if blame is not None:
            guilty = blame.rank.rank
            _end(f"rank {guilty}: {event(blame)}; likely cause: {blame.cause}",
                 speaks=own_rank == min({0, 1} - {guilty}))  # fmt: skip


def _own_state(progress: Progress) -> tuple[object, ...]:
    return Seen(rank=progress.place.rank, code=None, beat=progress.beat).said


def verdict(ranks: Sequence[Seen]) -> Blame | None:
    """Blame a rank for which the others wait and nothing moves: one that is silent goes first."""
    if not ranks or any(rank.quiet_s < PATIENCE_S for rank in ranks):
        return None
    silent_ranks = [rank for rank in ranks if rank.silent_s > _LATE_S]
    if not silent_ranks:
        return stands_still(ranks)
    lost_rank = next((rank for rank in silent_ranks if rank.silent_s > SILENT_S), None)
    return Blame(rank=lost_rank, cause=f"{_GONE}{waiting_words(ranks)}") if lost_rank else None


def event(blame: Blame) -> str:
    """Say what became of the rank at fault."""
    rank = blame.rank
    if rank.silent_s > SILENT_S:
        return f"silent{where(rank.beat)}, for {rank.silent_s:.0f} s"
    return blame.event(f"after {rank.quiet_s:.0f} s in which nothing moved")


def _end(line: str, *, speaks: bool) -> None:
    if not speaks:
        time.sleep(_SPEAK_S)
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    os._exit(1)
