"""Operations as steps that a rank can take: what is looked up, computed, kept and let go."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from costmodels.price import Class
from costmodels.program import (
    Attention,
    CausalConvolution,
    Collective,
    Convolve,
    Depthwise,
    HeadProduct,
    LinearAttention,
    Matmul,
    Op,
    Pointwise,
    Rearrange,
    Recurrence,
    SendReceive,
    Tensor,
    Weight,
)
from validate.launch.blame import COMPILES
from validate.reference.run import Here, shape_of
from validate.torch import attention, functions, layout, products, recurrent
from validate.torch.layout import RUNNER_MOVES
from validate.torch.liveness import Lived, Names, Work, reads_of, writes_of
from validate.torch.rank_state import RankState, Step, zeros
from validate.torch.setting import Bound, Setting

Weighed = Matmul | HeadProduct | Depthwise | CausalConvolution | Recurrence
Compute = Weighed | Attention | LinearAttention | Pointwise | Rearrange


def bind(op: Compute, setting: Setting) -> Bound:  # noqa: PLR0911  # one case an operation
    """Make an operation ready to run: all that is known beforehand is worked out here."""
    match op:
        case Matmul():
            return products.bind(op, setting)
        case HeadProduct():
            return products.bind_heads(op, setting)
        case Attention():
            return attention.bind(op, setting)
        case LinearAttention():
            return products.bind_linear(op, setting)
        case Depthwise():
            return products.bind_depthwise(op, setting)
        case CausalConvolution():
            return recurrent.bind_convolution(op)
        case Recurrence():
            return recurrent.bind(op, setting)
        case Pointwise():
            return functions.bind(op, setting)
        case Rearrange():
            return layout.bind(op, setting)


Fetch = Callable[[Here], list[torch.Tensor]]

CLASSES: Final[dict[type, Class]] = {
    Matmul: "gemm",
    HeadProduct: "gemm",
    Attention: "attention",
    LinearAttention: "attention",
    Pointwise: "pointwise",
    Rearrange: "layout",
    Collective: "communication",
    SendReceive: "communication",
    Convolve: "convolution",
    Depthwise: "convolution",
    CausalConvolution: "convolution",
    Recurrence: "attention",
}


def joins(op: Work, state: RankState) -> bool:
    """Whether an operation is compiled together with its neighbours."""
    fuser = state.fuser
    if isinstance(op, Matmul):
        is_plain = op.route is None and not state.setting.is_quantised(op.weight)
        return is_plain and fuser is not None and fuser.products
    fusible = isinstance(op, Pointwise) or (
        isinstance(op, Rearrange) and op.move not in RUNNER_MOVES
    )
    return fuser is not None and fusible


def begins(op: Work) -> bool:
    """Whether an operation is compiled without what comes before it.

    Heads are packed for other ranks across columns: what is computed on the way there is stored
    out of order, and 262 us go where both, apart, take 62 (an H200, Qwen-Image, PyTorch 2.11).
    """
    return isinstance(op, Rearrange) and op.move == "pack_heads"


def launches(op: Work) -> bool:
    """Whether an operation starts a kernel at all."""
    return not (isinstance(op, Rearrange) and op.view)


def fetcher(tensors: Sequence[Tensor], state: RankState) -> Fetch:
    """Make a function that looks up tensors by name, or inputs by name and forward."""
    values, names = state.values, [tensor.name for tensor in tensors]
    piped = "pp" in state.groups
    if not piped and not state.inputs.intersection(names):
        return lambda _: [values[name] for name in names]
    return lambda position: [_value(tensor, state, position) for tensor in tensors]


def _value(tensor: Tensor, state: RankState, position: Here) -> torch.Tensor:
    if tensor.name in state.inputs:
        return state.given(tensor, position.forward)
    value = state.values.get(tensor.name)
    if state.idle(position) and (value is None or tuple(value.shape) != shape_of(tensor)):
        return zeros(tensor, state)
    assert value is not None, f"{tensor.name} is read before it is made"
    return value


def compute(lived: Lived, state: RankState) -> Step:
    """Make a step of one operation."""
    op = lived.item
    assert isinstance(op, Compute)
    if isinstance(op, Rearrange) and op.move in RUNNER_MOVES:
        runner_step: Step = partial(_RUNNER_STEPS[op.move], op, state)
        return state.around(freeing(runner_step, lived.frees, state), "layout", op.stream)
    bound = bind(op, state.setting)
    outs = [tensor.name for tensor in op.writes]
    if isinstance(op, Weighed):
        step = _product(op, bound, outs, state)
    else:
        step = _single(fetcher(op.reads, state), bound, outs, state)
    if state.checked:
        step = _checking(step, op, state)
    return state.around(freeing(step, lived.frees, state), CLASSES[type(op)], op.stream)


def _product(op: Weighed, bound: Bound, outs: list[str], state: RankState) -> Step:
    fetch, values, run = fetcher(op.reads, state), state.values, bound.run
    weight, weight_of = op.weight, state.weights.of

    def step(position: Here) -> None:
        x, *more_inputs = fetch(position)
        results = run([x, weight_of(weight, position.layer), *more_inputs])
        for name, value in zip(outs, results, strict=True):
            values[name] = value

    return step


def _single(fetch: Fetch, bound: Bound, outs: list[str], state: RankState) -> Step:
    values, run, tables = state.values, bound.run, list(bound.tables)

    def step(position: Here) -> None:
        for name, result in zip(outs, run([*fetch(position), *tables]), strict=True):
            values[name] = result

    return step


def freeing(step: Step, frees: Names, state: RankState) -> Step:
    """Let go of what nobody reads after a step."""
    freed_names, values = tuple(frees), state.values
    if not freed_names:
        return step

    def both(position: Here) -> None:
        step(position)
        for name in freed_names:
            values.pop(name, None)

    return both


def _checking(step: Step, op: Op, state: RankState) -> Step:
    """Say what is done, and check that what is made has the shape that the program says."""
    text = f"{CLASSES[type(op)]} {', '.join(writes_of(op))}".encode()

    def both(position: Here) -> None:
        state.progress.op(text)
        step(position)
        for tensor in op.writes:
            value, shape = state.values[tensor.name], shape_of(tensor)
            assert tuple(value.shape) == shape, f"{tensor.name}: made {value.shape}, said {shape}"

    return both


def fused_step(run: Sequence[Lived], state: RankState) -> Step:
    """Make one step of neighbouring operations, compiled when it is first taken."""
    ops = [entry.item for entry in run if isinstance(entry.item, Pointwise | Rearrange | Matmul)]
    setting = replace(state.setting, traced=True)
    bound_ops = [(op, bind(op, setting)) for op in ops]
    written: set[str] = set()
    arriving: dict[str, Tensor] = {}
    for op in ops:
        arriving |= {t.name: t for t in op.reads if t.name not in written}
        written |= set(writes_of(op))
    frees = frozenset().union(*[entry.frees for entry in run])
    outs = sorted(written - frees)
    names = [*arriving]
    # what each takes besides its inputs: a layer's weight, or constant tables
    extras_by_op: list[list[Weight | torch.Tensor]] = [
        [op.weight] if isinstance(op, Matmul) else list(bound.tables) for op, bound in bound_ops
    ]

    def whole(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values_by_name = dict(zip(names, tensors[: len(names)], strict=True))
        extras = iter(tensors[len(names) :])
        for (op, bound), op_extras in zip(bound_ops, extras_by_op, strict=True):
            inputs = [values_by_name[name] for name in reads_of(op)]
            own_extras = [next(extras) for _ in op_extras]
            values_by_name |= zip(writes_of(op), bound.run([*inputs, *own_extras]), strict=True)
        return tuple(values_by_name[name] for name in outs)

    key = (tuple(ops), tuple(outs), tuple(state.setting.index.items()))
    fetch = fetcher(tuple(arriving.values()), state)
    fetch = _with_extras(fetch, [entry for op_extras in extras_by_op for entry in op_extras], state)
    step = _compiled_step(whole, key, fetch, outs, state)
    kind: Class = "pointwise" if any(isinstance(op, Pointwise) for op in ops) else "layout"
    return state.around(freeing(step, frees, state), kind, "compute")


def _with_extras(fetch: Fetch, extras: list[Weight | torch.Tensor], state: RankState) -> Fetch:
    """Look up inputs, and then the weights of the layer and the tables."""
    weight_of = state.weights.of
    if not any(isinstance(extra, Weight) for extra in extras):
        tables = [extra for extra in extras if isinstance(extra, torch.Tensor)]
        return lambda position: [*fetch(position), *tables]
    return lambda position: [
        *fetch(position),
        *[
            weight_of(extra, position.layer) if isinstance(extra, Weight) else extra
            for extra in extras
        ],
    ]


def _compiled_step(
    function: Callable[..., tuple[torch.Tensor, ...]],
    key: tuple[object, ...],
    fetch: Fetch,
    outs: list[str],
    state: RankState,
) -> Step:
    values, fuser = state.values, state.fuser
    assert fuser is not None
    compiled: list[Callable[..., Sequence[torch.Tensor]]] = []

    def step(position: Here) -> None:
        inputs = fetch(position)
        if not compiled:
            state.progress.op(COMPILES)
            compiled.append(fuser.compiled(key, function, inputs))
        for name, result in zip(outs, compiled[0](*inputs), strict=True):
            values[name] = result

    return step


def _store(op: Rearrange, state: RankState, position: Here) -> None:
    (x,) = fetcher(op.inputs, state)(position)
    key = (op.outputs[0].name, position.layer, position.forward)
    rows = x.shape[1]
    cache = state.kept.get(key)
    if cache is None:
        cache = x.new_empty((x.shape[0], rows + state.room, x.shape[2]))
        state.kept[key] = cache
    cache[:, :rows].copy_(x)
    state.lengths[key] = rows


def _load(op: Rearrange, state: RankState, position: Here) -> None:
    key = (op.inputs[0].name, position.layer, position.forward)
    state.values[op.outputs[0].name] = state.kept[key][:, : state.lengths[key]]


def _append(op: Rearrange, state: RankState, position: Here) -> None:
    """Write new rows behind those kept; what is read is all of them."""
    key = (op.inputs[0].name, position.layer, position.forward)
    out = op.outputs[0]
    if state.idle(position):
        state.values[out.name] = zeros(out, state)
        return
    (x,) = fetcher(op.inputs[1:], state)(position)
    start, cache = state.lengths[key], state.kept[key]
    cache[:, start : start + x.shape[1]].copy_(x)
    state.lengths[key] = start + x.shape[1]
    state.values[out.name] = cache[:, : start + x.shape[1]]


def _collect(op: Rearrange, state: RankState, position: Here) -> None:
    """Put a forward's prediction beside the others of its step."""
    out = op.outputs[0]
    if shape_of(out)[0] == 1 and not state.idle(position):
        (x,) = fetcher(op.inputs, state)(position)
        state.values[out.name] = x[None]
        return
    predictions = state.values.get(out.name)
    if predictions is None:
        predictions = state.values[out.name] = zeros(out, state)
    if not state.idle(position):
        (x,) = fetcher(op.inputs, state)(position)
        predictions[position.turn].copy_(x)


def _keep(op: Rearrange, state: RankState, position: Here) -> None:
    """Put tensors in place of those kept before."""
    if state.idle(position):
        return
    for tensor, value in zip(op.outputs, fetcher(op.inputs, state)(position), strict=True):
        state.states[tensor.name, position.layer, position.forward] = value


def _recall(op: Rearrange, state: RankState, position: Here) -> None:
    """Give what was kept; zeros where nothing is yet."""
    for stored, out in zip(op.inputs, op.outputs, strict=True):
        value = state.states.get((stored.name, position.layer, position.forward))
        state.values[out.name] = zeros(out, state) if value is None else value


_RUNNER_STEPS = {
    "store": _store, "load": _load, "append": _append, "collect": _collect, "keep": _keep,
    "recall": _recall,
}  # fmt: skip
