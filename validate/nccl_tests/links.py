"""The links that a log ran on: what it says of them, and the catalogue's, changed as it says.

A log speaks of links in remarks over it, in variables of its command, and in NCCL's own lines.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal, get_args

from costmodels.collectives import PROTOCOLS, WireProtocol
from topology.base import BytesPerSecond, counted
from topology.base.values import dataclass
from topology.catalogue import (
    Fabric,
    Hardware,
    Network,
    NetworkKind,
    named_instance,
    pcie_bandwidth,
    rented_machines,
)

Off = Literal["peers", "shared", "multicast", "rdma"]
Way = Literal["SHM", "P2P"]

_COMMAND: Final = re.compile(
    r"\bNCCL_\w+ set by environment|_perf(?:_mpi)?\b|(?:-x|\bexport|\benv:?)\s+NCCL_\w+=|"
    r"^\W*NCCL_\w+="
)
_PAIR: Final = re.compile(r"\bNCCL_(\w+?)(?:\s*=\s*|\s+set by environment to\s+)[\"']?([^\s\"';]+)")
_VIA: Final = re.compile(r"\bvia (SHM|P2P)/")
_SWITCHED_OFF: Final[dict[tuple[str, str], Off]] = {
    ("P2P_DISABLE", "1"): "peers",
    ("P2P_LEVEL", "LOC"): "peers",
    ("P2P_LEVEL", "0"): "peers",
    ("SHM_DISABLE", "1"): "shared",
    ("NVLS_ENABLE", "0"): "multicast",
    ("IB_DISABLE", "1"): "rdma",
    ("NET", "socket"): "rdma",
}
_PORT: Final = re.compile(r"=?(?!mlx\d$)[a-z]\w*\d(?::\d+)?")  # one, not the start of several
_KINDS: Final[tuple[tuple[str, NetworkKind], ...]] = (
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"\befa|aws libfabric", "efa"),
    (r"slingshot|\bcxi\b", "slingshot"),
    (r"\bgib\b", "gib"),
    (r"\broce", "roce"),
    (r"infiniband|\bib\b|\b(?:f|e|h|n|x)dr\d{0,3}\b", "infiniband"),
    (r"ethernet|\btcp|socket|ipoib", "ethernet"),
)
# Gbit/s of one port, by the name of its generation.
_GENERATION_RATES: Final = (
    (r"\bfdr\b", 56), (r"\bedr\b|\bhdr100\b", 100), (r"\bhdr\b|\bndr200\b", 200),
    (r"\bndr(?:400)?\b", 400), (r"\bxdr\b", 800), (r"slingshot[- ]?10\b", 100),
    (r"slingshot", 200), (r"\befa", 100), (r"\bcx-?5\b|connectx-5", 100),
    (r"\bcx-?6\b|connectx-6", 200), (r"\bcx-?7\b|connectx-7", 400),
)  # fmt: skip
_GIGABITS: Final = r"(\d{1,4})\s*g(?:b(?:it)?(?:/s|ps)?)?(?!\w)"
_COUNTED_RATE: Final = re.compile(
    rf"(\d{{1,3}})\s*x\s*(?:[a-z]{{2,12}}\d{{0,3}}\s+){{0,2}}{_GIGABITS}"
)
_OTHER_RATE: Final = re.compile(rf"/\s*{_GIGABITS}")
_TOTAL: Final = re.compile(r"(\d{1,5}(?:\.\d+)?)\s*([gt])(b|bit|byte)?(/s|ps)\b")
_SINGLE_RATE: Final = re.compile(rf"(?<![\w.]){_GIGABITS}")
_PORTS: Final = r"(?:nics?|vfs?|hcas?|ports?|adapters?)\b"
_COUNT: Final = re.compile(rf"(?<![\w.])(\d{{1,3}}|single|one)\s+(?:[\w-]+\s+){{0,3}}?{_PORTS}")
_SOCKETS: Final = re.compile(r"\bNCCL_IB_DISABLE\s*=\s*1|\bNCCL_NET\s*=\s*\"?socket", re.IGNORECASE)
_SETUP: Final = re.compile(
    r"\((\d+)\).{0,150}?\b\1 = ([^;]*)"
)  # a legend of which one entry was run
_USED_DEVICES: Final = re.compile(r"NET/(IB|Socket)\s*:\s*Using\s+(.*)$")
_DEVICE: Final = re.compile(r"\[\d+\][^\s\[]+?(?:/(IB|RoCE))?(?=[/\s;<]|$)")
_PROVIDER: Final = re.compile(
    r"NET/OFI.{0,99}?provider(?:_filter to| is) (\w{1,40})(?:.{0,99}?found (\d{1,3}) nics)?",
    re.IGNORECASE,
)
_CHOSEN_NETWORK: Final = re.compile(r"NCCL INFO Using network\s+(\S+(?: \S+)*)")
_PCIE: Final = re.compile(r"\bpcie?\s*(?:gen\s*)?([3-6])(?:\.0)?\b")
_SWITCHED: Final = re.compile(r"\bp(?:ix|xb)\b")
_NO_PEERS: Final = re.compile(r"no p2p|p2p (?:is )?(?:not available|off|disabled)|\bshm\b")
_BEFORE_P5: Final = ("volta", "turing", "ampere")  # in machines with EFA's first generation
_GOOGLE: Final = re.compile(r"\ba(?:3-ultra|4x?-)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What one run turned off, or was seen to use.

    off : of this run. exported : of all runs from here on. ways : of channels inside a node.
    ports : NICs of a node that were named. network : what a variable says of it, empty for nothing.
    protocols : those that the library was left.
    """

    off: frozenset[Off] = frozenset()
    exported: frozenset[Off] = frozenset()
    ways: frozenset[Way] = frozenset()
    ports: int = 0
    network: str = ""
    protocols: tuple[WireProtocol, ...] = PROTOCOLS

    @property
    def staged(self) -> bool:
        """Whether GPUs of a node were kept from each other's memory, for all links there are."""
        return "peers" in self.off or self.ways == {"SHM"}


