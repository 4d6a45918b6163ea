"""One case on one rank: weights, proof, warm-up, steps against the clock, and a look inside."""

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final, cast

import numpy as np
import torch

from costmodels import memory
from costmodels.program import Attention, Loop
from topology.base import InputError
from topology.base.values import dataclass
from validate.launch import Progress
from validate.plans.cases import Case, Mode, Subject
from validate.plans.measured import Measured
from validate.torch import proof
from validate.torch.attention import kernel_for, shape_for
from validate.torch.fuse import Fuser
from validate.torch.perturb import perturbed
from validate.torch.proof import Comm, ProvedWork
from validate.torch.rank_state import CountKey, RankState
from validate.torch.rendezvous import Rendezvous
from validate.torch.routine import Routine, make_routines, play
from validate.torch.timing import Clock, RepeatTimes, clock_of, look_inside, repeat, repeats_for
from validate.torch.weights import drawn, fitting, inputs_drawn

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Type of activations at a precision; at fp8 layers multiply in 8 bits."""
COMPILE_S: Final = 300
STEP_S: Final = 120
DRAWS: Final = 3
"""Steps that round otherwise, to see how far they may come apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What stays the same from case to case on one rank."""

    comm: Comm
    rendezvous: Rendezvous
    progress: Progress
    device: torch.device
    fuser: Fuser
    budget_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one rank found.

    row : times, memory and counts; nothing is judged yet. miscounted : collectives that the program
    has otherwise. output : of a step as it was timed. plain : of the same step with kernels called
    one by one, where it was timed otherwise. perturbed : of such steps that round otherwise. Both
    are of the first case that a result is known of.
    """

    row: Measured
    miscounted: tuple[str, ...]
    output: torch.Tensor | None
    plain: torch.Tensor | None = None
    perturbed: tuple[torch.Tensor, ...] = ()


@torch.no_grad()
def run_case(subject: Subject, bench: Bench, name: str, *, first: bool = False) -> Ran:
    """Time one case on this rank; all ranks must call it together.

    name : of the case among all, for what the ranks say to each other.
    first : take steps with kernels called one by one before, to compare with.
    """
    progress, stage = bench.progress, subject.case.stage
    clock = clock_of(bench.device, progress)
    progress.phase(f"weights of {name}", STEP_S)
    _collect(bench.device)
    state = state_of(subject, bench)
    progress.phase(f"warm-up of {name}", COMPILE_S)
    plain, others = _beforehand(subject, state, first=first)
    bench.fuser.begin()
    step = step_of(make_routines(state)[stage], state)
    counts = _counted(step, state, clock)
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = perf_counter()
    if subject.case.mode == "graph" and bench.device.type == "cuda":
        progress.phase(f"capture of {name}", STEP_S)
        step = _captured(step)
    capture_s, once = perf_counter() - begun, repeat(step, 1, clock)
    output = _result(state)
    slowest = max(cast("list[float]", bench.rendezvous.say(f"{name}: one step", once.median)))
    count = repeats_for(slowest, bench.budget_s)
    progress.phase(f"timing of {name}", 60 + 3 * count * slowest)
    times, memory_held = repeat(step, count, clock), _memory(bench.device)
    del step
    progress.phase(f"classes of {name}", 60 + 20 * slowest)
    inside = look_inside(
        subject,
        state,
        clock,
        slowest,
        lambda late: any(bench.rendezvous.say(f"{name}: behind", late)),
    )
    classes, waiting = inside.merged(
        bench.rendezvous.say(f"{name}: classes", list(inside.messages))
    )
    row = replace(
        _timed(subject.case, times, memory_held),
        classes_s=classes,
        classes_by=inside.how,
        waiting_s=waiting,
        compile_s=sum(bench.fuser.spent),
        capture_s=capture_s,
        counts={" ".join(map(str, key)): count for key, count in sorted(counts.items())},
        distinct_layers=state.weights.distinct,
        kernels=_kernels(state, stage),
    )
    wanted = proof.expected_counts(replace(state.program, stages=tuple(_loops(state, stage))))
    miscounted = tuple(proof.differences(counts, wanted))
    return Ran(row=row, miscounted=miscounted, output=output, plain=plain, perturbed=others)


def _timed(case: Case, times: RepeatTimes, memory_held: tuple[float, float, float]) -> Measured:
    """Begin a row with its times and its memory."""
    return Measured(
        case=case,
        status="done",
        step_s=times.median,
        mean_s=times.mean,
        wall_s=times.wall,
        low_s=min(times.each),
        high_s=max(times.each),
        repeats=len(times.each),
        memory_bytes=memory_held[0],
        reserved_bytes=memory_held[1],
        process_bytes=memory_held[2],
    )


