"""A machine as plain lists and numbers."""

from typing import Final

from topology.base import TopologyError
from topology.machine.expand import network_edges
from topology.machine.graph import Edge, Gpu, Machine, Nic, Pair, Search, full_name

_MOST_ROWS: Final = 10**6


def machine_dict(machine: Machine) -> dict[str, object]:
    """List hosts, GPUs and links; every pair of GPUs of one host appears once.

    Raises
    ------
    TopologyError
        If the lists of a cluster would be too long to read.
    """
    copies = range(machine.copies)
    rows = machine.copies * (len(machine.gpus) + len(machine.nics) + len(machine.pairs))
    if rows > _MOST_ROWS:
        raise TopologyError(
            f"{machine.name}: got {rows} devices and links, wanted at most {_MOST_ROWS} to list"
        )
    return {
        "name": machine.name,
        "source": machine.source,
        "nodes": machine.hosts,
        "gpus": [_gpu_row(machine, copy, gpu) for copy in copies for gpu in machine.gpus],
        "nics": [_nic_row(machine, copy, nic) for copy in copies for nic in machine.nics],
        "links": [
            *(_pair_row(machine, copy, pair) for copy in copies for pair in machine.pairs),
            *map(_edge_row, network_edges(machine)),
        ],
        "peer_access": [
            {"a": peer.a, "b": peer.b, "state": peer.state, "capability": peer.capability}
            for peer in machine.peers
        ],
        "nccl_searches": [_search_row(search) for search in machine.searches],
        "assumptions": list(machine.assumptions),
        "warnings": list(machine.warnings),
    }


def _gpu_row(machine: Machine, copy: int, gpu: Gpu) -> dict[str, object]:
    port = next((e for e in machine.edges if e.kind == "pcie" and gpu.name in (e.a, e.b)), None)
    return {
        "name": full_name(machine, copy, gpu.name),
        "node": copy * machine.described_hosts + gpu.host,
        "hardware": gpu.hardware,
        "product": gpu.product,
        "architecture": gpu.architecture,
        "memory_bytes": None if gpu.memory is None else round(gpu.memory),
        "numa": gpu.numa,
        "mig": gpu.mig,
        "slice": gpu.slice,
        "pcie_generation": port.generation if port else 0,
        "pcie_lanes": port.count if port else 0,
    }


def _nic_row(machine: Machine, copy: int, nic: Nic) -> dict[str, object]:
    return {
        "name": full_name(machine, copy, nic.name),
        "device": nic.device,
        "node": copy * machine.described_hosts + nic.host,
        "numa": nic.numa,
        "bandwidth_bytes_per_s": nic.bandwidth.value if nic.bandwidth else None,
    }


def _pair_row(machine: Machine, copy: int, pair: Pair) -> dict[str, object]:
    return {
        "a": full_name(machine, copy, pair.a),
        "b": full_name(machine, copy, pair.b),
        "kind": pair.kind,
        "count": pair.count,
        "bandwidth_bytes_per_s": pair.bandwidth,
        "read": pair.read,
        "measured": pair.basis == "measured",
    }


def _edge_row(edge: Edge) -> dict[str, object]:
    return {
        "a": edge.a,
        "b": edge.b,
        "kind": "NET",
        "count": edge.count,
        "bandwidth_bytes_per_s": edge.bandwidth.value,
        "read": False,
        "measured": False,
    }


def _search_row(search: Search) -> dict[str, object]:
    return {
        "name": search.name,
        "channels": search.channels,
        "intra_bytes_per_s": search.intra,
        "inter_bytes_per_s": search.inter,
        "type_intra": search.type_intra,
        "type_inter": search.type_inter,
    }
