"""What a log says of the links it was measured on: remarks over it, and NCCL's own lines."""

import re
from dataclasses import dataclass, replace
from typing import Final

from topology.catalogue import NetworkKind, named_instance, rented_machines
from validate.nccl_tests.variables import Switches, read_switches

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
_NAMED: Final = (
    (r"\bfdr\b", 56), (r"\bedr\b|\bhdr100\b", 100), (r"\bhdr\b|\bndr200\b", 200),
    (r"\bndr(?:400)?\b", 400), (r"\bxdr\b", 800), (r"slingshot[- ]?10\b", 100),
    (r"slingshot", 200), (r"\befa", 100), (r"\bcx-?5\b|connectx-5", 100),
    (r"\bcx-?6\b|connectx-6", 200), (r"\bcx-?7\b|connectx-7", 400),
)  # fmt: skip
_GIGABITS: Final = r"(\d{1,4})\s*g(?:b(?:it)?(?:/s|ps)?)?(?!\w)"
_MANY: Final = re.compile(rf"(\d{{1,3}})\s*x\s*(?:[a-z]{{2,12}}\d{{0,3}}\s+){{0,2}}{_GIGABITS}")
_OR: Final = re.compile(rf"/\s*{_GIGABITS}")
_TOTAL: Final = re.compile(r"(\d{1,5}(?:\.\d+)?)\s*([gt])(b|bit|byte)?(/s|ps)\b")
_EACH: Final = re.compile(rf"(?<![\w.]){_GIGABITS}")
_PORTS: Final = r"(?:nics?|vfs?|hcas?|ports?|adapters?)\b"
_COUNT: Final = re.compile(rf"(?<![\w.])(\d{{1,3}}|single|one)\s+(?:[\w-]+\s+){{0,3}}?{_PORTS}")
_SOCKETS: Final = re.compile(r"\bNCCL_IB_DISABLE\s*=\s*1|\bNCCL_NET\s*=\s*\"?socket", re.IGNORECASE)
_SETUP: Final = re.compile(
    r"\((\d+)\).{0,150}?\b\1 = ([^;]*)"
)  # a legend of which one entry was run
_USING: Final = re.compile(r"NET/(IB|Socket)\s*:\s*Using\s+(.*)$")
_DEVICE: Final = re.compile(r"\[\d+\][^\s\[]+?(?:/(IB|RoCE))?(?=[/\s;<]|$)")
_PROVIDER: Final = re.compile(
    r"NET/OFI.{0,99}?provider(?:_filter to| is) (\w{1,40})(?:.{0,99}?found (\d{1,3}) nics)?",
    re.IGNORECASE,
)
_TAKEN: Final = re.compile(r"NCCL INFO Using network\s+(\S+(?: \S+)*)")
_PCIE: Final = re.compile(r"\bpcie?\s*(?:gen\s*)?([3-6])(?:\.0)?\b")
_SWITCHED: Final = re.compile(r"\bp(?:ix|xb)\b")
_NO_PEERS: Final = re.compile(r"no p2p|p2p (?:is )?(?:not available|off|disabled)|\bshm\b")


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
    kind = next((name for pattern, name in _KINDS if re.search(pattern, words)), None)
    many, total = _MANY.search(words), _TOTAL.search(words)
    if many:
        others = _OR.match(words, many.end())
        gigabits = [int(many[2]), *([int(others[1])] if others else [])]
        return LinksText(kind=kind, nics=int(many[1]), rates=tuple(map(gigabit, gigabits)))
    count = _COUNT.search(words)
    nics = (int(count[1]) if count[1].isdecimal() else 1) if count else 0
    named = next((rate for pattern, rate in _NAMED if re.search(pattern, words)), 0)
    if total and not (count and total.start() > count.start()):
        whole = float(total[1]) * 10.0 ** (12 if total[2] == "t" else 9)
        whole /= 1 if _is_bytes(text, total) else 8
        return LinksText(kind=kind, nics=nics, total=whole, rates=_rates(named))
    each = _EACH.search(words)
    return LinksText(kind=kind, nics=nics, rates=_rates(int(each[1]) if each else named))


def _is_bytes(text: str, total: re.Match[str]) -> bool:
    """Tell ``GB/s`` from ``Gb/s``, ``Gbps`` and ``GBps`` in a text as it was written."""
    return "B" in text[total.start() : total.end()] or total[3] == "byte"


def gigabit(gigabits: int) -> float:
    """Give the bytes per second of a rate in Gbit/s."""
    return gigabits * 10.0**9 / 8


def _rates(gigabits: int) -> tuple[float, ...]:
    return (gigabit(gigabits),) if gigabits else ()


def read_inside(text: str, said: LinksText) -> LinksText:
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
        said,
        mesh="mesh" in words and "nvlink" in words,
        pcie=pcie,
        generation=int(generation[1]) if pcie and generation else 0,
        peers=peers if pcie else None,
        switched=bool(_SWITCHED.search(words)),
        across="cross-socket" in words,
    )


def read_environment(text: str, said: LinksText) -> LinksText:
    """Add what environment variables, or a legend of which one entry was run, say of sockets."""
    setup = _SETUP.search(text) if " = " in text else None
    legend = bool(setup and "tcp sockets" in setup[2].lower())
    return replace(said, sockets=said.sockets or legend or bool(_SOCKETS.search(text)))


def read_line(line: str, said: LinksText) -> LinksText:
    """Add what a line of ``NCCL_DEBUG=INFO`` says of the network; any other says nothing.

    >>> line = "h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10<0>"
    >>> found = read_line(line, LinksText())
    >>> found.kind, found.nics
    ('infiniband', 2)
    """
    machine = named_instance(rented_machines(), line)
    said = replace(
        said,
        switches=read_switches(line, said.switches),
        instance=machine.name if machine else said.instance,
    )
    using, provider, taken = (p.search(line) for p in (_USING, _PROVIDER, _TAKEN))
    if using:
        return _used(using, said)
    if provider:
        kind = next((k for pattern, k in _KINDS if re.search(pattern, provider[1].lower())), None)
        return replace(said, kind=kind or said.kind, nics=int(provider[2] or said.nics))
    if taken and taken[1].lower() == "socket":
        return replace(said, kind="ethernet", sockets=True)
    if taken and said.kind is None:
        kind = next((k for pattern, k in _KINDS if re.search(pattern, taken[1].lower())), None)
        return replace(said, kind=kind)
    return said


def _used(using: re.Match[str], said: LinksText) -> LinksText:
    """Count the devices that a transport found; sockets count only where nothing better does."""
    devices = [match[1] for match in _DEVICE.finditer(using[2].partition(";")[0])]
    if using[1] == "Socket":
        return said if said.kind else replace(said, kind="ethernet", nics=len(devices))
    kind: NetworkKind = "roce" if "RoCE" in devices else "infiniband"
    known = said.kind if said.kind in ("gib", "roce", "infiniband") else kind
    return replace(said, kind=known, nics=len(devices))
