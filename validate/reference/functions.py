"""What each operation means, in 64-bit numpy. Slow, plain and the judge of everything else."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels import program
from costmodels.program.rows import (
    attention_positions,
    chunk_of,
    joined_rows,
    latest_rank,
    positions,
    rotary_angles,
)
from validate.reference.weights import Array, own_features, take_padded

EPSILON = 1e-12
GUIDANCE = 3.0
STEP = 0.1


def matmul(x: Array, weight: Array, route: Array | None, first: int = 0) -> Array:
    """``x @ weight``; with a route, each row by the experts it names, zero for those elsewhere.

    first : number of the first expert of `weight`.
    """
    if route is None:
        return np.asarray(x @ weight)
    if weight.ndim == 2:
        weight = weight[None]
    rows = x if x.ndim == 4 else np.repeat(x[:, :, None], route.shape[-1], axis=2)
    local_expert = route.astype(int) - first
    is_local = (local_expert >= 0) & (local_expert < len(weight))
    products = np.einsum("brak,brakn->bran", rows, weight[np.where(is_local, local_expert, 0)])
    return np.asarray(np.where(is_local[..., None], products, 0.0))


def gelu(x: Array) -> Array:
    """GELU by its usual approximation with a hyperbolic tangent.

    >>> gelu(np.array([0.0, 1.0])).round(4).tolist()
    [0.0, 0.8412]
    """
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def head_product(op: program.HeadProduct, x: Array, weight: Array) -> Array:
    """Multiply the first features of each head by its matrix; the others stay behind them."""
    widths = [part.local(op.weight.degree) for part in op.weight.columns]
    start = sum(widths[: op.part])
    matrices = weight[:, start : start + widths[op.part]].reshape(len(weight), op.heads, -1)
    rows = x.reshape(*x.shape[:2], op.heads, op.k + op.carried)
    subscripts = "brhn,khn->brhk" if op.turned else "brhk,khn->brhn"
    products = np.einsum(subscripts, rows[..., : op.k], matrices)
    return np.concatenate([products, rows[..., op.k :]], axis=-1).reshape(*x.shape[:2], -1)


def attention(
    op: program.Attention, q: Array, k: Array, v: Array, index: Mapping[str, int]
) -> tuple[Array, Array]:
    """Softmax attention with masks by position; the result and the log-sum-exp."""
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    repeat = op.heads // op.key_value_heads
    heads = q.reshape(batch, queries, op.heads, op.size)
    key = np.repeat(k.reshape(batch, keys, op.key_value_heads, op.size), repeat, axis=2)
    value = np.repeat(v.reshape(batch, keys, op.key_value_heads, -1), repeat, axis=2)
    scores = np.einsum("bqhd,bkhd->bhqk", heads, key) / np.sqrt(op.scaled or op.size)
    scores = np.where(_visible(op, index), scores, -np.inf)
    top = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), -1 / EPSILON)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", weights / np.maximum(total, EPSILON), value)
    with np.errstate(divide="ignore"):
        log_sum_exp = (top + np.log(total))[..., 0].transpose(0, 2, 1)
    return out.reshape(batch, queries, -1), log_sum_exp


def linear_attention(op: program.LinearAttention, first: Array, second: Array) -> Array:
    """Add up products of keys with values and a one, or look queries up in such sums."""
    batch, rows, _ = first.shape
    left = np.maximum(first.reshape(batch, rows, op.heads, op.size), 0)
    if op.part == "sum":
        value = second.reshape(batch, rows, op.heads, op.size)
        ones = np.ones((*value.shape[:3], 1))
        return np.asarray(np.einsum("brhi,brhj->bhij", left, np.concatenate([value, ones], -1)))
    sums = np.einsum("brhi,bhij->brhj", left, second)
    return np.asarray((sums[..., :-1] / (sums[..., -1:] + EPSILON)).reshape(first.shape))


def depthwise(op: program.Depthwise, x: Array, weight: Array, index: Mapping[str, int]) -> Array:
    """Sum over the nine points around each; those outside the image count as zero."""
    line, halo = int(op.line), int(op.halo)
    places = positions(op.span, index)
    line_index, column = np.divmod(places, line)
    lines = int(op.span.tokens) // line
    rows = np.arange(len(places)) + halo
    out = np.zeros((x.shape[0], len(places), x.shape[2]))
    for tap, (dy, dx) in enumerate(np.ndindex(3, 3)):
        inside = (line_index + dy - 1 >= 0) & (line_index + dy - 1 < lines)
        inside = inside & (column + dx - 1 >= 0) & (column + dx - 1 < line)
        neighbours = rows + (dy - 1) * line + dx - 1
        out += take_padded(x, np.where(inside, neighbours, -1), 1) * weight[tap]
    return out


def silu(x: Array) -> Array:
    """``x sigmoid(x)``."""
    return np.asarray(x / (1 + np.exp(-x)))


def causal_convolution(
    op: program.CausalConvolution, x: Array, before: Array, weight: Array
) -> tuple[Array, Array]:
    """Sum each feature's last rows, weighed, and activate; the rows that are kept next."""
    rows = np.concatenate([before, x], axis=1)
    taps = op.weight.local_rows
    sums = sum(rows[:, tap : tap + x.shape[1]] * weight[tap] for tap in range(taps))
    return silu(np.asarray(sums)), rows[:, x.shape[1] :]


