"""What there is to say of a machine: tree, bandwidth, NCCL's view, warnings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from topology.base import counted, format_bytes
from topology.base.rows import gathered
from topology.base.table import Drawing, Part, Said, Table, Title
from topology.catalogue import Hardware, link_rates
from topology.drawing.picture import svg
from topology.machine import (
    Edge,
    Gpu,
    Machine,
    Nic,
    bisection_bandwidth,
    gpudirect,
    nccl_bandwidth,
    nccl_peers,
    path_types,
)

Rows: TypeAlias = list[list[str]]  # the first row is the head
MOST_DEVICES: Final = 16  # devices a side
CUT_NOTE: Final = f"the first {MOST_DEVICES}"
"""What stands below a table that has not room for all devices."""
_HARDWARE: Final = [
    "name", "GPUs", "device", "memory", "its GB/s", "links, GB/s", "NICs, GB/s", "precisions",
]  # fmt: skip
_LINK_NAMES: Final = {"nvswitch": "NVSwitch", "nvlink": "NVLink", "pcie": "PCIe"}


def parts(machine: Machine) -> list[Part]:
    """Say all there is to say about a machine: how it is built, tables and warnings."""
    answer: list[Part] = [
        Title(text=f"{machine.name}: {summary(machine)}", level=1),
        Drawing(lines=tree(machine), svg=svg(machine)),
    ]
    for title, table in tables(machine):
        answer += [Title(text=title), table]
        if len(table.rows) == MOST_DEVICES:
            answer.append(CUT_NOTE)
    if machine.assumptions:
        answer += [Title(text="Assumed"), Said(lines=machine.assumptions)]
    if machine.warnings:
        answer += [Title(text="Warnings"), Said(lines=machine.warnings, warns=True)]
    return answer


def hardware_table(hardware: Iterable[Hardware]) -> Table:
    """Make a table of hardware, a row each."""
    return _table([_HARDWARE, *map(_hardware_row, hardware)])


def _hardware_row(hardware: Hardware) -> list[str]:
    device = hardware.device
    domain_note = f" of {hardware.domain}" if hardware.domain != hardware.gpus else ""
    staged = "" if hardware.peer_to_peer or hardware.link != "pcie" else " (host)"
    return [
        hardware.name,
        str(hardware.gpus),
        device.architecture,
        format_bytes(device.memory.value),
        _giga(device.memory_bandwidth.value),
        _LINK_NAMES[hardware.link]
        + f"{domain_note}{staged}, {_giga(hardware.link_bandwidth.value)}",
        f"{hardware.nics} x {_giga(hardware.nic_bandwidth.value)} {hardware.network}",
        " ".join(name for name, _ in device.peaks),
    ]


def tables(machine: Machine) -> list[tuple[str, Table]]:
    """Give the tables of a report with their titles."""
    titled = []
    if len(machine.gpus) > 1:
        titled += [
            ("Links: count, GB/s each way (? filled in)", link_rows(machine)),
            ("NCCL: path, GB/s it expects (* staged)", nccl_rows(machine)),
        ]
    if machine.gpus and any(not nic.virtual for nic in machine.nics):
        titled.append(("GPU to NIC: NCCL path (+ GPUDirect)", nic_rows(machine)))
    if machine.nccl_graphs:
        titled.append(("Graphs NCCL chose, GB/s a channel", _graph_rows(machine)))
    return [(title, _table(rows)) for title, rows in titled]


def summary(machine: Machine) -> str:
    """Say in one line what a machine is."""
    kinds = dict.fromkeys(gpu.hardware or gpu.product or "unknown kind" for gpu in machine.gpus)
    kind_names = f" ({', '.join(kinds)})" if kinds else ""
    hosts = f"{counted(machine.hosts, 'node')}, " if machine.hosts > 1 else ""
    bisection = bisection_bandwidth(machine) if machine.edges else 0.0
    bisection_note = f", {_gigabytes(bisection)} GB/s between halves" if bisection else ""
    nics = len(machine.nics) * machine.copies
    devices = f"{counted(machine.gpu_count, 'GPU')}{kind_names}, {counted(nics, 'NIC')}"
    return f"{hosts}{devices}{bisection_note}; from {machine.source}"


def _gigabytes(bandwidth: float) -> str:
    value = bandwidth / 10**9
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _giga(bandwidth: float) -> str:
    return f"{bandwidth / 10**9:.4g}"


def tree(machine: Machine) -> list[str]:
    """Draw processors, switches and devices as they hang on each other."""
    edges_below = gathered(
        (edge.b, edge) for edge in machine.edges if edge.kind in ("pcie", "host")
    )
    devices = {nic.name: _nic(nic) for nic in machine.nics}
    devices |= {gpu.name: _gpu(machine, gpu) for gpu in machine.gpus}
    branches: list[tuple[str, list[str]]] = []
    for node in machine.nodes:
        if node.kind == "cpu":
            place = f" NUMA {node.numa}" if node.numa is not None else ""
            title = f"{node.name}{place} {node.chip}".rstrip()
            branches.append((title, _subtree_lines(edges_below, devices, node.name)))
        elif node.kind == "nvswitch":
            branches.append((f"{node.name}: {_nvlink_summary(machine, node.name)}", []))
    cluster = machine.cluster
    if cluster is not None and machine.hosts > 1:
        title = (
            f"{cluster.kind}: {cluster.nics} NICs a node of "
            f"{_giga(cluster.nic_bandwidth.value)} GB/s on {cluster.rails} rails, "
            f"oversubscription {cluster.oversubscription:g}"
        )
        branches.append((title, []))
    return _branch_lines(branches)


def _branch_lines(branches: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Draw lines from a place to each of its branches, and past them to the next one."""
    lines = []
    for number, (title, inner_lines) in enumerate(branches, 1):
        is_last = number == len(branches)
        lines.append(f"{'└' if is_last else '├'}── {title}")
        lines += [f"{' ' if is_last else '│'}   {line}" for line in inner_lines]
    return lines


