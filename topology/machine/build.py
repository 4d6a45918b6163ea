"""Machines built: links with their rates, the node of a catalogue name, several of them."""

from dataclasses import replace
from itertools import combinations
from typing import Final

from topology.base import Bytes, Sourced, TopologyError, counted
from topology.base.values import dataclass
from topology.catalogue import Hardware, all_hardware, link_rates, nvlink_generation, pcie_bandwidth
from topology.machine.graph import Cluster, Edge, Gpu, Machine, Nic, Node
from topology.machine.routes import graph_pairs

MOST_HOSTS: Final = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Makes links with the rates of the catalogue, on a platform of one PCIe generation."""

    generation: int

    def pcie(self, a: str, b: str, *, generation: int = 0, lanes: int = 16) -> Edge:
        """Join two parts by PCIe; generation 0 is the platform's."""
        generation = generation or self.generation
        rate = link_rates().pcie_rate(generation, lanes)
        return Edge(a=a, b=b, kind="pcie", count=lanes, generation=generation, bandwidth=rate)

    def host(self, a: str, b: str) -> Edge:
        """Join a root complex to its processor."""
        return Edge(a=a, b=b, kind="host", bandwidth=link_rates().host)

    def sockets(self, cpus: list[Node]) -> list[Edge]:
        """Join every two processors of one host."""
        rate = link_rates().socket_rate(self.generation)
        return [
            Edge(a=a.name, b=b.name, kind="socket", bandwidth=rate)
            for a, b in combinations(cpus, 2)
            if a.host == b.host
        ]

    def nvlink(self, a: str, b: str, count: int, rate: Sourced) -> Edge:
        """Join a GPU to another, or to the NVLink switches, by `count` links of `rate`."""
        source = f"{count} x {rate.value / 10**9:g} GB/s: {rate.source}"
        total_rate = replace(rate, value=rate.value * count, source=source)
        return Edge(a=a, b=b, kind="nvlink", count=count, bandwidth=total_rate)

    def c2c(self, gpu: str, cpu: str, bandwidth: Sourced) -> Edge:
        """Join a GPU to its processor coherently."""
        return Edge(a=gpu, b=cpu, kind="c2c", bandwidth=bandwidth)


def machine_of(hardware: Hardware, nodes: int = 1) -> Machine:
    """Build the graph of the node that `hardware` usually comes in, `nodes` times.

    >>> from topology.catalogue import find_hardware
    >>> node = machine_of(find_hardware("h100-nvl"))
    >>> [(pair.a, pair.b) for pair in node.pairs if pair.kind == "NVLINK"]
    [('GPU0', 'GPU1'), ('GPU2', 'GPU3'), ('GPU4', 'GPU5'), ('GPU6', 'GPU7')]
    """
    if nodes < 1:
        raise TopologyError(f"{nodes} nodes of {hardware.name}: expected at least 1")
    builder = Builder(generation=hardware.pcie_generation)
    gpus = tuple(
        replace(gpu_of(hardware, f"GPU{index}"), numa=_gpu_socket(hardware, index))
        for index in range(hardware.gpus)
    )
    nics = tuple(
        Nic(name=f"NIC{index}", bandwidth=hardware.nic_bandwidth, numa=_socket(hardware, index))
        for index in range(hardware.nics)
    )
    host_nodes, edges = _host_tree(hardware, builder)
    switches, nvlinks = usual_nvlinks(hardware, builder)
    machine = Machine(
        name=hardware.name,
        source="catalogue" if hardware.name in all_hardware() else "a file of hardware",
        gpus=gpus,
        nics=nics,
        nodes=(*host_nodes, *switches),
        edges=(*edges, *nvlinks),
        copies=nodes,
        cluster=cluster_of(hardware, hardware.gpus),
        assumptions=(f"PCIe layout of a usual {hardware.name} server",),
    )
    pairs = (replace(pair, read=False) for pair in graph_pairs(machine))
    return replace(machine, pairs=tuple(pairs))


def gpu_of(hardware: Hardware, name: str) -> Gpu:
    """Describe a GPU of a known kind, wherever it hangs."""
    device = hardware.device
    return Gpu(
        name=name,
        hardware=hardware.name,
        architecture=device.architecture,
        capability=device.capability,
        memory=Bytes(device.memory.value),
        peer_to_peer=hardware.peer_to_peer,
        no_peers=hardware.no_peers,
    )


