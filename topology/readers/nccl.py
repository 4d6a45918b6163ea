"""NCCL's own XML: the topology it found (`<system>`) and the graphs it chose (`<graphs>`)."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from topology.base import Bytes, BytesPerSecond, Sourced, TopologyError
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
    cluster_of,
    gpu_of,
    graph_pairs,
    usual_nvlinks,
)
from topology.readers.assemble import Choices
from topology.readers.reading import MOST_DEVICES, MOST_GPUS
from topology.readers.xml import Element

_SWITCH: Final = "NVSwitch"  # one part stands for all of them
_SPEED: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s.*")
_BY_SPEED: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_VIRTUAL: Final = re.compile(r"(?:veth|br-|docker|cali|tunl|virbr|lo$|cni|flannel|vxlan).*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A GPU or a NIC of the file, where it hangs and by which link."""

    element: Element
    parent: str
    host: int
    numa: int | None

    @property
    def gpu(self) -> Element | None:
        """Give what NCCL says of the GPU; None where it left that open."""
        return self.element.find("gpu")

    @property
    def nvlinks(self) -> tuple[Element, ...]:
        """List the NVLinks of a GPU: rows of a target and a number of links."""
        return self.gpu.all("nvlink") if self.gpu is not None else ()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a walk over the file collects."""

    nodes: list[Node] = field(default_factory=list)
    gpus: list[_Device] = field(default_factory=list)
    nics: list[_Device] = field(default_factory=list)
    uplinks: list[tuple[str, str, Element]] = field(default_factory=list)
    unknown: list[Element] = field(default_factory=list)


def read_system(root: Element, choices: Choices) -> Machine:
    """Build the machine of an NCCL topology file.

    Raises
    ------
    TopologyError
        If a GPU comes twice, or a number is none, naming the line.
    """
    parts = _Parts()
    hashes: dict[str, int] = {}
    for cpu in root.all("cpu"):
        host = hashes.setdefault(cpu.get("host_hash"), len(hashes))
        _cpu(parts, cpu, host)
    notes = tuple(_place_gpus(parts, choices.hardware))
    if len(parts.gpus) > MOST_GPUS or len(parts.gpus) + len(parts.nics) > MOST_DEVICES:
        raise TopologyError(f"{len(parts.gpus)} GPUs, {len(parts.nics)} NICs: too many for a host")
    gpu_names = _gpu_names(parts.gpus)
    nic_names = _nic_names(parts.nics)
    gpus = {name: _gpu(name, device, choices) for name, device in gpu_names.items()}
    kind = next((_kind(device, choices) for device in parts.gpus), None)
    builder = Builder(generation=_generation(parts, choices))
    usual = _usual_nvlinks(gpu_names, kind, builder)
    nvlinks = usual or _nvlinks(gpu_names, gpus, builder)
    switched = any(link.b == _SWITCH for link in nvlinks)
    filled = [f"NVLink as in a usual {kind.name} server"] if kind and usual else []
    machine = Machine(
        name=choices.name,
        source="NCCL topology",
        gpus=tuple(gpus.values()),
        nics=tuple(_nic(name, rows[0], kind) for name, rows in nic_names.items()),
        nodes=(*parts.nodes, *([Node(name=_SWITCH, kind="nvswitch")] if switched else [])),
        edges=(
            *_pcie(builder, parts, gpu_names, nic_names),
            *nvlinks,
            *_coherent(gpu_names, builder),
        ),
        cluster=cluster_of(kind) if kind else None,
        assumptions=(*notes, *_assumed(parts, gpus, builder, choices), *filled),
        warnings=(*_narrow(parts), *_loops(gpu_names), *_unnamed(parts)),
    )
    pairs = graph_pairs(machine)
    if usual:  # those of NVLink were filled in
        pairs = tuple(replace(pair, read=not pair.is_nvlink) for pair in pairs)
    return replace(machine, pairs=pairs)


def _usual_nvlinks(
    devices: Mapping[str, _Device], kind: Hardware | None, builder: Builder
) -> list[Edge]:
    """Give the NVLinks a known kind comes with, where the file leaves them to NCCL."""
    silent = all(device.gpu is None for device in devices.values())
    if kind is None or not silent or not 1 < len(devices) <= kind.gpus:
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
        peers = all(row.get("target") in names for row in switched)  # each stands for all switches
        if sum(counts):
            count = max(counts) if peers else sum(counts)
            to_switches.append(builder.nvlink(name, _SWITCH, count, rate))
        for row in device.nvlinks:
            peer = names.get(row.get("target"), name)
            if peer != name and not _to_switch(row) and frozenset((name, peer)) not in direct:
                edge = builder.nvlink(name, peer, row.number("count", 1), rate)
                direct[frozenset((name, peer))] = edge
    return [*to_switches, *direct.values()]


def _to_switch(row: Element) -> bool:
    return row.get("tclass").startswith("0x0680")


def _coherent(devices: Mapping[str, _Device], builder: Builder) -> Iterator[Edge]:
    """Yield C2C links: `count` of `bw` MB/s each."""
    for name, device in devices.items():
        row = device.gpu.find("c2c") if device.gpu is not None else None
        if row is not None and device.parent.startswith("CPU"):
            value = row.number("bw", 0) * row.number("count", 1) * 10**6
            if value > 0:
                rate = Sourced(value=float(value), kind="datasheet", source="topology file: c2c")
                yield builder.c2c(name, device.parent, rate)


def _loops(devices: Mapping[str, _Device]) -> Iterator[str]:
    """Say which links lead back to the GPU they leave."""
    for name, device in devices.items():
        bus = device.element.get("busid")
        if any(row.attributes.get("target") == bus for row in device.nvlinks):
            yield f"{name}: its NVLinks lead back to itself in the file: left out"


def _pcie(
    builder: Builder,
    parts: _Parts,
    gpus: Mapping[str, _Device],
    nics: Mapping[str, Sequence[_Device]],
) -> list[Edge]:
    """Join devices, switches and processors as the file nests them."""
    devices = [*gpus.items(), *((name, row) for name, rows in nics.items() for row in rows)]
    return [
        *(_link(builder, name, row.parent, row.element) for name, row in devices),
        *(_link(builder, child, parent, element) for child, parent, element in parts.uplinks),
        *builder.sockets([node for node in parts.nodes if node.kind == "cpu"]),
    ]


def _place_gpus(parts: _Parts, kind: Hardware | None) -> Iterator[str]:
    """Put GPUs of a known kind into a file that names none: evenly, below switches if they fit."""
    switches = [node for node in parts.nodes if node.kind == "pcie_switch"]
    cpus = [node for node in parts.nodes if node.kind == "cpu"]
    if parts.gpus or kind is None:
        return
    parents = switches if switches and kind.gpus % len(switches) == 0 else cpus
    for index in range(kind.gpus if parents else 0):
        parent = parents[index * len(parents) // kind.gpus]
        element = Element(
            tag="pci", line=0, attributes={"busid": f"{index:04x}"}, text="", children=()
        )
        parts.gpus.append(
            _Device(element=element, parent=parent.name, host=parent.host, numa=parent.numa)
        )
    if parents:
        yield f"{kind.gpus} GPUs put evenly on the file's {len(parents)} " + (
            "switches" if parents is switches else "processors"
        )


def _cpu(parts: _Parts, cpu: Element, host: int) -> None:
    numa = cpu.number("numaid", -1)
    name = f"CPU{numa}" if host == 0 else f"CPU{numa}.host{host}"
    if any(node.name == name for node in parts.nodes):
        raise TopologyError(f"XML line {cpu.line}: a second <cpu> with numaid {numa}")
    words = (cpu.get(key) for key in ("vendor", "familyid", "modelid"))
    chip = " ".join(filter(None, words)) or cpu.get("arch")
    node = Node(name=name, kind="cpu", host=host, numa=numa if numa >= 0 else None, chip=chip)
    parts.nodes.append(node)
    _children(parts, cpu, node)


def _children(parts: _Parts, element: Element, parent: Node) -> None:
    for child in element.children:
        if child.tag == "pci":
            _pci(parts, child, parent)
        elif child.tag in ("nic", "net"):
            _nets(parts, child, child, parent)


def _pci(parts: _Parts, element: Element, parent: Node) -> None:
    """Sort a PCI function: GPU, NIC, switch, or something else."""
    code = element.get("class").lower()
    inside = {child.tag for child in element.children}
    here = _Device(element=element, parent=parent.name, host=parent.host, numa=parent.numa)
    if "gpu" in inside or (code.startswith(("0x0300", "0x0302")) and not inside):
        parts.gpus.append(here)
    elif inside & {"nic", "net"}:
        _nets(parts, element, element, parent)
    elif code.startswith("0x02"):
        parts.nics.append(here)
    elif "pci" in inside or code.startswith("0x0604"):
        name = f"switch {element.attributes.get('busid', len(parts.nodes))}"
        if any(node.name == name for node in parts.nodes):
            raise TopologyError(f"XML line {element.line}: {name} comes twice")
        words = (element.get(key) for key in ("vendor", "device"))
        node = Node(
            name=name,
            kind="pcie_switch",
            host=parent.host,
            numa=parent.numa,
            chip=" ".join(filter(None, words)),
        )
        parts.nodes.append(node)
        parts.uplinks.append((name, parent.name, element))
        _children(parts, element, node)
    elif not code:
        parts.unknown.append(element)


def _nets(parts: _Parts, element: Element, port: Element, parent: Node) -> None:
    """Collect the network ports inside a NIC; `port` carries the PCIe link, if there is one."""
    for net in element.walk():
        if net.tag == "net":
            attributes = (
                {**port.attributes, **net.attributes} if port.tag == "pci" else net.attributes
            )
            merged = replace(net, attributes=attributes)
            parts.nics.append(
                _Device(element=merged, parent=parent.name, host=parent.host, numa=parent.numa)
            )


def _gpu_names(devices: Sequence[_Device]) -> dict[str, _Device]:
    """Give GPUs the numbers NCCL gave them, or by bus where the file leaves that to it."""
    named: dict[str, _Device] = {}
    by_bus = sorted(devices, key=lambda device: (device.host, device.element.get("busid")))
    several = len({device.host for device in devices}) > 1
    for index, device in enumerate(by_bus):
        inner = device.gpu
        dev = index if inner is None else inner.number("dev", index)
        name = f"GPU{dev}" if not several else f"host{device.host}.GPU{dev}"
        if name in named:
            raise TopologyError(f"XML line {device.element.line}: {name} comes twice")
        named[name] = device
    return dict(sorted(named.items(), key=lambda item: (item[1].host, len(item[0]), item[0])))


def _nic_names(devices: Sequence[_Device]) -> dict[str, list[_Device]]:
    """Give NICs numbers in the order of the file; a port on several processors is one NIC."""
    ports: dict[object, list[_Device]] = {}
    for index, device in enumerate(devices):
        name = device.element.attributes.get("name")
        real = device.element.attributes.get("busid")
        key = (device.host, name) if name and not real else (index,)
        ports.setdefault(key, []).append(device)
    return {f"NIC{index}": rows for index, rows in enumerate(ports.values())}


def _kind(device: _Device, choices: Choices) -> Hardware | None:
    return choices.kind(by_device(gpu_names(), device.element.get("device")))


def _gpu(name: str, device: _Device, choices: Choices) -> Gpu:
    kind = _kind(device, choices)
    usual = kind.device.capability if kind else 80
    capability = device.gpu.number("sm", 0) if device.gpu is not None else 0
    capability = capability or usual
    gdr = device.gpu.attributes.get("gdr") if device.gpu is not None else None
    unknown = Gpu(name=name, architecture=architecture_of(capability), capability=capability)
    return replace(
        gpu_of(kind, name) if kind else unknown,
        host=device.host,
        numa=device.numa,
        capability=capability,
        gpudirect=None if gdr is None else gdr != "0",
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
    gdr = attributes.get("gdr")
    return Nic(
        name=name,
        device=label,
        host=device.host,
        numa=device.numa,
        bandwidth=bandwidth,
        gpudirect=None if gdr is None else gdr != "0",
        virtual=bool(_VIRTUAL.fullmatch(label)),
    )


def _link(builder: Builder, child: str, parent: str, element: Element) -> Edge:
    generation = _speed(element)
    lanes = element.number("link_width", 16) or 16
    return builder.pcie(child, parent, generation=generation, lanes=min(lanes, 64))


def _speed(element: Element) -> int:
    """PCIe generation of a link by its transfer rate, 0 where the file does not say."""
    match = _SPEED.fullmatch(element.get("link_speed"))
    return _BY_SPEED.get(float(match[1]), 0) if match else 0


def _generation(parts: _Parts, choices: Choices) -> int:
    """PCIe generation where a link does not say: as chosen, of the kind, of the other links."""
    if choices.pcie_generation:
        return choices.pcie_generation
    kinds = [_kind(device, choices) for device in parts.gpus]
    usual = [kind.pcie_generation for kind in kinds if kind is not None]
    links = [_speed(device.element) for device in (*parts.gpus, *parts.nics)]
    return min(usual, default=0) or max(links, default=0) or 4


def _assumed(
    parts: _Parts, gpus: dict[str, Gpu], builder: Builder, choices: Choices
) -> Iterator[str]:
    bare = [gpu for gpu in gpus.values() if gpu.hardware is None]
    if bare:
        yield f"the file names no known GPU kind: taken as {bare[0].architecture}"
    skeleton = [device for device in parts.gpus if device.gpu is None]
    if skeleton:
        yield "GPUs numbered by bus; the file leaves NVLink and kind to NCCL"
    silent = [device for device in (*parts.gpus, *parts.nics) if not _speed(device.element)]
    if silent and choices.pcie_generation is None:
        yield f"PCIe generation {builder.generation} where the file gives no link speed"


def _narrow(parts: _Parts) -> Iterator[str]:
    """Say which uplinks are slower than what hangs on them."""
    below: dict[str, int] = {}
    hanging = [(device.parent, device.element) for device in parts.gpus]
    hanging += [(parent, element) for _, parent, element in parts.uplinks]
    for parent, element in hanging:
        below[parent] = max(below.get(parent, 0), _speed(element))
    for child, _, element in parts.uplinks:
        if 0 < _speed(element) < below.get(child, 0):
            yield (
                f"{child} runs its uplink at PCIe generation {_speed(element)}, "
                f"what hangs on it at {below[child]}"
            )
    for device in parts.gpus:
        lanes = device.element.number("link_width", 16) or 16
        if lanes < 16:
            yield f"GPU at {device.element.attributes.get('busid', '?')} has {lanes} PCIe lanes"


def _unnamed(parts: _Parts) -> Iterator[str]:
    if not parts.gpus:
        yield "no GPU in the file: a frame that NCCL fills in when it runs"
    if parts.unknown:
        yield f"{len(parts.unknown)} PCI devices without a class: GPUs or NICs, left out"


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
    numbers = sorted({gpu.number("dev", 0) for gpu in root.walk() if gpu.tag == "gpu"})
    return graphs_machine(tuple(searches), numbers, choices)


def graphs_machine(
    searches: tuple[NcclGraph, ...], numbers: Sequence[int], choices: Choices
) -> Machine:
    """Wrap what NCCL chose; the links themselves are not known."""
    kind = choices.hardware
    gpus = tuple(
        Gpu(
            name=f"GPU{number}",
            hardware=kind.name if kind else None,
            architecture=kind.device.architecture if kind else "ampere",
            capability=kind.device.capability if kind else 80,
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
        nccl_graphs=searches,
        warnings=tuple(warnings),
    )


def _path_pairs(gpus: Sequence[Gpu], ring: NcclGraph) -> tuple[Pair, ...]:
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


def _search(graph: Element) -> NcclGraph:
    name = graph.get("id")
    return graph_of(_SEARCHES.get(name, name[:20]), graph.attributes, f"XML line {graph.line}")


def graph_of(name: str, attributes: Mapping[str, str], where: str) -> NcclGraph:
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
    return NcclGraph(
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


def read_graph_lines(lines: Sequence[str]) -> tuple[NcclGraph, ...]:
    """Read graphs written one a line, a name and ``key=value`` pairs; none if there are none.

    >>> read_graph_lines(["ring id=0 nchannels=16 speedintra=45 typeintra=NVL"])[0].channels
    16
    """
    graphs = []
    for index, line in enumerate(lines):
        name = _NAMED.match(line)
        values = dict(_SETTING.findall(line[:1000]))
        if name and "nchannels" in values:
            graphs.append(graph_of(name[1], values, f"line {index + 1}"))
    return tuple(graphs)
