"""What TensorRT allows, as one table that knows its sources, and why it cannot run a plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from costmodels.formats import FORMATS
from planner.engines.reading import Table, Version, read_fields, read_version
from planner.models import Model
from planner.request.plan import Plan
from topology.base import InputError, Sourced
from topology.base.values import dataclass
from topology.catalogue import Hardware

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
    attention : capabilities, from one to below another, first version and types of an attention on
    several devices.
    released : versions that there are. fusing_broken : those on which collectives must be kept
    apart from what stands around them. behind_right : first on which attention behind one does not
    make its engine one of a single device. groups_broken, groups_work : versions on which
    collectives among some ranks fail, and are right.
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
    attention_below: Capability
    attention_since: Version
    attention_types: tuple[str, ...]
    precisions: Mapping[str, Capability]
    fusing_broken: tuple[Version, ...]
    behind_right: Version
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

        Raises `InputError` if there is no such version.

        >>> from planner.engines.tables import allowed
        >>> dotted(allowed().running("11.2.1.2"))
        '11.2.1.2'
        """
        if not version:
            return self.newest
        requested = read_version(version)
        exists = any(
            is_of(requested, released) or is_of(released, requested) for released in self.released
        )
        if requested >= self.first and not exists:
            nearest_older = max(
                (released for released in self.released if released < requested), default=self.first
            )
            raise InputError(
                f"tensorrt_version: got {version[:40]}, wanted one that there is, such as "
                f"{dotted(nearest_older)}"
            )
        return requested

    def fuses(self, runs: Version) -> bool:
        """Whether a version builds collectives into what stands around them, and loses them."""
        return any(is_of(runs, bad) for bad in self.fusing_broken)

    def spreads_attention(self, capability: Capability) -> bool:
        """Whether a GPU has attention over keys and values that stay on their ranks.

        >>> from planner.engines.tables import allowed
        >>> [allowed().spreads_attention(has) for has in ((9, 0), (10, 3), (12, 0))]
        [False, True, False]
        """
        return self.attention_capability <= capability < self.attention_below

    @property
    def attention_span(self) -> str:
        """Capabilities that have it, as words."""
        return f"{dotted(self.attention_capability)} to below {dotted(self.attention_below)}"

    def install(self, name: str, cuda: str = "") -> str:
        """Give the line that installs a package for a CUDA such as ``13.0``, the newest if empty.

        >>> from planner.engines.tables import allowed
        >>> allowed().install("tensorrt", "12.9")
        "pip install 'tensorrt-cu12>=11.0,<12'"
        """
        major = cuda.partition(".")[0]
        packages = self.packages.get(major) or self.packages[max(self.packages)]
        return f"pip install '{next(package for package in packages if package.startswith(name))}'"

    def obstacles(
        self, plan: Plan, hardware: Hardware, version: str = "", *, precision: str = "bf16"
    ) -> Iterator[str]:
        """Yield what keeps TensorRT from running a plan, one clause each; nothing where it can.

        version : such as ``11.2.1.2``; the newest known where left out.

        Raises `InputError` if there is no such version.
        """
        runs = self.running(version)
        yield from self.messages(plan)
        yield from self._hardware(plan, hardware, precision)
        yield from self._version(plan, runs)
        if not self.uneven_gathers:
            yield from self._uneven_axes(plan)

    def messages(self, plan: Plan) -> Iterator[str]:
        """Yield what stands against a plan on any GPU: axes that TensorRT has no layers for."""
        yield from (self.lacks[axis] for axis, _ in plan.axes if axis in self.lacks)
        if plan.patch > 1:
            yield self.lacks["patch"]
        if plan.fsdp > 1:
            yield self.lacks["fsdp"]
        if plan.ep > 1 and plan.degree("adp") == 1:
            yield self.lacks["ep"]

    def _hardware(self, plan: Plan, hardware: Hardware, precision: str) -> Iterator[str]:
        capability = hardware.device.compute_capability
        if (
            any(axis in (*self.meets, "cfg") for axis, _ in plan.axes)
            and capability < self.capability
        ):
            yield (
                f"collectives need compute capability {dotted(self.capability)}, "
                f"and {hardware.name} has {dotted(capability)}"
            )
        if not FORMATS[precision].multiplied:
            yield f"networks here hold no weights alone in {precision}"
        needed = self.precisions.get(precision, (0, 0))
        if capability < needed:
            yield f"{precision} needs compute capability {dotted(needed)}, got {dotted(capability)}"

    def _version(self, plan: Plan, runs: Version) -> Iterator[str]:
        for axis, degree in plan.axes:
            operation = self.meets.get(axis, "")
            if operation and runs < self.since[operation]:
                first_version = dotted(self.since[operation])
                yield f"{axis}{degree} needs {operation}, which TensorRT has since {first_version}"
        if plan.degree("cfg") > 1 and runs < self.first:
            yield f"cfg{plan.degree('cfg')} needs TensorRT {dotted(self.first)}"
        if self._inner(plan) > 1 and self.sums_wrong(runs):
            yield (
                f"{plan}: collectives among some ranks of an engine give wrong sums on TensorRT "
                f"{dotted(runs)} (pytorch/TensorRT issue 4380)"
            )

    def _uneven_axes(self, plan: Plan) -> Iterator[str]:
        """Yield axes along which fewer ranks gather than meet along another inside an engine."""
        inner_degrees = {axis: degree for axis, degree in plan.axes if axis in self.meets}
        widest = max(inner_degrees.values(), default=1)
        for axis in self.meets:
            if self.meets[axis] != "all_reduce" and 1 < inner_degrees.get(axis, 1) < widest:
                yield (
                    f"{axis}{inner_degrees[axis]} gathers among {inner_degrees[axis]} ranks in "
                    "an engine with "
                    f"collectives of {widest}, which TensorRT's builder refuses"
                )

    def cautions(self, model: Model, plan: Plan, version: str = "") -> Iterator[str]:
        """Yield what to watch with a plan that TensorRT can run, and the way round."""
        runs = self.running(version)
        if self.unproven(plan, version):
            yield (
                "collectives among some ranks of an engine are unproven on TensorRT "
                f"{dotted(runs)}: they gave wrong sums on {dotted(self.groups_broken[0])}"
            )
        if self._inner(plan):
            yield from self.faults(runs)
        if plan.degree("ulysses") > 1:
            yield f"all-to-all needs NCCL {dotted(self.nccl_all_to_all)} or newer"
        if any(tower.ffn and tower.ffn.experts for block in model.blocks for tower in block.towers):
            yield "a mixture of experts is built so that every expert takes every token"

    def faults(self, runs: Version) -> Iterator[str]:
        """Yield what a version does wrong in engines with collectives, and the way round."""
        name = f"TensorRT {dotted(runs)}"
        if self.fuses(runs):
            yield (
                f"{name} builds collectives into what stands around them and may skip them "
                f"(pytorch/TensorRT issue 4381): --tensorrt-version {dotted(runs)} casts to 32 "
                "bits around each, and prices it"
            )
        if runs < self.behind_right:
            yield (
                f"{name} may take an engine with attention behind a collective for one of a "
                "single device (pytorch/TensorRT pull request 4388), and its run ends: wanted "
                f"{dotted(self.behind_right)} or newer"
            )
        if self.sums_wrong(runs):
            yield (
                f"{name} gives wrong sums of some ranks of an engine (pytorch/TensorRT issue "
                "4380): wanted plans with one axis beside cfg and dp"
            )

    def sums_wrong(self, runs: Version) -> bool:
        """Whether collectives among some ranks of an engine fail on a version."""
        return any(is_of(runs, bad) for bad in self.groups_broken)

    def unproven(self, plan: Plan, version: str = "") -> bool:
        """Whether nobody has told that collectives among some ranks of its engines are right."""
        runs = self.running(version)
        known_versions = [*self.groups_broken, *self.groups_work]
        return self._inner(plan) > 1 and not any(is_of(runs, other) for other in known_versions)

    def _inner(self, plan: Plan) -> int:
        return sum(axis in self.meets for axis, _ in plan.axes)


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


