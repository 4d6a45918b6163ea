"""From what a text says to a machine: kinds, links and rates filled in, each guess written down."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final, cast, get_args

from topology.base import Bytes, InputError, Sourced
from topology.base.values import dataclass
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
from topology.machine import (
    Builder,
    Edge,
    Gpu,
    Machine,
    Node,
    Pair,
    cluster_of,
    components,
    concerns,
    gpu_of,
    graph_pairs,
    mig_share,
    nvlink_count,
    processor_of,
)
from topology.readers.layout import lay_out
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


def domains(reading: Reading, kind: Hardware | None = None) -> tuple[Domain, ...]:
    """Split the GPUs of a reading into NVLink domains.

    A matrix does not tell switches from direct links. More links than a GPU has, were each of its
    peers to need its own, mean switches; then a count is the smaller of what two GPUs have up.
    Between two GPUs of a kind that usually hangs on switches, so do more than half of the links
    of one: where a few GPUs are joined directly, each of three or more peers gets a part of them.

    kind : of the GPUs, if it is known.
    """
    link_counts: dict[str, dict[str, int]] = {gpu.name: {} for gpu in reading.gpus}
    joined_pairs = [
        ends
        for ends, label in reading.labels.items()
        if label.kind == "NVLINK" and link_counts.keys() >= {*ends}
    ]
    for a, b in joined_pairs:
        link_counts[a][b] = link_counts[b][a] = reading.labels[a, b].count
    islands = components(list(link_counts), joined_pairs)
    return tuple(_domain(link_counts, island, kind) for island in islands if len(island) > 1)


def _domain(
    link_counts: Mapping[str, Mapping[str, int]], island: Sequence[str], kind: Hardware | None
) -> Domain:
    links = {name: max(link_counts[name].values()) for name in island}
    regular = all(
        count == min(links[a], links[b]) for a in island for b, count in link_counts[a].items()
    )
    gpu_links = nvlink_count(kind) if kind is not None and kind.link != "pcie" else MOST_LINKS
    largest_count = max(links.values())
    usually_switched = (
        kind is not None and kind.link == "nvswitch" and largest_count * 2 > gpu_links
    )
    switched = regular and (usually_switched or largest_count * (len(island) - 1) > gpu_links)
    return Domain(gpus=tuple(island), links=links if switched else {})


def completed_labels(reading: Reading, islands: Sequence[Domain]) -> dict[tuple[str, str], Label]:
    """Label the pairs of a switched domain whose cells the text has lost."""
    return {
        (a, b): Label("NVLINK", min(domain.links[a], domain.links[b]))
        for domain in islands
        if domain.switched
        for a, b in combinations(domain.gpus, 2)
        if reading.label(a, b) is None
    }


def guess_generation(islands: Sequence[Domain], reading: Reading) -> NvlinkGeneration | None:
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
    largest_count = max(counts)
    if any(domain.switched for domain in islands):
        generations: tuple[NvlinkGeneration, ...] = ("volta", "ampere", "hopper")
        return generations[(largest_count > 6) + (largest_count > 12)]
    links_per_gpu = _links_per_gpu(reading)
    if links_per_gpu > 12:
        return "hopper"
    size = max(len(domain.gpus) for domain in islands)
    if size == 2 and largest_count in (3, 4):
        return "ga102"
    if size == 2 and largest_count == 2:
        return "turing"
    return "ampere" if links_per_gpu > 6 or largest_count == 4 else "volta"


def _links_per_gpu(reading: Reading) -> int:
    """Count the NVLinks of the GPU that shows most of them, each of its peers having its own."""
    links: Counter[str] = Counter()
    for ends, label in reading.labels.items():
        if label.kind == "NVLINK":
            links.update(dict.fromkeys(ends, label.count))
    return max(links.values())


GENERATIONS: Final = {
    "volta": 3, "turing": 3, "ampere": 4, "ada": 4, "hopper": 5, "blackwell": 5,
}  # fmt: skip
"""PCIe generation of the servers that GPUs of each kind come in."""
_CONSUMER_REFUSAL: Final = "the driver refuses it on consumer cards"
_RATE_TOLERANCE: Final = 1e-3  # a bandwidth that was not edited
_NOMINAL_TOLERANCE: Final = 0.08  # a link of 25 GB/s shows as 25 to 26.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user says beside the text.

    hardware : kind of the GPUs that the text does not name. catalogue : kinds that it may name.
    """

    name: str = "machine"
    hardware: Hardware | None = None
    pcie_generation: int | None = None
    catalogue: Mapping[str, Hardware]

    def kind(self, name: str | None) -> Hardware | None:
        """Find the hardware of a GPU: what the text tells, else what the user says."""
        named_kind = self.catalogue.get(name) if name else None
        if named_kind is None or (
            self.hardware is not None and self.hardware.device == named_kind.device
        ):
            return self.hardware
        return named_kind


