"""A program as a rank takes it: loops of steps, made once and then taken as often as asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.program.ops import Collective, Convolve, Loop, Matmul, Op, SendReceive
from validate.torch.liveness import Lived, Names, arriving, lived, reads_of
from validate.torch.messages import message, waiting
from validate.torch.state import Here, Machine, Step
from validate.torch.steps import compute, fused, joins, launches

SKIPPED = ("text_encode", "vae_decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """A loop made ready: `count` turns of `body`."""

    name: str
    count: int
    first: int
    layers: bool
    body: "tuple[Step | Routine, ...]"


def make_routines(machine: Machine) -> dict[str, Routine]:
    """Make the stages of a machine's program ready, without those that are only priced."""
    stages = [stage for stage in machine.program.stages if stage.name not in SKIPPED]
    whole = lived(stages, frozenset({machine.program.output.name}))
    live = _after(whole, frozenset({machine.program.output.name}))
    return {
        stage.name: _routine(stage, machine, after, compiles=False)
        for stage, after in zip(stages, live, strict=True)
    }


def _after(items: Sequence[Lived], last: Names) -> list[Names]:
    """Names that are needed after each item of a body."""
    found, live = [], last
    for one in reversed(items):
        found.append(live)
        if isinstance(one.item, Loop):
            live = live | arriving(one.item.body)
        else:
            live = live | frozenset(reads_of(one.item))
    return found[::-1]


def _routine(loop: Loop, machine: Machine, after: Names, *, compiles: bool) -> Routine:
    compiles = compiles or loop.layers
    ahead = (machine.ahead,) if loop.layers and machine.ahead is not None else ()
    return Routine(
        name=loop.name,
        count=int(np.asarray(loop.count)),
        first=loop.first,
        layers=loop.layers,
        body=(*ahead, *_body(loop, machine, after, compiles=compiles)),
    )


def _body(loop: Loop, machine: Machine, after: Names, *, compiles: bool) -> "list[Step | Routine]":
    """Make the items of a body ready; row-wise neighbours are taken together when compiled."""
    end = after | arriving(loop.body)
    items = lived(loop.body, end)
    steps: list[Step | Routine] = []
    run: list[Lived] = []
    sent: list[str] = []
    for one, live in zip(items, _after(items, end), strict=True):
        op = one.item
        if isinstance(op, Loop):
            steps += [*_flush(run, machine), *_waits(sent, machine)]
            steps.append(_routine(op, machine, live, compiles=compiles))
            continue
        late = [name for name in sent if name in reads_of(op)]
        if isinstance(op, SendReceive) and op.stream == "comm" and not machine.serial:
            steps += _flush(run, machine)
            number, following = len(sent), bool(late)
            steps.append(message(one, machine, number, following=following))
            sent.append(op.out.name)
            continue
        if late:
            steps += [*_flush(run, machine), waiting(tuple(late), machine)]
        if compiles and joins(op, machine):
            run.append(one)
            continue
        steps += _flush(run, machine)
        steps += _step(one, machine)
    return [*steps, *_flush(run, machine), *_waits(sent, machine)]


def _step(one: Lived, machine: Machine) -> list[Step]:
    if isinstance(one.item, Collective | SendReceive):
        return [message(one, machine, 0, following=False)]
    return [] if isinstance(one.item, Convolve) else [compute(one, machine)]


def _waits(sent: Sequence[str], machine: Machine) -> list[Step]:
    return [waiting(tuple(sent), machine)] if sent else []


def _flush(run: list[Lived], machine: Machine) -> list[Step]:
    """Make steps of the neighbours gathered so far; views at either end need no compiler."""
    taken, run[:] = list(run), []
    kernels = [place for place, one in enumerate(taken) if launches(_op(one))]
    if not kernels:
        return [compute(one, machine) for one in taken]
    first, last = kernels[0], kernels[-1] + 1
    before, middle, behind = taken[:first], taken[first:last], taken[last:]
    made = [compute(one, machine) for one in before]
    if _worth(middle):
        made.append(fused(middle, machine))
    else:
        made += [compute(one, machine) for one in middle]
    return [*made, *[compute(one, machine) for one in behind]]


def _op(one: Lived) -> Op:
    assert not isinstance(one.item, Loop)
    return one.item


SINGLE_KERNELS: Final = (
    "norm", "residual", "gated_residual", "cast", "concat_rows", "concat_features", "stack",
    "unpack_heads", "unpack_rows", "pack_rows", "shard", "last", "latest",
)  # fmt: skip


def _worth(run: Sequence[Lived]) -> bool:
    """Whether compiling saves anything: not where one operation is one kernel anyway."""
    ops = [_op(one) for one in run]
    if all(isinstance(op, Matmul) or not launches(op) for op in ops):
        return False
    one = ops[0]
    return len(ops) > 1 or getattr(one, "function", getattr(one, "move", "")) not in SINGLE_KERNELS


def play(routine: Routine, machine: Machine, here: Here = Here()) -> None:  # noqa: B008
    """Take all turns of a routine."""
    for turn in range(routine.first, routine.first + routine.count):
        inner = here
        if routine.layers:
            inner = Here(turn, here.forward, here.turn)
        elif routine.name in ("forward", "text_tower"):
            inner = _forward(turn, machine, here)
        for item in routine.body:
            if isinstance(item, Routine):
                play(item, machine, inner)
            else:
                item(inner)


def _forward(turn: int, machine: Machine, here: Here) -> Here:
    """Which forward of the step a turn is; outside its turns a pipeline stage idles on any."""
    index = machine.setting.index
    own = turn - index.get("pp", 0)
    clipped = min(max(own, 0), machine.passes - 1)
    return Here(here.layer, index.get("cfg", 0) * machine.passes + clipped, own)
