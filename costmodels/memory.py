"""Bytes that a program holds on one rank, part by part."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from costmodels.program import (
    CausalConvolution,
    Collective,
    Communication,
    Depthwise,
    HeadProduct,
    Loop,
    Matmul,
    Op,
    Real,
    Rearrange,
    Recurrence,
    SendReceive,
    Tensor,
    turns,
)
from costmodels.sizes import any_true, larger, largest
from topology.base.values import by_content, dataclass

UNCOUNTED_PREFIXES = ("cache.", "shard.", "weights.")
"""How tensors are called that are counted as what is kept, or as weights."""
_WEIGHTED_OPS = (Matmul, HeadProduct, Depthwise, CausalConvolution, Recurrence)


class Bodies:
    """What the bodies of loops do to memory, each looked at once: layers are alike in many places.

    A body is known by the identities of what it is made of, whatever the counts of loops in it;
    these are kept so that no others get the same.
    """

    def __init__(self) -> None:
        self._bodies: dict[tuple[object, ...], _Body] = {}
        self._known: dict[int, tuple[object, _Body]] = {}

    def of(self, loop: Loop) -> "_Body":
        """Give what the body of a loop does."""
        cached = self._known.get(id(loop.body))
        if cached is None:
            key = tuple([self._identity(item) for item in loop.body])
            body = self._bodies.get(key)
            if body is None:
                body = self._bodies[key] = _analysed_body(loop, self)
            cached = self._known[id(loop.body)] = loop.body, body
        return cached[1]

    def _identity(self, item: Op | Loop) -> object:
        """Name what an item does to memory: a message the same, however many ranks it is for."""
        if isinstance(item, SendReceive) or (isinstance(item, Collective) and not item.weights):
            return id(item.x), id(item.out), item.axis
        return id(self.of(item) if isinstance(item, Loop) else item)

    def inside(
        self, loop: Loop, around: tuple[Loop, ...] = ()
    ) -> Iterator[tuple["_Body", tuple[Loop, ...]]]:
        """Yield the bodies of a loop and of those in it, with the loops around each."""
        body, loops = self.of(loop), (*around, loop)
        yield body, loops
        for inner in loop.body if body.has_loops else ():
            if isinstance(inner, Loop):
                yield from self.inside(inner, loops)


def weights(stages: Sequence[Loop], bodies: Bodies | None = None, *, layered: bool = True) -> float:
    """Bytes of the layers' matrices that stages multiply by, each counted once a layer.

    Matrices outside the layers (embeddings, heads) are left to whoever knows the whole model; they
    are counted instead where `layered` is false.
    """
    bodies = bodies or Bodies()
    sizes: dict[tuple[str, int], float] = {}
    for stage in stages:
        for body, loops in bodies.inside(stage):
            layer_loops = [loop for loop in loops if loop.layers][-1:] if layered else []
            first_layer, repeats = _first_layer(loops), turns(layer_loops)
            for name, size in body.weights[layered]:
                key = name, first_layer
                sizes[key] = max(sizes.get(key, 0.0), size * repeats)
    return sum(sizes.values())


def gathered_weights(stages: Sequence[Loop], bodies: Bodies | None = None) -> tuple[int, float]:
    """Give the ranks that hold a part of each layer's weights, and bytes of the largest layer.

    One rank and none where weights are whole.
    """
    parts = [
        (op.degree, largest(op.out.bytes))
        for op in _messages(stages, bodies)
        if isinstance(op, Collective) and op.weights
    ]
    return max(parts, key=lambda pair: pair[1], default=(1, 0.0))


def caches(stages: Sequence[Loop], bodies: Bodies | None = None) -> Real:
    """Bytes that are kept for later: of every layer and forward that stores them."""
    total: Real = 0.0
    for tensor, layers in stored(stages, bodies):
        total = total + tensor.bytes * layers
    return total


def stored(stages: Sequence[Loop], bodies: Bodies | None = None) -> Iterator[tuple[Tensor, Real]]:
    """Yield what is kept for later, each once, and how many layers and forwards keep such.

    Loops that are never run keep nothing. A rank of a pipeline is written down once for each place
    that a forward passes.
    """
    bodies = bodies or Bodies()
    tensors: dict[tuple[str, int], tuple[Tensor, Real]] = {}
    for stage in stages:
        for body, loops in bodies.inside(stage):
            if not body.stored or not all(any_true(loop.count) for loop in loops):
                continue
            first_layer, layer_count = _first_layer(loops), _layers(loops)
            tensors |= {(tensor.name, first_layer): (tensor, layer_count) for tensor in body.stored}
    yield from tensors.values()


def _layers(loops: Sequence[Loop]) -> Real:
    """Count the layers and forwards that each keep what they store."""
    count: Real = 1.0
    for loop in loops:
        count = count * (loop.count if loop.layers else loop.keeps)
    return count


def _first_layer(loops: Sequence[Loop]) -> int:
    """Give the number of the first layer of a run, which tells it from others of its kind."""
    return max((loop.first for loop in loops if loop.layers), default=0)


def activations(loop: Loop, bodies: Bodies | None = None) -> Real:
    """Bytes of activations alive at once, at the worst point of a loop.

    A tensor lives from the operation that writes it to the last that reads it; views share the
    storage of what they look at. What a body reads before it writes it (the state of a layer, an
    input) lives throughout.
    """
    return _peak(loop, {}, bodies or Bodies())


def _peak(loop: Loop, outer: Mapping[str, Real], bodies: Bodies) -> Real:
    """Find the peak of a loop beside what is alive around it."""
    body = bodies.of(loop)
    outer_key: tuple[Any, ...] = tuple(outer.items())
    try:
        peak = body.peaks.get(outer_key)
    except TypeError:  # sizes are arrays
        outer_key = by_content(outer_key)
        peak = body.peaks.get(outer_key)
    if peak is None:
        peak = body.peaks[outer_key] = _body_peak(loop, body, outer, bodies)
    return peak


def _body_peak(loop: Loop, body: "_Body", outer: Mapping[str, Real], bodies: Bodies) -> Real:
    alive: dict[str, Real] = dict(outer)
    for name, tensor in body.arriving.items():
        if (place := body.storage.get(name, name)) not in alive:
            alive[place] = tensor.bytes
    pinned = set(alive)
    held_bytes: Real = sum(alive.values(), start=0.0)
    peak = held_bytes
    for item, new_storage, freed in zip(loop.body, body.made, body.gone, strict=True):
        if isinstance(item, Loop):
            peak = larger(peak, _peak(item, alive, bodies))
            continue
        for name, size in new_storage:
            old_size = alive.get(name, 0.0)
            alive[name] = larger(old_size, size)
            held_bytes = held_bytes + (alive[name] - old_size)
        peak = larger(peak, held_bytes)
        for name in freed:
            if name not in pinned:
                held_bytes = held_bytes - alive.pop(name)
    return peak


_Step = tuple[Iterable[Tensor], Mapping[str, str], Sequence[Tensor]]
"""What an operation, or a loop, does to memory.

