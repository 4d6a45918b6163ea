"""From what a text says to a machine: kinds, links and rates filled in, each guess written down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from topology.base import Bytes, BytesPerSecond, InputError, Sourced
from topology.catalogue import (
    Architecture,
    Hardware,
    NvlinkGeneration,
    architecture_of,
    by_product,
    capability_of,
    gpu_names,
    link_rates,
    nvlink_generation,
)
from topology.machine.build import Builder, cluster_of, nvlink_count
from topology.machine.concerns import concerns
from topology.machine.graph import Edge, Gpu, Machine, Nic, Node, Pair, PairBasis
from topology.machine.routes import adjacency, best_paths, path_kind
from topology.readers.layout import Ports, lay_out
from topology.readers.reading import RANKS, GpuText, Label, Reading

MOST_LINKS: Final = 18  # NVLinks of one GPU, up to Blackwell


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """GPUs that NVLink joins. links : of each GPU to the switches; empty where links are direct."""

    gpus: tuple[str, ...]
    links: Mapping[str, int]

    @property
    def switched(self) -> bool:
        """Tell whether NVSwitches stand between the GPUs."""
        return bool(self.links)


def domains(reading: Reading, *, switched: bool | None = None) -> tuple[Domain, ...]:
    """Split the GPUs of a reading into NVLink domains.

    A matrix does not tell switches from direct links. More links than a GPU has, were each of its
    peers to need its own, mean switches; then a count is the smaller of what two GPUs have up.

    switched : what the kind of GPU says, if it is known.
    """
    gpus = [gpu.name for gpu in reading.gpus]
    counts = {pair: label.count for pair, label in reading.labels.items() if label.kind == "NVLINK"}
    near: dict[str, dict[str, int]] = {name: {} for name in gpus}
    for (a, b), count in counts.items():
        if a in near and b in near:
            near[a][b] = near[b][a] = count
    return tuple(
        _domain(near, island, switched=switched) for island in _islands(near) if len(island) > 1
    )


def _domain(
    near: Mapping[str, Mapping[str, int]], island: Sequence[str], *, switched: bool | None
) -> Domain:
    links = {name: max(near[name].values()) for name in island}
    regular = all(count == min(links[a], links[b]) for a in island for b, count in near[a].items())
    crowded = max(links.values()) * (len(island) - 1) > MOST_LINKS
    behind = regular and (crowded if switched is None else switched or crowded)
    return Domain(gpus=tuple(island), links=links if behind else {})


def _islands(near: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    left = dict.fromkeys(near)
    islands = []
    while left:
        start = next(iter(left))
        island, queue = {start}, [start]
        while queue:
            new = [name for name in near[queue.pop()] if name not in island]
            island.update(new)
            queue.extend(new)
        islands.append([name for name in near if name in island])
        for name in island:
            del left[name]
    return islands


def completed(reading: Reading, found: Sequence[Domain]) -> dict[tuple[str, str], Label]:
    """Label the pairs of a switched domain whose cells the text has lost."""
    return {
        (a, b): Label("NVLINK", min(domain.links[a], domain.links[b]))
        for domain in found
        if domain.switched
        for index, a in enumerate(domain.gpus)
        for b in domain.gpus[index + 1 :]
        if reading.label(a, b) is None
    }


def guess_generation(found: Sequence[Domain], reading: Reading) -> NvlinkGeneration | None:
    """Guess the NVLink generation of an unnamed GPU from its counts; None without NVLink.

    >>> from topology.readers.reading import GpuText
    >>> gpus = tuple(GpuText(name=f"GPU{i}") for i in range(2))
    >>> pair = Reading(source="", gpus=gpus, labels={("GPU0", "GPU1"): Label("NVLINK", 4)})
    >>> guess_generation(domains(pair), pair)
    'ga102'
    """
    counts = {label.count for label in reading.labels.values() if label.kind == "NVLINK"}
    if not counts:
        return None
    most = max(counts)
    if any(domain.switched for domain in found):
        generations: tuple[NvlinkGeneration, ...] = ("volta", "ampere", "hopper")
        return generations[(most > 6) + (most > 12)]
    if most > 12:
        return "hopper"
    size = max(len(domain.gpus) for domain in found)
    if size == 2 and most in (3, 4):
        return "ga102"
    if size == 2 and most == 2:
        return "turing"
    return "ampere" if most in (4, 8, 12) else "volta"


def architecture_for(generation: NvlinkGeneration | None) -> Architecture:
    """Name the architecture that an unnamed GPU is priced as."""
    return "ampere" if generation is None or generation == "ga102" else generation


_GENERATIONS: Final = {
    "volta": 3, "turing": 3, "ampere": 4, "ada": 4, "hopper": 5, "blackwell": 5,
}  # fmt: skip
_CONSUMER: Final = "the driver refuses it on consumer cards"
_ALIKE: Final = 1e-3  # a bandwidth that was not edited
_NEAR: Final = 0.08  # a link of 25 GB/s shows as 25 to 26.6
_SPOKEN: Final = {
    "volta": "volta", "turing": "turing", "ampere": "ampere", "ada": "ada",
    "ada lovelace": "ada", "hopper": "hopper", "blackwell": "blackwell",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user says beside the text.

    hardware : kind of the GPUs that the text does not name. catalogue : kinds that it may name.
    """

    name: str = "machine"
    hardware: Hardware | None = None
    pcie_generation: int | None = None
    catalogue: Mapping[str, Hardware]

    def kind(self, told: str | None) -> Hardware | None:
        """Find the hardware of a GPU: what the text tells, else what the user says."""
        known = self.catalogue.get(told) if told else None
        if known is None or (self.hardware is not None and self.hardware.device == known.device):
            return self.hardware
        return known