def read_switches(line: str, switches: Switches) -> Switches:
    """Add what a line says; prose that mentions a variable says nothing.

    >>> found = read_switches("NCCL_P2P_DISABLE=1 ./all_reduce_perf -g 2", Switches())
    >>> found.staged, read_switches("without NCCL_P2P_DISABLE=1 it is fast", Switches()).staged
    (True, False)
    """
    if "NCCL_" not in line and "via" not in line:
        return switches
    via = _VIA.search(line)
    if via:
        way: Way = "SHM" if via[1] == "SHM" else "P2P"
        return replace(switches, ways=switches.ways | {way})
    if not _COMMAND.search(line):
        return switches
    pairs = [(match[1], match[2].rstrip(".")) for match in _PAIR.finditer(line.replace("\\", ""))]
    switched_off = (
        _SWITCHED_OFF.get(pair) or _SWITCHED_OFF.get((pair[0], pair[1].lower())) for pair in pairs
    )
    off = frozenset(feature for feature in switched_off if feature)
    ports = [_ports(value) for name, value in pairs if name == "IB_HCA"]
    kinds = list(_networks(pairs))
    protocol_lists = [_protocols(value) for name, value in pairs if name == "PROTO"]
    return replace(
        switches,
        off=switches.off | off,
        exported=switches.exported | off if "export" in line else switches.exported,
        ports=ports[-1] if ports else switches.ports,
        network=kinds[0] if kinds else switches.network,
        protocols=protocol_lists[-1] if protocol_lists else switches.protocols,
    )


def _ports(value: str) -> int:
    """Count NICs by name; 0 where a name stands for several, or some are left out.

    >>> _ports("mlx5_0:1,mlx5_1:1"), _ports("mlx5"), _ports("^mlx5_0")
    (2, 0, 0)
    """
    names = value.split(",")
    return len(set(names)) if all(map(_PORT.fullmatch, names)) else 0


def _protocols(value: str) -> tuple[WireProtocol, ...]:
    """Read a list of protocols, or of those that are left out; all where it names none.

    >>> _protocols("Simple"), _protocols("^LL128"), _protocols("fast")
    (('Simple',), ('LL', 'Simple'), ('LL', 'LL128', 'Simple'))
    """
    words = {word.strip().lower() for word in value.lstrip("^").split(",")}
    named = tuple(p for p in PROTOCOLS if p.lower() in words)
    remaining = tuple(p for p in PROTOCOLS if p not in named) if value.startswith("^") else named
    return remaining or PROTOCOLS


