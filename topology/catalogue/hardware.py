"""Hardware: a device and the node it usually comes in, by name or from a file of one's own."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, cast, get_args

from topology.base import (
    FASTEST_LINK,
    SLOWEST_LINK,
    BytesPerSecond,
    CatalogueError,
    InputError,
    Sourced,
    TopologyError,
    check_keys,
    counted,
    read_choice,
    read_sourced,
    shown,
    toml_of,
)
from topology.base.values import dataclass
from topology.catalogue.devices import Device, read_device
from topology.catalogue.fabric import Fabric, LinkKind, Network, NetworkKind, pcie_bandwidth

_KEYS: Final = (
    "kind", "source", "device", "gpus", "domain", "link", "link_bandwidth", "multicast",
    "peer_to_peer", "sockets", "pcie_generation", "nics", "nic_bandwidth", "network",
)  # fmt: skip
_OPTIONAL: Final = ("coherent", "exchange", "exchange_across", "no_peers")
_RANGES: Final = {  # what can be meant: a slip of a unit shows
    "multiprocessors": (1, 10**5),
    "clock": (10**7, 10**11),
    "memory": (10**8, 10**14),
    "l2": (10**4, 10**11),
    "power": (1, 10**5),
    "peaks": (10**10, 10**18),
}
_MOST_DEVICES: Final = 1024  # GPUs or NICs of a node, GPUs of an NVLink domain
_CUBE_GPUS: Final = 8  # GPUs of a hybrid cube mesh
NO_PEERS: Final = "taken as off on such cards"
NEWEST_PCIE: Final = 6
CROWD: Final = 4  # GPUs of a group from which a host's PCIe tree holds an exchange back


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device and its node.

    gpus : GPUs in one host. domain : GPUs that share NVLink, over hosts where that exists.
    link_bandwidth : bytes per second and direction of one GPU on `link`.
    coherent : bytes per second and direction of one GPU to its processor by NVLink-C2C; None
        without it.
    no_peers : why GPUs have no peer access over PCIe; empty where they have.
    exchange : bytes per second, nominal, that each of four or more GPUs of one socket passes on
        while each sends to each, where links promise more than hosts keep. exchange_across : bytes
        per second and direction that then pass between sockets, in all.
    """

    name: str
    device: Device
    gpus: int
    domain: int
    link: LinkKind
    link_bandwidth: Sourced
    multicast: bool
    peer_to_peer: bool
    sockets: int
    pcie_generation: int
    nics: int
    nic_bandwidth: Sourced
    network: NetworkKind
    coherent: Sourced | None = None
    no_peers: str = ""
    exchange: Sourced | None = None
    exchange_across: Sourced | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def without_peers(self) -> str:
        """Say that its GPUs are taken without peer access, and why; empty where they have it."""
        if self.peer_to_peer:
            return ""
        return f"no peer access between GPUs assumed ({self.no_peers}): copies go through the host"

    def to_dict(self) -> dict[str, object]:
        """Describe the hardware as plain data.

        >>> from topology.catalogue.tables import find_hardware
        >>> entry = find_hardware("h100-sxm").to_dict()
        >>> entry["gpus"], entry["link"], entry["precisions"]
        (8, 'nvswitch', ['bf16', 'fp16', 'fp8', 'int8'])
        """
        return {
            "name": self.name,
            "gpus": self.gpus,
            "domain": self.domain,
            "device": self.device.name,
            "architecture": self.device.architecture,
            "memory_bytes": round(self.device.memory.value),
            "memory_bandwidth_bytes_per_s": self.device.memory_bandwidth.value,
            "link": self.link,
            "link_bandwidth_bytes_per_s": self.link_bandwidth.value,
            "peer_to_peer": self.peer_to_peer,
            "nics": self.nics,
            "nic_bandwidth_bytes_per_s": self.nic_bandwidth.value,
            "network": self.network,
            "precisions": [name for name, _ in self.device.peaks],
        }

    def island(self, ranks: int, nodes: int = 0) -> int:
        """GPUs of a job of `ranks` that reach each other without a network.

        nodes : hosts that the job is spread over evenly; 0 for as few as hold it evenly. Those of
            one NVLink domain count together.
        """
        if not nodes and ranks <= self.domain:
            return ranks
        if not nodes:
            return ranks // even_hosts(ranks, max(self.domain, self.gpus))
        if ranks % nodes or ranks // nodes > self.gpus:
            raise TopologyError(
                f"{counted(ranks, 'GPU')} of {self.name} over {counted(nodes, 'node')}: "
                f"got {ranks / nodes:g} a node, wanted a whole number up to {self.gpus}"
            )
        return ranks // even_hosts(nodes, max(1, self.domain // self.gpus))

    def fabric(self, ranks: int, nodes: int = 0) -> Fabric:
        """Describe the links of one group of `ranks` GPUs, alone on as few hosts as hold it."""
        return self.group(ranks, stride=1, island=self.island(ranks, nodes))

    def group(self, ranks: int, stride: int, island: int) -> Fabric:
        """Describe the links of a group whose members are `stride` ranks apart.

        Groups between them run at the same time, so that they share the network of a host.

        island : ranks of the whole job on one host (see `island`).
        """
        local = ranks if ranks * stride <= island else max(1, island // stride)
        islands = ranks // local
        span = local * stride
        bridged = span <= self.domain
        cross_sockets = span > max(1, self.gpus // self.sockets)
        no_bound = BytesPerSecond(0.0)
        nvlink_bandwidth, direct_bandwidth = self._nvlink_bandwidths(local)
        return Fabric(
            architecture=self.device.architecture,
            ranks=ranks,
            nodes=islands,
            link=self.link if bridged else "pcie",
            bandwidth=nvlink_bandwidth
            if bridged
            else BytesPerSecond(pcie_bandwidth(self.pcie_generation)),
            direct=direct_bandwidth if bridged else no_bound,
            multicast=self.multicast and local > 2,
            peer_to_peer=self.peer_to_peer,
            crosses_sockets=cross_sockets,
            pcie_generation=self.pcie_generation,
            network=self._network(min(stride, island), island) if islands > 1 else None,
            hosts=-(-span // self.gpus) if bridged else 1,
            exchange=self.exchange_rate(local, across=cross_sockets)
            if self.peer_to_peer
            else no_bound,
        )

    def _nvlink_bandwidths(self, local: int) -> tuple[BytesPerSecond, BytesPerSecond]:
        """Give what one GPU sends to `local` - 1 others it is joined to, and to one of them.

        The second is 0 where it has no links beside these. In a mesh each pair has an equal part
        of the links; in a cube of eight, of six links a GPU, two lead to a neighbour and four stay
        in its half.

        >>> from topology.catalogue.tables import find_hardware
        >>> [find_hardware("gh200").fabric(ranks).bandwidth / 1e9 for ranks in (2, 3, 4)]
        [150.0, 300.0, 450.0]
        """
        all_links, no_links = BytesPerSecond(self.link_bandwidth.value), BytesPerSecond(0.0)
        if self.link != "nvlink" or self.domain == 2 or local == 1:
            return all_links, no_links
        cube = self.domain == _CUBE_GPUS
        pair_bandwidth = all_links / (3 if cube else self.domain - 1)
        reached_share = min(local, 4) / 6 if cube else (local - 1) / (self.domain - 1)
        group_bandwidth = (
            all_links if local >= self.domain else BytesPerSecond(all_links * reached_share)
        )
        return group_bandwidth, BytesPerSecond(pair_bandwidth)

    def exchange_rate(self, local: int, *, across: bool = False) -> BytesPerSecond:
        r"""Nominal bytes per second of one of `local` GPUs that all send to each other; 0 unknown.

        Of a group halved by the sockets each GPU sends n / 2 of its n - 1 parts across, so that
        a capacity c holds it to c (n - 1) / (n / 2)^2.

        >>> from topology.catalogue.tables import find_hardware
        >>> l40 = find_hardware("l40")
        >>> inside, over = (l40.exchange_rate(4, across=across) for across in (False, True))
        >>> inside > over > l40.exchange_rate(8, across=True) > 0
        True
        """
        if self.exchange is None or local < CROWD:
            return BytesPerSecond(0.0)
        if not across or self.exchange_across is None:
            return BytesPerSecond(self.exchange.value)
        return BytesPerSecond(self.exchange_across.value * (local - 1) / (local / 2) ** 2)

    def _network(self, sharing: int, island: int) -> Network:
        """Describe one group's part of the NICs beside the GPUs of an island."""
        nics = max(1.0, self.nics * island / self.gpus) / sharing
        return Network(
            kind=self.network,
            bandwidth=BytesPerSecond(self.nic_bandwidth.value * nics),
            nics=max(1, round(nics)),
            nic=BytesPerSecond(self.nic_bandwidth.value),
        )


def check_pcie_generation(value: object, what: str = "pcie_generation") -> None:
    """Raise unless `value` is a generation of PCIe, or None for one that nobody told.

    >>> check_pcie_generation(99)
    Traceback (most recent call last):
    topology.base.errors.InputError: pcie_generation: got 99, wanted a whole number from 1 to 6
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_integer and 1 <= cast(int, value) <= NEWEST_PCIE):
        text = shown(value) if not is_integer or abs(cast(int, value)) < 10**9 else "a huge number"
        raise InputError(f"{what}: got {text}, wanted a whole number from 1 to {NEWEST_PCIE}")


def read_hardware(name: str, row: object, devices: Mapping[str, Device]) -> Hardware:
    """Read the table of one node; its `device` is looked up in `devices`."""
    row = check_keys(name, row, _KEYS, _OPTIONAL)

    def count(key: str, most: int) -> int:
        value = row[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise CatalogueError(
                f"{name}.{key}: got {shown(value)}, wanted a whole number from 1 to {most}"
            )
        return value

    def flag(key: str) -> bool:
        value = row[key]
        if not isinstance(value, bool):
            raise CatalogueError(f"{name}.{key}: got {shown(value)}, wanted true or false")
        return value

    def rate(key: str) -> Sourced:
        return read_sourced(f"{name}.{key}", row[key], "B/s", row)

    device = read_choice(f"{name}.device", row["device"], devices)
    link = read_choice(f"{name}.link", row["link"], get_args(LinkKind))
    network = read_choice(f"{name}.network", row["network"], get_args(NetworkKind))
    return Hardware(
        name=name,
        device=devices[device],
        gpus=count("gpus", _MOST_DEVICES),
        domain=count("domain", _MOST_DEVICES),
        link=cast(LinkKind, link),
        link_bandwidth=rate("link_bandwidth"),
        multicast=flag("multicast"),
        peer_to_peer=flag("peer_to_peer"),
        sockets=count("sockets", _MOST_DEVICES),
        pcie_generation=count("pcie_generation", NEWEST_PCIE),
        nics=count("nics", _MOST_DEVICES),
        nic_bandwidth=rate("nic_bandwidth"),
        network=cast(NetworkKind, network),
        coherent=rate("coherent") if "coherent" in row else None,
        no_peers="" if row["peer_to_peer"] else str(row.get("no_peers", NO_PEERS)),
        exchange=rate("exchange") if "exchange" in row else None,
        exchange_across=rate("exchange_across") if "exchange_across" in row else None,
    )


def load_hardware_file(text: str, name: str, devices: Mapping[str, Device]) -> Hardware:
    """Read a GPU of one's own, and the node it comes in; they are called `name`.

    The `text` is TOML in the form of the catalogue's tables::

        [device]              # as in topology/data/devices.toml; left out for a node of one's
        kind = "datasheet"    # own with a GPU of the catalogue, which [hardware] then names
        source = "the vendor's data sheet, revision 2"
        architecture = "hopper"
        ...

        [hardware]            # as in topology/data/hardware.toml
        kind = "assumed"
        source = "the server we mean to buy"
        gpus = 8
        ...

    Kernels are priced with the tables of a GPU's generation, which its compute capability names,
    so that it must be that of one of the `devices` of the catalogue.
    """
    try:
        document = toml_of(text)
    except InputError as error:
        raise CatalogueError(f"TOML: {error}") from None
    tables = check_keys("file", document, ("hardware",), ("device",))
    node = tables["hardware"]
    if "device" in tables:
        if isinstance(node, Mapping) and "device" in node:
            raise CatalogueError("hardware.device: got a name beside a table [device], wanted one")
        device = replace(read_device("device", tables["device"]), name=name)
        _check_generation(device, devices)
        devices = {**devices, name: device}
        node = {**node, "device": name} if isinstance(node, Mapping) else node
    hardware = replace(read_hardware("hardware", node, devices), name=name)
    _check_node(hardware)
    for place, number in _numbers(hardware):
        least, most = _RANGES.get(place.split(".")[1], (SLOWEST_LINK, FASTEST_LINK))
        if not least <= number.value <= most:
            raise CatalogueError(f"{place}: got {number.value:g}, wanted {least:g} to {most:g}")
    if hardware.device.multiprocessors.value % 1:
        count = hardware.device.multiprocessors.value
        raise CatalogueError(f"device.multiprocessors: got {count:g}, wanted a whole number")
    return hardware


def _check_generation(device: Device, devices: Mapping[str, Device]) -> None:
    """Refuse a compute capability that no table of kernels is for."""
    architectures = {listed.compute_capability: listed.architecture for listed in devices.values()}
    capability = device.compute_capability
    if architectures.get(capability) != device.architecture:
        wanted = ", ".join(f"{a}.{b} ({name})" for (a, b), name in sorted(architectures.items()))
        capability_text = ".".join(map(str, capability))
        raise CatalogueError(
            f"device.compute_capability: got {capability_text} ({device.architecture}), wanted "
            "one of "
            f"{wanted}"
        )


def _check_node(hardware: Hardware) -> None:
    """Refuse NVLink domains that split hosts unevenly, and multicast without a switch for it."""
    if hardware.multicast and hardware.link != "nvswitch":
        raise CatalogueError(f"hardware.multicast: got true with {hardware.link}, wanted nvswitch")
    gpus, domain = hardware.gpus, hardware.domain
    if gpus % domain and not (hardware.link == "nvswitch" and domain % gpus == 0):
        more = f", or a multiple of {gpus} with nvswitch" if hardware.link == "nvswitch" else ""
        raise CatalogueError(
            f"hardware.domain: got {domain} GPUs that share {hardware.link}, "
            f"wanted a divisor of the {gpus} of a node{more}"
        )


def _numbers(hardware: Hardware) -> Iterator[tuple[str, Sourced]]:
    device = hardware.device
    for key in ("multiprocessors", "clock", "memory", "memory_bandwidth", "l2", "power"):
        yield f"device.{key}", getattr(device, key)
    for precision, peak in device.peaks:
        yield f"device.peaks.{precision}", peak
    for key in ("link_bandwidth", "nic_bandwidth", "coherent", "exchange", "exchange_across"):
        if (number := getattr(hardware, key)) is not None:
            yield f"hardware.{key}", number


def even_hosts(ranks: int, size: int) -> int:
    """Count the fewest hosts of at most `size` ranks that hold as many each.

    >>> even_hosts(16, 8), even_hosts(15, 8), even_hosts(13, 8), even_hosts(10**9 + 7, 8)
    (2, 3, 13, 1000000007)
    """
    return ranks // next(
        per_host for per_host in range(min(size, ranks), 0, -1) if ranks % per_host == 0
    )
