"""Predicted collectives beside those that nccl-tests measured, and why they part."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodels.collectives import PROTOCOLS, NcclSettings, bus_factor, choose, read_op
from planner.collective_table import MOST_GPUS, MOST_NODES, curves_of, links
from topology.base import InputError, counted, format_bytes
from topology.base.values import dataclass
from topology.catalogue import Fabric, all_hardware, by_product, find_hardware, gpu_names
from validate.nccl_tests.diagnosis import MeasuredCollective, diagnose, disturbances, disturbed
from validate.nccl_tests.lines import LogRow, ranks_of
from validate.nccl_tests.links import fabric_of_log
from validate.nccl_tests.log import (
    Log,
    forced_algorithm,
    inferred_op,
    read_log,
    sizes_hold,
    with_op,
)
from validate.nccl_tests.report import ComparedRow, LogComparison

if TYPE_CHECKING:
    from planner.request.subset import Subset

OLDEST_NCCL: Final = (2, 18)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What the caller says about a log; empty, None and 0 where the log must tell.

    subset : the machine, where the caller has one. name : of the log's file.
    profile : as in `planner.collective_table.table`. here : `subset` is the machine this runs on.
    sizes : the least and the most bytes of a row; of several ranges, those of each.
    """

    hardware: str = ""
    gpus: int | None = None
    nodes: int = 0
    subset: "Subset | None" = None
    op: str = ""
    algorithm: str = "auto"
    name: str = ""
    profile: str = ""
    here: bool = False
    sizes: tuple[tuple[float, float], ...] = ((0, np.inf),)


def compare_all(text: str, options: LogOptions) -> list[LogComparison]:
    """Compare every table of a log with the model.

    Raises InputError if there is no table, nobody says what was measured on what, or a log and the
    caller do not agree about it.
    """
    if options.op:
        read_op(options.op)
    logs = read_log(text)
    comparisons = [compare(log, options) for log in logs if _chosen_rows(log, options)]
    if not comparisons:
        log_sizes = [row.message_bytes for log in logs for row in log.rows]
        ranges = ", ".join(
            " to ".join(map(format_bytes, bounds if bounds[0] < bounds[1] else bounds[:1]))
            for bounds in options.sizes[:3]
        )
        log_range = f"{format_bytes(min(log_sizes))} to {format_bytes(max(log_sizes))}"
        raise InputError(f"bytes: got {ranges}, wanted some of the log's, {log_range}")
    return comparisons


def _chosen_rows(log: Log, options: LogOptions) -> list[LogRow]:
    """List the rows of the sizes that were asked for."""
    return [
        row
        for row in log.rows
        if any(low <= row.message_bytes <= high for low, high in options.sizes)
    ]


def compare(log: Log, options: LogOptions) -> LogComparison:
    """Price every row of one table on the links that it was measured on."""
    log, op_notes = known_op(log, options)
    fabric, name, link_notes = links_of(log, options)
    mismatch = other_hardware(log, name) or log.shared
    rows = _chosen_rows(log, options)
    op = read_op(log.op or options.op)
    run = MeasuredCollective(
        op=op,
        fabric=fabric,
        algorithm=options.algorithm
        if options.algorithm != "auto"
        else forced_algorithm(log, op, fabric),
        settings=NcclSettings(
            nccl=max(log.nccl, OLDEST_NCCL) if log.nccl else NcclSettings().nccl,
            launcher="single" if log.per_process > 1 else "process",
            protocols=log.links.switches.protocols,
        ),
        sizes=np.array([row.message_bytes for row in rows]),
        seconds=np.array([row.seconds for row in rows]),
        calibration=curves_of(name, options.profile, options.subset if options.here else None),
        sized=sizes_hold(log, op, fabric.ranks),
    )
    nodes = options.nodes or log.nodes or fabric.nodes
    return LogComparison(
        title=log.title,
        op=run.op,
        hardware=name,
        gpus=fabric.ranks,
        # each GPU is a node of its own where all of them talk over NICs
        nodes=fabric.nodes if fabric.nodes < fabric.ranks else nodes,
        rows=tuple(_rows(run, [row.in_place_s for row in rows])),
        mismatch=mismatch,
        notes=(*op_notes, *link_notes, *_notes(log, fabric)),
        diagnosis=tuple(disturbances(run) if mismatch else diagnose(run)),
    )


def known_op(log: Log, options: LogOptions) -> tuple[Log, tuple[str, ...]]:
    """Find out which collective a log is of, and say so where it had to be inferred.

    Raises InputError if nothing tells it, or the log tells another one than the caller.
    """
    if log.op is not None:
        if options.op not in ("", log.op):
            raise InputError(f"op: got {options.op}, wanted {log.op}, which the log says it timed")
        return log, ()
    if options.op:
        return with_op(log, read_op(options.op)), ()
    op, note = inferred_op(log, options.name, options.gpus or log.gpus)
    return with_op(log, op), (note,)


def other_hardware(log: Log, name: str) -> str:
    """Say that a log names other GPUs than those it is compared with; empty where it does not.

    >>> other_hardware(Log(product="NVIDIA H100 80GB HBM3"), "a100-sxm-80gb")
    'the log names NVIDIA H100 80GB HBM3 (h100-sxm), priced as a100-sxm-80gb'
    """
    log_hardware = by_product(gpu_names(), log.product) if log.product else None
    if log_hardware is None or log_hardware == name or name not in all_hardware():
        return ""
    if find_hardware(log_hardware).device == find_hardware(name).device:
        return ""
    return f"the log names {log.product[:60]} ({log_hardware}), priced as {name}"


