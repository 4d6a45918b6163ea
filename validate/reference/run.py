"""All ranks of a plan in one process, each a coroutine that stops at its messages."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodels.program import (
    Attention,
    Collective,
    Communication,
    Convolve,
    Depthwise,
    LinearAttention,
    Loop,
    Matmul,
    Op,
    Pointwise,
    Program,
    Rearrange,
    SendReceive,
    Tensor,
)
from planner.lowering import lower
from planner.models.architecture import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.search.evaluate import running
from topology.base import ModelError
from validate.reference import functions
from validate.reference.weights import Array, Source


class DeadlockError(ModelError):
    """Ranks wait for messages that nobody will send."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank stops for: a collective or a send, and what it gives."""

    op: Communication
    given: Array


Rank = Generator[Message, Array, Array]


@dataclass(slots=True)
class Memory:
    """What one rank holds while it runs. The one mutable value here; it never leaves its rank."""

    values: dict[str, Array] = field(default_factory=dict)
    kept: dict[tuple[str, int, int], Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is in its program: its index along the axes, the layer and the forward."""

    index: Mapping[str, int]
    layer: int = 0
    forward: int = 0
    turn: int = 0


def run_plan(model: Model, workload: Workload, plan: Plan, seed: int = 0) -> list[Array]:
    """Run a plan and give every rank's output.

    Returns
    -------
    one array a rank: the latents after all steps, or the next token's scores (NaN on the ranks
    of a pipeline that do not have them).
    """
    places = range(plan.degree("pp"))
    programs = [lower(model, workload, plan, place) for place in places]
    return execute(programs, workload, Source(seed))


def execute(programs: Sequence[Program], workload: Workload, source: Source) -> list[Array]:
    """Run the programs of all ranks (one for each pipeline stage) until they end.

    Raises
    ------
    DeadlockError
        If ranks wait for each other, naming the operations.
    """
    axes = programs[0].axes
    ranks: list[Rank] = []
    for number in range(programs[0].ranks):
        index = Plan(tuple(axes)).index_of(number)
        program = programs[index.get("pp", 0)]
        ranks.append(_run(program, Place(index=index), workload, source))
    return _schedule(ranks, axes)


def _schedule(ranks: Sequence[Rank], axes: Sequence[tuple[str, int]]) -> list[Array]:
    """Let every rank run to its next message; deliver when a group is complete."""
    waiting: dict[int, Message] = {}
    done: dict[int, Array] = {}

    def advance(rank: int, value: Array | None) -> None:
        try:
            message = ranks[rank].send(value) if value is not None else next(ranks[rank])
        except StopIteration as stop:
            done[rank] = stop.value
        else:
            waiting[rank] = message

    for rank in range(len(ranks)):
        advance(rank, None)
    while waiting:
        group = _complete(waiting, axes)
        messages = [waiting.pop(rank) for rank in group]
        for rank, value in zip(group, _deliver(messages), strict=True):
            advance(rank, value)
    return [done[rank] for rank in range(len(ranks))]


def _complete(waiting: Mapping[int, Message], axes: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return a group of ranks that all wait for the same message."""
    for rank, message in waiting.items():
        group = Plan(tuple(axes)).ranks_along(message.op.axis, rank)
        kinds = {
            (type(waiting[r].op), getattr(waiting[r].op, "kind", ""), waiting[r].op.axis)
            for r in group
            if r in waiting
        }
        if all(r in waiting for r in group) and len(kinds) == 1:
            return group
    blocked = ", ".join(f"rank {r} at {m.op.x.name}" for r, m in sorted(waiting.items()))
    raise DeadlockError(f"no group is complete: {blocked}")


def _deliver(messages: Sequence[Message]) -> list[Array]:
    op, given = messages[0].op, [message.given for message in messages]
    degree = len(messages)
    if isinstance(op, SendReceive):
        moved = [given[(rank - op.offset) % degree] for rank in range(degree)]
        if op.ends:
            moved[0] = given[0]
        return moved
    match op.kind:
        case "all_reduce":
            return [np.sum(given, axis=0)] * degree
        case "all_gather":
            return [np.concatenate(given)] * degree
        case "reduce_scatter":
            return list(np.split(np.sum(given, axis=0), degree))
        case "all_to_all":
            return [np.stack([part[rank] for part in given]) for rank in range(degree)]
        case "broadcast":
            return [given[op.root]] * degree
        case _:
            raise AssertionError(f"no strategy emits {op.kind}")


def _run(program: Program, place: Place, workload: Workload, source: Source) -> Rank:
    memory = Memory()
    passes = workload.passes // dict(program.axes).get("cfg", 1)
    setting = _Setting(program=program, source=source, passes=passes, batch=_batch(workload))
    for stage in running(program):
        yield from _loop(stage, place, memory, setting)
    shape = tuple(int(size) for size in program.output.shape)
    return memory.values.get(program.output.name, np.full(shape, np.nan))


