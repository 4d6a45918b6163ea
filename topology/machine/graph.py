"""A machine as people have it: GPUs, NICs, switches and processors, and the links between them.

A `Machine` describes one host (or the few hosts that a text described) and says how many copies
of it a cluster has; nothing here is ever as large as the cluster.
"""

from dataclasses import dataclass
from typing import Literal

from topology.base import Bytes, BytesPerSecond, Sourced, TopologyError
from topology.catalogue import Architecture, NetworkKind

NodeKind = Literal["gpu", "nic", "nvswitch", "pcie_switch", "root", "cpu", "switch"]
EdgeKind = Literal["nvlink", "c2c", "pcie", "host", "socket", "network"]
PairKind = Literal["NVLINK", "NVSWITCH", "PIX", "PXB", "PHB", "NODE", "SYS", "C2C", "NET"]
PairBasis = Literal["kind", "told", "measured"]
PeerState = Literal["OK", "NS", "CNS", "GNS", "TNS", "DR", "U"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a machine; `hardware` is its catalogue name where that is known.

    capability : compute capability without its point, assumed where `hardware` is None.
    memory : bytes, None where unknown. peer_to_peer : GPUs reach each other over PCIe; no_peers :
    why they do not, empty where that is unknown. slice : profile of the one MIG slice of it that is
    seen, such as ``1g.10gb``.
    """

    name: str
    host: int = 0
    numa: int | None = None
    hardware: str | None = None
    product: str = ""
    architecture: Architecture
    capability: int
    memory: Bytes | None = None
    peer_to_peer: bool = True
    no_peers: str = ""
    mig: bool = False
    slice: str = ""
    gpudirect: bool | None = None
    bus: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network port. `virtual` ports (bridges, containers) carry no traffic of a collective."""

    name: str
    device: str = ""
    host: int = 0
    numa: int | None = None
    bandwidth: Sourced | None = None
    gpudirect: bool | None = None
    virtual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part that only passes traffic on; `chip` is what the text calls it."""

    name: str
    kind: NodeKind
    host: int = 0
    numa: int | None = None
    chip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A link: bytes per second each way at once, and seconds to cross it.

    count : NVLinks or PCIe lanes. generation : of PCIe, 0 elsewhere.
    """

    a: str
    b: str
    kind: EdgeKind
    count: int = 1
    generation: int = 0
    bandwidth: Sourced
    latency: Sourced


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How two devices of one host reach each other, in the words of ``nvidia-smi topo``.

    count : NVLinks, else 1. bandwidth : bytes per second each way with nobody else about.
    read : the text says so; otherwise it, or the bandwidth of its NIC, was filled in.
    basis : `bandwidth` is what the links are nominally good for, by their kind or as somebody
    told, or what a copy reached that was measured.
    """

    a: str
    b: str
    kind: PairKind
    count: int = 1
    bandwidth: BytesPerSecond
    read: bool = True
    basis: PairBasis = "kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One cell of ``nvidia-smi topo -p2p``; `capability` is its letter: read, write, nvlink ..."""

    a: str
    b: str
    state: PeerState
    capability: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One graph that NCCL found: so many channels at so many bytes per second each."""

    name: str
    channels: int
    intra: BytesPerSecond
    inter: BytesPerSecond
    type_intra: str
    type_inter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What joins the hosts. Host `h` hangs on leaf `h // hosts_per_leaf`, its NICs on rails.

    rails : leaf switches side by side; NIC `i` goes to rail `i % rails`.
    hosts_per_leaf : 0 for all of them. oversubscription : into a leaf over out of it.
    domain_hosts : hosts that share one NVLink domain (18 in a rack of 72 GPUs).
    """

    kind: NetworkKind
    nic_bandwidth: Sourced
    nics: int
    latency: Sourced  # s, host to switch
    rails: int = 1
    hosts_per_leaf: int = 0
    oversubscription: float = 1.0
    domain_hosts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One host as a graph, `copies` of it, and what was assumed or looks wrong."""

    name: str
    source: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...] = ()
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    pairs: tuple[Pair, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    searches: tuple[Search, ...] = ()
    copies: int = 1
    cluster: Cluster | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def described_hosts(self) -> int:
        """Count the hosts in the description, before copies."""
        return 1 + max((gpu.host for gpu in self.gpus), default=0)

    @property
    def hosts(self) -> int:
        """Count all hosts."""
        return self.copies * self.described_hosts

    @property
    def gpu_count(self) -> int:
        """Count all GPUs."""
        return self.copies * len(self.gpus)

    @property
    def hardware(self) -> str | None:
        """Give the catalogue name of the GPUs; None where it is unknown or differs."""
        kinds = {gpu.hardware for gpu in self.gpus}
        return kinds.pop() if len(kinds) == 1 else None

    def place(self, rank: int) -> tuple[int, Gpu]:
        """Give the copy and the GPU that hold `rank`; ranks count through one copy, then the next.

        Raises
        ------
        TopologyError
            If the machine has no such rank.
        """
        if not 0 <= rank < self.gpu_count:
            raise TopologyError(f"no GPU {rank} in {self.name}: it has {self.gpu_count}")
        copy, local = divmod(rank, len(self.gpus))
        return copy, self.gpus[local]

    def to_dict(self) -> dict[str, object]:
        """List hosts, GPUs and links; every pair of GPUs of one host appears once."""
        from topology.machine.document import machine_dict  # noqa: PLC0415  # it writes out these values

        return machine_dict(self)


def full_name(machine: Machine, copy: int, name: str) -> str:
    """Name a part of one copy; a machine without copies needs no prefix."""
    return name if machine.copies == 1 else f"host{copy}/{name}"


def pair_table(machine: Machine) -> dict[tuple[str, str], Pair]:
    """Look pairs up in either order."""
    table: dict[tuple[str, str], Pair] = {}
    for pair in machine.pairs:
        table[pair.a, pair.b] = table[pair.b, pair.a] = pair
    return table


def kinds_of(machine: Machine) -> dict[str, NodeKind]:
    """Tell what each part of one copy is."""
    kinds: dict[str, NodeKind] = {node.name: node.kind for node in machine.nodes}
    kinds |= {gpu.name: "gpu" for gpu in machine.gpus}
    kinds |= {nic.name: "nic" for nic in machine.nics}
    return kinds
