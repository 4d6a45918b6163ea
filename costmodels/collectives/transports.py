"""What a step and a byte cost between nodes."""

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final, cast

from costmodels.collectives.curve import Curve
from costmodels.collectives.operations import Amount, WireProtocol
from costmodels.sizes import larger
from topology.base import BytesPerSecond, CatalogueError, InputError, Kind, Seconds, parse
from topology.base.values import dataclass
from topology.catalogue import Fabric, Network, pcie_bandwidth

# Flags travel with the data: 4 of 8 bytes (LL) and 120 of 128 (LL128) are payload.
PAYLOAD: Final[Mapping[WireProtocol, float]] = {"LL": 0.5, "LL128": 0.9375, "Simple": 1.0}
FEW_RINGS: Final = 4  # that NCCL doubles whatever their rate
_UNPACED: Final[Mapping[str, float]] = MappingProxyType({})
_FAST_NIC: Final = 48 * 10**9  # B/s; what is sold as 400 Gbit/s, less what shares may round off
_UNITS: Final = {
    "step_ll": "s", "step_ll128": "s", "step_simple": "s", "pair": "s", "message": "s",
    "channel": "B/s", "port": "B/s", "ll": "B/s",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What messages between nodes take over one kind of network.

    step_ll, step_ll128, step_simple : s, one dependent step to another node, by protocol.
    tree : a step between levels of a tree over a step of a ring.
    pair : s, before the data of a pair of ranks streams: word that the receiver is ready, the
        first data, and word that it has come; a third where flags in the data say so.
    message : s, one message to one of many remote peers with flags in the data; without them the
        host looks twice at each.
    efficiency : share of the NICs' nominal bandwidth that large messages reach.
    exchange : as `efficiency`, where every rank sends to every other.
    flow : share of one NIC that a single pair of ranks reaches. channel : B/s that one channel of
        NCCL carries between them; 0 where only the NIC limits it.
    copy : chunks that are copied between user memory and the NICs' buffers, a pass of a ring, as
        a length on the network.
    port : B/s of one NIC whatever its nominal bandwidth; 0 where nothing else limits it.
    ll : B/s of a node in the LL protocol, whose flags the host looks for; 0 where it does not.
    offload : share of `efficiency` at which the switches reduce; 0 where they cannot.
    sharpness : how start-up time and stream join (see `Curve`) when data leaves a node.
    """

    kind: Kind
    source: str
    step_ll: Seconds
    step_ll128: Seconds
    step_simple: Seconds
    tree: float
    pair: Seconds
    message: Seconds
    efficiency: float
    exchange: float
    flow: float
    channel: BytesPerSecond
    copy: float
    port: BytesPerSecond
    ll: BytesPerSecond
    offload: float
    sharpness: float

    def step(self, protocol: WireProtocol) -> Seconds:
        """Seconds of one dependent step in `protocol`."""
        return {"LL": self.step_ll, "LL128": self.step_ll128, "Simple": self.step_simple}[protocol]

    def bandwidth(self, network: Network) -> BytesPerSecond:
        """Bytes a second of a node's NICs, as far as the host can drive them."""
        if not self.port:
            return network.bandwidth
        return BytesPerSecond(min(network.bandwidth, self.port * network.nics))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The way from one node to another in one protocol; see `Transport`.

    step, tree_step : s a dependent step of a ring, of a tree. pair : s before data streams between
    a pair of ranks. message : s a remote peer.
    per_byte, exchange : s a byte of a whole node. flow : s a byte between one pair of ranks.
    sharpness : 0 where there is no network.
    """

    step: Seconds = Seconds(0.0)
    tree_step: Seconds = Seconds(0.0)
    pair: Seconds = Seconds(0.0)
    message: Seconds = Seconds(0.0)
    per_byte: float = 0.0
    exchange: float = 0.0
    flow: float = 0.0
    copy: float = 0.0
    offload: float = 1.0
    sharpness: float = 0.0

    def join(
        self, curve: Curve, start: Amount, travel: Amount | float, streams: tuple[Amount, Amount]
    ) -> Amount:
        r"""Seconds of work inside nodes and between them, in one pipeline.

        .. math:: t = \max(travel + curve(start, inside), ((start + travel)^s + outside^s)^{1/s})

        start : s before bytes stream inside a node. travel : s of dependent steps to other nodes.
        streams : s of the bytes inside a node, and on its NICs.
        """
        inside, outside = streams
        node_bound = travel + curve.join(start, inside)
        if not self.sharpness:
            return node_bound
        network_bound = ((start + travel) ** self.sharpness + outside**self.sharpness) ** (
            1 / self.sharpness
        )
        return cast(Amount, larger(node_bound, network_bound))


Transports = Mapping[str, Transport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What nodes lose of their network together, for any kind of network.

    pace : share of the NICs that more than two nodes keep where each NIC has one ring's channel, by
    generation; 1 where it is not named.
    branching : share of that which trees on NVLink switches keep where they branch, as data of two
    children comes in on the NICs that send it on. wave : B a NIC that such a tree passes from node
    to node at once. sharpness : of such trees, at most (see `Curve`).
    """

    pace: Mapping[str, float]
    branching: float
    wave: float
    sharpness: float


def transport_of(network: Network, transports: Transports) -> Transport:
    """Find what is known of a kind of network, and of the generation of its ports.

    >>> from costmodels.collectives.tables import transports
    >>> slow, fast = (
    ...     Network(kind="infiniband", bandwidth=BytesPerSecond(rate * 8), nics=8)
    ...     for rate in (25e9, 50e9)
    ... )
    >>> [transport_of(network, transports()).step_ll * 1e6 for network in (slow, fast)]
    [7.6, 2.5]
    """
    is_fast = network.pace >= _FAST_NIC
    name = f"{network.kind}_ndr" if is_fast else network.kind
    return transports.get(name) or transports[network.kind]


def hop(
    fabric: Fabric,
    transports: Transports,
    protocol: WireProtocol,
    channels: int = 1,
    pace: Mapping[str, float] = _UNPACED,
) -> Hop:
    """Cost of leaving a node of `fabric`; nothing where there is one node.

    channels : that NCCL gives a pair of ranks on two nodes. pace : see `Losses`.
    """
    network = fabric.network
    if fabric.nodes == 1:
        return Hop()
    if network is None:
        raise InputError(f"{fabric.nodes} nodes need a network, got none")
    transport, payload = transport_of(network, transports), PAYLOAD[protocol]
    driven_bandwidth = transport.bandwidth(network)
    bandwidth = usable_bandwidth(fabric, replace(network, bandwidth=driven_bandwidth))
    stream = bandwidth * payload
    if protocol == "LL" and transport.ll:
        stream = min(stream, transport.ll)
    single_rings = fabric.nodes > 2 and network.nics > FEW_RINGS
    efficiency = transport.efficiency * (
        pace.get(fabric.architecture, 1.0) if single_rings else 1.0
    )
    step, looks = transport.step(protocol), 1 if protocol == "LL" else 2
    flow = min(network.pace, transport.port or driven_bandwidth, driven_bandwidth) * transport.flow
    if transport.channel:
        flow = min(flow, channels * transport.channel)
    return Hop(
        step=step,
        tree_step=Seconds(step * transport.tree),
        pair=Seconds(transport.pair / (3 if protocol == "LL" else 1)),
        message=Seconds(transport.message * looks),
        per_byte=1 / (stream * efficiency),
        exchange=1 / (bandwidth * payload * transport.exchange),
        flow=1 / (flow * payload),
        copy=transport.copy,
        offload=transport.offload,
        sharpness=transport.sharpness,
    )


def usable_bandwidth(fabric: Fabric, network: Network) -> BytesPerSecond:
    """Bytes a second that the GPUs of one node can put on its NICs: each has one PCIe slot.

    >>> from topology.catalogue import find_hardware
    >>> node = find_hardware("h100-sxm").fabric(2, nodes=2)
    >>> eight = Network(kind="infiniband", bandwidth=BytesPerSecond(400e9), nics=8)
    >>> usable_bandwidth(node, eight) / 1e9  # of eight NICs of 50 GB/s, beside one GPU
    63.0
    """
    if not fabric.pcie_generation:
        return network.bandwidth
    slots = fabric.ranks // fabric.nodes * pcie_bandwidth(fabric.pcie_generation)
    return BytesPerSecond(min(network.bandwidth, slots))


def load_losses(row: Mapping[str, Any]) -> Losses:
    """Read what nodes lose of their network together."""
    return Losses(
        pace={generation: parse(share, "1") for generation, share in row["pace"].items()},
        branching=parse(row["branching"], "1"),
        wave=parse(row["wave"], "B"),
        sharpness=parse(row["sharpness"], "1"),
    )


def load_transports(tables: Mapping[str, Any]) -> dict[str, Transport]:
    """Read what each kind of network takes for messages between nodes."""
    transports: dict[str, Transport] = {}
    wanted = {field.name for field in fields(Transport)}
    for name, row in tables.items():
        if row.keys() - {"note"} != wanted:
            raise CatalogueError(f"{name}: expected {sorted(wanted)}, got {sorted(row)}")
        keys = wanted - {"kind", "source"}
        numbers: dict[str, Any] = {key: parse(str(row[key]), _UNITS.get(key, "1")) for key in keys}
        transports[name] = Transport(kind=row["kind"], source=str(row["source"]), **numbers)
    return transports
