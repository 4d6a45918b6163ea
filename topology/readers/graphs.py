"""Graphs that NCCL chose: its `<graphs>` dump, and the same as lines of text."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from topology.base import Bytes, BytesPerSecond, TopologyError
from topology.catalogue import Hardware
from topology.machine.graph import Gpu, Machine, Pair, Search
from topology.readers.assemble import Choices
from topology.readers.nccl_links import number
from topology.readers.reading import MOST_GPUS
from topology.readers.xml import Element

_SEARCHES: Final = {
    "0": "ring", "1": "tree", "2": "collnet", "3": "nvls", "4": "collnet direct",
}  # fmt: skip
_FASTEST: Final = 10**6
_NAMED: Final = re.compile(r"\s{0,20}([A-Za-z][A-Za-z0-9_ ]{0,30}?)\s{1,20}id=")
_SETTING: Final = re.compile(r"([a-z]{1,20})=([\w.]{1,20})")
_PATHS: Final = {"NVL": "NVLINK", "NVB": "SYS", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB"}


def read_graphs(root: Element, choices: Choices) -> Machine:
    """Give what a dump of NCCL's graphs holds: how many GPUs, and the paths it took.

    Raises
    ------
    TopologyError
        If a number is none, naming the line.
    """
    searches = [_search(graph) for graph in root.all("graph")]
    numbers = sorted({number(gpu, "dev", 0) for gpu in root.walk() if gpu.tag == "gpu"})
    return graphs_machine(tuple(searches), numbers, choices)


def graphs_machine(
    searches: tuple[Search, ...], numbers: Sequence[int], choices: Choices
) -> Machine:
    """Wrap what NCCL chose; the links themselves are not known."""
    kind = choices.hardware
    gpus = tuple(
        Gpu(
            name=f"GPU{number}",
            hardware=kind.name if kind else None,
            architecture=kind.device.architecture if kind else "ampere",
            capability=_capability(kind),
            memory=Bytes(kind.device.memory.value) if kind else None,
        )
        for number in numbers[:MOST_GPUS]
    )
    taken = [search for search in searches if search.channels]
    pairs = _path_pairs(gpus, taken[0]) if taken else ()
    warnings = ["a dump of NCCL's graphs tells the paths it took, not the links there are"]
    if not gpus:
        warnings.append("no GPU in the text")
    return Machine(
        name=choices.name,
        source="NCCL graphs",
        gpus=gpus,
        pairs=pairs,
        searches=searches,
        warnings=tuple(warnings),
    )


def _capability(kind: Hardware | None) -> int:
    major, minor = kind.device.compute_capability if kind else (8, 0)
    return major * 10 + minor


def _path_pairs(gpus: Sequence[Gpu], ring: Search) -> tuple[Pair, ...]:
    kind = _PATHS.get(ring.type_intra, "SYS")
    return tuple(
        Pair(
            a=a.name,
            b=b.name,
            kind=kind,  # type: ignore[arg-type]  # from a table of pair kinds
            bandwidth=BytesPerSecond(ring.intra * ring.channels),
            read=False,
        )
        for index, a in enumerate(gpus)
        for b in gpus[index + 1 :]
    )


def _search(graph: Element) -> Search:
    name = graph.attributes.get("id", "")
    return search_of(_SEARCHES.get(name, name[:20]), graph.attributes, f"XML line {graph.line}")


def search_of(name: str, attributes: Mapping[str, str], where: str) -> Search:
    """Read one graph's attributes; speeds are in GB/s a channel.

    Raises
    ------
    TopologyError
        If a number is none; `where` names the place.
    """
    keys = ("nchannels", "speedintra", "speedinter")
    values = [_value(attributes.get(key, "0") or "0") for key in keys]
    if not all(0 <= value < _FASTEST for value in values):
        raise TopologyError(f"{where}: channels or speeds of a graph are no sensible numbers")
    return Search(
        name=name,
        channels=int(values[0]),
        intra=BytesPerSecond(values[1] * 10**9),
        inter=BytesPerSecond(values[2] * 10**9),
        type_intra=attributes.get("typeintra", "")[:8],
        type_inter=attributes.get("typeinter", "")[:8],
    )


def _value(text: str) -> float:
    try:
        return float(text[:12])
    except ValueError:
        return math.nan


def read_graph_lines(lines: Sequence[str]) -> tuple[Search, ...]:
    """Read graphs written one a line, a name and ``key=value`` pairs; none if there are none.

    >>> read_graph_lines(["ring id=0 nchannels=16 speedintra=45 typeintra=NVL"])[0].channels
    16
    """
    found = []
    for index, line in enumerate(lines):
        name = _NAMED.match(line)
        values = dict(_SETTING.findall(line[:1000]))
        if name and "nchannels" in values:
            found.append(search_of(name[1], values, f"line {index + 1}"))
    return tuple(found)
