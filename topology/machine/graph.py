"""A machine as people have it: GPUs, NICs, switches and processors, and the links between them.

A `Machine` describes one host (or the few hosts that a text described) and says how many copies
of it a cluster has; nothing here is ever as large as the cluster.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from typing import Final, Literal

from topology.base import Bytes, BytesPerSecond, Sourced, TopologyError, counted
from topology.base.facts import facts
from topology.base.values import dataclass
from topology.catalogue import Architecture, NetworkKind, Paced

NodeKind = Literal["gpu", "nic", "nvswitch", "pcie_switch", "root", "cpu", "switch"]
EdgeKind = Literal["nvlink", "c2c", "pcie", "host", "socket", "network"]
PairKind = Literal["NVLINK", "NVSWITCH", "PIX", "PXB", "PHB", "NODE", "SYS", "C2C", "NET"]
PairBasis = Literal["kind", "told", "measured"]
PeerState = Literal["OK", "NS", "CNS", "GNS", "TNS", "DR", "U"]
SLICES: Final = 7  # MIG compute slices of a GPU
_MIG_PROFILE: Final = re.compile(r"(?:[1-7]c\.)?([1-7])g\.([0-9]{1,3})gb(?:\+\S{1,12})?")
_MOST_ROWS: Final = 10**6  # devices and links that are written out
GRAPH: Final = (
    "gpus", "nics", "nodes", "edges", "pairs", "nccl_graphs", "peers", "reached", "cluster",
)  # fmt: skip
"""Fields of a machine that are written as its graph; others stand beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a machine; `hardware` is its catalogue name where that is known.

    capability : compute capability without its point, assumed where `hardware` is None.
    memory : bytes, of its slice where one is seen; None where unknown. peer_to_peer : GPUs reach
    each other over PCIe; no_peers : why they do not, empty where that is unknown. slice : profile
    of the one MIG slice of it that is seen, such as ``1g.10gb``.
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
    """A link: bytes per second each way at once.

    count : NVLinks or PCIe lanes. generation : of PCIe, 0 elsewhere.
    """

    a: str
    b: str
    kind: EdgeKind
    count: int = 1
    generation: int = 0
    bandwidth: Sourced


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

    @property
    def is_nvlink(self) -> bool:
        """Tell whether the two reach each other by NVLink."""
        return self.kind in ("NVLINK", "NVSWITCH")

    @property
    def is_given(self) -> bool:
        """Tell whether somebody gave the bandwidth, so that the kind does not rule it."""
        return self.basis != "kind"

    @property
    def label(self) -> str:
        """Write the cell of ``nvidia-smi topo -m``: ``NV12``, ``PIX`` ..."""
        return f"NV{self.count}" if self.is_nvlink else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One cell of ``nvidia-smi topo -p2p``; `capability` is its letter: read, write, nvlink ..."""

    a: str
    b: str
    state: PeerState
    capability: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What large messages of a collective reached on the first `gpus` GPUs of a host.

    bus : bytes per second of bus bandwidth, as nccl-tests prints it.
    """

    op: Paced
    gpus: int
    bus: BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclGraph:
    """One graph that NCCL chose: so many channels at so many bytes per second each."""

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
    rails: int = 1
    hosts_per_leaf: int = 0
    oversubscription: float = 1.0
    domain_hosts: int = 1

    def uplink(self, hosts_per_leaf: int, nics: int) -> Sourced:
        """Bytes per second out of one leaf switch of one rail, each way."""
        incoming_rate = hosts_per_leaf * max(1, nics // self.rails) * self.nic_bandwidth.value
        return Sourced(
            value=incoming_rate / self.oversubscription,
            kind="derived",
            source=f"{hosts_per_leaf} hosts a leaf, oversubscription {self.oversubscription:g}",
        )


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
    nccl_graphs: tuple[NcclGraph, ...] = ()
    reached: tuple[Reached, ...] = ()
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
        """Count the hosts of all copies of a machine."""
        return self.copies * self.described_hosts

    @property
    def gpu_count(self) -> int:
        """Count the GPUs of all copies of a machine."""
        return self.copies * len(self.gpus)

    @property
    def hardware(self) -> str | None:
        """Give the catalogue name of the GPUs; None where it is unknown or differs."""
        kinds = {gpu.hardware for gpu in self.gpus}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def domain_hosts(self) -> int:
        """Count the hosts that share one NVLink domain."""
        return self.cluster.domain_hosts if self.cluster else 1

    @property
    def part_kinds(self) -> dict[str, NodeKind]:
        """Tell what each part of one copy is."""
        kinds: dict[str, NodeKind] = {node.name: node.kind for node in self.nodes}
        kinds |= {gpu.name: "gpu" for gpu in self.gpus}
        kinds |= {nic.name: "nic" for nic in self.nics}
        return kinds

    @property
    def pairs_by_ends(self) -> dict[tuple[str, str], Pair]:
        """Look pairs up in either order."""
        table: dict[tuple[str, str], Pair] = {}
        for pair in self.pairs:
            table[pair.a, pair.b] = table[pair.b, pair.a] = pair
        return table

    @property
    def usable_nics(self) -> tuple[Nic, ...]:
        """Keep the NICs that collectives use: real ports, those near a GPU if any are."""
        real_nics = tuple(nic for nic in self.nics if not nic.virtual)
        gpus = {gpu.name for gpu in self.gpus}
        near_names = {
            name
            for pair in self.pairs
            if pair.kind in ("PIX", "PXB", "C2C") and len({pair.a, pair.b} & gpus) == 1
            for name in (pair.a, pair.b)
        }
        return tuple(nic for nic in real_nics if nic.name in near_names) or real_nics or self.nics

    def place(self, rank: int) -> tuple[int, Gpu]:
        """Give the copy and the GPU of a rank; ranks count through one copy, then the next."""
        if not 0 <= rank < self.gpu_count:
            raise TopologyError(f"no GPU {rank} in {self.name}: it has {self.gpu_count}")
        copy, local = divmod(rank, len(self.gpus))
        return copy, self.gpus[local]

    def links_of(self, name: str, kind: EdgeKind | None = None) -> tuple[Edge, ...]:
        """List the links that end at a part, of one kind if that is given."""
        return tuple(
            edge
            for edge in self.edges
            if name in (edge.a, edge.b) and (kind is None or edge.kind == kind)
        )

    def full_name(self, copy: int, name: str) -> str:
        """Name a part of one copy; a machine without copies needs no prefix."""
        return name if self.copies == 1 else f"host{copy}/{name}"

    def cluster_name(self, copy: int, name: str, kind: NodeKind) -> str:
        """Name a part of one copy; the NVLink switches of a rack belong to several copies."""
        if self.domain_hosts > 1 and kind == "nvswitch":
            return f"domain{copy // self.domain_hosts}/{name}"
        return self.full_name(copy, name)

    def all_edges(self) -> tuple[Edge, ...]:
        """Write out the links of every copy and of the network between them."""
        if self.copies == 1 and self.cluster is None:
            return self.edges
        kinds = self.part_kinds
        copied_edges = (
            replace(
                edge,
                a=self.cluster_name(copy, edge.a, kinds[edge.a]),
                b=self.cluster_name(copy, edge.b, kinds[edge.b]),
            )
            for copy in range(self.copies)
            for edge in self.edges
        )
        return (*copied_edges, *self.network_edges())

    def network_edges(self) -> tuple[Edge, ...]:
        """Write out the links from NICs to leaf switches and from leaves to the spine."""
        cluster = self.cluster
        if cluster is None or self.hosts == 1:
            return ()
        nics = self.usable_nics
        per_leaf = cluster.hosts_per_leaf or self.copies
        leaves = -(-self.copies // per_leaf)
        ports = tuple(
            Edge(
                a=self.full_name(copy, nic.name),
                b=f"leaf{copy // per_leaf}.rail{index % cluster.rails}",
                kind="network",
                bandwidth=nic.bandwidth or cluster.nic_bandwidth,
            )
            for copy in range(self.copies)
            for index, nic in enumerate(nics)
        )
        uplinks = tuple(
            Edge(
                a=f"leaf{leaf}.rail{rail}",
                b="spine",
                kind="network",
                bandwidth=cluster.uplink(per_leaf, len(nics)),
            )
            for leaf in range(leaves)
            for rail in range(cluster.rails)
            if leaves > 1 or cluster.rails > 1
        )
        return ports + uplinks

    def __repr__(self) -> str:
        return f"<Machine {self.name}: {counted(self.gpu_count, 'GPU')}>"

    def _repr_html_(self) -> str:
        summary = {
            "name": self.name,
            "source": self.source,
            "nodes": self.hosts,
            "GPUs": [f"{gpu.name} {gpu.hardware or gpu.product}".rstrip() for gpu in self.gpus],
            "NICs": [nic.device or nic.name for nic in self.nics],
            "assumed": self.assumptions,
            "warnings": self.warnings,
        }
        return facts(summary).html()

    def to_dict(self) -> dict[str, object]:
        """List hosts, GPUs and links; every pair of GPUs of one host appears once.

        graph : of one host, all of it in fields that differ from their usual values, so that what
        is read again is the same machine.
        """
        copies = range(self.copies)
        rows = self.copies * (len(self.gpus) + len(self.nics) + len(self.pairs))
        if rows > _MOST_ROWS:
            raise TopologyError(
                f"{self.name}: got {rows} devices and links, wanted at most {_MOST_ROWS} to list"
            )
        return {
            "name": self.name,
            "source": self.source,
            "nodes": self.hosts,
            "gpus": [self._gpu_row(copy, gpu) for copy in copies for gpu in self.gpus],
            "nics": [self._nic_row(copy, nic) for copy in copies for nic in self.nics],
            "links": [
                *(
                    _pair_row(pair, partial(self.full_name, copy))
                    for copy in copies
                    for pair in self.pairs
                ),
                *(
                    _pair_row(_edge_pair(edge, "C2C"), partial(self.full_name, copy))
                    for copy in copies
                    for edge in self.edges
                    if edge.kind == "c2c"
                ),
                *(_pair_row(_edge_pair(edge, "NET")) for edge in self.network_edges()),
            ],
            "reached": [
                {"op": pace.op, "gpus": pace.gpus, "bus_bandwidth_bytes_per_s": pace.bus}
                for pace in self.reached
            ],
            "peer_access": [asdict(peer) for peer in self.peers],
            "nccl_searches": [
                {
                    "name": graph.name,
                    "channels": graph.channels,
                    "intra_bytes_per_s": graph.intra,
                    "inter_bytes_per_s": graph.inter,
                    "type_intra": graph.type_intra,
                    "type_inter": graph.type_inter,
                }
                for graph in self.nccl_graphs
            ],
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            **({"graph": _json_value(self, GRAPH)} if self.hosts == 1 else {}),
        }

    def _gpu_row(self, copy: int, gpu: Gpu) -> dict[str, object]:
        port = next(iter(self.links_of(gpu.name, "pcie")), None)
        return {
            "name": self.full_name(copy, gpu.name),
            "node": copy * self.described_hosts + gpu.host,
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

    def _nic_row(self, copy: int, nic: Nic) -> dict[str, object]:
        return {
            "name": self.full_name(copy, nic.name),
            "device": nic.device,
            "node": copy * self.described_hosts + nic.host,
            "numa": nic.numa,
            "bandwidth_bytes_per_s": nic.bandwidth.value if nic.bandwidth else None,
        }


def _json_value(value: object, names: Collection[str] = ()) -> object:
    """Write a value as JSON, of a class the fields that differ from their defaults."""
    if isinstance(value, tuple):
        return list(map(_json_value, value))
    if not is_dataclass(value):
        return value
    return {
        field.name: _json_value(getattr(value, field.name))
        for field in fields(value)
        if (field.name in names or not names) and getattr(value, field.name) != field.default
    }


def _edge_pair(edge: Edge, kind: PairKind) -> Pair:
    """Write a link to a part that is no GPU or NIC as the pair of its ends."""
    rate = BytesPerSecond(edge.bandwidth.value)
    return Pair(a=edge.a, b=edge.b, kind=kind, count=edge.count, bandwidth=rate, read=False)


def _pair_row(pair: Pair, full_name: Callable[[str], str] = str) -> dict[str, object]:
    return {
        "a": full_name(pair.a),
        "b": full_name(pair.b),
        "kind": pair.kind,
        "count": pair.count,
        "bandwidth_bytes_per_s": pair.bandwidth,
        "read": pair.read,
        "measured": pair.basis == "measured",
    }


def is_nvlink(pair: Pair | None) -> bool:
    """Tell whether two GPUs are known to reach each other by NVLink."""
    return pair is not None and pair.is_nvlink


def mig_share(profile: str) -> tuple[float, float] | None:
    """Give the share of a GPU's multiprocessors and the bytes of memory of a MIG profile.

    One of seven slices has an eighth of the multiprocessors: some are left over.

    >>> mig_share("1g.10gb"), mig_share("7g.80gb"), mig_share("")
    ((0.125, 10000000000.0), (1.0, 80000000000.0), None)
    """
    match = _MIG_PROFILE.fullmatch(profile)
    if match is None:
        return None
    slices = int(match[1])
    return (1.0 if slices == SLICES else slices / (SLICES + 1)), float(match[2]) * 10**9