def recurrence(
    op: program.Recurrence, features: Array, gates: Array, state: Array, weight: Array
) -> tuple[Array, Array]:
    """Let every token change the state of each head, and read it, one after another."""
    batch, rows, _ = features.shape
    key_width, value_width = op.groups * op.key, op.heads * op.value
    widths = [key_width, key_width] if op.kind == "delta" else [value_width, key_width]
    parts = np.split(features, np.cumsum(widths), axis=-1)
    keys, values = (parts[:2], parts[2]) if op.kind == "delta" else (parts[1:], parts[0])
    left, right = (
        np.repeat(part.reshape(batch, rows, op.groups, op.key), op.heads // op.groups, axis=2)
        for part in keys
    )
    value = values.reshape(batch, rows, op.heads, op.value)
    step = np.logaddexp(gates[..., -op.heads :] + weight[1], 0)
    decay = np.exp(-np.exp(weight[0]) * step)
    state, outs = state.copy(), []
    for row in range(rows):
        state = state * decay[:, row, :, None, None]
        if op.kind == "delta":
            query, key = _unit(left[:, row]) / np.sqrt(op.key), _unit(right[:, row])
            size = 1 / (1 + np.exp(-gates[:, row, : op.heads]))
            change = value[:, row] - np.einsum("bhkv,bhk->bhv", state, key)
            state = state + np.einsum("bhk,bhv->bhkv", key, size[..., None] * change)
        else:
            query, key = right[:, row], left[:, row]
            change = step[:, row, :, None] * value[:, row]
            state = state + np.einsum("bhk,bhv->bhkv", key, change)
        outs.append(np.einsum("bhkv,bhk->bhv", state, query))
    return np.stack(outs, axis=1).reshape(batch, rows, -1), state


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + EPSILON))


def _visible(op: program.Attention, index: Mapping[str, int]) -> NDArray[np.bool_]:
    queries, keys = attention_positions(op, index)
    visible: NDArray[np.bool_] = np.broadcast_to(keys >= 0, (len(queries), len(keys)))
    if op.causal:
        visible = visible & (keys[None] <= queries[:, None])
    if op.window:
        visible = visible & (keys[None] > queries[:, None] - op.window)
    return visible


def pointwise(  # noqa: C901, PLR0911, PLR0912  # one case a function
    op: program.Pointwise, inputs: Sequence[Array], index: Mapping[str, int]
) -> list[Array]:
    """Evaluate an element-wise function."""
    match op.function:
        case "norm":
            return [_norm(inputs[0])]
        case "modulated_norm":
            shift, scale, _ = _vectors(inputs[0], inputs[1], op.place)
            return [_norm(inputs[0]) * (1 + scale) + shift]
        case "residual" | "difference":
            return [inputs[0] + (1 if op.function == "residual" else -1) * inputs[1]]
        case "gated_residual":
            _, _, gate = _vectors(inputs[0], inputs[2], op.place)
            return [inputs[0] + gate * inputs[1]]
        case "gelu":
            return [gelu(inputs[0])]
        case "silu":
            return [inputs[0] / (1 + np.exp(-inputs[0]))]
        case "relu2":
            return [np.maximum(inputs[0], 0) ** 2]
        case "silu_gated":
            gate, up = np.split(inputs[0], 2, axis=-1)
            return [gate / (1 + np.exp(-gate)) * up]
        case "head_norm":
            return [_norm_of_groups(op, inputs[0])]
        case "rotary":
            return [_rotary(op, inputs[0], index)]
        case "rotary_tail":
            heads = inputs[0].reshape(*inputs[0].shape[:2], -1, op.size)
            return [_tail_rotated(op, heads, index).reshape(inputs[0].shape)]
        case "latent":
            head, tail = np.split(inputs[0], [-op.place], axis=-1)
            row = np.concatenate([_norm(head), tail], axis=-1)
            return [_tail_rotated(op, row[:, :, None], index)[:, :, 0]]
        case "gated":
            return [inputs[0] / (1 + np.exp(-inputs[1]))]
        case "gated_norm":
            return [_norm_of_groups(op, inputs[0]) * silu(inputs[1])]
        case "merge" | "merge_all":
            return _merge_all(op, *inputs) if len(inputs) == 1 else _merge(op, *inputs)
        case "route":
            return _route(op, inputs[0])
        case "combine":
            return [np.einsum("bran,bra->brn", *inputs)]
        case "guidance":
            with_prompt, *without = inputs[0]
            return [without[0] + GUIDANCE * (with_prompt - without[0]) if without else with_prompt]
        case "step":
            width = min(inputs[0].shape[-1], inputs[1].shape[-1])
            out = inputs[0].copy()
            out[..., :width] += STEP * inputs[1][..., :width]
            return [out]
        case "cast":
            return [inputs[0]]
        case "scale":
            return [inputs[0] / op.place]
        case _:
            raise AssertionError(f"{op.function} is written in networks alone")


