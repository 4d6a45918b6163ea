"""What a step and a byte cost between nodes."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, cast

from costmodels.collectives.operations import PROTOCOLS, WireProtocol
from topology.errors import CatalogueError, InputError
from topology.fabric import Fabric, Network
from topology.hardware import pcie_bandwidth
from topology.sourced import Kind
from topology.units import BytesPerSecond, Seconds, parse

# Flags travel with the data: 4 of 8 bytes (LL) and 120 of 128 (LL128) are payload.
PAYLOAD: Final[Mapping[WireProtocol, float]] = {"LL": 0.5, "LL128": 0.9375, "Simple": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """One kind of network.

    step_ll, step_ll128, step_simple : s, one dependent step to another node, by protocol.
    message : s, one message to one of many remote peers, sent in turn.
    efficiency : share of the NICs' nominal bandwidth that large messages reach.
    flow : share of one NIC that a single pair of ranks reaches.
    offload : share of `efficiency` at which the switches reduce; 0 where they cannot.
    sharpness : how start-up time and stream join (see `Curve`) when data leaves a node.
    """

    kind: Kind
    source: str
    step_ll: Seconds
    step_ll128: Seconds
    step_simple: Seconds
    message: Seconds
    efficiency: float
    flow: float
    offload: float
    sharpness: float

    def step(self, protocol: WireProtocol) -> Seconds:
        """Seconds of one dependent step in `protocol`."""
        return (self.step_ll, self.step_ll128, self.step_simple)[PROTOCOLS.index(protocol)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The way from one node to another in one protocol.

    step : s a dependent step. message : s a remote peer. per_byte : s a byte of a whole node.
    flow : s a byte between one pair of ranks. offload : what is left of the bandwidth when the
    switches reduce. sharpness : 0 where there is no network.
    """

    step: Seconds = Seconds(0.0)
    message: Seconds = Seconds(0.0)
    per_byte: float = 0.0
    flow: float = 0.0
    offload: float = 1.0
    sharpness: float = 0.0


Transports = Mapping[str, Transport]


def hop(fabric: Fabric, transports: Transports, protocol: WireProtocol) -> Hop:
    """Cost of leaving a node of `fabric`; nothing where there is one node.

    Raises
    ------
    InputError
        If there are several nodes and nothing is known of the network between them.
    """
    if fabric.nodes == 1:
        return Hop()
    if fabric.network is None:
        raise InputError(f"{fabric.nodes} nodes need a network, got none")
    return _hop(fabric, fabric.network, transports[fabric.network.kind], protocol)


def usable_bandwidth(fabric: Fabric, network: Network) -> BytesPerSecond:
    """Bytes a second that the GPUs of one node can put on its NICs: each has one PCIe slot.

    >>> from topology.catalogue import hardware
    >>> node = hardware("h100-sxm").fabric(2, nodes=2)
    >>> assert node.network is not None
    >>> usable_bandwidth(node, node.network) / 1e9  # of eight NICs of 50 GB/s
    63.0
    """
    if not fabric.pcie_generation:
        return network.bandwidth
    slots = fabric.ranks // fabric.nodes * pcie_bandwidth(fabric.pcie_generation)
    return BytesPerSecond(min(network.bandwidth, slots))


def _hop(fabric: Fabric, network: Network, transport: Transport, protocol: WireProtocol) -> Hop:
    payload = PAYLOAD[protocol]
    bandwidth = usable_bandwidth(fabric, network)
    return Hop(
        step=transport.step(protocol),
        message=transport.message,
        per_byte=1 / (bandwidth * transport.efficiency * payload),
        flow=network.nics / (network.bandwidth * transport.flow * payload),
        offload=transport.offload,
        sharpness=transport.sharpness,
    )


def load_transports(text: str) -> dict[str, Transport]:
    """Read kinds of network from TOML `text`; the caller does the file I/O."""
    return {name: _transport(name, row) for name, row in tomllib.loads(text).items()}


def _transport(name: str, row: Mapping[str, object]) -> Transport:
    wanted = {field.name for field in fields(Transport)}
    if row.keys() - {"note"} != wanted:
        raise CatalogueError(f"{name}: expected {sorted(wanted)}, got {sorted(row)}")
    share = {"efficiency", "flow", "offload", "sharpness"}
    numbers = {
        key: parse(str(row[key]), "1" if key in share else "s")
        for key in wanted - {"kind", "source"}
    }
    return Transport(
        kind=cast(Kind, row["kind"]),
        source=str(row["source"]),
        **numbers,  # type: ignore[arg-type]  # NewTypes are floats
    )