The tensors that must be there; by name of each result the tensor in whose storage it lies, itself
where it has its own; and those whose storage is needed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """What a body does to memory.

    storage : of each tensor written here, as views lie in that of another. arriving : read before
    they are written, so they come from outside. made : storage that each item needs, and its bytes.
    gone : storage that nothing touches after each operation. has_loops : whether loops are in it.
    weights : names and bytes of matrices outside the layers, and of those in them. stored : what is
    kept for later. messages : that it sends. peaks : by what is alive around it. items : all that
    it is made of.
    """

    items: tuple[Op | Loop, ...]
    storage: dict[str, str]
    arriving: dict[str, Tensor]
    made: Sequence[Sequence[tuple[str, Real]]]
    gone: Sequence[Sequence[str]]
    has_loops: bool
    weights: tuple[Sequence[tuple[str, float]], Sequence[tuple[str, float]]]
    stored: Sequence[Tensor]
    messages: Sequence[Communication]
    peaks: dict[tuple[Any, ...], Real] = field(default_factory=dict)


def _analysed_body(loop: Loop, bodies: Bodies) -> _Body:
    steps = [
        _body_step(bodies.of(item)) if isinstance(item, Loop) else _op_step(item)
        for item in loop.body
    ]
    storage: dict[str, str] = {}
    arriving: dict[str, Tensor] = {}
    last_use: dict[str, int] = {}
    for number, (reads, writes, _) in enumerate(steps):
        for tensor in reads:
            last_use[tensor.name] = number
            if tensor.name not in storage:
                arriving.setdefault(tensor.name, tensor)
        for name, base in writes.items():
            last_use[name] = number
            storage[name] = name if base == name else storage.get(base, base)
    made = [[(storage[tensor.name], tensor.bytes) for tensor in made] for _, _, made in steps]
    ends: dict[str, int] = {}
    for name, number in last_use.items():
        place = storage.get(name, name)
        ends[place] = max(ends.get(place, number), number)
    weights = [op.weight for op in loop.body if isinstance(op, _WEIGHTED_OPS)]
    sizes = [(weight.layered, (weight.name, weight.bytes)) for weight in weights]
    stored_side = {"store": "outputs", "keep": "outputs", "append": "inputs"}
    moves = [op for op in loop.body if isinstance(op, Rearrange)]
    return _Body(
        items=loop.body,
        storage=storage,
        arriving=arriving,
        made=made,
        gone=_freed_storage(loop, made, ends),
        has_loops=any(isinstance(item, Loop) for item in loop.body),
        weights=(
            [entry for is_layered, entry in sizes if not is_layered],
            [entry for is_layered, entry in sizes if is_layered],
        ),
        stored=[getattr(op, stored_side[op.move])[0] for op in moves if op.move in stored_side],
        messages=[op for op in loop.body if isinstance(op, Communication)],
    )


