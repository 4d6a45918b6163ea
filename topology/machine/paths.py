"""What NCCL makes of a machine: path types, the bandwidth it expects, peer access, GPUDirect.

NCCL ranks paths by type first, by bandwidth second; the order of the types is its own.
"""

from collections.abc import Mapping
from enum import IntEnum
from itertools import combinations, pairwise, permutations
from typing import Final

from topology.base import BytesPerSecond, TopologyError
from topology.base.values import dataclass
from topology.catalogue import NO_PEERS, NcclRates
from topology.machine.graph import Gpu, Machine, Nic, Node, Pair, is_nvlink
from topology.machine.routes import Adjacency, adjacency, host_routes, nearest


class PathType(IntEnum):
    """NCCL's path types, best first (src/graph/topo.h)."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


_PAIR_PATH_TYPES: Final = {
    "NVLINK": PathType.NVL,
    "NVSWITCH": PathType.NVL,
    "C2C": PathType.C2C,
    "PIX": PathType.PIX,
    "PXB": PathType.PXB,
    "PHB": PathType.PHB,
    "NODE": PathType.PHB,  # one processor node is one node to NCCL
    "SYS": PathType.SYS,
    "NET": PathType.NET,
}
_REFUSAL_REASONS: Final = {
    "NS": "not supported",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "the driver disables it",
    "U": "unknown",
}


_ACCESS_LETTERS: Final = ("", "r", "w", "p")  # of a status matrix: none, read, write, over PCIe


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whether one device may reach another directly, and why."""

    allowed: bool
    reason: str


def path_types(machine: Machine) -> dict[tuple[str, str], PathType]:
    """Give NCCL's type for every pair of GPUs, and of a GPU and a NIC, in both orders.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> types = path_types(machine_of(find_hardware("v100-sxm")))
    >>> types["GPU0", "GPU4"].name, types["GPU0", "GPU5"].name
    ('NVL', 'NVB')
    """
    types = dict.fromkeys(((g.name, g.name) for g in machine.gpus), PathType.LOC)
    types |= {ends: _PAIR_PATH_TYPES[pair.kind] for ends, pair in machine.pairs_by_ends.items()}
    names = [gpu.name for gpu in machine.gpus]
    peers = {
        name: {other for other in names if types.get((name, other)) == PathType.NVL}
        for name in names
    }
    improved_types: dict[tuple[str, str], PathType] = {}
    for a in names:
        for b in names:
            if types.get((a, b), PathType.DIS) > PathType.NVB and peers[a] & peers[b]:
                improved_types[a, b] = PathType.NVB
        coherent = bool(machine.links_of(a, "c2c"))
        for nic in (nic.name for nic in machine.nics):
            kind = types.get((a, nic), PathType.DIS)
            if coherent and kind == PathType.PHB:
                improved_types[a, nic] = kind = PathType.P2C
            near_peers = (types.get((peer, nic), PathType.DIS) <= PathType.P2C for peer in peers[a])
            if kind > PathType.PXN and any(near_peers):
                improved_types[a, nic] = PathType.PXN
    for (a, b), kind in improved_types.items():
        types[a, b] = types[b, a] = kind
    return types


def nccl_bandwidth(machine: Machine, table: NcclRates) -> dict[tuple[str, str], BytesPerSecond]:
    """Give the bandwidth NCCL expects between every two GPUs, in both orders.

    The narrowest link of the path, links as NCCL rates them; over a peer, of both NVLink paths.
    """
    graph = adjacency(machine)
    types = path_types(machine)
    pairs = machine.pairs_by_ends
    gpus = {gpu.name: gpu for gpu in machine.gpus}
    chips = {node.name: node for node in machine.nodes}
    gpu_types = {ends: kind for ends, kind in types.items() if gpus.keys() >= {*ends}}
    far_gpus = {a for (a, _), kind in gpu_types.items() if kind > PathType.NVB}
    routes_by_start = {name: host_routes(graph, name, gpus) for name in far_gpus}
    bandwidths: dict[tuple[str, str], BytesPerSecond] = {}
    for (a, b), kind in gpu_types.items():
        if a == b:
            continue
        if kind == PathType.NVL:
            rate = _nvlink_rate(table, gpus[a], pairs[a, b])
        elif kind == PathType.NVB:
            rate = max(
                min(
                    _nvlink_rate(table, gpus[a], pairs[a, c]),
                    _nvlink_rate(table, gpus[a], pairs[c, b]),
                )
                for c in gpus
                if types.get((a, c)) == types.get((c, b)) == PathType.NVL
            )
        elif b in routes_by_start[a]:
            rate = _host_path_rate(table, graph, chips, routes_by_start[a][b])
        else:
            raise TopologyError(f"no path from {a} to {b}")
        bandwidths[a, b] = BytesPerSecond(rate)
    return bandwidths


def _nvlink_rate(table: NcclRates, gpu: Gpu, pair: Pair) -> float:
    return table.nvlink_rate(gpu.capability).value * pair.count


def _host_path_rate(
    table: NcclRates, graph: Adjacency, chips: Mapping[str, Node], path: tuple[str, ...]
) -> float:
    widths = [table.local.value]
    for a, b in pairwise(path):
        edge = graph.edge(a, b)
        if edge.kind == "pcie":
            widths.append(table.pcie_rate(edge.generation, edge.count))
        elif edge.kind == "socket":
            widths.append(socket_rate(table, chips[a].chip))
    return min(widths)


