"""Programs as a runtime would write them: the same work with other operations around collectives.

TensorRT builders have cast collectives to 32 bits to keep them out of fused regions, and have cut
replicated inputs by a reduce-scatter where a slice would do. Diffusers gathers the keys and values
of all ranks before the first partial attention of a ring, and exchanges queries, keys and values
one after the other [1]_. All cost, so all can be priced.

References
----------
.. [1] ``TemplatedRingAttention`` and ``TemplatedUlyssesAttention`` in diffusers,
   src/diffusers/models/attention_dispatch.py
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from costmodels.program import (
    Collective,
    Loop,
    Op,
    Pointwise,
    Program,
    Rearrange,
    SendReceive,
    Span,
    Tensor,
)
from costmodels.program.emit import collective, split_features
from planner.request.workload import Habits
from planner.strategies.pipefusion import is_piece

Change = Callable[[Op], Iterator[Op | Loop]]

WIDE = 4
"""Bytes an element of 32-bit numbers."""


def as_run(program: Program, habits: Habits) -> Program:
    """Return a program as whoever has these habits writes it: as much work by other operations.

    Collectives may carry 32-bit numbers, with a cast before and after; replicated inputs be cut by
    a reduce-scatter along each axis; rings gather all chunks first, and pass none on; and queries,
    keys and values go to their heads one after the other.
    """
    changes = (
        (habits.scattered_inputs, lambda: _scatter_shard),
        (habits.exchanges_apart, _split_exchanges),
        (habits.rings == "gathered", _gather_rings),
        (habits.wide_collectives, lambda: _widen_collective),
    )
    for applies, begin in changes:
        if applies:
            stages = tuple(_changed_loop(loop, begin) for loop in program.stages)
            program = replace(program, stages=stages)
    return program


def _changed_loop(loop: Loop, begin: Callable[[], Change]) -> Loop:
    """Change the operations of a loop; what a change remembers is of one body."""
    body: list[Op | Loop] = []
    change = begin()
    for item in loop.body:
        body += [_changed_loop(item, begin)] if isinstance(item, Loop) else change(item)
    return replace(loop, body=tuple(body))


def _split_exchanges() -> Change:
    """Let exchanges of queries, keys and values wait for what lays them out again."""
    packed: dict[str, Rearrange] = {}

    def change(op: Op) -> Iterator[Op | Loop]:
        if isinstance(op, Rearrange) and op.move == "pack_heads" and len(op.parts) > 1:
            packed[op.outputs[0].name] = op
        elif isinstance(op, Collective) and op.x.name in packed:
            packed[op.out.name] = packed.pop(op.x.name)
        elif isinstance(op, Rearrange) and op.inputs[0].name in packed:
            yield from _exchange_parts(packed.pop(op.inputs[0].name), op)
        else:
            yield op

    return change


def _exchange_parts(pack: Rearrange, unpack: Rearrange) -> Iterator[Op | Loop]:
    """Exchange one part of the features after the other, and lay them side by side again."""
    pieces = []
    columns: list[list[Tensor]] = []
    widths = [part.local(1) for part in pack.parts]
    for x in pack.inputs:
        names = [f"{x.name}.alone{number}" for number in range(len(pack.parts))]
        columns.append((yield from split_features(x, widths, names)))
    for number, part in enumerate(pack.parts):
        name, width = f"{unpack.outputs[0].name}.alone{number}", part.local(pack.degree)
        sent, received = (
            replace(tensor, name=f"{name}.{kind}", shape=(*tensor.shape[:-1], width))
            for tensor, kind in ((pack.outputs[0], "packed"), (unpack.inputs[0], "received"))
        )
        rows = replace(unpack.outputs[0], name=name, shape=(*unpack.outputs[0].shape[:-1], width))
        inputs = tuple(column[number] for column in columns)
        yield replace(pack, inputs=inputs, outputs=(sent,), parts=(part,))
        yield from collective("all_to_all", sent, pack.axis, pack.degree, received.name)
        yield replace(unpack, inputs=(received,), outputs=(rows,))
        pieces.append(rows)
    yield Rearrange(move="concat_features", inputs=tuple(pieces), outputs=unpack.outputs, view=True)


def _gather_rings() -> Change:
    passed: dict[str, tuple[Tensor, int]] = {}

    def change(op: Op) -> Iterator[Op | Loop]:
        if isinstance(op, SendReceive) and not op.ends:
            yield from _hop(op, passed)
        else:
            yield op

    return change


def _hop(op: SendReceive, passed: dict[str, tuple[Tensor, int]]) -> Iterator[Op]:
    """Gather where a chunk sets out, and take it from there; `passed` are those on their way."""
    if op.x.name not in passed:
        packed = Tensor(f"{op.x.name}.packed", (1, *op.x.shape), op.x.itemsize)
        all_chunks = Tensor(f"{op.x.name}.every", (op.degree, *op.x.shape), op.x.itemsize)
        yield Rearrange(move="stack", inputs=(op.x,), outputs=(packed,))
        yield Collective(
            kind="all_gather", x=packed, out=all_chunks, axis=op.axis, degree=op.degree
        )
        passed[op.x.name] = (all_chunks, 0)
    all_chunks, turn = passed[op.x.name]
    passed[op.out.name] = (all_chunks, turn + 1)
    yield Rearrange(
        move="hop", inputs=(all_chunks,), outputs=(op.out,), axis=op.axis, degree=op.degree,
        turn=turn + 1, view=True,
    )  # fmt: skip


def _widen_collective(op: Op) -> Iterator[Op]:
    if not isinstance(op, Collective) or op.x.itemsize >= WIDE:
        yield op
        return
    wide = replace(op.x, name=f"{op.x.name}.wide", itemsize=WIDE)
    result = replace(op.out, name=f"{op.out.name}.wide", itemsize=WIDE)
    yield Pointwise(function="cast", inputs=(op.x,), outputs=(wide,), stream=op.stream)
    yield replace(op, x=wide, out=result)
    yield Pointwise(function="cast", inputs=(result,), outputs=(op.out,), stream=op.stream)


def _scatter_shard(op: Op) -> Iterator[Op]:
    if not isinstance(op, Rearrange) or op.move != "shard" or is_piece(op.spans[0]):
        yield op
        return
    (span,), x = op.spans, op.inputs[0]
    for number, axis in enumerate(span.axes, 1):
        kept_span = replace(span, axes=span.axes[:number])
        name = op.outputs[0].name if number == len(span.axes) else f"{x.name}.{axis[0]}"
        out = Tensor(name, (x.shape[0], kept_span.rows, x.shape[2]), x.itemsize)
        yield from _cut(x, out, axis, kept_span)
        x = out


def _cut(x: Tensor, out: Tensor, axis: tuple[str, int], kept_span: Span) -> Iterator[Op]:
    """Divide by the ranks, lay the pieces of all ranks side by side, add up, keep one."""
    name, degree = axis
    scaled = replace(x, name=f"{out.name}.scaled")
    packed = Tensor(f"{out.name}.packed", (degree, *out.shape), x.itemsize)
    summed = Tensor(f"{out.name}.summed", (1, *out.shape), x.itemsize)
    yield Pointwise(function="scale", inputs=(x,), outputs=(scaled,), place=degree)
    yield Rearrange(
        move="pack_rows", inputs=(scaled,), outputs=(packed,), axis=name, degree=degree,
        spans=(kept_span,),
    )  # fmt: skip
    yield Collective(kind="reduce_scatter", x=packed, out=summed, axis=name, degree=degree)
    yield Rearrange(move="unstack", inputs=(summed,), outputs=(out,), view=True)
