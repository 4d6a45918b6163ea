"""What nccl-tests printed, from a log: tables of sizes and times, and how they were run.

Old releases do not name the collective that they timed. The columns tell much: reductions have an
operation, rooted ones a root; elements times their size are the printed size, or a rank's part of
it; and bus bandwidth is a known multiple of algorithm bandwidth.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from costmodels.collectives import OPS, Op, bus_factor, supports
from costmodels.collectives.operations import REDUCING_OPS, ROOTED_OPS
from topology.base import MOST_CHARACTERS, InputError
from topology.base.values import dataclass
from topology.catalogue import Fabric
from topology.readers import plain_lines
from validate.nccl_tests.lines import (
    SURE_BANDWIDTH,
    LogRow,
    Rank,
    full_host,
    hosts_of,
    ranks_listed,
    ranks_of,
    read_count,
    read_rank,
    read_row,
    row_bytes,
    shared_device,
)
from validate.nccl_tests.links import (
    LinksText,
    next_run,
    read_environment,
    read_inside,
    read_line,
    read_network,
)

_OPS: Final[Mapping[str, Op]] = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "sendrecv": "send_recv",
}  # fmt: skip
_HEADER: Final = re.compile(r"\bsize\s+count\b")
_TEST: Final = re.compile(r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|"
                          r"reduce|gather|scatter|send_?recv)_perf(?:_mpi)?\b")  # fmt: skip
_OP_WORDS: Final = re.compile(
    r"\b(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|broadcast|"
    r"send[-_ ]?recv)\b",
    re.IGNORECASE,
)
_GPUS_PER_PROCESS: Final = re.compile(r"\bnGpus(?:\(perProc\))?\s+(\d+)|(?<!\S)\(?-g\s+(\d+)\b")
_LIBRARY: Final = re.compile(
    r"NCCL version\s{0,9}:?\s{0,9}(\d+)\.(\d+)|"
    r"(?:nccl-library=|NCCL version\s{0,9}:?\s{0,9})(\d)(\d\d)\d\d\b|"
    r"nccl_version:\s*(\d+)\.(\d+)",
    re.IGNORECASE,
)
_NOTE: Final = re.compile(r"^\W*([a-z_]{2,20}):\s+(\S.*)$")
_HOSTS: Final = re.compile(r"(?<!\d)(\d+)\s+(?:nodes|hosts)\b|(single) node", re.IGNORECASE)
_FORCED_ALGORITHM: Final = re.compile(
    r"(?:\bNCCL_ALGO\s*[=:]|\balgo_forced:)\s*\"?(ring|tree|nvlstree|collnet|pat)\b",
    re.IGNORECASE,
)
_TABLE_STARTS: Final = (_HEADER, _GPUS_PER_PROCESS, _TEST)
"""What a line of the next table has."""
_LONGEST_LINE: Final = 1024  # characters; beyond stand numbers of a row, and nothing else
_LONGEST_TITLE: Final = 120
RANK_TOLERANCE: Final = 0.05  # share of the ranks by which a list may miss what bandwidths tell
_FULL_SIZE_OPS: Final = ("all_reduce", "broadcast", "reduce", "send_recv")
"""Collectives whose printed size is that of one rank's elements."""
_RATIO_TOLERANCE: Final = 0.02  # printed bandwidths have two decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One table of a log; what the log does not say is None or empty.

    op : that a program's name tells. spoken : the last that other words before the table name.
    stated : GPUs by a remark, or by a list that is whole; 0 where `gpus` is worked out.
    listed : ranks in its list, where that is whole. shared : that two of them name one GPU.
    per_process : GPUs that one process drives. per_node : GPUs of one node. algorithm : forced,
    empty where NCCL chose. links : what was said of them. unread : lines of rows that were left
    out, for want of numbers where they belong.
    """

    title: str = ""
    op: Op | None = None
    spoken: Op | None = None
    gpus: int | None = None
    stated: int = 0
    listed: int = 0
    shared: str = ""
    nodes: int | None = None
    per_process: int = 1
    per_node: int | None = None
    nccl: tuple[int, int] | None = None
    product: str = ""
    algorithm: str = ""
    links: LinksText = LinksText()
    rows: tuple[LogRow, ...] = ()
    unread: tuple[int, ...] = ()


def read_log(text: str) -> tuple[Log, ...]:
    """Read every table of an nccl-tests log.

    Columns may lack the reduction, the root or the in-place half; prefixes of launchers, colours
    and other programs' lines are passed over. Rows of no bytes are left out.

    Raises InputError if there is no table in the text.

    >>> log, = read_log('''# Collective test starting: all_gather_perf
    ... #  Rank  0 Group  0 Pid 7 on  node1 device  0 [0x07] NVIDIA H100 80GB HBM3
    ... #  Rank  1 Group  0 Pid 8 on  node1 device  1 [0x0b] NVIDIA H100 80GB HBM3
    ... 0: 1048576  131072  float  none  -1  22.10  47.45  23.72  0  21.90  47.88  23.94  0
    ... ''')
    >>> log.op, log.gpus, log.nodes, f"{log.rows[0].seconds * 1e6:.1f} us"
    ('all_gather', 2, 1, '22.1 us')
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"log of {len(text)} characters: expected at most {MOST_CHARACTERS}")
    lines = plain_lines(text)
    logs = tuple(_tables(lines))
    if not logs:
        row_lines = (number for number, line in enumerate(lines, 1) if row_bytes(line) is not None)
        bad_number = next(
            (f"number that can be read from line {number}" for number in row_lines), ""
        )
        missing = bad_number or "line of an nccl-tests table"
        raise InputError(f"log: got no {missing}, wanted size, count, type, time ...")
    return logs


