"""NCCL's own XML: the topology it found (`<system>`)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from topology.base import Bytes, Sourced, TopologyError
from topology.catalogue import Hardware, architecture_of, by_device, gpu_names, link_rates
from topology.machine.build import Builder
from topology.machine.graph import Edge, Gpu, Machine, Nic, Node
from topology.machine.node import cluster_of
from topology.machine.pairs import graph_pairs
from topology.readers.assemble import Choices
from topology.readers.nccl_links import NvLinks, number
from topology.readers.reading import MOST_DEVICES, MOST_GPUS
from topology.readers.xml import Element

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


@dataclass(frozen=True, slots=True)
class _Found:
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
    found = _Found()
    hashes: dict[str, int] = {}
    for cpu in root.all("cpu"):
        host = hashes.setdefault(cpu.attributes.get("host_hash", ""), len(hashes))
        _cpu(found, cpu, host)
    notes = tuple(_place_gpus(found, choices.hardware))
    if len(found.gpus) > MOST_GPUS or len(found.gpus) + len(found.nics) > MOST_DEVICES:
        raise TopologyError(f"{len(found.gpus)} GPUs, {len(found.nics)} NICs: too many for a host")
    gpu_names = _gpu_names(found.gpus)
    nic_names = _nic_names(found.nics)
    gpus = {name: _gpu(name, device, choices) for name, device in gpu_names.items()}
    kind = next((_kind(device, choices) for device in found.gpus), None)
    builder = Builder(rates=link_rates(), generation=_generation(found, choices))
    links = NvLinks(
        builder,
        gpus,
        {name: device.parent for name, device in gpu_names.items()},
        {name: device.element for name, device in gpu_names.items()},
        kind,
    )
    machine = Machine(
        name=choices.name,
        source="NCCL topology",
        gpus=tuple(gpus.values()),
        nics=tuple(_nic(name, rows[0], kind) for name, rows in nic_names.items()),
        nodes=(*found.nodes, *links.switches()),
        edges=(*_pcie(builder, found, gpu_names, nic_names), *links.edges(), *links.coherent()),
        cluster=cluster_of(kind) if kind else None,
        assumptions=(*notes, *_assumed(found, gpus, builder, choices), *links.assumed()),
        warnings=(*_narrow(found), *links.loops(), *_unnamed(found)),
    )
    return replace(machine, pairs=links.marked(graph_pairs(machine)))


def _pcie(
    builder: Builder,
    found: _Found,
    gpus: Mapping[str, _Device],
    nics: Mapping[str, Sequence[_Device]],
) -> list[Edge]:
    """Join devices, switches and processors as the file nests them."""
    devices = [*gpus.items(), *((name, row) for name, rows in nics.items() for row in rows)]
    return [
        *(_link(builder, name, row.parent, row.element) for name, row in devices),
        *(_link(builder, child, parent, element) for child, parent, element in found.uplinks),
        *builder.sockets([node for node in found.nodes if node.kind == "cpu"]),
    ]


def _place_gpus(found: _Found, kind: Hardware | None) -> Iterator[str]:
    """Put GPUs of a known kind into a file that names none: evenly, below switches if they fit."""
    switches = [node for node in found.nodes if node.kind == "pcie_switch"]
    cpus = [node for node in found.nodes if node.kind == "cpu"]
    if found.gpus or kind is None:
        return
    parents = switches if switches and kind.gpus % len(switches) == 0 else cpus
    for index in range(kind.gpus if parents else 0):
        parent = parents[index * len(parents) // kind.gpus]
        element = Element(
            tag="pci", line=0, attributes={"busid": f"{index:04x}"}, text="", children=()
        )
        found.gpus.append(
            _Device(element=element, parent=parent.name, host=parent.host, numa=parent.numa)
        )
    if parents:
        yield f"{kind.gpus} GPUs put evenly on the file's {len(parents)} " + (
            "switches" if parents is switches else "processors"
        )


def _cpu(found: _Found, cpu: Element, host: int) -> None:
    numa = number(cpu, "numaid", -1)
    name = f"CPU{numa}" if host == 0 else f"CPU{numa}.host{host}"
    if any(node.name == name for node in found.nodes):
        raise TopologyError(f"XML line {cpu.line}: a second <cpu> with numaid {numa}")
    parts = (cpu.attributes.get(key, "") for key in ("vendor", "familyid", "modelid"))
    chip = " ".join(part for part in parts if part) or cpu.attributes.get("arch", "")
    node = Node(name=name, kind="cpu", host=host, numa=numa if numa >= 0 else None, chip=chip)
    found.nodes.append(node)
    _children(found, cpu, node)


def _children(found: _Found, element: Element, parent: Node) -> None:
    for child in element.children:
        if child.tag == "pci":
            _pci(found, child, parent)
        elif child.tag in ("nic", "net"):
            _nets(found, child, child, parent)


def _pci(found: _Found, element: Element, parent: Node) -> None:
    """Sort a PCI function: GPU, NIC, switch, or something else."""
    code = element.attributes.get("class", "").lower()
    inside = {child.tag for child in element.children}
    here = _Device(element=element, parent=parent.name, host=parent.host, numa=parent.numa)
    if "gpu" in inside or (code.startswith(("0x0300", "0x0302")) and not inside):
        found.gpus.append(here)
    elif inside & {"nic", "net"}:
        _nets(found, element, element, parent)
    elif code.startswith("0x02"):
        found.nics.append(here)
    elif "pci" in inside or code.startswith("0x0604"):
        name = f"switch {element.attributes.get('busid', len(found.nodes))}"
        if any(node.name == name for node in found.nodes):
            raise TopologyError(f"XML line {element.line}: {name} comes twice")
        parts = (element.attributes.get(key, "") for key in ("vendor", "device"))
        node = Node(
            name=name,
            kind="pcie_switch",
            host=parent.host,
            numa=parent.numa,
            chip=" ".join(part for part in parts if part),
        )
        found.nodes.append(node)
        found.uplinks.append((name, parent.name, element))
        _children(found, element, node)
    elif not code:
        found.unknown.append(element)


def _nets(found: _Found, element: Element, port: Element, parent: Node) -> None:
    """Collect the network ports inside a NIC; `port` carries the PCIe link, if there is one."""
    for net in element.walk():
        if net.tag == "net":
            attributes = (
                {**port.attributes, **net.attributes} if port.tag == "pci" else net.attributes
            )
            merged = replace(net, attributes=attributes)
            found.nics.append(
                _Device(element=merged, parent=parent.name, host=parent.host, numa=parent.numa)
            )


def _gpu_names(devices: Sequence[_Device]) -> dict[str, _Device]:
    """Give GPUs the numbers NCCL gave them, or by bus where the file leaves that to it."""
    named: dict[str, _Device] = {}
    by_bus = sorted(
        devices, key=lambda device: (device.host, device.element.attributes.get("busid", ""))
    )
    several = len({device.host for device in devices}) > 1
    for index, device in enumerate(by_bus):
        inner = device.element.find("gpu")
        dev = index if inner is None else number(inner, "dev", index)
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
    number = device.element.attributes.get("device", "")
    found = by_device(gpu_names(), number)
    return choices.kind(found)


def _gpu(name: str, device: _Device, choices: Choices) -> Gpu:
    inner = device.element.find("gpu")
    kind = _kind(device, choices)
    capability = number(inner, "sm", 0) if inner is not None else 0
    if not capability:
        version = kind.device.compute_capability if kind else (8, 0)
        capability = version[0] * 10 + version[1]
    gdr = inner.attributes.get("gdr") if inner is not None else None
    return Gpu(
        name=name,
        host=device.host,
        numa=device.numa,
        hardware=kind.name if kind else None,
        architecture=kind.device.architecture if kind else architecture_of(capability),
        capability=capability,
        memory=Bytes(kind.device.memory.value) if kind else None,
        peer_to_peer=kind.peer_to_peer if kind else True,
        no_peers=kind.no_peers if kind else "",
        gpudirect=None if gdr is None else gdr != "0",
        bus=device.element.attributes.get("busid", ""),
    )


def _nic(name: str, device: _Device, kind: Hardware | None) -> Nic:
    attributes = device.element.attributes
    speed = number(device.element, "speed", 0)
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
    lanes = number(element, "link_width", 16) or 16
    return builder.pcie(child, parent, generation=generation, lanes=min(lanes, 64))


def _speed(element: Element) -> int:
    """PCIe generation of a link by its transfer rate, 0 where the file does not say."""
    match = _SPEED.fullmatch(element.attributes.get("link_speed", ""))
    return _BY_SPEED.get(float(match[1]), 0) if match else 0


def _generation(found: _Found, choices: Choices) -> int:
    """PCIe generation where a link does not say: as chosen, of the kind, of the other links."""
    if choices.pcie_generation:
        return choices.pcie_generation
    kinds = [_kind(device, choices) for device in found.gpus]
    said = [kind.pcie_generation for kind in kinds if kind is not None]
    links = [_speed(device.element) for device in (*found.gpus, *found.nics)]
    return min(said, default=0) or max(links, default=0) or 4


def _assumed(
    found: _Found, gpus: dict[str, Gpu], builder: Builder, choices: Choices
) -> Iterator[str]:
    bare = [gpu for gpu in gpus.values() if gpu.hardware is None]
    if bare:
        yield f"the file names no known GPU kind: taken as {bare[0].architecture}"
    skeleton = [device for device in found.gpus if device.element.find("gpu") is None]
    if skeleton:
        yield "GPUs numbered by bus; the file leaves NVLink and kind to NCCL"
    silent = [device for device in (*found.gpus, *found.nics) if not _speed(device.element)]
    if silent and choices.pcie_generation is None:
        yield f"PCIe generation {builder.generation} where the file gives no link speed"


def _narrow(found: _Found) -> Iterator[str]:
    """Say which uplinks are slower than what hangs on them."""
    below: dict[str, int] = {}
    hanging = [(device.parent, device.element) for device in found.gpus]
    hanging += [(parent, element) for _, parent, element in found.uplinks]
    for parent, element in hanging:
        below[parent] = max(below.get(parent, 0), _speed(element))
    for child, _, element in found.uplinks:
        if 0 < _speed(element) < below.get(child, 0):
            yield (
                f"{child} runs its uplink at PCIe generation {_speed(element)}, "
                f"what hangs on it at {below[child]}"
            )
    for device in found.gpus:
        lanes = number(device.element, "link_width", 16) or 16
        if lanes < 16:
            yield f"GPU at {device.element.attributes.get('busid', '?')} has {lanes} PCIe lanes"


def _unnamed(found: _Found) -> Iterator[str]:
    if not found.gpus:
        yield "no GPU in the file: a frame that NCCL fills in when it runs"
    if found.unknown:
        yield f"{len(found.unknown)} PCI devices without a class: GPUs or NICs, left out"
