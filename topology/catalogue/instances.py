"""Rented machines, and the network that each brings."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

from topology.base import CatalogueError, Sourced, read_sourced
from topology.catalogue.fabric import NetworkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A type of machine by its name. total : bytes per second and direction of all NICs."""

    name: str
    network: NetworkKind
    nics: int
    total: Sourced


def load_instances(text: str) -> tuple[Instance, ...]:
    """Read types of machines from TOML `text`, one table for those with one kind of network.

    Raises
    ------
    CatalogueError
        If a network is unknown, or a number has no source.
    """
    return tuple(
        _instance(name, entry, table)
        for table in tomllib.loads(text).values()
        for name, entry in table.items()
        if name not in ("kind", "source", "network")
    )


def _instance(name: str, entry: Mapping[str, object], table: Mapping[str, object]) -> Instance:
    network = table.get("network")
    if network not in get_args(NetworkKind):
        raise CatalogueError(f"{name}: got the network {network!r}, wanted a known kind")
    return Instance(
        name=name,
        network=cast(NetworkKind, network),
        nics=int(str(entry["nics"])),
        total=read_sourced(f"{name}.total", entry["total"], "B/s", table),
    )


def named_instance(known: tuple[Instance, ...], text: str) -> Instance | None:
    """Find the type of machine that a text names; None where it names none.

    >>> table = load_instances('''
    ... [aws]
    ... kind = "datasheet"
    ... source = "an example"
    ... network = "efa"
    ... "p4d.24xlarge" = { nics = 4, total = "50 GB/s" }
    ... ''')
    >>> named_instance(table, "NET/OFI Running on p4d.24xlarge platform").nics
    4
    >>> named_instance(table, "p4de.24xlarge") is None
    True
    """
    lowered = text.lower()
    near = [instance for instance in known if instance.name in lowered]
    if not near:
        return None
    words = set(re.findall(r"[a-z0-9]+(?:[.-][a-z0-9]+)+", lowered))
    return next((instance for instance in near if instance.name in words), None)
