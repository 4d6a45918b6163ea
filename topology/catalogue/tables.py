"""The tables that ship with the project, and the hardware that is in a file of one's own."""

import re
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from topology.base import InputError, content, decoded_text, is_file, shipped_table, unknown
from topology.catalogue.devices import Device, read_device
from topology.catalogue.hardware import Hardware, load_hardware_file, read_hardware
from topology.catalogue.names import GpuName, Instance, load_instances, load_names
from topology.catalogue.rates import Rates, load_rates

_MOST_BYTES: Final = 2**20  # B, a file of hardware
_FILE_HINT: Final = "a file describes others: examples/my_gpu.toml"
_PATH_MARKS: Final = frozenset("/\\")  # of a path


@cache
def all_devices() -> dict[str, Device]:
    """Read `data/devices.toml`, once."""
    return {name: read_device(name, row) for name, row in _read("devices.toml").items()}


@cache
def all_hardware() -> dict[str, Hardware]:
    """Read `data/hardware.toml`, once."""
    rows, devices = _read("hardware.toml"), all_devices()
    return {name: read_hardware(name, row, devices) for name, row in rows.items()}


def find_hardware(name: str | Path) -> Hardware:
    """Look up a catalogue name, or read the file of hardware that is named instead.

    Hardware of a file is called by its path, by which it is found again.

    Raises InputError if there is no hardware of that name (the message says which are near), the
    path cannot be printed, or the file cannot be read or holds none.
    """
    text, catalogue = str(name), all_hardware()
    if text.lower() in catalogue:
        return catalogue[text.lower()]
    if isinstance(name, str) and not names_file(text):
        if re.match(r"mi\d|amd|instinct|radeon", text, re.IGNORECASE):
            wanted = f"a GPU of NVIDIA: none of AMD is in the catalogue ({_FILE_HINT})"
            raise InputError(f"hardware: got {text[:60]!r}, wanted {wanted}")
        raise InputError(f"{unknown('hardware', text, catalogue)} ({_FILE_HINT})")
    if not text.isprintable():  # answers call the hardware by it
        raise InputError(f"hardware {text[:100]!r}: wanted a path of printable characters")
    try:
        return _from_file(text, content(text, _MOST_BYTES))
    except InputError as error:
        raise InputError(f"hardware {text[:100]}: {error}") from None


def names_file(name: str) -> bool:
    """Tell the path of a file of hardware from a name of the catalogue."""
    return name.endswith(".toml") or (not _PATH_MARKS.isdisjoint(name) and is_file(name))


@lru_cache(maxsize=64)
def _from_file(name: str, data: bytes) -> Hardware:
    return load_hardware_file(decoded_text(data, "text"), name, all_devices())


@cache
def rented_machines() -> tuple[Instance, ...]:
    """Read `data/instances.toml`, once."""
    return load_instances(_read("instances.toml"))


def _read(name: str) -> dict[str, Any]:
    return shipped_table(files("topology").joinpath("data", name))


@cache
def link_rates() -> Rates:
    """Read `data/links.toml`, once."""
    return load_rates(_read("links.toml"))


@cache
def gpu_names() -> tuple[GpuName, ...]:
    """Read `data/gpu_names.toml`, once."""
    return load_names(_read("gpu_names.toml"))