def _tables(lines: Sequence[str]) -> Iterator[Log]:
    log, ranks, rows, unread = Log(), list[Rank](), list[LogRow](), list[int]()
    for number, full_line in enumerate(lines, 1):
        size = row_bytes(full_line)
        if size is not None:
            row = read_row(number, full_line)
            rows += filter(None, [row])
            unread += [number] if row is None and size else []
            continue
        line = full_line[:_LONGEST_LINE]
        rank = read_rank(line)
        starts_table = line.lstrip().startswith("##") or any(p.search(line) for p in _TABLE_STARTS)
        if rows and (rank or starts_table):
            yield _finished_log(replace(log, unread=tuple(unread)), ranks, rows)
            log, ranks, rows, unread = _next_table(log), [], [], []
        if rank:
            ranks.append(rank)
            # a driver older than the card has no name for it
            has_name = rank.product and "Graphics Device" not in rank.product
            log = replace(log, product=rank.product) if has_name else log
        else:
            log = _with_line(log, line)
    if rows:
        yield _finished_log(replace(log, unread=tuple(unread)), ranks, rows)


def _next_table(log: Log) -> Log:
    """Keep what holds for every table of a log."""
    return Log(
        nccl=log.nccl,
        product=log.product,
        per_process=log.per_process,
        per_node=log.per_node,
        links=replace(log.links, switches=next_run(log.links.switches)),
    )


def _with_line(log: Log, line: str) -> Log:
    """Take up what a line outside the table says."""
    test, run, library = (p.search(line) for p in (_TEST, _GPUS_PER_PROCESS, _LIBRARY))
    algorithm = _FORCED_ALGORITHM.search(line)
    if test:
        log = replace(log, op=_OPS[test[1].replace("_", "")])
    spoken = _OP_WORDS.search(line)
    if spoken:
        log = replace(log, spoken=_OPS[re.sub(r"[-_ ]", "", spoken[1].lower())])
    if run:
        log = replace(log, per_process=read_count(run[1] or run[2]))
    if library:
        major, minor = (part for part in library.groups() if part is not None)
        log = replace(log, nccl=(read_count(major), read_count(minor)))
    log = replace(log, links=read_line(line, log.links))
    if algorithm:
        log = replace(log, algorithm=algorithm[1].lower().replace("nvlstree", "nvls_tree"))
    note = _NOTE.match(line)
    return _with_remark(log, note[1], note[2].strip()) if note else _with_heading(log, line)


def _with_remark(log: Log, key: str, value: str) -> Log:
    """Take a remark ``# nodes: 2`` that somebody wrote over a log."""
    is_count = key in ("gpus_total", "gpus", "ranks", "nodes", "gpus_per_node")
    number = read_count(value) if is_count and value.isdecimal() else 0
    if number:
        return replace(
            log,
            nodes=number if key == "nodes" else log.nodes,
            per_node=number if key == "gpus_per_node" else log.per_node,
            gpus=log.gpus if key in ("nodes", "gpus_per_node") else number,
        )
    if key == "gpu":
        return replace(log, product=value)
    name = value.lower().replace("_", "").replace("-", "")
    if key == "collective" and name in _OPS:
        return replace(log, op=_OPS[name])
    return replace(log, links=_links_with_remark(log.links, key, value))


