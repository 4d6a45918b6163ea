"""Clusters as people describe them: hosts of one kind, and the network between them.

::

    name = "two racks"
    hosts = 16
    hardware = "h100-sxm"          # or: topology = '''a pasted matrix'''

    [network]                      # all of it may be left out: as the hardware usually has it
    kind = "infiniband"            # infiniband, roce, efa, slingshot, ethernet (sockets) ...
    nics = 8                       # of one host
    nic_bandwidth = "400 Gbit/s"   # or "50 GB/s"
    rails = 8                      # leaf switches side by side; NIC i goes to rail i
    hosts_per_leaf = 8             # 0: all of them
    oversubscription = 2.0         # into a leaf over out of it

    [[measured]]                   # what copies between GPUs of one host reached
    label = "PHB"                  # of every two GPUs with that label of nvidia-smi topo -m
    bandwidth = "13.2 GB/s"
    [[measured]]
    pair = ["GPU0", "GPU3"]        # of two GPUs; it stands above their label
    bandwidth = "6.5 GB/s"

    [rack]                         # where NVLink spans hosts, as in NVL72
    hosts = 18
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast, get_args

from topology.base import InputError, Sourced, TopologyError, parse_rate, unknown
from topology.catalogue import Hardware, NetworkKind, link_rates
from topology.machine.expand import usable_nics
from topology.machine.graph import Cluster, Machine, Nic
from topology.machine.measured import MeasuredText, bandwidths, read_measured, with_measured
from topology.machine.node import machine_of

_MOST_HOSTS: Final = 2**14
_MOST_NICS: Final = 256
_TOP: Final = {"name", "hosts", "hardware", "topology", "network", "rack", "measured"}
_NETWORK: Final = {
    "kind", "nics", "nic_bandwidth", "rails", "hosts_per_leaf", "oversubscription",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterText:
    """A cluster file: how many hosts of what, what was measured, its network table as written."""

    name: str
    hosts: int
    hardware: str | None
    topology: str | None
    network: Mapping[str, object]
    rack_hosts: int
    measured: tuple[MeasuredText, ...] = ()


def read_cluster(text: str) -> ClusterText:
    """Read a cluster file.

    Raises
    ------
    TopologyError
        If the TOML is malformed, or a key is unknown, missing or out of range.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TopologyError(f"TOML: {str(error)[:120]}") from None
    except ValueError:
        raise TopologyError("TOML: got a number of thousands of digits, wanted a count") from None
    _only(table, _TOP, "cluster")
    network, rack = (_table(table, key) for key in ("network", "rack"))
    _only(network, _NETWORK, "network")
    _only(rack, {"hosts"}, "rack")
    if ("hardware" in table) == ("topology" in table):
        raise TopologyError("cluster: expected either hardware or topology")
    return ClusterText(
        name=str(table.get("name", "cluster"))[:100],
        hosts=_count(table, "hosts", "cluster"),
        hardware=_string(table, "hardware"),
        topology=_string(table, "topology"),
        network=network,
        rack_hosts=_count(rack, "hosts", "rack") if rack else 0,
        measured=read_measured(table.get("measured", [])),
    )


def build_cluster(said: ClusterText, host: Machine) -> Machine:
    """Repeat `host` as a cluster file says.

    Raises
    ------
    TopologyError
        If the network table holds a value that cannot be.
    """
    network = said.network
    base = host.cluster or assumed_network()
    kind = str(network.get("kind", base.kind))
    if kind not in get_args(NetworkKind):
        raise unknown("network", kind, get_args(NetworkKind))
    nics = _nics(network, "nics")
    bandwidth = _bandwidth(network) or base.nic_bandwidth
    ports = nics or len(usable_nics(host)) or 1
    hosts_per_leaf = _count(network, "hosts_per_leaf", "network", least=0)
    oversubscription = network.get("oversubscription", 1.0)
    if not isinstance(oversubscription, int | float) or not 1 <= oversubscription <= 1000:
        raise TopologyError(
            f"network: oversubscription is {oversubscription!r}: expected 1 to 1000"
        )
    cluster = replace(
        base,
        kind=cast(NetworkKind, kind),
        nic_bandwidth=bandwidth,
        nics=ports,
        rails=min(ports, _nics(network, "rails") or base.rails),
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=float(oversubscription),
        domain_hosts=said.rack_hosts or base.domain_hosts,
    )
    speed = bandwidth if "nic_bandwidth" in network else None
    return replace(
        with_measured(with_ports(host, nics, speed), bandwidths(host, said.measured)),
        name=said.name,
        copies=said.hosts,
        cluster=cluster,
    )


