"""Collectives and sends as steps: on the compute stream, or beside it on a stream of their own."""

from functools import partial
from typing import Final

import torch
import torch.distributed as dist

from costmodels.program.ops import Collective, SendReceive
from validate.torch.liveness import Lived
from validate.torch.setting import shape_of
from validate.torch.state import Group, Here, Machine, Pending, Step, zeros
from validate.torch.steps import fetcher

_ALL_GATHER: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Renamed in PyTorch 2.13."""


def message(lived: Lived, machine: Machine, number: int, *, following: bool) -> Step:
    """Make a step of a collective or a send.

    Parameters
    ----------
    number : of the send in its body, which has a buffer of its own.
    following : whether what is sent is itself still on its way here.
    """
    op = lived.item
    assert isinstance(op, Collective | SendReceive)
    if isinstance(op, Collective):
        step = _collective(op, machine, dies=op.x.name in lived.frees)
    elif op.stream == "comm" and not machine.serial:
        step = _beside(op, machine, number, following=following)
    else:
        step = _handed_on(op, machine)
    return _told(_freed(step, lived, machine), op, machine)


def _told(step: Step, op: Collective | SendReceive, machine: Machine) -> Step:
    kind = op.kind if isinstance(op, Collective) else "send_recv"
    text, tell = f"{kind} {op.axis} {op.out.name}".encode(), machine.tell
    inner = machine.around(step, "communication", op.stream)

    def told(here: Here) -> None:
        tell(text)
        inner(here)

    return told


def _freed(step: Step, lived: Lived, machine: Machine) -> Step:
    gone = tuple(lived.frees)

    def both(here: Here) -> None:
        step(here)
        for name in gone:
            machine.values.pop(name, None)

    return both


def _count(op: Collective | SendReceive, machine: Machine, *buffers: torch.Tensor) -> None:
    """Count what was issued; sizes are of the program's type, whatever type a proof runs in."""
    kind = op.kind if isinstance(op, Collective) else "send_recv"
    elements = max(x.numel() for x in buffers)
    machine.counts[kind, op.axis, int(elements * op.x.itemsize)] += 1


def _collective(op: Collective, machine: Machine, *, dies: bool) -> Step:
    fetch, group = fetcher((op.x,), machine), machine.groups[op.axis]
    shape, name = shape_of(op.out), op.out.name

    def step(here: Here) -> None:
        if op.kind == "broadcast" and op.x.name not in machine.values:
            machine.values[op.x.name] = zeros(op.x, machine)
        x = fetch(here)[0]
        made = _exchange(op, x.contiguous(), shape, group, in_place=dies and _alone(x))
        machine.values[name] = made
        _count(op, machine, x, made)

    return step


def _alone(x: torch.Tensor) -> bool:
    """Whether a tensor is no view of another, and may be overwritten when nobody reads it."""
    return x._base is None and x.is_contiguous()  # noqa: SLF001  # PyTorch's own name for it


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


def _handed_on(op: SendReceive, machine: Machine) -> Step:
    """Send to the next stage of a pipeline; nothing reaches the first."""
    fetch, group = fetcher((op.x,), machine), machine.groups[op.axis]

    def step(here: Here) -> None:
        x = fetch(here)[0].contiguous()
        out = x if op.ends and group.place == 0 else torch.empty_like(x)
        _pass_on(op, x, out, group)
        machine.values[op.out.name] = out
        _count(op, machine, x)

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


def _beside(op: SendReceive, machine: Machine, number: int, *, following: bool) -> Step:
    """Send while compute goes on; whoever reads what arrives waits for it.

    What arrives lies in a buffer of its own that every layer uses again. It is free by then: the
    first send of a layer waits for the compute before it, and later ones follow on their stream.
    """
    fetch, group = fetcher((op.x,), machine), machine.groups[op.axis]

    def step(here: Here) -> None:
        x = fetch(here)[0].contiguous()
        if machine.lane is None:
            if following:
                machine.pending.pop(op.x.name).wait()
            out = torch.empty_like(x)
            work = _pass_on(op, x, out, group, later=True)
            assert work is not None
            wait = work.wait
        else:
            key = (number, tuple(x.shape), x.dtype)
            out = machine.buffers.get(key, x)
            if out is x:
                out = machine.buffers[key] = torch.empty_like(x)
            wait = _on_lane(op, machine, (x, out), group, following=following)
        machine.pending[op.out.name] = Pending(wait, x)
        machine.values[op.out.name] = out
        _count(op, machine, x)

    return step


def _on_lane(
    op: SendReceive,
    machine: Machine,
    buffers: tuple[torch.Tensor, torch.Tensor],
    group: Group,
    *,
    following: bool,
) -> "partial[None]":
    lane, current = machine.lane, torch.cuda.current_stream()
    if not following:
        lane.wait_event(current.record_event())
    with torch.cuda.stream(lane):
        _pass_on(op, *buffers, group)
        done = lane.record_event()
    return partial(current.wait_event, done)


def waiting(names: tuple[str, ...], machine: Machine) -> Step:
    """Make a step that waits for messages under way."""

    def step(here: Here) -> None:
        del here
        for name in names:
            arrived = machine.pending.pop(name, None)
            if arrived is not None:
                arrived.wait()

    return step
