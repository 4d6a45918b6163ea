"""From labels between devices to a tree of switches, root complexes and processors.

``PIX``: one switch above both. ``PXB``: several. ``PHB``: one root complex. ``NODE``: one
processor. ``SYS``: two. Labels of a real machine are nested, and any others are taken as if.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from topology.base.values import dataclass
from topology.machine import Builder, Edge, Nic, Node, components
from topology.readers.reading import RANKS, GpuText, Label, Reading


@dataclass(frozen=True, slots=True)
class _Tree:
    """Grows nodes and edges; thrown away once they are read off."""

    builder: Builder
    gpus: Mapping[str, GpuText]
    nodes: list[Node]
    edges: list[Edge]

    def port(self, device: str, parent: str) -> None:
        """Hang a device below a part: a GPU by its own width and generation."""
        gpu = self.gpus.get(device)
        lanes, generation = (gpu.lanes, gpu.generation) if gpu else (16, 0)
        self.edges.append(self.builder.pcie(device, parent, lanes=lanes, generation=generation))

    def switch(self, parent: str) -> str:
        name = f"switch{sum(node.kind == 'pcie_switch' for node in self.nodes)}"
        self.nodes.append(Node(name=name, kind="pcie_switch", numa=self.nodes[-1].numa))
        self.edges.append(self.builder.pcie(name, parent))
        return name


def lay_out(reading: Reading, builder: Builder) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Build the parts above the devices that make every label of `reading` come true."""
    devices = [device.name for device in reading.devices]
    tree = _Tree(builder, {gpu.name: gpu for gpu in reading.gpus}, [], [])
    numa = {device.name: device.numa for device in reading.devices}
    cpus = []
    roots = 0
    for number, socket in enumerate(processors(reading)):
        nodes = {numa[name] for name in socket} - {None}
        cpu = Node(name=f"CPU{number}", kind="cpu", numa=nodes.pop() if len(nodes) == 1 else None)
        cpus.append(cpu)
        tree.nodes.append(cpu)
        for members in components(socket, _close_pairs(reading, socket, 3)):
            root = Node(name=f"root{roots}", kind="root", numa=cpu.numa)
            roots += 1
            tree.nodes.append(root)
            tree.edges.append(builder.host(root.name, cpu.name))
            for group in components(members, _close_pairs(reading, members, 2)):
                _hang(tree, reading, group, root.name)
    tree.edges.extend(builder.sockets(cpus))
    order = {name: index for index, name in enumerate(devices)}
    edges = sorted(tree.edges, key=lambda edge: order.get(edge.a, len(order)))
    return tuple(tree.nodes), tuple(edges)


def _hang(tree: _Tree, reading: Reading, group: Sequence[str], root: str) -> None:
    """Hang devices that share switches below a root."""
    if len(group) == 1:
        tree.port(group[0], root)
        return
    top = tree.switch(root)
    leaves = components(group, _close_pairs(reading, group, 1))
    for leaf in leaves:
        parent = top if len(leaves) == 1 else tree.switch(top)
        for device in leaf:
            tree.port(device, parent)


def processors(reading: Reading) -> list[list[str]]:
    """Say which devices share a processor: by labels, then by NUMA node or list of processors.

    A label ``SYS`` between two devices keeps them, and all that is near them, apart. Devices of
    which nothing is known share a processor of their own.
    """
    devices = [device.name for device in reading.devices]
    near_groups = components(devices, _close_pairs(reading, devices, 4))
    merged = _Merge(
        {name: number for number, group in enumerate(near_groups) for name in group},
        dict(enumerate(near_groups)),
        {number: set() for number in range(len(near_groups))},
    )
    for label, ends in _labels(reading):
        if label.kind == "SYS":
            merged.part(*ends)
    for neighbours in _devices_by_place(reading):
        merged.join(neighbours)
    gpus = [gpu.name for gpu in reading.gpus]
    merged.join([name for name in gpus if merged.is_lone(name) and _is_lost(reading, name)])
    merged.join(
        [nic.name for nic in reading.nics if merged.is_lone(nic.name) and _is_far(reading, nic)]
    )
    return sorted(merged.groups.values(), key=lambda group: devices.index(group[0]))


@dataclass(frozen=True, slots=True)
class _Merge:
    """Groups of devices that grow together unless they are known to be apart."""

    number: dict[str, int]
    groups: dict[int, list[str]]
    apart: dict[int, set[int]]

    def is_lone(self, name: str) -> bool:
        return len(self.groups[self.number[name]]) == 1

    def part(self, a: str, b: str) -> None:
        group_a, group_b = self.number[a], self.number[b]
        if group_a != group_b:
            self.apart[group_a].add(group_b)
            self.apart[group_b].add(group_a)

    def join(self, names: Sequence[str]) -> None:
        """Put each device with the first of the others that it is not apart from."""
        leaders: list[int] = []
        for name in names:
            group = self.number[name]
            target = next((n for n in leaders if n == group or n not in self.apart[group]), group)
            if target == group:
                leaders += [group] * (group not in leaders)
                continue
            leaders = [n for n in leaders if n != group]
            for member in self.groups.pop(group):
                self.number[member] = target
                self.groups[target].append(member)
            for distant in self.apart.pop(group):
                self.apart[distant].discard(group)
                self.apart[distant].add(target)
                self.apart[target].add(distant)


def _labels(reading: Reading) -> Iterator[tuple[Label, tuple[str, str]]]:
    """Yield every label with its two devices, those beneath NVLink too."""
    for source in (reading.labels, reading.under):
        yield from ((label, ends) for ends, label in source.items())


def _devices_by_place(reading: Reading) -> list[list[str]]:
    """Gather devices by NUMA node; by list of processors where no node is given at all."""
    numbered = any(gpu.numa is not None for gpu in reading.gpus)
    places: dict[int | str, list[str]] = {}
    for device in reading.devices:
        affinity = device.affinity if isinstance(device, GpuText) and not numbered else ""
        place = device.numa if device.numa is not None else affinity
        if place != "":
            places.setdefault(place, []).append(device.name)
    return list(places.values())


def _is_lost(reading: Reading, name: str) -> bool:
    """Tell whether a text says nothing about where a GPU is among the others."""
    if any(name in group for group in _devices_by_place(reading)):
        return False
    peers = [gpu.name for gpu in reading.gpus if gpu.name != name]
    labels = [reading.host_label(name, peer) for peer in peers]
    return not any(label and label.kind in RANKS for label in labels)


def _is_far(reading: Reading, nic: Nic) -> bool:
    """Tell whether all that is known of a NIC is that it is far from every GPU."""
    return nic.numa is None and not any(
        peer.name != nic.name and reading.label(peer.name, nic.name) for peer in reading.nics
    )


def _close_pairs(reading: Reading, names: Iterable[str], rank: int) -> list[tuple[str, str]]:
    """Pair the devices whose label is at most `rank`: 1 PIX, 2 PXB, 3 PHB, 4 NODE."""
    name_set = set(names)
    return [
        ends
        for label, ends in _labels(reading)
        if name_set.issuperset(ends) and RANKS.get(label.kind, 9) <= rank
    ]
