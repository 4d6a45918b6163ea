"""What one link of each kind carries, from a table in which every number has a source."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from topology.base import CatalogueError, Sourced, read_sourced
from topology.base.values import dataclass
from topology.catalogue.devices import Architecture
from topology.catalogue.fabric import pcie_bandwidth

NvlinkGeneration = Literal["volta", "turing", "ampere", "ga102", "hopper", "blackwell"]
Table: TypeAlias = tuple[tuple[str, Sourced], ...]
MeshLink: TypeAlias = tuple[int, int, int]

_CAPABILITIES: Final[Mapping[Architecture, int]] = {
    "blackwell": 100, "hopper": 90, "ada": 89, "ampere": 80, "turing": 75, "volta": 70,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRates:
    """What NCCL takes links for, in bytes per second."""

    local: Sourced
    network: Sourced
    nvlink: Table  # per link, by compute capability
    pcie: Table  # sixteen lanes, by generation
    socket: Table  # by processor family

    def nvlink_rate(self, capability: int) -> Sourced:
        """Bytes per second of one NVLink at `capability`, such as 90."""
        rates = [(int(key), rate) for key, rate in self.nvlink]
        return [rate for key, rate in rates if key <= max(capability, rates[0][0])][-1]

    def pcie_rate(self, generation: int, lanes: int) -> float:
        """Bytes per second of a PCIe link; an unknown generation counts as the third."""
        return dict(self.pcie).get(str(generation), dict(self.pcie)["3"]).value * lanes / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Nominal bandwidths of links, bytes per second and direction."""

    nvlink: Table  # per link, by generation
    socket: Table  # by PCIe generation of the platform
    host: Sourced
    nic: Sourced
    copy: Sourced  # what a large copy reaches of a nominal bandwidth
    nccl: NcclRates
    mesh: tuple[MeshLink, ...]

    def nvlink_rate(self, generation: NvlinkGeneration) -> Sourced:
        """Bytes per second and direction of one NVLink."""
        return dict(self.nvlink)[generation]

    def pcie_rate(self, generation: int, lanes: int) -> Sourced:
        """Bytes per second and direction of `lanes` lanes."""
        return Sourced(
            value=pcie_bandwidth(generation, lanes),
            kind="derived",
            source=f"PCIe {generation} with {lanes} lanes after line code",
        )

    def socket_rate(self, generation: int) -> Sourced:
        """Bytes per second and direction from one processor to another."""
        rates = dict(self.socket)
        return rates.get(str(generation), rates["4"])


def architecture_of(capability: int) -> Architecture:
    """Name the architecture of a compute capability written without its point.

    >>> architecture_of(86), architecture_of(90), architecture_of(120)
    ('ampere', 'hopper', 'blackwell')
    """
    return next((name for name, least in _CAPABILITIES.items() if capability >= least), "volta")


def capability_of(architecture: Architecture) -> int:
    """Give the compute capability that stands for an architecture, without its point.

    >>> capability_of("hopper")
    90
    """
    return _CAPABILITIES[architecture]


def nvlink_generation(capability: int) -> NvlinkGeneration:
    """Name the NVLink of a compute capability.

    >>> nvlink_generation(80), nvlink_generation(86)
    ('ampere', 'ga102')
    """
    if 86 <= capability < 90:
        return "ga102"
    name = architecture_of(capability)
    return "ga102" if name == "ada" else name


def load_rates(table: Mapping[str, Any]) -> Rates:
    """Read the table of link rates."""
    try:
        return Rates(
            nvlink=_numbers(table["nvlink"], "B/s"),
            socket=_numbers(table["socket"], "B/s"),
            host=dict(_numbers(table["host"], "B/s"))["bridge"],
            nic=dict(_numbers(table["nic"], "B/s"))["bandwidth"],
            copy=dict(_numbers(table["copy"], "1"))["share"],
            nccl=_nccl(table["nccl"]),
            mesh=tuple((a, b, links) for a, b, links in table["mesh"]["v100"]),
        )
    except KeyError as error:
        raise CatalogueError(f"link rates: no {error.args[0]!r}") from None


def _nccl(row: Mapping[str, Mapping[str, object]]) -> NcclRates:
    nvlink, pcie, socket = (
        _numbers(row[name], "B/s", row) for name in ("nvlink", "pcie", "socket")
    )
    return NcclRates(
        local=read_sourced("nccl.local", row["local"], "B/s", row),
        network=read_sourced("nccl.network", row["network"], "B/s", row),
        nvlink=tuple(sorted(nvlink, key=lambda entry: int(entry[0]))),
        pcie=pcie,
        socket=socket,
    )


def _numbers(
    row: Mapping[str, object], unit: str, defaults: Mapping[str, object] | None = None
) -> Table:
    return tuple(
        (key, read_sourced(key, entry, unit, defaults or row))
        for key, entry in row.items()
        if key not in ("kind", "source")
    )
