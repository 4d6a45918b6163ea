"""The strategies that plans are made of, and plans as a person writes them.

A strategy is a file of this folder with a `STRATEGY`: it says which degrees are legal and what
share of the work a rank keeps, and, if it cuts the sequence, how ranks exchange in attention.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from planner.request.plan import Plan
from planner.strategies.base import Proposal, SequenceStrategy, Share, Strategy
from topology.base import InputError, unknown

__all__ = ["Proposal", "SequenceStrategy", "Share", "Strategy", "axes", "parse_plan", "strategies"]

RESERVED: Final = ("ep",)
"""Axes that plans may name and that no strategy stands for yet."""
LARGEST: Final = 4096


@cache
def strategies() -> Mapping[str, Strategy]:
    """Find the strategies by the names of their axes, outermost first."""
    modules = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    declared: list[Strategy] = [m.STRATEGY for m in modules if hasattr(m, "STRATEGY")]
    return {strategy.axis: strategy for strategy in sorted(declared, key=lambda s: s.nesting)}


def axes() -> tuple[str, ...]:
    """List the names that plans may give to an axis."""
    return (*strategies(), *RESERVED)


def parse_plan(text: str) -> Plan:
    """Read ``cfg2.ulysses4/vae4``, ``tp8``, ``single`` ...; axes of degree 1 are dropped.

    Raises `InputError` if a part is not a known axis and a degree from 1 to 4096, or an axis is
    named twice.

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
    degrees = [_axis(part, shown) for part in body.split(".")] if body != "single" else []
    names = [name for name, _ in degrees]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InputError(f"plan {shown!r}: axis {name} is named twice")
    kept = tuple((name, degree) for name, degree in degrees if degree > 1)
    return Plan(kept, _degree("vae", match[1] if match else "1", shown))


def _axis(part: str, plan: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z_]+)([0-9]{1,9})", part)
    if match is None:
        raise InputError(
            f"plan {plan!r}: expected axes and degrees such as cfg2.ulysses4, got {part[:40]!r}"
        )
    if match[1] not in axes():
        raise InputError(
            str(unknown("axis", match[1], axes())).replace(":", f" in plan {plan!r}:", 1)
        )
    return match[1], _degree(match[1], match[2], plan)


def _degree(name: str, digits: str, plan: str) -> int:
    degree = int(digits)
    if not 1 <= degree <= LARGEST:
        raise InputError(f"plan {plan!r}: {name} degree {degree}: expected 1 to {LARGEST}")
    return degree
