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
        per_table_keys = ("steps", "rows")
        return {
            **{key: x for key, x in self.tables[0].to_dict().items() if key not in per_table_keys},
            "algorithms": [
                {
                    "algorithm": name,
                    "steps": collective.steps,
                    "rows": [asdict(row) for row in collective.rows],
                }
                for name, collective in zip(self.algorithms, self.tables, strict=True)
            ],
        }

    def winners(self) -> list[tuple[str, int, int]]:
        """Name the fastest of each run of sizes, all that are equal, and its first and last."""
        runs: list[tuple[str, int, int]] = []
        for rows in zip(*(table.rows for table in self.tables), strict=True):
            size = rows[0].message_bytes
            times = [row.time_s for row in rows]
            shortest_time = format_seconds(min(times))  # equal as printed
            pairs = zip(self.algorithms, times, strict=True)
            fastest_names = " and ".join(
                name for name, time in pairs if format_seconds(time) == shortest_time
            )
            same_winner = runs and runs[-1][0] == fastest_names
            runs = (
                [*runs[:-1], (fastest_names, runs[-1][1], size)]
                if same_winner
                else [*runs, (fastest_names, size, size)]
            )
        return runs

    def gain(self, own: "CollectiveTable", place: int) -> float:
        """Say how many times as fast one is as the first, at the size of a place."""
        return self.tables[0].rows[place].time_s / own.rows[place].time_s

    def fastest(self) -> str:
        """Say which is fastest up to which size.

        >>> side_by_side("all_reduce", "1KiB:1GiB", ["ring", "multishot"], gpus=8).fastest()
        'multishot to 128 MiB, then ring and multishot to 256 MiB, then ring'
        """
        *earlier, (last_name, _, _) = self.winners()
        return ", then ".join(
            [*(f"{name} to {format_bytes(largest)}" for name, _, largest in earlier), last_name]
        )

    def known(self) -> str:
        """Say how well all times are known, or from the best known to the worst."""
        bases = {row.basis for table in self.tables for row in table.rows}
        ordered_bases = sorted(bases, key=BASES.index)
        return " to ".join(dict.fromkeys([ordered_bases[0], ordered_bases[-1]]))

    def notes(self) -> list[str]:
        """Say what was assumed, how many steps each takes, and which is fastest at which sizes."""
        pairs = zip(self.algorithms, self.tables, strict=True)
        steps_of = [f"{name} {collective.steps}" for name, collective in pairs if collective.steps]
        notes = list(self.tables[0].notes)
        if steps_of:
            notes.append(f"steps that wait for each other: {', '.join(steps_of)}")
        for name, smallest, largest in self.winners():
            single_size, end_sizes = (
                f"at {format_bytes(smallest)}",
                (format_bytes(smallest), format_bytes(largest)),
            )
            span = f"from {end_sizes[0]} to {end_sizes[1]}" if smallest < largest else single_size
            verdict = "are equally fast" if " and " in name else "is the fastest"
            notes.append(f"{name} {verdict} {span}")
        return notes

    def table(self) -> Table:
        """Make a row of each size: the time of each algorithm, and how many times as fast it is."""
        reference, *rivals = self.algorithms
        gains = ((name, f"times as fast as {reference}") for name in rivals)
        head = ["size", reference, *(word for pair in gains for word in pair)]
        rows = []
        for size_rows in zip(*(table.rows for table in self.tables), strict=True):
            reference_time = size_rows[0].time_s
            cells = [format_bytes(size_rows[0].message_bytes), format_seconds(reference_time)]
            for row in size_rows[1:]:
                cells += [format_seconds(row.time_s), f"{reference_time / row.time_s:.2f}x"]
            rows.append([*cells, max((row.basis for row in size_rows), key=BASES.index)])
        return Table(head=[*head, "basis"], rows=rows, align=">", least=(10, 10))

    def csv_rows(self) -> list[dict[str, object]]:
        """Return a row of each size and algorithm: bytes, seconds, bytes a second."""
        return [asdict(row) for table in self.tables for row in table.rows]

    def parts(self) -> list[Part]:
        """Say everything, with charts of the time and the bus bandwidth of each algorithm."""
        named_tables = zip(self.algorithms, self.tables, strict=True)
        charts = _charts([(name, table.rows) for name, table in named_tables])
        title, notes = Title(text=self.tables[0].title(), level=1), Said(lines=self.notes())
        return [title, *charts, self.table(), "", notes]


