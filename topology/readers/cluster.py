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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast, get_args

from topology.base import (
    BytesPerSecond,
    InputError,
    Sourced,
    TopologyError,
    parse_rate,
    unknown,
)
from topology.catalogue import Hardware, NetworkKind
from topology.machine import MOST_HOSTS, Machine, Pair, assumed_network, machine_of, with_ports

_MOST_NICS: Final = 256
_TOP: Final = {"name", "hosts", "hardware", "topology", "network", "rack", "measured"}
_NETWORK: Final = {
    "kind", "nics", "nic_bandwidth", "rails", "hosts_per_leaf", "oversubscription",
}  # fmt: skip
_WANTED: Final = "expected a pair of GPUs or a label, and a bandwidth such as 13.2 GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One table ``[[measured]]``: bytes a second of a pair of GPUs, or of all with a label."""

    pair: frozenset[str]
    label: str
    bandwidth: BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterText:
    """A cluster file: how many hosts of what, what was measured, its network table as written."""

    name: str
    hosts: int
    hardware: str | None
    topology: str | None
    network: Mapping[str, object]
    rack_hosts: int
    measured: tuple[_Measured, ...] = ()


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
        measured=_measured_tables(table.get("measured", [])),
    )


def build_cluster(cluster_text: ClusterText, host: Machine) -> Machine:
    """Repeat `host` as a cluster file says.

    Raises
    ------
    TopologyError
        If the network table holds a value that cannot be.
    """
    network = cluster_text.network
    base = host.cluster or assumed_network()
    kind = str(network.get("kind", base.kind))
    if kind not in get_args(NetworkKind):
        raise unknown("network", kind, get_args(NetworkKind))
    nics = _nics(network, "nics")
    bandwidth = _bandwidth(network) or base.nic_bandwidth
    ports = nics or len(host.usable_nics) or 1
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
        domain_hosts=cluster_text.rack_hosts or base.domain_hosts,
    )
    speed = bandwidth if "nic_bandwidth" in network else None
    return replace(
        _with_measured(with_ports(host, nics, speed), cluster_text.measured),
        name=cluster_text.name,
        copies=cluster_text.hosts,
        cluster=cluster,
    )


def host_of(cluster_text: ClusterText, catalogue: Mapping[str, Hardware]) -> Machine:
    """Build the host that a cluster file names.

    Raises
    ------
    TopologyError
        If the catalogue has no such hardware.
    """
    name = (cluster_text.hardware or "").lower()
    if name not in catalogue:
        raise unknown("hardware", name, catalogue)
    return machine_of(catalogue[name])


def _measured_tables(rows: object) -> tuple[_Measured, ...]:
    """Read the tables ``[[measured]]`` of a file."""
    if not isinstance(rows, list):
        raise TopologyError(f"measured is {str(rows)[:40]!r}: {_WANTED}")
    return tuple(map(_measured, rows))


def _measured(row: object) -> _Measured:
    table = row if isinstance(row, dict) else {}
    pair, label = table.get("pair", []), table.get("label", "")
    named = isinstance(pair, list) and len({*map(str, pair)}) == 2
    if table.keys() - {"pair", "label", "bandwidth"} or named == bool(label):
        raise TopologyError(f"measured: {str(row)[:80]}: {_WANTED}")
    try:
        bandwidth = parse_rate(str(table.get("bandwidth", "")))
    except InputError as error:
        raise TopologyError(f"measured: {str(row)[:80]}: {error}") from None
    ends = frozenset(map(str, pair)) if named else frozenset[str]()
    return _Measured(pair=ends, label=str(label).upper(), bandwidth=bandwidth)


def _with_measured(host: Machine, tables: Sequence[_Measured]) -> Machine:
    """Give pairs of GPUs the bandwidth that copies between them reached; names stand above labels.

    Raises
    ------
    TopologyError
        If the host has no such pair or label.
    """
    gpus = {gpu.name for gpu in host.gpus}
    pairs = {frozenset((pair.a, pair.b)): pair for pair in host.pairs if {pair.a, pair.b} <= gpus}
    bandwidths: dict[frozenset[str], BytesPerSecond] = {}
    for table in sorted(tables, key=lambda table: len(table.pair)):
        matches = [
            ends for ends, pair in pairs.items() if ends == table.pair or table.label == pair.label
        ]
        if not matches:
            labels = sorted({pair.label for pair in pairs.values()})
            raise TopologyError(
                f"measured: {table.label or ' and '.join(sorted(table.pair))}: {host.name} has no "
                f"such pair of GPUs, it has {', '.join(labels)}"
            )
        bandwidths |= dict.fromkeys(matches, table.bandwidth)
    return replace(host, pairs=tuple(_as_measured(pair, bandwidths) for pair in host.pairs))


def _as_measured(pair: Pair, bandwidths: Mapping[frozenset[str], BytesPerSecond]) -> Pair:
    bandwidth = bandwidths.get(frozenset((pair.a, pair.b)))
    return pair if bandwidth is None else replace(pair, bandwidth=bandwidth, basis="measured")


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


def _only(table: Mapping[str, object], keys: set[str], where: str) -> None:
    extra = sorted(set(table) - keys)
    if extra:
        raise unknown(f"key in {where}", extra[0], sorted(keys))


def _nics(network: Mapping[str, object], key: str) -> int | None:
    return _count(network, key, "network", most=_MOST_NICS) if key in network else None


def _count(
    table: Mapping[str, object], key: str, where: str, *, least: int = 1, most: int = MOST_HOSTS
) -> int:
    value = table.get(key, least)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TopologyError(
            f"{where}: {key} is {str(value)[:40]!r}: expected a whole number from {least} to {most}"
        )
    return value
