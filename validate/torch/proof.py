"""Is a plan right? One rank's result beside the reference's, on the reference's own numbers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final, cast

import numpy as np
import torch

from costmodels.program import Communication, Program, turns
from planner.lowering import lower
from planner.models import Model
from planner.request.plan import Plan
from planner.request.workload import Workload
from topology.base.values import dataclass
from validate.launch import Progress, unheard
from validate.reference.run import run_plan
from validate.reference.weights import Array, Source, own_samples
from validate.torch.fuse import Fuser
from validate.torch.rank_state import CountKey, Handles, RankState, make_groups
from validate.torch.routine import make_routines, play
from validate.torch.sent import Sent, untrue
from validate.torch.setting import Setting
from validate.torch.weights import Given, Weights, from_source, inputs_from_source

BOUNDS: Final = {
    torch.float64: 1 / 2**30,
    torch.float32: 1 / 2**14,
    torch.float16: 0.01,
    torch.bfloat16: 0.05,
}
"""Largest relative error, of the root mean square, that rounding explains."""
QUANTISED_BOUND: Final = 0.2
"""The same where layers multiply in 8 bits."""
EXPERTS_FACTOR: Final = 4
"""Times as much in 16 bits where rows choose experts: near a tie they choose another one."""


Say = Callable[[str, object], list[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedWork:
    """A model, a request and a plan."""

    model: Model
    workload: Workload
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """One process among all ranks.

    lane : stream for messages beside compute, on GPUs. progress : told of every message, and in a
    proof of every operation, before it starts.
    """

    rank: int
    world: int
    handles: Handles
    lane: object = None
    progress: Progress = field(default_factory=unheard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """How far a rank's result is from the unsplit one, and whether it said all it should.

    error : relative, of the root mean square over the whole result.
    miscounted : collectives whose number or size is not what the program has. untrue : the first
        message that gave something else than was sent.
    """

    error: float
    bound: float
    miscounted: tuple[str, ...] = ()
    untrue: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.bound and not self.miscounted and not self.untrue


def program_of(work: ProvedWork, rank: int) -> Program:
    """Lower a work for one rank."""
    index = work.plan.index_of(rank % work.plan.gpus)
    return lower(work.model, work.workload, work.plan, index.get("pp"), ordered=True)


def setting_for(work: ProvedWork, rank: int, device: torch.device, dtype: torch.dtype) -> Setting:
    """Say where and how a rank computes its part of a work; 16 bits may mean 8 in its layers."""
    return Setting(
        device=device,
        dtype=dtype,
        index=work.plan.index_of(rank % work.plan.gpus),
        replica=work.plan.replica_of(rank % work.plan.gpus),
        quantised=work.workload.precision == "fp8" and dtype.itemsize == 2,
    )


def check(
    work: ProvedWork,
    comm: Comm,
    setting: Setting,
    *,
    fuser: Fuser | None = None,
    whole: Array | None = None,
    say: Say | None = None,
) -> Checked:
    """Run one rank of a plan on the reference's numbers and compare with the unsplit reference.

    whole : the unsplit result where it is known already. say : tells all ranks something, and
    returns what each says, in their order; without it messages are not judged.
    """
    if whole is None:
        whole = unsplit(work)
    source, batch = Source(), int(np.asarray(work.workload.batch))
    weights, inputs = from_source(source, setting), inputs_from_source(source, setting, batch)
    state = state_for(work, comm, setting, weights, inputs, fuser=fuser, checked=True)
    output = result(state)
    own_share = own_samples(whole, work.plan.replicas, setting.replica)
    expected = expected_counts(state.program)
    return Checked(
        error=0.0 if output is None else _error(output, state, own_share),
        bound=bound_of(work.model, setting),
        miscounted=tuple(differences(state.counts, expected)),
        untrue=_first_untrue(state.sent, comm.rank, say) if say else "",
    )


def _first_untrue(sent: Sequence[Sent], rank: int, say: Say) -> str:
    """Judge each message of a rank by what all ranks say of theirs; the first wrong one of all."""
    replies = say("messages", [entry.words() for entry in sent])
    faults = [entry for entry in say("judged", untrue(sent, replies, rank)) if entry]
    return min(cast("list[tuple[int, str]]", faults))[1] if faults else ""


def bound_of(model: Model, setting: Setting) -> float:
    """Largest error that the types of a setting explain for a model."""
    towers = [tower for block in model.blocks for tower in block.towers]
    routed = any(tower.ffn and tower.ffn.experts for tower in towers)
    if setting.quantised:
        return QUANTISED_BOUND
    is_half = setting.dtype.itemsize == 2
    return BOUNDS[setting.dtype] * (EXPERTS_FACTOR if routed and is_half else 1)


def unsplit(work: ProvedWork) -> Array:
    """Run the model on one rank of the reference; 64 bits."""
    return run_plan(work.model, work.workload, Plan())[0]


def state_for(  # noqa: PLR0913  # all that a rank is made of
    work: ProvedWork,
    comm: Comm,
    setting: Setting,
    weights: Weights,
    given: Given,
    *,
    fuser: Fuser | None,
    checked: bool = False,
) -> RankState:
    """Put a rank together, with the weights and inputs that it is to work on."""
    return RankState(
        setting=setting,
        program=program_of(work, comm.rank),
        groups=make_groups(work.plan, comm.rank, comm.world, comm.handles),
        weights=weights,
        given=given,
        passes=work.workload.passes // work.plan.degree("cfg"),
        fuser=fuser,
        lane=comm.lane,
        progress=comm.progress,
        checked=checked,
        room=int(np.asarray(work.workload.output_tokens)),
    )


@torch.no_grad()
def result(state: RankState) -> torch.Tensor | None:
    """Run a program once; None where a pipeline stage does not have the result."""
    state.begin()
    for routine in make_routines(state).values():
        play(routine, state)
    return state.values.get(state.program.output.name)


def _error(got: torch.Tensor, state: RankState, want: Array) -> float:
    """Relative error of what was computed: of the latents, only what the steps changed counts."""
    values = got.to("cpu", torch.float64).numpy()
    output = state.program.output
    if output in state.program.inputs:
        start = state.given(output, 0).to("cpu", torch.float64).numpy()
        values, want = values - start, want - start
    if not np.all(np.isfinite(values)):
        return float("inf")
    return float(np.linalg.norm(values - want) / np.linalg.norm(want))


def expected_counts(program: Program) -> Counter[CountKey]:
    """Count collectives by kind, axis and bytes, as often as a program's loops say."""
    counts: Counter[CountKey] = Counter()
    for stage in program.transformer:
        for op, loops in stage.nested():
            if isinstance(op, Communication):
                counts[op.kind, op.axis, int(op.message_bytes)] += turns(loops)
    return +counts  # without what is never run


def differences(got: Counter[CountKey], want: Counter[CountKey]) -> list[str]:
    """Say in words where collectives were issued more or less often than a program has them.

    >>> differences(Counter({("all_reduce", "tp", 8): 2}), Counter({("all_reduce", "tp", 8): 3}))
    ['all_reduce tp of 8 bytes: 2 times, wanted 3']
    """
    return [
        f"{kind} {axis} of {size} bytes: {got[kind, axis, size]} times, "
        f"wanted {want[kind, axis, size]}"
        for kind, axis, size in sorted(got.keys() | want.keys())
        if got[kind, axis, size] != want[kind, axis, size]
    ]
