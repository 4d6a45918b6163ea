"""The XML of `nvidia-smi -q -x`: GPUs with their memory and PCIe links, but not what joins them."""

import re
from typing import Final

from topology.base import MIB, Bytes, TopologyError
from topology.readers.reading import GpuText, Reading
from topology.readers.xml import Element

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
    found = root.all("gpu")
    if not found:
        raise TopologyError(f"XML line {root.line}: <{root.tag}> lists no GPU")
    gpus = tuple(_gpu(index, element) for index, element in enumerate(found))
    said = root.at("attached_gpus")
    warnings = [line for element in found for line in _slow(element)]
    if said.isdecimal() and len(said) < 5 and int(said) != len(gpus):
        warnings.append(f"the text is cut: {len(gpus)} of {said} GPUs")
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
