"""A mixture of experts: each token passes a few of many feed-forwards, spread over ranks.

Groups of ranks have experts of their own, and cut each of them as they cut other layers. A rank
adds up what its experts give. Where all ranks have the same tokens, as those of tensor parallelism,
that is all; where they have tokens of their own (`adp`, or a sequence that is cut), they gather the
tokens of all before, and add up and share out the results behind [1]_. Experts over fewer features
than a token has stand between two projections; what travels are then those features.

References
----------
.. [1] vLLM, vllm/distributed/device_communicators/all2all.py: ``allgather_reducescatter``; SGLang,
   python/sglang/srt/layers/dp_attention.py; TensorRT-LLM, tensorrt_llm/_torch/modules/fused_moe
"""

from costmodels.expert_routing import Routing
from costmodels.program import ExpertTokens, Part, Pointwise, Tensor, Weight
from costmodels.program.emit import (
    Emits,
    collective,
    concat_features,
    matmul,
    move,
    pointwise,
    split_features,
)
from planner.lowering.work import RankWork, weight_format
from planner.models import Ffn

Routed = tuple[Tensor, Tensor, Tensor]
"""Rows, the experts that each of them names, and how much each of these counts."""


def ffn_columns(ffn: Ffn | None) -> tuple[Part, ...]:
    """Give the columns of the projection up: gate and value side by side, if gated."""
    if ffn is None:
        return ()
    return (Part(ffn.width),) * (2 if ffn.gated else 1)