def links_of(log: Log, options: LogOptions) -> tuple[Fabric, str, tuple[str, ...]]:
    """Give the links that a log was measured on, the name of its GPUs, and what was read of them.

    What the log says of its links stands before the catalogue; a machine that the caller has
    stands before both.

    Raises InputError if nobody says how many GPUs of which kind there were.
    """
    ranks = _rank_count(log, options)
    nodes = options.nodes or log.nodes or 0
    if not 0 <= nodes <= MOST_NODES:
        raise InputError(f"nodes: got {nodes}, wanted a whole number from 1 to {MOST_NODES}")
    if log.nodes and nodes != log.nodes and ranks == (log.stated or ranks):
        raise InputError(f"nodes: got {nodes}, wanted {log.nodes}, which the log says it ran on")
    hosts = nodes if nodes > 1 else 0
    if options.subset is not None:
        machine_part = options.subset.on(ranks, hosts)
        return machine_part.fabric(), machine_part.machine.hardware or machine_part.machine.name, ()
    name = options.hardware or by_product(gpu_names(), log.product)
    if not name:
        product_text = repr(log.product[:40]) if log.product else "nothing"
        raise InputError(
            f"log: got {product_text} for the kind of GPU, wanted a catalogue name: give --hardware"
        )
    node = find_hardware(name)
    usual_links, name = links(ranks, name, 0 if node.domain > node.gpus else hosts)
    fabric, notes = fabric_of_log(usual_links, log.links, node, log.product)
    return fabric, name, notes


def _rank_count(log: Log, options: LogOptions) -> int:
    """Count the GPUs that a log is of: as the caller says, who may leave out some of those listed.

    Raises InputError if nobody says, it cannot be, or the log says another number.
    """
    caller_gpus = options.gpus
    ranks = log.gpus if caller_gpus is None else caller_gpus
    if ranks is None or (caller_gpus is None and ranks < 2):
        raise InputError(f"log: got {ranks or 'no'} GPUs, wanted two or more: give --gpus")
    if not 2 <= ranks <= MOST_GPUS:
        raise InputError(f"gpus: got {ranks}, wanted a whole number from 2 to {MOST_GPUS}")
    is_subset = log.stated > ranks == ranks_of(log.op, log.rows)
    if log.stated and ranks != log.stated and not is_subset:
        raise InputError(f"gpus: got {ranks}, wanted {log.stated}, which the log says it ran on")
    return ranks


def _rows(run: MeasuredCollective, in_place: Sequence[float | None]) -> Iterator[ComparedRow]:
    predicted, marks = run.times(), disturbed(run.seconds)
    factor = bus_factor(run.op, run.fabric.ranks)
    columns = zip(run.sizes, run.seconds, in_place, predicted, marks, strict=True)
    for size, measured, in_place_s, time, marked in columns:
        algorithm, protocol = choose(
            run.op, float(size), run.fabric, algorithm=run.algorithm, settings=run.settings
        )
        yield ComparedRow(
            message_bytes=round(size),
            measured_s=float(measured),
            in_place_s=in_place_s,
            predicted_s=float(time),
            error=float(time / measured - 1),
            disturbed=bool(marked),
            bus_bandwidth_bytes_per_s=float(size / measured * factor),
            predicted_bus_bandwidth_bytes_per_s=float(size / time * factor),
            algorithm=algorithm,
            protocol=protocol,
        )


def _notes(log: Log, fabric: Fabric) -> Iterator[str]:
    """Say which GPUs ran, what in the log does not add up, and what was assumed."""
    if log.stated > fabric.ranks:
        yield f"bandwidths of {fabric.ranks} of the {log.stated} GPUs that the log lists, in groups"
    printed_ranks = ranks_of(log.op, log.rows)
    if printed_ranks is not None and abs(printed_ranks - fabric.ranks) > 0.02 * fabric.ranks:
        yield f"bus bandwidths were printed for {printed_ranks} ranks, not for {fabric.ranks}"
    ratios = [
        row.algorithm_bandwidth_bytes_per_s * row.seconds / row.message_bytes
        for row in log.rows
        if row.algorithm_bandwidth_bytes_per_s > 10**9
    ]
    if ratios and abs(np.log(np.median(ratios))) > 0.1:
        yield f"printed bandwidths count {np.median(ratios):.3g} times the printed sizes"
    protocols = log.links.switches.protocols
    if protocols != PROTOCOLS:
        yield f"the log leaves NCCL the protocol {' or '.join(protocols)}"
    if log.nccl is None:
        yield "the log names no NCCL release: taken as 2.29"
    elif log.nccl < OLDEST_NCCL:
        yield f"NCCL {log.nccl[0]}.{log.nccl[1]} is older than 2.18, whose choices are taken"
    if log.unread:
        yield (
            f"{counted(len(log.unread), 'row')} without numbers that can be read, from line "
            f"{log.unread[0]} on: left out"
        )
    if any(row.in_place_s is None for row in log.rows):
        yield "times in place are missing from some rows"
