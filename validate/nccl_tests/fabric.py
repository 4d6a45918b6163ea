"""The links that a log of nccl-tests ran on: the catalogue's, changed as the log says."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, get_args

from topology.base import BytesPerSecond, counted
from topology.catalogue import (
    Fabric,
    Hardware,
    Network,
    NetworkKind,
    behind_one_uplink,
    named_instance,
    pcie_bandwidth,
    rented_machines,
)
from validate.nccl_tests.network import LinksText, gigabit

_BEFORE_P5: Final = ("volta", "turing", "ampere")  # in machines with EFA's first generation
_GOOGLE: Final = re.compile(r"\ba(?:3-ultra|4x?-)", re.IGNORECASE)


def as_said(
    fabric: Fabric, said: LinksText, node: Hardware, product: str
) -> tuple[Fabric, tuple[str, ...]]:
    """Put what a log says of its links in place of the catalogue's, and say what was read."""
    said = _switched(said)
    inside = _inside(fabric, said)
    notes = () if inside == fabric else (f"the log says of its nodes: {_words(inside)}",)
    if {"peers", "shared"} <= said.switches.off:
        return _by_network(inside, said, node, product)
    if fabric.network is None:
        return inside, notes
    network = _network(inside, fabric.network, said, node, product)
    if network == fabric.network and said.kind is None:
        usual = f"the log says nothing of its network: taken as {_over(network)}, as usual there"
        return inside, (*notes, usual)
    taken = [
        what
        for what, told in (
            ("kind", said.kind or said.sockets),
            ("number", said.nics or said.total),
            ("rate", said.rates or said.total),
        )
        if not told
    ]
    usual_parts = f" ({' and '.join(taken)} as usual there)" if taken else ""
    line = f"network of the log: {_over(network)}{usual_parts}"
    return replace(inside, network=network), (*notes, line)


def _by_network(
    fabric: Fabric, said: LinksText, node: Hardware, product: str
) -> tuple[Fabric, tuple[str, ...]]:
    """Make each GPU a node of its own: without peers and shared memory, NICs carry everything."""
    local = fabric.ranks // fabric.nodes
    beside = _near(local, node.nics, node)
    usual = Network(
        kind=node.network,  # type: ignore[arg-type]  # checked when the catalogue was read
        bandwidth=BytesPerSecond(node.nic_bandwidth.value * beside),
        nics=beside,
    )
    whole = _network(fabric, fabric.network or usual, said, node, product)
    part = BytesPerSecond(whole.bandwidth / local)
    network = replace(whole, bandwidth=part, nics=max(1, whole.nics // local))
    note = f"peers and shared memory are off: GPUs of a node talk over its {_over(whole)}"
    return replace(fabric, nodes=fabric.ranks, network=network, multicast=False), (note,)


def _switched(said: LinksText) -> LinksText:
    """Count what variables, and the type of a machine, say where nothing else says it."""
    known, machine = said.switches, named_instance(rented_machines(), said.instance)
    kind = next((name for name in get_args(NetworkKind) if name == known.network), None)
    nics = said.nics or (0 if said.total else known.ports)
    if machine and said.kind in (None, machine.network):
        whole = 0.0 if said.rates or nics not in (0, machine.nics) else machine.total.value
        said = replace(said, kind=machine.network, total=said.total or whole)
        nics = nics or machine.nics
    return replace(
        said,
        kind=said.kind or kind,
        nics=nics,
        sockets=said.sockets or "rdma" in known.off,
        pcie=said.pcie or known.staged,
        peers=False if known.staged else said.peers,
    )


def _inside(fabric: Fabric, said: LinksText) -> Fabric:
    ways = said.switches.ways
    if "multicast" in said.switches.off:
        fabric = replace(fabric, multicast=False)
    if fabric.link == "pcie" and ways and not said.pcie:
        return replace(fabric, peer_to_peer="SHM" not in ways)
    if said.mesh and fabric.link == "nvswitch":
        return replace(fabric, link="nvlink", multicast=False)
    if not said.pcie:
        return fabric
    generation = said.generation or fabric.pcie_generation or 4
    slot = BytesPerSecond(pcie_bandwidth(generation))
    moved = said.generation or fabric.link != "pcie"
    found = replace(
        fabric,
        link="pcie",
        multicast=False,
        pcie_generation=generation,
        bandwidth=slot if moved else fabric.bandwidth,
        peer_to_peer=fabric.peer_to_peer if said.peers is None else said.peers,
        crosses_sockets=fabric.crosses_sockets or said.across,
    )
    return behind_one_uplink(found) if said.switched and not found.peer_to_peer else found


def _network(
    fabric: Fabric, usual: Network, said: LinksText, node: Hardware, product: str
) -> Network:
    kind = _kind(usual, said, node, product)
    rack = node.domain > node.gpus
    port = node.nic_bandwidth.value if said.nics else usual.bandwidth / usual.nics
    if said.rates:
        port = port if port in said.rates else said.rates[0]
    nics = usual.nics if rack or not (said.nics or said.total) else said.nics
    if kind == "ethernet" and not (rack or said.nics or said.total):
        nics = 1  # sockets take the host's own port, not those beside GPUs
    if said.total and not rack:
        nics = nics or max(1, round(said.total / port))
        port = said.total / nics
    near = _near(fabric.ranks // fabric.nodes, nics, node) if not rack else nics
    return Network(kind=kind, bandwidth=BytesPerSecond(port * near), nics=near)


def _kind(usual: Network, said: LinksText, node: Hardware, product: str) -> NetworkKind:
    kind = said.kind or usual.kind
    if said.sockets:
        return "ethernet"
    if kind == "roce" and _GOOGLE.search(product):
        return "gib"
    each = said.rates[0] if said.rates else said.total / max(1, said.nics)
    first = node.device.architecture in _BEFORE_P5
    small = first or (said.nics in range(1, 5) and each <= gigabit(100))
    return "efa_v1" if kind == "efa" and small else kind


def _near(local: int, nics: int, node: Hardware) -> int:
    """Count the NICs that some GPUs of a node use: each the ones beside it.

    >>> from topology.catalogue import find_hardware
    >>> _near(1, 8, find_hardware("h100-sxm")), _near(8, 32, find_hardware("h100-sxm"))
    (1, 32)
    """
    return min(nics, local * -(-nics // node.gpus))


def _over(network: Network) -> str:
    speed = network.bandwidth / network.nics * 8 / 10**9
    return f"{network.kind}, {counted(network.nics, 'NIC')} of {speed:.4g} Gbit/s a node"


def _words(fabric: Fabric) -> str:
    return ", ".join(_parts(fabric))


def _parts(fabric: Fabric) -> Iterator[str]:
    if fabric.link != "pcie":
        switch = fabric.link == "nvswitch"
        yield "NVLink without SHARP" if switch else "NVLink without a switch"
        return
    yield f"PCIe {fabric.pcie_generation}, {fabric.bandwidth / 10**9:.4g} GB/s"
    yield "peer access" if fabric.peer_to_peer else "copies through the host"
    if fabric.chain:
        yield "one uplink for all"
    if fabric.crosses_sockets:
        yield "over two sockets"
