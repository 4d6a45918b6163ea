"""Bytes that a program holds on one rank, part by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.program import (
    Communication,
    Depthwise,
    Loop,
    Matmul,
    Op,
    Real,
    Rearrange,
    Tensor,
    turns,
)


def weights(stages: Sequence[Loop]) -> float:
    """Bytes of the layers' matrices that stages multiply by, each counted once a layer.

    Matrices outside the layers (embeddings, heads) are left to whoever knows the whole model.
    """
    return _weights(stages, layered=True)


def outer_weights(stages: Sequence[Loop]) -> float:
    """Bytes of the matrices outside the layers that stages multiply by."""
    return _weights(stages, layered=False)


def _weights(stages: Sequence[Loop], *, layered: bool) -> float:
    sizes: dict[str, float] = {}
    for stage in stages:
        for op, loops in stage.nested():
            if isinstance(op, Matmul | Depthwise) and op.weight.layered == layered:
                own = [loop for loop in loops if loop.layers][-1:] if layered else []
                whole = op.weight.bytes * turns(own)
                sizes[op.weight.name] = max(sizes.get(op.weight.name, 0.0), whole)
    return sum(sizes.values())


def caches(stages: Sequence[Loop]) -> Real:
    """Bytes of keys and values that are kept: of every layer and forward that stores them."""
    total: Real = 0.0
    for tensor, layers in stored(stages):
        total = total + tensor.bytes * layers
    return total


def stored(stages: Sequence[Loop]) -> Iterator[tuple[Tensor, Real]]:
    """Yield keys and values that are kept, and how many layers and forwards store such."""
    for stage in stages:
        for op, loops in stage.nested():
            if isinstance(op, Rearrange) and op.move == "store":
                kept: Real = 1.0
                for loop in loops:
                    kept = kept * loop.count if loop.layers or loop.name == "text_tower" else kept
                yield op.outputs[0], kept


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


def groups(stages: Sequence[Loop]) -> int:
    """Count the different groups of ranks that stages communicate in."""
    messages = (op for stage in stages for op in stage.walk() if isinstance(op, Communication))
    return len({op.axis for op in messages})
