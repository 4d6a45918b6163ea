"""Attention as TensorRT's fused layer: heads in front, queries scaled, masks by position.

A mask is written only where one is needed, and is computed inside the engine from the positions of
rows and keys, which are inputs where ranks hold different rows.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.program.ops import Attention
from costmodels.program.rows import Numbers, attention_positions
from planner.tensorrt.sheet import Draft, Value
from planner.tensorrt.write import elementwise, scaled, shuffle, unary

NOWHERE: Final = 2**30
"""Position of a key that nobody sees."""
EVERYWHERE: Final = NOWHERE - 1
"""Position of a query that sees every key there is."""
Places = Sequence[tuple[Numbers, Numbers]]
"""Positions of queries and of keys, of every rank; -1 for padding."""


def attend(draft: Draft, op: Attention, inputs: Sequence[Value], ranks: int = 1) -> Value:
    """Write one attention.

    Parameters
    ----------
    ranks : of a multi-device attention, each of which holds as many of the keys; else 1.
    """
    q, k, v = inputs
    name = op.out.name
    small = scaled(draft, q, float(1 / np.sqrt(op.size)), f"{name}.scaled")
    query = _heads(draft, small, op.heads, op.size)
    key, value = (_heads(draft, x, op.key_value_heads, op.size) for x in (k, v))
    places = [attention_positions(op, index) for index in draft.indices]
    plain = _is_plain_causal(op, places)
    mask = [] if plain or ranks > 1 else _mask(draft, op, places)
    out = draft.add(
        "attention",
        (query, key, value, *mask),
        query.shape,
        query.dtype,
        f"{name}.heads",
        causal=plain,
        ranks=ranks,
    )
    return shuffle(draft, out, q.shape, name, first=(0, 2, 1, 3))


def _heads(draft: Draft, x: Value, count: int, size: int) -> Value:
    """Turn ``[b, r, heads * size]`` into ``[b, heads, r, size]``."""
    shape = (*x.shape[:2], count, size)
    return shuffle(draft, x, shape, f"{x.name}.heads", second=(0, 2, 1, 3))


def _is_plain_causal(op: Attention, places: Places) -> bool:
    """Whether every rank's queries and keys are the same rows in order."""
    ordered = all(
        len(queries) == len(keys) and np.array_equal(queries, keys) and np.all(np.diff(keys) > 0)
        for queries, keys in places
    )
    return op.causal and not op.window and ordered


def _mask(draft: Draft, op: Attention, places: Places) -> list[Value]:
    """Write what each query may see, where that is not everything."""
    later = op.causal and any(keys.max() > _valid(queries).min() for queries, keys in places)
    padded = any(np.any(keys < 0) for _, keys in places)
    early = bool(op.window) and any(
        _valid(keys).min() <= queries.max() - op.window for queries, keys in places
    )
    if not (later or padded or early):
        return []
    name = op.out.name
    key = draft.table([_keys(keys) for _, keys in places], f"{name}.keys")
    seen: list[Value] = []
    if later or padded:
        tops = [_queries(queries, causal=op.causal) for queries, _ in places]
        query = draft.table(tops, f"{name}.queries")
        hidden = elementwise(draft, "GREATER", key, query, f"{name}.hidden")
        seen.append(unary(draft, "NOT", hidden, f"{name}.seen"))
    if early:
        lows = [_queries(queries, causal=True) - np.int32(op.window) for queries, _ in places]
        low = draft.table(lows, f"{name}.lows")
        seen.append(elementwise(draft, "GREATER", key, low, f"{name}.near"))
    if len(seen) == 1:
        return seen
    return [elementwise(draft, "AND", seen[0], seen[1], f"{name}.visible")]


def _valid(positions: Numbers) -> Numbers:
    """Positions that are not padding; zero where all are."""
    kept = positions[positions >= 0]
    return kept if len(kept) else np.zeros(1, np.int64)


def _keys(keys: Numbers) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    return np.where(keys < 0, NOWHERE, keys).astype(np.int32)[None, None, None, :]


def _queries(
    queries: Numbers, *, causal: bool
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    """Last key that each query may see; a row of padding sees what the first row does."""
    tops = np.maximum(queries, 0) if causal else np.full(len(queries), EVERYWHERE)
    return tops.astype(np.int32)[None, None, :, None]