@dataclass(frozen=True, slots=True)
class OverGpus:
    """Algorithms side by side for several numbers of GPUs, with the same sizes.

    left_out : numbers that one of them cannot serve, with the reason.
    """

    each: tuple[SideBySide, ...]
    left_out: Mapping[int, str]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        comparisons = [comparison.to_dict() for comparison in self.each]
        common = {key: comparisons[0][key] for key in ("op", "hardware", "notes")}
        return {
            **common,
            "numbers": [
                {key: x for key, x in row.items() if key not in common} for row in comparisons
            ],
            "left_out": [
                {"gpus": gpus, "reason": reason} for gpus, reason in self.left_out.items()
            ],
        }

    def notes(self) -> list[str]:
        """Say what was assumed, and which numbers of GPUs are left out, each reason once."""
        gpus_by_reason: dict[str, list[int]] = {}
        for gpus, reason in self.left_out.items():
            gpus_by_reason.setdefault(reason, []).append(gpus)
        left_out_lines = (
            f"left out: {_number_spans(gpus)} GPUs: {reason}"
            for reason, gpus in gpus_by_reason.items()
        )
        return [*self.each[0].tables[0].notes, *left_out_lines]

    def title(self) -> str:
        """Say what is compared on what."""
        first_table = self.each[0].tables[0]
        return (
            f"{first_table.op} on {first_table.hardware}: {' and '.join(self.each[0].algorithms)}"
        )

    def table(self) -> Table:
        """Make a row of each number of GPUs: steps, how much faster, and which wins where."""
        reference, *rivals = self.each[0].algorithms
        all_sizes = self.each[0].tables[0].rows
        places = (0, -1) if len(all_sizes) > 1 else (0,)
        end_sizes = [format_bytes(all_sizes[row_index].message_bytes) for row_index in places]
        gains = [f"gain of {name} at {size}" for name in rivals for size in end_sizes]
        head = ["GPUs", *(f"steps of {name}" for name in (reference, *rivals)), *gains]
        rows = [
            [
                str(comparison.tables[0].gpus),
                *(str(collective.steps or "") for collective in comparison.tables),
                *(
                    f"{comparison.gain(collective, row_index):.2f}x"
                    for collective in comparison.tables[1:]
                    for row_index in places
                ),
                comparison.fastest(),
                comparison.known(),
            ]
            for comparison in self.each
        ]
        return Table(head=[*head, "fastest", "basis"], rows=rows, align=">", least=(5,))

    def csv_rows(self) -> list[dict[str, object]]:
        """Return a row of each number of GPUs, size and algorithm: bytes, seconds."""
        tables = (collective for comparison in self.each for collective in comparison.tables)
        return [
            {"gpus": collective.gpus, "steps": collective.steps, **asdict(row)}
            for collective in tables
            for row in collective.rows
        ]

    def parts(self) -> list[Part]:
        """Say everything, with a chart of the gains."""
        notes: list[Part] = ["", Said(lines=note_lines)] if (note_lines := self.notes()) else []
        chart = Drawing(svg=self._chart())
        return [Title(text=self.title(), level=1), chart, self.table(), *notes]

    def _chart(self) -> str:
        """Draw how much faster each algorithm is than the first, by GPUs."""
        reference, *rivals = self.each[0].algorithms
        sizes = self.each[0].tables[0].rows
        series = [
            Series(
                name=f"{name} at {format_bytes(sizes[row_index].message_bytes)}",
                points=[
                    (
                        collective.gpus,
                        gain := comparison.gain(collective, row_index),
                        f"{gain:.2f}x",
                    )
                    for comparison in self.each
                    for collective in [comparison.tables[table_index]]
                ],
            )
            for table_index, name in enumerate(rivals, 1)
            for row_index in ((0, -1) if len(sizes) > 1 else (0,))
        ]
        axes = (
            Axis(title="GPUs", write=format_number, base=2),
            Axis(title=f"times as fast as {reference}", write="{:g}x".format),
        )
        return curves(f"Gain over {reference} by GPUs", series, axes, None)


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
        overrides = {"steps": self.steps or None, "notes": list(self.notes)}
        return {**asdict(self), **overrides, "rows": [asdict(row) for row in self.rows]}

    def title(self) -> str:
        """Say what runs on what.

        >>> table("all_reduce", "1MiB", gpus=8, nodes=2).title()
        'all_reduce on 8 x h100-sxm: 2 nodes, 4 GPUs each, over infiniband (4 NICs, 200 GB/s a node)'
        """  # noqa: E501  # one line is what is promised
        heading = f"{self.op} on {self.gpus} x {self.hardware}"
        if self.nodes < 2 or self.network is None:
            return heading
        speed = f"{self.network.bandwidth / 1e9:.4g} GB/s a node"
        network_text = f"{self.network.kind} ({counted(self.network.nics, 'NIC')}, {speed})"
        node_gpus = counted(self.gpus // self.nodes, "GPU")
        return f"{heading}: {self.nodes} nodes, {node_gpus} each, over {network_text}"

    def table(self, *, bars: bool = False) -> Table:
        """Make a row of each size, on demand with a bar of the bus bandwidth."""
        peak_rate = max(row.bus_bandwidth_bytes_per_s for row in self.rows) if bars else 0.0
        rows = [
            [
                format_bytes(row.message_bytes),
                format_seconds(row.time_s),
                f"{row.algorithm_bandwidth_bytes_per_s / 1e9:.2f}",
                f"{row.bus_bandwidth_bytes_per_s / 1e9:.2f}",
                row.algorithm,
                row.protocol,
                row.basis,
                *(
                    ["█" * round(BAR * row.bus_bandwidth_bytes_per_s / peak_rate)]
                    if peak_rate
                    else []
                ),
            ]
            for row in self.rows
        ]
        head = [*HEADERS, "bus bandwidth"] if peak_rate else HEADERS
        return Table(head=head, rows=rows, align=">>>>>>><", least=(10, 10, 11, 11, 11, 9, 11))

    def csv_rows(self) -> list[dict[str, object]]:
        """Return a row of each size: bytes, seconds, bytes a second."""
        return [asdict(row) for row in self.rows]

    def parts(self, *, bars: bool = False) -> list[Part]:
        """Say everything, with charts of the time and the bus bandwidth by algorithm.

        bars : of each bus bandwidth, for a terminal.
        """
        rows_by_algorithm: dict[str, list[MessageRow]] = {}
        for row in self.rows:
            rows_by_algorithm.setdefault(f"{row.algorithm} {row.protocol}".rstrip(), []).append(row)
        title = Title(text=self.title(), level=1)
        notes = [Said(lines=self.notes)] if self.notes else []
        return [title, *notes, *_charts([*rows_by_algorithm.items()]), self.table(bars=bars)]


def _charts(named_rows: Sequence[tuple[str, Sequence[MessageRow]]]) -> Iterator[Drawing]:
    """Draw the time and the bus bandwidth of some rows by size, each under a name."""
    size_axis = Axis(title="size", write=format_bytes, base=2)
    time_axis = Axis(title="time", write=format_seconds, base=10)
    rate_axis = Axis(title="bus bandwidth", write=_gigabytes)
    for field, value_axis in (("time_s", time_axis), ("bus_bandwidth_bytes_per_s", rate_axis)):
        series = [
            Series(
                name=name,
                points=[(row.message_bytes, getattr(row, field), _row_label(row)) for row in rows],
            )
            for name, rows in named_rows
        ]
        title = f"{value_axis.title[0].upper()}{value_axis.title[1:]} by size"
        yield Drawing(svg=curves(title, series, (size_axis, value_axis), None))


def _gigabytes(rate: float) -> str:
    return f"{format_number(rate / GIGA)} GB/s"


def _row_label(row: MessageRow) -> str:
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
    for size, largest in ranges_of(text):
        doubled = size
        while doubled <= largest:
            sizes.append(doubled)
            doubled *= 2
    return list(dict.fromkeys(sizes))


def ranges_of(text: str) -> tuple[tuple[float, float], ...]:
    """Read the ends of ranges ``low:high`` with commas, of a size both alike; as `sizes_of`."""
    ranges = []
    for range_text in text.split(","):
        low, colon, high = range_text.partition(":")
        smallest = _size(low)
        largest = _size(high) if colon else smallest
        if smallest > largest:
            raise InputError(f"bytes: got {range_text[:40]!r}, wanted low:high with low <= high")
        ranges.append((smallest, largest))
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
        used_subset = subset.on(gpus, nodes)
        fabric, name = (
            used_subset.fabric(),
            used_subset.machine.hardware or used_subset.machine.name,
        )
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
    comparisons, left_out = [], dict[int, str]()
    for count in gpus:
        try:
            comparisons.append(side_by_side(op, sizes, algorithms, **{**how, "gpus": count}))
        except InputError as error:
            left_out[count] = str(error)
    if not comparisons:
        raise InputError(left_out[gpus[0]])
    return OverGpus(tuple(comparisons), left_out)


def _number_spans(numbers: Sequence[int]) -> str:
    """Write numbers in order, those in a row as the first and last of them.

    >>> _number_spans([2, 9, 10, 11])
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
    chosen_algorithm, protocol = choose(op, size, fabric, algorithm=algorithm, calibration=curves)
    seconds = float(
        collective_time(op, size, fabric, algorithm=algorithm, launch=launch, calibration=curves)
    )
    rate = size / seconds
    return MessageRow(
        message_bytes=round(size),
        time_s=seconds,
        algorithm_bandwidth_bytes_per_s=rate,
        bus_bandwidth_bytes_per_s=rate * bus_factor(op, fabric.ranks),
        algorithm=chosen_algorithm,
        protocol=protocol,
        basis=basis(op, size, fabric, algorithm=algorithm, calibration=curves).name.lower(),
    )


def curves_of(hardware: str, profile: str, own: "Subset | None") -> Calibration:
    """Take the curves of a profile: the one asked for, that of the machine `own`, or the usual."""
    if own is None:
        used_profile = profile_for(hardware, profile)
    else:
        from planner.request.subset import profile_on  # noqa: PLC0415  # machines take a while to import

        used_profile = profile_on(own.machine, hardware, profile)
    return None if used_profile is None else used_profile.curves


def links(gpus: int, hardware: str, nodes: int = 0) -> tuple[Fabric, str]:
    """Describe the links of so many GPUs of catalogue hardware, and give its name."""
    node = find_hardware(hardware)
    return node.fabric(gpus, nodes), node.name
