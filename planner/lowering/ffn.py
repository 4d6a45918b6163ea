"""Feed-forward layers: dense, gated, or a mixture of experts."""

from collections.abc import Sequence

from costmodels.program.emit import Emits, matmul, pointwise
from costmodels.program.ops import Part, Pointwise, Tensor, Weight
from planner.lowering.scene import Scene
from planner.models.architecture import Ffn, Tower


def ffn_columns(ffn: Ffn | None) -> tuple[Part, ...]:
    """Columns of the projection up: gate and value side by side, if gated."""
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


def feed_forward(scene: Scene, tower: Tower, h: Tensor, name: str) -> Emits[Tensor]:
    """Emit up, activation and down; a partial sum where the layer is shared by ranks."""
    ffn = tower.ffn
    assert ffn is not None
    if not ffn.experts:
        result = yield from _dense(scene, ffn, tower.hidden, h, name)
        return result
    routed = yield from _experts(scene, ffn, tower.hidden, h, name)
    if not ffn.shared:
        return routed
    both = Ffn(width=ffn.shared, gated=ffn.gated, activation=ffn.activation)
    shared = yield from _dense(scene, both, tower.hidden, h, f"{name}.shared")
    result = yield from pointwise("residual", (routed, shared), f"{name}.sum")
    return result


def _dense(scene: Scene, ffn: Ffn, hidden: int, h: Tensor, name: str) -> Emits[Tensor]:
    up = ffn_weight(scene, f"{name}.up", (Part(hidden),), ffn_columns(ffn), ffn)
    inner = yield from matmul(h, up, f"{name}.inner")
    active = yield from ffn_activation(ffn, inner, f"{name}.active")
    down = ffn_weight(
        scene, f"{name}.down", (Part(ffn.width),), (Part(hidden),), ffn, rows_cut=True
    )
    result = yield from matmul(active, down, f"{name}.back")
    return result


def _experts(scene: Scene, ffn: Ffn, hidden: int, h: Tensor, name: str) -> Emits[Tensor]:
    router = Weight(name=f"{name}.router", rows=(Part(hidden),), columns=(Part(ffn.experts),))
    scores = yield from matmul(h, router, f"{name}.scores")
    route = Tensor(f"{name}.route", (*h.shape[:2], ffn.active), 4)
    gates = Tensor(f"{name}.gates", route.shape, h.itemsize)
    yield Pointwise(function="route", inputs=(scores,), outputs=(route, gates))
    up = ffn_weight(scene, f"{name}.up", (Part(hidden),), ffn_columns(ffn), ffn, stacked=True)
    inner = yield from matmul(h, up, f"{name}.inner", route)
    active = yield from ffn_activation(ffn, inner, f"{name}.active")
    down = ffn_weight(
        scene, f"{name}.down", (Part(ffn.width),), (Part(hidden),), ffn, rows_cut=True, stacked=True
    )
    back = yield from matmul(active, down, f"{name}.back", route)
    out = Tensor(f"{name}.combined", h.shape, h.itemsize)
    yield Pointwise(function="combine", inputs=(back, gates), outputs=(out,))
    return out


def ffn_weight(  # noqa: PLR0913  # a matrix and its cut
    scene: Scene,
    name: str,
    rows: Sequence[Part],
    columns: Sequence[Part],
    ffn: Ffn,
    *,
    rows_cut: bool = False,
    stacked: bool = False,
) -> Weight:
    """Name a matrix of a FFN and its cut over the ranks that share the layer."""
    return Weight(
        name=name,
        rows=tuple(rows),
        columns=tuple(columns),
        split="rows" if rows_cut else "columns",
        degree=scene.share.tensor,
        experts=ffn.experts if stacked else 1,
        itemsize=scene.weight_itemsize,
    )
