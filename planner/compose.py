"""Which plans there are for a number of GPUs, and what stands against each.

The one home of the rule that degrees multiply to the GPUs.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from planner.lowering.scene import share_of
from planner.models.architecture import Model
from planner.plan import Plan
from planner.strategies import SEQUENCE, STRATEGIES
from planner.strategies.base import Case
from planner.workload import Workload

ORDER: Final = ("dp", "pp", "cfg", "ulysses", "ring", "allgather_kv", "tp")
"""Axes as they are nested where the links do not tell them apart, outermost first."""


def objections(model: Model, workload: Workload, plan: Plan, gpus: int) -> Iterator[str]:
    """Yield what stands against a plan, one clause each; nothing where it is legal."""
    if plan.gpus != gpus:
        product = " x ".join(str(degree) for _, degree in plan.axes) or "1"
        yield f"degrees multiply to {plan.gpus} ({product}), not to {gpus} GPUs"
        return
    if plan.vae > gpus:
        yield f"vae{plan.vae} needs more than {gpus} GPUs"
    yield from unsupported(model)
    known = {strategy.name: strategy for strategy in STRATEGIES}
    for name, _ in plan.axes:
        if name not in known:
            yield f"axis {name} is not modelled yet"
            return
    case = Case(model=model, workload=workload, share=share_of(workload, plan))
    for name, degree in plan.axes:
        yield from known[name].objections(case, degree)


def unsupported(model: Model) -> Iterator[str]:
    """Yield what in a model no operation of ours stands for."""
    towers = [tower for block in model.blocks for tower in block.towers]
    if any(tower.mixer != "attention" for tower in towers):
        yield "linear-attention and state-space layers are not modelled yet"
    if any(tower.latent is not None for tower in towers):
        yield "multi-head latent attention is not modelled yet"
    if model.kind == "encoder":
        yield "a text encoder is not planned on its own"


def plans(model: Model, gpus: int) -> Iterator[Plan]:
    """Yield every plan of `gpus` GPUs that the model's kind of request can use, legal or not."""
    names = [name for name in ORDER if name != "cfg" or model.kind == "diffusion"]
    for degrees in _factorisations(gpus, len(names)):
        axes = tuple(
            (name, degree) for name, degree in zip(names, degrees, strict=True) if degree > 1
        )
        used = dict(axes)
        if not ("ring" in used and "allgather_kv" in used):
            yield Plan(axes)


@cache
def _factorisations(number: int, factors: int) -> tuple[tuple[int, ...], ...]:
    """Write a number as a product of so many factors, in every order.

    >>> _factorisations(4, 2)
    ((1, 4), (2, 2), (4, 1))
    """
    if factors == 1:
        return ((number,),)
    return tuple(
        (first, *rest)
        for first in range(1, number + 1)
        if number % first == 0
        for rest in _factorisations(number // first, factors - 1)
    )


def nearest(plan: Plan, legal: Iterable[Plan], count: int = 3) -> list[Plan]:
    """Return the legal plans most like one that is not: same axes first, then close degrees."""
    return sorted(legal, key=lambda other: (_distance(plan, other), str(other)))[:count]


def _distance(plan: Plan, other: Plan) -> float:
    mine, theirs = dict(plan.axes), dict(other.axes)
    apart = len(mine.keys() ^ theirs.keys())
    shared = sum(
        abs(mine.get(name, 1) - theirs.get(name, 1)) / max(mine.get(name, 1), theirs.get(name, 1))
        for name in mine.keys() | theirs.keys()
    )
    return 2 * apart + shared


SEQUENCE_NAMES: Final = tuple(strategy.name for strategy in SEQUENCE)
