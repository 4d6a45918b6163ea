"""What TensorRT allows, as one table that knows its sources."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from topology.base import InputError, Sourced, read_sourced

Version = tuple[int, ...]
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Systems that NVIDIA names for a kind of processor, and versions of CUDA."""

    systems: tuple[str, ...]
    cuda: tuple[Version, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The table. Versions are tuples, capabilities CUDA's.

    since : first version of each collective. precisions : capability that each needs.
    attention : capability, first version and types of an attention on several devices.
    groups_broken, groups_work : versions on which collectives among some ranks fail, and are right.
    uneven_gathers : whether a gather may have fewer ranks than another collective of an engine.
    excluded : features that engines of several GPUs cannot have. platforms : by processor.
    mig : whether slices of a GPU will do.
    general : first version that has every collective. nccl, nccl_all_to_all : oldest versions.
    packages, drivers : what pip installs, and the oldest driver, by CUDA's major version.
    build_layer, build_weights : s a layer, B/s of weights. overhead : B of an engine beside its
    weights. enqueue : s of one call of an engine without a graph.
    """

    first: Version
    general: Version
    newest: Version
    capability: Capability
    since: Mapping[str, Version]
    attention_capability: Capability
    attention_since: Version
    attention_types: tuple[str, ...]
    precisions: Mapping[str, Capability]
    groups_broken: tuple[Version, ...]
    groups_work: tuple[Version, ...]
    uneven_gathers: bool
    excluded: tuple[str, ...]
    platforms: Mapping[str, Platform]
    mig: bool
    nccl: Version
    nccl_all_to_all: Version
    nccl_search: tuple[str, ...]
    packages: Mapping[str, tuple[str, ...]]
    drivers: Mapping[str, Version]
    shared_memory: Sourced
    build_layer: Sourced
    build_weights: Sourced
    overhead: Sourced
    enqueue: Sourced
    sources: Mapping[str, str]

    def install(self, name: str, cuda: str = "") -> str:
        """Give the line that installs a package for a CUDA such as ``13.0``, the newest if empty.

        >>> from planner.engines.tables import allowed
        >>> allowed().install("tensorrt", "12.9")
        "pip install 'tensorrt-cu12>=11.0,<12'"
        """
        major = cuda.partition(".")[0]
        known = self.packages.get(major) or self.packages[max(self.packages)]
        return f"pip install '{next(one for one in known if one.startswith(name))}'"


def read_version(text: str) -> Version:
    """Read a version; compare as tuples.

    >>> read_version("11.2.1.2") > read_version("11.2")
    True
    """
    parts = text.strip().split(".")
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"version: got {text[:40]!r}, wanted numbers such as 11.4.1")
    return tuple(int(part) for part in parts)


def _capability(text: object) -> Capability:
    major, minor = read_version(str(text))
    return major, minor


def _texts(row: Mapping[str, object], key: str) -> tuple[str, ...]:
    return tuple(str(one) for one in cast("list[object]", row[key]))


def dotted(version: Sequence[int]) -> str:
    """Write a version or a capability.

    >>> dotted((11, 2, 1))
    '11.2.1'
    """
    return ".".join(map(str, version))


def load_allowed(text: str) -> Allowed:
    """Read the table from TOML `text`; the caller does the file I/O."""
    tables = cast("dict[str, dict[str, object]]", tomllib.loads(text))
    versions, collectives, attention = (
        tables[name] for name in ("versions", "collectives", "attention")
    )
    nccl, groups = tables["nccl"], tables["groups"]
    since = cast("dict[str, str]", collectives["since"])
    return Allowed(
        first=read_version(str(versions["first"])),
        general=read_version(str(versions["general"])),
        newest=read_version(str(versions["newest"])),
        capability=_capability(collectives["capability"]),
        since={name: read_version(version) for name, version in since.items()},
        attention_capability=_capability(attention["capability"]),
        attention_since=read_version(str(attention["since"])),
        attention_types=_texts(attention, "types"),
        precisions=_precisions(tables["precisions"]),
        groups_broken=tuple(read_version(one) for one in _texts(groups, "broken")),
        groups_work=tuple(read_version(one) for one in _texts(groups, "works")),
        uneven_gathers=bool(groups["uneven_gathers"]),
        excluded=_texts(tables["excluded"], "features"),
        platforms=_platforms(tables["platforms"]),
        mig=bool(tables["mig"]["allowed"]),
        nccl=read_version(str(nccl["minimum"])),
        nccl_all_to_all=read_version(str(nccl["all_to_all"])),
        nccl_search=_texts(nccl, "search"),
        packages=_packages(tables["packages"]),
        drivers=_drivers(tables["driver"]),
        shared_memory=_sourced(tables, "shared_memory", "minimum", "B"),
        build_layer=_sourced(tables, "build", "layer", "s"),
        build_weights=_sourced(tables, "build", "weights", "B/s"),
        overhead=_sourced(tables, "engine", "overhead", "B"),
        enqueue=_sourced(tables, "launch", "enqueue", "s"),
        sources={name: str(row["source"]) for name, row in tables.items()},
    )


def _precisions(row: Mapping[str, object]) -> dict[str, Capability]:
    return {name: _capability(value) for name, value in row.items() if name != "source"}


def _platforms(row: Mapping[str, object]) -> dict[str, Platform]:
    versions = cast("Mapping[str, list[str]]", row["cuda"])
    return {
        name: Platform(systems=_texts(row, name), cuda=tuple(map(read_version, known)))
        for name, known in versions.items()
    }


def _packages(row: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    return {name: _texts(row, name) for name in row if name != "source"}


def _drivers(row: Mapping[str, object]) -> dict[str, Version]:
    return {name: read_version(str(value)) for name, value in row.items() if name != "source"}


def _sourced(
    tables: Mapping[str, Mapping[str, object]], table: str, key: str, unit: str
) -> Sourced:
    return read_sourced(f"{table}.{key}", tables[table][key], unit, tables[table])
