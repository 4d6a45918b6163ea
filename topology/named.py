"""The machine that a person names: this one, a catalogue name, or a file."""

from typing import Final

from topology.catalogue import hardware, hardware_names
from topology.detect import detect
from topology.errors import InputError, unknown
from topology.graph import Machine
from topology.machines import machine_of
from topology.read import read_topology
from topology.readers.catalogue import is_file, is_text

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
    kind : catalogue name of its GPUs, where a file does not say. nodes : hosts of a catalogue name.

    Raises
    ------
    InputError
        If there is no such name or file, or it describes no machine.
    """
    if here:
        return detect()
    if name is None:
        raise InputError("topology: wanted a catalogue name or a file")
    if name.lower() in hardware_names():
        if not 1 <= nodes <= LARGEST:
            raise InputError(f"nodes: got {nodes}, wanted a whole number from 1 to {LARGEST}")
        return machine_of(hardware(name), nodes)
    if not is_text(name) and _MARKS.isdisjoint(name) and not is_file(name):
        raise unknown("hardware or file", name, hardware_names())
    found = hardware(kind) if kind else None
    return read_topology(name, hardware=found, pcie_generation=pcie_generation)
