"""All ranks of a plan in one process, each a coroutine that stops at its messages."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from costmodels import program as ops
from costmodels.program import Loop, Program, Tensor
from planner.lowering import lower
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from planner.strategies import pipefusion
from topology.base import ModelError
from topology.base.values import dataclass
from validate.reference.functions import (
    attention,
    causal_convolution,
    depthwise,
    head_product,
    linear_attention,
    matmul,
    pointwise,
    rearrange,
    recurrence,
)
from validate.reference.weights import Array, Source

Word = TypeVar("Word")
Result = TypeVar("Result")


class DeadlockError(ModelError):
    """Ranks wait for messages that nobody will send."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank stops for: a collective or a send, and what it gives."""

    op: ops.Communication
    given: Array


Turns = Generator[Message, Array, None]
Rank = Generator[Message, Array, Array]


class Here(NamedTuple):
    """Where a rank is in its program: the layer, the forward of the step, and the turn.

    piece, done : turns that this stage, and the last one, have had with pieces of the latents.
    """

    layer: int = 0
    forward: int = 0
    turn: int = 0
    piece: int = 0
    done: int = 0

    def along(self, rank: Mapping[str, int]) -> Mapping[str, int]:
        """Give a rank's place along every axis, those of pieces too."""
        return {**rank, pipefusion.AXIS: self.piece, pipefusion.DONE: self.done}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRank:
    """A rank and what it holds while it runs its program.

    index : its number along every axis. replica : its part of the batch. passes : forwards that a
    step has on it. values, kept : tensors by name; keys and values by name, layer and forward.
    """

    program: Program
    source: Source
    index: Mapping[str, int]
    passes: int
    batch: int
    replica: int = 0
    values: dict[str, Array] = field(default_factory=dict)
    kept: dict[tuple[str, int, int], Array] = field(default_factory=dict)

    def idle(self, here: Here) -> bool:
        """Whether this rank's pipeline stage has no forward at this turn."""
        return not 0 <= here.turn < self.passes


def run_plan(model: Model, workload: Workload, plan: Plan) -> list[Array]:
    """Run a plan and give every rank's output: latents after all steps, or the next token's scores.

    Ranks of a pipeline that do not have them give NaN.
    """
    places = range(plan.degree("pp"))
    programs = [lower(model, workload, plan, place, ordered=True) for place in places]
    return execute(programs, workload, Source())


def execute(programs: Sequence[Program], workload: Workload, source: Source) -> list[Array]:
    """Run the programs of all ranks (one for each pipeline stage) until they end.

    Raises DeadlockError if ranks wait for each other, naming the operations.
    """
    axes = programs[0].axes
    ranks: list[Rank] = []
    for number in range(programs[0].ranks):
        plan = Plan(tuple(axes))
        index = plan.index_of(number)
        state = ReferenceRank(
            program=programs[index.get("pp", 0)],
            source=source,
            index=index,
            replica=plan.replica_of(number),
            passes=workload.passes // dict(axes).get("cfg", 1),
            batch=int(np.asarray(workload.batch)),
        )
        ranks.append(_run(state))
    return take_turns(ranks, partial(_complete_group, axes=axes), _deliver)


def take_turns(
    ranks: Sequence[Generator[Word, Array, Result]],
    complete: Callable[[Mapping[int, Word]], Sequence[int]],
    deliver: Callable[[Sequence[Word]], Sequence[Array]],
) -> list[Result]:
    """Let every rank run to its next message; deliver when a group is complete.

    complete : finds ranks that can exchange what they wait for, or raises where there are none.
    deliver : gives each of them its result.
    """
    waiting: dict[int, Word] = {}
    done: dict[int, Result] = {}

    def advance(rank: int, value: Array | None) -> None:
        try:
            waiting[rank] = ranks[rank].send(value)  # type: ignore[arg-type]  # None starts it
        except StopIteration as stop:
            done[rank] = stop.value

    for rank in range(len(ranks)):
        advance(rank, None)
    while waiting:
        group = complete(waiting)
        messages = [waiting.pop(rank) for rank in group]
        for rank, value in zip(group, deliver(messages), strict=True):
            advance(rank, value)
    return [done[rank] for rank in range(len(ranks))]


