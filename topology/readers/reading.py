"""What a text says about a machine, before anything is concluded from it."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from topology.base import Bytes, BytesPerSecond, Sourced, TopologyError
from topology.base.values import dataclass
from topology.machine import Nic, PairKind, PeerStatus, Reached

MOST_GPUS: Final = 256
MOST_DEVICES: Final = 1024
RANKS: Final[Mapping[PairKind, int]] = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}


@dataclass(frozen=True, slots=True)
class Label:
    """One cell of a matrix: a kind, and the number of links for NVLink."""

    kind: PairKind
    count: int = 1

    def __str__(self) -> str:
        return f"NV{self.count}" if self.kind == "NVLINK" else self.kind


@dataclass(frozen=True, slots=True)
class GivenRate:
    """Bytes per second between two devices that a text gives; `measured` where it says so."""

    bandwidth: BytesPerSecond
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuText:
    """What a text says about one GPU; None and "" where it says nothing.

    numa : the one NUMA node it is on. affinity : its processors as written, when that is all.
    hardware : its catalogue name. slices : profiles of its MIG slices. lanes, most_lanes : PCIe
    width now and at best. links : NVLinks that are up. coherent : bytes per second and direction
    of its link to a processor whose memory it shares (C2C).
    """

    name: str
    numa: int | None = None
    affinity: str = ""
    hardware: str = ""
    product: str = ""
    architecture: str = ""
    memory: Bytes | None = None
    bus: str = ""
    mig: bool = False
    slices: tuple[str, ...] = ()
    generation: int = 0
    lanes: int = 16
    most_lanes: int = 16
    links: int | None = None
    coherent: BytesPerSecond | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a text says: devices, the labels between them, and what is odd about it.

    labels : by names, in the order of the devices. under : PCIe labels beneath NVLink ones.
    link_rate : bytes per second of one NVLink where the text has measured it. rates : bytes per
    second between two devices, as the text gives them. reached : what collectives were measured at.
    """

    source: str
    gpus: tuple[GpuText, ...]
    nics: tuple[Nic, ...] = ()
    labels: Mapping[tuple[str, str], Label] = field(default_factory=dict)
    under: Mapping[tuple[str, str], Label] = field(default_factory=dict)
    peers: tuple[PeerStatus, ...] = ()
    link_rate: Sourced | None = None
    rates: Mapping[tuple[str, str], GivenRate] = field(default_factory=dict)
    reached: tuple[Reached, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.gpus) > MOST_GPUS or len(self.gpus) + len(self.nics) > MOST_DEVICES:
            raise TopologyError(
                f"{self.source}: {len(self.gpus)} GPUs and {len(self.nics)} NICs: "
                f"expected at most {MOST_GPUS} GPUs and {MOST_DEVICES} devices in one host"
            )

    @property
    def devices(self) -> tuple[GpuText | Nic, ...]:
        """List GPUs, then NICs."""
        return (*self.gpus, *self.nics)

    def label(self, a: str, b: str) -> Label | None:
        """Look a label up in either order."""
        return self.labels.get((a, b)) or self.labels.get((b, a))

    def host_label(self, a: str, b: str) -> Label | None:
        """Look up the label over PCIe: that beneath NVLink, if the text has it."""
        label = self.label(a, b)
        if label is None or label.kind in RANKS:
            return label
        return self.under.get((a, b)) or self.under.get((b, a))
