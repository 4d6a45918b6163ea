"""How operations are emitted: generators that yield them and return the tensor they made.

``y = yield from matmul(x, weight, "y")`` reads like the mathematics, and a strategy composes with
another by delegating to it.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from costmodels.program import ops
from costmodels.program.tensors import Part, Span, Tensor, Weight
from costmodels.sizes import Size

T = TypeVar("T")
Emits = Generator[ops.Op | ops.Loop, None, T]


def collected_items(emits: Emits[T]) -> tuple[tuple[ops.Op | ops.Loop, ...], T]:
    """Run a generator to its end: what it emitted, and what it returned."""
    items: list[ops.Op | ops.Loop] = []
    while True:
        try:
            items.append(next(emits))
        except StopIteration as end:
            return tuple(items), end.value


def total_rows(spans: Sequence[Span]) -> Size:
    """Rows of several spans laid end to end."""
    return sum(span.rows for span in spans)


def matmul(
    x: Tensor, weight: Weight, name: str, route: Tensor | None = None, *, beside: bool = False
) -> Emits[Tensor]:
    """Multiply by this rank's share of `weight`; with `route`, by the experts it names."""
    leading_shape = x.shape[:-1] if route is None else (*x.shape[:2], route.shape[-1])
    filled = x.filled if route is None else 1 / weight.groups
    out = Tensor(name, (*leading_shape, weight.local_columns), x.itemsize, filled)
    yield ops.Matmul(x=x, weight=weight, out=out, route=route, beside=beside)
    return out


def pointwise(
    function: ops.Function, inputs: Sequence[Tensor], name: str, features: Size = 0, place: int = 0
) -> Emits[Tensor]:
    """Apply an element-wise function; its result is as the first input, or `features` wide."""
    source = inputs[0]
    shape = (*source.shape[:-1], features) if features else source.shape
    out = Tensor(name, shape, source.itemsize, source.filled)
    yield ops.Pointwise(function=function, inputs=tuple(inputs), outputs=(out,), place=place)
    return out


def split_features(x: Tensor, widths: Sequence[Size], names: Sequence[str]) -> Emits[list[Tensor]]:
    """Cut features into views."""
    leading_shape = x.shape[:-1]
    outs = [
        Tensor(name, (*leading_shape, width), x.itemsize, x.filled)
        for name, width in zip(names, widths, strict=True)
    ]
    yield ops.Rearrange(move="split_features", inputs=(x,), outputs=tuple(outs), view=True)
    return outs


def concat_features(parts: Sequence[Tensor], name: str, *, view: bool = False) -> Emits[Tensor]:
    """Lay features of tensors side by side; `view` where they were written in place."""
    width = sum(part.shape[-1] for part in parts)
    out = Tensor(name, (*parts[0].shape[:-1], width), parts[0].itemsize)
    yield ops.Rearrange(move="concat_features", inputs=tuple(parts), outputs=(out,), view=view)
    return out


def concat_rows(parts: Sequence[Tensor], name: str, *, view: bool = False) -> Emits[Tensor]:
    """Lay rows of tensors end to end; `view` where they were written in place.

    One tensor is left as it is.
    """
    if len(parts) == 1:
        return parts[0]
    template, rows = parts[0], sum(part.shape[1] for part in parts)
    out = Tensor(name, (template.shape[0], rows, *template.shape[2:]), template.itemsize)
    yield ops.Rearrange(move="concat_rows", inputs=tuple(parts), outputs=(out,), view=view)
    return out


def regroup(x: Tensor, groups: Size, rows: Size, name: str) -> Emits[Tensor]:
    """View rows as so many `groups` of `rows`, in the same order."""
    out = Tensor(name, (groups, rows, *x.shape[2:]), x.itemsize, x.filled)
    yield ops.Rearrange(move="regroup", inputs=(x,), outputs=(out,), view=True)
    return out


def split_rows(x: Tensor, rows: Sequence[Size], names: Sequence[str]) -> Emits[list[Tensor]]:
    """Cut rows into views; one piece is left as it is."""
    if len(rows) == 1:
        return [x]
    outs = [
        Tensor(name, (x.shape[0], count, *x.shape[2:]), x.itemsize)
        for name, count in zip(names, rows, strict=True)
    ]
    yield ops.Rearrange(move="split_rows", inputs=(x,), outputs=tuple(outs), view=True)
    return outs


def move(  # noqa: PLR0913  # a move has this many parts
    kind: ops.Move,
    inputs: Sequence[Tensor],
    out: Tensor,
    *,
    axis: str,
    degree: int,
    parts: Sequence[Part] = (),
    spans: Sequence[Span] = (),
    view: bool = False,
) -> Emits[Tensor]:
    """Rearrange among the ranks along an axis."""
    yield ops.Rearrange(
        move=kind,
        inputs=tuple(inputs),
        outputs=(out,),
        axis=axis,
        degree=degree,
        parts=tuple(parts),
        spans=tuple(spans),
        view=view,
    )
    return out


def collective(  # noqa: PLR0913  # what it is, and what it is for
    kind: ops.CollectiveKind,
    x: Tensor,
    axis: str,
    degree: int,
    name: str,
    *,
    root: int = 0,
    tokens: ops.ExpertTokens | None = None,
) -> Emits[Tensor]:
    """Run a collective along `axis`; nothing where there is one rank."""
    if degree == 1:
        return x
    leading_size = x.shape[0]
    if kind == "all_gather":
        leading_size = leading_size * degree
    if kind == "reduce_scatter":
        leading_size = leading_size // degree
    out = replace(x, name=name, shape=(leading_size, *x.shape[1:]))
    yield ops.Collective(
        kind=kind, x=x, out=out, axis=axis, degree=degree, root=root, tokens=tokens
    )
    return out