def _freed_storage(
    loop: Loop, made: Sequence[Sequence[tuple[str, Real]]], last: Mapping[str, int]
) -> list[list[str]]:
    """List for each operation what is let go after it: made here, and touched by nothing later.

    last : item that touches a storage last. What a loop touches last goes at the next operation.
    """
    freed: list[list[str]] = [[] for _ in loop.body]
    operations = [number for number, item in enumerate(loop.body) if not isinstance(item, Loop)]
    for name in dict.fromkeys(name for storages in made for name, _ in storages):
        for number in operations[bisect_left(operations, last[name]) :][:1]:
            freed[number].append(name)
    return freed


def _body_step(body: _Body) -> _Step:
    """Take all that a body does for one step of what is around."""
    return body.arriving.values(), body.storage, ()


def _op_step(op: Op) -> _Step:
    reads = [tensor for tensor in op.reads if not tensor.name.startswith(UNCOUNTED_PREFIXES)]
    if not isinstance(op, Rearrange):
        created = [tensor for tensor in op.writes if not tensor.name.startswith(UNCOUNTED_PREFIXES)]
        return reads, {tensor.name: tensor.name for tensor in op.writes}, created
    if op.move == "shard" and op.inputs[0].name.startswith("prompt."):
        reads = []  # engines embed the rows that a rank has; our executor is given all of them
    if op.view:
        return reads, {tensor.name: op.inputs[0].name for tensor in op.outputs}, ()
    created = (
        []
        if op.move == "store"
        else [t for t in op.outputs if not t.name.startswith(UNCOUNTED_PREFIXES)]
    )
    return reads, {tensor.name: tensor.name for tensor in op.outputs}, created


def groups(stages: Sequence[Loop], bodies: Bodies | None = None) -> int:
    """Count the different groups of ranks that stages communicate in."""
    return len({op.axis for op in _messages(stages, bodies)})


def _messages(stages: Sequence[Loop], bodies: Bodies | None) -> Iterator[Communication]:
    bodies = bodies or Bodies()
    for stage in stages:
        for body, _ in bodies.inside(stage):
            yield from body.messages
