"""Did every message of a run arrive? What each was given and what it gave, as a few sums.

A message that is left out may hardly show in a result at the end: one of hundreds of all-reduces
moves it by less than rounding in 16 bits does. But all that messages do is linear, so the same sums
of what was given, with drawn signs, must come out of them. A sum of an error with drawn signs is as
large as the error itself, save by chance [1]_: `SUMS` of them are small together once in ten
thousand millions of messages.

References
----------
.. [1] Freivalds, "Probabilistic machines can use less running time", 1977
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from costmodels.program import Collective, Communication, SendReceive

SUMS: Final = 8
DEVIATIONS: Final = 6
"""Times the usual size of what rounding adds to a sum of drawn signs that are taken for chance."""
Array = np.ndarray[Any, np.dtype[np.float64]]
Noted = Callable[[torch.Tensor], None]


class Sent(NamedTuple):
    """One message on one rank, as it is noted: sums of each piece for another rank, and sizes."""

    op: Communication
    ranks: tuple[int, ...]
    rounds: float
    given: torch.Tensor
    made: list[torch.Tensor]

    def words(self) -> list[object]:
        """Return what other ranks need to know."""
        made = self.made[0].tolist() if self.made else []
        return [list(self.ranks), self.op.out.name, self.given.tolist(), made]


def sending(
    op: Communication, x: torch.Tensor, ranks: tuple[int, ...], into: list[Sent] | None
) -> Noted:
    """Note what a message is given; returns what notes what it gives."""
    if into is None:
        return lambda made: None  # noqa: ARG005
    pieces = len(ranks) if op.kind in ("reduce_scatter", "all_to_all") else 1
    rounds = torch.finfo(x.dtype).eps / 2 if x.is_floating_point() else 0.0
    sent = Sent(op, ranks, rounds, _sums(x, pieces), [])
    into.append(sent)

    def note(made: torch.Tensor) -> None:
        if made.is_cuda:
            torch.cuda.current_stream().synchronize()  # where a host is seen to wait
        pieces = len(ranks) if op.kind in ("all_gather", "all_to_all") else 1
        sent.made.append(_sums(made, pieces))

    return note


def _sums(x: torch.Tensor, pieces: int) -> torch.Tensor:
    """Return sums of each piece of a tensor with drawn signs, and its length as a vector."""
    each = x.detach().reshape(pieces, -1).double()
    signs = _signs(each.shape[1]).to(each.device)
    return torch.cat([each @ signs, each.norm(dim=1, keepdim=True)], dim=1)


@lru_cache(maxsize=16)
def _signs(count: int) -> torch.Tensor:
    drawn = torch.randint(2, (count, SUMS), generator=torch.Generator().manual_seed(count))
    return (2 * drawn - 1).double()


def untrue(mine: Sequence[Sent], said: Sequence[object], rank: int) -> tuple[int, str] | None:
    """Find the first message that gave a rank something else than the others sent.

    said : the words of every rank. Returns its number and what is wrong, None where all is well.
    """
    turns: dict[tuple[int, ...], list[list[list[object]]]] = defaultdict(list)
    for words in said:
        by_group = defaultdict(list)
        for one in cast("list[list[Any]]", words):
            by_group[tuple(one[0])].append(one)
        for ranks, messages in by_group.items():
            turns[ranks].append(messages)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    for number, sent in enumerate(mine):
        turn = counts[sent.ranks]
        counts[sent.ranks] += 1
        members = [messages[turn] for messages in turns[sent.ranks] if turn < len(messages)]
        what = f"{sent.op.kind} {sent.op.axis} of {sent.op.out.name}"
        if len(members) < len(sent.ranks) or any(one[1] != sent.op.out.name for one in members):
            return number, f"{what} met another message on rank {rank}"
        wrong = _wrong(sent, [np.asarray(one[2]) for one in members], sent.ranks.index(rank))
        if wrong:
            return number, f"{what} gave {wrong} on rank {rank}"
    return None


def _wrong(sent: Sent, given: Sequence[Array], place: int) -> str:
    """Say what a message gave that it should not have, "" where all is well."""
    want = _expected(sent.op, given, place)
    if want is None or not np.isfinite(want).all():
        return ""
    made = sent.made[0].cpu().numpy()[:, :SUMS]
    if not np.isfinite(made).all():
        return "no numbers"
    sums, lengths = want[:, :SUMS], want[:, SUMS:]
    adds = sent.op.kind in ("all_reduce", "reduce_scatter")
    rounds = max(2**-40, sent.rounds * math.sqrt(len(given)) if adds else 0.0)
    return "" if (abs(made - sums) <= DEVIATIONS * rounds * lengths).all() else "other numbers"


def _expected(op: Communication, given: Sequence[Array], place: int) -> Array | None:
    """Return sums of what a message must give to the rank at a place, by what all were given.

    Lengths are of what is added, for what rounding may do; None where nothing arrives.
    """
    if isinstance(op, SendReceive):
        come = place - op.offset
        nothing = op.ends and not 0 <= come < len(given)
        return None if nothing else given[come % len(given)]
    assert isinstance(op, Collective)
    match op.kind:
        case "broadcast":
            return given[op.root]
        case "all_gather":
            return np.concatenate(given)
        case "all_to_all":
            return np.array([one[place] for one in given])
        case _:
            parts = np.stack([one[place if op.kind == "reduce_scatter" else 0] for one in given])
            total = parts.sum(axis=0)
            total[SUMS] = math.sqrt(float((parts[:, SUMS] ** 2).sum()))
            return np.array([total])
