"""A machine on the terminal, as Markdown and as a page: tree, bandwidth, NCCL's view, warnings."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from topology.base import counted, format_bytes
from topology.catalogue import Hardware, link_rates
from topology.catalogue.listing import HEADERS, roster_rows
from topology.drawing.matrices import SHOWN, Rows, link_rows, nccl_rows, nic_rows
from topology.drawing.picture import page, svg
from topology.machine.flows import bisection_bandwidth
from topology.machine.graph import Edge, Gpu, Machine, Nic


def report(machine: Machine) -> RenderableType:
    """Show all there is to say about a machine, for a terminal."""
    parts: list[RenderableType] = [tree(machine)]
    for title, rows in tables(machine):
        parts += [Text(f"\n{title}", style="bold"), _table(rows)]
    for title, notes, style in (
        ("Assumed", machine.assumptions, "yellow"),
        ("Warnings", machine.warnings, "red"),
    ):
        if notes:
            parts.append(Text(f"\n{title}", style="bold"))
            parts += [Text(f"- {note}", style=style) for note in notes]
    return Group(*parts)


def html(machine: Machine) -> str:
    """Write a page with the drawing, the tables and the warnings; it needs nothing else."""
    return page(machine, summary(machine), svg(machine), tables(machine))


def markdown(machine: Machine) -> str:
    """Write the same as Markdown."""
    lines = [f"# {machine.name}", "", summary(machine), ""]
    for title, (head, *rows) in tables(machine):
        lines += [f"## {title}", "", _bar(head), _bar(["---"] * len(head)), *map(_bar, rows), ""]
    for title, notes in (("Assumed", machine.assumptions), ("Warnings", machine.warnings)):
        if notes:
            lines += [f"## {title}", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines)


def hardware_table(known: Sequence[Hardware]) -> RenderableType:
    """List hardware for a terminal."""
    return _table([list(HEADERS), *roster_rows(known)], shown=len(known) + 1)


def hardware_markdown(known: Sequence[Hardware]) -> str:
    """List hardware as Markdown."""
    return "\n".join(map(_bar, [HEADERS, ["---"] * len(HEADERS), *roster_rows(known)]))


def tables(machine: Machine) -> list[tuple[str, Rows]]:
    """Give the tables of a report with their titles."""
    found = []
    if len(machine.gpus) > 1:
        found += [
            ("Links: count, GB/s each way (? filled in)", link_rows(machine)),
            ("NCCL: path, GB/s it expects (* staged)", nccl_rows(machine, link_rates().nccl)),
        ]
    if machine.gpus and any(not nic.virtual for nic in machine.nics):
        found.append(("GPU to NIC: NCCL path (+ GPUDirect)", nic_rows(machine)))
    if machine.nccl_graphs:
        found.append(("Graphs NCCL chose, GB/s a channel", _search_rows(machine)))
    return found


def summary(machine: Machine) -> str:
    """Say in one line what a machine is."""
    kinds = dict.fromkeys(gpu.hardware or gpu.product or "unknown kind" for gpu in machine.gpus)
    what = f" ({', '.join(kinds)})" if kinds else ""
    hosts = f"{counted(machine.hosts, 'node')}, " if machine.hosts > 1 else ""
    halves = bisection_bandwidth(machine) if machine.edges else 0.0
    cut = f", {_gigabytes(halves)} GB/s between halves" if halves else ""
    nics = len(machine.nics) * machine.copies
    devices = f"{counted(machine.gpu_count, 'GPU')}{what}, {counted(nics, 'NIC')}"
    return f"{hosts}{devices}{cut}; from {machine.source}"


def _gigabytes(bandwidth: float) -> str:
    value = bandwidth / 10**9
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def tree(machine: Machine) -> Tree:
    """Draw processors, switches and devices as they hang on each other."""
    top = Tree(Text(f"{machine.name}: {summary(machine)}", style="bold"))
    below: dict[str, list[Edge]] = {}
    for edge in machine.edges:
        if edge.kind in ("pcie", "host"):
            below.setdefault(edge.b, []).append(edge)
    devices: dict[str, Gpu | Nic] = {gpu.name: gpu for gpu in machine.gpus}
    devices |= {nic.name: nic for nic in machine.nics}
    for node in machine.nodes:
        if node.kind == "cpu":
            place = f" NUMA {node.numa}" if node.numa is not None else ""
            branch = top.add(Text(f"{node.name}{place} {node.chip}".rstrip()))
            _grow(branch, below, devices, node.name)
        elif node.kind == "nvswitch":
            top.add(Text(f"{node.name}: {_joined(machine, node.name)}"))
    cluster = machine.cluster
    if cluster is not None and machine.hosts > 1:
        top.add(
            Text(
                f"{cluster.kind}: {cluster.nics} NICs a node of "
                f"{cluster.nic_bandwidth.value / 10**9:.4g} GB/s on {cluster.rails} rails, "
                f"oversubscription {cluster.oversubscription:g}"
            )
        )
    return top


def _grow(
    branch: Tree,
    below: Mapping[str, Sequence[Edge]],
    devices: Mapping[str, Gpu | Nic],
    name: str,
    depth: int = 0,
) -> None:
    for edge in below.get(name, ()) if depth < 64 else ():
        child = branch.add(Text(f"{_device(devices.get(edge.a), edge.a)}{_link(edge)}"))
        _grow(child, below, devices, edge.a, depth + 1)


def _device(device: Gpu | Nic | None, name: str) -> str:
    if isinstance(device, Gpu):
        memory = f" {format_bytes(device.memory)}" if device.memory else ""
        return f"{name} {device.hardware or device.product or device.architecture}{memory}"
    if isinstance(device, Nic):
        speed = f" {device.bandwidth.value / 10**9:.4g} GB/s" if device.bandwidth else ""
        return f"{name} {device.device}{speed}".rstrip()
    return name


def _link(edge: Edge) -> str:
    if edge.kind != "pcie":
        return ""
    return f" [PCIe {edge.generation} x{edge.count}, {edge.bandwidth.value / 10**9:.4g} GB/s]"


def _joined(machine: Machine, name: str) -> str:
    edges = [edge for edge in machine.edges if edge.b == name]
    counts = sorted({edge.count for edge in edges})
    speed = max((edge.bandwidth.value for edge in edges), default=0.0) / 10**9
    links = " or ".join(map(str, counts))
    return f"{len(edges)} GPUs, {links} links each, {speed:.4g} GB/s each way"


def _search_rows(machine: Machine) -> Rows:
    head = ["graph", "channels", "inside", "between", "path inside", "path between"]
    return [
        head,
        *(
            [
                search.name,
                str(search.channels),
                f"{search.intra / 10**9:g}",
                f"{search.inter / 10**9:g}",
                search.type_intra,
                search.type_inter,
            ]
            for search in machine.nccl_graphs
        ),
    ]


def _table(rows: Rows, shown: int = SHOWN) -> Table:
    head, *body = rows
    table = Table(*head, box=None, header_style="bold", pad_edge=False)
    for row in body:
        table.add_row(*map(Text, row))
    if len(body) == shown:
        table.caption = f"the first {shown}"
    return table


def _bar(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
