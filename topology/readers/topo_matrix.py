"""Tables of `nvidia-smi topo` in a text, and what they say: devices, labels, peers, NUMA nodes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, cast

from topology.base import TopologyError
from topology.base.values import dataclass
from topology.machine import Nic, PairKind, PeerState, PeerStatus
from topology.readers.reading import GpuText, Label, Reading
from topology.readers.smi_xml import Listing

_ESCAPE: Final = re.compile(
    r"(?:\x1b|\^\[|\\e|\\033|\\x1b)\[[0-9;?]{0,16}[A-Za-z]"  # real, caret and spelled-out escapes
    r"|\[(?:[0-9]{1,2}(?:;[0-9]{1,3}){0,4})?m"  # what is left when the escape character was lost
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]"
)
_BLANKS: Final = str.maketrans({"\xa0": " ", "\u2003": " ", "\u2002": " ", "\u3000": " "})
_STATES: Final = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})
_LABELS: Final = frozenset({"SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "SOC", "QPI", "C2C"})
_OLD_LABELS: Final = {"SOC": "SYS", "QPI": "SYS", "PSB": "PIX"}
_NVLINKS: Final = re.compile(r"NV[1-9][0-9]{0,2}")
_CELL: Final = re.compile("|".join(["X", _NVLINKS.pattern, *_LABELS, *_STATES]))
_GLUED: Final = re.compile(r"NV[1-9][0-9]?|SYS|NODE|PHB|PXB|PIX|PSB|SOC|QPI|OK|CNS|GNS|TNS|NS|X")
_ALL_GLUED: Final = re.compile(rf"(?:{_GLUED.pattern})+")
_GLUED_AFFINITY: Final = re.compile(r"(SYS|NODE|PHB|PXB|PIX|PSB|SOC|QPI|X)([0-9][0-9,\-]*)")
_GPU: Final = re.compile(r"GPU[0-9]{1,4}", re.IGNORECASE)
_DEVICE: Final = re.compile(r"[A-Za-z][\w.:\-]{0,60}")
_AFFINITY: Final = re.compile(r"[0-9][0-9,\-]*|N/A|NUMA", re.IGNORECASE)
_TAIL_HEADING: Final = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID", re.IGNORECASE)
_CAPABILITY: Final = re.compile(r"topo\s+-p2p\s+([a-z])\b")
_NIC_NAME: Final = re.compile(
    r"(NIC[0-9]{1,4})\s*[:=]\s*([\w./\-]{1,60})(?:\s*\(NUMA ([0-9]{1,3})\))?"
)
_MORE_NICS: Final = re.compile(
    r"([0-9]{1,4}) NICs found in the topology, only displaying ([0-9]{1,4})"
)
_NUMA_WORD: Final = re.compile(r"NUMA (?:node )?([0-9]{1,3})", re.IGNORECASE)
_SPAN: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_MOST_COLUMNS: Final = 1024
_PREFIX: Final = 8  # words of a log that may stand before a row
Cells = Mapping[tuple[str, str], Label]


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


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: cells under the columns, in order, and the words after them."""

    line: int
    name: str
    cells: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One matrix: labels between devices, or states of peers where it is a `status` matrix.

    tail : names of the columns after the devices. headless : its header is lost.
    """

    line: int
    columns: tuple[str, ...]
    rows: tuple[_Row, ...]
    tail: tuple[str, ...] = ()
    capability: str = ""
    headless: bool = False
    status: bool

    @property
    def gpus(self) -> list[str]:
        names = {*self.columns, *(row.name for row in self.rows)}
        return sorted((name for name in names if _is_gpu(name)), key=lambda name: int(name[3:]))


def find_tables(lines: Sequence[str]) -> list[Matrix]:
    """Find every matrix in a text, in order; an error names the line that has no label."""
    heads = [(number, columns) for number, line in enumerate(lines) if (columns := _header(line))]
    ends = [*(number for number, _ in heads[1:]), len(lines)]
    tables = [
        _table(lines, start, end, columns)
        for (start, columns), end in zip(heads, ends, strict=False)
        if end > start + 1
    ]
    return [table for table in tables if table.rows] or _headless_matrix(lines)


def _words(line: str) -> list[str]:
    return line.replace("|", " ").split()


def _is_gpu(name: str) -> bool:
    return bool(_GPU.fullmatch(name))


def _device_name(word: str) -> str:
    return word.upper() if _is_gpu(word) else word


def _is_device(word: str) -> bool:
    device_match = _DEVICE.fullmatch(word) and any(map(str.isdigit, word))
    return bool(device_match and not _NVLINKS.fullmatch(word))


def _is_cell(word: str) -> bool:
    return bool(_CELL.fullmatch(word.upper()))


def _header(line: str) -> tuple[str, ...]:
    """Read the device names of a header line; empty if it is none."""
    words = _TAIL_HEADING.split(line.replace("|", " "), maxsplit=1)[0].split()
    first_device = next((i for i, word in enumerate(words) if _is_gpu(word)), None)
    if (
        first_device is None
        or first_device > _PREFIX
        or not all(map(_is_device, words[first_device:]))
    ):
        return ()
    columns = tuple(map(_device_name, words[first_device:]))
    if len(columns) > _MOST_COLUMNS:
        raise TopologyError(f"a header of {len(columns)} columns: wanted {_MOST_COLUMNS} at most")
    return columns


def _table(lines: Sequence[str], start: int, end: int, columns: tuple[str, ...]) -> Matrix:
    names, rows = frozenset(columns), list[_Row]()
    if len(names) < len(columns):
        twin = next(name for i, name in enumerate(columns) if name in columns[:i])
        raise TopologyError(f"line {start + 1}: {twin} heads two columns")
    for number in range(start + 1, end):
        close = number == (rows[-1].line if rows else start + 1)
        words = _words(lines[number])
        row_start = _row_start(words, names, close=close)
        if row_start is not None:
            rows.append(
                _with_cells(
                    _Row(number + 1, _device_name(words[row_start])),
                    words[row_start + 1 :],
                    columns,
                )
            )
        elif close and rows and _continues(rows[-1], words, columns):
            rows[-1] = _with_cells(replace(rows[-1], line=number + 1), words, columns)
    capability_matches = [_CAPABILITY.search(line) for line in lines[max(0, start - 3) : start + 1]]
    return Matrix(
        line=start + 1,
        status=_is_status(rows, start + 1),
        columns=columns,
        tail=tuple(" ".join(name.lower().split()) for name in _TAIL_HEADING.findall(lines[start])),
        rows=_unique_rows(rows),
        capability=next((match[1] for match in reversed(capability_matches) if match), ""),
    )


def _row_start(words: Sequence[str], names: frozenset[str], *, close: bool) -> int | None:
    """Find where a row begins in a line; None if the line is no row.

    Right below the table (`close`) a line that begins with a device is a row, right or wrong;
    elsewhere its cells have to look like cells.
    """
    for at, word in enumerate(words[: _PREFIX + 1]):
        if _is_gpu(word) or word in names:
            cells = list(_split_cells(words[at + 1 : at + 3]))
            if cells and all(map(_is_cell, cells[: min(2, len(names))])):
                return at
            if at == 0 and close and len(words) > len(names):
                return at
    return None


def _continues(row: _Row, words: Sequence[str], columns: Sequence[str]) -> bool:
    """Tell whether words go on with a row that the terminal broke."""
    open_ended = words and not row.rest and len(row.cells) < len(columns)
    return bool(open_ended) and all(_is_cell(word) or _AFFINITY.fullmatch(word) for word in words)


def _with_cells(row: _Row, words: Sequence[str], columns: Sequence[str]) -> _Row:
    """Put words under the columns that a row has no cells for yet."""
    cells = list(row.cells)
    parts = list(_split_cells(words))
    for index, part in enumerate(parts):
        if len(cells) == len(columns) or _AFFINITY.fullmatch(part):
            return replace(row, cells=tuple(cells), rest=tuple(parts[index:]))
        if not _is_cell(part):
            raise TopologyError(
                f"line {row.line}: {row.name}-{columns[len(cells)]}: unknown label {part[:20]!r}: "
                f"expected X, NV#, {', '.join(sorted(_LABELS))} or a peer status"
            )
        cells.append(part.upper())
    return replace(row, cells=tuple(cells))


def _split_cells(words: Iterable[str]) -> Iterator[str]:
    """Take cells apart that lost the blank between them."""
    for word in words:
        if word in _LABELS or word in _STATES or _NVLINKS.fullmatch(word):
            yield word
        elif _ALL_GLUED.fullmatch(word):
            yield from _GLUED.findall(word)
        else:
            match = _GLUED_AFFINITY.fullmatch(word)
            yield from match.groups() if match else (word,)


def _is_status(rows: Sequence[_Row], line: int) -> bool:
    words = {cell for row in rows for cell in row.cells} - {"X"}
    if words & _STATES and words - _STATES:
        raise TopologyError(f"table of line {line}: {min(words - _STATES)} among peer statuses")
    return bool(words & _STATES)


def _unique_rows(rows: Sequence[_Row]) -> tuple[_Row, ...]:
    """Drop repeated rows; rows of one name that differ are an error."""
    unique_rows: dict[str, _Row] = {}
    for row in rows:
        earlier = unique_rows.setdefault(row.name, row)
        if earlier.cells != row.cells:
            raise TopologyError(
                f"line {row.line}: a second row {row.name} differs from line {earlier.line}"
            )
    return tuple(unique_rows.values())


def _headless_matrix(lines: Sequence[str]) -> list[Matrix]:
    """Read rows whose header is lost: columns are the GPUs in order, then NICs."""
    numbered = [
        (number, words)
        for number, words in enumerate(map(_words, lines), 1)
        if len(words) > 1 and _is_gpu(words[0]) and _is_cell(words[1])
    ]
    if not numbered:
        return []
    first_line = numbered[0][0]
    width = max(len(list(takewhile(_is_cell, _split_cells(words[1:])))) for _, words in numbered)
    last_gpu = max(int(words[0][3:]) for _, words in numbered)
    columns = tuple(f"GPU{i}" if i <= last_gpu else f"NIC{i - last_gpu - 1}" for i in range(width))
    if width > _MOST_COLUMNS or last_gpu >= width:
        raise TopologyError(
            f"line {first_line}: rows without a header, GPU{last_gpu} has no column"
        )
    rows = [
        _with_cells(_Row(line, _device_name(words[0])), words[1:], columns)
        for line, words in numbered
    ]
    status = _is_status(rows, first_line)
    return [
        Matrix(
            line=first_line, status=status, columns=columns, rows=_unique_rows(rows), headless=True
        )
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row says its device is; `spread` over several NUMA nodes."""

    numa: int | None = None
    affinity: str = ""
    spread: bool = False


