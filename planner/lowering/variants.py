"""Programs as a runtime would write them: the same work with other operations around collectives.

TensorRT builders have cast collectives to 32 bits to keep them out of fused regions, and have cut
replicated inputs by a reduce-scatter where a slice would do; both cost, so both can be priced.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from costmodels.ops import Collective, Loop, Op, Pointwise, Program, Rearrange, Span, Tensor

Change = Callable[[Op], Iterator[Op]]

WIDE = 4
"""Bytes an element of 32-bit numbers."""


def with_wide_collectives(program: Program) -> Program:
    """Return a program whose collectives carry 32-bit numbers, with a cast before and after."""
    return replace(program, stages=tuple(_mapped(loop, _widened) for loop in program.stages))


def with_scattered_inputs(program: Program) -> Program:
    """Return a program that cuts replicated inputs by a reduce-scatter along each axis."""
    return replace(program, stages=tuple(_mapped(loop, _scattered) for loop in program.stages))


def _mapped(loop: Loop, change: Change) -> Loop:
    body: list[Op | Loop] = []
    for item in loop.body:
        body += [_mapped(item, change)] if isinstance(item, Loop) else list(change(item))
    return replace(loop, body=tuple(body))


def _widened(op: Op) -> Iterator[Op]:
    if not isinstance(op, Collective) or op.x.itemsize >= WIDE:
        yield op
        return
    wide = replace(op.x, name=f"{op.x.name}.wide", itemsize=WIDE)
    result = replace(op.out, name=f"{op.out.name}.wide", itemsize=WIDE)
    yield Pointwise(function="cast", inputs=(op.x,), outputs=(wide,), stream=op.stream)
    yield replace(op, x=wide, out=result)
    yield Pointwise(function="cast", inputs=(result,), outputs=(op.out,), stream=op.stream)


def _scattered(op: Op) -> Iterator[Op]:
    if not isinstance(op, Rearrange) or op.move != "shard":
        yield op
        return
    (span,), x = op.spans, op.inputs[0]
    for number, axis in enumerate(span.axes, 1):
        held = replace(span, axes=span.axes[:number])
        name = op.outputs[0].name if number == len(span.axes) else f"{x.name}.{axis[0]}"
        out = Tensor(name, (x.shape[0], held.rows, x.shape[2]), x.itemsize)
        yield from _cut(x, out, axis, held)
        x = out


def _cut(x: Tensor, out: Tensor, axis: tuple[str, int], held: Span) -> Iterator[Op]:
    """Divide by the ranks, lay the pieces of all ranks side by side, add up, keep one."""
    name, degree = axis
    scaled = replace(x, name=f"{out.name}.scaled")
    packed = Tensor(f"{out.name}.packed", (degree, *out.shape), x.itemsize)
    summed = Tensor(f"{out.name}.summed", (1, *out.shape), x.itemsize)
    yield Pointwise(function="scale", inputs=(x,), outputs=(scaled,), place=degree)
    yield Rearrange(
        move="pack_rows",
        inputs=(scaled,),
        outputs=(packed,),
        axis=name,
        degree=degree,
        spans=(held,),
    )
    yield Collective(kind="reduce_scatter", x=packed, out=summed, axis=name, degree=degree)
    yield Rearrange(move="unstack", inputs=(summed,), outputs=(out,), view=True)
