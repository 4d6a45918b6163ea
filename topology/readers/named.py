"""The machine that a person names: this one, a catalogue name, or a file."""

from typing import Final

from topology.base import InputError, is_file, is_text, unknown
from topology.catalogue import all_hardware, find_hardware
from topology.machine.graph import Machine
from topology.machine.node import machine_of
from topology.readers.cluster import repeated
from topology.readers.detect import detect
from topology.readers.read import read_topology

LARGEST: Final = 1024  # hosts
_MARKS: Final = frozenset("/\\.")  # of what can only be a file


def named(
    name: str | None,
    *,
    here: bool = False,
    kind: str | None = None,
    nodes: int = 1,
    pcie_generation: int | None = None,
) -> Machine:
    """Return a machine.

    Parameters
    ----------
    name : a catalogue name, a path or a text. here : look at the machine this runs on instead.
    kind : catalogue name of its GPUs, where a file does not say. nodes : hosts, copies of one.

    Raises
    ------
    InputError
        If there is no such name or file, or it describes no machine.
    """
    found = find_hardware(kind) if kind else None
    if here:
        if name is not None:
            raise InputError(f"topology detect: got the name {name[:60]!r}, wanted none")
        return _times(detect(hardware=found, pcie_generation=pcie_generation), nodes)
    if name is None:
        raise InputError("topology: wanted a catalogue name or a file")
    if name.lower() in all_hardware():
        if not 1 <= nodes <= LARGEST:
            raise InputError(f"nodes: got {nodes}, wanted a whole number from 1 to {LARGEST}")
        if pcie_generation is not None:
            raise InputError(
                f"pcie_generation: got {pcie_generation}, wanted none beside catalogue hardware"
            )
        if found is not None and found.name != name.lower():
            raise InputError(f"hardware: got {found.name} beside {name}, wanted one of the two")
        return machine_of(find_hardware(name), nodes)
    if not is_text(name) and _MARKS.isdisjoint(name) and not is_file(name):
        raise unknown("hardware or file", name, all_hardware())
    return _times(read_topology(name, hardware=found, pcie_generation=pcie_generation), nodes)


def _times(machine: Machine, nodes: int) -> Machine:
    """Repeat a host; a description of several says itself how many there are."""
    if nodes in (1, machine.hosts):
        return machine
    if machine.hosts > 1 or not 1 <= nodes <= LARGEST:
        wanted = machine.hosts if machine.hosts > 1 else f"a whole number from 1 to {LARGEST}"
        raise InputError(f"nodes: got {nodes} for {machine.name}, wanted {wanted}")
    return repeated(machine, nodes)
