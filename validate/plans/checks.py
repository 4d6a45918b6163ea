"""What ``planner validate`` is asked for, checked before anything is started."""

import math
from collections.abc import Callable, Iterable
from typing import Final

from planner.request.request import LARGEST
from planner.runners.refusal import executor_refusal
from planner.strategies import parse_plan
from topology.base import InputError
from topology.catalogue import by_product, gpu_names
from validate.plans.cases import RUNNABLE_PRECISIONS, Case

MOST_PROVED: Final = 128
"""Ranks of a plan that a proof runs, in about 10 s."""
MAX_DURATION: Final = 10**6
"""Of a length of time that somebody waits for, whatever its unit."""
CPU_RANKS: Final = 16
"""Ranks on a CPU, which only small models are for."""


def check_cases(cases: Iterable[Case], gpus: int, device: str = "cuda") -> None:
    """Refuse what the executor cannot run on so many ranks.

    >>> check_cases([Case(model="flux", plan="tp2")], 3)
    Traceback (most recent call last):
    topology.base.errors.InputError: GPUs: got 3, wanted a multiple of the 2 of plan tp2
    """
    cases = list(cases)
    check_plans([case.plan for case in cases], gpus)
    for case in cases:
        if not case.engine and case.precision not in RUNNABLE_PRECISIONS:
            precisions = ", ".join(RUNNABLE_PRECISIONS)
            raise InputError(
                f"precision: got {case.precision}, wanted {precisions} to run with torch"
            )
        plan = parse_plan(case.plan)
        if not case.engine and (reason := executor_refusal(plan)):
            raise InputError(f"plan {plan}: {reason}")
    if device == "cpu" and gpus > CPU_RANKS:
        raise InputError(f"ranks on a CPU: got {gpus}, wanted at most {CPU_RANKS}")


def check_plans(plans: Iterable[str], gpus: int) -> None:
    """Refuse plans that want more GPUs than there are, or do not divide them."""
    for plan in plans:
        plan_gpus = parse_plan(plan).gpus
        if plan_gpus > gpus:
            raise InputError(f"GPUs: got {gpus}, wanted the {plan_gpus} of plan {plan}")
        if gpus % plan_gpus:
            raise InputError(
                f"GPUs: got {gpus}, wanted a multiple of the {plan_gpus} of plan {plan}"
            )


def check_proof(plans: Iterable[str]) -> None:
    """Refuse plans of more ranks than a proof runs."""
    for plan in plans:
        ranks = parse_plan(plan).gpus
        if ranks > MOST_PROVED:
            raise InputError(
                f"plan {plan}: got {ranks} ranks, wanted at most {MOST_PROVED} for a proof, which "
                "runs them all in one process"
            )


def check_gpus(gpus: int | None) -> None:
    """Refuse a number of GPUs that cannot be.

    Raises InputError if it is not from 1 to the most that a job may have.
    """
    if gpus is not None and not 1 <= gpus <= LARGEST["gpus"]:
        raise InputError(f"gpus: got {gpus}, wanted a whole number from 1 to {LARGEST['gpus']}")


def check_positive(name: str, value: float) -> None:
    """Refuse a length of time that is none.

    >>> check_positive("seconds", float("nan"))
    Traceback (most recent call last):
    topology.base.errors.InputError: seconds: got nan, wanted a number above 0
    """
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: got {value:g}, wanted a number above 0")
    if value > MAX_DURATION:
        raise InputError(f"{name}: got {value:g}, wanted a number up to {MAX_DURATION}")


def hardware_of(product: str, name: str = "") -> str:
    """Name the hardware to predict with: what is asked for, or the GPUs of the machine.

    Raises InputError if the machine's GPUs have no name, or are not those that are asked for.

    product : of the machine's GPUs, as the driver calls it; empty without one.

    >>> hardware_of("NVIDIA L4"), hardware_of(""), hardware_of("", "l40s")
    ('l4', 'h100-sxm', 'l40s')
    """
    if not product:
        return name or "h100-sxm"
    kind = by_product(gpu_names(), product)
    if not name and kind is None:
        raise InputError(
            f"{product!r} is not in the catalogue: say what it is most like with --hardware"
        )
    if name and kind is not None and kind != name.lower():
        raise InputError(f"hardware: got {name}, wanted {kind}: this machine has {product}")
    return name or str(kind)


def check_product(hardware: str, product: str, tell: Callable[[str], None]) -> None:
    """Refuse to measure one kind of GPU and predict another."""
    hardware_of(product, hardware)
    if by_product(gpu_names(), product) is None:
        tell(f"{product!r} is not in the catalogue: it is predicted as {hardware}")
