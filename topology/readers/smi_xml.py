"""What `nvidia-smi` says of GPUs beside a matrix: its lists, its table and its XML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from topology.base import MIB, Bytes, Sourced, TopologyError
from topology.readers.reading import GpuText, Reading
from topology.readers.xml import Element

_LISTED: Final = re.compile(r"\s*GPU\s+([0-9]{1,3}):\s*(\S[^(]{0,100}?)\s*(?:\(UUID.*)?")
_LINK: Final = re.compile(
    r"\s*Link\s+[0-9]{1,2}:\s*(?:([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*GB/s|<?inactive>?)\s*"
)
_SLICE: Final = re.compile(r"\s*MIG\s+(\S{1,40})\s+Device\s+[0-9]{1,3}:.*")
_TABLE_NAME: Final = re.compile(
    r"\|\s{0,8}([0-9]{1,3})\s{1,4}(\S[^|]{0,60}?)\s{2,60}(?:On|Off|N/A|WDDM|TCC)\s*\|.*"
)
_TABLE_MIG: Final = re.compile(r"\|\s{1,80}\|\s{1,80}\|\s{1,40}Enabled\s{1,20}\|")
_TABLE_MEMORY: Final = re.compile(r"[^/]{0,120}\|[^/|]{0,60}/\s{0,12}([0-9]{1,9})\s{0,4}MiB.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """GPUs by name, and the rate of one NVLink where ``nvlink -s`` shows it."""

    gpus: tuple[GpuText, ...] = ()
    link_rate: Sourced | None = None


def read_listing(lines: Sequence[str]) -> Listing:
    r"""Read ``nvidia-smi -L``, ``nvidia-smi nvlink -s`` and the plain table out of a text.

    >>> read_listing(["GPU 0: NVIDIA RTX A6000", "\t Link 0: 14.062 GB/s"]).gpus[0].links
    1
    """
    gpus: dict[str, GpuText] = {}
    rates: set[float] = set()
    current = ""
    for line in lines:
        listed, tabled = _LISTED.fullmatch(line), _TABLE_NAME.fullmatch(line.strip())
        if listed or tabled:
            match = listed or tabled
            current = f"GPU{int(match[1])}" if match else ""
            gpu = gpus.get(current, GpuText(name=current))
            gpus[current] = replace(gpu, product=gpu.product or (match[2] if match else ""))
        elif current:
            gpus[current], rate = _detail(gpus[current], line)
            rates |= {rate} - {0.0}
    return Listing(gpus=tuple(gpus.values()), link_rate=_rate(rates))


def _detail(gpu: GpuText, line: str) -> tuple[GpuText, float]:
    """Add what a line below a GPU's name says; the second value is a link's rate in B/s."""
    link = _LINK.fullmatch(line)
    if link:
        rate = float(link[1] or 0) * 10**9
        return replace(gpu, links=(gpu.links or 0) + (rate > 0)), rate
    piece = _SLICE.fullmatch(line)
    if piece:
        return replace(gpu, mig=True, slices=(*gpu.slices, piece[1].lower())), 0.0
    if _TABLE_MIG.fullmatch(line.strip()):
        return replace(gpu, mig=True), 0.0
    memory = _TABLE_MEMORY.fullmatch(line.strip()) if line.startswith("|") else None
    if memory and gpu.memory is None:
        return replace(gpu, memory=Bytes(float(memory[1]) * MIB)), 0.0
    return gpu, 0.0


def _rate(rates: set[float]) -> Sourced | None:
    if not rates:
        return None
    return Sourced(value=min(rates), kind="measured", source="nvidia-smi nvlink -s in the text")


_MEMORY: Final = re.compile(r"([0-9]{1,9}) MiB")
_WIDTH: Final = re.compile(r"([0-9]{1,2})x")
_IDLE: Final = re.compile(r"P([89]|1[0-5])")


def read_smi(root: Element) -> Reading:
    """Read the log of ``nvidia-smi -q -x``.

    Raises
    ------
    TopologyError
        If it lists no GPU.
    """
    elements = root.all("gpu")
    if not elements:
        raise TopologyError(f"XML line {root.line}: <{root.tag}> lists no GPU")
    gpus = tuple(_gpu(index, element) for index, element in enumerate(elements))
    attached = root.at("attached_gpus")
    warnings = [line for element in elements for line in _slow(element)]
    if attached.isdecimal() and len(attached) < 5 and int(attached) != len(gpus):
        warnings.append(f"the text is cut: {len(gpus)} of {attached} GPUs")
    notes = ("nvidia-smi -q -x does not tell how GPUs are joined",) if len(gpus) > 1 else ()
    return Reading(
        source="nvidia-smi -q -x", gpus=gpus, assumptions=notes, warnings=tuple(warnings)
    )


def _gpu(index: int, element: Element) -> GpuText:
    widths = "pci/pci_gpu_link_info/link_widths"
    most = _lanes(element.at(f"{widths}/max_link_width")) or 16
    return GpuText(
        name=f"GPU{index}",
        product=element.at("product_name"),
        architecture=element.at("product_architecture"),
        memory=_memory(element),
        bus=element.attributes.get("id", element.at("pci/pci_bus_id")),
        mig=element.at("mig_mode/current_mig") == "Enabled",
        generation=_generation(element),
        lanes=_lanes(element.at(f"{widths}/current_link_width")) or most,
        most_lanes=most,
    )


def _memory(element: Element) -> Bytes | None:
    match = _MEMORY.fullmatch(element.at("fb_memory_usage/total"))
    return Bytes(float(match[1]) * MIB) if match else None


def _lanes(text: str) -> int:
    match = _WIDTH.fullmatch(text)
    return int(match[1]) if match else 0


def _generation(element: Element) -> int:
    """PCIe generation a GPU reaches under load: idle ones fall back to the first."""
    text = element.at("pci/pci_gpu_link_info/pcie_gen/max_link_gen")
    return int(text) if text in ("1", "2", "3", "4", "5", "6") else 0


def _slow(element: Element) -> list[str]:
    """Say where a busy GPU's link is slower than it could be."""
    generations = "pci/pci_gpu_link_info/pcie_gen"
    now, best = (element.at(f"{generations}/{key}") for key in ("current_link_gen", "max_link_gen"))
    device = element.at(f"{generations}/max_device_link_gen")
    name = element.attributes.get("id", "GPU")
    lines = []
    if (
        now.isdecimal()
        and best.isdecimal()
        and int(now[:2]) < int(best[:2])
        and not _is_idle(element)
    ):
        lines.append(f"{name} runs at PCIe generation {now} of {best}")
    if device.isdecimal() and best.isdecimal() and int(best[:2]) < int(device[:2]):
        lines.append(f"{name} could do PCIe generation {device}, its slot does {best}")
    return lines


def _is_idle(element: Element) -> bool:
    return bool(_IDLE.fullmatch(element.at("performance_state")))
