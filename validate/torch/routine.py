"""A program as a rank takes it: loops of steps, made once and then taken as often as asked."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.program import Communication, Convolve, Loop, Matmul, SendReceive
from topology.base.values import dataclass
from validate.reference.run import Here, forward_at
from validate.torch.expert_layer import ExpertLayer, with_layers
from validate.torch.experts import step_of
from validate.torch.liveness import Lived, Names, Work, arriving, lived, reads_of
from validate.torch.messages import message, waits
from validate.torch.rank_state import RankState, Step
from validate.torch.steps import begins, compute, freeing, fused, joins, launches


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
    whole = lived(stages, frozenset({state.program.output.name}))
    live = _after(whole, frozenset({state.program.output.name}))
    return {
        stage.name: _routine(stage, state, after, compiles=False)
        for stage, after in zip(stages, live, strict=True)
    }


def _after(items: Sequence[Lived], last: Names) -> list[Names]:
    """Names that are needed after each item of a body."""
    lives, live = [], last
    for work in reversed(items):
        lives.append(live)
        if isinstance(work.item, Loop):
            live = live | arriving(work.item.body)
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
    end = after | arriving(loop.body)
    items = lived(with_layers(loop.body), end)
    steps: list[Step | Routine] = []
    run: list[Lived] = []
    sent: list[str] = []
    for work, live in zip(items, _after(items, end), strict=True):
        op = work.item
        if isinstance(op, Loop):
            steps += [*_flush(run, state), *waits(sent, state)]
            steps.append(_routine(op, state, live, compiles=compiles))
            continue
        late = [name for name in sent if name in reads_of(op)]
        if isinstance(op, SendReceive) and op.stream == "comm" and not state.serial:
            steps += _flush(run, state)
            number, following = len(sent), bool(late)
            steps.append(message(work, state, number, following=following))
            sent.append(op.out.name)
            continue
        if late:
            steps += [*_flush(run, state), *waits(late, state)]
        if compiles and joins(op, state):
            steps += _flush(run, state) if begins(op) else []
            run.append(work)
            continue
        steps += _flush(run, state)
        steps += _step(work, state)
    return [*steps, *_flush(run, state), *waits(sent, state)]


def _step(work: Lived, state: RankState) -> list[Step]:
    if isinstance(work.item, Communication):
        return [message(work, state, 0, following=False)]
    if isinstance(work.item, ExpertLayer):
        step = freeing(step_of(work.item, state), work.frees, state)
        return [state.around(step, "gemm", "compute")]
    return [] if isinstance(work.item, Convolve) else [compute(work, state)]


def _flush(run: list[Lived], state: RankState) -> list[Step]:
    """Make steps of the neighbours gathered so far; views at either end need no compiler."""
    taken, run[:] = list(run), []
    kernels = [place for place, work in enumerate(taken) if launches(_op(work))]
    if not kernels:
        return [compute(work, state) for work in taken]
    first, last = kernels[0], kernels[-1] + 1
    before, middle, behind = taken[:first], taken[first:last], taken[last:]
    made = [compute(work, state) for work in before]
    if _worth(middle):
        made.append(fused(middle, state))
    else:
        made += [compute(work, state) for work in middle]
    return [*made, *[compute(work, state) for work in behind]]


def _op(work: Lived) -> Work:
    assert not isinstance(work.item, Loop)
    return work.item


SINGLE_KERNELS: Final = (
    "norm", "residual", "difference", "gated_residual", "cast", "concat_rows", "concat_features",
    "stack", "unpack_heads", "unpack_rows", "pack_rows", "shard", "last", "latest",
)  # fmt: skip


def _worth(run: Sequence[Lived]) -> bool:
    """Whether compiling saves anything: not where one operation is one kernel anyway."""
    ops = [_op(work) for work in run]
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
