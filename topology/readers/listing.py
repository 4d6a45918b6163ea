"""What other outputs of nvidia-smi say beside a matrix: names, memory, NVLinks, MIG slices."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from topology.base import MIB, Bytes, Sourced
from topology.readers.reading import GpuText

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
            found = gpus.get(current, GpuText(name=current))
            gpus[current] = replace(found, product=found.product or (match[2] if match else ""))
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
