"""What `nvidia-smi` says of GPUs beside a matrix: its lists, its table and its XML."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from topology.base import MIB, Bytes, Sourced, TopologyError
from topology.base.values import dataclass
from topology.readers.reading import GpuText, Reading
from topology.readers.xml import Element

_LISTED_GPU: Final = re.compile(r"\s*GPU\s+([0-9]{1,3}):\s*(\S[^(]{0,100}?)\s*(?:\(UUID.*)?")
_LINK_LINE: Final = re.compile(
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
    gpu = None
    for line in lines:
        match = _LISTED_GPU.fullmatch(line) or _TABLE_NAME.fullmatch(line.strip())
        if match:
            name = f"GPU{int(match[1])}"
            gpu = gpus.get(name, GpuText(name=name))
            gpu = replace(gpu, product=gpu.product or match[2])
        elif gpu:
            link = _LINK_LINE.fullmatch(line)
            rate = float(link[1] or 0) * 10**9 if link else 0.0
            rates |= {rate} - {0.0}
            gpu = (
                replace(gpu, links=(gpu.links or 0) + (rate > 0))
                if link
                else _with_details(gpu, line)
            )
        if gpu:
            gpus[gpu.name] = gpu
    source = "nvidia-smi nvlink -s in the text"
    rate_of_link = Sourced(value=min(rates), kind="measured", source=source) if rates else None
    return Listing(gpus=tuple(gpus.values()), link_rate=rate_of_link)


def _with_details(gpu: GpuText, line: str) -> GpuText:
    """Add what a line below a GPU's name says of slices and memory."""
    if mig_slice := _SLICE.fullmatch(line):
        return replace(gpu, mig=True, slices=(*gpu.slices, mig_slice[1].lower()))
    if _TABLE_MIG.fullmatch(line.strip()):
        return replace(gpu, mig=True)
    memory = _TABLE_MEMORY.fullmatch(line.strip()) if line.startswith("|") else None
    if memory and gpu.memory is None:
        return replace(gpu, memory=Bytes(float(memory[1]) * MIB))
    return gpu


_LINKS: Final = "pci/pci_gpu_link_info"
_IDLE: Final = re.compile(r"P([89]|1[0-5])")


def read_smi(root: Element) -> Reading:
    """Read the log of ``nvidia-smi -q -x``."""
    elements = root.all("gpu")
    if not elements:
        raise TopologyError(f"XML line {root.line}: <{root.tag}> lists no GPU")
    gpus = tuple(_gpu(index, element) for index, element in enumerate(elements))
    attached = root.at("attached_gpus")
    warnings = [line for element in elements for line in _slow_links(element)]
    if attached.isdecimal() and len(attached) < 5 and int(attached) != len(gpus):
        warnings.append(f"the text is cut: {len(gpus)} of {attached} GPUs")
    notes = ("nvidia-smi -q -x does not tell how GPUs are joined",) if len(gpus) > 1 else ()
    return Reading(
        source="nvidia-smi -q -x", gpus=gpus, assumptions=notes, warnings=tuple(warnings)
    )


def _gpu(index: int, element: Element) -> GpuText:
    memory = _number(r"([0-9]{1,9}) MiB", element.at("fb_memory_usage/total"))
    current_width, most_width = (
        _number(r"([0-9]{1,2})x", element.at(f"{_LINKS}/link_widths/{key}"))
        for key in ("current_link_width", "max_link_width")
    )
    return GpuText(
        name=f"GPU{index}",
        product=element.at("product_name"),
        architecture=element.at("product_architecture"),
        memory=Bytes(float(memory) * MIB) if memory else None,
        bus=element.attributes.get("id", element.at("pci/pci_bus_id")),
        mig=element.at("mig_mode/current_mig") == "Enabled",
        # under load: links of idle GPUs fall back to the first generation
        generation=_number(r"([1-6])", element.at(f"{_LINKS}/pcie_gen/max_link_gen")),
        lanes=current_width or most_width or 16,
        most_lanes=most_width or 16,
    )


def _number(pattern: str, text: str) -> int:
    """Read the number of a text; 0 where it is another text."""
    match = re.fullmatch(pattern, text)
    return int(match[1]) if match else 0


def _slow_links(element: Element) -> Iterator[str]:
    """Say where a busy GPU's link is slower than it could be."""
    keys = ("current_link_gen", "max_link_gen", "max_device_link_gen")
    texts = [element.at(f"{_LINKS}/pcie_gen/{key}") for key in keys]
    current_gen, most_gen, device_gen = (
        int(text[:2]) if text.isdecimal() else -1 for text in texts
    )
    name = element.attributes.get("id", "GPU")
    if 0 <= current_gen < most_gen and not _IDLE.fullmatch(element.at("performance_state")):
        yield f"{name} runs at PCIe generation {texts[0]} of {texts[1]}"
    if 0 <= most_gen < device_gen:
        yield f"{name} could do PCIe generation {texts[2]}, its slot does {texts[1]}"
