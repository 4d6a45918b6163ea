"""From what a text says to a machine: kinds, links and rates filled in, each guess written down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from topology.base import Bytes, BytesPerSecond, Sourced
from topology.catalogue import (
    Architecture,
    Hardware,
    NvlinkGeneration,
    by_product,
    capability_of,
    gpu_names,
    link_rates,
    nvlink_generation,
)
from topology.machine.build import Builder, times
from topology.machine.graph import Edge, Gpu, Machine, Nic, Node, Pair, PairBasis
from topology.machine.node import cluster_of, nvlink_count
from topology.machine.pairs import best_paths
from topology.machine.routes import adjacency, path_kind
from topology.readers.layout import Ports, lay_out
from topology.readers.nvlinks import (
    Domain,
    architecture_for,
    completed,
    domains,
    guess_generation,
)
from topology.readers.reading import RANKS, GpuText, Label, Reading

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
    builder = Builder(rates=link_rates(), generation=_pcie_generation(gpus, kinds, choices))
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
    label = Label("NVLINK", nvlink_count(kind, link_rates()))
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
                builder.nvlink(gpu, switch, count, rate, switch=True)
                for gpu, count in domain.links.items()
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
        rate = times(builder.rates.nvlink_rate(generation), 1).value / 10**9
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
