"""Attention in a TensorRT network: its own layer, or products and a softmax where it has none."""

from collections.abc import Mapping
from typing import Final, cast

import numpy as np

from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.kinds import Site, outputs
from planner.tensorrt.runner.library import Foreign

Layer = Mapping[str, object]
LOW: Final = 30000
"""A score so low that its share is nothing, and that FP16 still holds."""


def attention(site: Site, layer: Layer) -> Foreign:
    """Add an attention, and return the layer whose output is its result.

    Raises
    ------
    RunError
        If it is to run on several devices, and the library has no attention that can.
    """
    if site.fused and hasattr(site.network, "add_attention"):
        return _fused(site, layer)
    if layer["ranks"] != 1:
        raise RunError(f"{layer['name']}: this TensorRT has no attention on several devices")
    return _decomposed(site, layer)


def _fused(site: Site, layer: Layer) -> Foreign:
    query, key, value, *mask = site.inputs(layer)
    softmax = site.library.AttentionNormalizationOp.SOFTMAX
    if hasattr(site.network, "add_attention_v2"):
        kinds = site.library.CausalMaskKind
        kind = kinds.UPPER_LEFT if layer["causal"] else kinds.NONE
        added = site.network.add_attention_v2(query, key, value, softmax, kind)
    else:
        added = site.network.add_attention(query, key, value, softmax, bool(layer["causal"]))
    if added is None:
        return None
    added.decomposable = True
    if mask:
        added.mask = mask[0]
    if layer["ranks"] != 1:
        if not hasattr(added, "num_ranks"):
            raise RunError(f"{layer['name']}: this TensorRT has no attention on several devices")
        added.num_ranks = layer["ranks"]
    return added


def _decomposed(site: Site, layer: Layer) -> Foreign:
    """Multiply, hide, take the softmax, multiply; the heads of a group lie on an axis."""
    query, key, value, *mask = site.inputs(layer)
    batch, heads, rows, size = tuple(query.shape)
    groups, keys = key.shape[1], key.shape[2]
    asked = _shaped(site, query, (batch, groups, heads // groups, rows, size))
    given = [_shaped(site, one, (batch, groups, 1, keys, size)) for one in (key, value)]
    scores = _product(site, asked, given[0], turned=True)
    if mask or layer["causal"]:
        seen = mask[0] if mask else _triangle(site, rows)
        scores = _hidden(site, scores, _shaped(site, seen, (1, *tuple(seen.shape))))
    soft = site.network.add_softmax(scores)
    soft.axes = 1 << 4
    out = _product(site, soft.get_output(0), given[1], turned=False)
    ((_, shape, _),) = outputs(layer)
    last = site.network.add_shuffle(out)
    last.reshape_dims = shape
    return last


def _shaped(site: Site, x: Foreign, shape: tuple[int, ...]) -> Foreign:
    added = site.network.add_shuffle(x)
    added.reshape_dims = shape
    return added.get_output(0)


def _product(site: Site, left: Foreign, right: Foreign, *, turned: bool) -> Foreign:
    ways = site.library.MatrixOperation
    how = ways.TRANSPOSE if turned else ways.NONE
    return site.network.add_matrix_multiply(left, ways.NONE, right, how).get_output(0)


def _hidden(site: Site, scores: Foreign, seen: Foreign) -> Foreign:
    low = site.constant(np.full((1,) * 5, -LOW, np.float32), "fp32", (1,) * 5)
    far = site.network.add_cast(low.get_output(0), scores.dtype).get_output(0)
    return site.network.add_select(seen, scores, far).get_output(0)


def _triangle(site: Site, rows: int) -> Foreign:
    seen = np.tril(np.ones((rows, rows), np.bool_))[None, None]
    return site.constant(seen, "bool", cast("tuple[int, ...]", seen.shape)).get_output(0)
