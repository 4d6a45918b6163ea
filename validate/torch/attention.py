"""Attention on PyTorch: the fastest kernel that is right, with log-sum-exps where asked for.

Positions on a cut, padded or zigzag sequence make masks that no fast kernel takes. Cut into runs of
queries, what is left is a rectangle, a square with a diagonal, or nothing at all.

Shapes here are ``[batch, rows, heads, size]``; log-sum-exps ``[batch, rows, heads]``.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import numpy as np
import torch

from costmodels.program import Attention
from costmodels.program.rows import Numbers, attention_positions
from topology.base.values import dataclass
from validate.torch import layout
from validate.torch.layout import Run, from_rows
from validate.torch.setting import Bound, Setting, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Keys that a run of queries sees.

    diagonal : query i sees the first ``keys - queries + i + 1`` of them, and of those the last
    `window` where there is one.
    """

    keys: tuple[Run, ...]
    diagonal: bool = False
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRun:
    """Neighbouring queries, and the pieces of keys that they see; none where they see nothing."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


def query_runs(op: Attention, index: Mapping[str, int]) -> list[QueryRun]:
    """Cut an attention into runs of queries.

    Two ranks in zigzag order, the first one's queries at 0, 1, 6, 7 on keys at 2, 3, 4, 5:

    >>> from costmodels.program import Span, Tensor
    >>> x, span = Tensor("x", (1, 4, 8)), Span("t", 8, (("ring", 2),), 2, zigzag=True)
    >>> op = Attention(q=x, k=x, v=x, out=x, heads=1, key_value_heads=1, size=8, causal=True,
    ...     query_spans=(span,), key_spans=(span,), turn=("ring", 1))
    >>> for run in query_runs(op, {"ring": 0}):
    ...     print(run.start, run.stop, run.pieces)
    0 2 ()
    2 4 (Piece(keys=((0, 0, 4),), diagonal=False, window=0),)
    """
    queries, keys = attention_positions(op, index)
    real_keys = np.flatnonzero(keys >= 0)
    if not op.causal and not op.window:
        return [QueryRun(start=0, stop=len(queries), pieces=_key_pieces(real_keys))]
    if np.any(np.diff(keys[real_keys]) <= 0):
        raise AssertionError(f"keys of {op.out.name} are not in the order of their positions")
    starts, stops = _key_bounds(op, queries, keys[real_keys])
    return [_query_run(op, real_keys, starts, stops, bounds) for bounds in _cuts(stops)]


def _key_bounds(op: Attention, queries: Numbers, keys: Numbers) -> tuple[Numbers, Numbers]:
    """First key that each query sees, and the one after the last."""
    stops = np.full(len(queries), len(keys))
    if op.causal:
        stops = np.searchsorted(keys, queries, side="right")
    starts = np.zeros(len(queries), dtype=int)
    if op.window:
        starts = np.searchsorted(keys, queries - op.window, side="right")
    return starts, stops


def _cuts(stops: Numbers) -> list[tuple[int, int]]:
    """Find runs of queries that see as many keys, or each one more than the query before."""
    rises, cuts, start = np.diff(stops), [], 0
    for row in range(1, len(stops)):
        rise = int(rises[row - 1])
        if rise not in (0, 1) or (row - 1 > start and rise != rises[row - 2]):
            cuts.append((start, row))
            start = row
    return [*cuts, (start, len(stops))]


def _query_run(
    op: Attention, real_keys: Numbers, starts: Numbers, stops: Numbers, bounds: tuple[int, int]
) -> QueryRun:
    start, stop = bounds
    first_stop, last_stop = int(stops[start]), int(stops[stop - 1])
    if first_stop == last_stop:
        low = int(starts[start])
        return QueryRun(start=start, stop=stop, pieces=_key_pieces(real_keys[low:first_stop]))
    if op.window:
        pieces = _key_pieces(real_keys[:last_stop], diagonal=True, window=op.window)
    else:
        pieces = (
            *_key_pieces(real_keys[: first_stop - 1]),
            *_key_pieces(real_keys[first_stop - 1 : last_stop], diagonal=True),
        )
    return QueryRun(start=start, stop=stop, pieces=pieces)


def _key_pieces(rows: Numbers, *, diagonal: bool = False, window: int = 0) -> tuple[Piece, ...]:
    if not len(rows):
        return ()
    return (Piece(keys=tuple(from_rows(rows)), diagonal=diagonal, window=window),)


TOLERANCE: Final = 0.03
_PROBE_ROWS: Final = 64
_FUSED_SIZE: Final = 256
"""Features of a head that fused kernels take for one query; above, products are faster."""
_FULL: Final = 0.9
"""Share of the multiprocessors from which cuDNN, which cuts no keys, keeps them busy."""

Result = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """What the choice of a kernel depends on."""

    device: str
    dtype: torch.dtype
    heads: int
    key_value_heads: int
    size: int
    values: int
    window: bool = False
    single: bool = False  # one query a sample
    items: int = 0  # samples times heads of keys


def bind(op: Attention, setting: Setting) -> Bound:
    """Make an attention ready to run."""
    runs = query_runs(op, setting.index)
    kernel = KERNELS[kernel_for(shape_for(op, setting))]
    wants_sum = op.log_sum_exp is not None

    factor = math.sqrt(op.size / op.scaled) if op.scaled else 1.0

    def run(inputs: Values) -> list[torch.Tensor]:
        heads = (op.heads, op.key_value_heads, op.key_value_heads)
        q, k, v = (
            torch.unflatten(x, -1, (count, -1)) for x, count in zip(inputs, heads, strict=True)
        )
        q = q if factor == 1.0 else q * factor
        parts = [
            _attend(kernel, query_run, (q, k, v), setting, sums=wants_sum) for query_run in runs
        ]
        out = parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts], 1)
        if not wants_sum:
            return [out.flatten(-2)]
        sums = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts], 1)
        return [out.flatten(-2), sums]

    return Bound(run)


def shape_for(op: Attention, setting: Setting) -> KernelShape:
    """Say what the choice of a kernel depends on."""
    queries = int(op.queries)
    return KernelShape(
        device=str(setting.device),
        dtype=setting.dtype,
        heads=op.heads,
        key_value_heads=op.key_value_heads,
        size=op.size,
        values=op.value_size,
        window=bool(op.window) and queries > 1,
        single=queries == 1,
        items=int(op.q.shape[0]) * op.key_value_heads if queries == 1 else 0,
    )


def _attend(
    kernel: "Softmax",
    run: QueryRun,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    setting: Setting,
    *,
    sums: bool,
) -> Result:
    """Attend a run of queries to each of its pieces, of which every query sees some, and merge."""
    q = qkv[0].narrow(1, run.start, run.stop - run.start)
    if not run.pieces:
        no_sums = torch.full(q.shape[:3], -math.inf, dtype=setting.wide, device=q.device)
        return q.new_zeros(*q.shape[:3], qkv[2].shape[-1]), no_sums
    several = len(run.pieces) > 1
    results = []
    for piece in run.pieces:
        k, v = (layout.join([x], piece.keys, 1) for x in qkv[1:])
        ask = Ask(diagonal=piece.diagonal, window=piece.window, sums=sums or several)
        results.append(kernel(q, k, v, ask))
    if not several:
        return results[0]
    (left, left_sum), (right, right_sum) = results
    share = torch.sigmoid(right_sum - left_sum)[..., None].to(q.dtype)
    return torch.lerp(left, right, share), torch.logaddexp(left_sum, right_sum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is seen, as a `Piece` has it, and whether the sums are wanted (they cost cuDNN 6 %)."""

    diagonal: bool = False
    window: int = 0
    sums: bool = True


