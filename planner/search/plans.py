"""Which plans there are for a number of GPUs, and what stands against each.

The one home of the rule that degrees multiply to the GPUs.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from planner.lowering import share_of
from planner.models.architecture import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import Case, strategies
from topology.base import counted


def objections(model: Model, workload: Workload, plan: Plan, gpus: int) -> Iterator[str]:
    """Yield what stands against a plan, one clause each; nothing where it is legal."""
    if plan.gpus != gpus:
        product = " x ".join(str(degree) for _, degree in plan.axes) or "1"
        yield f"degrees multiply to {plan.gpus} ({product}), not to {gpus} GPUs"
        return
    if plan.vae > gpus:
        yield f"vae{plan.vae} needs more than {counted(gpus, 'GPU')}"
    if plan.vae > 1 and model.vae is None:
        yield f"vae{plan.vae}: {model.name} has no VAE to decode with"
    yield from unsupported(model)
    for name, _ in plan.axes:
        if name not in strategies():
            yield f"axis {name} is not modelled yet"
            return
    case = Case(model=model, workload=workload, share=share_of(workload, plan))
    for name, degree in plan.axes:
        yield from strategies()[name].objections(case, degree)


def unsupported(model: Model) -> Iterator[str]:
    """Yield what in a model no operation of ours stands for."""
    towers = [tower for block in model.blocks for tower in block.towers]
    if any(tower.mixer not in ("attention", "relu_linear") for tower in towers):
        yield "gated delta-rule and state-space layers are not modelled yet"
    if any(tower.latent is not None for tower in towers):
        yield "multi-head latent attention is not modelled yet"
    if model.kind == "encoder":
        yield "a text encoder is not planned on its own"


def plans(
    model: Model, gpus: int, without: Collection[tuple[str, int]] = frozenset()
) -> Iterator[Plan]:
    """Yield every plan of `gpus` GPUs that the model's kind of request can use, legal or not.

    Parameters
    ----------
    without : axes with degrees that are left out (see `hopeless`).
    """
    names = _names(model)
    for degrees in _factorisations(gpus, names, without):
        axes = tuple(
            (name, degree) for name, degree in zip(names, degrees, strict=True) if degree > 1
        )
        used = dict(axes)
        if not any(other in used for name in used for other in strategies()[name].excludes):
            yield Plan(axes)


def hopeless(model: Model, workload: Workload, gpus: int) -> dict[tuple[str, int], str]:
    """Axes with degrees that no plan of `gpus` GPUs can have, and why.

    What stands against a degree alone, such as heads that it does not divide, stands against it
    beside any others.
    """
    found = {}
    for axis in itertools.product(_names(model), _divisors(gpus)[1:]):
        reasons = list(objections(model, workload, Plan((axis,)), axis[1]))
        if reasons:
            found[axis] = "; ".join(reasons)
    return found


def _names(model: Model) -> list[str]:
    """Name the axes that a model can have, outermost first."""
    return [axis for axis, strategy in strategies().items() if strategy.suits(model)]


def unpiped(plan: Plan, passes: int) -> Plan | None:
    """Use the GPUs of a pipeline for the forwards of a step side by side, and for replicas.

    M forwards pass P stages in (M + P - 1) / P times the time of one on a replica, so that M
    replicas which share them (one turn) are never slower: a pipeline gains nothing but memory.
    None where the forwards do not divide the stages, or cannot be shared out.

    Parameters
    ----------
    passes : forwards a step.

    Examples
    --------
    >>> str(unpiped(Plan((("pp", 8), ("tp", 2))), passes=2))
    'dp4.cfg2.tp2'
    """
    degrees = dict(plan.axes)
    depth, (forwards, left) = degrees.pop("pp", 1), divmod(passes, plan.degree("cfg"))
    if left or depth % forwards:
        return None
    degrees["cfg"] = plan.degree("cfg") * forwards
    degrees["dp"] = plan.degree("dp") * depth // forwards
    return _ordered(degrees, plan.vae)


def shallower(plan: Plan) -> Iterator[Plan]:
    """Yield the same GPUs with fewer pipeline stages and replicas of them.

    >>> [str(one) for one in shallower(Plan((("pp", 8),)))]
    ['dp4.pp2', 'dp2.pp4']
    """
    depth = plan.degree("pp")
    for stages in range(2, depth):
        if depth % stages == 0:
            replicas = plan.degree("dp") * depth // stages
            yield _ordered({**dict(plan.axes), "pp": stages, "dp": replicas}, plan.vae)


def _ordered(degrees: Mapping[str, int], vae: int) -> Plan:
    """Put axes in their usual order, without those of one rank."""
    return Plan(
        tuple((name, degrees[name]) for name in strategies() if degrees.get(name, 1) > 1), vae
    )


def _factorisations(
    number: int, names: Sequence[str], without: Collection[tuple[str, int]] = ()
) -> Iterator[tuple[int, ...]]:
    """Write a number as a product of a degree for each name, in every way.

    >>> list(_factorisations(4, ["dp", "tp"]))
    [(1, 4), (2, 2), (4, 1)]
    """
    first, *rest = names
    if not rest:
        if (first, number) not in without:
            yield (number,)
        return
    for degree in _divisors(number):
        if (first, degree) not in without:
            others = _factorisations(number // degree, rest, without)
            yield from ((degree, *more) for more in others)


@cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(degree for degree in range(1, number + 1) if number % degree == 0)


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
