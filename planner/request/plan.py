"""A plan: named axes with degrees, outermost first."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Final

from topology.base.values import dataclass
from topology.catalogue import Fabric, Hardware

SEQUENCE: Final = ("ulysses", "uaa", "ring", "ring_q", "allgather_kv")
"""Axes over whose ranks a sequence is cut."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Axes and their degrees, outermost first; what the same GPUs divide otherwise beside them.

    vae : GPUs that decode the result together. ep : groups with experts of their own, each of
    which is cut over the rest of the ranks of ``adp`` and ``tp``. patch : pieces of the latents
    that follow one another through the stages of ``pp``. fsdp : parts of the weights, one a rank.

    >>> str(Plan((("cfg", 2), ("ulysses", 4)), vae=4)), str(Plan((("tp", 8),), ep=4)), str(Plan())
    ('cfg2.ulysses4/vae4', 'tp8/ep4', 'single')
    """

    axes: tuple[tuple[str, int], ...] = ()
    vae: int = 1
    ep: int = 1
    patch: int = 1
    fsdp: int = 1

    def __str__(self) -> str:
        text = ".".join(f"{name}{degree}" for name, degree in self.axes) or "single"
        inner_degrees = (
            ("vae", self.vae),
            ("ep", self.ep),
            ("patch", self.patch),
            ("fsdp", self.fsdp),
        )
        return text + "".join(f"/{name}{degree}" for name, degree in inner_degrees if degree > 1)

    @property
    def gpus(self) -> int:
        gpus = 1
        for _, degree in self.axes:
            gpus *= degree
        return gpus

    @property
    def replicas(self) -> int:
        """Count the parts that a batch is cut into: ranks with requests of their own."""
        return self.degree("dp") * self.degree("adp")

    @property
    def expert_ranks(self) -> int:
        """Count the ranks that share the experts: those of a sequence too, for so many groups."""
        ranks = self.degree("adp") * self.degree("tp")
        return ranks * self.sequence_ranks if self.ep > ranks else ranks

    @property
    def sequence_ranks(self) -> int:
        """Count the ranks that a sequence is cut over."""
        return prod(degree for axis, degree in self.axes if axis in SEQUENCE)

    def replica_of(self, rank: int) -> int:
        """Find which part of a batch a rank has.

        >>> plan = Plan((("dp", 2), ("pp", 2), ("adp", 2)))
        >>> [plan.replica_of(rank) for rank in range(8)]
        [0, 1, 0, 1, 2, 3, 2, 3]
        """
        index = self.index_of(rank)
        return index.get("dp", 0) * self.degree("adp") + index.get("adp", 0)

    def without(self, name: str) -> "Plan":
        """Return what the ranks do that are alike along an axis."""
        return self.along(axis for axis in self.axes if axis[0] != name)

    def along(self, axes: Iterable[tuple[str, int]]) -> "Plan":
        """Return the same with other axes."""
        return Plan(tuple(axes), self.vae, self.ep, self.patch, self.fsdp)

    def degree(self, name: str) -> int:
        """Give the degree of an axis, 1 where the plan does not have it."""
        for axis, degree in self.axes:
            if axis == name:
                return degree
        return 1

    def stride(self, name: str) -> int:
        """Give the distance in rank between neighbours along an axis.

        >>> Plan((("cfg", 2), ("ulysses", 4))).stride("cfg")
        4
        """
        names = [axis for axis, _ in self.axes]
        stride = 1
        for _, degree in self.axes[names.index(name) + 1 :]:
            stride *= degree
        return stride

    def fabrics(self, hardware: Hardware, nodes: int = 0) -> dict[str, Fabric]:
        """Describe the links of the groups along each axis, with ranks in order on the GPUs.

        Raises `TopologyError` if the GPUs of the plan do not fit the nodes.

        >>> from topology.catalogue import find_hardware
        >>> plan = Plan((("cfg", 2), ("ulysses", 8)))
        >>> plan.fabrics(find_hardware("h100-sxm"))["ulysses"].nodes
        1
        """
        island = hardware.island(self.gpus, nodes)
        return {
            name: _along(hardware, degree, self.stride(name), island) for name, degree in self.axes
        }

    def index_of(self, rank: int) -> dict[str, int]:
        """Give the place of a rank along every axis, the innermost one running fastest.

        >>> Plan((("cfg", 2), ("ulysses", 4))).index_of(5)
        {'cfg': 1, 'ulysses': 1}
        """
        return {axis: rank // self.stride(axis) % degree for axis, degree in self.axes}

    def ranks_along(self, axis: str, rank: int) -> tuple[int, ...]:
        """List the ranks that differ from `rank` along one axis only, in order.

        >>> Plan((("cfg", 2), ("ulysses", 4))).ranks_along("cfg", 5)
        (1, 5)
        """
        stride, degree = self.stride(axis), self.degree(axis)
        first = rank - rank // stride % degree * stride
        return tuple(first + step * stride for step in range(degree))


@lru_cache(maxsize=1024)
def _along(hardware: Hardware, degree: int, stride: int, island: int) -> Fabric:
    """Describe the links of each group along an axis, while all of its groups send."""
    group = hardware.group(degree, stride, island)
    if group.link != "pcie":
        return group
    from topology.machine import usual_siblings  # noqa: PLC0415  # takes a while to import

    return replace(group, siblings=usual_siblings(hardware, group, stride, island))


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPools:
    """A disaggregated deployment: workers that run prompts and workers that decode.

    >>> str(TwoPools(prefill=Plan((("tp", 4),)), prefills=3, decode=Plan((("tp", 8),)), decodes=1))
    'prefill 3 x tp4 + decode 1 x tp8'
    """

    prefill: Plan
    prefills: int
    decode: Plan
    decodes: int

    def __str__(self) -> str:
        return f"prefill {self.prefills} x {self.prefill} + decode {self.decodes} x {self.decode}"

    @property
    def gpus(self) -> int:
        return self.prefills * self.prefill.gpus + self.decodes * self.decode.gpus


def nearest(plan: Plan, legal: Iterable[Plan], count: int = 3) -> list[Plan]:
    """Return the legal plans most like one that is not.

    Those of the same axes come first, then those that cut a sequence as often, and close degrees.
    """
    return sorted(legal, key=lambda other: (_distance(plan, other), str(other)))[:count]


def _distance(plan: Plan, other: Plan) -> float:
    degrees, other_degrees = dict(plan.axes), dict(other.axes)
    unshared_axes = len(degrees.keys() ^ other_degrees.keys())
    degree_gap = sum(
        abs(degrees.get(name, 1) - other_degrees.get(name, 1))
        / max(degrees.get(name, 1), other_degrees.get(name, 1))
        for name in {**degrees, **other_degrees}
    )
    pairs = ((plan.ep, other.ep), (plan.sequence_ranks, other.sequence_ranks))
    return 2 * unshared_axes + degree_gap + sum(abs(a - b) / max(a, b) for a, b in pairs)