def _norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON))


def _norm_of_groups(op: program.Pointwise, x: Array) -> Array:
    """Norm every `size` features of a row."""
    return _norm(x.reshape(*x.shape[:2], -1, op.size)).reshape(x.shape)


def _vectors(x: Array, row: Array, place: int) -> tuple[Array, Array, Array]:
    """Shift, scale and gate from a conditioning row, wherever it has that many vectors."""
    width = x.shape[-1]
    count = row.shape[-1] // width
    vectors = [row[..., i * width : (i + 1) * width] for i in range(count)]
    shift, scale, gate = (vectors[(3 * place + i) % count] for i in range(3))
    return shift, scale, gate


def _rotary(op: program.Pointwise, x: Array, index: Mapping[str, int]) -> Array:
    """Norm every head of q and k, and turn its halves by an angle that grows with position."""
    query, key = op.heads
    rows = x.reshape(*x.shape[:2], -1, op.size)
    query_key, value = rows[:, :, : query + key], rows[:, :, query + key :]
    turned = _rotated(op, _norm(query_key), index)
    return np.concatenate([turned, value], axis=2).reshape(x.shape)


def _rotated(op: program.Pointwise, heads: Array, index: Mapping[str, int]) -> Array:
    """Turn the halves of every head, ``[b, r, heads, size]``."""
    angle, half = rotary_angles(op, index), op.turned // 2
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    low, high = heads[..., :half], heads[..., half:]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)


def _tail_rotated(op: program.Pointwise, heads: Array, index: Mapping[str, int]) -> Array:
    """Turn the last features of every head."""
    head, tail = np.split(heads, [-op.turned], axis=-1)
    return np.concatenate([head, _rotated(op, tail, index)], axis=-1)


def _merge(
    op: program.Pointwise, left: Array, left_sum: Array, right: Array, right_sum: Array
) -> list[Array]:
    total = np.logaddexp(left_sum, right_sum)
    safe = np.where(np.isfinite(total), total, 0.0)
    shape = (*left.shape[:2], op.heads[0], op.size)
    weights = [np.exp(part - safe)[..., None] for part in (left_sum, right_sum)]
    out = left.reshape(shape) * weights[0] + right.reshape(shape) * weights[1]
    return [out.reshape(left.shape), total]


def _merge_all(op: program.Pointwise, parts: Array) -> list[Array]:
    """Merge the parts of all ranks; one without keys has no weight."""
    outs, sums = np.split(parts, [op.heads[0] * op.size], axis=-1)
    total = np.logaddexp.reduce(sums, axis=0)
    weights = np.exp(sums - np.where(np.isfinite(total), total, 0.0))[..., None]
    out = (outs.reshape(*sums.shape, op.size) * weights).sum(axis=0)
    return [out.reshape(outs.shape[1:]), total]


def _route(op: program.Pointwise, scores: Array) -> list[Array]:
    active = int(op.outputs[0].shape[-1])
    expert_ids = np.argsort(-scores, axis=-1, kind="stable")[..., :active]
    top = np.take_along_axis(scores, expert_ids, axis=-1)
    gates = np.exp(top - top.max(axis=-1, keepdims=True))
    return [expert_ids.astype(float), gates / gates.sum(axis=-1, keepdims=True)]


