"""Parameters of maps: of a matrix and its bias, of two in a row, and the biases of a tower."""

from dataclasses import replace
from typing import Literal

from planner.models.architecture import Cross, Tower

Part = Literal["qkv", "out", "ffn", "modulation", "cross"]


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Count the parameters of one affine map.

    >>> linear(3, 5), linear(3, 5, bias=False)
    (20, 15)
    """
    return inputs * outputs + (outputs if bias else 0)


def perceptron(inputs: int, hidden: int, outputs: int | None = None, *, bias: bool = True) -> int:
    """Count the parameters of two affine maps in a row (a timestep or caption embedding).

    >>> perceptron(256, 4) == linear(256, 4) + linear(4, 4)
    True
    """
    second_map = linear(hidden, hidden if outputs is None else outputs, bias=bias)
    return linear(inputs, hidden, bias=bias) + second_map


def biased(tower: Tower, *parts: Part) -> Tower:
    """Add the biases of the named parts to `extra`: one for each output feature of a matrix.

    >>> from planner.models.mixers import Heads
    >>> heads = Heads(query=2, key_value=1, size=8)
    >>> plain = Tower(streams=("text",), hidden=10, heads=heads, keys=("text",))
    >>> biased(plain, "qkv", "out").extra  # 16 + 8 + 8 and 10
    42
    """
    widths: dict[Part, int] = {
        "qkv": tower.heads.query_width + 2 * tower.heads.key_value_width,
        "out": 0 if tower.ends else tower.hidden,
        "ffn": _ffn_biases(tower),
        "modulation": tower.modulation.copies * tower.modulation.outputs if tower.modulation else 0,
        "cross": sum(_cross_biases(tower.hidden, cross) for cross in tower.cross),
    }
    return replace(tower, extra=tower.extra + sum(widths[part] for part in parts))


def _cross_biases(hidden: int, cross: Cross) -> int:
    shared = 2 * cross.heads.key_value_width
    return shared if cross.added else shared + cross.heads.query_width + hidden


def _ffn_biases(tower: Tower) -> int:
    if tower.ffn is None or tower.ends:
        return 0
    inner = (tower.ffn.matrices - 1) * tower.ffn.width
    fused = tower.parallel  # the output matrix, and so its bias, is attention's too
    return max(tower.ffn.experts, 1) * (inner + (0 if fused else tower.hidden))
