"""A plan proved at a small size by the numpy reference, with all its ranks in one process."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from topology.base.values import dataclass
from validate.reference.run import run_plan
from validate.reference.small import shrink
from validate.reference.weights import Array, own_samples

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


def prove(model: Model, workload: Workload, plan: Plan) -> Proof:
    """Run a plan and the unsplit model at a small size, and compare every rank's result.

    A plan in pieces is compared with the same pieces on one rank, or on one a forward: their
    result is another one than the model's, but for its exact steps.

    Raises DeadlockError if ranks wait for each other.
    """
    small = shrink(model, workload, plan)
    reference_plan = Plan(tuple(axis for axis in plan.axes if axis[0] == "cfg"), patch=plan.patch)
    reference = run_plan(*small, reference_plan if plan.patch > 1 else Plan())[0]
    outputs = run_plan(*small, plan)
    return Proof(
        model=model.name,
        plan=str(plan),
        ranks=len(outputs),
        error=max(_errors(outputs, reference, plan), default=float("inf")),
    )


def _errors(outputs: Sequence[Array], reference: Array, plan: Plan) -> Iterator[float]:
    """Relative error of every rank that has the result; replicas have their part of the batch."""
    for rank, output in enumerate(outputs):
        if np.all(np.isnan(output)):
            continue
        expected = own_samples(reference, plan.replicas, plan.replica_of(rank))
        yield float(np.linalg.norm(output - expected) / np.linalg.norm(expected))
