"""Fully sharded weights: ranks that run all layers hold a part of each, and gather them in turn.

The weights of a layer are gathered beside the layer before, so that two whole layers are there at
once, and the parts of the others [1]_.

References
----------
.. [1] Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023,
   arXiv:2304.11277; Wan-Video/Wan2.1 wan/distributed/fsdp.py shards block by block
"""

from collections.abc import Iterator

from costmodels.program import Collective, Loop, Matmul, Op, Tensor
from planner.request.plan import Plan
from planner.strategies.base import Proposal

CUTTING_AXES: tuple[str, ...] = ("tp", "pp", "adp")
"""Axes over which weights are cut in another way."""


def axis_of(plan: Plan) -> str:
    """Name the axis whose ranks share the parts; empty where there is none."""
    matching_axes = [
        axis for axis, degree in plan.axes if degree == plan.fsdp and axis not in CUTTING_AXES
    ]
    return matching_axes[-1] if matching_axes else ""


def objections(proposal: Proposal, plan: Plan) -> Iterator[str]:
    """Object to parts that no one axis holds, and to weights that are cut already."""
    if not axis_of(plan):
        yield f"fsdp{plan.fsdp}: expected the degree of one axis that does not cut weights"
    if proposal.model.kind != "diffusion":
        yield f"fsdp{plan.fsdp}: {proposal.model.name} denoises nothing"
    if any(axis in CUTTING_AXES for axis, _ in plan.axes):
        yield f"fsdp{plan.fsdp} beside an axis that cuts weights is not modelled"


def gather(name: str, body: tuple[Op | Loop, ...], over: tuple[str, int], *, beside: bool) -> Op:
    """Gather the weights of one layer: beside what follows, or ahead of it."""
    axis, degree = over
    ops = Loop(name="layer", count=1, body=body).walk()
    weights_by_name = {op.weight.name: op.weight for op in ops if isinstance(op, Matmul)}
    weights = tuple(weights_by_name.values())
    count = sum(weight.local_rows * weight.local_columns for weight in weights)
    itemsize = sum(weight.bytes for weight in weights) / max(1, count)
    shard_size = -(-count // degree)
    return Collective(
        kind="all_gather",
        x=Tensor(f"shard.{name}", (1, shard_size), itemsize),
        out=Tensor(f"weights.{name}", (degree, shard_size), itemsize),
        axis=axis,
        degree=degree,
        weights=weights,
        stream="comm" if beside else "compute",
    )
