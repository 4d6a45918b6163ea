"""Bytes that a program holds on one rank, part by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.program.ops import (
    Collective,
    Depthwise,
    Loop,
    Matmul,
    Op,
    Real,
    Rearrange,
    SendReceive,
)


def weights(loops: Sequence[Loop]) -> float:
    """Bytes of the layers' matrices that the loops multiply by, each counted once a layer.

    Matrices outside the layers (embeddings, heads) are left to whoever knows the whole model.
    """
    return _weights(loops, layered=True)


def outer_weights(loops: Sequence[Loop]) -> float:
    """Bytes of the matrices outside the layers that the loops multiply by."""
    return _weights(loops, layered=False)


def _weights(loops: Sequence[Loop], *, layered: bool) -> float:
    seen: dict[str, float] = {}
    for loop in loops:
        for op, layers in _weighted(loop, 1):
            weight = op.weight
            if weight.layered == layered:
                whole = weight.bytes * (layers if layered else 1)
                seen[weight.name] = max(seen.get(weight.name, 0.0), whole)
    return sum(seen.values())


def _weighted(loop: Loop, layers: int) -> Iterator[tuple[Matmul | Depthwise, int]]:
    inner = int(np.max(loop.count)) if loop.layers else layers
    for item in loop.body:
        if isinstance(item, Loop):
            yield from _weighted(item, inner)
        elif isinstance(item, Matmul | Depthwise):
            yield item, inner


def caches(loops: Sequence[Loop]) -> Real:
    """Bytes of keys and values that are kept: of every layer and forward that stores them."""
    total: Real = 0.0
    for loop in loops:
        total = total + _caches(loop, 1.0)
    return total


def _caches(loop: Loop, turns: Real) -> Real:
    total: Real = 0.0
    inner = turns * loop.count if loop.layers or loop.name == "text_tower" else turns
    for item in loop.body:
        if isinstance(item, Loop):
            total = total + _caches(item, inner)
        elif isinstance(item, Rearrange) and item.move == "store":
            total = total + item.outputs[0].bytes * inner
    return total


def activations(loop: Loop) -> Real:
    """Bytes of activations alive at once, at the worst point of a loop.

    A tensor lives from the operation that writes it to the last that reads it; views share the
    storage of what they look at. What a body reads before it writes it (the state of a layer, an
    input) lives throughout.
    """
    return _peak(loop, {})


def _peak(loop: Loop, outer: Mapping[str, Real]) -> Real:
    traces = [_trace(item) for item in loop.body]
    storage = _storage(traces)
    last = {
        storage.get(name, name): step
        for step, trace in enumerate(traces)
        for op in trace
        for name in (*op.reads, *op.writes)
    }
    alive: dict[str, Real] = dict(outer)
    for name, size in _arriving(traces):
        alive.setdefault(storage.get(name, name), size)
    pinned = set(alive)
    top = _total(alive)
    for step, item in enumerate(loop.body):
        if isinstance(item, Loop):
            top = np.maximum(top, _peak(item, alive))
            continue
        for name, size in traces[step][0].made:
            alive[storage[name]] = np.maximum(alive.get(storage[name], 0.0), size)
        top = np.maximum(top, _total(alive))
        for name in [n for n in alive if n not in pinned and last.get(n, -1) <= step]:
            del alive[name]
    return top


@dataclass(frozen=True, slots=True)
class _Step:
    """What one operation does to memory: names read and written, views, and storage needed."""

    reads: dict[str, Real]
    writes: tuple[str, ...]
    shares: str  # the tensor whose storage the results lie in, empty for their own
    made: tuple[tuple[str, Real], ...]


def _trace(item: Op | Loop) -> list[_Step]:
    return [_step(op) for op in (item.walk() if isinstance(item, Loop) else (item,))]


def _step(op: Op) -> _Step:
    view = isinstance(op, Rearrange) and op.view
    kept = isinstance(op, Rearrange) and op.move == "store"
    reads = {t.name: t.bytes for t in op.reads if not t.name.startswith("cache.")}
    return _Step(
        reads=reads,
        writes=tuple(t.name for t in op.writes),
        shares=op.reads[0].name if view else "",
        made=() if view or kept else tuple((t.name, t.bytes) for t in op.writes),
    )


def _total(alive: Mapping[str, Real]) -> Real:
    total: Real = 0.0
    for size in alive.values():
        total = total + size
    return total


def _arriving(traces: Sequence[Sequence[_Step]]) -> list[tuple[str, Real]]:
    """List tensors that are read before they are written: they come from outside the body."""
    written: set[str] = set()
    arriving: dict[str, Real] = {}
    for trace in traces:
        for op in trace:
            for name, size in op.reads.items():
                if name not in written:
                    arriving.setdefault(name, size)
            written.update(op.writes)
    return list(arriving.items())


def _storage(traces: Sequence[Sequence[_Step]]) -> dict[str, str]:
    """Name the storage that each tensor of a body lies in."""
    storage: dict[str, str] = {}
    for trace in traces:
        for op in trace:
            for name in op.writes:
                storage[name] = storage.get(op.shares, op.shares) if op.shares else name
    return storage


def messages(loops: Sequence[Loop]) -> int:
    """Count the different groups that the loops communicate in."""
    axes = {
        op.axis for loop in loops for op in loop.walk() if isinstance(op, Collective | SendReceive)
    }
    return len(axes)
