"""What one group of ranks talks over: the summary of a machine that a collective is priced on.

A catalogue node or a topology graph is reduced to this; the cost models see no graph.
"""

from dataclasses import replace
from typing import Literal

from topology.base import BytesPerSecond
from topology.base.values import dataclass
from topology.catalogue.devices import Architecture

LinkKind = Literal["nvswitch", "nvlink", "pcie"]
NetworkKind = Literal[
    "infiniband", "roce", "gib", "efa", "efa_v1", "slingshot", "tcpx", "tcpxo", "ethernet", "nvlink"
]
"""Transports: ``gib`` is RoCE in Google's machines, ``tcpx`` and ``tcpxo`` are GPUDirect over TCP
there, ``efa_v1`` is the first generation of EFA (p4d), ``ethernet`` TCP sockets."""


Paced = Literal["all_reduce", "all_to_all"]
"""Collectives that a pace is of: one stands for all around a ring, one for all between pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What large messages of a collective were measured to reach on some GPUs of one host.

    fabric : the links of these GPUs. bus : bytes a second, as nccl-tests prints bus bandwidth.
    """

    op: Paced
    fabric: "Fabric"
    bus: BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How nodes of a group reach each other.

    `bandwidth` is per node and direction, over all its NICs; `kind` names the transport. `nic` is
    that of one, where groups share NICs, or switches do not keep up; 0 where it is an equal share.
    """

    kind: NetworkKind
    bandwidth: BytesPerSecond
    nics: int
    nic: BytesPerSecond = BytesPerSecond(0.0)

    @property
    def pace(self) -> BytesPerSecond:
        """Bytes per second and direction of one NIC by itself."""
        return self.nic or BytesPerSecond(self.bandwidth / self.nics)

    def over(self, kind: NetworkKind) -> "Network":
        """Take another transport over the same NICs."""
        return replace(self, kind=kind)

    def on_nics(self, nics: int) -> "Network":
        """Take `nics` of the NICs, each as fast as before."""
        share = BytesPerSecond(self.bandwidth * nics / self.nics)
        return replace(self, nics=nics, bandwidth=share)

    def scaled(self, factor: float) -> "Network":
        """Make every NIC `factor` times as fast."""
        bandwidth, nic = BytesPerSecond(self.bandwidth * factor), BytesPerSecond(self.nic * factor)
        return replace(self, bandwidth=bandwidth, nic=nic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """What shared links of a node leave each GPU of a group while others like it do the same.

    passed : bytes per second, nominal, that it can pass to the next one of its group; infinite
        where no link is shared. exchanged : that it can send while each sends to all others of its
        group. staging : GPUs of all groups whose copies pass the memory of one processor, the
        busiest; 0 where peers copy.
    """

    passed: BytesPerSecond
    exchanged: BytesPerSecond
    staging: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Links inside one group of `ranks` GPUs, spread evenly over `nodes` nodes.

    link : ``nvswitch`` (any pair at full speed), ``nvlink`` (direct links), ``pcie``.
    bandwidth : bytes per second and direction that one GPU can put on its links, nominal.
    multicast : the switch can reduce and replicate (NVLink SHARP).
    peer_to_peer : GPUs may read each other's memory; otherwise copies go through the host.
    hosts : machines of one such node, where an NVLink domain spans several (NVL72).
    crosses_sockets : some traffic between ranks passes the link between CPU sockets.
    exchange : bytes per second that one GPU can send while every rank of its node sends to every
        other, where shared links leave less than `bandwidth`; 0 where nothing is known of them.
    direct : bytes per second between two GPUs that are joined directly, where each has more links
        than those to the other; 0 where none has.
    chain : bytes per second that each GPU of a node can pass on while data goes down an open
        chain, where links are shared and one hop less leaves more than `bandwidth`; 0 for as much.
    paces : what was measured on a host of these GPUs, which rules their pace on one host.
    siblings : what groups that do the same at the same time leave; None where none share links.
    """

    architecture: Architecture
    ranks: int
    nodes: int = 1
    link: LinkKind
    bandwidth: BytesPerSecond
    multicast: bool = False
    peer_to_peer: bool = True
    crosses_sockets: bool = False
    pcie_generation: int = 0
    network: Network | None = None
    hosts: int = 1
    exchange: BytesPerSecond = BytesPerSecond(0.0)
    direct: BytesPerSecond = BytesPerSecond(0.0)
    chain: BytesPerSecond = BytesPerSecond(0.0)
    paces: tuple[Pace, ...] = ()
    siblings: Siblings | None = None

    def __hash__(self) -> int:
        return hash((self.ranks, self.nodes, self.link, self.bandwidth))

    @property
    def local(self) -> int:
        """Count the ranks of one node."""
        return self.ranks // self.nodes

    def over_pcie(self, bandwidth: BytesPerSecond, generation: int = 0) -> "Fabric":
        """Put the GPUs of a node on PCIe slots of `bandwidth` instead of NVLink."""
        return replace(
            self,
            link="pcie",
            multicast=False,
            bandwidth=bandwidth,
            direct=BytesPerSecond(0.0),
            pcie_generation=generation or self.pcie_generation,
        )

    def over_nvlink(self, bandwidth: BytesPerSecond | None = None) -> "Fabric":
        """Join every two GPUs of a node by direct NVLinks, of `bandwidth` a GPU if that is given.

        >>> node = Fabric(
        ...     architecture="ampere", ranks=4, link="nvswitch", bandwidth=BytesPerSecond(300e9)
        ... )
        >>> node.over_nvlink().direct
        100000000000.0
        """
        gpu_bandwidth = self.bandwidth if bandwidth is None else bandwidth
        return replace(
            self,
            link="nvlink",
            multicast=False,
            bandwidth=gpu_bandwidth,
            direct=BytesPerSecond(gpu_bandwidth / (self.local - 1) if self.local > 2 else 0.0),
            peer_to_peer=True,
        )

    def without_multicast(self) -> "Fabric":
        """Let switches neither reduce nor replicate."""
        return replace(self, multicast=False)

    def with_peers(self, *, on: bool) -> "Fabric":
        """Let GPUs read each other's memory, or send copies through the host."""
        return replace(self, peer_to_peer=on)

    def across_sockets(self, *, on: bool) -> "Fabric":
        """Let traffic pass the link between processors, or keep all GPUs on one of them."""
        return replace(self, crosses_sockets=on)

    def narrowed(self, factor: float) -> "Fabric":
        """Leave each GPU 1/`factor` of its links."""
        share, direct = self.bandwidth / factor, self.direct / factor
        return replace(self, bandwidth=BytesPerSecond(share), direct=BytesPerSecond(direct))

    def over_network(self, network: Network) -> "Fabric":
        """Join the nodes by another network."""
        return replace(self, network=network)

    def apart(self, network: Network) -> "Fabric":
        """Make each GPU a node of its own, with an equal part of the `network` of its host."""
        own_network = replace(
            network,
            bandwidth=BytesPerSecond(network.bandwidth / self.local),
            nics=max(1, network.nics // self.local),
        )
        return replace(self, nodes=self.ranks, network=own_network, multicast=False)

    def behind_one_uplink(self) -> "Fabric":
        """Put the GPUs of each node on one switch, whose uplink all of their staged copies share.

        >>> pair = Fabric(
        ...     architecture="turing", ranks=2, link="pcie", bandwidth=BytesPerSecond(16e9),
        ...     peer_to_peer=False,
        ... )
        >>> pair.behind_one_uplink().bandwidth, pair.behind_one_uplink().chain
        (8000000000.0, 16000000000.0)
        """
        return replace(
            self,
            bandwidth=BytesPerSecond(self.bandwidth / self.local),
            chain=BytesPerSecond(self.bandwidth / max(1, self.local - 1)),
        )


def pcie_bandwidth(generation: int, lanes: int = 16) -> float:
    """Bytes per second and direction of a PCIe link after its 128b/130b line code.

    >>> pcie_bandwidth(4) / 1e9
    31.5
    """
    return 31.5e9 * 2.0 ** (generation - 4) * lanes / 16
