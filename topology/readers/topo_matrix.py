"""Tables of `nvidia-smi topo` in a text, and what they say: devices, labels, peers, NUMA nodes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from topology.base import MOST_CHARACTERS, TopologyError
from topology.machine import PairKind, PeerState, PeerStatus
from topology.readers.reading import GpuText, Label, NicText, Reading
from topology.readers.smi_xml import Listing

_ESCAPE: Final = re.compile(
    r"(?:\x1b|\^\[|\\e|\\033|\\x1b)\[[0-9;?]{0,16}[A-Za-z]"  # real, caret and spelled-out escapes
    r"|\[(?:[0-9]{1,2}(?:;[0-9]{1,3}){0,4})?m"  # what is left when the escape character was lost
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]"
)
_BLANKS: Final = str.maketrans({"\xa0": " ", "\u2003": " ", "\u2002": " ", "\u3000": " "})


def plain_lines(text: str) -> list[str]:
    r"""Split a text into lines without control sequences; line `n` stays line `n`.

    >>> plain_lines("\t\x1b[4mGPU0\tGPU1\x1b[0m\r\nGPU0\t X ")
    ['\tGPU0\tGPU1', 'GPU0\t X ']
    >>> plain_lines("[4mGPU0 GPU1[0m")
    ['GPU0 GPU1']
    """
    return [
        _ESCAPE.sub("", line).translate(_BLANKS)
        for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]


def checked(text: str) -> str:
    """Refuse what is no text, or too much of it.

    Raises
    ------
    TopologyError
        If the text is empty, binary, or longer than 10 MiB.
    """
    if len(text) > MOST_CHARACTERS:
        raise TopologyError(f"{len(text)} characters: expected at most {MOST_CHARACTERS}")
    if not text.strip():
        raise TopologyError("got an empty text, wanted a topology")
    at = text.find("\x00")
    if at >= 0:
        raise TopologyError(f"byte {at} is 0: got binary data, wanted text")
    return text


MatrixKind = Literal["labels", "status"]
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
class MatrixRow:
    """One row: cells under the columns, in order, and the words after them."""

    line: int
    name: str
    cells: tuple[str, ...]
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One matrix with its column names; `tail` names the columns after the devices."""

    line: int
    kind: MatrixKind
    columns: tuple[str, ...]
    tail: tuple[str, ...] = ()
    rows: tuple[MatrixRow, ...] = field(default=())
    capability: str = ""
    headless: bool = False


def find_tables(lines: Sequence[str]) -> list[Matrix]:
    """Find every matrix in a text, in order.

    Raises
    ------
    TopologyError
        If a row of a matrix has a cell that is no label, naming the line.
    """
    tables = [
        _table(lines, start, end, columns, tail)
        for start, end, columns, tail in _sections(lines)
        if end > start + 1
    ]
    return [table for table in tables if table.rows] or _headless(lines)


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
) -> Matrix:
    _no_twins(columns, start)
    rows: list[MatrixRow] = []
    names = frozenset(columns)
    for number in range(start + 1, end):
        last = rows[-1].line if rows else start + 1
        words = lines[number].replace("|", " ").split()
        at = _row_start(words, names, columns, close=number == last)
        if at is not None:
            rows.append(_row(words[at:], number + 1, columns))
        elif rows and _continues(rows[-1], words, columns, close=number == last):
            rows[-1] = _joined(rows[-1], words, columns)
    return Matrix(
        line=start + 1,
        kind=_kind(rows, start),
        columns=columns,
        tail=tail,
        rows=_one_each(rows),
        capability=_capability(lines, start),
    )


def _row_start(
    words: Sequence[str], names: frozenset[str], columns: Sequence[str], *, close: bool
) -> int | None:
    """Find where a row begins in a line; None if the line is no row.

    Right below the table (`close`) a line that begins with a device is a row, right or wrong;
    elsewhere its cells have to look like cells.
    """
    for at, word in enumerate(words[: _PREFIX + 1]):
        name = _name(word)
        if name not in names and not _GPU.fullmatch(word):
            continue
        cells = [cell for word in words[at + 1 : at + 3] for cell in _split(word)]
        if cells and all(map(_is_cell, cells[: min(2, len(columns))])):
            return at
        if at == 0 and close and len(words) > len(columns):
            return at
    return None


