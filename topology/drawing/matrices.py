"""A machine as tables of text: links, what NCCL makes of them, and the way to NICs."""

from collections.abc import Callable
from typing import TypeAlias

from topology.catalogue import NcclRates
from topology.machine.graph import Gpu, Machine
from topology.machine.paths import gpudirect, nccl_bandwidth, nccl_peers, path_types

Rows: TypeAlias = list[list[str]]  # the first row is the head
SHOWN = 16  # devices a side


def link_rows(machine: Machine) -> Rows:
    """Give kind, count and GB/s each way for every two GPUs; ``?`` marks what was filled in.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> link_rows(machine_of(find_hardware("h100-nvl")))[1][:3]
    ['GPU0', 'X', 'NV12? 300']
    """
    pairs = machine.pairs_by_ends

    def cell(a: Gpu, b: Gpu) -> str:
        pair = pairs.get((a.name, b.name))
        if pair is None:
            return "?"
        return f"{pair.label}{'' if pair.read else '?'} {_giga(pair.bandwidth)}"

    return _square(machine, cell)


def nccl_rows(machine: Machine, table: NcclRates) -> Rows:
    """Give NCCL's path type and GB/s for every two GPUs; ``*`` marks copies it would stage."""
    types = path_types(machine)
    speeds = nccl_bandwidth(machine, table) if machine.edges else {}
    peers = nccl_peers(machine)

    def cell(a: Gpu, b: Gpu) -> str:
        ends = a.name, b.name
        if ends not in types:
            return "?"
        staged = "" if peers[ends].allowed else "*"
        speed = f" {_giga(speeds[ends])}" if ends in speeds else ""
        return f"{types[ends].name}{staged}{speed}"

    return _square(machine, cell)


def nic_rows(machine: Machine) -> Rows:
    """Give NCCL's path type from each GPU to each real NIC; ``+`` marks GPUDirect."""
    types = path_types(machine)
    direct = gpudirect(machine)
    nics = [nic for nic in machine.nics if not nic.virtual][:SHOWN]
    rows = [["", *(nic.device or nic.name for nic in nics)]]
    for gpu in machine.gpus[:SHOWN]:
        cells = []
        for nic in nics:
            ends = gpu.name, nic.name
            kind = types[ends].name if ends in types else "?"
            cells.append(f"{kind}{'+' if direct[ends].allowed else ''}")
        rows.append([gpu.name, *cells])
    return rows


def _square(machine: Machine, cell: Callable[[Gpu, Gpu], str]) -> Rows:
    gpus = machine.gpus[:SHOWN]
    return [
        ["", *(gpu.name for gpu in gpus)],
        *([a.name, *("X" if a is b else cell(a, b) for b in gpus)] for a in gpus),
    ]


def _giga(bandwidth: float) -> str:
    return f"{bandwidth / 10**9:.4g}"
