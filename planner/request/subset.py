"""The machine that a request brings: which of its GPUs are used, and which one sets the pace."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType
from typing import Final

from costmodels.collectives import collective_time
from costmodels.profile import Profile
from costmodels.tables import own_profile, profile_for
from topology.base import MIB, InputError, Sourced, TopologyError, counted, format_bytes, shown
from topology.base.values import dataclass
from topology.catalogue import (
    Device,
    Fabric,
    Hardware,
    all_hardware,
    even_hosts,
    find_hardware,
)
from topology.machine import (
    SLICES,
    Gpu,
    Machine,
    Survey,
    altered,
    fabric,
    machine_of,
    mig_share,
    repeated,
    survey_of,
)

_EXHAUSTIVE_GPUS: Final = 10  # GPUs of a host up to which every subset is tried
_MEMORY_TOLERANCE: Final = 0.05  # drivers keep back as much of a memory
_PROBE: Final = 16 * MIB  # B, the all-reduce that compares subsets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subset:
    """GPUs of a machine, as many on each of its `hosts`.

    local : numbers of the GPUs in use within each host.
    """

    survey: Survey
    hosts: int
    local: tuple[int, ...]

    @property
    def machine(self) -> Machine:
        return self.survey.machine

    @property
    def gpus(self) -> int:
        return self.hosts * len(self.local)

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the GPUs in use, counted through one host, then the next."""
        host_gpus = len(self.machine.gpus)
        return tuple(host * host_gpus + seat for host in range(self.hosts) for seat in self.local)

    @property
    def chosen(self) -> tuple[Gpu, ...]:
        """GPUs in use on one host."""
        return tuple(self.machine.gpus[seat] for seat in self.local)

    def fabric(self) -> Fabric:
        """Describe the links of all GPUs in use as one group."""
        uses_all = len(self.local) == len(self.machine.gpus)
        ranks = range(self.gpus) if uses_all else self.members
        return fabric(self.machine, ranks, survey=self.survey)

    def on(self, gpus: int, nodes: int = 0) -> "Subset":
        """Take `gpus` of the machine's GPUs, the best that it has.

        Raises `TopologyError` if it has fewer, or hosts would hold unequal shares.
        """
        if gpus == self.gpus and nodes in (0, self.hosts):
            return self
        machine = self.machine
        host_gpus = len(machine.gpus)
        hosts = nodes or -(-gpus // host_gpus)
        if gpus > machine.gpu_count or hosts > machine.copies:
            wanted = f"{gpus} GPUs" + (f" on {nodes} nodes" if nodes else "")
            raise TopologyError(
                f"{machine.name}: got {wanted}, wanted at most {machine.gpu_count} on "
                f"{machine.copies}"
            )
        if gpus % hosts or gpus // hosts > host_gpus:
            raise TopologyError(
                f"{counted(gpus, 'GPU')} of {machine.name} over {counted(hosts, 'node')}: "
                f"got {gpus / hosts:g} a node, "
                f"wanted a whole number up to {host_gpus}"
            )
        return replace(self, hosts=hosts, local=best_subset(self.survey, gpus // hosts))

    def beside(self, taken: Collection[int]) -> "Subset":
        """Take as many GPUs of each host, the best of those that are not taken; enough are left."""
        free_seats = tuple(seat for seat in range(len(self.machine.gpus)) if seat not in taken)
        return replace(self, local=best_subset(self.survey, len(self.local), free_seats))

    def ruling(self, precision: str) -> Hardware:
        """Describe the GPU that all others wait for, with the least memory of any.

        Raises `InputError` if one has no tensor cores for the precision.
        """
        kinds = [find_hardware(name) for name in dict.fromkeys(map(_kind, self.chosen))]
        slowest = min(kinds, key=lambda kind: kind.device.needed_peak(precision))
        least_bandwidth = min(kind.device.memory_bandwidth.value for kind in kinds)
        bandwidth = _derived(slowest.device.memory_bandwidth, least_bandwidth)
        device = replace(slowest.device, memory_bandwidth=bandwidth)
        if self.gpus == 1 and self.chosen[0].mig:
            device = slice_device(device, self.chosen[0].slice)
        device = replace(device, memory=_derived(device.memory, min(map(_memory, self.chosen))))
        host_gpus = len(self.machine.gpus)
        return replace(slowest, device=device, gpus=host_gpus, domain=host_gpus)

    def obstacle(self) -> str:
        """Say why the GPUs in use cannot work together; empty where they can."""
        split = [gpu for gpu in self.chosen if gpu.mig]
        if split and self.gpus > 1:
            names = ", ".join(gpu.name for gpu in split[:4])
            return (
                f"{names} {'are' if len(split) > 1 else 'is'} split into MIG "
                f"slices, which have no peer access and which NCCL does not join"
            )
        if split and not mig_share(split[0].slice):
            return (
                f"{split[0].name} is split into MIG slices: got no one profile, wanted a line such "
                f"as 'MIG 1g.10gb Device 0' of nvidia-smi -L"
            )
        return ""

    def notes(self) -> tuple[str, ...]:
        """List what was assumed about the machine, and which GPU rules among different ones."""
        return (
            *(f"assumed: {line}" for line in self.machine.assumptions),
            *self._unusual_notes(),
            *(f"warning: {line}" for line in self.machine.warnings),
        )

    def _unusual_notes(self) -> Iterator[str]:
        """Say which GPU rules among several kinds, or is a slice, or has another memory."""
        kinds, smallest = sorted({_kind(gpu) for gpu in self.chosen}), min(self.chosen, key=_memory)
        memory_text = format_bytes(_memory(smallest))
        if len(kinds) > 1:
            slowest = min(kinds, key=lambda name: _speed(find_hardware(name)))
            yield (
                f"mixed GPUs ({', '.join(kinds)}): every rank waits for {slowest}, and plans must "
                f"fit the {memory_text} of {_kind(smallest)}"
            )
        gpu = self.chosen[0]
        share = mig_share(gpu.slice)
        if self.gpus == 1 and gpu.mig and share:
            yield (
                f"priced as one MIG slice {gpu.slice} of {_kind(gpu)}: {100 * share[0]:.3g} % of "
                f"its multiprocessors, {share[1] / 10**9:g} GB of its memory"
            )
        catalogue_bytes = find_hardware(_kind(smallest)).device.memory.value
        if (
            not smallest.mig
            and abs(_memory(smallest) - catalogue_bytes) >= _MEMORY_TOLERANCE * catalogue_bytes
        ):
            yield (
                f"{smallest.name} has {memory_text} of memory as the machine says, where "
                f"{_kind(smallest)} has "
                f"{format_bytes(catalogue_bytes)}"
            )


def profile_on(machine: Machine, hardware: str, named: str) -> Profile | None:
    """Take the profile that was asked for, the machine's own, or the one that ships.

    machine : this very one, as it was found. hardware : the catalogue name of its GPUs.
    """
    products = {gpu.product for gpu in machine.gpus}
    if not named and len(products) == 1:
        machine_profile = own_profile(hardware, products.pop(), len(machine.gpus))
        if machine_profile is not None:
            return machine_profile
    return profile_for(hardware, named)


def read_machine(
    source: str | Machine,
    *,
    nodes: int,
    detect: bool = False,
    hardware: str = "",
    pcie_generation: int | None = None,
    links: Mapping[str, float] = MappingProxyType({}),
) -> Subset:
    """Read the machine of a request, or look at the one this runs on.

    source : path or text of a topology, or a machine that was read. hardware : kind of its GPUs
        where the text does not say.
    nodes : copies of it, where it is one host; 0 for as many as it has.
    links : of it that are altered, as `topology.machine.altered` takes them.

    Raises `InputError` if it cannot be read, has no GPU, or does not name the kind of its GPUs.
    """
    if source and detect:
        raise InputError("detect: got a topology too, wanted one of the two")
    machine = _read(source, detect=detect, hardware=hardware, pcie_generation=pcie_generation)
    if nodes > 1 and machine.hosts == 1:
        machine = repeated(machine, nodes)
    for gpu in machine.gpus:
        _kind(gpu)
    if not machine.gpus:
        raise TopologyError(f"{machine.name}: got no GPU, wanted at least one")
    machine = altered(machine, links)
    all_seats = tuple(range(len(machine.gpus)))
    return Subset(survey=survey_of(machine), hosts=machine.copies, local=all_seats)


def usual_machine(hardware: str, gpus: int, nodes: int, links: Mapping[str, float]) -> Subset:
    """Take the usual machine of catalogue hardware, with links of its own.

    nodes : that the GPUs are on; 0 for as few as hold them.
    """
    kind = find_hardware(hardware)
    machine = machine_of(kind, nodes or even_hosts(gpus, kind.gpus))
    return read_machine(machine, nodes=nodes, links=links)


def _read(
    source: str | Machine, *, detect: bool, hardware: str, pcie_generation: int | None
) -> Machine:
    if isinstance(source, Machine):
        if hardware or pcie_generation is not None:
            raise InputError(
                "topology: got a machine that was read, wanted its hardware and pcie_generation "
                "given to read_topology"
            )
        return source
    if not isinstance(source, str):
        raise InputError(f"topology: got {shown(source)}, wanted a name or what read_topology gave")
    if source.lower() in all_hardware():
        raise InputError(f"topology: got the name {source}, wanted a file, or --hardware {source}")
    kind = find_hardware(hardware) if hardware else None
    if detect:
        from topology.readers import detect as look  # noqa: PLC0415  # needs the driver's bindings

        return look(hardware=kind, pcie_generation=pcie_generation)
    from topology.readers import read_topology  # noqa: PLC0415  # readers of XML are slow to import

    return read_topology(source, hardware=kind, pcie_generation=pcie_generation)


def _kind(gpu: Gpu) -> str:
    if gpu.hardware is None:
        cause = f"{gpu.product!r} is not in the catalogue" if gpu.product else "has no known kind"
        raise InputError(
            f"topology: {gpu.name} {cause}: say which it is (is most like) with --hardware, "
            f"such as rtx-4090 or a file that describes it (as examples/my_gpu.toml)"
        )
    return gpu.hardware


def _speed(hardware: Hardware) -> float:
    return max(rate.value for name, rate in hardware.device.peaks if name in ("bf16", "fp16"))


def _memory(gpu: Gpu) -> float:
    """Count the bytes of a GPU as the machine says, which may not be the catalogue's card."""
    return gpu.memory or find_hardware(_kind(gpu)).device.memory.value


def slice_device(device: Device, profile: str) -> Device:
    """Describe one MIG slice of a GPU: its share of everything; the GPU itself if it is unknown."""
    share = mig_share(profile)
    if share is None:
        return device
    source = f"MIG slice {profile}"
    eighths = max(1, round((SLICES + 1) * share[1] / device.memory.value))
    width = min(1.0, eighths / (SLICES + 1))

    def part(number: Sourced, fraction: float) -> Sourced:
        return Sourced(value=number.value * fraction, kind="derived", source=source)

    multiprocessors = max(1.0, device.multiprocessors.value * share[0] // 1)
    return replace(
        device,
        multiprocessors=Sourced(value=multiprocessors, kind="derived", source=source),
        memory=Sourced(value=share[1], kind="derived", source=source),
        memory_bandwidth=part(device.memory_bandwidth, width),
        l2=part(device.l2, width),
        peaks=tuple((name, part(peak, share[0])) for name, peak in device.peaks),
    )


def _derived(number: Sourced, value: float) -> Sourced:
    if value == number.value:
        return number
    return Sourced(value=value, kind="derived", source="the least of the machine's GPUs")


@lru_cache(maxsize=256)
def best_subset(
    survey: Survey, count: int, among: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Choose `count` GPUs of a host: fast ones with memory first, then those best joined.

    among : numbers of those to choose from; all where left out.

    Joined well is what an all-reduce over them says, then the sum of their pairs, then an
    all-to-all: a ring does not see how many of its links cross a socket. Every subset is tried up
    to ten GPUs, those of neighbours beyond.

    >>> from topology.machine import machine_of
    >>> best_subset(survey_of(machine_of(find_hardware("h100-nvl"))), 2)
    (0, 1)
    """
    gpus = survey.machine.gpus
    seats = tuple(range(len(gpus))) if among is None else among
    if count >= len(seats):
        return seats
    if survey.uniform and not any(gpu.mig for gpu in gpus):
        return seats[:count]
    subsets: Iterable[tuple[int, ...]] = combinations(seats, count)
    if len(seats) > _EXHAUSTIVE_GPUS:
        subsets = (seats[first : first + count] for first in range(len(seats) - count + 1))
    scores = {subset: _subset_score(survey, subset) for subset in subsets}
    best_score = max(scores.values())
    tied = [subset for subset, value in scores.items() if value == best_score]
    if len(tied) == 1 or count == 1:
        return tied[0]
    return min(tied, key=lambda subset: _collective_seconds(survey, subset, "all_to_all"))


def _collective_seconds(survey: Survey, subset: Sequence[int], op: str) -> float:
    """Give the seconds of a collective over some GPUs of a host."""
    return collective_time(op, _PROBE, fabric(survey.machine, subset, survey=survey))


def _subset_score(survey: Survey, subset: Sequence[int]) -> tuple[float, ...]:
    gpus = [survey.machine.gpus[seat] for seat in subset]
    unsliced = not any(gpu.mig for gpu in gpus)
    pace = min(_speed(find_hardware(_kind(gpu))) for gpu in gpus)
    memory = min(_memory(gpu) for gpu in gpus)
    if len(gpus) == 1:
        return unsliced, pace, memory, 0.0, 0.0
    reduce_seconds = _collective_seconds(survey, subset, "all_reduce")
    pairs = [survey.pairs.get((a.name, b.name)) for a, b in combinations(gpus, 2)]
    bandwidth_sum = sum(pair.bandwidth for pair in pairs if pair is not None)
    return unsliced, pace, memory, -reduce_seconds, bandwidth_sum
