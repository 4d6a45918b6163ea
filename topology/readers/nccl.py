"""NCCL's own XML: the topology it found (`<system>`) and the graphs it chose (`<graphs>`)."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from typing import Final, cast

from topology.base import BytesPerSecond, Sourced, TopologyError
from topology.base.values import dataclass
from topology.catalogue import (
    Hardware,
    architecture_of,
    by_device,
    gpu_names,
    link_rates,
    nvlink_generation,
)
from topology.machine import (
    Builder,
    Edge,
    Gpu,
    Machine,
    NcclGraph,
    Nic,
    Node,
    Pair,
    PairKind,
    cluster_of,
    gpu_of,
    graph_pairs,
    usual_nvlinks,
)
from topology.readers.assemble import GENERATIONS, Choices
from topology.readers.reading import MOST_DEVICES, MOST_GPUS
from topology.readers.xml import Element

_SWITCH: Final = "NVSwitch"  # one part stands for all of them
_SPEED: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s.*")
_BY_SPEED: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_VIRTUAL_PORT: Final = re.compile(r"(?:veth|br-|docker|cali|tunl|virbr|lo$|cni|flannel|vxlan).*")


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU or a NIC of the file, and the part that it hangs on."""

    element: Element
    parent: Node

    @property
    def gpu(self) -> Element | None:
        """Give what NCCL says of the GPU; None where it left that open."""
        return self.element.find("gpu")

    @property
    def nvlinks(self) -> list[Element]:
        """List the NVLinks of a GPU: rows of a target and a number of links."""
        return self.gpu.all("nvlink") if self.gpu is not None else []


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a walk over the file collects."""

    nodes: list[Node] = field(default_factory=list)
    gpus: list[_Device] = field(default_factory=list)
    nics: list[_Device] = field(default_factory=list)
    uplinks: list[tuple[str, str, Element]] = field(default_factory=list)
    unknown: list[Element] = field(default_factory=list)

    def add(self, element: Element, node: Node) -> None:
        """Add a part that others hang on, and all that does."""
        if any(earlier.name == node.name for earlier in self.nodes):
            second_cpu = f"a second <cpu> with numaid {-1 if node.numa is None else node.numa}"
            problem = second_cpu if node.kind == "cpu" else f"{node.name} comes twice"
            raise TopologyError(f"XML line {element.line}: {problem}")
        self.nodes.append(node)
        for child in element.children:
            if child.tag == "pci":
                self._sort_function(child, node)
            elif child.tag in ("nic", "net"):
                self._nets(child, node)

    def _sort_function(self, element: Element, parent: Node) -> None:
        """Sort a PCI function: GPU, NIC, switch, or something else."""
        code = element.get("class").lower()
        child_tags = {child.tag for child in element.children}
        if "gpu" in child_tags or (code.startswith(("0x0300", "0x0302")) and not child_tags):
            self.gpus.append(_Device(_without_idle_speed(element), parent))
        elif child_tags & {"nic", "net"}:
            self._nets(element, parent)
        elif code.startswith("0x02"):
            self.nics.append(_Device(element, parent))
        elif "pci" in child_tags or code.startswith("0x0604"):
            name = f"switch {element.attributes.get('busid', len(self.nodes))}"
            chip = " ".join(filter(None, (element.get("vendor"), element.get("device"))))
            node = replace(parent, name=name, kind="pcie_switch", chip=chip)
            self.uplinks.append((name, parent.name, element))
            self.add(element, node)
        elif not code:
            self.unknown.append(element)

    def _nets(self, element: Element, parent: Node) -> None:
        """Collect the network ports inside a NIC, which may carry their PCIe link."""
        link = element.attributes if element.tag == "pci" else {}
        for net in element.walk():
            if net.tag == "net":
                port = replace(net, attributes={**link, **net.attributes})
                self.nics.append(_Device(port, parent))


def read_system(root: Element, choices: Choices) -> Machine:
    """Build the machine of an NCCL topology file."""
    parts = _Parts()
    hashes: dict[str, int] = {}
    for cpu in root.all("cpu"):
        host = hashes.setdefault(cpu.get("host_hash"), len(hashes))
        parts.add(cpu, _processor(cpu, host))
    notes = tuple(_place_gpus(parts, choices.hardware))
    if len(parts.gpus) > MOST_GPUS or len(parts.gpus) + len(parts.nics) > MOST_DEVICES:
        raise TopologyError(f"{len(parts.gpus)} GPUs, {len(parts.nics)} NICs: too many for a host")
    devices, ports = _numbered_gpus(parts.gpus), _ports(parts.nics)
    gpus = {name: _gpu(name, device, choices) for name, device in devices.items()}
    kind = next((_kind(device, choices) for device in parts.gpus), None)
    builder = Builder(generation=_pcie_generation(parts, choices))
    usual_links = _usual_nvlinks(devices, kind, builder)
    nvlinks = usual_links or _nvlinks(devices, gpus, builder)
    switched = any(link.b == _SWITCH for link in nvlinks)
    filled_notes = [f"NVLink as in a usual {kind.name} server"] if kind and usual_links else []
    hanging = [*devices.items(), *((name, row) for name, rows in ports.items() for row in rows)]
    machine = Machine(
        name=choices.name,
        source="NCCL topology",
        gpus=tuple(gpus.values()),
        nics=tuple(_nic(name, rows[0], kind) for name, rows in ports.items()),
        nodes=(*parts.nodes, *([Node(name=_SWITCH, kind="nvswitch")] if switched else [])),
        edges=(
            *(
                _pcie_link(builder, name, device.parent.name, device.element)
                for name, device in hanging
            ),
            *(
                _pcie_link(builder, child, parent, element)
                for child, parent, element in parts.uplinks
            ),
            *builder.sockets([node for node in parts.nodes if node.kind == "cpu"]),
            *nvlinks,
            *_coherent(devices, builder),
        ),
        cluster=cluster_of(kind, len(gpus)) if kind else None,
        assumptions=(*notes, *_assumptions(parts, gpus, builder, choices), *filled_notes),
        warnings=tuple(_warnings(parts, devices)),
    )
    pairs = graph_pairs(machine)
    if usual_links:  # those of NVLink were filled in
        pairs = tuple(replace(pair, read=not pair.is_nvlink) for pair in pairs)
    return replace(machine, pairs=pairs)


def _processor(cpu: Element, host: int) -> Node:
    numa = cpu.number("numaid", -1)
    name = f"CPU{numa}" if host == 0 else f"CPU{numa}.host{host}"
    words = (cpu.get(key) for key in ("vendor", "familyid", "modelid"))
    chip = " ".join(filter(None, words)) or cpu.get("arch")
    return Node(name=name, kind="cpu", host=host, numa=numa if numa >= 0 else None, chip=chip)


def _place_gpus(parts: _Parts, kind: Hardware | None) -> Iterator[str]:
    """Put GPUs of a known kind into a file that names none: evenly, below switches if they fit."""
    switches = [node for node in parts.nodes if node.kind == "pcie_switch"]
    cpus = [node for node in parts.nodes if node.kind == "cpu"]
    if parts.gpus or kind is None:
        return
    fits_switches = switches and kind.gpus % len(switches) == 0
    parents, parent_noun = (switches, "switches") if fits_switches else (cpus, "processors")
    if parents:
        for index in range(kind.gpus):
            parent = parents[index * len(parents) // kind.gpus]
            parts.gpus.append(_Device(Element("pci", 0, {"busid": f"{index:04x}"}), parent))
        yield f"{kind.gpus} GPUs put evenly on the file's {len(parents)} {parent_noun}"


def _numbered_gpus(devices: Sequence[_Device]) -> dict[str, _Device]:
    """Give GPUs the numbers NCCL gave them, or by bus where the file leaves that to it."""
    by_name: dict[str, _Device] = {}
    by_bus = sorted(devices, key=lambda device: (device.parent.host, device.element.get("busid")))
    many_hosts = len({device.parent.host for device in devices}) > 1
    for index, device in enumerate(by_bus):
        dev = index if device.gpu is None else device.gpu.number("dev", index)
        name = f"GPU{dev}" if not many_hosts else f"host{device.parent.host}.GPU{dev}"
        if name in by_name:
            raise TopologyError(f"XML line {device.element.line}: {name} comes twice")
        by_name[name] = device
    return dict(
        sorted(by_name.items(), key=lambda item: (item[1].parent.host, len(item[0]), item[0]))
    )


def _ports(devices: Sequence[_Device]) -> dict[str, list[_Device]]:
    """Give NICs numbers in the order of the file; a port on several processors is one NIC."""
    ports: dict[object, list[_Device]] = {}
    for index, device in enumerate(devices):
        name, bus = (device.element.attributes.get(key) for key in ("name", "busid"))
        key = (device.parent.host, name) if name and not bus else (index,)
        ports.setdefault(key, []).append(device)
    return {f"NIC{index}": rows for index, rows in enumerate(ports.values())}


def _kind(device: _Device, choices: Choices) -> Hardware | None:
    return choices.kind(by_device(gpu_names(), device.element.get("device")))


def _gpudirect(element: Element | None) -> bool | None:
    """Tell whether GPUDirect is on; None where the file does not say."""
    gdr = element.attributes.get("gdr") if element is not None else None
    return None if gdr is None else gdr != "0"


def _gpu(name: str, device: _Device, choices: Choices) -> Gpu:
    kind, gpu_element = _kind(device, choices), device.gpu
    usual_capability = kind.device.capability if kind else 80
    capability = (gpu_element.number("sm", 0) if gpu_element is not None else 0) or usual_capability
    unknown_gpu = Gpu(name=name, architecture=architecture_of(capability), capability=capability)
    return replace(
        gpu_of(kind, name) if kind else unknown_gpu,
        host=device.parent.host,
        numa=device.parent.numa,
        capability=capability,
        gpudirect=_gpudirect(gpu_element),
        bus=device.element.get("busid"),
    )


def _nic(name: str, device: _Device, kind: Hardware | None) -> Nic:
    attributes = device.element.attributes
    speed = device.element.number("speed", 0)
    bandwidth = kind.nic_bandwidth if kind else None
    if speed > 0:
        bandwidth = Sourced(
            value=speed * 10**6 / 8, kind="datasheet", source=f"topology file: {speed} Mbit/s"
        )
    label = attributes.get("name", attributes.get("busid", ""))
    return Nic(
        name=name,
        device=label,
        host=device.parent.host,
        numa=device.parent.numa,
        bandwidth=bandwidth,
        gpudirect=_gpudirect(device.element),
        virtual=bool(_VIRTUAL_PORT.fullmatch(label)),
    )


def _usual_nvlinks(
    devices: Mapping[str, _Device], kind: Hardware | None, builder: Builder
) -> list[Edge]:
    """Give the NVLinks a known kind comes with, where the file leaves them to NCCL."""
    none_described = all(device.gpu is None for device in devices.values())
    if kind is None or not none_described or not 1 < len(devices) <= kind.gpus:
        return []
    if kind.link != "nvswitch" and len(devices) < kind.gpus:
        return []
    switches, edges = usual_nvlinks(kind, builder)
    names = {*devices, *(switch.name for switch in switches)}
    return [edge for edge in edges if {edge.a, edge.b} <= names]


def _nvlinks(
    devices: Mapping[str, _Device], gpus: Mapping[str, Gpu], builder: Builder
) -> list[Edge]:
    """Read the NVLinks that the file lists below its GPUs: to switches, then to other GPUs."""
    names = {gpu.bus: name for name, gpu in gpus.items()}
    to_switches: list[Edge] = []
    direct: dict[frozenset[str], Edge] = {}
    for name, device in devices.items():
        rate = link_rates().nvlink_rate(nvlink_generation(gpus[name].capability))
        switched = [row for row in device.nvlinks if _to_switch(row)]
        counts = [row.number("count", 1) for row in switched]
        targets_are_gpus = all(
            row.get("target") in names for row in switched
        )  # each stands for all switches
        if sum(counts):
            count = max(counts) if targets_are_gpus else sum(counts)
            to_switches.append(builder.nvlink(name, _SWITCH, count, rate))
        for row in device.nvlinks:
            ends = frozenset((name, names.get(row.get("target"), name)))
            if len(ends) == 2 and not _to_switch(row) and ends not in direct:
                (peer,) = ends - {name}
                direct[ends] = builder.nvlink(name, peer, row.number("count", 1), rate)
    return [*to_switches, *direct.values()]


def _to_switch(row: Element) -> bool:
    return row.get("tclass").startswith("0x0680")


def _coherent(devices: Mapping[str, _Device], builder: Builder) -> Iterator[Edge]:
    """Yield C2C links: `count` of `bw` MB/s each."""
    for name, device in devices.items():
        row = device.gpu.find("c2c") if device.gpu is not None else None
        if row is not None and device.parent.kind == "cpu":
            value = row.number("bw", 0) * row.number("count", 1) * 10**6
            if value > 0:
                rate = Sourced(value=float(value), kind="datasheet", source="topology file: c2c")
                yield builder.c2c(name, device.parent.name, rate)


def _pcie_link(builder: Builder, child: str, parent: str, element: Element) -> Edge:
    lanes = min(_lanes(element), 64)
    return builder.pcie(child, parent, generation=_link_generation(element), lanes=lanes)


def _lanes(element: Element) -> int:
    return element.number("link_width", 16) or 16


def _without_idle_speed(element: Element) -> Element:
    """Leave the speed of a GPU's link open where it is that of a link with nothing to do."""
    if _link_generation(element) != 1:
        return element
    attributes = {key: value for key, value in element.attributes.items() if key != "link_speed"}
    return replace(element, attributes=attributes)