def _subtree_lines(
    edges_below: Mapping[str, Sequence[Edge]],
    devices: Mapping[str, str],
    name: str,
    depth: int = 0,
) -> list[str]:
    edges = edges_below.get(name, ()) if depth < 64 else ()
    return _branch_lines([
        (
            f"{devices.get(edge.a, edge.a)}{_link(edge)}",
            _subtree_lines(edges_below, devices, edge.a, depth + 1),
        )
        for edge in edges
    ])  # fmt: skip


def _gpu(machine: Machine, gpu: Gpu) -> str:
    memory = f" {format_bytes(gpu.memory)}" if gpu.memory else ""
    kind = gpu.hardware or gpu.product or gpu.architecture
    coherent = (
        f" [C2C {_giga(link.bandwidth.value)} GB/s]" for link in machine.links_of(gpu.name, "c2c")
    )
    return "".join([f"{gpu.name} {kind}{memory}", *coherent])


def _nic(nic: Nic) -> str:
    speed = f" {_giga(nic.bandwidth.value)} GB/s" if nic.bandwidth else ""
    return f"{nic.name} {nic.device}{speed}".rstrip()


def _link(edge: Edge) -> str:
    if edge.kind != "pcie":
        return ""
    return f" [PCIe {edge.generation} x{edge.count}, {_giga(edge.bandwidth.value)} GB/s]"


def _nvlink_summary(machine: Machine, name: str) -> str:
    edges = [edge for edge in machine.edges if edge.b == name]
    counts = sorted({edge.count for edge in edges})
    speed = max((edge.bandwidth.value for edge in edges), default=0.0) / 10**9
    links = " or ".join(map(str, counts))
    return f"{len(edges)} GPUs, {links} links each, {speed:.4g} GB/s each way"


def _graph_rows(machine: Machine) -> Rows:
    rows = [["graph", "channels", "inside", "between", "path inside", "path between"]]
    for graph in machine.nccl_graphs:
        speeds = [f"{graph.intra / 10**9:g}", f"{graph.inter / 10**9:g}"]
        rows.append([graph.name, str(graph.channels), *speeds, graph.type_intra, graph.type_inter])
    return rows


def _table(rows: Rows) -> Table:
    head, *body = rows
    return Table(head=head, rows=body, align="<", head_in="bold")


def link_rows(machine: Machine) -> Rows:
    """Give kind, count and GB/s each way for every two GPUs; ``?`` marks what was filled in.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine import machine_of
    >>> link_rows(machine_of(find_hardware("h100-nvl")))[1][:3]
    ['GPU0', 'X', 'NV12? 300']
    """
    pairs = machine.pairs_by_ends

    def cell(a: Gpu, b: Gpu) -> str:
        pair = pairs.get((a.name, b.name))
        if pair is None:
            return "?"
        return f"{pair.label}{'' if pair.read else '?'} {_giga(pair.bandwidth)}"

    return _pairwise_rows(machine, cell)


def nccl_rows(machine: Machine) -> Rows:
    """Give NCCL's path type and GB/s for every two GPUs; ``*`` marks copies it would stage."""
    types = path_types(machine)
    speeds = nccl_bandwidth(machine, link_rates().nccl) if machine.edges else {}
    peers = nccl_peers(machine)

    def cell(a: Gpu, b: Gpu) -> str:
        ends = a.name, b.name
        if ends not in types:
            return "?"
        staged = "" if peers[ends].allowed else "*"
        speed = f" {_giga(speeds[ends])}" if ends in speeds else ""
        return f"{types[ends].name}{staged}{speed}"

    return _pairwise_rows(machine, cell)


def nic_rows(machine: Machine) -> Rows:
    """Give NCCL's path type from each GPU to each real NIC; ``+`` marks GPUDirect."""
    types = path_types(machine)
    access = gpudirect(machine)
    nics = [nic for nic in machine.nics if not nic.virtual][:MOST_DEVICES]
    rows = [["", *(nic.device or nic.name for nic in nics)]]

    def cell(gpu: str, nic: str) -> str:
        ends = gpu, nic
        kind = types[ends].name if ends in types else "?"
        return f"{kind}{'+' if access[ends].allowed else ''}"

    rows += [
        [g.name, *(cell(g.name, nic.name) for nic in nics)] for g in machine.gpus[:MOST_DEVICES]
    ]
    return rows


def _pairwise_rows(machine: Machine, cell: Callable[[Gpu, Gpu], str]) -> Rows:
    gpus = machine.gpus[:MOST_DEVICES]
    return [
        ["", *(gpu.name for gpu in gpus)],
        *([a.name, *("X" if a is b else cell(a, b) for b in gpus)] for a in gpus),
    ]
