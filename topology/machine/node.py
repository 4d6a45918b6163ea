"""The graph of a catalogue node, and of several."""

from dataclasses import replace

from topology.base import Bytes, Sourced, TopologyError
from topology.catalogue import Hardware, Rates, link_rates, nvlink_generation, pcie_bandwidth
from topology.machine.build import Builder
from topology.machine.graph import Cluster, Edge, Gpu, Machine, Nic, Node, Pair
from topology.machine.pairs import graph_pairs


def machine_of(hardware: Hardware, nodes: int = 1) -> Machine:
    """Build the graph of the node that `hardware` usually comes in, `nodes` times.

    >>> from topology.catalogue import find_hardware
    >>> node = machine_of(find_hardware("h100-nvl"))
    >>> [(pair.a, pair.b) for pair in node.pairs if pair.kind == "NVLINK"]
    [('GPU0', 'GPU1'), ('GPU2', 'GPU3'), ('GPU4', 'GPU5'), ('GPU6', 'GPU7')]

    Raises
    ------
    TopologyError
        If there is no node at all.
    """
    if nodes < 1:
        raise TopologyError(f"{nodes} nodes of {hardware.name}: expected at least 1")
    builder = Builder(rates=link_rates(), generation=hardware.pcie_generation)
    gpus = tuple(gpu_of(hardware, index) for index in range(hardware.gpus))
    nics = tuple(
        Nic(name=f"NIC{index}", bandwidth=hardware.nic_bandwidth, numa=_socket(hardware, index))
        for index in range(hardware.nics)
    )
    inner, edges = _host_tree(hardware, builder)
    switches, nvlinks = usual_nvlinks(hardware, builder)
    nodes_all = (*inner, *switches)
    bare = Machine(
        name=hardware.name,
        source="catalogue",
        gpus=gpus,
        nics=nics,
        nodes=nodes_all,
        edges=(*edges, *nvlinks),
        copies=nodes,
        cluster=cluster_of(hardware),
        assumptions=(f"PCIe layout of a usual {hardware.name} server",),
    )
    return replace(bare, pairs=_read(graph_pairs(bare)))


def gpu_of(hardware: Hardware, index: int) -> Gpu:
    """Describe GPU number `index` of a node of `hardware`."""
    device = hardware.device
    return Gpu(
        name=f"GPU{index}",
        numa=_gpu_socket(hardware, index),
        hardware=hardware.name,
        architecture=device.architecture,
        capability=device.compute_capability[0] * 10 + device.compute_capability[1],
        memory=Bytes(device.memory.value),
        peer_to_peer=hardware.peer_to_peer,
        no_peers=hardware.no_peers,
    )


def cluster_of(hardware: Hardware) -> Cluster:
    """Describe the usual network between nodes of `hardware`: one rail a NIC, nothing shared."""
    rack = hardware.domain // hardware.gpus if hardware.link == "nvswitch" else 1
    return Cluster(
        kind=hardware.network,  # type: ignore[arg-type]  # checked when the catalogue was read
        nic_bandwidth=hardware.nic_bandwidth,
        nics=hardware.nics,
        rails=hardware.nics,
        latency=link_rates().latency_of("network"),
        domain_hosts=max(1, rack),
    )


def nvlink_count(hardware: Hardware, table: Rates) -> int:
    """Count the NVLinks of one GPU: its bandwidth over that of one link; 0 without NVLink."""
    if hardware.link == "pcie":
        return 0
    major, minor = hardware.device.compute_capability
    rate = table.nvlink_rate(nvlink_generation(major * 10 + minor))
    return max(1, round(hardware.link_bandwidth.value / rate.value))


