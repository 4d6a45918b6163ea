"""The machine that a person means: a text, a file, a catalogue name, or the one this runs on."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from topology.base import (
    MOST_CHARACTERS,
    InputError,
    TopologyError,
    is_file,
    is_text,
    shown,
    text_of,
    unknown,
)
from topology.catalogue import (
    Hardware,
    all_hardware,
    check_pcie_generation,
    find_hardware,
    names_file,
)
from topology.machine import Machine, machine_of, repeated
from topology.readers.assemble import Choices, assemble, with_concerns
from topology.readers.cluster import build_cluster, host_of, read_cluster
from topology.readers.detect import detect
from topology.readers.nccl import graphs_machine, read_graph_lines, read_graphs, read_system
from topology.readers.own_graph import machine_in
from topology.readers.own_json import document_in, read_own
from topology.readers.reading import Label, Reading
from topology.readers.smi_xml import Listing, read_listing, read_smi
from topology.readers.topo_matrix import find_tables, plain_lines, read_matrices
from topology.readers.xml import parse_xml

_ROOT_TAG: Final = re.compile(r"<(system|graphs|nvidia_smi_log)[\s>/]")
_HARDWARE_TABLE: Final = re.compile(r"^[ \t]*\[hardware\]", re.MULTILINE)
_CLUSTER_KEY: Final = re.compile(r"^[ \t]*(?:hosts|hardware|topology)[ \t]*=", re.MULTILINE)


def read_topology(
    source: str | Path,
    *,
    hardware: Hardware | str | Path | None = None,
    pcie_generation: int | None = None,
) -> Machine:
    r"""Read a machine from a text, or from the file of that name.

    Known are ``nvidia-smi topo -m``, ``-mp`` and ``-p2p``, ``nvidia-smi -q -x``, ``-L`` and
    ``nvlink -s``, the XML that NCCL writes (topology and graph), cluster files in TOML, and what
    this program writes as JSON. What the text leaves open is assumed, as ``planner topology`` does,
    the generation of nameless GPUs too: every assumption is a line of `assumptions`. Estimates and
    collectives ask for the kind of such GPUs instead.

    hardware : kind of the GPUs, its catalogue name or its file, where the text does not name it.
    pcie_generation : of the server, where the text does not say.

    Raises InputError if the text is none of these, or contradicts itself, where the message names
    the place, or if the hardware is no catalogue name.

    >>> pair = read_topology("     GPU0 GPU1\nGPU0  X   NV4\nGPU1 NV4   X")
    >>> [(link.kind, link.count, link.bandwidth) for link in pair.pairs]
    [('NVLINK', 4, 56250000000.0)]
    """
    if not isinstance(source, str | Path):
        raise InputError(f"topology: got {shown(source)}, wanted the text or the path of a machine")
    check_pcie_generation(pcie_generation)
    kind = _kind(hardware)
    choices = Choices(
        name="machine" if is_text(source) else Path(source).name,
        hardware=kind,
        pcie_generation=pcie_generation,
        catalogue=all_hardware() if kind is None else {**all_hardware(), kind.name: kind},
    )
    return read_text(text_of(source), choices)


def _kind(hardware: object) -> Hardware | None:
    if hardware is None or isinstance(hardware, Hardware):
        return hardware
    if not isinstance(hardware, str | Path):
        raise InputError(f"hardware: got {shown(hardware)}, wanted a name")
    return find_hardware(hardware)


def read_text(text: str, choices: Choices) -> Machine:
    """Read a machine from `text`, finding out first what it is."""
    if len(text) > MOST_CHARACTERS:
        raise TopologyError(f"{len(text)} characters: expected at most {MOST_CHARACTERS}")
    if not text.strip():
        raise TopologyError("got an empty text, wanted a topology")
    if "\x00" in text:
        position = text.index("\x00")
        raise TopologyError(f"byte {position} is 0: got binary data, wanted text")
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<") or _ROOT_TAG.search(text):
        return with_concerns(_xml_machine(text, choices), choices)
    if start.startswith(("{", "[")) and not find_tables(plain_lines(text)):
        return _own_machine(document_in(start), choices)
    if _HARDWARE_TABLE.search(text):
        raise TopologyError(f"{choices.name}: got hardware, wanted a machine: give it as hardware")
    if _CLUSTER_KEY.search(text):
        return _cluster_machine(text, choices)
    return with_concerns(_pasted_machine(plain_lines(text), choices), choices)


def _own_machine(table: Mapping[str, object], choices: Choices) -> Machine:
    """Take the machine as it was written, unless its rows were changed or the user says more."""
    machine = machine_in(table, choices.name, choices.catalogue)
    kind = choices.hardware and choices.hardware.name
    if machine and kind in (None, machine.hardware) and not choices.pcie_generation:
        return machine
    return with_concerns(assemble(read_own(table, choices.catalogue), choices), choices)


def _xml_machine(text: str, choices: Choices) -> Machine:
    root = parse_xml(_document(text))
    match root.tag:
        case "system":
            return read_system(root, choices)
        case "graphs":
            return read_graphs(root, choices)
        case "nvidia_smi_log":
            return assemble(read_smi(root), choices)
        case tag:
            raise TopologyError(
                f"XML line {root.line}: <{tag[:40]}>: expected <system>, <graphs> or "
                f"<nvidia_smi_log>"
            )


def _document(text: str) -> str:
    """Cut text before and after an XML document off, leaving its lines where they are."""
    start = text.lstrip("\ufeff \t\r\n")
    root = _ROOT_TAG.search(text)
    if root is None or start.startswith("<"):
        return "\n" * text[: len(text) - len(start)].count("\n") + start
    close = text.rfind(f"</{root[1]}>")
    end = close + len(root[1]) + 3 if close >= 0 else len(text)
    return "\n" * text[: root.start()].count("\n") + text[root.start() : end]


def _cluster_machine(text: str, choices: Choices) -> Machine:
    cluster = read_cluster(text)
    if cluster.topology is None:
        host = host_of(cluster, choices.catalogue)
    else:
        host = read_text(cluster.topology, choices)
    return with_concerns(build_cluster(cluster, replace(host, warnings=())), choices)


def _pasted_machine(lines: Sequence[str], choices: Choices) -> Machine:
    tables = find_tables(lines)
    listing = read_listing(lines)
    if tables:
        return assemble(read_matrices(tables, lines, listing), choices)
    searches = read_graph_lines(lines)
    if searches:
        return graphs_machine(searches, (), choices)
    if listing.gpus:
        return assemble(_listing_reading(listing), choices)
    first_line = next((line.strip() for line in lines if line.strip()), "")
    raise TopologyError(
        f"no topology in a text that begins {first_line[:50]!r}: wanted nvidia-smi topo -m, its "
        "XML, "
        f"NCCL's XML, or a cluster in TOML"
    )


def _listing_reading(listing: Listing) -> Reading:
    """Read a list of GPUs without a matrix: two with as many links must be joined by them."""
    gpus = listing.gpus
    labels = {}
    if len(gpus) == 2 and gpus[0].links and gpus[0].links == gpus[1].links:
        labels[gpus[0].name, gpus[1].name] = Label("NVLINK", gpus[0].links)
    return Reading(
        source="nvidia-smi list of GPUs",
        gpus=gpus,
        labels=labels,
        link_rate=listing.link_rate,
        assumptions=("the text does not tell how GPUs are joined",),
    )


MOST_NODES: Final = 1024  # hosts
_FILE_MARKS: Final = frozenset("/\\.")  # of what can only be a file


def named_machine(
    name: str | None,
    *,
    here: bool = False,
    kind: str | None = None,
    nodes: int = 1,
    pcie_generation: int | None = None,
) -> Machine:
    """Return a machine.

    name : a catalogue name, a file of hardware or of a machine, or a text. here : look at the
        machine this runs on instead.
    kind : catalogue name of its GPUs, where a file does not say. nodes : hosts, copies of one.

    Raises InputError if there is no such name or file, or it describes no machine.
    """
    hardware = find_hardware(kind) if kind else None
    if here:
        if name is not None:
            raise InputError(f"topology detect: got the name {name[:60]!r}, wanted none")
        return _repeated_machine(detect(hardware=hardware, pcie_generation=pcie_generation), nodes)
    if name is None:
        raise InputError("topology: wanted a catalogue name or a file")
    if name.lower() in all_hardware() or _holds_hardware(name):
        if not 1 <= nodes <= MOST_NODES:
            raise InputError(f"nodes: got {nodes}, wanted a whole number from 1 to {MOST_NODES}")
        if pcie_generation is not None:
            raise InputError(
                f"pcie_generation: got {pcie_generation}, wanted none beside catalogue hardware"
            )
        named_hardware = find_hardware(name)
        if hardware not in (None, named_hardware):
            raise InputError(f"hardware: got {kind} beside {name}, wanted one of the two")
        return machine_of(named_hardware, nodes)
    if not is_text(name) and _FILE_MARKS.isdisjoint(name) and not is_file(name):
        raise unknown("hardware or file", name, all_hardware())
    return _repeated_machine(
        read_topology(name, hardware=hardware, pcie_generation=pcie_generation), nodes
    )


def _holds_hardware(name: str) -> bool:
    """Tell whether a file describes a GPU and its node, not a machine or a cluster."""
    is_hardware_file = not is_text(name) and names_file(name) and is_file(name)
    return is_hardware_file and bool(_HARDWARE_TABLE.search(text_of(name)))


def _repeated_machine(machine: Machine, nodes: int) -> Machine:
    """Repeat a host; a description of several says itself how many there are."""
    if nodes in (1, machine.hosts):
        return machine
    if machine.hosts > 1 or not 1 <= nodes <= MOST_NODES:
        wanted = machine.hosts if machine.hosts > 1 else f"a whole number from 1 to {MOST_NODES}"
        raise InputError(f"nodes: got {nodes} for {machine.name}, wanted {wanted}")
    return repeated(machine, nodes)