def _complete_group(
    waiting: Mapping[int, Message], axes: Sequence[tuple[str, int]]
) -> tuple[int, ...]:
    """Return a group of simulated ranks that all wait for the same message."""
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
    op, inputs = messages[0].op, [message.given for message in messages]
    degree = len(messages)
    if isinstance(op, ops.SendReceive):
        shifted = [inputs[(rank - op.offset) % degree] for rank in range(degree)]
        if op.ends:
            shifted[0] = inputs[0]
        return shifted
    match op.kind:
        case "all_reduce":
            return [np.sum(inputs, axis=0)] * degree
        case "all_gather":
            return [np.concatenate(inputs)] * degree
        case "reduce_scatter":
            return list(np.split(np.sum(inputs, axis=0), degree))
        case "all_to_all":
            return [np.stack([part[rank] for part in inputs]) for rank in range(degree)]
        case "broadcast":
            return [inputs[op.root]] * degree
        case _:
            raise AssertionError(f"no strategy emits {op.kind}")


def _run(state: ReferenceRank) -> Rank:
    for stage in state.program.transformer:
        yield from _loop(stage, Here(), state)
    output = state.program.output
    return state.values.get(output.name, np.full(shape_of(output), np.nan))


def _loop(loop: Loop, outer: Here, state: ReferenceRank) -> Turns:
    for turn in range(loop.first, loop.first + int(np.asarray(loop.count))):
        position = outer
        if loop.layers:
            position = outer._replace(layer=turn)
        elif loop.name in ("forward", "text_tower"):
            position = forward_at(turn, outer.layer, state.index, state.passes)
        elif loop.name == "piece":
            position = _piece_at(turn, loop, state.index)
        for item in loop.body:
            if isinstance(item, Loop):
                yield from _loop(item, position, state)
            else:
                yield from _step(item, position, state)


def forward_at(turn: int, layer: int, index: Mapping[str, int], passes: int) -> Here:
    """Say which forward of the step a turn is; outside its turns a pipeline stage idles on any."""
    own_turn = turn - index.get("pp", 0)
    clipped = min(max(own_turn, 0), passes - 1)
    return Here(layer, index.get("cfg", 0) * passes + clipped, own_turn)


def _piece_at(turn: int, loop: Loop, index: Mapping[str, int]) -> Here:
    """Say which piece of the latents a turn has; before the first and behind the last it idles."""
    piece, done = turn - index.get("pp", 0), turn - loop.first
    idle = piece < 0 or (loop.first > 0 and piece >= int(np.asarray(loop.count)))
    return Here(forward=index.get("cfg", 0), turn=-1 if idle else 0, piece=piece, done=done)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Shape of a tensor of the program, in plain numbers."""
    return tuple(map(int, tensor.shape))


def _step(  # noqa: C901, PLR0912  # one case an operation
    op: ops.Op, position: Here, state: ReferenceRank
) -> Turns:
    """Run one operation and check that what it made has the shape it said."""
    if isinstance(op, ops.Collective) and op.kind == "broadcast":
        state.values.setdefault(op.x.name, np.zeros(shape_of(op.x)))
    if isinstance(op, ops.Collective) and op.weights:
        yield from _fetch(op, position, state)
        return
    inputs = [_read_tensor(tensor, position, state) for tensor in op.reads[_kept_inputs(op) :]]
    index = position.along(state.index)
    match op:
        case ops.Matmul():
            weight = state.source.weight(op.weight, position.layer, state.index)
            route = inputs[1] if op.route is not None else None
            first_expert = op.weight.place(state.index)[0] * op.weight.local_experts
            outputs = [matmul(inputs[0], weight, route, first_expert)]
        case ops.HeadProduct():
            matrices = state.source.weight(op.weight, position.layer, state.index)
            outputs = [head_product(op, inputs[0], matrices)]
        case ops.Attention():
            out, total = attention(op, inputs[0], inputs[1], inputs[2], index)
            outputs = [out] if op.log_sum_exp is None else [out, total]
        case ops.LinearAttention():
            outputs = [linear_attention(op, inputs[0], inputs[1])]
        case ops.CausalConvolution():
            taps = state.source.weight(op.weight, position.layer, state.index)
            outputs = list(causal_convolution(op, inputs[0], inputs[1], taps))
        case ops.Recurrence():
            rates = state.source.weight(op.weight, position.layer, state.index)
            features, gates, old_state = inputs
            outputs = list(recurrence(op, features, gates, old_state, rates))
        case ops.Depthwise():
            kernels = state.source.weight(op.weight, position.layer, state.index)
            outputs = [depthwise(op, inputs[0], kernels, state.index)]
        case ops.Pointwise():
            outputs = pointwise(op, inputs, index)
        case ops.Rearrange():
            outputs = _rearrange(op, inputs, position, state)
        case ops.Collective() | ops.SendReceive():
            outputs = [(yield Message(op, inputs[0]))]
        case ops.Convolve():
            outputs = []
    for tensor, value in zip(op.writes, outputs, strict=True):
        shape = shape_of(tensor)
        assert value.shape == shape, f"{tensor.name}: made {value.shape}, said {shape}"
        state.values[tensor.name] = value


def _fetch(op: ops.Collective, position: Here, state: ReferenceRank) -> Turns:
    """Gather the parts of a layer's weights, and check that they are the whole."""
    layer = position.layer + (op.stream == "comm")
    flat = [state.source.weight(weight, layer, state.index).ravel() for weight in op.weights]
    expected = np.zeros(shape_of(op.out))
    expected.flat[: sum(map(len, flat))] = np.concatenate(flat)
    place = state.index[op.axis]
    gathered = yield Message(op, expected[place : place + 1])
    assert np.array_equal(gathered, expected), f"{op.out.name}: not the weights of layer {layer}"