def assemble(reading: Reading, choices: Choices) -> Machine:
    """Build the machine that a reading describes."""
    kinds = {
        gpu.name: choices.kind(gpu.hardware or by_product(gpu_names(), gpu.product))
        for gpu in reading.gpus
    }
    usual_labels = _usual_nvlinks(reading, kinds)
    if usual_labels:
        note = "NVSwitch between all GPUs, as in the usual server of that kind"
        notes = (*reading.assumptions, note)
        reading = replace(reading, labels={**reading.labels, **usual_labels}, assumptions=notes)
    kind = next(filter(None, kinds.values()), None)
    islands = domains(reading, kind)
    filled_labels = {**usual_labels, **completed_labels(reading, islands)}
    reading = replace(reading, labels={**reading.labels, **filled_labels})
    generation = _generation_by_rate(reading) or guess_generation(islands, reading)
    gpus = tuple(_gpu(gpu, kinds[gpu.name], generation) for gpu in reading.gpus)
    builder = Builder(generation=_pcie_generation(gpus, kinds, choices))
    nodes, edges = lay_out(reading, builder)
    switches, nvlinks = nvlink_parts(
        builder, islands, reading, _nvlink_rate(reading, kind, generation)
    )
    usual_nic = kind.nic_bandwidth if kind else None
    machine = Machine(
        name=choices.name,
        source=reading.source,
        gpus=gpus,
        nics=tuple(replace(nic, bandwidth=nic.bandwidth or usual_nic) for nic in reading.nics),
        nodes=(*nodes, *switches),
        edges=(*edges, *nvlinks),
        peers=reading.peers,
        reached=reading.reached,
        cluster=cluster_of(kind, len(gpus)) if kind else None,
        assumptions=(*reading.assumptions, *_guesses(reading, kinds, generation, builder, choices)),
        warnings=(*reading.warnings, *_degraded(reading, islands)),
    )
    return _with_pairs(_with_coherent(machine, reading, builder), reading, frozenset(filled_labels))


def _with_coherent(machine: Machine, reading: Reading, builder: Builder) -> Machine:
    """Join GPUs to their processors by the C2C links that a text gives them."""
    cpus = processor_of(machine)
    links = [
        builder.c2c(gpu.name, cpu, Sourced(value=gpu.coherent, kind="datasheet", source="JSON"))
        for gpu in reading.gpus
        if gpu.coherent is not None and (cpu := cpus[gpu.name]) is not None
    ]
    return replace(machine, edges=(*machine.edges, *links))


def _usual_nvlinks(
    reading: Reading, kinds: Mapping[str, Hardware | None]
) -> dict[tuple[str, str], Label]:
    """Label the GPUs of a kind with NVSwitches where a text shows no link at all."""
    gpus = [gpu.name for gpu in reading.gpus]
    kind = kinds[gpus[0]] if gpus else None
    if len(gpus) < 2 or kind is None or kind.link != "nvswitch":
        return {}
    labelled = {name for pair in reading.labels for name in pair} & set(gpus)
    if labelled or len(gpus) > kind.domain or len({*map(id, kinds.values())}) > 1:
        return {}
    return dict.fromkeys(combinations(gpus, 2), Label("NVLINK", nvlink_count(kind)))


def _gpu(text: GpuText, kind: Hardware | None, generation: NvlinkGeneration | None) -> Gpu:
    gpu = gpu_of(kind, text.name) if kind else _unknown_gpu(text, generation)
    profile = text.slices[0] if len(set(text.slices)) == 1 else ""
    share = mig_share(profile)
    return replace(
        gpu,
        numa=text.numa,
        product=text.product,
        memory=Bytes(share[1]) if share else text.memory or gpu.memory,
        mig=text.mig,
        slice=profile,
        bus=text.bus,
    )