def assemble(reading: Reading, choices: Choices) -> Machine:
    """Build the machine that a reading describes."""
    kinds = {
        gpu.name: choices.kind(gpu.hardware or by_product(gpu_names(), gpu.product))
        for gpu in reading.gpus
    }
    usual = _usual_nvlinks(reading, kinds)
    if usual:
        note = "NVSwitch between all GPUs, as in the usual server of that kind"
        notes = (*reading.assumptions, note)
        reading = replace(reading, labels={**reading.labels, **usual}, assumptions=notes)
    known = next((kind for kind in kinds.values() if kind is not None), None)
    found = domains(reading, switched=_switched(known))
    filled = {**usual, **completed(reading, found)}
    reading = replace(reading, labels={**reading.labels, **filled})
    generation = _by_rate(reading) or guess_generation(found, reading)
    gpus = tuple(_gpu(gpu, kinds[gpu.name], generation) for gpu in reading.gpus)
    builder = Builder(generation=_pcie_generation(gpus, kinds, choices))
    nodes, edges = lay_out(reading, builder, _ports(reading))
    switches, nvlinks = nvlink_parts(builder, found, reading, _rate_of(reading, kinds, generation))
    machine = Machine(
        name=choices.name,
        source=reading.source,
        gpus=gpus,
        nics=_nics(reading, known),
        nodes=(*nodes, *switches),
        edges=(*edges, *nvlinks),
        peers=reading.peers,
        cluster=cluster_of(known) if known else None,
        assumptions=(*reading.assumptions, *_guesses(reading, kinds, generation, builder, choices)),
        warnings=(*reading.warnings, *_degraded(reading, found)),
    )
    return _with_pairs(machine, reading, frozenset(filled))


def _switched(kind: Hardware | None) -> bool | None:
    return None if kind is None or kind.link == "pcie" else kind.link == "nvswitch"


def _usual_nvlinks(
    reading: Reading, kinds: Mapping[str, Hardware | None]
) -> dict[tuple[str, str], Label]:
    """Label the GPUs of a kind with NVSwitches where a text shows no link at all."""
    gpus = [gpu.name for gpu in reading.gpus]
    kind = kinds[gpus[0]] if gpus else None
    if len(gpus) < 2 or kind is None or kind.link != "nvswitch":
        return {}
    told = {name for pair in reading.labels for name in pair} & set(gpus)
    if told or len(gpus) > kind.domain or len({*map(id, kinds.values())}) > 1:
        return {}
    label = Label("NVLINK", nvlink_count(kind))
    return {(a, b): label for i, a in enumerate(gpus) for b in gpus[i + 1 :]}


def _gpu(gpu: GpuText, kind: Hardware | None, generation: NvlinkGeneration | None) -> Gpu:
    spoken = _SPOKEN.get(gpu.architecture.strip().lower())
    if kind is not None:
        architecture: Architecture = kind.device.architecture
        major, minor = kind.device.compute_capability
        capability = major * 10 + minor
    else:
        architecture = cast(Architecture, spoken or architecture_for(generation))
        capability = 86 if generation == "ga102" else capability_of(architecture)
    memory = gpu.memory or (Bytes(kind.device.memory.value) if kind else None)
    return Gpu(
        name=gpu.name,
        numa=gpu.numa,
        hardware=kind.name if kind else None,
        product=gpu.product,
        architecture=architecture,
        capability=capability,
        memory=memory,
        peer_to_peer=kind.peer_to_peer if kind else "GeForce" not in gpu.product,
        no_peers=_no_peers(gpu, kind),
        mig=gpu.mig,
        slice=gpu.slices[0] if len(set(gpu.slices)) == 1 else "",
        bus=gpu.bus,
    )