def layers(model: Model) -> Iterator[str]:
    """Yield what of a model is written in no layers of TensorRT, whatever the plan and the GPU."""
    if any(tower.latent is not None for tower in model.towers):
        yield "multi-head latent attention is written in no layers of TensorRT"
    if any(tower.recurrence is not None for tower in model.towers):
        yield "recurrences are written in no layers of TensorRT"


def load_allowed(tables: Mapping[str, Any]) -> Allowed:
    """Read the table.

    A section is one field, or its keys are; numbers have the kind and the source of their section.
    """
    names, values = {entry.name for entry in fields(Allowed)}, dict[str, object]()
    for name, section in tables.items():
        rows = {key: value for key, value in section.items() if key not in ("source", "kind")}
        section_values = {name: rows} if name in names else rows
        values |= {
            key: _sourced_value(value, section)
            for key, value in section_values.items()
            if key in names
        }
    sources = {name: str(section["source"]) for name, section in tables.items()}
    return read_fields(Allowed, "tensorrt", {**values, "sources": sources})


def _sourced_value(value: object, section: Table) -> object:
    """Give a quantity of a section the kind and the source of it."""
    if "kind" not in section and not (isinstance(value, Mapping) and "value" in value):
        return value
    row = value if isinstance(value, Mapping) else {"value": value}
    return {**{key: section[key] for key in ("kind", "source") if key in section}, **row}