def _links_with_remark(links: LinksText, key: str, value: str) -> LinksText:
    """Take a remark about links, or about variables that change what is used of them."""
    if key in ("link_inter", "network"):
        network = read_network(value)
        return replace(
            links,
            kind=network.kind,
            nics=network.nics,
            rates=network.rates,
            total=network.total,
            sockets=read_environment(value, links).sockets,
        )
    if key == "link_intra":
        return read_inside(value, links)
    return read_environment(value, links) if key in ("env", "environment") else links


def _with_heading(log: Log, line: str) -> Log:
    """Take a heading ``## NCCL All to All, 2 hosts``."""
    text = line.strip()
    if not text.startswith("##"):
        return log
    title = text.strip("# ")
    hosts = _HOSTS.search(title)
    words = re.sub(r"[\W_]|nccl", "", title.lower())
    named_ops = [op for name, op in _OPS.items() if words.startswith(name)]
    return replace(
        log,
        title=title[:_LONGEST_TITLE],
        op=named_ops[0] if named_ops else log.op,
        nodes=(1 if hosts[2] else read_count(hosts[1])) if hosts else log.nodes,
    )


def named_op(text: str) -> Op | None:
    """Find the collective that a text such as a file's name speaks of; None where none or several.

    >>> named_op("h100_All-Reduce_8.log"), named_op("alltoall.txt"), named_op("run.log")
    ('all_reduce', 'all_to_all', None)
    """
    squeezed = re.sub(r"[\W_]+", "", text.lower())
    ops = set[Op]()
    for name, op in sorted(_OPS.items(), key=lambda pair: -len(pair[0])):
        if name in squeezed:
            ops.add(op)
            squeezed = squeezed.replace(name, " ")
    return ops.pop() if len(ops) == 1 else None


def with_op(log: Log, op: Op) -> Log:
    """Say which collective a log is of; ranks that its bandwidths tell are worked out."""
    gpus = log.gpus or _rounded_ranks(ranks_of(op, log.rows), log.nodes)
    return _with_true_ranks(replace(log, op=op, gpus=gpus), log.per_node)