def _networks(pairs: list[tuple[str, str]]) -> Iterator[str]:
    """Name the network where a variable gives it away."""
    for name, value in pairs:
        if name == "NET" and value.lower() == "gib":
            yield "gib"
        if name == "NET_PLUGIN" and value.lower() == "spcx":
            yield "roce"
        if name == "IB_GID_INDEX" and value.isdecimal() and value != "0":  # InfiniBand has one
            yield "roce"


def next_run(switches: Switches) -> Switches:
    """Keep what the next run of the same shell has too."""
    return Switches(off=switches.exported, exported=switches.exported)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksText:
    """What was said of links; empty, None and 0 where nothing was.

    kind : of the network. nics : of one node. rates : bytes per second of one NIC, several where
    the text leaves open which. total : bytes per second of all NICs of a node. sockets : RDMA was
    off. mesh, pcie : how GPUs of a node are joined. peers : whether they read each other's memory.
    switched : they hang on one PCIe switch. across : they sit on two sockets. instance : type of
    rented machine. switches : what the run turned off.
    """

    kind: NetworkKind | None = None
    nics: int = 0
    rates: tuple[float, ...] = ()
    total: float = 0.0
    sockets: bool = False
    mesh: bool = False
    pcie: bool = False
    generation: int = 0
    peers: bool | None = None
    switched: bool = False
    across: bool = False
    instance: str = ""
    switches: Switches = Switches()


def read_network(text: str) -> LinksText:
    """Read what somebody wrote of the network between nodes.

    >>> said = read_network("8x HDR InfiniBand 200G (ConnectX-6)")
    >>> said.kind, said.nics, said.rates
    ('infiniband', 8, (25000000000.0,))
    >>> read_network("AWS EFA v2 3200 Gb/s per node").total
    400000000000.0
    """
    words = text.lower()
    if words.startswith(("none", "not stated", "unknown")):
        return LinksText()
    kind = _network_kind(words)
    counted_rate, total = _COUNTED_RATE.search(words), _TOTAL.search(words)
    if counted_rate:
        other_rate = _OTHER_RATE.match(words, counted_rate.end())
        gigabits = [int(counted_rate[2]), *([int(other_rate[1])] if other_rate else [])]
        return LinksText(kind=kind, nics=int(counted_rate[1]), rates=tuple(map(gigabit, gigabits)))
    count = _COUNT.search(words)
    nics = (int(count[1]) if count[1].isdecimal() else 1) if count else 0
    generation_rate = next(
        (rate for pattern, rate in _GENERATION_RATES if re.search(pattern, words)), 0
    )
    if total and not (count and total.start() > count.start()):
        total_rate = float(total[1]) * 10.0 ** (12 if total[2] == "t" else 9)
        # GB/s and GBps against Gb/s and Gbps, in a text as it was written
        bits = "B" not in text[total.start() : total.end()] and total[3] != "byte"
        total_rate /= 8 if bits else 1
        return LinksText(kind=kind, nics=nics, total=total_rate, rates=_rates(generation_rate))
    single_rate = _SINGLE_RATE.search(words)
    return LinksText(
        kind=kind, nics=nics, rates=_rates(int(single_rate[1]) if single_rate else generation_rate)
    )


def _network_kind(text: str) -> NetworkKind | None:
    return next((kind for pattern, kind in _KINDS if re.search(pattern, text.lower())), None)


def gigabit(gigabits: int) -> float:
    """Give the bytes per second of a rate in Gbit/s."""
    return gigabits * 10.0**9 / 8


def _rates(gigabits: int) -> tuple[float, ...]:
    return (gigabit(gigabits),) if gigabits else ()