def _no_peers(gpu: GpuText, kind: Hardware | None) -> str:
    if kind is not None:
        return kind.no_peers
    return _CONSUMER if "GeForce" in gpu.product else ""


def _pcie_generation(
    gpus: Sequence[Gpu], kinds: Mapping[str, Hardware | None], choices: Choices
) -> int:
    if choices.pcie_generation:
        return choices.pcie_generation
    said = [kind.pcie_generation for kind in kinds.values() if kind is not None]
    guessed = [_GENERATIONS[gpu.architecture] for gpu in gpus]
    return min(said or guessed or [4])


def _ports(reading: Reading) -> Ports:
    return Ports(
        lanes={gpu.name: gpu.lanes for gpu in reading.gpus},
        generations={gpu.name: gpu.generation for gpu in reading.gpus},
    )


def _nics(reading: Reading, kind: Hardware | None) -> tuple[Nic, ...]:
    bandwidth = kind.nic_bandwidth if kind else None
    return tuple(
        Nic(name=nic.name, device=nic.device, numa=nic.numa, bandwidth=nic.bandwidth or bandwidth)
        for nic in reading.nics
    )


def _rate_of(
    reading: Reading, kinds: Mapping[str, Hardware | None], generation: NvlinkGeneration | None
) -> Sourced:
    """Rate of one NVLink: of the kind, as the text shows it, or as guessed from the counts."""
    kind = next((kind for kind in kinds.values() if kind is not None), None)
    if kind is not None:
        major, minor = kind.device.compute_capability
        return link_rates().nvlink_rate(nvlink_generation(major * 10 + minor))
    if reading.link_rate is not None:
        return _nominal(reading.link_rate)
    rate = link_rates().nvlink_rate(generation or "ampere")
    return Sourced(value=rate.value, kind="assumed", source=rate.source, note="GPU kind unknown")


def _by_rate(reading: Reading) -> NvlinkGeneration | None:
    """Tell the generation by what one link carries, where only one carries that."""
    if reading.link_rate is None:
        return None
    rate = _nominal(reading.link_rate).value
    found = [name for name, known in link_rates().nvlink if known.value == rate]
    return cast(NvlinkGeneration, found[0]) if len(found) == 1 else None


def _nominal(shown: Sourced) -> Sourced:
    """Take a rate that nvidia-smi shows for the nominal one it is near: it counts line code in."""
    known = {rate.value for _, rate in link_rates().nvlink}
    near = min(known, key=lambda value: abs(value - shown.value))
    if abs(near - shown.value) > _NEAR * near:
        return shown
    return Sourced(value=near, kind="derived", source=shown.source)