def socket_rate(table: NcclRates, chip: str) -> float:
    """Bytes per second NCCL expects between processors; an unknown one counts as Skylake.

    chip : vendor, family and model as in a topology file: ``GenuineIntel 6 143``.
    """
    rates = {name: rate.value for name, rate in table.socket}
    vendor, _, numbers = chip.partition(" ")
    for name, prefix in (("amd", "AuthenticAMD"), ("arm", "arm"), ("power", "power")):
        if vendor.startswith(prefix):
            return rates[name]
    model_words = numbers.split()[-1:]
    model = int(model_words[0]) if model_words and model_words[0].isdecimal() else 0
    if model >= 0xCF:
        return rates["emerald_rapids"]
    return rates["sapphire_rapids"] if model >= 0x8F else rates["skylake"]


def _peer_access(machine: Machine, pairs: Mapping[tuple[str, str], Pair], a: Gpu, b: Gpu) -> Access:
    """Tell whether the driver lets `a` and `b` read each other's memory.

    NVLink always does; over PCIe a status matrix decides, then the kind of card.
    """
    if a.mig or b.mig:
        return Access(allowed=False, reason="MIG slices have no peer access")
    pair = pairs.get((a.name, b.name))
    if is_nvlink(pair):
        return Access(allowed=True, reason="NVLink")
    states = [
        peer.state
        for peer in machine.peers
        if {peer.a, peer.b} == {a.name, b.name} and peer.capability in _ACCESS_LETTERS
    ]
    worst = next((state for state in states if state != "OK"), None)
    if worst is not None:
        return Access(allowed=False, reason=f"nvidia-smi topo -p2p: {_REFUSAL_REASONS[worst]}")
    if states:
        return Access(allowed=True, reason="nvidia-smi topo -p2p: OK")
    if not (a.peer_to_peer and b.peer_to_peer):
        return Access(allowed=False, reason=a.no_peers or b.no_peers or NO_PEERS)
    return Access(allowed=True, reason="PCIe")


def refused_pairs(machine: Machine) -> tuple[tuple[str, str, str], ...]:
    """List the pairs of GPUs of one host without peer access, with the reason."""
    pairs = machine.pairs_by_ends
    refused = []
    for a, b in combinations(machine.gpus, 2):
        access = _peer_access(machine, pairs, a, b)
        if not access.allowed and a.host == b.host:
            refused.append((a.name, b.name, access.reason))
    return tuple(refused)


def nccl_peers(machine: Machine) -> dict[tuple[str, str], Access]:
    """Tell for every two GPUs whether NCCL would use peer access, or stage through host memory.

    It uses peers up to PXB, or up to SYS for two GPUs or fewer on an AMD processor.

    >>> from topology.catalogue import find_hardware
    >>> from topology.machine.build import machine_of
    >>> nccl_peers(machine_of(find_hardware("rtx-pro-6000")))["GPU0", "GPU2"].reason
    'PHB is beyond level PXB'
    """
    types, pairs = path_types(machine), machine.pairs_by_ends
    amd = any(node.chip.startswith("AuthenticAMD") for node in machine.nodes)
    limit = PathType.SYS if amd and len(machine.gpus) <= 2 else PathType.PXB
    peers: dict[tuple[str, str], Access] = {}
    for a, b in permutations(machine.gpus, 2):
        driver_access = _peer_access(machine, pairs, a, b)
        kind = types.get((a.name, b.name), PathType.DIS)
        relation = "within" if kind <= limit else "beyond"
        level_access = Access(
            allowed=kind <= limit, reason=f"{kind.name} is {relation} level {limit.name}"
        )
        peers[a.name, b.name] = level_access if driver_access.allowed else driver_access
    return peers


def gpudirect(machine: Machine) -> dict[tuple[str, str], Access]:
    """Tell for every GPU and NIC whether the NIC may read the GPU's memory (GPUDirect RDMA)."""
    types = path_types(machine)
    return {
        (gpu.name, nic.name): _gpudirect_access(
            gpu, nic, types.get((gpu.name, nic.name), PathType.DIS)
        )
        for gpu in machine.gpus
        for nic in machine.nics
    }


def _gpudirect_access(gpu: Gpu, nic: Nic, kind: PathType) -> Access:
    if gpu.mig or nic.virtual or False in (gpu.gpudirect, nic.gpudirect):
        return Access(allowed=False, reason="the topology file or the kind of port rules it out")
    if not gpu.peer_to_peer:
        return Access(allowed=False, reason=gpu.no_peers or NO_PEERS)
    limit = PathType.P2C if kind == PathType.P2C else PathType.PXB
    if kind > limit:
        return Access(allowed=False, reason=f"{kind.name} is beyond {limit.name}")
    return Access(allowed=True, reason=kind.name)


def processor_of(machine: Machine) -> dict[str, str | None]:
    """Name the processor (socket or NUMA node) that each GPU of one copy hangs on."""
    graph = adjacency(machine)
    return {gpu.name: nearest(graph, gpu.name, "cpu") for gpu in machine.gpus}