def _unknown_gpu(text: GpuText, generation: NvlinkGeneration | None) -> Gpu:
    """Describe a GPU that the catalogue does not know, as far as its text and NVLinks say."""
    architecture_word = text.architecture.strip().lower().removesuffix(" lovelace")
    guess = "ampere" if generation in (None, "ga102") else generation
    architecture = cast(
        Architecture, architecture_word if architecture_word in get_args(Architecture) else guess
    )
    consumer = "GeForce" in text.product
    return Gpu(
        name=text.name,
        architecture=architecture,
        capability=86 if generation == "ga102" else capability_of(architecture),
        peer_to_peer=not consumer,
        no_peers=_CONSUMER_REFUSAL if consumer else "",
    )


def _pcie_generation(
    gpus: Sequence[Gpu], kinds: Mapping[str, Hardware | None], choices: Choices
) -> int:
    if choices.pcie_generation:
        return choices.pcie_generation
    usual_generations = [kind.pcie_generation for kind in kinds.values() if kind is not None]
    return min(usual_generations or [GENERATIONS[gpu.architecture] for gpu in gpus] or [4])


def _nvlink_rate(
    reading: Reading, kind: Hardware | None, generation: NvlinkGeneration | None
) -> Sourced:
    """Rate of one NVLink: of the kind, as the text shows it, or as guessed from the counts."""
    if kind is not None:
        return link_rates().nvlink_rate(nvlink_generation(kind.device.capability))
    if reading.link_rate is not None:
        return _nominal_rate(reading.link_rate)
    rate = link_rates().nvlink_rate(generation or "ampere")
    return Sourced(value=rate.value, kind="assumed", source=rate.source, note="GPU kind unknown")


def _generation_by_rate(reading: Reading) -> NvlinkGeneration | None:
    """Tell the generation by what one link carries, where only one carries that."""
    if reading.link_rate is None:
        return None
    rate = _nominal_rate(reading.link_rate).value
    matches = [name for name, nominal in link_rates().nvlink if nominal.value == rate]
    return cast(NvlinkGeneration, matches[0]) if len(matches) == 1 else None


def _nominal_rate(shown_rate: Sourced) -> Sourced:
    """Take a rate that nvidia-smi shows for the nominal one it is near: it counts line code in."""
    nominal_rates = {rate.value for _, rate in link_rates().nvlink}
    nearest_rate = min(nominal_rates, key=lambda value: abs(value - shown_rate.value))
    if abs(nearest_rate - shown_rate.value) > _NOMINAL_TOLERANCE * nearest_rate:
        return shown_rate
    return Sourced(value=nearest_rate, kind="derived", source=shown_rate.source)