def _batch(workload: Workload) -> int:
    return int(np.asarray(workload.batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    program: Program
    source: Source
    passes: int
    batch: int


def _loop(
    loop: Loop, place: Place, memory: Memory, setting: _Setting
) -> Generator[Message, Array, None]:
    for turn in range(int(np.asarray(loop.count))):
        here = place
        if loop.layers:
            here = Place(
                index=place.index, layer=turn + loop.first, forward=place.forward, turn=place.turn
            )
        elif loop.name in ("forward", "text_tower"):
            here = _forward(place, turn + loop.first, setting)
        for item in loop.body:
            if isinstance(item, Loop):
                yield from _loop(item, here, memory, setting)
            else:
                yield from _step(item, here, memory, setting)


def _forward(place: Place, turn: int, setting: _Setting) -> Place:
    """Which forward of the step this turn is; outside its turns a pipeline stage idles on any."""
    own = turn - place.index.get("pp", 0)
    clipped = min(max(own, 0), setting.passes - 1)
    forward = place.index.get("cfg", 0) * setting.passes + clipped
    return Place(index=place.index, layer=place.layer, forward=forward, turn=own)


def _step(  # noqa: C901  # one case an operation
    op: Op, place: Place, memory: Memory, setting: _Setting
) -> Generator[Message, Array, None]:
    """Run one operation and check that what it made has the shape it said."""
    if isinstance(op, Collective) and op.kind == "broadcast":
        shape = tuple(int(size) for size in op.x.shape)
        memory.values.setdefault(op.x.name, np.zeros(shape))
    given = [_read(tensor, place, memory, setting) for tensor in op.reads if not _kept(op, tensor)]
    match op:
        case Matmul():
            weight = setting.source.weight(op.weight, place.layer, place.index)
            route = given[1] if op.route is not None else None
            made = [functions.matmul(given[0], weight, route)]
        case Attention():
            out, total = functions.attention(op, given[0], given[1], given[2], place.index)
            made = [out] if op.log_sum_exp is None else [out, total]
        case LinearAttention():
            made = [functions.linear_attention(op, given[0], given[1])]
        case Depthwise():
            kernels = setting.source.weight(op.weight, place.layer, place.index)
            made = [functions.depthwise(op, given[0], kernels, place.index)]
        case Pointwise():
            made = functions.pointwise(op, given, place.index)
        case Rearrange():
            made = _rearrange(op, given, place, memory, setting)
        case Collective() | SendReceive():
            made = [(yield Message(op, given[0]))]
        case Convolve():
            made = []
    for tensor, value in zip(op.writes, made, strict=True):
        shape = tuple(int(size) for size in tensor.shape)
        assert value.shape == shape, f"{tensor.name}: made {value.shape}, said {shape}"
        memory.values[tensor.name] = value


def _kept(op: Op, tensor: Tensor) -> bool:
    return isinstance(op, Rearrange) and op.move in ("load", "append") and tensor is op.inputs[0]


def _read(tensor: Tensor, place: Place, memory: Memory, setting: _Setting) -> Array:
    """Return a value made earlier, or an input; texts and conditioning differ by forward."""
    main = tensor.name == setting.program.output.name
    if tensor.name in {given.name for given in setting.program.inputs} and not main:
        return _input(tensor, place, setting, forward=place.forward)
    if main and tensor.name not in memory.values:
        memory.values[tensor.name] = _input(tensor, place, setting, forward=0)
    shape = tuple(int(size) for size in tensor.shape)
    value = memory.values.get(tensor.name)
    idle = not _at_work(place, setting)
    if idle and (value is None or value.shape != shape):
        return np.zeros(shape)
    assert value is not None, f"{tensor.name} is read before it is made"
    return value


def _at_work(place: Place, setting: _Setting) -> bool:
    """Whether a pipeline stage has a forward at this turn."""
    return 0 <= place.turn < setting.passes


def _input(tensor: Tensor, place: Place, setting: _Setting, forward: int) -> Array:
    shape = (setting.batch, *(int(size) for size in tensor.shape[1:]))
    full = setting.source.array(f"{tensor.name}#{forward}", shape)
    size = int(np.asarray(tensor.shape[0]))
    first = place.index.get("dp", 0) * size if size < setting.batch else 0
    return full[first : first + size]


def _rearrange(
    op: Rearrange, given: list[Array], place: Place, memory: Memory, setting: _Setting
) -> list[Array]:
    key = (op.inputs[0].name, place.layer, place.forward)
    match op.move:
        case "store":
            memory.kept[op.outputs[0].name, place.layer, place.forward] = given[0]
            return [given[0]]
        case "load":
            return [memory.kept[key]]
        case "append":
            if not _at_work(place, setting):
                return [np.zeros(tuple(int(size) for size in op.outputs[0].shape))]
            memory.kept[key] = np.concatenate([memory.kept[key], given[0]], axis=1)
            return [memory.kept[key]]
        case "collect":
            shape = tuple(int(size) for size in op.outputs[0].shape)
            kept = memory.values.get(op.outputs[0].name, np.zeros(shape)).copy()
            if _at_work(place, setting):
                kept[place.turn] = given[0]
            return [kept]
        case _:
            return functions.rearrange(op, given, place.index)
