"""Links of a machine with the rates they carry."""

from dataclasses import dataclass

from topology.base import Sourced
from topology.catalogue import Rates
from topology.machine.graph import Edge, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Makes links from one table of rates, on a platform of one PCIe generation."""

    rates: Rates
    generation: int

    def pcie(self, a: str, b: str, *, generation: int = 0, lanes: int = 16) -> Edge:
        """Join two parts by PCIe; generation 0 is the platform's."""
        known = generation or self.generation
        return Edge(
            a=a,
            b=b,
            kind="pcie",
            count=lanes,
            generation=known,
            bandwidth=self.rates.pcie_rate(known, lanes),
            latency=self.rates.latency_of("pcie"),
        )

    def host(self, a: str, b: str) -> Edge:
        """Join a root complex to its processor."""
        return Edge(
            a=a,
            b=b,
            kind="host",
            bandwidth=self.rates.host,
            latency=self.rates.latency_of("host"),
        )

    def sockets(self, cpus: list[Node]) -> list[Edge]:
        """Join every two processors of one host."""
        return [
            Edge(
                a=first.name,
                b=second.name,
                kind="socket",
                bandwidth=self.rates.socket_rate(self.generation),
                latency=self.rates.latency_of("socket"),
            )
            for index, first in enumerate(cpus)
            for second in cpus[index + 1 :]
            if first.host == second.host
        ]

    def nvlink(self, a: str, b: str, count: int, rate: Sourced, *, switch: bool = False) -> Edge:
        """Join a GPU to another, or to the NVLink switches, by `count` links of `rate`."""
        return Edge(
            a=a,
            b=b,
            kind="nvlink",
            count=count,
            bandwidth=times(rate, count),
            latency=self.rates.latency_of("nvswitch" if switch else "nvlink"),
        )

    def c2c(self, gpu: str, cpu: str, bandwidth: Sourced) -> Edge:
        """Join a GPU to its processor coherently."""
        return Edge(
            a=gpu,
            b=cpu,
            kind="c2c",
            bandwidth=bandwidth,
            latency=self.rates.latency_of("c2c"),
        )


def times(rate: Sourced, count: int) -> Sourced:
    """Give the rate of `count` links together."""
    return Sourced(
        value=rate.value * count,
        kind=rate.kind,
        source=f"{count} x {rate.value / 10**9:g} GB/s: {rate.source}",
        note=rate.note,
    )
