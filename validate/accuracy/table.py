"""The accuracy table: every model against the figures that ship in `validate/data`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topology.base import InputError
from topology.catalogue import all_devices, all_hardware
from validate.accuracy import collectives, kernels, plans, runs
from validate.accuracy.figures import Score, score

HEADERS: Final = ("what", "figures", "median", "9 of 10 within", "worst", "bias")
SHORT_HEADERS: Final = ("what", "figures", "median", "9 of 10 within", "bias")

BEGIN: Final = "<!-- accuracy: made by python -m validate accuracy --write docs/accuracy.md -->"
SHORT_BEGIN: Final = (
    "<!-- accuracy in short: made by python -m validate accuracy --write README.md -->"
)
END: Final = "<!-- /accuracy -->"
UNSEEN: Final = "nccl-tests logs, in no fit"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "collectives: logs in no fit": (UNSEEN,),
    "kernels: samples of fitted tables, and seven other GPUs": ("matrix products", "attention"),
    "whole plans: published by others": ("whole plans", "plans of other sources"),
    "whole plans: run by us on 2 GPUs": ("steps run on",),
    "peak memory of plans run on 2 GPUs": ("peak memory",),
    "time lost by the choice of a plan on 2 GPUs": ("time lost",),
}  # fmt: skip
"""Lines of the short table, and how the names of the groups begin that each pools: figures that
were in no fit, or where that is not known of each, all. No profile of the machine counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The files of figures, as text.

    runs : results of each of `runs.MACHINES`, in that order.
    """

    collectives: str
    logs: str
    unseen: str
    kernels: str
    plans: str
    others: str
    runs: tuple[str, ...]


Groups = Mapping[str, Sequence[float]]
"""Relative errors of groups of figures, by the name of the group."""


def groups(texts: Texts) -> Groups:
    """Compare every figure with the models."""
    unseen = collectives.read_log_figures(texts.unseen, all_hardware())
    named = {"whole plans": texts.plans, "plans of other sources": texts.others}
    errors: dict[str, list[float]] = {
        **collectives.groups(collectives.read_figures(texts.collectives, all_hardware())),
        **collectives.log_groups(collectives.read_log_figures(texts.logs, all_hardware())),
        UNSEEN: [figure.error for figure in unseen],
        **kernels.groups(kernels.read_figures(texts.kernels, all_devices())),
    }
    for words, text in named.items():
        by_family = plans.groups(plans.read_figures(text))
        errors |= {f"{words}, {name}": group for name, group in by_family.items()}
    for text, machine in zip(texts.runs, runs.MACHINES, strict=True):
        errors |= runs.groups(text, machine)
    return errors


def table(errors: Groups) -> list[Score]:
    """Score every group, one line a group."""
    return [score(name, group) for name, group in errors.items() if group]


def short_table(errors: Groups) -> list[Score]:
    """Score what the groups of each of the `KINDS` say together."""
    return [
        score(
            words,
            [
                error
                for name, group in errors.items()
                if name.startswith(starts) and not name.endswith(runs.WITH_PROFILE)
                for error in group
            ],
        )
        for words, starts in KINDS.items()
    ]


def cells(line: Score) -> list[str]:
    """Write one line of the table."""
    percent = [f"{100 * x:.1f} %" for x in (line.median, line.p90, line.worst)]
    return [line.group[0], str(line.rows), *percent, f"{100 * line.bias:+.1f} %"]


def short_cells(line: Score) -> list[str]:
    """Write one line of the short table: no figure stands out there."""
    name, rows, median, p90, _, bias = cells(line)
    return [name, rows, median, p90, bias]


def inserted(document: str, begin: str, rows: str) -> str:
    """Put a table between the two marks of a document.

    Raises InputError if the document does not have the marks, once each and in order.
    """
    before, mark, rest = document.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise InputError(f"no lines {begin!r} and {END!r} to write the table between")
    return f"{before}{begin}\n\n{rows}\n\n{END}{after}"
