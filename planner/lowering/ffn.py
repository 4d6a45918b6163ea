"""Feed-forward layers: dense, gated, a mixture of experts, or with a convolution.

SANA's convolves over the image between its matrices. A token's result then depends on its
neighbours in the image, so that ranks which cut the tokens need the lines next to theirs. They are
gathered as they enter, where they have the fewest features, and each rank takes its neighbours'
lines through the first matrix too [1]_.

References
----------
.. [1] xDiT, xfuser/model_executor/layers/conv.py, which sends them to the neighbours alone
"""

from costmodels.program import (
    Depthwise,
    Part,
    Rearrange,
    Size,
    Span,
    Tensor,
)
from costmodels.program.emit import Emits, collective, matmul, pointwise
from planner.lowering.experts import ffn_activation, ffn_columns, routed_experts
from planner.lowering.work import RankWork
from planner.models import Ffn, Tower

TAPS = 9
"""Points of a kernel of 3 x 3."""


def feed_forward(work: RankWork, tower: Tower, h: Tensor, name: str) -> Emits[Tensor]:
    """Emit up, activation and down; a partial sum where the layer is shared by ranks."""
    ffn = tower.ffn
    assert ffn is not None
    if ffn.convolved:
        return (yield from _convolved_ffn(work, tower, ffn, h, name))
    if not ffn.experts:
        return (yield from _dense_ffn(work, ffn, tower.hidden, h, name))
    routed_output = yield from routed_experts(work, ffn, h, name)
    if not ffn.shared:
        return routed_output
    shared_ffn = Ffn(width=ffn.shared, gated=ffn.gated, activation=ffn.activation)
    shared_output = yield from _dense_ffn(
        work, shared_ffn, tower.hidden, h, f"{name}.shared", "shared"
    )
    return (yield from pointwise("residual", (routed_output, shared_output), f"{name}.sum"))


def _dense_ffn(  # a product and where it stands
    work: RankWork, ffn: Ffn, hidden: int, h: Tensor, name: str, part: str = "feed_forward"
) -> Emits[Tensor]:
    up = work.weight(f"{name}.up", (Part(hidden),), ffn_columns(ffn), part=part)
    is_shared = part == "shared"
    inner = yield from matmul(h, up, f"{name}.inner", beside=is_shared)
    active = yield from ffn_activation(ffn, inner, f"{name}.active")
    down = work.weight(f"{name}.down", (Part(ffn.width),), (Part(hidden),), "rows", part=part)
    return (yield from matmul(active, down, f"{name}.back", beside=is_shared))


def _convolved_ffn(work: RankWork, tower: Tower, ffn: Ffn, h: Tensor, name: str) -> Emits[Tensor]:
    """Emit lines from neighbours, up, convolution, gate and down."""
    (stream,) = tower.streams
    span, line = work.spans[stream], work.workload.line
    halo: Size = line if span.axes else 0
    if span.axes:
        h = yield from _with_neighbours(h, span, halo, name)
    columns, hidden = ffn_columns(ffn), (Part(tower.hidden),)
    up = work.weight(f"{name}.up", hidden, columns)
    inner = yield from matmul(h, up, f"{name}.inner")
    active = yield from pointwise("silu", (inner,), f"{name}.active")
    mixed = Tensor(f"{name}.mixed", (h.shape[0], span.rows, up.local_columns), h.itemsize)
    kernels = work.weight(f"{name}.kernels", (Part(TAPS),), columns)
    yield Depthwise(x=active, weight=kernels, out=mixed, span=span, line=line, halo=halo)
    gated = yield from pointwise(
        "silu_gated", (mixed,), f"{name}.gated", features=up.local_columns // 2
    )
    down = work.weight(f"{name}.down", (Part(ffn.width),), hidden, "rows")
    return (yield from matmul(gated, down, f"{name}.back"))


def _with_neighbours(x: Tensor, span: Span, halo: Size, name: str) -> Emits[Tensor]:
    """Lay the neighbours' lines around this rank's."""
    batch, rows, features = x.shape
    edges = Tensor(f"{name}.edges", (1, batch, 2 * halo, features), x.itemsize)
    yield Rearrange(move="borders", inputs=(x,), outputs=(edges,), spans=(span,))
    for axis, degree in reversed(span.axes):
        edges = yield from collective("all_gather", edges, axis, degree, f"{name}.edges.{axis}")
    out = Tensor(f"{name}.lines", (batch, rows + 2 * halo, features), x.itemsize)
    yield Rearrange(move="surround", inputs=(x, edges), outputs=(out,), spans=(span,))
    return out
