"""Bytes that a program holds on one rank, part by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

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
    Tensor,
    larger,
    turns,
)
from topology.base.values import dataclass

ELSEWHERE = ("cache.", "shard.", "weights.")
"""How tensors are called that are counted as what is kept, or as weights."""
_WEIGHED = (Matmul, HeadProduct, Depthwise, CausalConvolution, Recurrence)


class Bodies:
    """What the bodies of loops do to memory, each looked at once: layers are alike in many places.

    A body is known by its identity, and is kept so that no other gets the same.
    """

    def __init__(self) -> None:
        self._bodies: dict[int, _Body] = {}

    def of(self, loop: Loop) -> "_Body":
        """Give what the body of a loop does."""
        body = self._bodies.get(id(loop.body))
        if body is None:
            body = self._bodies[id(loop.body)] = _looked_at(loop, self)
        return body

    def inside(
        self, loop: Loop, around: tuple[Loop, ...] = ()
    ) -> Iterator[tuple["_Body", tuple[Loop, ...]]]:
        """Yield the bodies of a loop and of those in it, with the loops around each."""
        body, loops = self.of(loop), (*around, loop)
        yield body, loops
        for inner in body.loops:
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
            own = [loop for loop in loops if loop.layers][-1:] if layered else []
            first, times = _first(loops), turns(own)
            for name, size in body.weights[layered]:
                key = name, first
                sizes[key] = max(sizes.get(key, 0.0), size * times)
    return sum(sizes.values())


def gathered_weights(stages: Sequence[Loop], bodies: Bodies | None = None) -> tuple[int, float]:
    """Give the ranks that hold a part of each layer's weights, and bytes of the largest layer.

    One rank and none where weights are whole.
    """
    parts = [
        (op.degree, float(np.max(op.out.bytes)))
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
            if not body.stored or not all(np.any(loop.count) for loop in loops):
                continue
            first, kept = _first(loops), _layers(loops)
            tensors |= {(tensor.name, first): (tensor, kept) for tensor in body.stored}
    yield from tensors.values()


def _layers(loops: Sequence[Loop]) -> Real:
    """Count the layers and forwards that each keep what they store."""
    kept: Real = 1.0
    for loop in loops:
        kept = kept * (loop.count if loop.layers else loop.keeps)
    return kept


def _first(loops: Sequence[Loop]) -> int:
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
    around = tuple(outer.items())
    try:
        peak = body.peaks.get(around)
    except TypeError:  # sizes are arrays
        return _risen(loop, body, outer, bodies)
    if peak is None:
        peak = body.peaks[around] = _risen(loop, body, outer, bodies)
    return peak


def _risen(loop: Loop, body: "_Body", outer: Mapping[str, Real], bodies: Bodies) -> Real:
    storage, last = body.storage, body.last
    alive: dict[str, Real] = dict(outer)
    for name, size in body.arriving.items():
        alive.setdefault(storage.get(name, name), size)
    pinned = set(alive)
    held: Real = sum(alive.values(), start=0.0)
    top = held
    for step, item in enumerate(loop.body):
        if isinstance(item, Loop):
            top = larger(top, _peak(item, alive, bodies))
            continue
        for name, size in body.steps[step].made:
            before = alive.get(storage[name], 0.0)
            alive[storage[name]] = larger(before, size)
            held = held + (alive[storage[name]] - before)
        top = larger(top, held)
        for name in [n for n in alive if n not in pinned and last.get(n, -1) <= step]:
            held = held - alive.pop(name)
    return top


@dataclass(frozen=True, slots=True)
class _Step:
    """What an operation, or a loop, does to memory.

    reads : bytes of what must be there. writes : the tensor in whose storage each result lies,
    itself where it has its own. made : storage that is needed.
    """

    reads: dict[str, Real]
    writes: dict[str, str]
    made: tuple[tuple[str, Real], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """What a body does to memory.

    steps : of each item. storage : of each tensor written here, as views lie in that
    of another. arriving : read before they are written, so they come from outside. last : item that
    touches a storage last. loops : in it. weights : names and bytes of matrices outside the layers,
    and of those in them. stored : what is kept for later. messages : that it sends. peaks : by what
    is alive around it. items : all that it is made of.
    """

    items: tuple[Op | Loop, ...]
    steps: list[_Step]
    storage: dict[str, str]
    arriving: dict[str, Real]
    last: dict[str, int]
    loops: tuple[Loop, ...]
    weights: tuple[Sequence[tuple[str, float]], Sequence[tuple[str, float]]]
    stored: Sequence[Tensor]
    messages: Sequence[Communication]
    peaks: dict[tuple[tuple[str, Real], ...], Real] = field(default_factory=dict)

    def as_step(self) -> _Step:
        """Take all that is done here for one step of what is around."""
        return _Step(reads=self.arriving, writes=self.storage)


def _looked_at(loop: Loop, bodies: Bodies) -> _Body:
    steps = [
        bodies.of(item).as_step() if isinstance(item, Loop) else _step(item) for item in loop.body
    ]
    storage: dict[str, str] = {}
    arriving: dict[str, Real] = {}
    for step in steps:
        for name, size in step.reads.items():
            if name not in storage:
                arriving.setdefault(name, size)
        for name, shared in step.writes.items():
            storage[name] = name if shared == name else storage.get(shared, shared)
    last = {
        storage.get(name, name): number
        for number, step in enumerate(steps)
        for name in (*step.reads, *step.writes)
    }
    weights = [op.weight for op in loop.body if isinstance(op, _WEIGHED)]
    sizes = [(weight.layered, (weight.name, weight.bytes)) for weight in weights]
    stored = {"store": "outputs", "keep": "outputs", "append": "inputs"}
    moves = [op for op in loop.body if isinstance(op, Rearrange)]
    return _Body(
        items=loop.body,
        steps=steps,
        storage=storage,
        arriving=arriving,
        last=last,
        loops=tuple(item for item in loop.body if isinstance(item, Loop)),
        weights=(
            [one for inside, one in sizes if not inside],
            [one for inside, one in sizes if inside],
        ),
        stored=[getattr(op, stored[op.move])[0] for op in moves if op.move in stored],
        messages=[op for op in loop.body if isinstance(op, Communication)],
    )


def _step(op: Op) -> _Step:
    view = isinstance(op, Rearrange) and op.view
    kept = isinstance(op, Rearrange) and op.move == "store"
    reads = {t.name: t.bytes for t in op.reads if not t.name.startswith(ELSEWHERE)}
    if isinstance(op, Rearrange) and op.move == "shard" and op.reads[0].name.startswith("prompt."):
        reads = {}  # engines embed the rows that a rank has; our executor is given all of them
    return _Step(
        reads=reads,
        writes={t.name: op.reads[0].name if view else t.name for t in op.writes},
        made=()
        if view or kept
        else tuple((t.name, t.bytes) for t in op.writes if not t.name.startswith(ELSEWHERE)),
    )


def groups(stages: Sequence[Loop], bodies: Bodies | None = None) -> int:
    """Count the different groups of ranks that stages communicate in."""
    return len({op.axis for op in _messages(stages, bodies)})


def _messages(stages: Sequence[Loop], bodies: Bodies | None) -> Iterator[Communication]:
    bodies = bodies or Bodies()
    for stage in stages:
        for body, _ in bodies.inside(stage):
            yield from body.messages