def read_matrices(tables: Sequence[Matrix], lines: Sequence[str], listing: Listing) -> Reading:
    """Combine the tables of one text, and what stands around them, into one reading."""
    labelled = [table for table in tables if not table.status]
    main = max(labelled or tables, key=lambda table: (len(table.gpus), len(table.columns)))
    matching = [table for table in labelled if set(table.gpus) == set(main.gpus)]
    cells = [_cells(table) for table in matching]
    labels, under = _overlaid_tables(
        [
            {ends: label for ends, label in table_cells.items() if {*ends} <= {*main.columns}}
            for table_cells in cells
        ]
    )
    places = {row.name: _place(row, main.tail) for row in main.rows}
    listed_gpus = {gpu.name: gpu for gpu in listing.gpus}
    if not labelled:
        source = "nvidia-smi topo -p2p"
    else:
        source = f"nvidia-smi topo -m{'' if len(labelled) == len(tables) else ' and -p2p'}"
    spread = [name for name, place in places.items() if place.spread and _is_gpu(name)]
    notes = [f"NUMA node of {name} and others unknown: the text gives a range" for name in spread]
    return Reading(
        source=source,
        gpus=tuple(
            _gpu(listed_gpus.get(name, GpuText(name=name)), places.get(name)) for name in main.gpus
        ),
        nics=_nics(main, lines),
        labels=labels,
        under=under,
        peers=tuple(peer for table in tables if table.status for peer in _peers(table)),
        link_rate=listing.link_rate,
        assumptions=tuple(notes[:1]),
        warnings=(
            *_missing_rows(main),
            *_odd_tables(labelled, matching, cells),
            *_hidden_nics(lines),
        ),
    )


