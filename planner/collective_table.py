"""A table of collectives as nccl-tests prints one: size, time, algorithm and bus bandwidth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from costmodels.basis import Basis
from costmodels.collectives import (
    Calibration,
    basis,
    bus_factor,
    choose,
    collective_time,
    steps,
)
from costmodels.tables import profile_for
from topology.base import (
    InputError,
    counted,
    format_bytes,
    format_number,
    format_seconds,
    parse_bytes,
)
from topology.base.chart import Axis, Series, curves
from topology.base.table import Drawing, Part, Said, Table, Title
from topology.base.values import dataclass
from topology.catalogue import Fabric, Network, find_hardware

if TYPE_CHECKING:
    from planner.request.subset import Subset

USUAL: Final = "1KiB:1GiB"
WANTED: Final = "1MiB, 1KiB:1GiB, or several with commas"
LARGEST: Final = 2**44
MOST_GPUS: Final = 2**17
MOST_NODES: Final = 2**14
BAR: Final = 30
GIGA: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message size: seconds, and bandwidths as nccl-tests defines them."""

    message_bytes: int
    time_s: float
    algorithm_bandwidth_bytes_per_s: float
    bus_bandwidth_bytes_per_s: float
    algorithm: str
    protocol: str
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Times of a collective by several algorithms, the first of which others are held against.

    tables : of each, with the same sizes.
    """

    tables: tuple["CollectiveTable", ...]
    algorithms: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        each = ("steps", "rows")
        return {
            **{key: x for key, x in self.tables[0].to_dict().items() if key not in each},
            "algorithms": [
                {"algorithm": name, "steps": own.steps, "rows": [asdict(row) for row in own.rows]}
                for name, own in zip(self.algorithms, self.tables, strict=True)
            ],
        }

    def winners(self) -> list[tuple[str, int, int]]:
        """Name the fastest of each run of sizes, all that are equal, and its first and last."""
        runs: list[tuple[str, int, int]] = []
        for rows in zip(*(table.rows for table in self.tables), strict=True):
            size = rows[0].message_bytes
            times = [row.time_s for row in rows]
            shown = format_seconds(min(times))  # equal as printed
            pairs = zip(self.algorithms, times, strict=True)
            best = " and ".join(name for name, time in pairs if format_seconds(time) == shown)
            same = runs and runs[-1][0] == best
            runs = [*runs[:-1], (best, runs[-1][1], size)] if same else [*runs, (best, size, size)]
        return runs

    def gain(self, own: "CollectiveTable", place: int) -> float:
        """Say how many times as fast one is as the first, at the size of a place."""
        return self.tables[0].rows[place].time_s / own.rows[place].time_s

    def fastest(self) -> str:
        """Say which is fastest up to which size.

        >>> side_by_side("all_reduce", "1KiB:1GiB", ["ring", "multishot"], gpus=8).fastest()
        'multishot to 128 MiB, then ring and multishot to 256 MiB, then ring'
        """
        *before, (last, _, _) = self.winners()
        return ", then ".join(
            [*(f"{name} to {format_bytes(top)}" for name, _, top in before), last]
        )

    def known(self) -> str:
        """Say how well all times are known, or from the best known to the worst."""
        bases = {row.basis for table in self.tables for row in table.rows}
        ends = sorted(bases, key=BASES.index)
        return " to ".join(dict.fromkeys([ends[0], ends[-1]]))

    def notes(self) -> list[str]:
        """Say what was assumed, how many steps each takes, and which is fastest at which sizes."""
        both = zip(self.algorithms, self.tables, strict=True)
        steps_of = [f"{name} {own.steps}" for name, own in both if own.steps]
        notes = list(self.tables[0].notes)
        if steps_of:
            notes.append(f"steps that wait for each other: {', '.join(steps_of)}")
        for name, first, last in self.winners():
            only, ends = f"at {format_bytes(first)}", (format_bytes(first), format_bytes(last))
            span = f"from {ends[0]} to {ends[1]}" if first < last else only
            how = "are equally fast" if " and " in name else "is the fastest"
            notes.append(f"{name} {how} {span}")
        return notes

    def table(self) -> Table:
        """Make a row of each size: the time of each algorithm, and how many times as fast it is."""
        first, *others = self.algorithms
        gains = ((name, f"times as fast as {first}") for name in others)
        head = ["size", first, *(word for pair in gains for word in pair)]
        rows = []
        for same in zip(*(table.rows for table in self.tables), strict=True):
            usual = same[0].time_s
            cells = [format_bytes(same[0].message_bytes), format_seconds(usual)]
            for row in same[1:]:
                cells += [format_seconds(row.time_s), f"{usual / row.time_s:.2f}x"]
            rows.append([*cells, max((row.basis for row in same), key=BASES.index)])
        return Table(head=[*head, "basis"], rows=rows, align=">", least=(10, 10))

    def csv_rows(self) -> list[dict[str, object]]:
        """Return a row of each size and algorithm: bytes, seconds, bytes a second."""
        return [asdict(row) for table in self.tables for row in table.rows]

    def parts(self) -> list[Part]:
        """Say everything, with charts of the time and the bus bandwidth of each algorithm."""
        named = zip(self.algorithms, self.tables, strict=True)
        drawn = _charts([(name, table.rows) for name, table in named])
        title, notes = Title(text=self.tables[0].title(), level=1), Said(lines=self.notes())
        return [title, *drawn, self.table(), "", notes]


@dataclass(frozen=True, slots=True)
class OverGpus:
    """Algorithms side by side for several numbers of GPUs, with the same sizes.

    left_out : numbers that one of them cannot serve, with the reason.
    """

    each: tuple[SideBySide, ...]
    left_out: Mapping[int, str]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        shown = [compared.to_dict() for compared in self.each]
        common = {key: shown[0][key] for key in ("op", "hardware", "notes")}
        return {
            **common,
            "numbers": [{key: x for key, x in row.items() if key not in common} for row in shown],
            "left_out": [{"gpus": gpus, "reason": why} for gpus, why in self.left_out.items()],
        }

    def notes(self) -> list[str]:
        """Say what was assumed, and which numbers of GPUs are left out, each reason once."""
        of: dict[str, list[int]] = {}
        for gpus, why in self.left_out.items():
            of.setdefault(why, []).append(gpus)
        out = (f"left out: {_spans(gpus)} GPUs: {why}" for why, gpus in of.items())
        return [*self.each[0].tables[0].notes, *out]

    def title(self) -> str:
        """Say what is compared on what."""
        first = self.each[0].tables[0]
        return f"{first.op} on {first.hardware}: {' and '.join(self.each[0].algorithms)}"

    def table(self) -> Table:
        """Make a row of each number of GPUs: steps, how much faster, and which wins where."""
        first, *others = self.each[0].algorithms
        all_sizes = self.each[0].tables[0].rows
        places = (0, -1) if len(all_sizes) > 1 else (0,)
        ends = [format_bytes(all_sizes[at].message_bytes) for at in places]
        gains = [f"gain of {name} at {size}" for name in others for size in ends]
        head = ["GPUs", *(f"steps of {name}" for name in (first, *others)), *gains]
        rows = [
            [
                str(compared.tables[0].gpus),
                *(str(own.steps or "") for own in compared.tables),
                *(f"{compared.gain(own, at):.2f}x" for own in compared.tables[1:] for at in places),
                compared.fastest(),
                compared.known(),
            ]
            for compared in self.each
        ]
        return Table(head=[*head, "fastest", "basis"], rows=rows, align=">", least=(5,))

    def csv_rows(self) -> list[dict[str, object]]:
        """Return a row of each number of GPUs, size and algorithm: bytes, seconds."""
        tables = (own for compared in self.each for own in compared.tables)
        return [
            {"gpus": own.gpus, "steps": own.steps, **asdict(row)}
            for own in tables
            for row in own.rows
        ]

    def parts(self) -> list[Part]:
        """Say everything, with a chart of the gains."""
        notes: list[Part] = ["", Said(lines=said)] if (said := self.notes()) else []
        drawn = Drawing(svg=self._chart())
        return [Title(text=self.title(), level=1), drawn, self.table(), *notes]

    def _chart(self) -> str:
        """Draw how much faster each algorithm is than the first, by GPUs."""
        first, *others = self.each[0].algorithms
        sizes = self.each[0].tables[0].rows
        series = [
            Series(
                name=f"{name} at {format_bytes(sizes[at].message_bytes)}",
                points=[
                    (own.gpus, gain := compared.gain(own, at), f"{gain:.2f}x")
                    for compared in self.each
                    for own in [compared.tables[place]]
                ],
            )
            for place, name in enumerate(others, 1)
            for at in ((0, -1) if len(sizes) > 1 else (0,))
        ]
        axes = (
            Axis(title="GPUs", write=format_number, base=2),
            Axis(title=f"times as fast as {first}", write="{:g}x".format),
        )
        return curves(f"Gain over {first} by GPUs", series, axes, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """Times of one collective over a range of sizes.

    nodes : hosts, or racks of one NVLink domain, that the GPUs are spread over evenly.
    network : of a node, between several; None on one. steps : of an algorithm that was asked for,
    each of which waits for the one before; 0 where they are not counted.
    notes : what was assumed about a machine that was read, and what is odd about it.
    """

    op: str
    hardware: str
    gpus: int
    nodes: int = 1
    network: Network | None = None
    steps: int = 0
    notes: tuple[str, ...] = ()
    rows: tuple[MessageRow, ...]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        own = {"steps": self.steps or None, "notes": list(self.notes)}
        return {**asdict(self), **own, "rows": [asdict(row) for row in self.rows]}

    def title(self) -> str:
        """Say what runs on what.

        >>> table("all_reduce", "1MiB", gpus=8, nodes=2).title()
        'all_reduce on 8 x h100-sxm: 2 nodes, 4 GPUs each, over infiniband (4 NICs, 200 GB/s a node)'
        """  # noqa: E501  # one line is what is promised
        whole = f"{self.op} on {self.gpus} x {self.hardware}"
        if self.nodes < 2 or self.network is None:
            return whole
        speed = f"{self.network.bandwidth / 1e9:.4g} GB/s a node"
        over = f"{self.network.kind} ({counted(self.network.nics, 'NIC')}, {speed})"
        each = counted(self.gpus // self.nodes, "GPU")
        return f"{whole}: {self.nodes} nodes, {each} each, over {over}"

    def table(self, *, bars: bool = False) -> Table:
        """Make a row of each size, on demand with a bar of the bus bandwidth."""
        top = max(row.bus_bandwidth_bytes_per_s for row in self.rows) if bars else 0.0
        rows = [
            [
                format_bytes(row.message_bytes),
                format_seconds(row.time_s),
                f"{row.algorithm_bandwidth_bytes_per_s / 1e9:.2f}",
                f"{row.bus_bandwidth_bytes_per_s / 1e9:.2f}",
                row.algorithm,
                row.protocol,
                row.basis,
                *(["█" * round(BAR * row.bus_bandwidth_bytes_per_s / top)] if top else []),
            ]
            for row in self.rows
        ]
        head = [*HEADERS, "bus bandwidth"] if top else HEADERS
        return Table(head=head, rows=rows, align=">>>>>>><", least=(10, 10, 11, 11, 11, 9, 11))

    def csv_rows(self) -> list[dict[str, object]]:
        """Return a row of each size: bytes, seconds, bytes a second."""
        return [asdict(row) for row in self.rows]

    def parts(self, *, bars: bool = False) -> list[Part]:
        """Say everything, with charts of the time and the bus bandwidth by algorithm.

        bars : of each bus bandwidth, for a terminal.
        """
        named: dict[str, list[MessageRow]] = {}
        for row in self.rows:
            named.setdefault(f"{row.algorithm} {row.protocol}".rstrip(), []).append(row)
        title = Title(text=self.title(), level=1)
        said = [Said(lines=self.notes)] if self.notes else []
        return [title, *said, *_charts([*named.items()]), self.table(bars=bars)]


def _charts(named: Sequence[tuple[str, Sequence[MessageRow]]]) -> Iterator[Drawing]:
    """Draw the time and the bus bandwidth of some rows by size, each under a name."""
    across = Axis(title="size", write=format_bytes, base=2)
    time = Axis(title="time", write=format_seconds, base=10)
    rate = Axis(title="bus bandwidth", write=_gigabytes)
    for field, up in (("time_s", time), ("bus_bandwidth_bytes_per_s", rate)):
        series = [
            Series(
                name=name,
                points=[(row.message_bytes, getattr(row, field), _spoken(row)) for row in rows],
            )
            for name, rows in named
        ]
        title = f"{up.title[0].upper()}{up.title[1:]} by size"
        yield Drawing(svg=curves(title, series, (across, up), None))


def _gigabytes(rate: float) -> str:
    return f"{format_number(rate / GIGA)} GB/s"


def _spoken(row: MessageRow) -> str:
    rate = _gigabytes(row.bus_bandwidth_bytes_per_s)
    size, time = format_bytes(row.message_bytes), format_seconds(row.time_s)
    return f"{size} in {time}, busbw {rate}, {row.basis}"


BASES: Final = tuple(basis.name.lower() for basis in Basis)
HEADERS: Final = ["size", "time", "algbw GB/s", "busbw GB/s", "algorithm", "protocol", "basis"]


def sizes_of(text: str) -> list[float]:
    """Read one size, a range ``low:high`` that doubles, or several of these with commas.

    Raises `InputError` if a size does not parse, is not positive, or a range is empty.

    >>> sizes_of("1KiB:4KiB,1MiB")
    [1024.0, 2048.0, 4096.0, 1048576.0]
    """
    sizes: list[float] = []
    for size, last in ranges_of(text):
        doubled = size
        while doubled <= last:
            sizes.append(doubled)
            doubled *= 2
    return list(dict.fromkeys(sizes))


def ranges_of(text: str) -> tuple[tuple[float, float], ...]:
    """Read the ends of ranges ``low:high`` with commas, of a size both alike; as `sizes_of`."""
    ranges = []
    for part in text.split(","):
        low, colon, high = part.partition(":")
        first = _size(low)
        last = _size(high) if colon else first
        if first > last:
            raise InputError(f"bytes: got {part[:40]!r}, wanted low:high with low <= high")
        ranges.append((first, last))
    return tuple(ranges)


def _size(text: str) -> float:
    """Read one size, of whole bytes.

    >>> _size("1.3KiB")
    1331.0
    >>> _size("17TiB")
    Traceback (most recent call last):
    topology.base.errors.InputError: bytes: got '17TiB', wanted a size from 1 B to 16 TiB
    """
    try:
        size = parse_bytes(text)
    except InputError as error:
        raise InputError(f"bytes: {error}: wanted {WANTED}") from None
    if not 1 <= size <= LARGEST:
        largest = format_bytes(LARGEST)
        raise InputError(f"bytes: got {text[:40]!r}, wanted a size from 1 B to {largest}")
    return float(round(size))


def table(  # noqa: PLR0913  # what nccl-tests is told
    op: str,
    sizes: str,
    *,
    gpus: int,
    hardware: str = "h100-sxm",
    nodes: int = 0,
    algorithm: str = "auto",
    launch: str = "graph",
    subset: "Subset | None" = None,
    profile: str = "",
    here: bool = False,
) -> CollectiveTable:
    """Price a collective over a range of sizes.

    subset : a machine to take the GPUs from instead of catalogue hardware.
    profile : path of a calibration profile; empty for the one that ships, ``none`` for none.
    here : `subset` is the machine this runs on, which may have a profile of its own.

    Raises `InputError` if a name, a number or a size cannot be right.
    """
    check_gpus(gpus)
    if not 0 <= nodes <= MOST_NODES:
        raise InputError(f"nodes: got {nodes}, wanted a whole number from 1 to {MOST_NODES}")
    if subset is None:
        fabric, name = links(gpus, hardware, nodes)
    else:
        part = subset.on(gpus, nodes)
        fabric, name = part.fabric(), part.machine.hardware or part.machine.name
    curves = curves_of(name, profile, subset if here else None)
    rows = [_row(op, size, fabric, algorithm, launch, curves) for size in sizes_of(sizes)]
    return CollectiveTable(
        op=op,
        hardware=name,
        gpus=gpus,
        nodes=fabric.nodes,
        network=fabric.network,
        steps=steps(op, fabric, algorithm),
        notes=() if subset is None else subset.notes(),
        rows=tuple(rows),
    )


def check_gpus(gpus: int) -> None:
    """Refuse a number of GPUs that no collective is run on here."""
    if not 2 <= gpus <= MOST_GPUS:
        raise InputError(f"gpus: got {gpus}, wanted a whole number from 2 to {MOST_GPUS}")


def side_by_side(op: str, sizes: str, algorithms: Sequence[str], **how: Any) -> SideBySide:  # noqa: ANN401  # as `table`
    """Price a collective over a range of sizes by several algorithms.

    how : keywords of `table`.

    Raises `InputError` if a name, a number or a size cannot be right, or an algorithm is named
    twice.
    """
    if len(set(algorithms)) < len(algorithms):
        raise InputError(f"algorithm: got {','.join(algorithms)}, wanted each once")
    tables = tuple(table(op, sizes, algorithm=name, **how) for name in algorithms)
    return SideBySide(tables=tables, algorithms=tuple(algorithms))


def over_gpus(
    op: str,
    sizes: str,
    algorithms: Sequence[str],
    gpus: Sequence[int],
    **how: Any,  # noqa: ANN401  # as `table`
) -> OverGpus:
    """Price a collective by several algorithms on several numbers of GPUs.

    Numbers that one of them cannot serve are left out with the reason.

    Raises `InputError` as `side_by_side` does, where that is so of all numbers, or if only one
    algorithm is named.
    """
    if len(algorithms) < 2:
        raise InputError(
            f"algorithm: got {algorithms[0]} beside several numbers of GPUs, wanted several, such "
            "as ring,multishot"
        )
    each, left_out = [], dict[int, str]()
    for count in gpus:
        try:
            each.append(side_by_side(op, sizes, algorithms, **{**how, "gpus": count}))
        except InputError as error:
            left_out[count] = str(error)
    if not each:
        raise InputError(left_out[gpus[0]])
    return OverGpus(tuple(each), left_out)


def _spans(numbers: Sequence[int]) -> str:
    """Write numbers in order, those in a row as the first and last of them.

    >>> _spans([2, 9, 10, 11])
    '2, 9 to 11'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if run[1:] else str(run[0]) for run in runs)


