"""What nccl-tests printed, from a log: tables of sizes and times, and how they were run."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from costmodels.collectives.operations import Op
from planner.nccl_network import (
    LinksText,
    read_environment,
    read_inside,
    read_line,
    read_network,
)
from topology.errors import InputError
from topology.readers.lines import MOST_CHARACTERS, plain_lines

_ITEM_BYTES: Final = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
_OPS: Final[Mapping[str, Op]] = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "sendrecv": "send_recv",
}  # fmt: skip
_TYPES: Final = "|".join(sorted(_ITEM_BYTES, key=len, reverse=True))
_ROW: Final = re.compile(rf"(?<![\w.])(\d{{1,16}}+)\s++(\d{{1,16}}+)\s++({_TYPES})\s+(.*)$")
_REDUCTIONS: Final = frozenset(("sum", "prod", "max", "min", "avg", "mulsum", "none", "all"))
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|N/A|inf|-?nan", re.IGNORECASE)
_HEADER: Final = re.compile(r"\bsize\s+count\b")
_RANK: Final = re.compile(
    r"Rank\s{1,9}(\d{1,9})\s.{0,99}?\bon\s{1,9}(\S{1,255})\s{1,9}device\s{1,9}(\d{1,9})\s{1,9}"
    r"\[[^\]]{0,40}\]\s*(.*)$"
)
_TEST: Final = re.compile(r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|"
                          r"reduce|gather|scatter|send_?recv)_perf\b")  # fmt: skip
_RUN: Final = re.compile(r"\bnGpus(?:\(perProc\))?\s+(\d+)|(?<!\S)\(?-g\s+(\d+)\b")
_GRAPH: Final = re.compile(r"\bgraph:\s*(\d+)")
_LIBRARY: Final = re.compile(
    r"NCCL version\s{0,9}:?\s{0,9}(\d+)\.(\d+)|nccl-library=(\d)(\d\d)\d\d|"
    r"nccl_version:\s*(\d+)\.(\d+)",
    re.IGNORECASE,
)
_NOTE: Final = re.compile(r"^\W*([a-z_]{2,20}):\s+(\S.*)$")
_HOSTS: Final = re.compile(r"(?<!\d)(\d+)\s+(?:nodes|hosts)\b|(single) node", re.IGNORECASE)
_FORCED: Final = re.compile(
    r"(?:\bNCCL_ALGO\s*[=:]|\balgo_forced:)\s*\"?(ring|tree|nvlstree|collnet|pat)\b",
    re.IGNORECASE,
)
_LONGEST_LINE: Final = 1024  # characters; beyond stand numbers of a row, and nothing else
_LONGEST_TITLE: Final = 120
_DIGITS: Final = 9  # of a count
_LEAST: Final = 0.001  # us
_MOST: Final = 10**12  # us, or GB/s
SURE: Final = 2 * 10**9  # B/s above which printed ratios of bandwidths say something


Rank = tuple[int, str, int]
"""Number of a rank, its host, and its device there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One message size.

    seconds : out of place, or in place where only that was printed. in_place_s : None where
    absent. reduction : its name, empty where that column is absent. root : None where absent.
    """

    line: int
    message_bytes: float
    count: int
    item_bytes: int
    seconds: float
    in_place_s: float | None
    algorithm_bandwidth_bytes_per_s: float
    bus_bandwidth_bytes_per_s: float
    reduction: str = ""
    root: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One table of a log; what the log does not say is None or empty.

    stated : GPUs by a remark, or by a list that is whole; 0 where `gpus` is worked out.
    per_process : GPUs that one process drives. per_node : GPUs of one node. algorithm : forced,
    empty where NCCL chose. links : what was said of them. unread : lines of rows that were left
    out, for want of numbers where they belong.
    """

    title: str = ""
    op: Op | None = None
    gpus: int | None = None
    stated: int = 0
    nodes: int | None = None
    per_process: int = 1
    per_node: int | None = None
    nccl: tuple[int, int] | None = None
    product: str = ""
    graph: bool = False
    algorithm: str = ""
    links: LinksText = LinksText()
    rows: tuple[LogRow, ...] = ()
    unread: tuple[int, ...] = ()