def _cells(table: Matrix) -> Cells:
    """Check a table against itself and give its labels, each pair once."""
    checked_labels: dict[tuple[str, str], tuple[Label, int]] = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=False):
            cell_place = f"line {row.line}: {row.name}-{column} is"
            if (cell == "X") != (column == row.name):
                raise TopologyError(
                    f"{cell_place} {cell}: "
                    f"expected X where the row meets its own column, and nowhere else"
                )
            if cell == "X":
                continue
            nvlink = cell.startswith("NV")
            if nvlink and not (_is_gpu(row.name) and _is_gpu(column)):
                raise TopologyError(f"{cell_place} {cell}: NVLink joins only GPUs")
            kind = "NVLINK" if nvlink else cast(PairKind, _OLD_LABELS.get(cell, cell))
            label = Label(kind, int(cell[2:]) if nvlink else 1)
            mirrored, line = checked_labels.get((column, row.name), (label, row.line))
            if mirrored != label:
                raise TopologyError(
                    f"{cell_place} {label}, line {line} says {column}-{row.name} is {mirrored}"
                )
            checked_labels[row.name, column] = label, row.line
    return {
        (a, b): label
        for (a, b), (label, _) in checked_labels.items()
        if (b, a) not in checked_labels or a < b
    }


def _overlaid_tables(tables: Sequence[Cells]) -> tuple[Cells, Cells]:
    """Lay tables of the same GPUs over each other: NVLink above, PCIe (from -mp) beneath."""
    labels: dict[tuple[str, str], Label] = {}
    under: dict[tuple[str, str], Label] = {}
    for (a, b), label in (entry for cells in tables for entry in cells.items()):
        key = (b, a) if (b, a) in labels else (a, b)
        earlier = labels.setdefault(key, label)
        if earlier.kind == "NVLINK" and label.kind != "NVLINK":
            under[key] = label
        elif earlier.kind != "NVLINK" and label.kind == "NVLINK":
            labels[key], under[key] = label, earlier
    return labels, under


