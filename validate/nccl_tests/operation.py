"""Which collective a log of nccl-tests timed, where no line of it says so.

Old releases print no name. The columns tell much: reductions have an operation, rooted ones a
root; elements times their size are the printed size, or a rank's part of it; and bus bandwidth is
a known multiple of algorithm bandwidth.
"""

from collections.abc import Iterator
from statistics import median
from typing import Final

from costmodels.collectives import supports
from costmodels.collectives.operations import OPS, Op
from planner.collectives import bus_factor
from topology.base import InputError
from topology.catalogue import Fabric
from validate.nccl_tests.log import Log, named_op
from validate.nccl_tests.rows import SURE, LogRow

_REDUCING: Final = ("all_reduce", "reduce_scatter", "reduce")
_ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
_WHOLE: Final = ("all_reduce", "broadcast", "reduce", "send_recv")
"""Collectives whose printed size is that of one rank's elements."""
_NEAR: Final = 0.02  # printed bandwidths have two decimals


def inferred_op(log: Log, name: str, gpus: int | None) -> tuple[Op, str]:
    """Infer the collective of a log, and say from what.

    Parameters
    ----------
    name : of the file, empty where there is none. gpus : ranks, None where nobody says.

    Raises
    ------
    InputError
        If several collectives print such columns, or the name of the file speaks of another.
    """
    able = possible_ops(log, gpus)
    if not able:  # a list of ranks that was cut short
        gpus, able = None, possible_ops(log, None)
    named = named_op(name)
    if named is not None and named in able:
        return named, f"the log does not name its collective: {named}, as its file is called"
    if named is None and len(able) == 1:
        why = "; ".join(_signs(log, gpus))
        return able[0], f"the log does not name its collective: {able[0]}, since {why}"
    if named is None and log.spoken in able:
        return (
            log.spoken,
            f"the log does not name its collective: {log.spoken}, as words over it say",
        )
    what = f"its file is called {named}, its columns are not" if named else " or ".join(able)
    said = f": {what or 'its columns fit none'}"
    raise InputError(f"log: it does not say which collective it timed{said}: give --op")


def possible_ops(log: Log, gpus: int | None) -> tuple[Op, ...]:
    """List the collectives that would print such columns."""
    return tuple(op for op in OPS if all(_fits(op, row, gpus) for row in _told(log)))


def forced(log: Log, op: Op, fabric: Fabric) -> str:
    """Give the algorithm that a log's variables force, where it can do this collective."""
    able = log.algorithm and supports(op, log.algorithm, fabric)
    return log.algorithm if able else "auto"


def sizes_hold(log: Log, op: Op, ranks: int) -> bool:
    """Whether printed elements times their size make the printed sizes, as nccl-tests has it."""
    parts = 1 if op in _WHOLE else ranks
    told = _told(log)
    return all(row.count * row.item_bytes * parts == row.message_bytes for row in told)


def _told(log: Log) -> tuple[LogRow, ...]:
    return log.rows[-8:]  # the largest: their bandwidths have most digits


def _fits(op: Op, row: LogRow, gpus: int | None) -> bool:
    return _columns_fit(op, row) and _size_fits(op, row) and _ratio_fits(op, row, gpus)


def _columns_fit(op: Op, row: LogRow) -> bool:
    """Whether a collective prints such a reduction and root; a column is absent where it has none.

    Sends print the reduction that others use.
    """
    reduces = row.reduction not in ("", "none")
    rooted = row.root is not None and row.root >= 0
    return (op == "send_recv" or reduces == (op in _REDUCING)) and rooted == (op in _ROOTED)


def _size_fits(op: Op, row: LogRow) -> bool:
    return (row.count * row.item_bytes == row.message_bytes) == (op in _WHOLE)


def _ratio_fits(op: Op, row: LogRow, gpus: int | None) -> bool:
    """Whether bandwidths stand as they should: for `gpus` ranks, or for any number of them."""
    factor = _ratio(row)
    if factor is None:
        return True
    if gpus is not None and gpus > 1:
        return abs(factor / bus_factor(op, gpus) - 1) < _NEAR
    if bus_factor(op, 2) == bus_factor(op, 3):
        return abs(factor - 1) < _NEAR
    return bus_factor(op, 2) - _NEAR < factor < 2 * bus_factor(op, 2) + _NEAR


def _ratio(row: LogRow) -> float | None:
    if row.algorithm_bandwidth_bytes_per_s < SURE:
        return None
    return row.bus_bandwidth_bytes_per_s / row.algorithm_bandwidth_bytes_per_s


def _signs(log: Log, gpus: int | None) -> Iterator[str]:
    """Say what told the collective."""
    last = log.rows[-1]
    if last.reduction:
        yield f"its reduction is {last.reduction}"
    if last.root is not None:
        yield f"its root is {last.root}" if last.root >= 0 else "it has no root"
    ratios = [ratio for ratio in map(_ratio, _told(log)) if ratio is not None]
    if ratios:
        on = f" on {gpus} GPUs" if gpus else ""
        yield f"bus bandwidth is {median(ratios):.3g} times algorithm bandwidth{on}"
    yield (
        "sizes are those of one rank"
        if _size_fits("all_reduce", last)
        else "sizes are of all ranks"
    )