def state_of(subject: Subject, bench: Bench) -> RankState:
    """Put a rank together, with weights drawn on its device."""
    work = ProvedWork(model=subject.model, workload=subject.workload, plan=subject.plan)
    dtype = dtype_of(subject.case.precision)
    setting = proof.setting_for(work, bench.comm.rank, bench.device, dtype)
    stages = proof.program_of(work, bench.comm.rank).transformer
    weights = drawn(setting, _distinct(stages, bench.device))
    given = inputs_drawn(setting, int(np.asarray(subject.workload.batch)))
    fuser = fuser_for(subject.case.mode, bench.fuser)
    state = proof.state_for(work, bench.comm, setting, weights, given, fuser=fuser)
    weights.prepare(stages)
    return state


def fuser_for(mode: Mode, fuser: Fuser) -> Fuser | None:
    """Choose what is compiled: nothing, element-wise work that a graph replays, or products too."""
    return None if mode == "eager" else fuser.taking(products=mode == "compile")


def dtype_of(precision: str) -> torch.dtype:
    """Look up the type of activations.

    Raises InputError if a precision can be priced but not run.
    """
    if precision not in DTYPES:
        raise InputError(f"precision: got {precision}, wanted {', '.join(DTYPES)} to run")
    return DTYPES[precision]


def _distinct(stages: Sequence[Loop], device: torch.device) -> int:
    """Layers that can have weights of their own in what memory is free."""
    if device.type != "cuda":
        return 0
    free = torch.cuda.mem_get_info()[0]
    moving = max(float(np.max(memory.activations(stage))) for stage in stages)
    layers = max(_layers(stage) for stage in stages)
    return fitting(
        layers,
        memory.weights(stages),
        0.93 * free - 1.3 * moving - float(np.max(memory.caches(stages))),
    )


def _layers(loop: Loop) -> int:
    own = loop.first + int(np.asarray(loop.count)) if loop.layers else 1
    inner = [_layers(item) for item in loop.body if isinstance(item, Loop)]
    return max([own, *inner])


def _ahead_of(stage: str, state: RankState) -> None:
    """Run what comes before the stage that is timed: a text tower, or the prefill of a decode."""
    plain = replace(state, fuser=None)
    routines = make_routines(plain)
    for other in ("text_tower", "prefill"):
        if other in routines and other != stage:
            plain.begin()
            play(routines[other], plain)


def _plain(stage: str, state: RankState) -> torch.Tensor | None:
    """Take one step with kernels called one by one; what it gave. Nothing of it is counted."""
    plain = replace(state, fuser=None, counts=Counter())
    back = plain.marked()
    step_of(make_routines(plain)[stage], plain)()
    output = _result(plain)
    back()
    plain.values.clear()
    return output


def _beforehand(
    subject: Subject, state: RankState, *, first: bool
) -> tuple[torch.Tensor | None, tuple[torch.Tensor, ...]]:
    """Run what comes before a step; of the first case, take it by kernels called one by one too.

    Returns what that gave where the case is another, and what it gave rounded otherwise.
    """
    stage, others = subject.case.stage, []
    for seed in range(DRAWS if first else 0):
        moved = perturbed(state, seed)
        _ahead_of(stage, moved)
        others.append(_plain(stage, moved))
    _ahead_of(stage, state)
    plain = _plain(stage, state) if first and subject.case.mode != "eager" else None
    return plain, tuple(output for output in others if output is not None)


def step_of(routine: Routine, state: RankState) -> Callable[[], None]:
    """Make a step that can be taken again: it starts from the same latents and the same cache."""
    back = state.marked()

    def step() -> None:
        state.begin()
        back()
        play(routine, state)

    return step


def _counted(step: Callable[[], None], state: RankState, clock: Clock) -> Counter[CountKey]:
    """Take the first step, which compiles, and count what it issues."""
    before = Counter(state.counts)
    step()
    clock.wait()
    return state.counts - before


def _loops(state: RankState, stage: str) -> list[Loop]:
    return [loop for loop in state.program.stages if loop.name == stage]


def _kernels(state: RankState, stage: str) -> str:
    """Name the attention kernels of a stage."""
    names = {
        kernel_for(shape_for(op, state.setting))
        for loop in _loops(state, stage)
        for op in loop.walk()
        if isinstance(op, Attention)
    }
    return " ".join(sorted(names))


def _result(state: RankState) -> torch.Tensor | None:
    """Bring what a step gave to the host: the change of the latents, or the scores."""
    output = state.program.output
    made = state.values.get(output.name)
    if made is None:
        return None
    if output.name in {tensor.name for tensor in state.program.inputs}:
        made = made.float() - state.given(output, 0).float()
    return made.float().cpu()


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """Record a step as a CUDA graph; the way to replay it."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def _collect(device: torch.device) -> None:
    """Give back what an earlier case held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _memory(device: torch.device) -> tuple[float, float, float]:
    """Most bytes of tensors, of PyTorch's pools, and of the device in all."""
    if device.type != "cuda":
        return 0.0, 0.0, 0.0
    free, total = torch.cuda.mem_get_info()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return float(allocated), float(reserved), float(total - free)
