"""Which GPU or rented machine is meant, from how drivers, the PCI bus and people name it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from topology.base import CatalogueError, Sourced, read_choice, read_sourced
from topology.base.values import dataclass
from topology.catalogue.fabric import NetworkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    """The PCI device numbers and product names of one catalogue entry.

    spoken : shorter names that people write, for want of a product name.
    """

    hardware: str
    pci: tuple[str, ...]
    products: tuple[str, ...]
    spoken: tuple[str, ...] = ()


def load_names(tables: Mapping[str, Any]) -> tuple[GpuName, ...]:
    """Read the table of names."""
    rows = tables.get("gpu", [])
    if not rows:
        raise CatalogueError("GPU names: expected [[gpu]] tables, got none")
    return tuple(
        GpuName(
            hardware=str(row["hardware"]),
            pci=tuple(row["pci"]),
            products=tuple(row["products"]),
            spoken=tuple(row.get("spoken", ())),
        )
        for row in rows
    )


def by_product(names: tuple[GpuName, ...], product: str) -> str | None:
    """Find the hardware name of a product as nvidia-smi prints it, or people write it, or None.

    >>> one = {"hardware": "h200-sxm", "pci": ["0x2335"], "products": ["H200"]}
    >>> other = {"hardware": "h200-nvl", "pci": ["0x233b"], "products": ["H200 NVL"]}
    >>> table = load_names({"gpu": [one, other]})
    >>> by_product(table, "NVIDIA H200"), by_product(table, "NVIDIA H200 NVL")
    ('h200-sxm', 'h200-nvl')
    >>> by_product(table, "NVIDIA H20") is None
    True
    """
    words = _words(product)
    return _longest_match(
        words, [(entry.hardware, entry.products) for entry in names]
    ) or _longest_match(words, [(entry.hardware, entry.spoken) for entry in names])


def _longest_match(words: str, table: Sequence[tuple[str, Sequence[str]]]) -> str | None:
    """Find the hardware of the longest name that is part of some words."""
    matches = [
        (len(pattern), hardware)
        for hardware, names in table
        for pattern in map(_words, names)
        if f" {pattern} " in f" {words} " and _same_board(words, pattern)
    ]
    return max(matches)[1] if matches else None


def by_device(names: tuple[GpuName, ...], device: str) -> str | None:
    """Find the hardware name of a PCI device number such as ``0x2330``, or None."""
    number = device.lower()
    return next((entry.hardware for entry in names if number in entry.pci), None)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def _same_board(words: str, pattern: str) -> bool:
    """Keep laptop parts and sister models ("RTX 3090 Ti") from passing for the board itself."""
    other_models = {"ti", "super", "laptop", "mobile", "d", "max"}
    return not other_models & (set(words.split()) - set(pattern.split())) or "rtx pro" in pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A type of machine by its name. total : bytes per second and direction of all NICs."""

    name: str
    network: NetworkKind
    nics: int
    total: Sourced


def load_instances(tables: Mapping[str, Any]) -> tuple[Instance, ...]:
    """Read types of machines, one table for those with one kind of network."""
    instances = []
    for table in tables.values():
        for name in (key for key in table if key not in ("kind", "source", "network")):
            word = read_choice(f"{name}.network", table.get("network"), get_args(NetworkKind))
            network, nics = cast(NetworkKind, word), int(str(table[name]["nics"]))
            total = read_sourced(f"{name}.total", table[name]["total"], "B/s", table)
            instances.append(Instance(name=name, network=network, nics=nics, total=total))
    return tuple(instances)


def named_instance(instances: tuple[Instance, ...], text: str) -> Instance | None:
    """Find the type of machine that a text names; None where it names none.

    >>> aws = {"kind": "datasheet", "source": "an example", "network": "efa"}
    >>> table = load_instances({"aws": aws | {"p4d.24xlarge": {"nics": 4, "total": "50 GB/s"}}})
    >>> named_instance(table, "NET/OFI Running on p4d.24xlarge platform").nics
    4
    >>> named_instance(table, "p4de.24xlarge") is None
    True
    """
    lowered = text.lower()
    candidates = [instance for instance in instances if instance.name in lowered]
    if not candidates:
        return None
    words = set(re.findall(r"[a-z0-9]+(?:[.-][a-z0-9]+)+", lowered))
    return next((instance for instance in candidates if instance.name in words), None)
