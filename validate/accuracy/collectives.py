"""Measured collectives: of published tables, and of other people's nccl-tests logs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal, cast, get_args

from costmodels.collectives import Calibration, NcclSettings, Op, collective_time, read_op
from topology.base import KIB, MIB, BytesPerSecond, InputError
from topology.base.values import dataclass
from topology.catalogue import (
    Fabric,
    Hardware,
    Network,
    NetworkKind,
    pcie_bandwidth,
)
from validate.accuracy.figures import Figure, Row, read_table

SMALL: Final = 64 * KIB
_DEFAULT_SETTINGS: Final = NcclSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFigure(Figure):
    """A measured collective: seconds for `message_bytes` as nccl-tests counts them."""

    op: Op
    fabric: Fabric
    message_bytes: float
    algorithm: str = "auto"
    launch: str = "graph"
    settings: NcclSettings = _DEFAULT_SETTINGS

    def predicted(self, calibration: Calibration = None) -> float:
        """Price the collective, in seconds."""
        return collective_time(
            self.op,
            self.message_bytes,
            self.fabric,
            algorithm=self.algorithm,
            launch=self.launch,
            settings=self.settings,
            calibration=calibration,
        )


def read_figures(text: str, hardware: Mapping[str, Hardware]) -> list[CollectiveFigure]:
    """Read published tables from CSV; `hardware` gives the links of a name."""

    def fabric(row: Row) -> Fabric:
        gpus, nodes = int(row["gpus"]), int(row["nodes"])
        return hardware[row["hardware"]].fabric(gpus, nodes if nodes > 1 else 0)

    def settings(row: Row) -> NcclSettings:
        return NcclSettings(launcher=_launcher(row), engine=row["engine"])

    return _collective_figures(text, "collectives", fabric, settings)


def read_log_figures(text: str, hardware: Mapping[str, Hardware]) -> list[CollectiveFigure]:
    """Read rows of nccl-tests' logs from CSV, with the links of each.

    link : what replaces the catalogue's, such as the mesh of a node of four GPUs; empty for none.
    pcie_generation, peer_to_peer, crosses_sockets : of GPUs on PCIe; empty for the catalogue's.
    uplink : "shared" where all GPUs of a node hang on one PCIe switch, empty for none.
    network, nics, nic_bandwidth_bytes_per_s : of one node, empty on one.
    """

    def settings(row: Row) -> NcclSettings:
        major, _, minor = row["nccl"].partition(".")
        return NcclSettings(launcher=_launcher(row), nccl=(int(major), int(minor)))

    return _collective_figures(
        text,
        "nccl-tests",
        lambda row: _fabric(row, hardware[row["hardware"]]),
        settings,
        source=lambda row: f"{row['table']}: {row['source']}",
    )


def _collective_figures(
    text: str,
    name: str,
    fabric: Callable[[Row], Fabric],
    settings: Callable[[Row], NcclSettings],
    **derived_fields: Callable[[Row], object],
) -> list[CollectiveFigure]:
    return read_table(
        CollectiveFigure, text, name,
        op=lambda row: read_op(row["op"]), fabric=fabric, settings=settings, **derived_fields,
    )  # fmt: skip


def _launcher(row: Row) -> Literal["single", "process"]:
    return "single" if row["launcher"] == "single" else "process"


def _fabric(row: Row, node: Hardware) -> Fabric:
    """Build the links of a log: those of the catalogue, changed as its row says."""
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    if node.domain > node.gpus:  # NVLink over hosts: its racks are the nodes
        catalogue_fabric = node.fabric(gpus)
    else:
        catalogue_fabric = replace(
            node.fabric(min(node.gpus, gpus // nodes), 1), ranks=gpus, nodes=nodes
        )
    fabric = _node_fabric(row, catalogue_fabric)
    if not row["network"]:
        return fabric
    if row["network"] not in get_args(NetworkKind):
        raise InputError(f"figure of table {row['table']}: unknown network {row['network']!r}")
    nics = int(row["nics"])
    bandwidth = BytesPerSecond(nics * float(row["nic_bandwidth_bytes_per_s"]))
    kind = cast(NetworkKind, row["network"])
    return fabric.over_network(Network(kind=kind, bandwidth=bandwidth, nics=nics))


def _node_fabric(row: Row, fabric: Fabric) -> Fabric:
    if row["link"]:
        mesh = row["link"] == "nvlink"
        fabric = fabric.over_nvlink() if mesh else fabric.over_pcie(fabric.bandwidth)
    if row["pcie_generation"]:
        generation = int(row["pcie_generation"])
        slot = BytesPerSecond(pcie_bandwidth(generation))
        fabric = replace(fabric, pcie_generation=generation, bandwidth=slot)
    if row["peer_to_peer"]:
        fabric = fabric.with_peers(on=row["peer_to_peer"] == "yes")
    if row["crosses_sockets"]:
        fabric = fabric.across_sockets(on=row["crosses_sockets"] == "yes")
    return fabric.behind_one_uplink() if row["uplink"] == "shared" else fabric


def groups(figures: Iterable[CollectiveFigure]) -> dict[str, list[float]]:
    """Give the errors of figures: one node by link, several nodes, kernels of serving engines."""
    figures = list(figures)
    one_node = [f for f in figures if f.fabric.nodes == 1 and f.algorithm == "auto"]
    figures_by_group: dict[str, list[CollectiveFigure]] = {}
    for link in ("NVLink", "PCIe"):
        link_figures = [f for f in one_node if (f.fabric.link == "pcie") == (link == "PCIe")]
        large = [f for f in link_figures if f.message_bytes >= MIB]
        figures_by_group[f"collectives, one node, {link}, 1 MiB and up"] = large
        figures_by_group[f"collectives, one node, {link}, all sizes"] = link_figures
    figures_by_group["collectives, several nodes"] = [f for f in figures if f.fabric.nodes > 1]
    figures_by_group["all-reduce of serving engines"] = [
        f for f in figures if f.fabric.nodes == 1 and f.algorithm != "auto"
    ]
    return {name: [f.error for f in group] for name, group in figures_by_group.items()}


def log_groups(figures: Iterable[CollectiveFigure]) -> dict[str, list[float]]:
    """Give the errors of figures of logs: one node, small and larger, several nodes, forced."""
    figures = list(figures)
    one_node = [f for f in figures if f.fabric.nodes == 1]
    figures_by_group = {
        "one node, up to 64 KiB": [f for f in one_node if f.message_bytes <= SMALL],
        "one node, larger": [f for f in one_node if f.message_bytes > SMALL],
        "several nodes": [f for f in figures if f.fabric.nodes > 1],
        "forced algorithm": [f for f in figures if f.algorithm != "auto"],
    }
    return {
        f"nccl-tests logs, {name}": [f.error for f in group]
        for name, group in figures_by_group.items()
    }
