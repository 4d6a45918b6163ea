"""What variables of a command, and NCCL's own lines on its channels, turn off or show in use."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from costmodels.collectives.operations import PROTOCOLS, WireProtocol

Off = Literal["peers", "shared", "multicast", "rdma"]
Way = Literal["SHM", "P2P"]

_COMMAND: Final = re.compile(
    r"\bNCCL_\w+ set by environment|_perf(?:_mpi)?\b|(?:-x|\bexport|\benv:?)\s+NCCL_\w+=|"
    r"^\W*NCCL_\w+="
)
_PAIR: Final = re.compile(r"\bNCCL_(\w+?)(?:\s*=\s*|\s+set by environment to\s+)[\"']?([^\s\"';]+)")
_VIA: Final = re.compile(r"\bvia (SHM|P2P)/")
_OFF: Final[dict[tuple[str, str], Off]] = {
    ("P2P_DISABLE", "1"): "peers",
    ("P2P_LEVEL", "LOC"): "peers",
    ("P2P_LEVEL", "0"): "peers",
    ("SHM_DISABLE", "1"): "shared",
    ("NVLS_ENABLE", "0"): "multicast",
    ("IB_DISABLE", "1"): "rdma",
    ("NET", "socket"): "rdma",
}
_PORT: Final = re.compile(r"=?(?!mlx\d$)[a-z]\w*\d(?::\d+)?")  # one, not the start of several


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


def read_switches(line: str, known: Switches) -> Switches:
    """Add what a line says; prose that mentions a variable says nothing.

    >>> found = read_switches("NCCL_P2P_DISABLE=1 ./all_reduce_perf -g 2", Switches())
    >>> found.staged, read_switches("without NCCL_P2P_DISABLE=1 it is fast", Switches()).staged
    (True, False)
    """
    if "NCCL_" not in line and "via" not in line:
        return known
    via = _VIA.search(line)
    if via:
        way: Way = "SHM" if via[1] == "SHM" else "P2P"
        return replace(known, ways=known.ways | {way})
    if not _COMMAND.search(line):
        return known
    pairs = [(match[1], match[2].rstrip(".")) for match in _PAIR.finditer(line.replace("\\", ""))]
    off = frozenset(_turned_off(pairs))
    ports = [_ports(value) for name, value in pairs if name == "IB_HCA"]
    kinds = list(_networks(pairs))
    left = [_protocols(value) for name, value in pairs if name == "PROTO"]
    return replace(
        known,
        off=known.off | off,
        exported=known.exported | off if "export" in line else known.exported,
        ports=ports[-1] if ports else known.ports,
        network=kinds[0] if kinds else known.network,
        protocols=left[-1] if left else known.protocols,
    )


def _turned_off(pairs: list[tuple[str, str]]) -> Iterator[Off]:
    for name, value in pairs:
        what = _OFF.get((name, value)) or _OFF.get((name, value.lower()))
        if what:
            yield what


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
    left = tuple(p for p in PROTOCOLS if p not in named) if value.startswith("^") else named
    return left or PROTOCOLS


def _networks(pairs: list[tuple[str, str]]) -> Iterator[str]:
    """Name the network where a variable gives it away."""
    for name, value in pairs:
        if name == "NET" and value.lower() == "gib":
            yield "gib"
        if name == "NET_PLUGIN" and value.lower() == "spcx":
            yield "roce"
        if name == "IB_GID_INDEX" and value.isdecimal() and value != "0":  # InfiniBand has one
            yield "roce"


def next_run(known: Switches) -> Switches:
    """Keep what the next run of the same shell has too."""
    return Switches(off=known.exported, exported=known.exported)