def read_inside(text: str, links: LinksText) -> LinksText:
    """Add what somebody wrote of the links between GPUs of one node.

    >>> found = read_inside("PCIe 3.0 x16, PIX, P2P not available (SHM)", LinksText())
    >>> found.pcie, found.generation, found.peers, found.switched
    (True, 3, False, True)
    """
    words = text.lower()
    generation = _PCIE.search(words)
    pcie = words.startswith("pci")
    peers = False if _NO_PEERS.search(words) else True if "p2p enabled" in words else None
    return replace(
        links,
        mesh="mesh" in words and "nvlink" in words,
        pcie=pcie,
        generation=int(generation[1]) if pcie and generation else 0,
        peers=peers if pcie else None,
        switched=bool(_SWITCHED.search(words)),
        across="cross-socket" in words,
    )


def read_environment(text: str, links: LinksText) -> LinksText:
    """Add what environment variables, or a legend of which one entry was run, say of sockets."""
    setup = _SETUP.search(text) if " = " in text else None
    legend = bool(setup and "tcp sockets" in setup[2].lower())
    return replace(links, sockets=links.sockets or legend or bool(_SOCKETS.search(text)))


def read_line(line: str, links: LinksText) -> LinksText:
    """Add what a line of ``NCCL_DEBUG=INFO`` says of the network; any other says nothing.

    >>> line = "h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10<0>"
    >>> found = read_line(line, LinksText())
    >>> found.kind, found.nics
    ('infiniband', 2)
    """
    machine = named_instance(rented_machines(), line)
    links = replace(
        links,
        switches=read_switches(line, links.switches),
        instance=machine.name if machine else links.instance,
    )
    used, provider, chosen = (p.search(line) for p in (_USED_DEVICES, _PROVIDER, _CHOSEN_NETWORK))
    if used:
        return _with_devices(used, links)
    if provider:
        kind = _network_kind(provider[1]) or links.kind
        return replace(links, kind=kind, nics=int(provider[2] or links.nics))
    if chosen and chosen[1].lower() == "socket":
        return replace(links, kind="ethernet", sockets=True)
    if chosen and links.kind is None:
        return replace(links, kind=_network_kind(chosen[1]))
    return links


def _with_devices(used: re.Match[str], links: LinksText) -> LinksText:
    """Count the devices that a transport found; sockets count only where nothing better does."""
    devices = [match[1] for match in _DEVICE.finditer(used[2].partition(";")[0])]
    if used[1] == "Socket":
        return links if links.kind else replace(links, kind="ethernet", nics=len(devices))
    kind: NetworkKind = "roce" if "RoCE" in devices else "infiniband"
    if links.kind in ("gib", "roce", "infiniband"):
        kind = links.kind
    return replace(links, kind=kind, nics=len(devices))


def fabric_of_log(
    fabric: Fabric, links: LinksText, node: Hardware, product: str
) -> tuple[Fabric, tuple[str, ...]]:
    """Put what a log says of its links in place of the catalogue's, and say what was read."""
    links = _with_switches(links)
    node_fabric = _node_fabric(fabric, links)
    notes = (
        ()
        if node_fabric == fabric
        else (f"the log says of its nodes: {', '.join(_link_words(node_fabric))}",)
    )
    if {"peers", "shared"} <= links.switches.off:
        return _by_network(node_fabric, links, node, product)
    if fabric.network is None:
        return node_fabric, notes
    network = _network(node_fabric, fabric.network, links, node, product)
    if network == fabric.network and links.kind is None:
        note = f"the log says nothing of its network: taken as {_nic_text(network)}, as usual there"
        return node_fabric, (*notes, note)
    assumed = [
        aspect
        for aspect, stated in (
            ("kind", links.kind or links.sockets),
            ("number", links.nics or links.total),
            ("rate", links.rates or links.total),
        )
        if not stated
    ]
    usual_parts = f" ({' and '.join(assumed)} as usual there)" if assumed else ""
    line = f"network of the log: {_nic_text(network)}{usual_parts}"
    return node_fabric.over_network(network), (*notes, line)


def _by_network(
    fabric: Fabric, links: LinksText, node: Hardware, product: str
) -> tuple[Fabric, tuple[str, ...]]:
    """Make each GPU a node of its own: without peers and shared memory, NICs carry everything."""
    nics = _nics_near(fabric.local, node.nics, node)
    default_network = Network(
        kind=node.network,
        bandwidth=BytesPerSecond(node.nic_bandwidth.value * nics),
        nics=nics,
    )
    network = _network(fabric, fabric.network or default_network, links, node, product)
    note = f"peers and shared memory are off: GPUs of a node talk over its {_nic_text(network)}"
    return fabric.apart(network), (note,)


