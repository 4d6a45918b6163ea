"""A plan: named axes with degrees, outermost first, as a person writes it."""

import re
from dataclasses import dataclass
from typing import Final

from topology.base import InputError, unknown

AXES: Final = ("dp", "pp", "cfg", "ring", "allgather_kv", "ulysses", "tp", "ep")
LARGEST: Final = 4096


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


def parse_plan(text: str) -> Plan:
    """Read ``cfg2.ulysses4/vae4``, ``tp8``, ``single`` ...; axes of degree 1 are dropped.

    Raises
    ------
    InputError
        If a part is not a known axis and a degree from 1 to 4096, or an axis is named twice.

    Examples
    --------
    >>> parse_plan("cfg2.ulysses4/vae4").axes
    (('cfg', 2), ('ulysses', 4))
    >>> parse_plan("ulises4")
    Traceback (most recent call last):
    topology.base.errors.InputError: unknown axis 'ulises' in plan 'ulises4': did you mean ulysses?
    """
    shown = text[:60]
    body, slash, vae = text.strip().lower().partition("/")
    match = re.fullmatch(r"vae([0-9]{1,9})", vae)
    if slash and not match:
        raise InputError(
            f"plan {shown!r}: after the slash expected vae and a degree, got {vae[:40]!r}"
        )
    if body == "single":
        return Plan((), _degree("vae", match[1] if match else "1", shown))
    axes = [_axis(part, shown) for part in body.split(".")]
    names = [name for name, _ in axes]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InputError(f"plan {shown!r}: axis {name} is named twice")
    kept = tuple((name, degree) for name, degree in axes if degree > 1)
    return Plan(kept, _degree("vae", match[1] if match else "1", shown))


def _axis(part: str, plan: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z_]+)([0-9]{1,9})", part)
    if match is None:
        raise InputError(
            f"plan {plan!r}: expected axes and degrees such as cfg2.ulysses4, got {part[:40]!r}"
        )
    if match[1] not in AXES:
        raise InputError(
            str(unknown("axis", match[1], AXES)).replace(":", f" in plan {plan!r}:", 1)
        )
    return match[1], _degree(match[1], match[2], plan)


def _degree(name: str, digits: str, plan: str) -> int:
    degree = int(digits)
    if not 1 <= degree <= LARGEST:
        raise InputError(f"plan {plan!r}: {name} degree {degree}: expected 1 to {LARGEST}")
    return degree
