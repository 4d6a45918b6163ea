"""Lines of an nccl-tests log: rows of its tables, and its list of ranks."""

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from costmodels.collectives import Op
from topology.base import InputError
from topology.base.values import dataclass

_ITEM_BYTES: Final = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
_TYPES: Final = "|".join(sorted(_ITEM_BYTES, key=len, reverse=True))
_ROW: Final = re.compile(rf"(?<![\w.])(\d{{1,16}}+)\s++(\d{{1,16}}+)\s++({_TYPES})\s+(.*)$")
_REDUCTIONS: Final = frozenset(("sum", "prod", "max", "min", "avg", "mulsum", "none", "all"))
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|N/A|inf|-?nan", re.IGNORECASE)
_DIGITS: Final = 9  # of a count
_MIN_US: Final = 0.001  # us
_MAX_VALUE: Final = 10**12  # us, or GB/s
SURE_BANDWIDTH: Final = 2 * 10**9  # B/s above which printed ratios of bandwidths say something
_RANK: Final = re.compile(
    r"Rank\s{1,9}(\d{1,9})\s.{0,99}?(?:\bon\s{1,9}(\S{1,255})\s{1,9})?device\s{1,9}(\d{1,9})"
    r"\s{1,9}\[([^\]]{0,40})\]\s*(.*)$"
)


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


def row_bytes(line: str) -> int | None:
    """Read the size that a line of a table begins with; None of any other line."""
    match = _ROW.search(line)
    return None if match is None else int(match[1])


def read_row(number: int, line: str) -> LogRow | None:
    """Read line `number` of a log; None where it is no row, or one without bytes or time.

    >>> read_row(7, "1024  256  float  sum  -1  35.59  0.03  0.03  0").seconds
    3.559e-05
    """
    match = _ROW.search(line)
    if match is None:
        return None
    size, count, kind, tail = match.groups()
    words = tail.split()
    reduction = words.pop(0) if words and words[0] in _REDUCTIONS else ""
    root = ""
    numbers = [word for word in words if _NUMBER.fullmatch(word)]
    if len(numbers) != len(words) or len(numbers) < 3 or float(size) == 0:
        return None
    if len(numbers) in (5, 9) or (len(numbers) == 4 and "." not in numbers[0]):
        root, numbers = numbers[0], numbers[1:]
    in_place_text = numbers[4] if len(numbers) >= 7 else "N/A"
    limits = f"a time from {_MIN_US} to {_MAX_VALUE} us"
    time, in_place = (_value(word, number, _MIN_US, limits) for word in (numbers[0], in_place_text))
    limits = f"a bandwidth from 0 to {_MAX_VALUE} GB/s"
    algorithm, bus = (_value(word, number, 0, limits) for word in numbers[1:3])
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
        root=read_count(root) if root.lstrip("-").isdecimal() else None,
    )


def _value(word: str, line: int, minimum: float, limits: str) -> float:
    """Read a number, or 0 for none; others may not be below `minimum`, or beyond the most."""
    value = 0.0 if word.upper() in ("N/A", "NAN", "-NAN", "INF") else float(word)
    if value and not minimum <= value <= _MAX_VALUE:
        raise InputError(f"log, line {line}: got {word[:20]}, wanted {limits}")
    return value


def read_count(digits: str) -> int:
    """Read a count; integers of thousands of digits cannot be read.

    >>> read_count("9" * 5000)
    Traceback (most recent call last):
    topology.base.errors.InputError: log: got 99999999..., wanted a number of at most 9 digits
    """
    if len(digits) > _DIGITS:
        raise InputError(f"log: got {digits[:8]}..., wanted a number of at most {_DIGITS} digits")
    return int(digits)


def ranks_of(op: Op | None, rows: Iterable[LogRow]) -> int | None:
    """Work the number of ranks out from printed bandwidths; None where they do not tell.

    >>> row = LogRow(line=1, message_bytes=2.0**30, count=2**28, item_bytes=4, seconds=4e-3,
    ...     in_place_s=None, algorithm_bandwidth_bytes_per_s=268.44e9,
    ...     bus_bandwidth_bytes_per_s=469.77e9)
    >>> ranks_of("all_reduce", [row])
    8
    """
    precise_rows = [row for row in rows if row.algorithm_bandwidth_bytes_per_s > SURE_BANDWIDTH]
    if not precise_rows or op in (None, "broadcast", "reduce", "send_recv"):
        return None
    factor = median(
        row.bus_bandwidth_bytes_per_s / row.algorithm_bandwidth_bytes_per_s for row in precise_rows
    )
    share = factor / 2 if op == "all_reduce" else factor  # (n - 1) / n
    return round(1 / (1 - share)) if 0.4 < share < 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One line of a list of ranks; host and product are empty where the line has none."""

    number: int
    host: str
    device: int
    bus: str
    product: str


def read_rank(line: str) -> Rank | None:
    """Read a line of the list, whose host some people cut away; None for any other line.

    >>> read_rank("#  Rank  3 Group  0 Pid 7 on  node1 device  1 [0x0b] NVIDIA L40S").host
    'node1'
    >>> read_rank("#  Rank  3 Group  0 Pid 7 device  1 [0000:0b:00] NVIDIA B200").product
    'NVIDIA B200'
    """
    match = _RANK.search(line)
    if match is None:
        return None
    number, host, device, bus, product = match.groups()
    return Rank(
        number=int(number),
        host=host or "",
        device=int(device),
        bus=bus,
        product=product.strip(),
    )


def ranks_listed(ranks: Sequence[Rank]) -> int:
    """Count the ranks by the highest number."""
    return max(rank.number for rank in ranks) + 1


def hosts_of(ranks: Sequence[Rank], gpus: int) -> int:
    """Count the hosts: by name, or by devices a host where names or ranks are missing."""
    has_names = all(rank.host for rank in ranks)
    if has_names and len({rank.number for rank in ranks}) == gpus:
        return len({rank.host for rank in ranks})
    return max(1, gpus // devices_of(ranks))


def devices_of(ranks: Sequence[Rank]) -> int:
    """Count the GPUs of a host by the highest device."""
    return 1 + max(rank.device for rank in ranks)


def full_host(ranks: Sequence[Rank]) -> int | None:
    """Count the GPUs of a host, where the list shows one whole: another follows."""
    several = len({rank.host for rank in ranks}) > 1
    return devices_of(ranks) if several else None


def shared_device(ranks: Sequence[Rank]) -> str:
    """Say that two ranks list the same GPU; empty where none do.

    >>> one, other = (
    ...     read_rank(f"#  Rank {n} Group 0 Pid {n} on lab device 0 [0000:02:00] GPU") for n in "01"
    ... )
    >>> shared_device([one, other])
    'ranks 0 and 1 both list device 0 [0000:02:00] of lab: one GPU, or hosts of one name'
    """
    first_ranks: dict[tuple[str, int, str], int] = {}
    for rank in ranks:
        first_rank = first_ranks.setdefault((rank.host, rank.device, rank.bus), rank.number)
        if first_rank != rank.number and rank.host:
            return (
                f"ranks {first_rank} and {rank.number} both list device {rank.device} [{rank.bus}] "
                f"of {rank.host[:40]}: one GPU, or hosts of one name"
            )
    return ""
