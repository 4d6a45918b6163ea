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

from planner.request.plan import Plan, TwoPools
from planner.request.request import Request
from planner.strategies.base import Proposal, SequenceStrategy, Strategy
from topology.base import InputError, unknown

__all__ = ["Proposal", "SequenceStrategy", "axes", "parse_plan", "parse_pools", "strategies"]

SLASH_AXES: Final = ("vae", "ep", "patch", "fsdp")
"""What stands after a slash: what the GPUs of the axes divide in a way of its own."""
SHORTHANDS: Final = {"ep": ("adp", "ep"), "pipefusion": ("pp", "patch")}
"""Axes that stand for another and for what is after a slash, of the same degree."""
LARGEST_DEGREE: Final = 16384


@cache
def strategies() -> Mapping[str, Strategy]:
    """Find the strategies by the names of their axes, outermost first."""
    modules = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    declared: list[Strategy] = [m.STRATEGY for m in modules if hasattr(m, "STRATEGY")]
    return {strategy.axis: strategy for strategy in sorted(declared, key=lambda s: s.nesting)}


def axes() -> tuple[str, ...]:
    """List the names that plans may give to an axis."""
    return (*strategies(), *SHORTHANDS)


def parse_plan(text: str) -> Plan:
    """Read ``cfg2.ulysses4/vae4``, ``tp8/ep4``, ``single`` ...; axes of degree 1 are dropped.

    An axis ``ep8`` stands for ``adp8`` with ``/ep8``: attention by requests, experts in groups;
    ``pipefusion4`` for ``pp4`` with ``/patch4``.

    Raises `InputError` if a part is not a known axis and a degree from 1 to 16384, or an axis is
    named twice.

    >>> parse_plan("cfg2.ulysses4/vae4").axes
    (('cfg', 2), ('ulysses', 4))
    >>> str(parse_plan("ep8")), str(parse_plan("cfg2.pipefusion4"))
    ('adp8/ep8', 'cfg2.pp4/patch4')
    >>> parse_plan("ulises4")
    Traceback (most recent call last):
    topology.base.errors.InputError: unknown axis 'ulises' in plan 'ulises4': did you mean ulysses?
    """
    plan_text = text[:60]
    body, *suffixes = text.strip().lower().split("/")
    degrees = [_axis(part, plan_text) for part in body.split(".")] if body != "single" else []
    slash_degrees = [_slash_part(part, plan_text) for part in suffixes]
    slash_degrees += [
        (SHORTHANDS[name][1], degree) for name, degree in degrees if name in SHORTHANDS
    ]
    degrees = [(SHORTHANDS.get(name, (name,))[0], degree) for name, degree in degrees]
    for pairs in (degrees, slash_degrees):
        names = [name for name, _ in pairs]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise InputError(f"plan {plan_text!r}: axis {name} is named twice")
    axis_degrees = tuple((name, degree) for name, degree in degrees if degree > 1)
    return Plan(axis_degrees, **dict(slash_degrees))


def parse_pools(request: Request) -> TwoPools:
    """Read the two plans of a request and their numbers of workers, one where left out."""
    return TwoPools(
        prefill=parse_plan(request.prefill_plan),
        prefills=request.prefill_workers or 1,
        decode=parse_plan(request.decode_plan),
        decodes=request.decode_workers or 1,
    )


def _slash_part(part: str, plan: str) -> tuple[str, int]:
    match = re.fullmatch(rf"({'|'.join(SLASH_AXES)})([0-9]{{1,9}})", part)
    if match is None:
        raise InputError(
            f"plan {plan!r}: after the slash expected vae, ep, patch or fsdp and a degree, "
            f"got {part[:40]!r}"
        )
    return match[1], _degree(match[1], match[2], plan)


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
    if not 1 <= degree <= LARGEST_DEGREE:
        raise InputError(f"plan {plan!r}: {name} degree {degree}: expected 1 to {LARGEST_DEGREE}")
    return degree
