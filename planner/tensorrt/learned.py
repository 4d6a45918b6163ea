"""Places where the biases and norms of a checkpoint go; a network without one has no layer there.

A program counts matrices alone. What a checkpoint has beside them is little work, and changes no
message: it is added behind a layer when a network is assembled, if its numbers are given, and left
out if they are not.
"""

from collections.abc import Mapping

from costmodels.program.ops import Part, Pointwise, Weight
from planner.tensorrt.sheet import Draft, Value

Learned = Mapping[str, object]
"""``kind`` of numbers, the ``name`` they are known by and their ``layer``; the ``parts`` that
``degree`` ranks cut, or that one rank of them adds (``once``); and the ``shape`` they are given."""


def bias(weight: Weight, layer: int, dimensions: int) -> list[Learned]:
    """Bias behind a product; where ranks add their products up, the first of them alone adds it."""
    if weight.experts > 1:
        return []
    cut = weight.degree if weight.split == "columns" else 1
    return [
        {
            "kind": "bias",
            "name": weight.name,
            "layer": layer if weight.layered else -1,
            "parts": listed(weight.columns),
            "degree": cut,
            "once": weight.split == "rows" and weight.degree > 1,
            "shape": [1] * (dimensions - 1) + [weight.local_columns],
        }
    ]


def of_norm(draft: Draft, op: Pointwise, x: Value) -> list[Learned]:
    """Factors and offsets behind the norm of whole rows."""
    width = x.shape[-1]
    shape = [1] * (len(x.shape) - 1) + [width]
    return [_norm(draft, op, kind, [[width, 1]], 1, shape) for kind in ("gain", "bias")]


def of_heads(draft: Draft, op: Pointwise) -> list[Learned]:
    """Factors behind the norms of the heads of queries and keys, which ranks along tp share."""
    degree = 1 + max(index.get("tp", 0) for index in draft.indices)
    parts = [[count * degree, op.size] for count in op.heads if count]
    return [_norm(draft, op, "gain", parts, degree, [1, 1, sum(op.heads), op.size])]


def _norm(
    draft: Draft, op: Pointwise, kind: str, parts: list[list[int]], degree: int, shape: list[int]
) -> Learned:
    return {
        "kind": kind,
        "name": op.outputs[0].name,
        "layer": draft.scope.get("layer", -1),
        "parts": parts,
        "degree": degree,
        "once": False,
        "shape": shape,
    }


def listed(parts: tuple[Part, ...]) -> list[list[int]]:
    """Write parts of a weight as units and sizes."""
    return [[part.units, part.size] for part in parts]
