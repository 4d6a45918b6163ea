"""A plan: named axes with degrees, outermost first."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Axes and their degrees, outermost first; `vae` GPUs decode the result together.

    >>> str(Plan((("cfg", 2), ("ulysses", 4)), vae=4)), str(Plan())
    ('cfg2.ulysses4/vae4', 'single')
    """

    axes: tuple[tuple[str, int], ...] = ()
    vae: int = 1

    def __str__(self) -> str:
        text = ".".join(f"{name}{degree}" for name, degree in self.axes) or "single"
        return f"{text}/vae{self.vae}" if self.vae > 1 else text

    @property
    def gpus(self) -> int:
        gpus = 1
        for _, degree in self.axes:
            gpus *= degree
        return gpus

    def degree(self, name: str) -> int:
        """Degree of an axis, 1 where the plan does not have it."""
        return dict(self.axes).get(name, 1)

    def stride(self, name: str) -> int:
        """Distance in rank between neighbours along an axis.

        >>> Plan((("cfg", 2), ("ulysses", 4))).stride("cfg")
        4
        """
        names = [axis for axis, _ in self.axes]
        stride = 1
        for _, degree in self.axes[names.index(name) + 1 :]:
            stride *= degree
        return stride

    def index_of(self, rank: int) -> dict[str, int]:
        """Place of a rank along every axis, the innermost one running fastest.

        >>> Plan((("cfg", 2), ("ulysses", 4))).index_of(5)
        {'cfg': 1, 'ulysses': 1}
        """
        return {axis: rank // self.stride(axis) % degree for axis, degree in self.axes}

    def ranks_along(self, axis: str, rank: int) -> tuple[int, ...]:
        """Ranks that differ from `rank` along one axis only, in order.

        >>> Plan((("cfg", 2), ("ulysses", 4))).ranks_along("cfg", 5)
        (1, 5)
        """
        stride, degree = self.stride(axis), self.degree(axis)
        first = rank - rank // stride % degree * stride
        return tuple(first + step * stride for step in range(degree))


def nearest(plan: Plan, legal: Iterable[Plan], count: int = 3) -> list[Plan]:
    """Return the legal plans most like one that is not: same axes first, then close degrees."""
    return sorted(legal, key=lambda other: (_distance(plan, other), str(other)))[:count]


def _distance(plan: Plan, other: Plan) -> float:
    degrees, others = dict(plan.axes), dict(other.axes)
    apart = len(degrees.keys() ^ others.keys())
    shared = sum(
        abs(degrees.get(name, 1) - others.get(name, 1))
        / max(degrees.get(name, 1), others.get(name, 1))
        for name in degrees.keys() | others.keys()
    )
    return 2 * apart + shared