Softmax = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Ask], Result]
"""From q, k, v and what is asked to the result, and the sums if they were asked for."""


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ask: Ask) -> Result:
    """Attention written out, in wide sums; for small sizes, and to judge the other kernels."""
    wide_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = k.shape[2]
    grouped = torch.unflatten(q.to(wide_dtype), 2, (groups, -1)) / math.sqrt(q.shape[-1])
    scores = torch.einsum("bqgrd,bkgd->bgrqk", grouped, k.to(wide_dtype))
    if ask.diagonal or ask.window:
        rows = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
        columns = torch.arange(k.shape[1], device=q.device)[None]
        hidden = (columns > rows) & ask.diagonal
        if ask.window:
            hidden = hidden | (columns <= rows - ask.window)
        scores = scores.masked_fill(hidden, -math.inf)
    sums = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - sums[..., None])
    out = torch.einsum("bgrqk,bkgd->bqgrd", weights, v.to(wide_dtype))
    return out.flatten(2, 3).to(q.dtype), sums.flatten(1, 2).transpose(1, 2)


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ask: Ask) -> Result:
    """CuDNN's fused attention, which on Hopper is the fastest that PyTorch has."""
    assert not ask.window
    out, sums = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        None,
        ask.sums,
        0.0,
        ask.diagonal,
    )[:2]
    out = out.transpose(1, 2)
    return out, sums.reshape(q.transpose(1, 2).shape[:3]).transpose(1, 2) if ask.sums else out