def _read(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    return tuple(replace(pair, read=False) for pair in pairs)


def _gpu_socket(hardware: Hardware, index: int) -> int:
    return index * min(hardware.sockets, hardware.gpus) // hardware.gpus


def _socket(hardware: Hardware, nic: int) -> int:
    return nic * hardware.sockets // max(hardware.sockets, hardware.nics)


def _host_tree(hardware: Hardware, builder: Builder) -> tuple[list[Node], list[Edge]]:
    """Hang GPUs and NICs on processors: over switches where peers talk, on root ports elsewhere."""
    cpus = [Node(name=f"CPU{s}", kind="cpu", numa=s) for s in range(hardware.sockets)]
    edges = builder.sockets(cpus)
    nodes: list[Node] = [*cpus]
    groups = _groups(hardware)
    for number, (socket, members) in enumerate(groups):
        root, switch = f"root{number}", f"switch{number}"
        nodes.append(Node(name=root, kind="root", numa=socket))
        edges.append(builder.host(root, f"CPU{socket}"))
        if len(members) > 1:
            nodes.append(Node(name=switch, kind="pcie_switch", numa=socket))
            edges.append(builder.pcie(switch, root))
        parent = switch if len(members) > 1 else root
        edges += [builder.pcie(name, parent, lanes=_lanes(hardware, name)) for name in members]
    if hardware.name.startswith("gb"):
        edges += [
            builder.c2c(f"GPU{i}", f"CPU{_gpu_socket(hardware, i)}", builder.rates.c2c)
            for i in range(hardware.gpus)
        ]
    return nodes, edges


def _groups(hardware: Hardware) -> list[tuple[int, list[str]]]:
    """Say which devices share a PCIe switch (or have a root port each), and on which socket."""
    share = 1 if hardware.nics >= hardware.gpus or not hardware.peer_to_peer else 2
    gpus: dict[tuple[int, int], list[str]] = {}
    for index in range(hardware.gpus):
        gpus.setdefault((_gpu_socket(hardware, index), index // share), []).append(f"GPU{index}")
    groups = [(socket, members) for (socket, _), members in gpus.items()]
    if not hardware.peer_to_peer or hardware.nics > len(groups):
        groups += [(_socket(hardware, nic), [f"NIC{nic}"]) for nic in range(hardware.nics)]
        return groups
    for nic in range(hardware.nics):
        groups[nic * len(groups) // hardware.nics][1].append(f"NIC{nic}")
    return groups


def _lanes(hardware: Hardware, name: str) -> int:
    """Count the lanes of a port: fewer where the catalogue gives a PCIe GPU less than sixteen."""
    if hardware.link != "pcie" or not name.startswith("GPU"):
        return 16
    share = hardware.link_bandwidth.value / pcie_bandwidth(hardware.pcie_generation)
    return max(1, round(16 * min(1.0, share)))


def usual_nvlinks(hardware: Hardware, builder: Builder) -> tuple[list[Node], list[Edge]]:
    """Join GPU0, GPU1 ... of a node of `hardware` by NVLink as such nodes usually are."""
    count = nvlink_count(hardware, builder.rates)
    if not count:
        return [], []
    rate = Sourced(
        value=hardware.link_bandwidth.value / count,
        kind=hardware.link_bandwidth.kind,
        source=hardware.link_bandwidth.source,
    )
    if hardware.link == "nvswitch":
        links = [
            builder.nvlink(f"GPU{i}", "NVSwitch", count, rate, switch=True)
            for i in range(hardware.gpus)
        ]
        return [Node(name="NVSwitch", kind="nvswitch")], links
    mesh = builder.rates.mesh if hardware.domain == 8 else _meshes(hardware, count)
    return [], [builder.nvlink(f"GPU{a}", f"GPU{b}", links, rate) for a, b, links in mesh]


def _meshes(hardware: Hardware, count: int) -> tuple[tuple[int, int, int], ...]:
    """Join the GPUs of each bridge, every two of them with the same number of links."""
    size = hardware.domain
    return tuple(
        (a, b, count // (size - 1))
        for first in range(0, hardware.gpus, size)
        for a in range(first, first + size)
        for b in range(a + 1, first + size)
    )
