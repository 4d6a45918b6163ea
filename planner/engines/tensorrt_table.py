"""What TensorRT allows, as one table that knows its sources."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from planner.engines.reading import Table, Version, read_fields, read_version
from topology.base import InputError, Sourced

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Systems that NVIDIA names for a kind of processor, and versions of CUDA."""

    systems: tuple[str, ...]
    cuda: tuple[Version, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The table. Versions are tuples, capabilities CUDA's.

    lacks : why it has no axis. meets : the collective that ranks of an axis meet in, inside an
    engine. since : first version of each collective. precisions : capability that each needs.
    attention : capability, first version and types of an attention on several devices.
    released : versions that there are. fusing_broken : those on which collectives must be kept
    apart from what stands around them. groups_broken, groups_work : versions on which collectives
    among some ranks fail, and are right.
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
    released: tuple[Version, ...]
    capability: Capability
    lacks: Mapping[str, str]
    meets: Mapping[str, str]
    since: Mapping[str, Version]
    attention_capability: Capability
    attention_since: Version
    attention_types: tuple[str, ...]
    precisions: Mapping[str, Capability]
    fusing_broken: tuple[Version, ...]
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
    shared_memory: Sourced = field(metadata={"unit": "B"})
    build_layer: Sourced = field(metadata={"unit": "s"})
    build_weights: Sourced = field(metadata={"unit": "B/s"})
    overhead: Sourced = field(metadata={"unit": "B"})
    enqueue: Sourced = field(metadata={"unit": "s"})
    sources: Mapping[str, str]

    def running(self, version: str) -> Version:
        """Read the version that a request names; the newest where it names none.

        Raises
        ------
        InputError
            If there is no such version.

        >>> from planner.engines.tables import allowed
        >>> dotted(allowed().running("11.2.1.2"))
        '11.2.1.2'
        """
        if not version:
            return self.newest
        runs = read_version(version)
        exists = any(is_of(runs, known) or is_of(known, runs) for known in self.released)
        if runs >= self.first and not exists:
            near = max((known for known in self.released if known < runs), default=self.first)
            raise InputError(
                f"tensorrt_version: got {version[:40]}, wanted one that there is, such as "
                f"{dotted(near)}"
            )
        return runs

    def fuses(self, runs: Version) -> bool:
        """Whether a version builds collectives into what stands around them, and loses them."""
        return any(is_of(runs, bad) for bad in self.fusing_broken)

    def install(self, name: str, cuda: str = "") -> str:
        """Give the line that installs a package for a CUDA such as ``13.0``, the newest if empty.

        >>> from planner.engines.tables import allowed
        >>> allowed().install("tensorrt", "12.9")
        "pip install 'tensorrt-cu12>=11.0,<12'"
        """
        major = cuda.partition(".")[0]
        packages = self.packages.get(major) or self.packages[max(self.packages)]
        return f"pip install '{next(package for package in packages if package.startswith(name))}'"


def dotted(version: Sequence[int]) -> str:
    """Write a version or a capability.

    >>> dotted((11, 2, 1))
    '11.2.1'
    """
    return ".".join(map(str, version))


def is_of(runs: Version, other: Version) -> bool:
    """Whether a version is one of those that another names, as far as that is told.

    >>> is_of((11, 2, 1, 2), (11, 2))
    True
    """
    return runs[: len(other)] == other


def load_allowed(text: str) -> Allowed:
    """Read the table from TOML `text`; the caller does the file I/O.

    A section is one field, or its keys are; numbers have the kind and the source of their section.
    """
    tables = tomllib.loads(text)
    names, values = {entry.name for entry in fields(Allowed)}, dict[str, object]()
    for name, section in tables.items():
        rows = {key: value for key, value in section.items() if key not in ("source", "kind")}
        named = {name: rows} if name in names else rows
        values |= {key: _owned(value, section) for key, value in named.items() if key in names}
    sources = {name: str(section["source"]) for name, section in tables.items()}
    return read_fields(Allowed, "tensorrt", {**values, "sources": sources})


def _owned(value: object, section: Table) -> object:
    """Give a quantity of a section the kind and the source of it."""
    if "kind" not in section and not (isinstance(value, Mapping) and "value" in value):
        return value
    row = value if isinstance(value, Mapping) else {"value": value}
    return {**{key: section[key] for key in ("kind", "source") if key in section}, **row}