def _kept_inputs(op: ops.Op) -> int:
    """Count the inputs of an operation, its first ones, that are kept from before."""
    if not isinstance(op, ops.Rearrange):
        return 0
    return len(op.inputs) if op.move == "recall" else int(op.move in ("load", "append"))


def _read_tensor(tensor: Tensor, position: Here, state: ReferenceRank) -> Array:
    """Return a value made earlier, or an input; texts and conditioning differ by forward."""
    value = state.values.get(tensor.name)
    if value is None and tensor.name == state.program.output.name:
        value = state.values[tensor.name] = _input(tensor, state, forward=0)
    elif value is None and any(
        tensor.name == program_input.name for program_input in state.program.inputs
    ):
        return _input(tensor, state, position.forward)
    if state.idle(position) and (value is None or value.shape != shape_of(tensor)):
        return np.zeros(shape_of(tensor))
    assert value is not None, f"{tensor.name} is read before it is made"
    return value


def _input(tensor: Tensor, state: ReferenceRank, forward: int) -> Array:
    size, *sizes = shape_of(tensor)
    full = state.source.array(f"{tensor.name}#{forward}", (state.batch, *sizes))
    start = state.replica * size if size < state.batch else 0
    return full[start : start + size]


def _rearrange(  # noqa: PLR0911  # one case a move
    op: ops.Rearrange, inputs: list[Array], position: Here, state: ReferenceRank
) -> list[Array]:
    key = (op.inputs[0].name, position.layer, position.forward)
    match op.move:
        case "store" | "keep":
            if not state.idle(position):
                for tensor, value in zip(op.outputs, inputs, strict=True):
                    state.kept[tensor.name, position.layer, position.forward] = value
            return inputs
        case "recall":
            keys = [(tensor.name, position.layer, position.forward) for tensor in op.inputs]
            zeros = [np.zeros(shape_of(out)) for out in op.outputs]
            return [state.kept.get(key, zero) for key, zero in zip(keys, zeros, strict=True)]
        case "load":
            return [state.kept[key]]
        case "append":
            if state.idle(position):
                return [np.zeros(shape_of(op.outputs[0]))]
            old_rows = state.kept.get(key, np.zeros(shape_of(op.inputs[0])))
            state.kept[key] = np.concatenate([old_rows, inputs[0]], axis=1)
            return [state.kept[key]]
        case "collect":
            out = op.outputs[0]
            collected = state.values.get(out.name, np.zeros(shape_of(out))).copy()
            if not state.idle(position):
                collected[position.turn] = inputs[0]
            return [collected]
        case _:
            return rearrange(op, inputs, position.along(state.index))
