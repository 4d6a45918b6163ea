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
        return lambda result: None  # noqa: ARG005
    pieces = len(ranks) if op.kind in ("reduce_scatter", "all_to_all") else 1
    rounds = torch.finfo(x.dtype).eps / 2 if x.is_floating_point() else 0.0
    sent = Sent(op, ranks, rounds, _sums(x, pieces), [])
    into.append(sent)

    def note(result: torch.Tensor) -> None:
        if result.is_cuda:
            torch.cuda.current_stream().synchronize()  # where a host is seen to wait
        pieces = len(ranks) if op.kind in ("all_gather", "all_to_all") else 1
        sent.made.append(_sums(result, pieces))

    return note


def _sums(x: torch.Tensor, pieces: int) -> torch.Tensor:
    """Return sums of each piece of a tensor with drawn signs, and its length as a vector."""
    rows = x.detach().reshape(pieces, -1).double()
    signs = _signs(rows.shape[1]).to(rows.device)
    return torch.cat([rows @ signs, rows.norm(dim=1, keepdim=True)], dim=1)


@lru_cache(maxsize=16)
def _signs(count: int) -> torch.Tensor:
    coins = torch.randint(2, (count, SUMS), generator=torch.Generator().manual_seed(count))
    return (2 * coins - 1).double()


def untrue(mine: Sequence[Sent], said: Sequence[object], rank: int) -> tuple[int, str] | None:
    """Find the first message that gave a rank something else than the others sent.

    said : the words of every rank. Returns its number and what is wrong, None where all is well.
    """
    turns: dict[tuple[int, ...], list[list[list[object]]]] = defaultdict(list)
    for words in said:
        by_group = defaultdict(list)
        for entry in cast("list[list[Any]]", words):
            by_group[tuple(entry[0])].append(entry)
        for ranks, messages in by_group.items():
            turns[ranks].append(messages)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    for number, sent in enumerate(mine):
        turn = counts[sent.ranks]
        counts[sent.ranks] += 1
        members = [messages[turn] for messages in turns[sent.ranks] if turn < len(messages)]
        message_name = f"{sent.op.kind} {sent.op.axis} of {sent.op.out.name}"
        if len(members) < len(sent.ranks) or any(entry[1] != sent.op.out.name for entry in members):
            return number, f"{message_name} met another message on rank {rank}"
        fault = _fault_of(sent, [np.asarray(entry[2]) for entry in members], sent.ranks.index(rank))
        if fault:
            return number, f"{message_name} gave {fault} on rank {rank}"
    return None


def _fault_of(sent: Sent, inputs: Sequence[Array], place: int) -> str:
    """Say what a message gave that it should not have, "" where all is well."""
    expected = _expected(sent.op, inputs, place)
    if expected is None or not np.isfinite(expected).all():
        return ""
    actual = sent.made[0].cpu().numpy()[:, :SUMS]
    if not np.isfinite(actual).all():
        return "no numbers"
    sums, lengths = expected[:, :SUMS], expected[:, SUMS:]
    adds = sent.op.kind in ("all_reduce", "reduce_scatter")
    rounds = max(2**-40, sent.rounds * math.sqrt(len(inputs)) if adds else 0.0)
    return "" if (abs(actual - sums) <= DEVIATIONS * rounds * lengths).all() else "other numbers"


def _expected(op: Communication, inputs: Sequence[Array], place: int) -> Array | None:
    """Return sums of what a message must give to the rank at a place, by what all were given.

    Lengths are of what is added, for what rounding may do; None where nothing arrives.
    """
    if isinstance(op, SendReceive):
        origin = place - op.offset
        no_source = op.ends and not 0 <= origin < len(inputs)
        return None if no_source else inputs[origin % len(inputs)]
    assert isinstance(op, Collective)
    match op.kind:
        case "broadcast":
            return inputs[op.root]
        case "all_gather":
            return np.concatenate(inputs)
        case "all_to_all":
            return np.array([rank_sums[place] for rank_sums in inputs])
        case _:
            parts = np.stack(
                [rank_sums[place if op.kind == "reduce_scatter" else 0] for rank_sums in inputs]
            )
            total = parts.sum(axis=0)
            total[SUMS] = math.sqrt(float((parts[:, SUMS] ** 2).sum()))
            return np.array([total])
