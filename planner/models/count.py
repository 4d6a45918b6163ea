"""How many parameters a model has.

A tower's matrices follow from its widths; `Tower.extra` has the rest of a layer (biases, norms,
tables), so that sums equal what the published classes have.

Examples
--------
One Llama-3.1-8B layer: queries and output 4096 x 4096 twice, keys and values 4096 x 1024 twice,
three FFN matrices 4096 x 14336.

>>> from planner.models.architecture import Ffn, Heads, Tower
>>> layer = Tower(streams=("tokens",), hidden=4096, keys=("tokens",), causal=True,
...               heads=Heads(query=32, key_value=8, size=128),
...               ffn=Ffn(width=14336, gated=True, activation="silu"))
>>> tower_parameters(layer) == 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
True
"""

from dataclasses import replace
from typing import Literal

from planner.models.architecture import Block, Cross, Ffn, Model, Modulation, Tower

Part = Literal["qkv", "out", "ffn", "modulation", "cross"]


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Parameters of one affine map.

    >>> linear(3, 5), linear(3, 5, bias=False)
    (20, 15)
    """
    return inputs * outputs + (outputs if bias else 0)


def perceptron(inputs: int, hidden: int, outputs: int | None = None, *, bias: bool = True) -> int:
    """Parameters of two affine maps in a row (a timestep or caption embedding).

    >>> perceptron(256, 4) == linear(256, 4) + linear(4, 4)
    True
    """
    last = linear(hidden, hidden if outputs is None else outputs, bias=bias)
    return linear(inputs, hidden, bias=bias) + last


def parameters(model: Model) -> int:
    """Count all weights, of every transformer that takes turns over the steps."""
    return model.transformers * transformer_parameters(model)


def transformer_parameters(model: Model) -> int:
    """Count the weights that are in use at one step: one transformer, all experts."""
    blocks = sum(block.count * block_parameters(block) for block in model.blocks)
    return blocks + model.outer_parameters


def active_parameters(model: Model) -> int:
    """Count the weights that one token meets: of routed experts only the active ones."""
    return transformer_parameters(model) - sum(
        block.count * _idle(tower) for block in model.blocks for tower in block.towers
    )


def block_parameters(block: Block) -> int:
    """Count the weights of one layer of a block, all its towers."""
    return sum(tower_parameters(tower) for tower in block.towers)


def tower_parameters(tower: Tower) -> int:
    """Count the weights of one layer of a tower."""
    parts = (
        _attention(tower),
        sum(_cross(tower.hidden, cross) for cross in tower.cross),
        _modulation(tower.modulation),
        0 if tower.ends else _ffn(tower.hidden, tower.ffn),
        tower.extra,
    )
    return sum(parts)


def biased(tower: Tower, *parts: Part) -> Tower:
    """Add the biases of the named parts to `extra`: one for each output feature of a matrix.

    >>> from planner.models.architecture import Heads
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


def _attention(tower: Tower) -> int:
    if tower.mixer == "none":
        return 0
    if tower.latent is not None:
        return _latent_attention(tower)
    query, shared = tower.heads.query_width, 2 * tower.heads.key_value_width
    out = 0 if tower.ends else query
    gate = query if tower.gate else 0
    return tower.hidden * (query + shared + out + gate)


def _latent_attention(tower: Tower) -> int:
    latent, count = tower.latent, tower.heads.query
    assert latent is not None
    score = count * (latent.content_size + latent.rotary_size)
    queries = tower.hidden * latent.query_rank + latent.query_rank * score
    if not latent.query_rank:
        queries = tower.hidden * score
    down = tower.hidden * (latent.key_value_rank + latent.rotary_size)
    up = latent.key_value_rank * count * (latent.content_size + latent.value_size)
    return queries + down + up + count * latent.value_size * tower.hidden


def _cross(hidden: int, cross: Cross) -> int:
    shared = 2 * cross.width * cross.heads.key_value_width
    return shared if cross.added else shared + 2 * hidden * cross.heads.query_width


def _cross_biases(hidden: int, cross: Cross) -> int:
    shared = 2 * cross.heads.key_value_width
    return shared if cross.added else shared + cross.heads.query_width + hidden


def _modulation(modulation: Modulation | None) -> int:
    if modulation is None:
        return 0
    if not modulation.rank:
        return modulation.copies * modulation.inputs * modulation.outputs
    return modulation.copies * modulation.rank * (modulation.inputs + modulation.outputs)


def _ffn(hidden: int, ffn: Ffn | None) -> int:
    if ffn is None:
        return 0
    experts = max(ffn.experts, 1)
    router = ffn.experts * hidden
    return _matrices(ffn) * hidden * (experts * ffn.width + ffn.shared) + router


def _ffn_biases(tower: Tower) -> int:
    if tower.ffn is None or tower.ends:
        return 0
    inner = (_matrices(tower.ffn) - 1) * tower.ffn.width
    fused = tower.parallel  # the output matrix, and so its bias, is attention's too
    return max(tower.ffn.experts, 1) * (inner + (0 if fused else tower.hidden))


def _idle(tower: Tower) -> int:
    if tower.ffn is None or not tower.ffn.experts:
        return 0
    idle = tower.ffn.experts - tower.ffn.active
    return idle * _matrices(tower.ffn) * tower.hidden * tower.ffn.width


def _matrices(ffn: Ffn) -> int:
    return 3 if ffn.gated else 2