def cluster_of(hardware: Hardware, gpus: int) -> Cluster:
    """Describe the usual network of nodes with `gpus` of `hardware`: a rail a NIC, nothing shared.

    Some GPUs of a node have their part of its NICs, one at least.
    """
    used_gpus = min(gpus, hardware.gpus)
    rack_hosts = hardware.domain // hardware.gpus if hardware.link == "nvswitch" else 1
    return Cluster(
        kind=hardware.network,
        nic_bandwidth=hardware.nic_bandwidth,
        nics=max(1, hardware.nics * used_gpus // hardware.gpus),
        rails=hardware.nics,
        domain_hosts=max(1, rack_hosts),
    )


def nvlink_count(hardware: Hardware) -> int:
    """Count the NVLinks of one GPU: its bandwidth over that of one link; 0 without NVLink."""
    if hardware.link == "pcie":
        return 0
    rate = link_rates().nvlink_rate(nvlink_generation(hardware.device.capability))
    return max(1, round(hardware.link_bandwidth.value / rate.value))


def _gpu_socket(hardware: Hardware, index: int) -> int:
    return index * min(hardware.sockets, hardware.gpus) // hardware.gpus


def _socket(hardware: Hardware, nic: int) -> int:
    return nic * hardware.sockets // max(hardware.sockets, hardware.nics)


def _host_tree(hardware: Hardware, builder: Builder) -> tuple[list[Node], list[Edge]]:
    """Hang GPUs and NICs on processors: over switches where peers talk, on root ports elsewhere."""
    cpus = [Node(name=f"CPU{s}", kind="cpu", numa=s) for s in range(hardware.sockets)]
    edges = builder.sockets(cpus)
    nodes: list[Node] = [*cpus]
    groups = _pcie_groups(hardware)
    for number, (socket, members) in enumerate(groups):
        root, switch = f"root{number}", f"switch{number}"
        nodes.append(Node(name=root, kind="root", numa=socket))
        edges.append(builder.host(root, f"CPU{socket}"))
        if len(members) > 1:
            nodes.append(Node(name=switch, kind="pcie_switch", numa=socket))
            edges.append(builder.pcie(switch, root))
        parent = switch if len(members) > 1 else root
        edges += [builder.pcie(name, parent, lanes=_lanes(hardware, name)) for name in members]
    if hardware.coherent is not None:
        edges += [
            builder.c2c(f"GPU{i}", f"CPU{_gpu_socket(hardware, i)}", hardware.coherent)
            for i in range(hardware.gpus)
        ]
    return nodes, edges


def _pcie_groups(hardware: Hardware) -> list[tuple[int, list[str]]]:
    """Say which devices share a PCIe switch (or have a root port each), and on which socket."""
    gpus_per_switch = 1 if hardware.nics >= hardware.gpus or not hardware.peer_to_peer else 2
    gpus: dict[tuple[int, int], list[str]] = {}
    for index in range(hardware.gpus):
        gpus.setdefault((_gpu_socket(hardware, index), index // gpus_per_switch), []).append(
            f"GPU{index}"
        )
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
    count = nvlink_count(hardware)
    if not count:
        return [], []
    rate = replace(hardware.link_bandwidth, value=hardware.link_bandwidth.value / count, note="")
    if hardware.link == "nvswitch":
        links = [builder.nvlink(f"GPU{i}", "NVSwitch", count, rate) for i in range(hardware.gpus)]
        return [Node(name="NVSwitch", kind="nvswitch")], links
    mesh, size = link_rates().mesh, hardware.domain
    if not size == hardware.gpus == 8:  # bridges, every two GPUs with the same number of links
        mesh = tuple(
            (a, b, max(1, count // (size - 1)))
            for start in range(0, hardware.gpus, size)
            for a, b in combinations(range(start, start + size), 2)
        )
    return [], [builder.nvlink(f"GPU{a}", f"GPU{b}", links, rate) for a, b, links in mesh]


def repeated(host: Machine, hosts: int) -> Machine:
    """Put `hosts` copies of a machine side by side, on the network its hardware usually has."""
    if not 1 <= hosts <= MOST_HOSTS:
        raise TopologyError(f"{hosts} hosts: expected 1 to {MOST_HOSTS}")
    if hosts in (1, host.hosts):
        return host
    base, ports = host.cluster or assumed_network(), usual_ports(host)
    cluster = replace(base, nics=ports, rails=min(ports, base.rails) if host.cluster else ports)
    default_note = ("NICs of 100 Gbit/s on one non-blocking network",)
    note = assumed_ports(host, cluster) if host.cluster else default_note
    return replace(
        with_ports(host, None, None),
        copies=hosts,
        cluster=cluster,
        assumptions=(*host.assumptions, *note),
    )


def assumed_network() -> Cluster:
    """Describe the network that is taken where nothing is known."""
    return Cluster(kind="ethernet", nic_bandwidth=link_rates().nic, nics=1)


def usual_ports(host: Machine) -> int:
    """Count the NICs of a host; where none is described, those that its hardware usually has."""
    return len(host.usable_nics) or (host.cluster.nics if host.cluster else 1)


def assumed_ports(host: Machine, cluster: Cluster) -> tuple[str, ...]:
    """Say what network a host of known hardware gets where no NIC of it is described."""
    if host.usable_nics or host.cluster is None:
        return ()
    kind = next(gpu.hardware for gpu in host.gpus if gpu.hardware)
    nics = f"{counted(cluster.nics, 'NIC')} of {cluster.nic_bandwidth.value / 10**9:g} GB/s a node"
    return (f"{cluster.kind}, {nics}, as in the usual server of {kind}",)


def with_ports(host: Machine, nics: int | None, bandwidth: Sourced | None) -> Machine:
    """Give a host the NICs of a cluster file, or the usual ones where neither says any."""
    ports = host.usable_nics
    nics = nics or usual_ports(host)
    if nics != len(ports):
        old_names = {nic.name for nic in host.nics}
        edges = tuple(edge for edge in host.edges if not {edge.a, edge.b} & old_names)
        pairs = tuple(pair for pair in host.pairs if pair.b not in old_names)
        ports = tuple(Nic(name=f"NIC{index}", bandwidth=bandwidth) for index in range(nics))
        return replace(host, nics=ports, edges=edges, pairs=pairs)
    if bandwidth is None:
        return host
    return replace(host, nics=tuple(replace(nic, bandwidth=bandwidth) for nic in host.nics))