def _place(row: _Row, tail: Sequence[str]) -> _Place:
    """Read processors and NUMA node out of the words after the cells."""
    numa_word = _NUMA_WORD.fullmatch(" ".join(row.rest))
    if numa_word:
        return _Place(numa=int(numa_word[1]))
    words = " ".join(row.rest).replace(", ", ",").rstrip(",").split()  # lists broken after a comma
    columns = list(tail)
    if len(words) < len(columns) and words and words[-1] == "N/A":
        columns = [*columns[: len(words) - 1], columns[-1]]
    fields = dict(zip(columns or ["cpu affinity", "numa affinity"], words, strict=False))
    affinity, nodes = fields.get("cpu affinity", ""), _numbers(fields.get("numa affinity", "N/A"))
    return _Place(
        numa=nodes[0] if len(nodes) == 1 else None,
        affinity="" if affinity == "N/A" else affinity,
        spread=len(nodes) > 1,
    )


def _numbers(text: str) -> tuple[int, ...]:
    """Read ``3``, ``0-1`` or ``0,2``; nothing else has numbers.

    >>> _numbers("0-1"), _numbers("3"), _numbers("N/A")
    ((0, 1), (3,), ())
    """
    spans = filter(None, map(_SPAN.fullmatch, text.split(",")[:64]))
    ends = ((int(span[1]), int(span[2] or span[1])) for span in spans)
    return tuple(number for a, b in ends for number in range(a, min(b, a + 63) + 1))


def _gpu(gpu: GpuText, place: _Place | None) -> GpuText:
    return gpu if place is None else replace(gpu, numa=place.numa, affinity=place.affinity)


def _nics(table: Matrix, lines: Sequence[str]) -> tuple[Nic, ...]:
    legend: dict[str, Nic] = {}
    for match in (match for line in lines for match in _NIC_NAME.finditer(line)):
        name, device, numa = match.groups()
        text = Nic(name=name, device=device.partition("/")[0], numa=int(numa) if numa else None)
        legend.setdefault(name, text)
    names = [*table.columns, *(row.name for row in table.rows if row.name not in table.columns)]
    return tuple(
        legend.get(name, Nic(name=name, device="" if name.startswith("NIC") else name))
        for name in names
        if not _is_gpu(name)
    )


def _peers(table: Matrix) -> Iterator[PeerStatus]:
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=False):
            if cell != "X" and row.name != column:
                state = cast(PeerState, cell)
                yield PeerStatus(a=row.name, b=column, state=state, capability=table.capability)


def _missing_rows(table: Matrix) -> Iterator[str]:
    """Say which GPU rows and cells a paste has lost."""
    gpus = table.gpus
    rows = {row.name: row for row in table.rows}
    lost_names = [name for name in gpus if name not in rows]
    if lost_names:
        yield (
            f"the text is cut: {len(gpus) - len(lost_names)} of {len(gpus)} GPU rows; "
            f"missing {', '.join(lost_names[:8])}{' ...' if len(lost_names) > 8 else ''}"
        )
    for row in (rows[name] for name in gpus if name in rows):
        if len(row.cells) < len(table.columns):
            yield (
                f"line {row.line}: row {row.name} has {len(row.cells)} "
                f"of {len(table.columns)} cells"
            )
    if table.headless:
        yield f"the header line is missing: columns taken in order from line {table.line}"


def _odd_tables(
    labelled: Sequence[Matrix], matching: Sequence[Matrix], cells: Sequence[Cells]
) -> Iterator[str]:
    for table in labelled:
        if table not in matching:
            yield f"a second table in line {table.line} has other GPUs and was left out"
    for table, later_cells in zip(matching[1:], cells[1:], strict=True):
        for (a, b), label in later_cells.items():
            first_label = cells[0].get((a, b), label)
            if first_label != label and "NVLINK" not in (first_label.kind, label.kind):
                yield f"the table in line {table.line} differs from the first at {a}-{b}"
                break


def _hidden_nics(lines: Sequence[str]) -> Iterator[str]:
    for match in filter(None, map(_MORE_NICS.search, lines)):
        yield f"{match[1]} NICs in the machine, {match[2]} in the matrix"