def repeated(host: Machine, hosts: int) -> Machine:
    """Put `hosts` copies of a machine side by side, on the network its hardware usually has.

    Raises
    ------
    TopologyError
        If the number of hosts is none.
    """
    if not 1 <= hosts <= _MOST_HOSTS:
        raise TopologyError(f"{hosts} hosts: expected 1 to {_MOST_HOSTS}")
    if hosts in (1, host.hosts):
        return host
    ports = len(usable_nics(host)) or 1
    cluster = host.cluster or replace(assumed_network(), nics=ports, rails=ports)
    note = () if host.cluster else ("NICs of 100 Gbit/s on one non-blocking network",)
    return replace(
        with_ports(host, None, None),
        copies=hosts,
        cluster=cluster,
        assumptions=(*host.assumptions, *note),
    )


def assumed_network() -> Cluster:
    """Describe the network that is taken where nothing is known."""
    return Cluster(
        kind="ethernet",
        nic_bandwidth=link_rates().nic,
        nics=1,
        latency=link_rates().latency_of("network"),
    )


def with_ports(host: Machine, nics: int | None, bandwidth: Sourced | None) -> Machine:
    """Give a host the NICs of a cluster file: their number where that differs, and their speed."""
    ports = usable_nics(host)
    if nics is not None and nics != len(ports):
        others = {nic.name for nic in host.nics}
        edges = tuple(edge for edge in host.edges if not {edge.a, edge.b} & others)
        pairs = tuple(pair for pair in host.pairs if pair.b not in others)
        ports = tuple(Nic(name=f"NIC{index}", bandwidth=bandwidth) for index in range(nics))
        return replace(host, nics=ports, edges=edges, pairs=pairs)
    if not ports:
        return replace(host, nics=(Nic(name="NIC0", bandwidth=bandwidth),))
    if bandwidth is None:
        return host
    return replace(host, nics=tuple(replace(nic, bandwidth=bandwidth) for nic in host.nics))


def host_of(said: ClusterText, catalogue: Mapping[str, Hardware]) -> Machine:
    """Build the host that a cluster file names.

    Raises
    ------
    TopologyError
        If the catalogue has no such hardware.
    """
    name = (said.hardware or "").lower()
    if name not in catalogue:
        raise unknown("hardware", name, catalogue)
    return machine_of(catalogue[name])


def _bandwidth(network: Mapping[str, object]) -> Sourced | None:
    """Read the speed of a NIC: bytes, or bits as people say it."""
    text = network.get("nic_bandwidth")
    if text is None:
        return None
    try:
        value = parse_rate(str(text))
    except InputError as error:
        raise TopologyError(f"network: nic_bandwidth: {error}") from None
    return Sourced(value=value, kind="datasheet", source="cluster file")


def _table(table: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise TopologyError(f"cluster: {key} is {str(value)[:40]!r}: expected a table [{key}]")
    return value


def _string(table: Mapping[str, object], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise TopologyError(f"cluster: {key} is {str(value)[:40]!r}: expected text")
    return value


def _only(table: Mapping[str, object], known: set[str], where: str) -> None:
    extra = sorted(set(table) - known)
    if extra:
        raise unknown(f"key in {where}", extra[0], sorted(known))


def _nics(network: Mapping[str, object], key: str) -> int | None:
    return _count(network, key, "network", most=_MOST_NICS) if key in network else None


def _count(
    table: Mapping[str, object], key: str, where: str, *, least: int = 1, most: int = _MOST_HOSTS
) -> int:
    value = table.get(key, least)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TopologyError(
            f"{where}: {key} is {str(value)[:40]!r}: expected a whole number from {least} to {most}"
        )
    return value
