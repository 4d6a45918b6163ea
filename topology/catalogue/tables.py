"""The hardware that ships with the project. Nothing else here touches a packaged file."""

from functools import cache
from importlib.resources import files

from topology.base import unknown
from topology.catalogue.devices import Device, load_devices
from topology.catalogue.hardware import Hardware, load_hardware
from topology.catalogue.instances import Instance, load_instances
from topology.catalogue.names import GpuName, load_names
from topology.catalogue.rates import Rates, load_rates


@cache
def all_devices() -> dict[str, Device]:
    """Read `data/devices.toml`, once."""
    return load_devices(_read("devices.toml"))


@cache
def all_hardware() -> dict[str, Hardware]:
    """Read `data/hardware.toml`, once."""
    return load_hardware(_read("hardware.toml"), all_devices())


def find_hardware(name: str) -> Hardware:
    """Look up a catalogue name, or say which names are near.

    Raises
    ------
    InputError
        If there is no hardware of that name.
    """
    known = all_hardware()
    if name.lower() not in known:
        raise unknown("hardware", name, known)
    return known[name.lower()]


@cache
def rented_machines() -> tuple[Instance, ...]:
    """Read `data/instances.toml`, once."""
    return load_instances(_read("instances.toml"))


def _read(name: str) -> str:
    return files("topology").joinpath("data", name).read_text(encoding="utf-8")


@cache
def link_rates() -> Rates:
    """Read `data/links.toml`, once."""
    return load_rates(_read("links.toml"))


@cache
def gpu_names() -> tuple[GpuName, ...]:
    """Read `data/gpu_names.toml`, once."""
    return load_names(_read("gpu_names.toml"))
