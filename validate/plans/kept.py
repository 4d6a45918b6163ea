"""Which results of earlier runs still stand: those of this machine, this model, and no accident."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topology.base import counted
from validate.plans.cases import Case
from validate.plans.measured import Measured

AGAIN: Final = ("failed",)
"""What is run again at the next call: a rank died or was late, which may not happen twice."""
ASKED: Final = ("failed", "out of memory", "wrong")
"""What is run again where that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What stands, and what is to be run.

    rows : of the cases that stand. todo : cases to run. attempts : of a case by its key, the next
    one included. others : rows of the cases that are another machine's or another model's.
    """

    rows: tuple[Measured, ...]
    todo: tuple[Case, ...]
    attempts: Mapping[str, int]
    others: int

    @property
    def remarks(self) -> list[str]:
        """Say what is not used as it stands, and why, a line each."""
        found = []
        if self.others:
            found.append(f"{counted(self.others, 'row')} of another machine or model left alone")
        again = sum(number > 1 for number in self.attempts.values())
        if again:
            found.append(f"{counted(again, 'case')} run again")
        full = sum(row.status == "out of memory" for row in self.rows)
        if full:
            found.append(
                f"{counted(full, 'case')} out of memory earlier, not run again without --retry"
            )
        return found


def kept(
    cases: Sequence[Case],
    rows: Iterable[Measured],
    machine: str,
    digests: Mapping[str, str],
    *,
    retry: bool = False,
) -> Kept:
    """Part the rows of earlier runs.

    Parameters
    ----------
    machine : this one, in the words of its rows. digests : of the cases, by their keys.
    retry : run again what was out of memory or wrong, too.
    """
    asked = [row for row in rows if row.key in digests]
    mine = {
        row.key: row for row in asked if (row.machine, row.digest) == (machine, digests[row.key])
    }
    again = ASKED if retry else AGAIN
    stands = {key: row for key, row in mine.items() if row.status not in again}
    todo = tuple(case for case in cases if case.key not in stands)
    return Kept(
        rows=tuple(stands[case.key] for case in cases if case.key in stands),
        todo=todo,
        attempts={
            case.key: mine[case.key].attempts + 1 if case.key in mine else 1 for case in todo
        },
        others=len(asked) - len(mine),
    )