def _link_generation(element: Element) -> int:
    """PCIe generation of a link by its transfer rate, 0 where the file does not say."""
    match = _SPEED.fullmatch(element.get("link_speed"))
    return _BY_SPEED.get(float(match[1]), 0) if match else 0


def _pcie_generation(parts: _Parts, choices: Choices) -> int:
    """PCIe generation where a link does not say: as chosen, of the kind, of the other links.

    NICs tell it where no GPU says what it is.
    """
    if choices.pcie_generation:
        return choices.pcie_generation
    kinds = [_kind(device, choices) for device in parts.gpus]
    usual_generations = [kind.pcie_generation for kind in kinds if kind is not None]
    gpu_speeds, nic_speeds = (
        [_link_generation(device.element) for device in devices]
        for devices in (parts.gpus, parts.nics)
    )
    capabilities = [device.gpu.number("sm", 0) for device in parts.gpus if device.gpu is not None]
    gpu_generations = [
        GENERATIONS[architecture_of(capability)] for capability in capabilities if capability
    ]
    return (
        min(usual_generations, default=0)
        or max(gpu_speeds, default=0)
        or max(gpu_generations or nic_speeds, default=0)
        or 4
    )


def _assumptions(
    parts: _Parts, gpus: dict[str, Gpu], builder: Builder, choices: Choices
) -> Iterator[str]:
    unnamed_gpus = [gpu for gpu in gpus.values() if gpu.hardware is None]
    if unnamed_gpus:
        yield f"the file names no known GPU kind: taken as {unnamed_gpus[0].architecture}"
    if any(device.gpu is None for device in parts.gpus):
        yield "GPUs numbered by bus; the file leaves NVLink and kind to NCCL"
    speed_missing = any(
        not _link_generation(device.element) for device in (*parts.gpus, *parts.nics)
    )
    if speed_missing and choices.pcie_generation is None:
        yield f"PCIe generation {builder.generation} where the file gives no link speed"


