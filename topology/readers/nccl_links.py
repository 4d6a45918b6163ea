"""NVLinks and coherent links of an NCCL topology file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from topology.base import Sourced, TopologyError
from topology.catalogue import Hardware, nvlink_generation
from topology.machine.build import Builder
from topology.machine.graph import Edge, Gpu, Node, Pair
from topology.machine.node import usual_nvlinks
from topology.readers.xml import Element


@dataclass(frozen=True, slots=True)
class NvLinks:
    """The NVLinks and coherent links that the file lists below its GPUs."""

    builder: Builder
    gpus: Mapping[str, Gpu]
    parents: Mapping[str, str]
    elements: Mapping[str, Element]
    kind: Hardware | None

    def usual(self) -> tuple[list[Node], list[Edge]]:
        """Give the NVLinks a known kind comes with, where the file leaves them to NCCL."""
        silent = all(element.find("gpu") is None for element in self.elements.values())
        few = self.kind is None or not 1 < len(self.gpus) <= self.kind.gpus
        if self.kind is None or few or not silent:
            return [], []
        if self.kind.link != "nvswitch" and len(self.gpus) < self.kind.gpus:
            return [], []
        nodes, edges = usual_nvlinks(self.kind, self.builder)
        known = {*self.gpus, *(node.name for node in nodes)}
        return nodes, [edge for edge in edges if {edge.a, edge.b} <= known]

    def assumed(self) -> Iterator[str]:
        """Say that NVLinks were filled in."""
        if self.kind is not None and self.usual()[1]:
            yield f"NVLink as in a usual {self.kind.name} server"

    def marked(self, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
        """Mark the pairs whose NVLinks were filled in as not read."""
        if not self.usual()[1]:
            return pairs
        return tuple(replace(pair, read=pair.kind not in ("NVLINK", "NVSWITCH")) for pair in pairs)

    def switches(self) -> list[Node]:
        """Let one part stand for all NVSwitches."""
        nodes, _ = self.usual()
        if nodes:
            return nodes
        found = any(self.to_switch(name) for name in self.gpus)
        return [Node(name="NVSwitch", kind="nvswitch")] if found else []

    def to_switch(self, name: str) -> int:
        """Count a GPU's links to switches: in all, or per peer where peers stand for switches."""
        buses = {gpu.bus for gpu in self.gpus.values()}
        rows = [
            row for row in self.rows(name) if row.attributes.get("tclass", "").startswith("0x0680")
        ]
        counts = [number(row, "count", 1) for row in rows]
        peers = [row.attributes.get("target", "") in buses for row in rows]
        return max(counts) if counts and all(peers) else sum(counts)

    def rows(self, name: str) -> tuple[Element, ...]:
        inner = self.elements[name].find("gpu")
        return inner.all("nvlink") if inner is not None else ()

    def direct(self) -> Iterator[tuple[str, str, int]]:
        """Yield the links from GPU to GPU, each pair once."""
        names = {gpu.bus: name for name, gpu in self.gpus.items()}
        seen: set[frozenset[str]] = set()
        for name in self.gpus:
            for row in self.rows(name):
                peer = names.get(row.attributes.get("target", ""))
                pair = frozenset((name, peer or name))
                switch = row.attributes.get("tclass", "").startswith("0x0680")
                if len(pair) == 2 and pair not in seen and not switch and peer:
                    seen.add(pair)
                    yield name, peer, number(row, "count", 1)

    def edges(self) -> Iterator[Edge]:
        """Yield the NVLinks of the file, or the usual ones."""
        yield from self.usual()[1]
        for name in self.gpus:
            count = self.to_switch(name)
            if count:
                yield self.builder.nvlink(name, "NVSwitch", count, self.rate(name), switch=True)
        for a, b, count in self.direct():
            yield self.builder.nvlink(a, b, count, self.rate(a))

    def rate(self, name: str) -> Sourced:
        return self.builder.rates.nvlink_rate(nvlink_generation(self.gpus[name].capability))

    def coherent(self) -> Iterator[Edge]:
        """Yield C2C links: `count` of `bw` MB/s each."""
        for name, element in self.elements.items():
            inner = element.find("gpu")
            row = inner.find("c2c") if inner is not None else None
            cpu = self.parents[name] if self.parents[name].startswith("CPU") else ""
            if row is not None and cpu:
                value = number(row, "bw", 0) * number(row, "count", 1) * 10**6
                if value > 0:
                    rate = Sourced(
                        value=float(value), kind="datasheet", source="topology file: c2c"
                    )
                    yield self.builder.c2c(name, cpu, rate)

    def loops(self) -> Iterator[str]:
        """Say which links lead back to the GPU they leave, or nowhere."""
        for name, gpu in self.gpus.items():
            if any(row.attributes.get("target") == gpu.bus for row in self.rows(name)):
                yield f"{name}: its NVLinks lead back to itself in the file: left out"


def number(element: Element, key: str, default: int) -> int:
    """Read a whole number of an element; `default` where it is absent or negative.

    Raises
    ------
    TopologyError
        If it is no number, naming the line.
    """
    text = element.attributes.get(key, "")
    if not text:
        return default
    try:
        value = int(text[:12], 0)
    except ValueError:
        raise TopologyError(
            f"XML line {element.line}: {key}={text[:20]!r}: expected a whole number"
        ) from None
    return value if value >= 0 and len(text) <= 12 else default
