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
    [[measured]]
    op = "all_to_all"              # or all_reduce: bus bandwidth of nccl-tests at large sizes
    gpus = 8                       # the first of a host; all of them where left out
    bus_bandwidth = "6.1 GB/s"

    [rack]                         # where NVLink spans hosts, as in NVL72
    hosts = 18
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar, cast, get_args

from topology.base import (
    BytesPerSecond,
    InputError,
    Sourced,
    TopologyError,
    parse_rate,
    toml_of,
    unknown,
)
from topology.base.values import dataclass
from topology.catalogue import Hardware, NetworkKind, Paced
from topology.machine import (
    MOST_HOSTS,
    Machine,
    Reached,
    assumed_network,
    assumed_ports,
    machine_of,
    usual_ports,
    with_ports,
)

Form = TypeVar("Form")
_MOST_NICS: Final = 256
_TOP_KEYS: Final = {"name", "hosts", "hardware", "topology", "network", "rack", "measured"}
_NETWORK_KEYS: Final = {
    "kind", "nics", "nic_bandwidth", "rails", "hosts_per_leaf", "oversubscription",
}  # fmt: skip
_MEASURED_FORM: Final = "expected a pair of GPUs or a label, and a bandwidth such as 13.2 GB/s"
_REACHED_FORM: Final = "expected op, all_reduce or all_to_all, and a bus_bandwidth such as 6.1 GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredRate:
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
    measured: tuple[_MeasuredRate, ...] = ()
    reached: tuple[Reached, ...] = ()


def read_cluster(text: str) -> ClusterText:
    """Read a cluster file."""
    try:
        table = toml_of(text)
    except InputError as error:
        raise TopologyError(f"TOML: {error}") from None
    _check_keys(table, _TOP_KEYS, "cluster")
    network, rack = (_entry(table, key, dict, f"a table [{key}]") for key in ("network", "rack"))
    _check_keys(network or {}, _NETWORK_KEYS, "network")
    _check_keys(rack or {}, {"hosts"}, "rack")
    if ("hardware" in table) == ("topology" in table):
        raise TopologyError("cluster: expected either hardware or topology")
    rows = table.get("measured", [])
    if not isinstance(rows, list):
        raise TopologyError(f"measured is {str(rows)[:40]!r}: {_MEASURED_FORM}")
    return ClusterText(
        name=str(table.get("name", "cluster"))[:100],
        hosts=_count(table, "hosts", "cluster"),
        hardware=_entry(table, "hardware", str, "text"),
        topology=_entry(table, "topology", str, "text"),
        network=network or {},
        rack_hosts=_count(rack, "hosts", "rack") if rack else 0,
        measured=tuple(map(_read_measured, (row for row in rows if not _is_reached(row)))),
        reached=tuple(map(_read_reached, filter(_is_reached, rows))),
    )


def build_cluster(cluster_text: ClusterText, host: Machine) -> Machine:
    """Repeat `host` as a cluster file says."""
    network = cluster_text.network
    base = host.cluster or assumed_network()
    kind = str(network.get("kind", base.kind))
    if kind not in get_args(NetworkKind):
        raise unknown("network", kind, get_args(NetworkKind))
    nics = _nic_count(network, "nics")
    speed = _bandwidth(network)
    ports = nics or usual_ports(host)
    hosts_per_leaf = _count(network, "hosts_per_leaf", "network", least=0)
    oversubscription = network.get("oversubscription", 1.0)
    if not isinstance(oversubscription, int | float) or not 1 <= oversubscription <= 1000:
        raise TopologyError(
            f"network: oversubscription is {oversubscription!r}: expected 1 to 1000"
        )
    cluster = replace(
        base,
        kind=cast(NetworkKind, kind),
        nic_bandwidth=speed or base.nic_bandwidth,
        nics=ports,
        rails=min(ports, _nic_count(network, "rails") or base.rails),
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=float(oversubscription),
        domain_hosts=cluster_text.rack_hosts or base.domain_hosts,
    )
    return replace(
        _with_measured(with_ports(host, nics, speed), cluster_text.measured),
        reached=tuple(_with_gpu_count(reached, host) for reached in cluster_text.reached),
        name=cluster_text.name,
        copies=cluster_text.hosts,
        cluster=cluster,
        assumptions=(*host.assumptions, *(() if nics else assumed_ports(host, cluster))),
    )