def _warnings(parts: _Parts, devices: Mapping[str, _Device]) -> Iterator[str]:
    """Say which links are narrower than what hangs on them, and what cannot be used."""
    fastest_below: dict[str, int] = {}
    hanging = [(device.parent.name, device.element) for device in parts.gpus]
    hanging += [(parent, element) for _, parent, element in parts.uplinks]
    for parent, element in hanging:
        fastest_below[parent] = max(fastest_below.get(parent, 0), _link_generation(element))
    for child, _, element in parts.uplinks:
        if 0 < _link_generation(element) < fastest_below.get(child, 0):
            yield (
                f"{child} runs its uplink at PCIe generation {_link_generation(element)}, "
                f"what hangs on it at {fastest_below[child]}"
            )
    for device in parts.gpus:
        if _lanes(device.element) < 16:
            bus = device.element.attributes.get("busid", "?")
            yield f"GPU at {bus} has {_lanes(device.element)} PCIe lanes"
    for name, device in devices.items():
        bus = device.element.get("busid")
        if any(row.attributes.get("target") == bus for row in device.nvlinks):
            yield f"{name}: its NVLinks lead back to itself in the file: left out"
    if not parts.gpus:
        yield "no GPU in the file: a frame that NCCL fills in when it runs"
    if parts.unknown:
        yield f"{len(parts.unknown)} PCI devices without a class: GPUs or NICs, left out"