def nvlink_parts(
    builder: Builder, found: Sequence[Domain], reading: Reading, rate: Sourced
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Build NVSwitches and NVLinks; the switches of one domain are one part."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    for domain in found:
        if domain.switched:
            switch = f"NVSwitch{len(nodes) or ''}"
            nodes.append(Node(name=switch, kind="nvswitch"))
            edges += [
                builder.nvlink(gpu, switch, count, rate) for gpu, count in domain.links.items()
            ]
            continue
        for index, a in enumerate(domain.gpus):
            for b in domain.gpus[index + 1 :]:
                label = reading.label(a, b)
                if label is not None and label.kind == "NVLINK":
                    edges.append(builder.nvlink(a, b, label.count, rate))
    return tuple(nodes), tuple(edges)


def _with_pairs(machine: Machine, reading: Reading, filled: frozenset[tuple[str, str]]) -> Machine:
    """Give every two devices the label that was read, or the one the graph gives them."""
    graph = adjacency(machine)
    ports = {nic.name: nic.bandwidth.value for nic in machine.nics if nic.bandwidth}
    gpus = [gpu.name for gpu in machine.gpus]
    others = [nic.name for nic in machine.nics]
    pairs: list[Pair] = []
    odd = 0
    for index, a in enumerate(gpus):
        paths = best_paths(graph, a)
        for b in (*gpus[index + 1 :], *others):
            label = reading.label(a, b)
            kind = path_kind(graph, paths[b])
            odd += label is not None and label.kind not in ("NVLINK", kind)
            count = label.count if label is not None else 1
            width = min(graph.bandwidth(paths[b]), ports.get(b, float("inf")))
            pairs.append(
                Pair(
                    a=a,
                    b=b,
                    kind=kind if label is None or label.kind == "NVLINK" else label.kind,
                    count=count,
                    bandwidth=BytesPerSecond(width),
                    read=label is not None and (a, b) not in filled and b not in ports,
                )
            )
    pairs = [_as_told(pair, reading) for pair in pairs]
    notes = (f"{odd} labels do not nest; taken as written",) if odd else ()
    return replace(machine, pairs=tuple(pairs), assumptions=(*machine.assumptions, *notes))


def _as_told(pair: Pair, reading: Reading) -> Pair:
    """Take the bandwidth of a pair that a text gives, where it is not that of the links."""
    told = reading.told.get((pair.a, pair.b)) or reading.told.get((pair.b, pair.a))
    if told is None:
        return pair
    alike = abs(told.bandwidth - pair.bandwidth) <= _ALIKE * pair.bandwidth
    if alike and not told.measured:
        return pair
    basis: PairBasis = "measured" if told.measured else "told"
    return replace(pair, bandwidth=told.bandwidth, basis=basis)


def _guesses(
    reading: Reading,
    kinds: Mapping[str, Hardware | None],
    generation: NvlinkGeneration | None,
    builder: Builder,
    choices: Choices,
) -> Iterator[str]:
    """Say what was taken for granted, one line each."""
    unknown = [gpu for gpu in reading.gpus if kinds[gpu.name] is None]
    if unknown:
        product = unknown[0].product
        what = f"{product} is not in the catalogue" if product else "the text names no GPU kind"
        told = f", from its NVLink counts ({generation})" if generation else ""
        yield f"{what}: taken as {_gpu(unknown[0], None, generation).architecture}{told}"
    if unknown and generation and reading.link_rate is None:
        rate = link_rates().nvlink_rate(generation).value / 10**9
        yield f"NVLink taken as {rate:g} GB/s a link and direction"
    if choices.pcie_generation is None and any(not gpu.generation for gpu in reading.gpus):
        yield f"PCIe generation {builder.generation} with sixteen lanes"
    rated = [kind for kind in kinds.values() if kind is not None]
    if rated and any(nic.bandwidth is None for nic in reading.nics):
        speed = rated[0].nic_bandwidth.value / 10**9
        yield f"NICs of {speed:g} GB/s, as in the usual server of {rated[0].name}"
    if len(reading.gpus) > 1 and not _layout_told(reading):
        yield "PCIe layout unknown: a root port for each GPU"


def _layout_told(reading: Reading) -> bool:
    return bool(reading.under) or any(label.kind in RANKS for label in reading.labels.values())


def _degraded(reading: Reading, found: Sequence[Domain]) -> Iterator[str]:
    """Say which links are narrower than they could be."""
    for domain in found:
        best = max(domain.links.values(), default=0)
        for name, count in domain.links.items():
            if count < best:
                yield f"{name} has {count} of {best} NVLinks up"
    for gpu in reading.gpus:
        if gpu.lanes < gpu.most_lanes:
            yield f"{gpu.name} runs on {gpu.lanes} of {gpu.most_lanes} PCIe lanes"


def finished(machine: Machine, choices: Choices) -> Machine:
    """Add what is worrying about the machine to what was odd about the text.

    Raises
    ------
    InputError
        If the GPUs are not of the kind that the user says they are.
    """
    if choices.hardware is not None:
        _agreed(machine, choices.hardware)
    return replace(machine, warnings=(*machine.warnings, *concerns(machine)))


def _agreed(machine: Machine, hardware: Hardware) -> None:
    """Check that a kind which the user gives is that of a GPU, and of its generation."""
    kinds = {gpu.hardware: gpu for gpu in reversed(machine.gpus)}
    own = kinds.get(hardware.name)
    if own is None and machine.gpus:
        first = machine.gpus[0]
        what = f"{first.product or first.hardware}"
        raise InputError(
            f"hardware: got {hardware.name}, but {machine.name} says that {first.name} is "
            f"{what[:60]}: wanted {' or '.join(map(str, kinds))}, or none"
        )
    if own is not None and own.architecture != architecture_of(own.capability):
        raise InputError(
            f"hardware: got {hardware.name}, of compute capability "
            f"{'.'.join(map(str, hardware.device.compute_capability))}, but {machine.name} says "
            f"that {own.name} has {own.capability / 10:g}"
        )
