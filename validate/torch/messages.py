"""Collectives and sends as steps: on the compute stream, or beside it on a stream of their own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
import torch.distributed as dist

from costmodels.program import Collective, Communication, SendReceive
from validate.reference.run import Here, shape_of
from validate.torch.liveness import Lived
from validate.torch.rank_state import Group, Pending, RankState, Step, zeros
from validate.torch.sent import Noted, sending
from validate.torch.steps import fetcher, freeing

_ALL_GATHER: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Renamed in PyTorch 2.13."""


def message(lived: Lived, state: RankState, number: int, *, following: bool) -> Step:
    """Make a step of a collective or a send.

    number : of the send in its body, which has a buffer of its own.
    following : whether what is sent is itself still on its way here.
    """
    op = lived.item
    assert isinstance(op, Communication)
    if isinstance(op, Collective):
        step = _collective(op, state, dies=op.x.name in lived.frees)
    elif op.stream == "comm" and not state.serial:
        step = _beside(op, state, number, following=following)
    else:
        step = _handed_on(op, state)
    return _told(freeing(step, lived.frees, state), op, state)


def _told(step: Step, op: Communication, state: RankState) -> Step:
    """Tell of a message before it starts."""
    text, progress = f"{op.kind} {op.axis} {op.out.name}".encode(), state.progress
    ranks, inner = state.groups[op.axis].ranks, state.around(step, "communication", op.stream)

    def told(here: Here) -> None:
        progress.message(text, ranks)
        inner(here)
        progress.waits(now=False)

    return told


def _sending(op: Communication, x: torch.Tensor, group: Group, state: RankState) -> Noted:
    return sending(op, x, group.ranks, state.sent if state.checked else None)


def _count(op: Communication, state: RankState, *buffers: torch.Tensor) -> None:
    """Count what was issued; sizes are of the program's type, whatever type a proof runs in."""
    elements = max(x.numel() for x in buffers)
    state.counts[op.kind, op.axis, int(elements * op.x.itemsize)] += 1


def _collective(op: Collective, state: RankState, *, dies: bool) -> Step:
    fetch, group = fetcher((op.x,), state), state.groups[op.axis]
    shape, name = shape_of(op.out), op.out.name

    def step(here: Here) -> None:
        if op.kind == "broadcast" and op.x.name not in state.values:
            state.values[op.x.name] = zeros(op.x, state)
        x = fetch(here)[0]
        alone = x._base is None and x.is_contiguous()  # noqa: SLF001  # no view of another
        noted = _sending(op, x, group, state)
        made = _exchange(op, x.contiguous(), shape, group, in_place=dies and alone)
        state.values[name] = made
        _count(op, state, x, made)
        noted(made)

    return step


def _exchange(
    op: Collective, x: torch.Tensor, shape: tuple[int, ...], group: Group, *, in_place: bool
) -> torch.Tensor:
    handle = group.handle
    match op.kind:
        case "all_reduce":
            made = x if in_place else x.clone()
            dist.all_reduce(made, group=handle)
        case "broadcast":
            made = x if in_place or op.x.name == op.out.name else x.clone()
            dist.broadcast(made, src=group.ranks[op.root], group=handle)
        case "all_gather":
            made = x.new_empty(shape)
            _ALL_GATHER(made, x, group=handle)
        case "reduce_scatter":
            made = x.new_empty(shape)
            _REDUCE_SCATTER(made, x, group=handle)
        case "all_to_all":
            made = x.new_empty(shape)
            dist.all_to_all_single(made, x, group=handle)
        case _:
            raise AssertionError(f"no strategy emits {op.kind}")
    return made


def _handed_on(op: SendReceive, state: RankState) -> Step:
    """Send to the next stage of a pipeline; nothing reaches the first."""
    fetch, group = fetcher((op.x,), state), state.groups[op.axis]

    def step(here: Here) -> None:
        x = fetch(here)[0].contiguous()
        noted = _sending(op, x, group, state)
        out = x if op.ends and group.place == 0 else torch.empty_like(x)
        _pass_on(op, x, out, group)
        state.values[op.out.name] = out
        noted(out)
        _count(op, state, x)

    return step


def _pass_on(
    op: SendReceive, x: torch.Tensor, out: torch.Tensor, group: Group, *, later: bool = False
) -> dist.Work | None:
    """Send to one rank and receive from one: an all-to-all in which the others get nothing.

    To NCCL it is the same pair of a send and a receive, but PyTorch issues it in one call, where
    its batches of sends take the host several times as long.
    """
    to, come = group.place + op.offset, group.place - op.offset
    sends, receives = [0] * group.degree, [0] * group.degree
    if not op.ends or 0 <= to < group.degree:
        sends[to % group.degree] = x.numel()
    if not op.ends or 0 <= come < group.degree:
        receives[come % group.degree] = out.numel()
    return dist.all_to_all_single(
        out.view(-1)[: sum(receives)],
        x.view(-1)[: sum(sends)],
        receives,
        sends,
        group=group.handle,
        async_op=later,
    )


def _beside(op: SendReceive, state: RankState, number: int, *, following: bool) -> Step:
    """Send while compute goes on; whoever reads what arrives waits for it.

    What arrives lies in a buffer of its own that every layer uses again. It is free by then: the
    first send of a layer waits for the compute before it, and later ones follow on their stream.
    """
    fetch, group = fetcher((op.x,), state), state.groups[op.axis]

    def step(here: Here) -> None:
        x = fetch(here)[0].contiguous()
        if state.lane is None:
            if following:
                state.pending.pop(op.x.name).wait()
            noted, out = _sending(op, x, group, state), torch.empty_like(x)
            work = _pass_on(op, x, out, group, later=True)
            assert work is not None
            wait = partial(_arrive, work, partial(noted, out), state)
        else:
            key = (number, tuple(x.shape), x.dtype)
            out = state.buffers.get(key, x)
            if out is x:
                out = state.buffers[key] = torch.empty_like(x)
            wait = _on_lane(op, state, (x, out), group, following=following)
        state.pending[op.out.name] = Pending(wait, x)
        state.values[op.out.name] = out
        _count(op, state, x)

    return step


def _arrive(work: dist.Work, noted: Callable[[], None], state: RankState) -> None:
    state.progress.waits()
    work.wait()
    state.progress.waits(now=False)
    noted()


def _on_lane(
    op: SendReceive,
    state: RankState,
    buffers: tuple[torch.Tensor, torch.Tensor],
    group: Group,
    *,
    following: bool,
) -> "partial[None]":
    lane, current = state.lane, torch.cuda.current_stream()
    if not following:
        lane.wait_event(current.record_event())
    with torch.cuda.stream(lane):
        noted = _sending(op, buffers[0], group, state)
        _pass_on(op, *buffers, group)
        noted(buffers[1])
        done = lane.record_event()
    return partial(current.wait_event, done)


def waits(names: Sequence[str], state: RankState) -> list[Step]:
    """Make a step that waits for messages under way, if there are any."""
    awaited = tuple(names)

    def step(here: Here) -> None:
        del here
        for name in awaited:
            arrived = state.pending.pop(name, None)
            if arrived is not None:
                arrived.wait()

    return [step] if awaited else []