_SEARCHES: Final = {
    "0": "ring", "1": "tree", "2": "collnet", "3": "nvls", "4": "collnet direct",
}  # fmt: skip
_FASTEST: Final = 10**6
_GRAPH_NAME: Final = re.compile(r"\s{0,20}([A-Za-z][A-Za-z0-9_ ]{0,30}?)\s{1,20}id=")
_SETTING: Final = re.compile(r"([a-z]{1,20})=([\w.]{1,20})")
_PATHS: Final = {"NVL": "NVLINK", "NVB": "SYS", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB"}


def read_graphs(root: Element, choices: Choices) -> Machine:
    """Give what a dump of NCCL's graphs holds: how many GPUs, and the paths it took."""
    searches = [
        _graph(
            _SEARCHES.get(graph.get("id"), graph.get("id")[:20]),
            graph.attributes,
            f"XML line {graph.line}",
        )
        for graph in root.all("graph")
    ]
    numbers = sorted({gpu.number("dev", 0) for gpu in root.walk() if gpu.tag == "gpu"})
    return graphs_machine(tuple(searches), numbers, choices)


def graphs_machine(
    searches: tuple[NcclGraph, ...], numbers: Sequence[int], choices: Choices
) -> Machine:
    """Wrap what NCCL chose; the links themselves are not known."""
    kind = choices.hardware
    gpu = Gpu(name="", architecture="ampere", capability=80)
    gpu = replace(gpu_of(kind, ""), peer_to_peer=True, no_peers="") if kind else gpu
    gpus = tuple(replace(gpu, name=f"GPU{number}") for number in numbers[:MOST_GPUS])
    pairs: tuple[Pair, ...] = ()
    ring = next((search for search in searches if search.channels), None)
    if ring is not None:
        path = cast(PairKind, _PATHS.get(ring.type_intra, "SYS"))
        rate = BytesPerSecond(ring.intra * ring.channels)
        pairs = tuple(
            Pair(a=a.name, b=b.name, kind=path, bandwidth=rate, read=False)
            for a, b in combinations(gpus, 2)
        )
    warnings = ("a dump of NCCL's graphs tells the paths it took, not the links there are",)
    return Machine(
        name=choices.name,
        source="NCCL graphs",
        gpus=gpus,
        pairs=pairs,
        nccl_graphs=searches,
        warnings=warnings if gpus else (*warnings, "no GPU in the text"),
    )


def _graph(name: str, attributes: Mapping[str, str], where: str) -> NcclGraph:
    """Read one graph's attributes; speeds are in GB/s a channel. An error says `where`."""
    keys = ("nchannels", "speedintra", "speedinter")
    channels, intra, inter = (_parsed_number(attributes.get(key) or "0") for key in keys)
    if not all(0 <= value < _FASTEST for value in (channels, intra, inter)):
        raise TopologyError(f"{where}: channels or speeds of a graph are no sensible numbers")
    return NcclGraph(
        name=name,
        channels=int(channels),
        intra=BytesPerSecond(intra * 10**9),
        inter=BytesPerSecond(inter * 10**9),
        type_intra=attributes.get("typeintra", "")[:8],
        type_inter=attributes.get("typeinter", "")[:8],
    )


def _parsed_number(text: str) -> float:
    try:
        return float(text[:12])
    except ValueError:
        return math.nan


def read_graph_lines(lines: Sequence[str]) -> tuple[NcclGraph, ...]:
    """Read graphs written one a line, a name and ``key=value`` pairs; none if there are none.

    >>> read_graph_lines(["ring id=0 nchannels=16 speedintra=45 typeintra=NVL"])[0].channels
    16
    """
    graphs = []
    for index, line in enumerate(lines):
        name = _GRAPH_NAME.match(line)
        values = dict(_SETTING.findall(line[:1000]))
        if name and "nchannels" in values:
            graphs.append(_graph(name[1], values, f"line {index + 1}"))
    return tuple(graphs)
