"""Tables of `nvidia-smi topo` found in a text, whatever stands around them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from topology.base import TopologyError

TableKind = Literal["labels", "status"]
STATES: Final = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})
LABELS: Final = frozenset({"SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "SOC", "QPI", "C2C"})
_NVLINKS: Final = re.compile(r"NV[1-9][0-9]{0,2}")
_GLUED: Final = re.compile(r"NV[1-9][0-9]?|SYS|NODE|PHB|PXB|PIX|PSB|SOC|QPI|OK|CNS|GNS|TNS|NS|X")
_ALL_GLUED: Final = re.compile(rf"(?:{_GLUED.pattern})+")
_GLUED_AFFINITY: Final = re.compile(r"(SYS|NODE|PHB|PXB|PIX|PSB|SOC|QPI|X)([0-9][0-9,\-]*)")
_GPU: Final = re.compile(r"GPU[0-9]{1,4}", re.IGNORECASE)
_DEVICE: Final = re.compile(r"[A-Za-z][\w.:\-]{0,60}")
_AFFINITY: Final = re.compile(r"[0-9][0-9,\-]*|N/A|NUMA", re.IGNORECASE)
_TAIL: Final = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID", re.IGNORECASE)
_CAPABILITY: Final = re.compile(r"topo\s+-p2p\s+([a-z])\b")
_MOST_COLUMNS: Final = 1024
_PREFIX: Final = 8  # words of a log that may stand before a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: cells under the columns, in order, and the words after them."""

    line: int
    name: str
    cells: tuple[str, ...]
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One matrix with its column names; `tail` names the columns after the devices."""

    line: int
    kind: TableKind
    columns: tuple[str, ...]
    tail: tuple[str, ...] = ()
    rows: tuple[Row, ...] = field(default=())
    capability: str = ""
    headless: bool = False


def find_tables(lines: Sequence[str]) -> list[Table]:
    """Find every matrix in a text, in order.

    Raises
    ------
    TopologyError
        If a row of a matrix has a cell that is no label, naming the line.
    """
    found = [
        _table(lines, start, end, columns, tail)
        for start, end, columns, tail in _sections(lines)
        if end > start + 1
    ]
    tables = [table for table in found if table.rows]
    return tables or _headless(lines)


def _sections(
    lines: Sequence[str],
) -> Iterator[tuple[int, int, tuple[str, ...], tuple[str, ...]]]:
    """Yield each header: its line, the line where the next begins, and its columns."""
    heads = [
        (number, columns, _tail(line))
        for number, line in enumerate(lines)
        if (columns := _header(line))
    ]
    ends = [*(number for number, _, _ in heads[1:]), len(lines)]
    for (number, columns, tail), end in zip(heads, ends, strict=False):
        yield number, end, columns, tail


def _header(line: str) -> tuple[str, ...]:
    """Read the device names of a header line; empty if it is none."""
    devices = _TAIL.split(line.replace("|", " "), maxsplit=1)[0].split()
    first = next((i for i, word in enumerate(devices) if _GPU.fullmatch(word)), None)
    if first is None or first > _PREFIX:
        return ()
    names = devices[first:]
    if not all(_is_device(word) for word in names):
        return ()
    columns = tuple(map(_name, names))
    if len(columns) > _MOST_COLUMNS:
        raise TopologyError(f"a header of {len(columns)} columns: wanted {_MOST_COLUMNS} at most")
    return columns


def _tail(line: str) -> tuple[str, ...]:
    return tuple(" ".join(name.lower().split()) for name in _TAIL.findall(line))


def _is_device(word: str) -> bool:
    return bool(
        _DEVICE.fullmatch(word) and any(map(str.isdigit, word)) and not _NVLINKS.fullmatch(word)
    )


def is_gpu(name: str) -> bool:
    """Tell a GPU from a NIC by its name in a matrix."""
    return bool(_GPU.fullmatch(name))


def _name(word: str) -> str:
    return word.upper() if _GPU.fullmatch(word) else word


def _table(
    lines: Sequence[str], start: int, end: int, columns: tuple[str, ...], tail: tuple[str, ...]
) -> Table:
    _no_twins(columns, start)
    rows: list[Row] = []
    known = frozenset(columns)
    for number in range(start + 1, end):
        last = rows[-1].line if rows else start + 1
        words = lines[number].replace("|", " ").split()
        at = _row_start(words, known, columns, close=number == last)
        if at is not None:
            rows.append(_row(words[at:], number + 1, columns))
        elif rows and _continues(rows[-1], words, columns, close=number == last):
            rows[-1] = _joined(rows[-1], words, columns)
    return Table(
        line=start + 1,
        kind=_kind(rows, start),
        columns=columns,
        tail=tail,
        rows=_one_each(rows),
        capability=_capability(lines, start),
    )


def _row_start(
    words: Sequence[str], known: frozenset[str], columns: Sequence[str], *, close: bool
) -> int | None:
    """Find where a row begins in a line; None if the line is no row.

    Right below the table (`close`) a line that begins with a device is a row, right or wrong;
    elsewhere its cells have to look like cells.
    """
    for at, word in enumerate(words[: _PREFIX + 1]):
        name = _name(word)
        if name not in known and not _GPU.fullmatch(word):
            continue
        cells = [cell for word in words[at + 1 : at + 3] for cell in _split(word)]
        if cells and all(map(_is_cell, cells[: min(2, len(columns))])):
            return at
        if at == 0 and close and len(words) > len(columns):
            return at
    return None


def _row(words: Sequence[str], line: int, columns: Sequence[str]) -> Row:
    name = _name(words[0])
    cells, rest = _cells(words[1:], line, name, columns)
    return Row(line=line, name=name, cells=tuple(cells), rest=tuple(rest))


def _cells(
    words: Sequence[str], line: int, name: str, columns: Sequence[str]
) -> tuple[list[str], list[str]]:
    cells: list[str] = []
    parts = [part for word in words for part in _split(word)]
    for at, part in enumerate(parts):
        if len(cells) == len(columns) or _AFFINITY.fullmatch(part):
            return cells, parts[at:]
        if not _is_cell(part):
            raise TopologyError(
                f"line {line}: {name}-{columns[len(cells)]}: unknown label {part[:20]!r}: "
                f"expected X, NV#, {', '.join(sorted(LABELS))} or a peer status"
            )
        cells.append(part.upper())
    return cells, []


def _continues(row: Row, words: Sequence[str], columns: Sequence[str], *, close: bool) -> bool:
    """Tell whether a line goes on with a row that the terminal broke."""
    if not (close and words and not row.rest and len(row.cells) < len(columns)):
        return False
    return all(_is_cell(part) or _AFFINITY.fullmatch(part) for part in words)


def _joined(row: Row, words: Sequence[str], columns: Sequence[str]) -> Row:
    cells, rest = _cells(words, row.line + 1, row.name, columns[len(row.cells) :])
    return Row(line=row.line + 1, name=row.name, cells=(*row.cells, *cells), rest=tuple(rest))


def _split(word: str) -> list[str]:
    """Take cells apart that lost the blank between them."""
    if word in LABELS or word in STATES or _NVLINKS.fullmatch(word):
        return [word]
    if _ALL_GLUED.fullmatch(word):
        return _GLUED.findall(word)
    match = _GLUED_AFFINITY.fullmatch(word)
    return [match[1], match[2]] if match else [word]


def _is_cell(word: str) -> bool:
    cell = word.upper()
    return cell == "X" or cell in LABELS or cell in STATES or bool(_NVLINKS.fullmatch(cell))


def _kind(rows: Sequence[Row], start: int) -> TableKind:
    words = {cell for row in rows for cell in row.cells} - {"X"}
    if words & STATES and words - STATES:
        odd = min(words - STATES)
        raise TopologyError(f"table of line {start + 1}: {odd} among peer statuses")
    return "status" if words & STATES else "labels"


def _capability(lines: Sequence[str], start: int) -> str:
    """Find which capability a status table is about: the letter of the command above it."""
    above = [_CAPABILITY.search(line) for line in lines[max(0, start - 3) : start + 1]]
    return next((match[1] for match in reversed(above) if match), "")


def _no_twins(columns: Sequence[str], start: int) -> None:
    if len(set(columns)) < len(columns):
        twin = next(name for i, name in enumerate(columns) if name in columns[:i])
        raise TopologyError(f"line {start + 1}: {twin} heads two columns")


def _one_each(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Drop repeated rows; rows of one name that differ are an error."""
    kept: dict[str, Row] = {}
    for row in rows:
        first = kept.setdefault(row.name, row)
        if first.cells != row.cells:
            raise TopologyError(
                f"line {row.line}: a second row {row.name} differs from line {first.line}"
            )
    return tuple(kept.values())


def _headless(lines: Sequence[str]) -> list[Table]:
    """Read rows whose header is lost: columns are the GPUs in order, then NICs."""
    found = [
        (number + 1, words)
        for number, line in enumerate(lines)
        if (words := line.replace("|", " ").split())
        and _GPU.fullmatch(words[0])
        and len(words) > 1
        and _is_cell(words[1])
    ]
    if not found:
        return []
    width = max(_leading(words[1:]) for _, words in found)
    last = max(int(words[0][3:]) for _, words in found)
    columns = tuple(f"GPU{i}" if i <= last else f"NIC{i - last - 1}" for i in range(width))
    if width > _MOST_COLUMNS or last >= width:
        raise TopologyError(f"line {found[0][0]}: rows without a header, GPU{last} has no column")
    rows = [_row(words, line, columns) for line, words in found]
    return [
        Table(
            line=found[0][0],
            kind=_kind(rows, found[0][0] - 1),
            columns=columns,
            rows=_one_each(rows),
            headless=True,
        )
    ]


def _leading(words: Sequence[str]) -> int:
    count = 0
    for part in (part for word in words for part in _split(word)):
        if not _is_cell(part):
            break
        count += 1
    return count