def read_log(text: str) -> tuple[Log, ...]:
    """Read every table of an nccl-tests log.

    Columns may lack the reduction, the root or the in-place half; prefixes of launchers, colours
    and other programs' lines are passed over. Rows of no bytes are left out.

    Raises
    ------
    InputError
        If there is no table in the text.

    Examples
    --------
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
        raise _without_rows(lines)
    return logs


def _without_rows(lines: Sequence[str]) -> InputError:
    begun = next((number for number, line in enumerate(lines, 1) if _ROW.search(line)), 0)
    read = f"number that can be read from line {begun}" if begun else "line of an nccl-tests table"
    return InputError(f"log: got no {read}, wanted size, count, type, time ...")


def _tables(lines: Sequence[str]) -> Iterator[Log]:
    log, ranks, rows, unread = Log(), list[Rank](), list[LogRow](), list[int]()
    for number, whole in enumerate(lines, 1):
        match = _ROW.search(whole)
        if match:
            row = _row(number, match)
            rows += filter(None, [row])
            unread += [number] if row is None and int(match[1]) else []
            continue
        line = whole[:_LONGEST_LINE]
        rank = _RANK.search(line)
        if rows and (rank or _opens(line)):
            yield _finished(replace(log, unread=tuple(unread)), ranks, rows)
            log, ranks, rows, unread = _kept(log), [], [], []
        if rank:
            ranks.append((int(rank[1]), rank[2], int(rank[3])))
        log = _with_product(log, rank[4].strip()) if rank else _said(log, line)
    if rows:
        yield _finished(replace(log, unread=tuple(unread)), ranks, rows)


def _opens(line: str) -> bool:
    """Whether a line belongs to the next table of a log."""
    told = _HEADER.search(line) or _RUN.search(line) or _TEST.search(line)
    return bool(told) or line.lstrip().startswith("##")


def _kept(log: Log) -> Log:
    """Keep what holds for every table of a log."""
    kept = Log(nccl=log.nccl, product=log.product, graph=log.graph, per_process=log.per_process)
    return replace(kept, per_node=log.per_node, links=log.links)


def _row(number: int, match: re.Match[str]) -> LogRow | None:
    """Read the numbers behind the type; None where they are no row."""
    size, count, kind, rest = match.groups()
    words = rest.split()
    reduction = words.pop(0) if words and words[0] in _REDUCTIONS else ""
    root = ""
    numbers = [word for word in words if _NUMBER.fullmatch(word)]
    if len(numbers) != len(words) or len(numbers) < 3 or float(size) == 0:
        return None
    if len(numbers) in (5, 9) or (len(numbers) == 4 and "." not in numbers[0]):
        root, numbers = numbers[0], numbers[1:]
    inside = numbers[4] if len(numbers) >= 7 else "N/A"
    time, in_place = (_time(word, number) for word in (numbers[0], inside))
    algorithm, bus = (_bandwidth(word, number) for word in numbers[1:3])
    if not time:
        return None
    return LogRow(
        line=number,
        message_bytes=float(size),
        count=int(count),
        item_bytes=_ITEM_BYTES[kind],
        seconds=time / 10**6,
        in_place_s=in_place / 10**6 or None,
        algorithm_bandwidth_bytes_per_s=algorithm * 10**9,
        bus_bandwidth_bytes_per_s=bus * 10**9,
        reduction=reduction,
        root=_whole(root) if root.lstrip("-").isdecimal() else None,
    )


def _time(word: str, line: int) -> float:
    value = _value(word)
    if value and not _LEAST <= value <= _MOST:
        wanted = f"a time from {_LEAST} to {_MOST} us"
        raise InputError(f"log, line {line}: got {word[:20]}, wanted {wanted}")
    return value


def _bandwidth(word: str, line: int) -> float:
    value = _value(word)
    if not 0 <= value <= _MOST:
        wanted = f"a bandwidth from 0 to {_MOST} GB/s"
        raise InputError(f"log, line {line}: got {word[:20]}, wanted {wanted}")
    return value


def _value(word: str) -> float:
    return 0.0 if word.upper() in ("N/A", "NAN", "-NAN", "INF") else float(word)


def _whole(digits: str) -> int:
    """Read a count; integers of thousands of digits cannot be read.

    >>> _whole("9" * 5000)
    Traceback (most recent call last):
    topology.errors.InputError: log: got 99999999..., wanted a number of at most 9 digits
    """
    if len(digits) > _DIGITS:
        raise InputError(f"log: got {digits[:8]}..., wanted a number of at most {_DIGITS} digits")
    return int(digits)


def _with_product(log: Log, product: str) -> Log:
    """Take up what the list of ranks calls a GPU; a driver older than the card has no name."""
    known = product and "Graphics Device" not in product
    return replace(log, product=product) if known else log


def _said(log: Log, line: str) -> Log:
    test, run, graph, library = (p.search(line) for p in (_TEST, _RUN, _GRAPH, _LIBRARY))
    forced = _FORCED.search(line)
    if test:
        log = replace(log, op=_OPS[test[1].replace("_", "")])
    if run:
        log = replace(log, per_process=_whole(run[1] or run[2]))
    if graph:
        log = replace(log, graph=_whole(graph[1]) > 0)
    if library:
        major, minor = (part for part in library.groups() if part is not None)
        log = replace(log, nccl=(_whole(major), _whole(minor)))
    log = replace(log, links=read_line(line, log.links))
    if forced:
        log = replace(log, algorithm=forced[1].lower().replace("nvlstree", "nvls_tree"))
    note = _NOTE.match(line)
    return _noted(log, note[1], note[2].strip()) if note else _titled(log, line)


def _noted(log: Log, key: str, value: str) -> Log:
    """Take a remark ``# nodes: 2`` that somebody wrote over a log."""
    counts = key in ("gpus_total", "gpus", "ranks", "nodes", "gpus_per_node")
    number = _whole(value) if counts and value.isdecimal() else 0
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
    return replace(log, links=_linked(log.links, key, value))


