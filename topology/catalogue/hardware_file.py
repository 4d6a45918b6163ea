"""A GPU of one's own, and the node it comes in: a file in the form of the catalogue's tables.

::

    [device]                       # as in topology/data/devices.toml; left out for a node of one's
    kind = "datasheet"             # own with a GPU of the catalogue, which [hardware] then names
    source = "the vendor's data sheet, revision 2"
    architecture = "hopper"
    ...

    [hardware]                     # as in topology/data/hardware.toml
    kind = "assumed"
    source = "the server we mean to buy"
    gpus = 8
    ...
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from topology.base import (
    FASTEST_LINK,
    SLOWEST_LINK,
    CatalogueError,
    Sourced,
    check_keys,
)
from topology.catalogue.devices import Device, read_device
from topology.catalogue.hardware import Hardware, read_hardware

_RANGES: Final = {  # what can be meant: a slip of a unit shows
    "multiprocessors": (1, 10**5),
    "clock": (10**7, 10**11),
    "memory": (10**8, 10**14),
    "l2": (10**4, 10**11),
    "power": (1, 10**5),
    "peaks": (10**10, 10**18),
}


def load_hardware_file(text: str, name: str, devices: Mapping[str, Device]) -> Hardware:
    """Read hardware from TOML `text`; it and a device of its own are called `name`.

    Parameters
    ----------
    devices : those of the catalogue. Kernels are priced with the tables of a GPU's generation,
        which its compute capability names, so that it must be that of one of them.

    Raises
    ------
    CatalogueError
        If the text is no TOML, a key is missing or unknown, or a value cannot be or has no source.
    """
    try:
        tables = check_keys("file", tomllib.loads(text), ("hardware",), ("device",))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CatalogueError(f"TOML: {str(error)[:120]}") from None
    except ValueError as error:
        if isinstance(error, CatalogueError):
            raise
        raise CatalogueError("TOML: got a number of thousands of digits") from None
    node = tables["hardware"]
    if "device" in tables:
        if isinstance(node, Mapping) and "device" in node:
            raise CatalogueError("hardware.device: got a name beside a table [device], wanted one")
        device = replace(read_device("device", tables["device"]), name=name)
        _check_generation(device, devices)
        devices = {**devices, name: device}
        node = {**node, "device": name} if isinstance(node, Mapping) else node
    hardware = replace(read_hardware("hardware", node, devices), name=name)
    _check_node(hardware)
    for place, number in _numbers(hardware):
        least, most = _RANGES.get(place.split(".")[1], (SLOWEST_LINK, FASTEST_LINK))
        if not least <= number.value <= most:
            raise CatalogueError(f"{place}: got {number.value:g}, wanted {least:g} to {most:g}")
    if hardware.device.multiprocessors.value % 1:
        count = hardware.device.multiprocessors.value
        raise CatalogueError(f"device.multiprocessors: got {count:g}, wanted a whole number")
    return hardware


def _check_generation(device: Device, devices: Mapping[str, Device]) -> None:
    """Refuse a compute capability that no table of kernels is for."""
    architectures = {other.compute_capability: other.architecture for other in devices.values()}
    capability = device.compute_capability
    if architectures.get(capability) != device.architecture:
        wanted = ", ".join(f"{a}.{b} ({name})" for (a, b), name in sorted(architectures.items()))
        shown = ".".join(map(str, capability))
        raise CatalogueError(
            f"device.compute_capability: got {shown} ({device.architecture}), wanted one of "
            f"{wanted}"
        )


def _check_node(hardware: Hardware) -> None:
    """Refuse NVLink domains that split hosts unevenly, and multicast without a switch for it."""
    if hardware.multicast and hardware.link != "nvswitch":
        raise CatalogueError(f"hardware.multicast: got true with {hardware.link}, wanted nvswitch")
    gpus, domain = hardware.gpus, hardware.domain
    if gpus % domain and not (hardware.link == "nvswitch" and domain % gpus == 0):
        more = f", or a multiple of {gpus} with nvswitch" if hardware.link == "nvswitch" else ""
        raise CatalogueError(
            f"hardware.domain: got {domain} GPUs that share {hardware.link}, "
            f"wanted a divisor of the {gpus} of a node{more}"
        )


def _numbers(hardware: Hardware) -> Iterator[tuple[str, Sourced]]:
    device = hardware.device
    for key in ("multiprocessors", "clock", "memory", "memory_bandwidth", "l2", "power"):
        yield f"device.{key}", getattr(device, key)
    for precision, peak in device.peaks:
        yield f"device.peaks.{precision}", peak
    for key in ("link_bandwidth", "nic_bandwidth", "exchange", "exchange_across"):
        if (number := getattr(hardware, key)) is not None:
            yield f"hardware.{key}", number
