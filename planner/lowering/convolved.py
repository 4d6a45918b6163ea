"""A gated FFN that convolves over the picture between its matrices, as SANA's does.

A token's result depends on its neighbours' in the picture, so that ranks which cut the tokens need
the lines next to theirs. They are gathered as they enter the FFN, where they have the fewest
features, and each rank takes its neighbours' lines through the first matrix too [1]_.

References
----------
.. [1] xDiT, xfuser/model_executor/layers/conv.py, which sends them to the neighbours alone
"""

from costmodels.program.emit import Emits, collective, matmul, pointwise
from costmodels.program.ops import Depthwise, Part, Rearrange, Size, Span, Tensor
from planner.lowering.ffn import ffn_columns, ffn_weight
from planner.lowering.scene import Scene
from planner.models.architecture import Tower

TAPS = 9


def convolved_feed_forward(scene: Scene, tower: Tower, h: Tensor, name: str) -> Emits[Tensor]:
    """Emit lines from neighbours, up, convolution, gate and down."""
    ffn = tower.ffn
    assert ffn is not None
    (stream,) = tower.streams
    span, line = scene.spans[stream], scene.workload.line
    halo: Size = line if span.axes else 0
    if span.axes:
        h = yield from _surrounded(h, span, halo, name)
    columns, hidden = ffn_columns(ffn), (Part(tower.hidden),)
    up = ffn_weight(scene, f"{name}.up", hidden, columns, ffn)
    inner = yield from matmul(h, up, f"{name}.inner")
    active = yield from pointwise("silu", (inner,), f"{name}.active")
    mixed = Tensor(f"{name}.mixed", (h.shape[0], span.rows, up.local_columns), h.itemsize)
    kernels = ffn_weight(scene, f"{name}.kernels", (Part(TAPS),), columns, ffn)
    yield Depthwise(x=active, weight=kernels, out=mixed, span=span, line=line, halo=halo)
    gated = yield from pointwise(
        "silu_gated", (mixed,), f"{name}.gated", features=up.local_columns // 2
    )
    down = ffn_weight(scene, f"{name}.down", (Part(ffn.width),), hidden, ffn, rows_cut=True)
    result = yield from matmul(gated, down, f"{name}.back")
    return result


def _surrounded(x: Tensor, span: Span, halo: Size, name: str) -> Emits[Tensor]:
    """Lay the neighbours' lines around this rank's."""
    batch, rows, features = x.shape
    edges = Tensor(f"{name}.edges", (1, batch, 2 * halo, features), x.itemsize)
    yield Rearrange(move="borders", inputs=(x,), outputs=(edges,), spans=(span,))
    for axis, degree in reversed(span.axes):
        edges = yield from collective("all_gather", edges, axis, degree, f"{name}.edges.{axis}")
    out = Tensor(f"{name}.lines", (batch, rows + 2 * halo, features), x.itemsize)
    yield Rearrange(move="surround", inputs=(x, edges), outputs=(out,), spans=(span,))
    return out
