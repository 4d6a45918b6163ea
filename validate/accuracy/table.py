"""The accuracy table: every model against the figures that ship in `validate/data`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topology.base import MIB, InputError
from topology.catalogue import all_devices, all_hardware
from validate.accuracy import collectives as accuracy_collectives
from validate.accuracy import kernels as accuracy_kernels
from validate.accuracy import logs as accuracy_tables
from validate.accuracy import plans as accuracy_plans
from validate.accuracy import runs as accuracy_runs
from validate.accuracy.kernels import Score, summary

HEADERS: Final = ("what", "figures", "median", "9 of 10 within", "worst", "bias")
FEW: Final = 5
"""GPUs with fewer figures than this share a line."""

BEGIN: Final = "<!-- accuracy: made by python -m validate accuracy --write README.md -->"
END: Final = "<!-- /accuracy -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The files of figures, as text.

    runs : results of each of `accuracy_runs.MACHINES`, in that order.
    """

    collectives: str
    tables: str
    unseen: str
    kernels: str
    plans: str
    others: str
    runs: tuple[str, ...]


def table(texts: Texts) -> list[Score]:
    """Score every group of figures, one line a group."""
    logs = accuracy_tables.read_figures(texts.tables, all_hardware())
    return [
        *_collectives(texts.collectives),
        *accuracy_tables.score(logs),
        accuracy_tables.score_unseen(accuracy_tables.read_figures(texts.unseen, all_hardware())),
        *_kernels(texts.kernels),
        *_plans(texts.plans, "whole plans"),
        *_plans(texts.others, "plans of other sources"),
        *_runs(texts.runs),
    ]


def _collectives(text: str) -> Iterator[Score]:
    figures = accuracy_collectives.read_figures(text, all_hardware())
    one = [f for f in figures if f.measured.fabric.nodes == 1 and f.algorithm == "auto"]
    for link, words in (("nvlink", "NVLink"), ("pcie", "PCIe")):
        chosen = [f for f in one if (f.measured.fabric.link == "pcie") == (link == "pcie")]
        large = [f for f in chosen if f.measured.message_bytes >= MIB]
        if large:
            yield _group(f"collectives, one node, {words}, 1 MiB and up", [f.error for f in large])
        if chosen:
            yield _group(f"collectives, one node, {words}, all sizes", [f.error for f in chosen])
    several = [f for f in figures if f.measured.fabric.nodes > 1]
    if several:
        yield _group("collectives, several nodes", [f.error for f in several])
    engines = [f for f in figures if f.measured.fabric.nodes == 1 and f.algorithm != "auto"]
    if engines:
        yield _group("all-reduce of serving engines", [f.error for f in engines])


def _kernels(text: str) -> Iterator[Score]:
    rows = accuracy_kernels.read_measurements(text, all_devices())
    for operation, words in (("matmul", "matrix products"), ("attention", "attention")):
        chosen = [row for row in rows if row.operation == operation]
        names = list(dict.fromkeys(row.device.name for row in chosen))
        few = [n for n in names if sum(row.device.name == n for row in chosen) < FEW]
        for name in [n for n in names if n not in few]:
            (score,) = accuracy_kernels.score([r for r in chosen if r.device.name == name], by=())
            yield _named(f"{words}, {name}", score)
        (score,) = accuracy_kernels.score([r for r in chosen if r.device.name in few], by=())
        yield _named(f"{words}, {', '.join(few)}", score)


def _plans(text: str, words: str) -> Iterator[Score]:
    for score in accuracy_plans.score(accuracy_plans.read_figures(text)):
        yield _named(f"{words}, {score.group[0]}", score)


def _runs(texts: Sequence[str]) -> Iterator[Score]:
    for text, machine in zip(texts, accuracy_runs.MACHINES, strict=True):
        yield from accuracy_runs.score(text, machine)


def _group(name: str, errors: Sequence[float]) -> Score:
    return summary((name,), np.array(errors))


def _named(name: str, score: Score) -> Score:
    return Score(
        group=(name,),
        rows=score.rows,
        median=score.median,
        p90=score.p90,
        worst=score.worst,
        bias=score.bias,
    )


def cells(score: Score) -> list[str]:
    """Write one line of the table."""
    percent = [f"{100 * x:.1f} %" for x in (score.median, score.p90, score.worst)]
    return [score.group[0], str(score.rows), *percent, f"{100 * score.bias:+.1f} %"]


def inserted(document: str, rows: str) -> str:
    """Put a table between the two marks of a document.

    Raises
    ------
    InputError
        If the document does not have the marks, once each and in order.
    """
    before, mark, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise InputError(f"no lines {BEGIN!r} and {END!r} to write the table between")
    return f"{before}{BEGIN}\n\n{rows}\n\n{END}{after}"
