"""One accelerator, as its vendor describes it.

How much of a peak is reached is a matter of profiles, not of this catalogue.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from topology.base import CatalogueError, Sourced, read_sourced

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]
Precision = Literal["bf16", "fp16", "fp8", "nvfp4", "int8"]

_UNITS: Final = {
    "multiprocessors": "1",
    "clock": "Hz",
    "memory": "B",
    "memory_bandwidth": "B/s",
    "l2": "B",
    "power": "W",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU. Peaks are dense, with 32-bit accumulation, at the boost clock.

    `form` is what decides power and links within one architecture: ``sxm``, ``pcie`` ...
    `peaks` holds FLOP/s by precision; a precision without tensor cores for it is absent.
    """

    name: str
    architecture: Architecture
    compute_capability: tuple[int, int]
    form: str
    multiprocessors: Sourced
    clock: Sourced  # Hz, boost
    memory: Sourced  # B, what the driver reports as total
    memory_bandwidth: Sourced  # B/s
    l2: Sourced  # B
    power: Sourced  # W, limit
    peaks: tuple[tuple[Precision, Sourced], ...]

    @property
    def capability(self) -> int:
        """Compute capability without its point: 90 for 9.0."""
        major, minor = self.compute_capability
        return major * 10 + minor

    def peak(self, precision: str) -> Sourced | None:
        """Dense FLOP/s at `precision`, or None where the device has no tensor cores for it."""
        return dict(self.peaks).get(cast(Precision, precision))


def load_devices(text: str) -> dict[str, Device]:
    """Read a device catalogue from TOML `text`; the caller does the file I/O."""
    return {name: _device(name, row) for name, row in tomllib.loads(text).items()}


def _device(name: str, row: Mapping[str, object]) -> Device:
    peaks = row.get("peaks", {})
    wanted = {"architecture", "compute_capability", "form", "kind", "source", "peaks", *_UNITS}
    if row.keys() != wanted or not isinstance(peaks, Mapping):
        raise CatalogueError(f"{name}: expected {sorted(wanted)}, got {sorted(row)}")
    if row["architecture"] not in get_args(Architecture):
        raise CatalogueError(f"{name}: unknown architecture {row['architecture']!r}")
    major, _, minor = str(row["compute_capability"]).partition(".")
    numbers = {
        key: read_sourced(f"{name}.{key}", row[key], unit, row) for key, unit in _UNITS.items()
    }
    return Device(
        name=name,
        architecture=cast(Architecture, row["architecture"]),
        compute_capability=(int(major), int(minor)),
        form=str(row["form"]),
        peaks=tuple(
            (cast(Precision, key), read_sourced(f"{name}.peaks.{key}", entry, "FLOP/s", row))
            for key, entry in peaks.items()
        ),
        **numbers,
    )