def cudnn_repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ask: Ask) -> Result:
    """CuDNN's attention with grouped keys and values repeated for every head."""
    repeat = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(repeat, dim=2) for x in (k, v))
    return cudnn(q, k, v, ask)


def folded_heads(kernel: Softmax) -> Softmax:
    """Attend one query a sample: heads that share keys stand as queries of one head."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ask: Ask) -> Result:
        assert q.shape[1] == 1
        rows = torch.unflatten(q[:, 0], 1, (k.shape[2], -1)).transpose(1, 2)
        out, sums = (x.transpose(1, 2).flatten(1, 2)[:, None] for x in kernel(rows, k, v, ask))
        return out, sums

    return run


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ask: Ask) -> Result:
    """FlashAttention 2 as PyTorch ships it; knows windows, and one query against many keys."""
    out, sums = torch.ops.aten._flash_attention_forward(  # noqa: SLF001
        q,
        k,
        v,
        None,
        None,
        q.shape[1],
        k.shape[1],
        0.0,
        ask.diagonal,
        False,  # noqa: FBT003
        window_size_left=ask.window - 1 if ask.window else None,
        window_size_right=0 if ask.window else None,
    )[:2]
    return out, sums.transpose(1, 2)


def multiplied(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ask: Ask) -> Result:
    """Attend one query a sample by two products for each head of keys, a softmax between them.

    Scores have a row for each key, as rows of an odd number of keys make slow products.
    """
    assert q.shape[1] == 1
    assert not ask.window
    rows = torch.unflatten(q[:, 0], 1, (k.shape[2], -1)) / math.sqrt(q.shape[-1])
    results, sums = [], []
    for head in range(k.shape[2]):
        scores = _wide_product(k[:, :, head], rows[:, head].transpose(1, 2))
        sums.append(torch.logsumexp(scores, 1))
        weights = torch.exp(scores - sums[-1][:, None]).to(v.dtype)
        results.append(torch.bmm(weights.transpose(1, 2), v[:, :, head]))
    return torch.cat(results, 1)[:, None], torch.cat(sums, 1)[:, None]


def _wide_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply, with at least 32 bits of each result."""
    if left.dtype.itemsize > 2:
        return torch.bmm(left, right)
    return torch.bmm(left, right, out_dtype=torch.float32)


KERNELS: Final[dict[str, Softmax]] = {
    "cudnn": cudnn,
    "cudnn_folded": folded_heads(cudnn),
    "cudnn_repeated": cudnn_repeated,
    "flash": flash,
    "multiplied": multiplied,
    "plain": plain_attention,
}


@cache
def kernel_for(shape: KernelShape) -> str:
    """Choose the first kernel, fastest first, that runs and agrees with attention written out."""
    if not shape.device.startswith("cuda") or shape.dtype.itemsize != 2:
        return "plain"
    return next((name for name in _order(shape) if _is_right(name, shape)), "plain")


def _order(shape: KernelShape) -> list[str]:
    """List the kernels for a shape, the fastest first."""
    if shape.window:
        return ["flash"]
    if shape.single:
        if shape.size > _FUSED_SIZE:
            return ["multiplied", "cudnn_folded"]
        slots = torch.cuda.get_device_properties(shape.device).multi_processor_count
        full = shape.items >= _FULL * slots
        return ["cudnn_folded", "flash"] if full else ["flash", "cudnn_folded"]
    grouped = shape.key_value_heads < shape.heads
    return ["cudnn", "cudnn_repeated", "flash"] if grouped else ["cudnn", "flash"]


def _is_right(name: str, shape: KernelShape) -> bool:
    rows = 1 if shape.single else _PROBE_ROWS
    generator = torch.Generator(shape.device).manual_seed(1)
    q, k, v = (
        torch.randn(
            (1, count, heads, size), generator=generator, device=shape.device, dtype=shape.dtype
        )
        for count, heads, size in (
            (rows, shape.heads, shape.size),
            (_PROBE_ROWS, shape.key_value_heads, shape.size),
            (_PROBE_ROWS, shape.key_value_heads, shape.values),
        )
    )
    window = _PROBE_ROWS // 4 if shape.window else 0
    diagonals = (True,) if shape.window else (False,) if shape.single else (False, True)
    try:
        pairs = [
            (KERNELS[name](q, k, v, ask), plain_attention(q, k, v, ask))
            for ask in (Ask(diagonal=diagonal, window=window) for diagonal in diagonals)
        ]
    except (RuntimeError, AssertionError, TypeError):
        return False
    return all(
        bool(torch.allclose(got.float(), want.float(), atol=TOLERANCE, rtol=TOLERANCE))
        for pair in pairs
        for got, want in zip(*pair, strict=True)
    )
