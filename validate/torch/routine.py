"""A program as a rank takes it: loops of steps, made once and then taken as often as asked."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.program import Communication, Convolve, Loop, Matmul, SendReceive
from topology.base.values import dataclass
from validate.reference.run import Here, forward_at
from validate.torch.expert_layer import ExpertLayer, with_layers
from validate.torch.experts import step_of
from validate.torch.liveness import Lived, Names, Work, arriving_names, reads_of, with_lifetimes
from validate.torch.messages import message, waits
from validate.torch.rank_state import RankState, Step
from validate.torch.steps import begins, compute, freeing, fused_step, joins, launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """A loop made ready: `count` turns of `body`."""

    name: str
    count: int
    first: int
    layers: bool
    body: "tuple[Step | Routine, ...]"


def make_routines(state: RankState) -> dict[str, Routine]:
    """Make the stages of a rank's program ready, without those that are only priced."""
    stages = state.program.transformer
    lifetimes = with_lifetimes(stages, frozenset({state.program.output.name}))
    needed_names = _names_after(lifetimes, frozenset({state.program.output.name}))
    return {
        stage.name: _routine(stage, state, after, compiles=False)
        for stage, after in zip(stages, needed_names, strict=True)
    }


def _names_after(items: Sequence[Lived], final_names: Names) -> list[Names]:
    """Names that are needed after each item of a body."""
    lives, live = [], final_names
    for work in reversed(items):
        lives.append(live)
        if isinstance(work.item, Loop):
            live = live | arriving_names(work.item.body)
        else:
            live = live | frozenset(reads_of(work.item))
    return lives[::-1]


def _routine(loop: Loop, state: RankState, after: Names, *, compiles: bool) -> Routine:
    compiles = compiles or loop.layers
    ahead = (state.ahead,) if loop.layers and state.ahead is not None else ()
    return Routine(
        name=loop.name,
        count=int(np.asarray(loop.count)),
        first=loop.first,
        layers=loop.layers,
        body=(*ahead, *_body(loop, state, after, compiles=compiles)),
    )


def _body(loop: Loop, state: RankState, after: Names, *, compiles: bool) -> "list[Step | Routine]":
    """Make the items of a body ready; element-wise neighbours are taken together when compiled."""
    end = after | arriving_names(loop.body)
    items = with_lifetimes(with_layers(loop.body), end)
    steps: list[Step | Routine] = []
    neighbours: list[Lived] = []
    sent_names: list[str] = []
    for work, live in zip(items, _names_after(items, end), strict=True):
        op = work.item
        if isinstance(op, Loop):
            steps += [*_flush(neighbours, state), *waits(sent_names, state)]
            steps.append(_routine(op, state, live, compiles=compiles))
            continue
        awaited = [name for name in sent_names if name in reads_of(op)]
        if isinstance(op, SendReceive) and op.stream == "comm" and not state.serial:
            steps += _flush(neighbours, state)
            number, following = len(sent_names), bool(awaited)
            steps.append(message(work, state, number, following=following))
            sent_names.append(op.out.name)
            continue
        if awaited:
            steps += [*_flush(neighbours, state), *waits(awaited, state)]
        if compiles and joins(op, state):
            steps += _flush(neighbours, state) if begins(op) else []
            neighbours.append(work)
            continue
        steps += _flush(neighbours, state)
        steps += _step(work, state)
    return [*steps, *_flush(neighbours, state), *waits(sent_names, state)]


def _step(work: Lived, state: RankState) -> list[Step]:
    if isinstance(work.item, Communication):
        return [message(work, state, 0, following=False)]
    if isinstance(work.item, ExpertLayer):
        step = freeing(step_of(work.item, state), work.frees, state)
        return [state.around(step, "gemm", "compute")]
    return [] if isinstance(work.item, Convolve) else [compute(work, state)]


def _flush(neighbours: list[Lived], state: RankState) -> list[Step]:
    """Make steps of the neighbours gathered so far; views at either end need no compiler."""
    works, neighbours[:] = list(neighbours), []
    kernels = [place for place, work in enumerate(works) if launches(_op(work))]
    if not kernels:
        return [compute(work, state) for work in works]
    start, stop = kernels[0], kernels[-1] + 1
    leading, compiled, trailing = works[:start], works[start:stop], works[stop:]
    steps = [compute(work, state) for work in leading]
    if _worth_compiling(compiled):
        steps.append(fused_step(compiled, state))
    else:
        steps += [compute(work, state) for work in compiled]
    return [*steps, *[compute(work, state) for work in trailing]]


def _op(work: Lived) -> Work:
    assert not isinstance(work.item, Loop)
    return work.item


SINGLE_KERNELS: Final = (
    "norm", "residual", "difference", "gated_residual", "cast", "concat_rows", "concat_features",
    "stack", "unpack_heads", "unpack_rows", "pack_rows", "shard", "last", "latest",
)  # fmt: skip


def _worth_compiling(works: Sequence[Lived]) -> bool:
    """Whether compiling saves anything: not where one operation is one kernel anyway."""
    ops = [_op(work) for work in works]
    if all(isinstance(op, Matmul) or not launches(op) for op in ops):
        return False
    op = ops[0]
    return len(ops) > 1 or getattr(op, "function", getattr(op, "move", "")) not in SINGLE_KERNELS


def play(routine: Routine, state: RankState, here: Here = Here()) -> None:  # noqa: B008
    """Take all turns of a routine."""
    for turn in range(routine.first, routine.first + routine.count):
        inner = here
        if routine.layers:
            inner = here._replace(layer=turn)
        elif routine.name in ("forward", "text_tower"):
            inner = forward_at(turn, here.layer, state.setting.index, state.passes)
        for item in routine.body:
            if isinstance(item, Routine):
                play(item, state, inner)
            else:
                item(inner)