def _linked(links: LinksText, key: str, value: str) -> LinksText:
    """Take a remark about links, or about variables that change what is used of them."""
    if key in ("link_inter", "network"):
        sockets = read_environment(value, links).sockets
        return _between(read_network(value), links, sockets=sockets)
    if key == "link_intra":
        return read_inside(value, links)
    return read_environment(value, links) if key in ("env", "environment") else links


def _between(said: LinksText, before: LinksText, *, sockets: bool) -> LinksText:
    """Add what is said of the network to what is known of the links inside a node."""
    return replace(
        before,
        kind=said.kind,
        nics=said.nics,
        rates=said.rates,
        total=said.total,
        sockets=sockets,
    )


def _titled(log: Log, line: str) -> Log:
    """Take a heading ``## NCCL All to All, 2 hosts``."""
    text = line.strip()
    if not text.startswith("##"):
        return log
    title = text.strip("# ")
    hosts = _HOSTS.search(title)
    words = re.sub(r"[\W_]|nccl", "", title.lower())
    named = [op for name, op in _OPS.items() if words.startswith(name)]
    return replace(
        log,
        title=title[:_LONGEST_TITLE],
        op=named[0] if named else log.op,
        nodes=(1 if hosts[2] else _whole(hosts[1])) if hosts else log.nodes,
    )


def named_op(text: str) -> Op | None:
    """Find the collective that a text such as a file's name speaks of; None where none or several.

    >>> named_op("h100_All-Reduce_8.log"), named_op("alltoall.txt"), named_op("run.log")
    ('all_reduce', 'all_to_all', None)
    """
    squeezed = re.sub(r"[\W_]+", "", text.lower())
    found = set[Op]()
    for name, op in sorted(_OPS.items(), key=lambda pair: -len(pair[0])):
        if name in squeezed:
            found.add(op)
            squeezed = squeezed.replace(name, " ")
    return found.pop() if len(found) == 1 else None


def with_op(log: Log, op: Op) -> Log:
    """Say which collective a log is of; ranks that its bandwidths tell are worked out."""
    return replace(log, op=op, gpus=log.gpus or _even(ranks_of(op, log.rows), log.nodes))


def _finished(log: Log, ranks: Sequence[Rank], rows: Sequence[LogRow]) -> Log:
    """Add what ranks and bandwidths tell to what was said."""
    log = replace(log, rows=tuple(sorted(rows, key=lambda row: row.message_bytes)))
    return _shared_out(_counted(log, ranks, rows))


def _shared_out(log: Log) -> Log:
    """Count the nodes by the GPUs of each, where nothing else says it."""
    if log.nodes or not log.gpus or not log.per_node or log.gpus % log.per_node:
        return log
    return replace(log, nodes=log.gpus // log.per_node)


def _counted(log: Log, ranks: Sequence[Rank], rows: Sequence[LogRow]) -> Log:
    if ranks:
        gpus = max(rank for rank, _, _ in ranks) + 1
        whole = len({rank for rank, _, _ in ranks}) == gpus
        stated = log.gpus or (gpus if whole else 0)
        hosts = log.nodes or _hosts(ranks, gpus)
        return replace(log, gpus=log.gpus or gpus, stated=stated, nodes=hosts)
    worked_out = _even(ranks_of(log.op, rows), log.nodes)
    return replace(log, gpus=log.gpus or worked_out, stated=log.gpus or 0)


def _even(ranks: int | None, nodes: int | None) -> int | None:
    """Round a number of ranks that was worked out to one that fills its nodes evenly."""
    if not ranks or not nodes or ranks < nodes:
        return ranks
    return nodes * round(ranks / nodes)


def _hosts(ranks: Sequence[Rank], gpus: int) -> int:
    """Count the hosts: by name, or by devices a host where the list is not whole."""
    if len({rank for rank, _, _ in ranks}) == gpus:
        return len({host for _, host, _ in ranks})
    return max(1, gpus // (1 + max(device for _, _, device in ranks)))


def ranks_of(op: Op | None, rows: Iterable[LogRow]) -> int | None:
    """Work the number of ranks out from printed bandwidths; None where they do not tell.

    >>> row = LogRow(line=1, message_bytes=2.0**30, count=2**28, item_bytes=4, seconds=4e-3,
    ...     in_place_s=None, algorithm_bandwidth_bytes_per_s=268.44e9,
    ...     bus_bandwidth_bytes_per_s=469.77e9)
    >>> ranks_of("all_reduce", [row])
    8
    """
    sure = [row for row in rows if row.algorithm_bandwidth_bytes_per_s > SURE]
    if not sure or op in (None, "broadcast", "reduce", "send_recv"):
        return None
    factor = median(
        row.bus_bandwidth_bytes_per_s / row.algorithm_bandwidth_bytes_per_s for row in sure
    )
    share = factor / 2 if op == "all_reduce" else factor  # (n - 1) / n
    return round(1 / (1 - share)) if 0.4 < share < 1 else None