def ffn_activation(ffn: Ffn, x: Tensor, name: str) -> Emits[Tensor]:
    """Activate; a gated FFN halves the features."""
    if ffn.gated:
        result = yield from pointwise("silu_gated", (x,), name, features=x.shape[-1] // 2)
    else:
        result = yield from pointwise("relu2" if ffn.activation == "relu2" else "gelu", (x,), name)
    return result


def routed_experts(work: RankWork, ffn: Ffn, h: Tensor, name: str) -> Emits[Tensor]:
    """Emit the experts of rows; a partial sum where the ranks that have the rows share experts."""
    route, gates = yield from _routes(ffn, h, name)
    if not ffn.latent:
        return (yield from _spread_experts(work, ffn, (h, route, gates), name))
    narrow = yield from _projected(h, ffn.latent, f"{name}.narrow")
    sums = yield from _spread_experts(work, ffn, (narrow, route, gates), name)
    return (yield from _projected(sums, int(h.shape[-1]), f"{name}.wide"))


def _projected(x: Tensor, features: int, name: str) -> Emits[Tensor]:
    """Emit a product with a matrix that every rank has whole, in 16 bits."""
    rows, columns = (Part(int(x.shape[-1])),), (Part(features),)
    return (yield from matmul(x, Weight(name=name, rows=rows, columns=columns), f"{name}.out"))


def _spread_experts(work: RankWork, ffn: Ffn, rows: Routed, name: str) -> Emits[Tensor]:
    """Bring rows to the ranks of their experts, and results back.

    A token that all ranks of a sequence have goes nowhere: what their experts make is added up.
    """
    h, axes = rows[0], [axis for axis in work.share.token_ranks if axis[1] > 1]
    if work.share.sequence and not any(span.axes for span in work.spans.values()):
        sums = yield from _experts(work, ffn, rows, name)
        for axis, degree in axes:
            sums = yield from collective("all_reduce", sums, axis, degree, f"{name}.{axis}.sum")
        return sums
    tokens = _expert_tokens(work, ffn, h)
    gathered_rows, sent_rows = rows, []
    for axis, degree in reversed(axes):
        sent_rows.append((axis, degree, gathered_rows[0]))
        gathered_rows = yield from _gathered_rows(
            gathered_rows, (axis, degree), f"{name}.{axis}", tokens
        )
    sums = yield from _experts(work, ffn, gathered_rows, name)
    for axis, degree, local_rows in reversed(sent_rows):
        regrouped = Tensor(f"{name}.{axis}.apart", (degree, *local_rows.shape), local_rows.itemsize)
        yield from move("regroup", [sums], regrouped, axis=axis, degree=degree, view=True)
        local_sums = yield from collective(
            "reduce_scatter", regrouped, axis, degree, f"{name}.{axis}.own", tokens=tokens
        )
        sums = Tensor(f"{name}.{axis}.routed", local_rows.shape, local_rows.itemsize)
        yield from move("unstack", [local_sums], sums, axis=axis, degree=degree, view=True)
    return sums


def _routes(ffn: Ffn, h: Tensor, name: str) -> Emits[tuple[Tensor, Tensor]]:
    """Choose the experts of every row."""
    columns = (Part(ffn.experts),)
    router = Weight(name=f"{name}.router", rows=(Part(int(h.shape[-1])),), columns=columns)
    scores = yield from matmul(h, router, f"{name}.scores")
    route = Tensor(f"{name}.route", (*h.shape[:2], ffn.active), 4)
    gates = Tensor(f"{name}.gates", route.shape, h.itemsize)
    yield Pointwise(function="route", inputs=(scores,), outputs=(route, gates))
    return route, gates


def _expert_tokens(work: RankWork, ffn: Ffn, h: Tensor) -> ExpertTokens | None:
    """Say what travels where each rank has whole experts of its own; None where others share them.

    What goes from rank to rank may then be left to whatever sends less than all tokens to all.
    """
    share = work.share
    if share.tensor > 1 or share.expert_groups != share.copies:
        return None
    routing = Routing(
        experts=ffn.experts, top_k=ffn.active, groups=ffn.groups, top_groups=ffn.active_groups,
        copies=ffn.copies,
    )  # fmt: skip
    precision = weight_format(work.model, work.workload.precision, "experts")
    return ExpertTokens(routing=routing, features=int(h.shape[-1]), precision=precision or "bf16")


def _gathered_rows(
    rows: Routed, axis_degree: tuple[str, int], name: str, tokens: ExpertTokens | None
) -> Emits[Routed]:
    """Gather the rows of all ranks along an axis, with their routes, in one message."""
    h, (axis, copies) = rows[0], axis_degree
    packed = yield from concat_features(rows, f"{name}.mine", view=True)
    stacked = Tensor(f"{name}.stacked", (1, *packed.shape), packed.itemsize)
    yield from move("stack", [packed], stacked, axis=axis, degree=copies, view=True)
    gathered = yield from collective(
        "all_gather", stacked, axis, copies, f"{name}.gathered", tokens=tokens
    )
    all_rows = Tensor(f"{name}.every", (copies * h.shape[0], *packed.shape[1:]), packed.itemsize)
    yield from move("regroup", [gathered], all_rows, axis=axis, degree=copies, view=True)
    widths = [tensor.shape[-1] for tensor in rows]
    names = [f"{name}.all.{kind}" for kind in ("h", "route", "gates")]
    h, route, gates = yield from split_features(all_rows, widths, names)
    return h, route, gates


def _experts(work: RankWork, ffn: Ffn, rows: Routed, name: str) -> Emits[Tensor]:
    """Emit the products of the experts that are here, and the weighed sum of their results."""
    h, route, gates = rows
    hidden, width = (Part(int(h.shape[-1])),), (Part(ffn.width),)
    up = work.expert_weight(f"{name}.up", (hidden, ffn_columns(ffn)), "columns", ffn)
    inner = yield from matmul(h, up, f"{name}.inner", route)
    active = yield from ffn_activation(ffn, inner, f"{name}.active")
    down = work.expert_weight(f"{name}.down", (width, hidden), "rows", ffn)
    back = yield from matmul(active, down, f"{name}.back", route)
    out = Tensor(f"{name}.combined", h.shape, h.itemsize)
    yield Pointwise(function="combine", inputs=(back, gates), outputs=(out,))
    return out