def _finished_log(log: Log, ranks: Sequence[Rank], rows: Sequence[LogRow]) -> Log:
    """Add what ranks and bandwidths tell to what was said."""
    log = replace(log, rows=tuple(sorted(rows, key=lambda row: row.message_bytes)))
    log = _with_rank_counts(log, ranks, rows)
    if log.nodes or not log.gpus or not log.per_node or log.gpus % log.per_node:
        return log
    return replace(log, nodes=log.gpus // log.per_node)  # where nothing else says it


def _with_rank_counts(log: Log, ranks: Sequence[Rank], rows: Sequence[LogRow]) -> Log:
    if not ranks:
        gpus = log.gpus or _rounded_ranks(ranks_of(log.op, rows), log.nodes)
        process_gpus = log.per_process if log.per_process > 1 and not log.nodes else None
        return replace(log, gpus=gpus or process_gpus, stated=log.gpus or 0)
    gpus = ranks_listed(ranks)
    is_whole = len({rank.number for rank in ranks}) == gpus
    listed_log = replace(
        log,
        gpus=log.gpus or gpus,
        stated=log.gpus or (gpus if is_whole else 0),
        listed=gpus if is_whole else 0,
        nodes=log.nodes or hosts_of(ranks, gpus),
        shared=shared_device(ranks) if is_whole else "",
    )
    return _with_true_ranks(listed_log, log.per_node or full_host(ranks))


def _with_true_ranks(log: Log, per_node: int | None) -> Log:
    """Take the ranks that bandwidths tell where a list of ranks shows another number.

    Lists are cut short (then too few are shown), or only their last line is.
    """
    printed_ranks = ranks_of(log.op, log.rows)
    if (
        not printed_ranks
        or not log.gpus
        or abs(printed_ranks - log.gpus) <= RANK_TOLERANCE * log.gpus
    ):
        return log
    if log.listed and printed_ranks < 2 * log.listed:  # a whole list is believed
        return log
    nodes = round(printed_ranks / per_node) if per_node else None
    gpus = nodes * per_node if nodes and per_node else printed_ranks
    return replace(log, gpus=gpus, stated=0, listed=0, nodes=nodes)


def _rounded_ranks(ranks: int | None, nodes: int | None) -> int | None:
    """Round a number of ranks that was worked out to one that fills its nodes evenly."""
    if not ranks or not nodes or ranks < nodes:
        return ranks
    return nodes * round(ranks / nodes)


def inferred_op(log: Log, name: str, gpus: int | None) -> tuple[Op, str]:
    """Infer the collective of a log, and say from what.

    Raises InputError if several collectives print such columns, or the name of the file speaks of
    another.

    name : of the file, empty where there is none. gpus : ranks, None where nobody says.
    """
    possible = possible_ops(log, gpus)
    if not possible:  # a list of ranks that was cut short
        gpus, possible = None, possible_ops(log, None)
    file_op = named_op(name)
    if file_op is not None and file_op in possible:
        return file_op, f"the log does not name its collective: {file_op}, as its file is called"
    if file_op is None and len(possible) == 1:
        why = "; ".join(_op_signs(log, gpus))
        return possible[0], f"the log does not name its collective: {possible[0]}, since {why}"
    if file_op is None and log.spoken in possible:
        return (
            log.spoken,
            f"the log does not name its collective: {log.spoken}, as words over it say",
        )
    candidates = (
        f"its file is called {file_op}, its columns are not" if file_op else " or ".join(possible)
    )
    reason = f": {candidates or 'its columns fit none'}"
    raise InputError(f"log: it does not say which collective it timed{reason}: give --op")


def possible_ops(log: Log, gpus: int | None) -> tuple[Op, ...]:
    """List the collectives that would print such columns."""
    rows = _largest(log)
    return tuple(
        op
        for op in OPS
        if all(
            _columns_fit(op, row) and _size_fits(op, row) and _ratio_fits(op, row, gpus)
            for row in rows
        )
    )


def forced_algorithm(log: Log, op: Op, fabric: Fabric) -> str:
    """Give the algorithm that a log's variables force, where it can do this collective."""
    is_supported = log.algorithm and supports(op, log.algorithm, fabric)
    return log.algorithm if is_supported else "auto"


def sizes_hold(log: Log, op: Op, ranks: int) -> bool:
    """Whether printed elements times their size make the printed sizes, as nccl-tests has it."""
    parts = 1 if op in _FULL_SIZE_OPS else ranks
    rows = _largest(log)
    return all(row.count * row.item_bytes * parts == row.message_bytes for row in rows)


def _largest(log: Log) -> tuple[LogRow, ...]:
    return log.rows[-8:]  # the largest: their bandwidths have most digits


def _columns_fit(op: Op, row: LogRow) -> bool:
    """Whether a collective prints such a reduction and root; a column is absent where it has none.

    Sends print the reduction that others use.
    """
    reduces = row.reduction not in ("", "none")
    rooted = row.root is not None and row.root >= 0
    return (op == "send_recv" or reduces == (op in REDUCING_OPS)) and rooted == (op in ROOTED_OPS)


def _size_fits(op: Op, row: LogRow) -> bool:
    return (row.count * row.item_bytes == row.message_bytes) == (op in _FULL_SIZE_OPS)


def _ratio_fits(op: Op, row: LogRow, gpus: int | None) -> bool:
    """Whether bandwidths stand as they should: for `gpus` ranks, or for any number of them."""
    factor = _ratio(row)
    if factor is None:
        return True
    if gpus is not None and gpus > 1:
        return abs(factor / bus_factor(op, gpus) - 1) < _RATIO_TOLERANCE
    if bus_factor(op, 2) == bus_factor(op, 3):
        return abs(factor - 1) < _RATIO_TOLERANCE
    return bus_factor(op, 2) - _RATIO_TOLERANCE < factor < 2 * bus_factor(op, 2) + _RATIO_TOLERANCE


def _ratio(row: LogRow) -> float | None:
    if row.algorithm_bandwidth_bytes_per_s < SURE_BANDWIDTH:
        return None
    return row.bus_bandwidth_bytes_per_s / row.algorithm_bandwidth_bytes_per_s


def _op_signs(log: Log, gpus: int | None) -> Iterator[str]:
    """Say what told the collective."""
    last_row = log.rows[-1]
    if last_row.reduction:
        yield f"its reduction is {last_row.reduction}"
    if last_row.root is not None:
        yield f"its root is {last_row.root}" if last_row.root >= 0 else "it has no root"
    ratios = [ratio for ratio in map(_ratio, _largest(log)) if ratio is not None]
    if ratios:
        gpu_text = f" on {gpus} GPUs" if gpus else ""
        yield f"bus bandwidth is {median(ratios):.3g} times algorithm bandwidth{gpu_text}"
    yield (
        "sizes are those of one rank"
        if _size_fits("all_reduce", last_row)
        else "sizes are of all ranks"
    )
