"""What one rank holds while it runs a program, and the groups of ranks that it talks to."""

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import field, replace
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from costmodels.price import Class
from costmodels.program import Program, Tensor
from planner.request.plan import Plan
from topology.base.values import dataclass
from validate.launch import Progress, unheard
from validate.reference.run import Here, shape_of
from validate.torch.fuse import Fuser
from validate.torch.sent import Sent
from validate.torch.setting import Setting
from validate.torch.weights import Given, Weights

Handles = MutableMapping[tuple[int, ...], "dist.ProcessGroup | None"]
"""Process groups by their ranks, kept for the plans that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks along one axis that this rank is among. place : its own number there."""

    axis: str
    ranks: tuple[int, ...]
    place: int
    handle: "dist.ProcessGroup | None"

    @property
    def degree(self) -> int:
        return len(self.ranks)


def make_groups(plan: Plan, rank: int, world: int, handles: Handles) -> Mapping[str, Group]:
    """Make the groups of a plan; all ranks must call this for the same plans in the same order.

    When there are more ranks than the plan has, each further `plan.gpus` of them run it again.
    """
    groups: dict[str, Group] = {}
    for axis, _ in plan.axes:
        for base in range(0, world, plan.gpus):
            for number in range(plan.gpus):
                ranks = tuple(base + r for r in plan.ranks_along(axis, number))
                if ranks not in handles:
                    handles[ranks] = _handle(ranks, world)
                if rank in ranks:
                    groups[axis] = Group(
                        axis=axis, ranks=ranks, place=ranks.index(rank), handle=handles[ranks]
                    )
    return groups


def _handle(ranks: tuple[int, ...], world: int) -> "dist.ProcessGroup | None":
    if ranks == tuple(range(world)):
        return dist.group.WORLD
    return cast("dist.ProcessGroup", dist.new_group(list(ranks)))


Step = Callable[[Here], None]
Around = Callable[[Step, Class, str], Step]
"""What an instrumented run puts around the steps of a class on a stream."""

CountKey = tuple[str, str, int]
"""A collective as it is counted: kind, axis, and bytes of the larger of a rank's two buffers."""


class Pending(NamedTuple):
    """A message under way: how to wait for it, and what must not be let go until then."""

    wait: Callable[[], None]
    held: torch.Tensor


def _unwrapped(step: Step, kind: Class, stream: str) -> Step:
    del kind, stream
    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank and all it needs to run its program.

    passes : forwards that a step has on this rank.
    fuser : compiler of neighbouring operations; None to call kernels one by one.
    lane : stream of messages that run beside compute; None where there are no streams.
    values, kept, lengths : tensors by name; keys and values of a layer and forward, and how many
        rows of them are filled. states : what recurrences of a layer and forward have come to.
    counts : collectives that were issued. progress : told of every message before it starts.
    around, ahead : put around every step, and before every layer, of an instrumented run.
    serial : messages beside compute are exchanged on its stream instead. checked : what steps make
        is compared with what the program says, and messages with what was sent. room : rows that a
        cache may grow by. sent : messages of a checked run, in their order.
    """

    setting: Setting
    program: Program
    groups: Mapping[str, Group]
    weights: Weights
    given: Given
    passes: int
    fuser: Fuser | None = None
    lane: Any = None  # torch.cuda.Stream, which builds without CUDA do not have
    around: Around = _unwrapped
    ahead: Step | None = None
    serial: bool = False
    progress: Progress = field(default_factory=unheard)
    checked: bool = False
    room: int = 0
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    kept: dict[tuple[str, int, int], torch.Tensor] = field(default_factory=dict)
    lengths: dict[tuple[str, int, int], int] = field(default_factory=dict)
    states: dict[tuple[str, int, int], torch.Tensor] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    buffers: dict[tuple[int, tuple[int, ...], torch.dtype], torch.Tensor] = field(
        default_factory=dict
    )
    counts: Counter[CountKey] = field(default_factory=Counter)
    sent: list[Sent] = field(default_factory=list)

    @property
    def inputs(self) -> frozenset[str]:
        """Names that are given anew in every forward; the latents change and are not among them."""
        names = {tensor.name for tensor in self.program.inputs}
        return frozenset(names - {self.program.output.name})

    def idle(self, here: Here) -> bool:
        """Whether this rank's pipeline stage has no forward at this turn."""
        return not 0 <= here.turn < self.passes

    def marked(self) -> Callable[[], None]:
        """Remember how far sequences have come, and return what goes back to there."""
        lengths, states = dict(self.lengths), dict(self.states)

        def back() -> None:
            self.lengths.update(lengths)
            self.states.clear()
            self.states.update(states)

        return back

    def begin(self) -> None:
        """Start over from the first latents."""
        self.values.clear()
        self.pending.clear()
        output = self.program.output
        if output.name in {tensor.name for tensor in self.program.inputs}:
            self.values[output.name] = self.given(output, 0)

    def instrumented(self, around: Around, ahead: Step | None) -> "RankState":
        """Return the same rank with something put around its steps, one message at a time.

        Products are steps of their own then: what is compiled together has no class.
        """
        fuser = None if self.fuser is None else self.fuser.taking(products=False)
        return replace(self, around=around, ahead=ahead, serial=True, fuser=fuser)


def zeros(tensor: Tensor, state: RankState) -> torch.Tensor:
    """Make what an idle pipeline stage works on."""
    return torch.zeros(
        shape_of(tensor), dtype=state.setting.dtype_of(tensor), device=state.setting.device
    )
