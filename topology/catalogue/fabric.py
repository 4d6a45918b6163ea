"""What one group of ranks talks over: the summary of a machine that a collective is priced on.

A catalogue node or a topology graph is reduced to this; the cost models see no graph.
"""

from dataclasses import dataclass, replace
from typing import Literal

from topology.base import BytesPerSecond
from topology.catalogue.devices import Architecture

LinkKind = Literal["nvswitch", "nvlink", "pcie"]
NetworkKind = Literal[
    "infiniband", "roce", "gib", "efa", "efa_v1", "slingshot", "tcpx", "tcpxo", "ethernet", "nvlink"
]
"""Transports: ``gib`` is RoCE in Google's machines, ``tcpx`` and ``tcpxo`` are GPUDirect over TCP
there, ``efa_v1`` is the first generation of EFA (p4d), ``ethernet`` TCP sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How nodes of a group reach each other.

    `bandwidth` is per node and direction, over all its NICs; `kind` names the transport.
    """

    kind: NetworkKind
    bandwidth: BytesPerSecond
    nics: int


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
    chain : bytes per second that each GPU of a node can pass on while data goes down an open
        chain, where links are shared and one hop less leaves more than `bandwidth`; 0 for as much.
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
    chain: BytesPerSecond = BytesPerSecond(0.0)


def behind_one_uplink(fabric: Fabric) -> Fabric:
    """Put the GPUs of each node on one switch, whose uplink all of their staged copies share.

    >>> pair = Fabric(
    ...     architecture="turing", ranks=2, link="pcie", bandwidth=BytesPerSecond(16e9),
    ...     peer_to_peer=False,
    ... )
    >>> behind_one_uplink(pair).bandwidth, behind_one_uplink(pair).chain
    (8000000000.0, 16000000000.0)
    """
    local = fabric.ranks // fabric.nodes
    return replace(
        fabric,
        bandwidth=BytesPerSecond(fabric.bandwidth / local),
        chain=BytesPerSecond(fabric.bandwidth / max(1, local - 1)),
    )
