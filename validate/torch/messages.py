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
        step = _send_beside(op, state, number, following=following)
    else:
        step = _stage_send(op, state)
    return _announced(freeing(step, lived.frees, state), op, state)


def _announced(step: Step, op: Communication, state: RankState) -> Step:
    """Tell of a message before it starts."""
    text, progress = f"{op.kind} {op.axis} {op.out.name}".encode(), state.progress
    ranks, inner = state.groups[op.axis].ranks, state.around(step, "communication", op.stream)

    def told(position: Here) -> None:
        progress.message(text, ranks)
        inner(position)
        progress.waits(now=False)

    return told


def _note_sent(op: Communication, x: torch.Tensor, group: Group, state: RankState) -> Noted:
    return sending(op, x, group.ranks, state.sent if state.checked else None)


def _count(op: Communication, state: RankState, *buffers: torch.Tensor) -> None:
    """Count what was issued; sizes are of the program's type, whatever type a proof runs in."""
    elements = max(x.numel() for x in buffers)
    state.counts[op.kind, op.axis, int(elements * op.x.itemsize)] += 1


def _collective(op: Collective, state: RankState, *, dies: bool) -> Step:
    fetch, group = fetcher((op.x,), state), state.groups[op.axis]
    shape, name = shape_of(op.out), op.out.name

    def step(position: Here) -> None:
        if op.kind == "broadcast" and op.x.name not in state.values:
            state.values[op.x.name] = zeros(op.x, state)
        x = fetch(position)[0]
        owns_memory = x._base is None and x.is_contiguous()  # noqa: SLF001  # no view of another
        note_result = _note_sent(op, x, group, state)
        received = _exchange(op, x.contiguous(), shape, group, in_place=dies and owns_memory)
        state.values[name] = received
        _count(op, state, x, received)
        note_result(received)

    return step


def _exchange(
    op: Collective, x: torch.Tensor, shape: tuple[int, ...], group: Group, *, in_place: bool
) -> torch.Tensor:
    handle = group.handle
    match op.kind:
        case "all_reduce":
            received = x if in_place else x.clone()
            dist.all_reduce(received, group=handle)
        case "broadcast":
            received = x if in_place or op.x.name == op.out.name else x.clone()
            dist.broadcast(received, src=group.ranks[op.root], group=handle)
        case "all_gather":
            received = x.new_empty(shape)
            _ALL_GATHER(received, x, group=handle)
        case "reduce_scatter":
            received = x.new_empty(shape)
            _REDUCE_SCATTER(received, x, group=handle)
        case "all_to_all":
            received = x.new_empty(shape)
            dist.all_to_all_single(received, x, group=handle)
        case _:
            raise AssertionError(f"no strategy emits {op.kind}")
    return received


def _stage_send(op: SendReceive, state: RankState) -> Step:
    """Send to the next stage of a pipeline; nothing reaches the first."""
    fetch, group = fetcher((op.x,), state), state.groups[op.axis]

    def step(position: Here) -> None:
        x = fetch(position)[0].contiguous()
        note_result = _note_sent(op, x, group, state)
        out = x if op.ends and group.place == 0 else torch.empty_like(x)
        _pass_on(op, x, out, group)
        state.values[op.out.name] = out
        note_result(out)
        _count(op, state, x)

    return step


def _pass_on(
    op: SendReceive, x: torch.Tensor, out: torch.Tensor, group: Group, *, later: bool = False
) -> dist.Work | None:
    """Send to one rank and receive from one: an all-to-all in which the others get nothing.

    To NCCL it is the same pair of a send and a receive, but PyTorch issues it in one call, where
    its batches of sends take the host several times as long.
    """
    target, origin = group.place + op.offset, group.place - op.offset
    sends, receives = [0] * group.degree, [0] * group.degree
    if not op.ends or 0 <= target < group.degree:
        sends[target % group.degree] = x.numel()
    if not op.ends or 0 <= origin < group.degree:
        receives[origin % group.degree] = out.numel()
    return dist.all_to_all_single(
        out.view(-1)[: sum(receives)],
        x.view(-1)[: sum(sends)],
        receives,
        sends,
        group=group.handle,
        async_op=later,
    )


def _send_beside(op: SendReceive, state: RankState, number: int, *, following: bool) -> Step:
    """Send while compute goes on; whoever reads what arrives waits for it.

    What arrives lies in a buffer of its own that every layer uses again. It is free by then: the
    first send of a layer waits for the compute before it, and later ones follow on their stream.
    """
    fetch, group = fetcher((op.x,), state), state.groups[op.axis]

    def step(position: Here) -> None:
        x = fetch(position)[0].contiguous()
        if state.lane is None:
            if following:
                state.pending.pop(op.x.name).wait()
            note_result, out = _note_sent(op, x, group, state), torch.empty_like(x)
            work = _pass_on(op, x, out, group, later=True)
            assert work is not None
            wait = partial(_arrive, work, partial(note_result, out), state)
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


def _arrive(work: dist.Work, note_result: Callable[[], None], state: RankState) -> None:
    state.progress.waits()
    work.wait()
    state.progress.waits(now=False)
    note_result()


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
        note_result = _note_sent(op, buffers[0], group, state)
        _pass_on(op, *buffers, group)
        note_result(buffers[1])
        finished = lane.record_event()
    return partial(current.wait_event, finished)


def waits(names: Sequence[str], state: RankState) -> list[Step]:
    """Make a step that waits for messages under way, if there are any."""
    awaited = tuple(names)

    def step(position: Here) -> None:
        del position
        for name in awaited:
            pending = state.pending.pop(name, None)
            if pending is not None:
                pending.wait()

    return [step] if awaited else []
