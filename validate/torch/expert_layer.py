"""Experts as PyTorch runs them: operations of a program that are one step."""

from collections.abc import Sequence

from costmodels.program import Loop, Matmul, Op, Pointwise, Tensor
from topology.base.values import dataclass


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A layer of experts, which runs as one step: up, activation, down, and the weighed sum."""

    up: Matmul
    activation: Pointwise
    down: Matmul
    combine: Pointwise

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Rows, the experts that each of them names, and how much each of these counts."""
        return (*self.up.reads, self.combine.inputs[1])

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The tensor that the sum over experts writes."""
        return self.combine.outputs


def with_layers(body: Sequence[Op | Loop]) -> list[Op | Loop | ExpertLayer]:
    """Take the operations of each layer of experts in a body together."""
    items: list[Op | Loop | ExpertLayer] = []
    for item in body:
        items.append(item)
        match items[-4:]:
            case [Matmul() as up, Pointwise() as act, Matmul() as down, Pointwise() as combine]:
                if up.route is not None and combine.function == "combine":
                    items[-4:] = [ExpertLayer(up, act, down, combine)]
    return items