def host_of(cluster_text: ClusterText, catalogue: Mapping[str, Hardware]) -> Machine:
    """Build the host that a cluster file names, of hardware that the catalogue has."""
    name = (cluster_text.hardware or "").lower()
    if name not in catalogue:
        raise unknown("hardware", name, catalogue)
    return machine_of(catalogue[name])


def _is_reached(row: object) -> bool:
    """Tell whether a table ``[[measured]]`` is of a collective, not of pairs."""
    return isinstance(row, dict) and bool(row.keys() & {"op", "gpus", "bus_bandwidth"})


def _read_reached(row: Mapping[str, object]) -> Reached:
    """Read what a collective reached; 0 GPUs stand for all of a host."""
    op, where = row.get("op"), f"measured: {str(row)[:80]}"
    if row.keys() - {"op", "gpus", "bus_bandwidth"} or op not in get_args(Paced):
        raise TopologyError(f"{where}: {_REACHED_FORM}")
    bus = _rate(row.get("bus_bandwidth", ""), where)
    gpus = _count(row, "gpus", "measured", least=2) if "gpus" in row else 0
    return Reached(op=cast(Paced, op), gpus=gpus, bus=bus)


def _read_measured(row: object) -> _MeasuredRate:
    table = row if isinstance(row, dict) else {}
    pair, label = table.get("pair", []), table.get("label", "")
    names_pair = isinstance(pair, list) and len({*map(str, pair)}) == 2
    where = f"measured: {str(row)[:80]}"
    if table.keys() - {"pair", "label", "bandwidth"} or names_pair == bool(label):
        raise TopologyError(f"{where}: {_MEASURED_FORM}")
    bandwidth = _rate(table.get("bandwidth", ""), where)
    ends = frozenset(map(str, pair if names_pair else ()))
    return _MeasuredRate(pair=ends, label=str(label).upper(), bandwidth=bandwidth)


def _with_measured(host: Machine, tables: Sequence[_MeasuredRate]) -> Machine:
    """Give pairs of GPUs what copies between them reached; names stand above labels."""
    gpus = {gpu.name for gpu in host.gpus}
    pairs = {frozenset((pair.a, pair.b)): pair for pair in host.pairs}
    labels = {ends: pair.label for ends, pair in pairs.items() if ends <= gpus}
    for table in sorted(tables, key=lambda table: len(table.pair)):
        matches = [ends for ends in labels if ends == table.pair or table.label == labels[ends]]
        if not matches:
            raise TopologyError(
                f"measured: {table.label or ' and '.join(sorted(table.pair))}: {host.name} has no "
                f"such pair of GPUs, it has {', '.join(sorted({*labels.values()}))}"
            )
        for ends in matches:
            pairs[ends] = replace(pairs[ends], bandwidth=table.bandwidth, basis="measured")
    return replace(host, pairs=tuple(pairs.values()))


def _with_gpu_count(reached: Reached, host: Machine) -> Reached:
    """Take all GPUs of a host where a table names no number, and refuse more than it has."""
    host_gpus = len(host.gpus)
    if not 2 <= (gpus := reached.gpus or host_gpus) <= host_gpus:
        raise TopologyError(f"measured: {reached.op} of {gpus} GPUs: {host.name} has {host_gpus}")
    return replace(reached, gpus=gpus)


def _bandwidth(network: Mapping[str, object]) -> Sourced | None:
    """Read the speed of a NIC: bytes, or bits as people say it."""
    text = network.get("nic_bandwidth")
    if text is None:
        return None
    value = _rate(text, "network: nic_bandwidth")
    return Sourced(value=value, kind="datasheet", source="cluster file")


def _rate(text: object, where: str) -> BytesPerSecond:
    try:
        return parse_rate(str(text))
    except InputError as error:
        raise TopologyError(f"{where}: {error}") from None


def _entry(table: Mapping[str, object], key: str, form: type[Form], wanted: str) -> Form | None:
    value = table.get(key)
    if value is not None and not isinstance(value, form):
        raise TopologyError(f"cluster: {key} is {str(value)[:40]!r}: expected {wanted}")
    return value


def _check_keys(table: Mapping[str, object], keys: set[str], where: str) -> None:
    unknown_keys = sorted(set(table) - keys)
    if unknown_keys:
        raise unknown(f"key in {where}", unknown_keys[0], sorted(keys))


def _nic_count(network: Mapping[str, object], key: str) -> int | None:
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
