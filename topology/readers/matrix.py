"""From tables of `nvidia-smi topo` to what they say: devices, labels, peer states, NUMA nodes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from topology.base import TopologyError
from topology.machine.graph import PairKind, PeerState, PeerStatus
from topology.readers.listing import Listing
from topology.readers.reading import GpuText, Label, NicText, Reading
from topology.readers.tables import Row, Table, is_gpu

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


def read_matrices(tables: Sequence[Table], lines: Sequence[str], listing: Listing) -> Reading:
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
    known = {gpu.name: gpu for gpu in listing.gpus}
    return Reading(
        source=_source(tables, labelled),
        gpus=tuple(_gpu(known.get(name), name, places.get(name)) for name in gpus),
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


def _source(tables: Sequence[Table], labelled: Sequence[Table]) -> str:
    if not labelled:
        return "nvidia-smi topo -p2p"
    return "nvidia-smi topo -m" if len(labelled) == len(tables) else "nvidia-smi topo -m and -p2p"


def _gpus(table: Table) -> list[str]:
    names = {*table.columns, *(row.name for row in table.rows)}
    return sorted((name for name in names if is_gpu(name)), key=lambda name: int(name[3:]))


def _cells(table: Table) -> dict[tuple[str, str], Label]:
    """Check a table against itself and give its labels, each pair once."""
    read: dict[tuple[str, str], tuple[Label, Row]] = {}
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


def _place(row: Row, tail: Sequence[str]) -> _Place:
    """Read processors and NUMA node out of the words after the cells."""
    said = _NUMA_WORD.fullmatch(" ".join(row.rest))
    if said:
        return _Place(numa=int(said[1]))
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


def _nics(table: Table, lines: Sequence[str]) -> tuple[NicText, ...]:
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


def _peers(table: Table) -> Iterator[PeerStatus]:
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=False):
            if cell != "X" and row.name != column:
                yield PeerStatus(
                    a=row.name,
                    b=column,
                    state=cast(PeerState, cell),
                    capability=table.capability,
                )


def _missing(table: Table) -> Iterator[str]:
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
    labelled: Sequence[Table], same: Sequence[Table], cells: Sequence[Cells]
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
