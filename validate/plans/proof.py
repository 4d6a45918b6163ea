"""A plan proved at a small size by the numpy reference, with all its ranks in one process."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from planner.request.plan import Plan
from validate.plans.cases import Subject
from validate.plans.small import shrink
from validate.reference import run_plan
from validate.reference.weights import Array

BOUND: Final = 1 / 2**30
"""Largest relative error that the order of additions explains in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far the split result is from the unsplit one, and how many ranks had one."""

    model: str
    plan: str
    ranks: int
    error: float
    bound: float = BOUND

    @property
    def ok(self) -> bool:
        return self.error <= self.bound

    def to_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        return {**asdict(self), "ok": self.ok}


def prove(subject: Subject, seed: int = 0) -> Proof:
    """Run a plan and the unsplit model at a small size, and compare every rank's result.

    Raises
    ------
    Deadlock
        If ranks wait for each other.
    """
    model, workload = shrink(subject.model, subject.workload, subject.plan)
    whole = run_plan(model, workload, Plan(), seed)[0]
    made = run_plan(model, workload, subject.plan, seed)
    return Proof(
        model=subject.model.name,
        plan=str(subject.plan),
        ranks=len(made),
        error=max(_errors(made, whole, subject.plan), default=float("inf")),
    )


def _errors(made: Sequence[Array], whole: Array, plan: Plan) -> Iterable[float]:
    """Relative error of every rank that has the result; replicas have their part of the batch."""
    each = len(made) // plan.degree("dp")
    batched = len(whole) > 1 and plan.degree("dp") > 1
    for rank, one in enumerate(made):
        if np.all(np.isnan(one)):
            continue
        part = len(whole) // plan.degree("dp")
        first = rank // each * part
        want = whole[first : first + part] if batched else whole
        yield float(np.linalg.norm(one - want) / np.linalg.norm(want))


def proofs_text(found: Iterable[Proof]) -> str:
    """Write proofs for a terminal."""
    return "\n".join(
        f"{one.model} {one.plan}: {one.ranks} ranks, relative error {one.error:.1e} "
        f"({one.bound:.1e} allowed): {'right' if one.ok else 'WRONG'}"
        for one in found
    )


def proofs_markdown(found: Iterable[Proof]) -> str:
    """Write proofs for a document."""
    rows = [
        f"| {one.model} | {one.plan} | {one.ranks} | {one.error:.1e} | "
        f"{'right' if one.ok else 'wrong'} |"
        for one in found
    ]
    return "\n".join(
        ["| model | plan | ranks | error | |", "| --- | --- | --- | --- | --- |", *rows]
    )
