"""Bytes that a program holds on one rank, part by part."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from costmodels.ops import (
    Collective,
    Loop,
    Matmul,
    Op,
    Real,
    Rearrange,
    SendReceive,
    Tensor,
)


def weights(loops: Sequence[Loop]) -> float:
    """Bytes of the matrices that the loops multiply by, each counted once a layer."""
    seen: dict[str, float] = {}
    for loop in loops:
        for matmul, layers in _matmuls(loop, 1):
            weight = matmul.weight
            count = layers if weight.layered else 1
            seen[weight.name] = max(seen.get(weight.name, 0.0), weight.bytes * count)
    return sum(seen.values())


def _matmuls(loop: Loop, layers: int) -> Iterator[tuple[Matmul, int]]:
    inner = int(np.max(loop.count)) if loop.layers else layers
    for item in loop.body:
        if isinstance(item, Loop):
            yield from _matmuls(item, inner)
        elif isinstance(item, Matmul):
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
    straight = list(loop.body)
    storage = _storage(straight)
    last = _last_use(straight, storage)
    alive: dict[str, Real] = dict(outer)
    for tensor in _arriving(straight):
        alive.setdefault(storage.get(tensor.name, tensor.name), tensor.bytes)
    pinned = set(alive)
    top = _total(alive)
    for step, item in enumerate(straight):
        if isinstance(item, Loop):
            top = np.maximum(top, _peak(item, alive))
            continue
        for tensor in _made(item):
            name = storage[tensor.name]
            alive[name] = np.maximum(alive.get(name, 0.0), tensor.bytes)
        top = np.maximum(top, _total(alive))
        for name in [n for n in alive if n not in pinned and last.get(n, -1) <= step]:
            del alive[name]
    return top


def _total(alive: Mapping[str, Real]) -> Real:
    total: Real = 0.0
    for size in alive.values():
        total = total + size
    return total


def _made(op: Op) -> tuple[Tensor, ...]:
    """Tensors that need storage of their own: not views, and not what is kept elsewhere."""
    if isinstance(op, Rearrange) and (op.view or op.move == "store"):
        return ()
    return op.writes


def _arriving(items: Sequence[Op | Loop]) -> list[Tensor]:
    """Tensors that are read before they are written: they come from outside the body."""
    written: set[str] = set()
    arriving: dict[str, Tensor] = {}
    for item in items:
        for op in item.walk() if isinstance(item, Loop) else (item,):
            for tensor in op.reads:
                if tensor.name not in written and not tensor.name.startswith("cache."):
                    arriving.setdefault(tensor.name, tensor)
            written |= {tensor.name for tensor in op.writes}
    return list(arriving.values())


def _storage(items: Sequence[Op | Loop]) -> dict[str, str]:
    """Name of the storage that each tensor of a body lies in."""
    storage: dict[str, str] = {}
    for item in items:
        for op in item.walk() if isinstance(item, Loop) else (item,):
            shares = isinstance(op, Rearrange) and op.view
            for tensor in op.writes:
                if shares and op.reads:
                    first = op.reads[0].name
                    storage[tensor.name] = storage.get(first, first)
                else:
                    storage[tensor.name] = tensor.name
    return storage


def _last_use(items: Sequence[Op | Loop], storage: Mapping[str, str]) -> dict[str, int]:
    """Find the number of the last item that reads or writes each storage."""
    last: dict[str, int] = {}
    for step, item in enumerate(items):
        for op in item.walk() if isinstance(item, Loop) else (item,):
            for tensor in (*op.reads, *op.writes):
                last[storage.get(tensor.name, tensor.name)] = step
    return last


def messages(loops: Sequence[Loop]) -> int:
    """Count the different groups that the loops communicate in."""
    axes = {
        op.axis for loop in loops for op in loop.walk() if isinstance(op, Collective | SendReceive)
    }
    return len(axes)
