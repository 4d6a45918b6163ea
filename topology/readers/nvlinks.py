"""What NVLink counts between GPUs mean: switches or direct links, and of which generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topology.catalogue import Architecture, NvlinkGeneration
from topology.readers.reading import Label, Reading

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
        return _switched(most)
    if most > 12:
        return "hopper"
    size = max(len(domain.gpus) for domain in found)
    if size == 2 and most in (3, 4):
        return "ga102"
    if size == 2 and most == 2:
        return "turing"
    return "ampere" if most in (4, 8, 12) else "volta"


def _switched(links: int) -> NvlinkGeneration:
    if links > 12:
        return "hopper"
    return "ampere" if links > 6 else "volta"


def architecture_for(generation: NvlinkGeneration | None) -> Architecture:
    """Name the architecture that an unnamed GPU is priced as."""
    return "ampere" if generation is None or generation == "ga102" else generation