def nvlink_parts(
    builder: Builder, islands: Sequence[Domain], reading: Reading, rate: Sourced
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Build NVSwitches and NVLinks; the switches of one domain are one part."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    for domain in islands:
        if domain.switched:
            switch = f"NVSwitch{len(nodes) or ''}"
            nodes.append(Node(name=switch, kind="nvswitch"))
            edges += [
                builder.nvlink(gpu, switch, count, rate) for gpu, count in domain.links.items()
            ]
            continue
        for a, b in combinations(domain.gpus, 2):
            label = reading.label(a, b)
            if label is not None and label.kind == "NVLINK":
                edges.append(builder.nvlink(a, b, label.count, rate))
    return tuple(nodes), tuple(edges)


def _with_pairs(machine: Machine, reading: Reading, filled: frozenset[tuple[str, str]]) -> Machine:
    """Give every two devices the label that was read, or the one the graph gives them."""
    rated_nics = {nic.name for nic in machine.nics if nic.bandwidth}
    pairs, odd_labels = [], 0
    for pair in graph_pairs(machine):
        label = reading.label(pair.a, pair.b)
        if label is None:
            pairs.append(_with_given_rate(replace(pair, read=False), reading))
            continue
        kind = pair.kind if label.kind == "NVLINK" else label.kind
        odd_labels += kind != pair.kind
        read = (pair.a, pair.b) not in filled and pair.b not in rated_nics
        pairs.append(
            _with_given_rate(replace(pair, kind=kind, count=label.count, read=read), reading)
        )
    notes = (f"{odd_labels} labels do not nest; taken as written",) if odd_labels else ()
    return replace(machine, pairs=tuple(pairs), assumptions=(*machine.assumptions, *notes))


def _with_given_rate(pair: Pair, reading: Reading) -> Pair:
    """Take the bandwidth of a pair that a text gives, where it is not that of the links."""
    given_rate = reading.rates.get((pair.a, pair.b)) or reading.rates.get((pair.b, pair.a))
    if given_rate is None:
        return pair
    same_rate = abs(given_rate.bandwidth - pair.bandwidth) <= _RATE_TOLERANCE * pair.bandwidth
    if same_rate and not given_rate.measured:
        return pair
    return replace(
        pair, bandwidth=given_rate.bandwidth, basis="measured" if given_rate.measured else "told"
    )


def _guesses(
    reading: Reading,
    kinds: Mapping[str, Hardware | None],
    generation: NvlinkGeneration | None,
    builder: Builder,
    choices: Choices,
) -> Iterator[str]:
    """Say what was taken for granted, one line each."""
    unknown_gpus = [gpu for gpu in reading.gpus if kinds[gpu.name] is None]
    if unknown_gpus:
        product = unknown_gpus[0].product
        subject = f"{product} is not in the catalogue" if product else "the text names no GPU kind"
        source = f", from its NVLink counts ({generation})" if generation else ""
        yield f"{subject}: taken as {_gpu(unknown_gpus[0], None, generation).architecture}{source}"
    if unknown_gpus and generation and reading.link_rate is None:
        rate = link_rates().nvlink_rate(generation).value / 10**9
        yield f"NVLink taken as {rate:g} GB/s a link and direction"
    if choices.pcie_generation is None and any(not gpu.generation for gpu in reading.gpus):
        yield f"PCIe generation {builder.generation} with sixteen lanes"
    known_kinds = [kind for kind in kinds.values() if kind is not None]
    if known_kinds and any(nic.bandwidth is None for nic in reading.nics):
        speed = known_kinds[0].nic_bandwidth.value / 10**9
        yield f"NICs of {speed:g} GB/s, as in the usual server of {known_kinds[0].name}"
    layout_known = reading.under or any(label.kind in RANKS for label in reading.labels.values())
    if len(reading.gpus) > 1 and not layout_known:
        yield "PCIe layout unknown: a root port for each GPU"


def _degraded(reading: Reading, islands: Sequence[Domain]) -> Iterator[str]:
    """Say which links are narrower than they could be."""
    for domain in islands:
        best = max(domain.links.values(), default=0)
        for name, count in domain.links.items():
            if count < best:
                yield f"{name} has {count} of {best} NVLinks up"
    for gpu in reading.gpus:
        if gpu.lanes < gpu.most_lanes:
            yield f"{gpu.name} runs on {gpu.lanes} of {gpu.most_lanes} PCIe lanes"


def with_concerns(machine: Machine, choices: Choices) -> Machine:
    """Add what is worrying about the machine to what was odd about the text."""
    if choices.hardware is not None and machine.gpus:
        _check_kind(machine, choices.hardware)
    return replace(machine, warnings=(*machine.warnings, *concerns(machine)))


def _check_kind(machine: Machine, hardware: Hardware) -> None:
    """Refuse a kind that the user gives where no GPU is of it, or one is of another generation."""
    kinds = {gpu.hardware: gpu for gpu in reversed(machine.gpus)}
    matching_gpu, first_gpu = kinds.get(hardware.name), machine.gpus[0]
    if matching_gpu is None:
        raise InputError(
            f"hardware: got {hardware.name}, but {machine.name} says that {first_gpu.name} is "
            f"{str(first_gpu.product or first_gpu.hardware)[:60]}: "
            f"wanted {' or '.join(map(str, kinds))}, or none"
        )
    if matching_gpu.architecture != architecture_of(matching_gpu.capability):
        raise InputError(
            f"hardware: got {hardware.name}, of compute capability "
            f"{'.'.join(map(str, hardware.device.compute_capability))}, but {machine.name} says "
            f"that {matching_gpu.name} has {matching_gpu.capability / 10:g}"
        )
