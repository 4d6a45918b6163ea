"""How long tensors are needed: what may be let go after each operation of a program.

A tensor lives until its last reader, also in the next turn of a loop or in a later stage.
"""

from collections.abc import Sequence

from costmodels.program import Loop, Op, Rearrange
from topology.base.values import dataclass
from validate.torch.expert_layer import ExpertLayer

Names = frozenset[str]
Work = Op | ExpertLayer
"""What is done at a time."""


@dataclass(frozen=True, slots=True)
class Lived:
    """Work or a loop, and the names that nobody reads after it."""

    item: Work | Loop
    frees: Names


def reads_of(op: Work) -> list[str]:
    """Names an operation reads from its rank's values; what is kept for later is not among them."""
    if isinstance(op, Rearrange) and op.move in ("load", "append"):
        return [tensor.name for tensor in op.inputs[1:]]
    if isinstance(op, Rearrange) and op.move == "collect":
        return [op.inputs[0].name, op.outputs[0].name]
    return [tensor.name for tensor in op.reads]


def writes_of(op: Work) -> list[str]:
    """Names an operation writes to its rank's values."""
    if isinstance(op, Rearrange) and op.move == "store":
        return []
    return [tensor.name for tensor in op.writes]


def arriving_names(items: Sequence[Work | Loop]) -> Names:
    """Names that are read before they are written, in this turn or the first of an inner loop."""
    written: set[str] = set()
    names: set[str] = set()
    for item in items:
        for op in item.walk() if isinstance(item, Loop) else (item,):
            names |= {name for name in reads_of(op) if name not in written}
            written |= set(writes_of(op))
    return frozenset(names)


def with_lifetimes(items: Sequence[Work | Loop], after: Names) -> list[Lived]:
    """Say for every item of a body what it is the last to need.

    after : names that are read after the body, or in its next turn.
    """
    result: list[Lived] = []
    live = after
    for item in reversed(items):
        if isinstance(item, Loop):
            reads = arriving_names(item.body)
            touched = reads | {name for op in item.walk() for name in writes_of(op)}
            result.append(Lived(item, touched - live))
            live = live | reads
        else:
            reads, writes = frozenset(reads_of(item)), frozenset(writes_of(item))
            result.append(Lived(item, (reads | writes) - live))
            live = (live - writes) | reads
    return result[::-1]