def _with_switches(links: LinksText) -> LinksText:
    """Count what variables, and the type of a machine, say where nothing else says it."""
    switches, machine = links.switches, named_instance(rented_machines(), links.instance)
    kind = next((name for name in get_args(NetworkKind) if name == switches.network), None)
    nics = links.nics or (0 if links.total else switches.ports)
    if machine and links.kind in (None, machine.network):
        total = 0.0 if links.rates or nics not in (0, machine.nics) else machine.total.value
        links = replace(links, kind=machine.network, total=links.total or total)
        nics = nics or machine.nics
    return replace(
        links,
        kind=links.kind or kind,
        nics=nics,
        sockets=links.sockets or "rdma" in switches.off,
        pcie=links.pcie or switches.staged,
        peers=False if switches.staged else links.peers,
    )


def _node_fabric(fabric: Fabric, links: LinksText) -> Fabric:
    ways = links.switches.ways
    if "multicast" in links.switches.off:
        fabric = fabric.without_multicast()
    if fabric.link == "pcie" and ways and not links.pcie:
        return fabric.with_peers(on="SHM" not in ways)
    if links.mesh and fabric.link == "nvswitch":
        return fabric.over_nvlink()
    if not links.pcie:
        return fabric
    generation = links.generation or fabric.pcie_generation or 4
    slot = BytesPerSecond(pcie_bandwidth(generation))
    new_slot = links.generation or fabric.link != "pcie"
    slots = (
        fabric.over_pcie(slot if new_slot else fabric.bandwidth, generation)
        .with_peers(on=fabric.peer_to_peer if links.peers is None else links.peers)
        .across_sockets(on=fabric.crosses_sockets or links.across)
    )
    return slots.behind_one_uplink() if links.switched and not slots.peer_to_peer else slots


def _network(
    fabric: Fabric, default: Network, links: LinksText, node: Hardware, product: str
) -> Network:
    kind = _kind(default, links, node, product)
    rack = node.domain > node.gpus
    port = node.nic_bandwidth.value if links.nics else default.bandwidth / default.nics
    if links.rates:
        port = port if port in links.rates else links.rates[0]
    nics = default.nics if rack or not (links.nics or links.total) else links.nics
    if kind == "ethernet" and not (rack or links.nics or links.total):
        nics = 1  # sockets take the host's own port, not those beside GPUs
    if links.total and not rack:
        nics = nics or max(1, round(links.total / port))
        port = links.total / nics
    used_nics = _nics_near(fabric.ranks // fabric.nodes, nics, node) if not rack else nics
    if (port * used_nics, used_nics) == (default.bandwidth, default.nics):
        return default.over(kind)
    return Network(kind=kind, bandwidth=BytesPerSecond(port * used_nics), nics=used_nics)


def _kind(default: Network, links: LinksText, node: Hardware, product: str) -> NetworkKind:
    kind = links.kind or default.kind
    if links.sockets:
        return "ethernet"
    if kind == "roce" and _GOOGLE.search(product):
        return "gib"
    nic_rate = links.rates[0] if links.rates else links.total / max(1, links.nics)
    first_generation = node.device.architecture in _BEFORE_P5
    small = first_generation or (links.nics in range(1, 5) and nic_rate <= gigabit(100))
    return "efa_v1" if kind == "efa" and small else kind


def _nics_near(local: int, nics: int, node: Hardware) -> int:
    """Count the NICs that some GPUs of a node use: each the ones beside it.

    >>> from topology.catalogue import find_hardware
    >>> _nics_near(1, 8, find_hardware("h100-sxm")), _nics_near(8, 32, find_hardware("h100-sxm"))
    (1, 32)
    """
    return min(nics, local * -(-nics // node.gpus))


def _nic_text(network: Network) -> str:
    speed = network.bandwidth / network.nics * 8 / 10**9
    return f"{network.kind}, {counted(network.nics, 'NIC')} of {speed:.4g} Gbit/s a node"


def _link_words(fabric: Fabric) -> Iterator[str]:
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
