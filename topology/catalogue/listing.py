"""The hardware of the catalogue as a list: what there is to name, and what each name stands for."""

from collections.abc import Iterable
from typing import Final

from topology.base import format_bytes
from topology.catalogue.hardware import Hardware

HEADERS: Final = (
    "name", "GPUs", "device", "memory", "its GB/s", "links, GB/s", "NICs, GB/s", "precisions",
)  # fmt: skip
_SPOKEN: Final = {"nvswitch": "NVSwitch", "nvlink": "NVLink", "pcie": "PCIe"}


def roster(known: Iterable[Hardware]) -> list[dict[str, object]]:
    """Describe hardware as plain data, one entry a name.

    >>> from topology.catalogue.tables import find_hardware
    >>> entry, = roster([find_hardware("h100-sxm")])
    >>> entry["gpus"], entry["link"], entry["precisions"]
    (8, 'nvswitch', ['bf16', 'fp16', 'fp8', 'int8'])
    """
    return [
        {
            "name": one.name,
            "gpus": one.gpus,
            "domain": one.domain,
            "device": one.device.name,
            "architecture": one.device.architecture,
            "memory_bytes": round(one.device.memory.value),
            "memory_bandwidth_bytes_per_s": one.device.memory_bandwidth.value,
            "link": one.link,
            "link_bandwidth_bytes_per_s": one.link_bandwidth.value,
            "peer_to_peer": one.peer_to_peer,
            "nics": one.nics,
            "nic_bandwidth_bytes_per_s": one.nic_bandwidth.value,
            "network": one.network,
            "precisions": [name for name, _ in one.device.peaks],
        }
        for one in known
    ]


def roster_rows(known: Iterable[Hardware]) -> list[list[str]]:
    """Write the cells of the list, a row a name, under `HEADERS`."""
    return [
        [
            one.name,
            str(one.gpus),
            one.device.architecture,
            format_bytes(one.device.memory.value),
            _giga(one.device.memory_bandwidth.value),
            f"{_joined(one)}, {_giga(one.link_bandwidth.value)}",
            f"{one.nics} x {_giga(one.nic_bandwidth.value)} {one.network}",
            " ".join(name for name, _ in one.device.peaks),
        ]
        for one in known
    ]


def _joined(one: Hardware) -> str:
    """Say what joins GPUs, and how many where that is not the host."""
    few = f" of {one.domain}" if one.domain != one.gpus else ""
    alone = "" if one.peer_to_peer or one.link != "pcie" else " (host)"
    return f"{_SPOKEN[one.link]}{few}{alone}"


def _giga(rate: float) -> str:
    return f"{rate / 10**9:.4g}"
