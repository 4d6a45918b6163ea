"""The accuracy table: every model against the figures that ship in `validate/data`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from topology.base import InputError
from topology.base.table import Table
from topology.catalogue import all_devices, all_hardware
from validate.accuracy import collectives, dispatch, kernels, layers, plans, plans_run, serving
from validate.accuracy.figures import Score, score
from validate.tables import text

HEADERS: Final = ("what", "figures", "median", "9 of 10 within", "worst", "bias")
SHORT_HEADERS: Final = ("what", "figures", "median", "9 of 10 within", "bias")

BEGIN: Final = "<!-- accuracy: made by python -m validate accuracy --write docs/accuracy.md -->"
SHORT_BEGIN: Final = (
    "<!-- accuracy in short: made by python -m validate accuracy --write README.md -->"
)
HELD_BEGIN: Final = (
    "<!-- intervals: made by python -m validate accuracy --write docs/accuracy.md -->"
)
END: Final = "<!-- /accuracy -->"
UNSEEN: Final = "nccl-tests logs, in no fit"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "collectives: nccl-tests logs that nothing was fitted to": (UNSEEN,),
    "kernels: samples of fitted tables, and eight other GPUs": ("matrix products", "attention"),
    "whole plans: published by others": ("whole plans", "plans of other sources"),
    "whole plans: run by us on 1 and 2 GPUs": ("steps run on",),
    "language models under load: TPOT": ("serving TPOT",),
    "language models under load: tokens/s": ("serving tokens/s",),
    "language models under load: TTFT": ("serving TTFT",),
    "peak memory of plans run by us": ("peak memory",),
    "chosen plan on 2 GPUs: slower than the fastest measured by": ("time lost",),
}  # fmt: skip
"""Lines of the short table, and how the names of the groups begin that each pools: figures that
were in no fit, or where that is not known of each, all. No profile of the machine counts."""


Groups = Mapping[str, Sequence[float]]
"""Relative errors of groups of figures, by the name of the group."""


@cache
def groups() -> Groups:
    """Compare every figure with the models."""
    logs, unseen_figures = (
        collectives.read_log_figures(text(f"nccl_{name}_figures.csv"), all_hardware())
        for name in ("table", "unseen")
    )
    collective_figures = collectives.read_figures(text("collectives_figures.csv"), all_hardware())
    layer_figures = layers.read_figures(text("engine_layer_figures.csv"), all_devices())
    errors: dict[str, list[float]] = {
        **collectives.groups(collective_figures),
        **collectives.log_groups(logs),
        UNSEEN: [figure.error for figure in unseen_figures],
        **kernels.groups(kernels.read_figures(text("kernel_figures.csv"), all_devices())),
        **kernels.engine_groups(
            kernels.read_figures(text("engine_kernel_figures.csv"), all_devices())
        ),
        **dispatch.groups(dispatch.read_figures(text("dispatch_figures.csv"))),
        **layers.groups(layer_figures),
        **layers.held_out_errors(layer_figures, all_devices()),
    }
    for words, figures in _published_figures().items():
        by_family = plans.groups(figures)
        errors |= {f"{words}, {family}": group for family, group in by_family.items()}
    errors |= serving.groups(_served_runs())
    for machine in plans_run.MACHINES:
        errors |= plans_run.groups(text(f"{machine.folder}/plans.jsonl"), machine)
    return errors


@cache
def _published_figures() -> Mapping[str, list[plans.PlanFigure]]:
    """Read the times of plans that others published, as they are called in the table."""
    names = {
        "whole plans": "plan_figures",
        "plans of other sources": "plan_figures_of_other_sources",
    }
    return {words: plans.read_figures(text(f"{name}.csv")) for words, name in names.items()}


@cache
def _served_runs() -> list[serving.Run]:
    """Predict what clients saw of language models that others served."""
    return serving.runs(serving.read_figures(text("serving_figures.csv")))


@cache
def interval_hits() -> Mapping[str, Sequence[bool]]:
    """Say of each published time whether its interval holds it, by what it is of."""
    plan_hits = plans.interval_hits(
        figure for figures in _published_figures().values() for figure in figures
    )
    return {**plan_hits, **serving.interval_hits(_served_runs())}


def held_table() -> Table:
    """Make the table of intervals that hold, which are to be two in three."""
    rows = [
        [kind, str(len(hits)), f"{100 * sum(hits) / len(hits):.0f} %"]
        for kind, hits in interval_hits().items()
    ]
    return Table(head=("intervals of published times of", "figures", "hold"), rows=rows)


def scores(errors: Groups) -> list[Score]:
    """Score every group, one line a group."""
    return [score(name, group) for name, group in errors.items() if group]


def table(errors: Groups) -> Table:
    """Make the table of all groups."""
    return Table(head=HEADERS, rows=[cells(line) for line in scores(errors)])


def short_table(errors: Groups) -> Table:
    """Make a table of what the groups of each of the `KINDS` say together, without outliers."""
    rows = []
    for words, prefixes in KINDS.items():
        pooled_errors = [
            error
            for name, group in errors.items()
            if name.startswith(prefixes) and not name.endswith(plans_run.WITH_PROFILE)
            for error in group
        ]
        name, count, median, p90, _, bias = cells(score(words, pooled_errors))
        rows.append([name, count, median, p90, bias])
    return Table(head=SHORT_HEADERS, rows=rows)


def cells(line: Score) -> list[str]:
    """Write one line of the table."""
    percent = [f"{100 * x:.1f} %" for x in (line.median, line.p90, line.worst)]
    return [line.group[0], str(line.rows), *percent, f"{100 * line.bias:+.1f} %"]


def documents(errors: Groups) -> dict[str, str]:
    """Write the tables of documents, by the line that each begins with."""
    return {
        BEGIN: table(errors).markdown(),
        SHORT_BEGIN: short_table(errors).markdown(),
        HELD_BEGIN: held_table().markdown(),
    }


def inserted(document: str, begin: str, rows: str) -> str:
    """Put a table between the two marks of a document.

    Raises InputError if the document does not have the marks, once each and in order.
    """
    before, mark, tail = document.partition(begin)
    _, end, after = tail.partition(END)
    if not mark or not end:
        raise InputError(f"no lines {begin!r} and {END!r} to write the table between")
    return f"{before}{begin}\n\n{rows}\n\n{END}{after}"
