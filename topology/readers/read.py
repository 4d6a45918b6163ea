"""Read a machine from whatever describes it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from topology.base import InputError, TopologyError, is_text, shown, text_of
from topology.catalogue import (
    Hardware,
    all_hardware,
    architecture_of,
    check_pcie_generation,
    find_hardware,
)
from topology.machine.concerns import concerns
from topology.machine.graph import Machine
from topology.readers.assemble import Choices, assemble
from topology.readers.cluster import build_cluster, host_of, read_cluster
from topology.readers.graphs import graphs_machine, read_graph_lines, read_graphs
from topology.readers.lines import checked, plain_lines
from topology.readers.listing import Listing, read_listing
from topology.readers.matrix import read_matrices
from topology.readers.nccl import read_system
from topology.readers.own import read_own
from topology.readers.reading import Label, Reading
from topology.readers.smi import read_smi
from topology.readers.tables import find_tables
from topology.readers.xml import parse_xml

_ROOT: Final = re.compile(r"<(system|graphs|nvidia_smi_log)[\s>/]")
_CLUSTER: Final = re.compile(r"^[ \t]*(?:hosts|hardware|topology)[ \t]*=", re.MULTILINE)


def read_topology(
    source: str | Path,
    *,
    hardware: Hardware | str | None = None,
    pcie_generation: int | None = None,
) -> Machine:
    r"""Read a machine from a text, or from the file of that name.

    Known are ``nvidia-smi topo -m``, ``-mp`` and ``-p2p``, ``nvidia-smi -q -x``, ``-L`` and
    ``nvlink -s``, the XML that NCCL writes (topology and graph), cluster files in TOML, and what
    this program writes as JSON. What the text leaves open is assumed, as ``planner topology`` does,
    the generation of nameless GPUs too: every assumption is a line of `assumptions`. Estimates and
    collectives ask for the kind of such GPUs instead.

    Parameters
    ----------
    hardware : kind of the GPUs, or its catalogue name, where the text does not name it.
    pcie_generation : of the server, where the text does not say.

    Raises
    ------
    InputError
        If the text is none of these, or contradicts itself; the message names the place. If the
        hardware is no catalogue name.

    Examples
    --------
    >>> pair = read_topology("     GPU0 GPU1\nGPU0  X   NV4\nGPU1 NV4   X")
    >>> [(link.kind, link.count, link.bandwidth) for link in pair.pairs]
    [('NVLINK', 4, 56250000000.0)]
    """
    if not isinstance(source, str | Path):
        raise InputError(f"topology: got {shown(source)}, wanted the text or the path of a machine")
    check_pcie_generation(pcie_generation)
    choices = Choices(
        name="machine" if is_text(source) else Path(source).name,
        hardware=_kind(hardware),
        pcie_generation=pcie_generation,
        catalogue=all_hardware(),
    )
    return read_text(text_of(source), choices)


def _kind(hardware: object) -> Hardware | None:
    if hardware is None or isinstance(hardware, Hardware):
        return hardware
    if not isinstance(hardware, str):
        raise InputError(f"hardware: got {shown(hardware)}, wanted a name")
    return find_hardware(hardware)


def read_text(text: str, choices: Choices) -> Machine:
    """Read a machine from `text`, finding out first what it is.

    Raises
    ------
    InputError
        If it is nothing known, or contradicts itself; the message names the place.
    """
    checked(text)
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<") or _ROOT.search(text):
        return finished(_xml(text, choices), choices)
    if start.startswith(("{", "[")) and not find_tables(plain_lines(text)):
        return finished(assemble(read_own(start, choices.catalogue), choices), choices)
    if _CLUSTER.search(text):
        return _cluster(text, choices)
    return finished(_pasted(plain_lines(text), choices), choices)


def finished(machine: Machine, choices: Choices) -> Machine:
    """Add what is worrying about the machine to what was odd about the text.

    Raises
    ------
    InputError
        If the GPUs are not of the kind that the user says they are.
    """
    if choices.hardware is not None:
        _agreed(machine, choices.hardware)
    return replace(machine, warnings=(*machine.warnings, *concerns(machine)))


def _agreed(machine: Machine, hardware: Hardware) -> None:
    """Check that a kind which the user gives is that of a GPU, and of its generation."""
    kinds = {gpu.hardware: gpu for gpu in reversed(machine.gpus)}
    own = kinds.get(hardware.name)
    if own is None and machine.gpus:
        first = machine.gpus[0]
        what = f"{first.product or first.hardware}"
        raise InputError(
            f"hardware: got {hardware.name}, but {machine.name} says that {first.name} is "
            f"{what[:60]}: wanted {' or '.join(map(str, kinds))}, or none"
        )
    if own is not None and own.architecture != architecture_of(own.capability):
        raise InputError(
            f"hardware: got {hardware.name}, of compute capability "
            f"{'.'.join(map(str, hardware.device.compute_capability))}, but {machine.name} says "
            f"that {own.name} has {own.capability / 10:g}"
        )


def _xml(text: str, choices: Choices) -> Machine:
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
    root = _ROOT.search(text)
    if root is None or start.startswith("<"):
        return "\n" * text[: len(text) - len(start)].count("\n") + start
    close = text.rfind(f"</{root[1]}>")
    end = close + len(root[1]) + 3 if close >= 0 else len(text)
    return "\n" * text[: root.start()].count("\n") + text[root.start() : end]


def _cluster(text: str, choices: Choices) -> Machine:
    said = read_cluster(text)
    if said.topology is None:
        host = host_of(said, choices.catalogue)
    else:
        host = read_text(said.topology, choices)
    return finished(build_cluster(said, replace(host, warnings=())), choices)


def _pasted(lines: Sequence[str], choices: Choices) -> Machine:
    tables = find_tables(lines)
    listing = read_listing(lines)
    if tables:
        return assemble(read_matrices(tables, lines, listing), choices)
    searches = read_graph_lines(lines)
    if searches:
        return graphs_machine(searches, (), choices)
    if listing.gpus:
        return assemble(_listed(listing), choices)
    first = next((line.strip() for line in lines if line.strip()), "")
    raise TopologyError(
        f"no topology in a text that begins {first[:50]!r}: wanted nvidia-smi topo -m, its XML, "
        f"NCCL's XML, or a cluster in TOML"
    )


def _listed(listing: Listing) -> Reading:
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
