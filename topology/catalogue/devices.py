"""One accelerator, as its vendor describes it.

How much of a peak is reached is a matter of profiles, not of this catalogue.
"""

import re
from typing import Final, Literal, cast, get_args

from topology.base import (
    CatalogueError,
    PrecisionError,
    Sourced,
    check_keys,
    read_choice,
    read_sourced,
    shown,
)
from topology.base.values import dataclass

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]
Precision = Literal["bf16", "fp16", "fp8", "nvfp4", "int8", "int4", "mxfp4"]
MULTIPLIED: Final = ("bf16", "fp16", "fp8", "nvfp4", "int8")
"""Precisions that tensor cores multiply; weights alone in others become 16-bit numbers first."""

_UNITS: Final = {
    "multiprocessors": "1", "clock": "Hz", "memory": "B", "memory_bandwidth": "B/s", "l2": "B",
    "power": "W",
}  # fmt: skip


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

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def capability(self) -> int:
        """Compute capability without its point: 90 for 9.0."""
        major, minor = self.compute_capability
        return major * 10 + minor

    def peak(self, precision: str) -> Sourced | None:
        """Dense FLOP/s at `precision`, or None where the device has no tensor cores for it."""
        peaks = dict(self.peaks)
        if precision in ("int4", "mxfp4"):  # weights alone
            return peaks.get("bf16") or peaks.get("fp16")
        return peaks.get(cast(Precision, precision))

    @property
    def half(self) -> Precision:
        """16-bit type that its tensor cores multiply: bf16 where they can."""
        return "bf16" if self.peak("bf16") else "fp16"

    def needed_peak(self, precision: str) -> float:
        """Dense FLOP/s at `precision`."""
        peak = self.peak(precision)
        if peak is None:
            supported = ", ".join(name for name, _ in self.peaks)
            raise PrecisionError(
                f"{self.name} has no tensor cores for {precision}: expected one of {supported}"
            )
        return peak.value


def read_device(name: str, row: object) -> Device:
    """Read the table of one device."""
    keys = ("kind", "source", "architecture", "compute_capability", "form", "peaks", *_UNITS)
    row = check_keys(name, row, keys)
    capability = re.fullmatch(r"([0-9]{1,2})\.([0-9])", str(row["compute_capability"]))
    if capability is None:
        text = shown(row["compute_capability"])
        raise CatalogueError(f"{name}.compute_capability: got {text}, wanted text such as '9.0'")
    peaks = check_keys(f"{name}.peaks", row["peaks"], (), MULTIPLIED)
    if not peaks.keys() & {"bf16", "fp16"}:
        raise CatalogueError(f"{name}.peaks: got {', '.join(peaks) or 'none'}, wanted bf16 or fp16")
    architecture = read_choice(f"{name}.architecture", row["architecture"], get_args(Architecture))
    return Device(
        name=name,
        architecture=cast(Architecture, architecture),
        compute_capability=(int(capability[1]), int(capability[2])),
        form=str(row["form"]),
        peaks=tuple(
            (cast(Precision, key), read_sourced(f"{name}.peaks.{key}", entry, "FLOP/s", row))
            for key, entry in peaks.items()
        ),
        **{key: read_sourced(f"{name}.{key}", row[key], unit, row) for key, unit in _UNITS.items()},
    )