def rearrange(  # noqa: C901, PLR0911, PLR0912  # one case a move
    op: program.Rearrange, inputs: Sequence[Array], index: Mapping[str, int]
) -> list[Array]:
    """Move data; `index` is this rank's place along every axis."""
    source = inputs[0]
    match op.move:
        case "split_features" | "split_rows":
            lead = (...,) if op.move == "split_features" else (slice(None),)
            sizes = [int(out.shape[-1 if lead[0] is ... else 1]) for out in op.outputs]
            return [source[(*lead, slice(end - size, end))] for size, end in _ends(sizes)]
        case "concat_features":
            return [np.concatenate(inputs, axis=-1)]
        case "concat_heads":
            return [_concat_heads(op, *inputs)]
        case "concat_rows" | "append":
            return [np.concatenate(inputs, axis=1)]
        case "interleave" | "turn":
            raise AssertionError(f"{op.move} is written in networks alone")
        case "regroup":
            return [source.reshape(*(int(size) for size in op.outputs[0].shape))]
        case "shard":
            return [take_padded(source, positions(op.spans[0], index), 1)]
        case "heads":
            return [source[..., own_features(op.parts, op.degree, index[op.axis])]]
        case "pack_heads":
            rows = np.concatenate(inputs, axis=1)
            rank_features = [own_features(op.parts, op.degree, rank) for rank in range(op.degree)]
            return [np.stack([rows[..., features] for features in rank_features])]
        case "unpack_heads":
            return [_unpack_heads(op, source)]
        case "unpack_rows":
            return [_unpack_rows(op, source, index)]
        case "pack_rows":
            places = joined_rows(op.spans, op.axis, op.degree, index)
            return [np.stack([take_padded(source, rows, 1) for rows in places])]
        case "stack":
            return [source[None]]
        case "unstack":
            return [source[0]]
        case "place":
            updated = source.copy()
            updated[:, positions(op.spans[0], index)] = inputs[1]
            return [updated]
        case "last":
            place = int(np.argmax(positions(op.spans[0], index)))
            return [source[:, place : place + 1]]
        case "latest":
            return [source[latest_rank(op.spans[0], op.axis, op.degree, index)]]
        case "hop":
            return [source[(index[op.axis] - op.turn) % op.degree]]
        case "homeward":
            steps = [(index[op.axis] - rank) % op.degree for rank in range(op.degree)]
            return [np.stack([inputs[step] for step in steps])]
        case "borders":
            halo = int(op.outputs[0].shape[2]) // 2
            return [np.concatenate([source[:, :halo], source[:, -halo:]], axis=1)[None]]
        case "surround":
            return [_surround(op, source, inputs[1], index)]
        case "store" | "load" | "collect" | "keep" | "recall":
            raise AssertionError(f"{op.move} is the runner's")


def _ends(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(sizes, accumulate(sizes), strict=True)


def _concat_heads(op: program.Rearrange, head_features: Array, shared: Array) -> Array:
    """Lay features that all heads share behind those of each."""
    heads = head_features.reshape(*head_features.shape[:2], -1, op.parts[0].size)
    copies = np.repeat(shared[:, :, None], heads.shape[2], axis=2)
    return np.concatenate([heads, copies], axis=-1).reshape(*head_features.shape[:2], -1)


def _surround(op: program.Rearrange, x: Array, edges: Array, index: Mapping[str, int]) -> Array:
    """Lay the last rows of the chunk before, and the first of the next, around a chunk."""
    place, halo = chunk_of(op.spans[0], index), edges.shape[2] // 2
    padding = np.zeros_like(edges[0, :, :halo])
    before = edges[place - 1, :, halo:] if place else padding
    after = edges[place + 1, :, :halo] if place + 1 < len(edges) else padding
    return np.concatenate([before, x, after], axis=1)


def _unpack_heads(op: program.Rearrange, x: Array) -> Array:
    width = sum(part.units * part.size for part in op.parts)
    out = np.zeros((*x.shape[1:-1], width))
    for rank in range(op.degree):
        columns = own_features(op.parts, op.degree, rank)
        out[..., columns[columns >= 0]] = x[rank][..., columns >= 0]
    return out


def _unpack_rows(op: program.Rearrange, x: Array, index: Mapping[str, int]) -> Array:
    out = np.zeros(tuple(int(size) for size in op.outputs[0].shape))
    for rank, rows in enumerate(joined_rows(op.spans, op.axis, op.degree, index)):
        out[:, rows[rows >= 0]] = x[rank][:, rows >= 0]
    return out