def _row(words: Sequence[str], line: int, columns: Sequence[str]) -> MatrixRow:
    name = _name(words[0])
    cells, rest = _row_cells(words[1:], line, name, columns)
    return MatrixRow(line=line, name=name, cells=tuple(cells), rest=tuple(rest))


def _row_cells(
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


def _continues(
    row: MatrixRow, words: Sequence[str], columns: Sequence[str], *, close: bool
) -> bool:
    """Tell whether a line goes on with a row that the terminal broke."""
    if not (close and words and not row.rest and len(row.cells) < len(columns)):
        return False
    return all(_is_cell(part) or _AFFINITY.fullmatch(part) for part in words)


def _joined(row: MatrixRow, words: Sequence[str], columns: Sequence[str]) -> MatrixRow:
    cells, rest = _row_cells(words, row.line + 1, row.name, columns[len(row.cells) :])
    return MatrixRow(line=row.line + 1, name=row.name, cells=(*row.cells, *cells), rest=tuple(rest))


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


def _kind(rows: Sequence[MatrixRow], start: int) -> MatrixKind:
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


def _one_each(rows: Sequence[MatrixRow]) -> tuple[MatrixRow, ...]:
    """Drop repeated rows; rows of one name that differ are an error."""
    kept: dict[str, MatrixRow] = {}
    for row in rows:
        first = kept.setdefault(row.name, row)
        if first.cells != row.cells:
            raise TopologyError(
                f"line {row.line}: a second row {row.name} differs from line {first.line}"
            )
    return tuple(kept.values())


def _headless(lines: Sequence[str]) -> list[Matrix]:
    """Read rows whose header is lost: columns are the GPUs in order, then NICs."""
    numbered = [
        (number + 1, words)
        for number, line in enumerate(lines)
        if (words := line.replace("|", " ").split())
        and _GPU.fullmatch(words[0])
        and len(words) > 1
        and _is_cell(words[1])
    ]
    if not numbered:
        return []
    first = numbered[0][0]
    width = max(_leading(words[1:]) for _, words in numbered)
    last = max(int(words[0][3:]) for _, words in numbered)
    columns = tuple(f"GPU{i}" if i <= last else f"NIC{i - last - 1}" for i in range(width))
    if width > _MOST_COLUMNS or last >= width:
        raise TopologyError(f"line {first}: rows without a header, GPU{last} has no column")
    rows = [_row(words, line, columns) for line, words in numbered]
    return [
        Matrix(
            line=first,
            kind=_kind(rows, first - 1),
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


_OLD: Final = {"SOC": "SYS", "QPI": "SYS", "PSB": "PIX"}
_NIC_NAME: Final = re.compile(
    r"(NIC[0-9]{1,4})\s*[:=]\s*([\w./\-]{1,60})(?:\s*\(NUMA ([0-9]{1,3})\))?"
)
_MORE_NICS: Final = re.compile(
    r"([0-9]{1,4}) NICs found in the topology, only displaying ([0-9]{1,4})"
)
_NUMA_WORD: Final = re.compile(r"NUMA (?:node )?([0-9]{1,3})", re.IGNORECASE)
_SPAN: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")

Cells = Mapping[tuple[str, str], Label]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row says its device is."""

    numa: int | None = None
    affinity: str = ""
    spread: bool = False


def read_matrices(tables: Sequence[Matrix], lines: Sequence[str], listing: Listing) -> Reading:
    """Combine the tables of one text, and what stands around them, into one reading.

    Raises
    ------
    TopologyError
        If a table contradicts itself, naming the line and the pair.
    """
    labelled = [table for table in tables if table.kind == "labels"]
    main = max(labelled or tables, key=lambda table: len(_gpus(table)))
    same = [table for table in labelled if set(_gpus(table)) == set(_gpus(main))]
    cells = [_cells(table) for table in same]
    labels, under = _merged(cells)
    gpus = _gpus(main)
    places = {row.name: _place(row, main.tail) for row in main.rows}
    listed = {gpu.name: gpu for gpu in listing.gpus}
    return Reading(
        source=_source(tables, labelled),
        gpus=tuple(_gpu(listed.get(name), name, places.get(name)) for name in gpus),
        nics=_nics(main, lines),
        labels=labels,
        under=under,
        peers=tuple(peer for table in tables if table.kind == "status" for peer in _peers(table)),
        link_rate=listing.link_rate,
        assumptions=_assumptions(places),
        warnings=(
            *_missing(main),
            *_others(labelled, same, cells),
            *_hidden(lines),
        ),
    )


def _source(tables: Sequence[Matrix], labelled: Sequence[Matrix]) -> str:
    if not labelled:
        return "nvidia-smi topo -p2p"
    return "nvidia-smi topo -m" if len(labelled) == len(tables) else "nvidia-smi topo -m and -p2p"


def _gpus(table: Matrix) -> list[str]:
    names = {*table.columns, *(row.name for row in table.rows)}
    return sorted((name for name in names if is_gpu(name)), key=lambda name: int(name[3:]))


def _cells(table: Matrix) -> dict[tuple[str, str], Label]:
    """Check a table against itself and give its labels, each pair once."""
    read: dict[tuple[str, str], tuple[Label, MatrixRow]] = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=False):
            if (cell == "X") != (column == row.name):
                raise TopologyError(
                    f"line {row.line}: {row.name}-{column} is {cell}: "
                    f"expected X where the row meets its own column, and nowhere else"
                )
            if cell == "X":
                continue
            label = _label(cell)
            if label.kind == "NVLINK" and not (is_gpu(row.name) and is_gpu(column)):
                raise TopologyError(
                    f"line {row.line}: {row.name}-{column} is {cell}: NVLink joins only GPUs"
                )
            back, other = read.get((column, row.name), (label, row))
            if back != label:
                raise TopologyError(
                    f"line {row.line}: {row.name}-{column} is {label}, "
                    f"line {other.line} says {column}-{row.name} is {back}"
                )
            read[row.name, column] = label, row
    return {(a, b): label for (a, b), (label, _) in read.items() if (b, a) not in read or a < b}


def _label(cell: str) -> Label:
    if cell.startswith("NV"):
        return Label("NVLINK", int(cell[2:]))
    return Label(cast(PairKind, _OLD.get(cell, cell)))


def _merged(tables: Sequence[Cells]) -> tuple[dict[tuple[str, str], Label], Cells]:
    """Lay tables of the same GPUs over each other: NVLink above, PCIe (from -mp) beneath."""
    labels: dict[tuple[str, str], Label] = {}
    under: dict[tuple[str, str], Label] = {}
    for (a, b), label in (entry for cells in tables for entry in cells.items()):
        key = (b, a) if (b, a) in labels else (a, b)
        first = labels.setdefault(key, label)
        if first.kind == "NVLINK" and label.kind != "NVLINK":
            under[key] = label
        elif first.kind != "NVLINK" and label.kind == "NVLINK":
            labels[key], under[key] = label, first
    return labels, under


def _place(row: MatrixRow, tail: Sequence[str]) -> _Place:
    """Read processors and NUMA node out of the words after the cells."""
    numa_word = _NUMA_WORD.fullmatch(" ".join(row.rest))
    if numa_word:
        return _Place(numa=int(numa_word[1]))
    words = list(_whole_lists(row.rest))
    columns = list(tail)
    if len(words) < len(columns) and words and words[-1] == "N/A":
        columns = [*columns[: len(words) - 1], columns[-1]]
    fields = dict(zip(columns or ["cpu affinity", "numa affinity"], words, strict=False))
    numa, affinity = fields.get("numa affinity", "N/A"), fields.get("cpu affinity", "")
    nodes = _numbers(numa)
    return _Place(
        numa=nodes[0] if len(nodes) == 1 else None,
        affinity="" if affinity == "N/A" else affinity,
        spread=len(nodes) > 1,
    )


def _whole_lists(words: Sequence[str]) -> Iterator[str]:
    """Join a list that was broken after a comma."""
    held = ""
    for word in words:
        held += word
        if not word.endswith(","):
            yield held
            held = ""
    if held:
        yield held.rstrip(",")


def _numbers(text: str) -> tuple[int, ...]:
    """Read ``3``, ``0-1`` or ``0,2``; nothing else has numbers.

    >>> _numbers("0-1"), _numbers("3"), _numbers("N/A")
    ((0, 1), (3,), ())
    """
    spans = [_SPAN.fullmatch(part) for part in text.split(",")[:64]]
    return tuple(
        number
        for span in spans
        if span
        for number in range(int(span[1]), min(int(span[2] or span[1]), int(span[1]) + 63) + 1)
    )


def _gpu(listed: GpuText | None, name: str, place: _Place | None) -> GpuText:
    gpu = listed or GpuText(name=name)
    return gpu if place is None else replace(gpu, numa=place.numa, affinity=place.affinity)


def _nics(table: Matrix, lines: Sequence[str]) -> tuple[NicText, ...]:
    legend: dict[str, tuple[str, int | None]] = {}
    for line in lines:
        for match in _NIC_NAME.finditer(line):
            numa = int(match[3]) if match[3] else None
            legend.setdefault(match[1], (match[2].partition("/")[0], numa))
    names = [name for name in table.columns if not is_gpu(name)]
    names += [row.name for row in table.rows if row.name not in table.columns]
    return tuple(
        NicText(
            name=name,
            device=legend.get(name, ("" if name.startswith("NIC") else name, None))[0],
            numa=legend.get(name, ("", None))[1],
        )
        for name in names
        if not is_gpu(name)
    )


def _peers(table: Matrix) -> Iterator[PeerStatus]:
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=False):
            if cell != "X" and row.name != column:
                yield PeerStatus(
                    a=row.name,
                    b=column,
                    state=cast(PeerState, cell),
                    capability=table.capability,
                )


def _missing(table: Matrix) -> Iterator[str]:
    """Say which GPU rows and cells a paste has lost."""
    gpus = _gpus(table)
    rows = {row.name: row for row in table.rows}
    lost = [name for name in gpus if name not in rows]
    if lost:
        yield (
            f"the text is cut: {len(gpus) - len(lost)} of {len(gpus)} GPU rows; "
            f"missing {', '.join(lost[:8])}{' ...' if len(lost) > 8 else ''}"
        )
    for name in gpus:
        if name in rows and len(rows[name].cells) < len(table.columns):
            yield (
                f"line {rows[name].line}: row {name} has {len(rows[name].cells)} "
                f"of {len(table.columns)} cells"
            )
    if table.headless:
        yield f"the header line is missing: columns taken in order from line {table.line}"


def _others(
    labelled: Sequence[Matrix], same: Sequence[Matrix], cells: Sequence[Cells]
) -> Iterator[str]:
    for table in labelled:
        if table not in same:
            yield f"a second table in line {table.line} has other GPUs and was left out"
    for table, other in zip(same[1:], cells[1:], strict=True):
        first = cells[0]
        odd = next(
            (
                pair
                for pair, label in other.items()
                if pair in first
                and first[pair] != label
                and "NVLINK" not in (first[pair].kind, label.kind)
            ),
            None,
        )
        if odd:
            yield f"the table in line {table.line} differs from the first at {odd[0]}-{odd[1]}"


def _hidden(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        match = _MORE_NICS.search(line)
        if match:
            yield f"{match[1]} NICs in the machine, {match[2]} in the matrix"


def _assumptions(places: Mapping[str, _Place]) -> tuple[str, ...]:
    spread = [name for name, place in places.items() if place.spread and is_gpu(name)]
    notes = []
    if spread:
        notes.append(f"NUMA node of {spread[0]} and others unknown: the text gives a range")
    return tuple(notes)
