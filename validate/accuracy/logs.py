"""How far modelled collectives are from nccl-tests outputs of other people's machines."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, cast, get_args

import numpy as np

from costmodels.collectives import Settings
from costmodels.collectives.operations import read_op
from topology.base import KIB, BytesPerSecond, InputError
from topology.catalogue import (
    Fabric,
    Hardware,
    LinkKind,
    Network,
    NetworkKind,
    behind_one_uplink,
    pcie_bandwidth,
)
from validate.accuracy.collectives import Figure
from validate.accuracy.kernels import Score, summary
from validate.fit.collectives import Measurement

COLUMNS: Final = (
    "table", "hardware", "op", "gpus", "nodes", "link", "pcie_generation", "peer_to_peer",
    "crosses_sockets", "uplink", "network", "nics", "nic_bandwidth_bytes_per_s", "nccl", "launcher",
    "algorithm", "message_bytes", "seconds", "source",
)  # fmt: skip
SMALL: Final = 64 * KIB


def read_figures(text: str, hardware: Mapping[str, Hardware]) -> list[Figure]:
    """Read a CSV `text` with `COLUMNS`.

    link : what replaces the catalogue's, such as the mesh of a node of four GPUs; empty for none.
    pcie_generation, peer_to_peer, crosses_sockets : of GPUs on PCIe; empty for the catalogue's.
    uplink : "shared" where all GPUs of a node hang on one PCIe switch, empty for none.
    network, nics, nic_bandwidth_bytes_per_s : of one node, empty on one.

    Raises
    ------
    InputError
        If a column is missing, or a row has no source.
    """
    table = csv.DictReader(text.splitlines())
    missing = set(COLUMNS) - set(table.fieldnames or ())
    if missing:
        raise InputError(f"figures of nccl-tests: missing columns {sorted(missing)}")
    return [_figure(row, hardware) for row in table]


def _figure(row: Mapping[str, str], hardware: Mapping[str, Hardware]) -> Figure:
    if not row["source"].strip():
        raise InputError(f"figure of table {row['table']}: no source")
    major, _, minor = row["nccl"].partition(".")
    return Figure(
        measured=Measurement(
            op=read_op(row["op"]),
            fabric=fabric_of(row, hardware[row["hardware"]]),
            message_bytes=float(row["message_bytes"]),
            time=float(row["seconds"]),
        ),
        algorithm=row["algorithm"],
        settings=Settings(
            nccl=(int(major), int(minor)),
            launcher="single" if row["launcher"] == "single" else "process",
        ),
        source=f"{row['table']}: {row['source']}",
    )


def fabric_of(row: Mapping[str, str], node: Hardware) -> Fabric:
    """Build the links of a table: those of the catalogue, changed as its row says."""
    gpus, nodes = int(row["gpus"]), int(row["nodes"])
    if node.domain > node.gpus:  # NVLink over hosts: its racks are the nodes
        whole = node.fabric(gpus)
    else:
        whole = replace(node.fabric(min(node.gpus, gpus // nodes), 1), ranks=gpus, nodes=nodes)
    links = _links(row, whole)
    if not row["network"]:
        return links
    if row["network"] not in get_args(NetworkKind):
        raise InputError(f"figure of table {row['table']}: unknown network {row['network']!r}")
    nics = int(row["nics"])
    bandwidth = BytesPerSecond(nics * float(row["nic_bandwidth_bytes_per_s"]))
    kind = cast(NetworkKind, row["network"])
    return replace(links, network=Network(kind=kind, bandwidth=bandwidth, nics=nics))


def _links(row: Mapping[str, str], whole: Fabric) -> Fabric:
    if row["link"]:
        whole = replace(whole, link=cast(LinkKind, row["link"]), multicast=False)
    if row["pcie_generation"]:
        generation = int(row["pcie_generation"])
        slot = BytesPerSecond(pcie_bandwidth(generation))
        whole = replace(whole, pcie_generation=generation, bandwidth=slot)
    for flag in ("peer_to_peer", "crosses_sockets"):
        if row[flag]:
            whole = replace(whole, **{flag: row[flag] == "yes"})  # type: ignore[arg-type]
    return behind_one_uplink(whole) if row["uplink"] == "shared" else whole


def score(figures: Iterable[Figure]) -> list[Score]:
    """Compare figures with the model: one node, small and larger, several nodes, forced."""
    found = list(figures)
    one = [f for f in found if f.measured.fabric.nodes == 1]
    groups = {
        "nccl-tests logs, one node, up to 64 KiB": [f for f in one if _small(f)],
        "nccl-tests logs, one node, larger": [f for f in one if not _small(f)],
        "nccl-tests logs, several nodes": [f for f in found if f.measured.fabric.nodes > 1],
        "nccl-tests logs, forced algorithm": [f for f in found if f.algorithm != "auto"],
    }
    return [
        summary((name,), np.array([f.error for f in chosen]))
        for name, chosen in groups.items()
        if chosen
    ]


def score_unseen(figures: Iterable[Figure]) -> Score:
    """Compare figures of logs that were found later, and that nothing was fitted to."""
    errors = np.array([figure.error for figure in figures])
    return summary(("nccl-tests logs, in no fit",), errors)


def _small(figure: Figure) -> bool:
    return figure.measured.message_bytes <= SMALL