def _row(
    op: str, size: float, fabric: Fabric, algorithm: str, launch: str, curves: Calibration
) -> MessageRow:
    chosen, protocol = choose(op, size, fabric, algorithm=algorithm, calibration=curves)
    seconds = float(
        collective_time(op, size, fabric, algorithm=algorithm, launch=launch, calibration=curves)
    )
    rate = size / seconds
    return MessageRow(
        message_bytes=round(size),
        time_s=seconds,
        algorithm_bandwidth_bytes_per_s=rate,
        bus_bandwidth_bytes_per_s=rate * bus_factor(op, fabric.ranks),
        algorithm=chosen,
        protocol=protocol,
        basis=basis(op, size, fabric, algorithm=algorithm, calibration=curves).name.lower(),
    )


def curves_of(hardware: str, profile: str, own: "Subset | None") -> Calibration:
    """Take the curves of a profile: the one asked for, that of the machine `own`, or the usual."""
    if own is None:
        taken = profile_for(hardware, profile)
    else:
        from planner.request.subset import profile_on  # noqa: PLC0415  # machines take a while to import

        taken = profile_on(own.machine, hardware, profile)
    return None if taken is None else taken.curves


def links(gpus: int, hardware: str, nodes: int = 0) -> tuple[Fabric, str]:
    """Describe the links of so many GPUs of catalogue hardware, and give its name."""
    node = find_hardware(hardware)
    return node.fabric(gpus, nodes), node.name
