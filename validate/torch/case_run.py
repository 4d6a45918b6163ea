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
from validate.torch.weights import drawn, fitting_layers, inputs_drawn

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
    _free_memory(bench.device)
    state = state_of(subject, bench)
    progress.phase(f"warm-up of {name}", COMPILE_S)
    plain_output, moved_outputs = _prepare_step(subject, state, first=first)
    bench.fuser.begin()
    step = step_of(make_routines(state)[stage], state)
    counts = _issued_counts(step, state, clock)
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = perf_counter()
    if subject.case.mode == "graph" and bench.device.type == "cuda":
        progress.phase(f"capture of {name}", STEP_S)
        step = _captured_step(step)
    capture_s, first_step = perf_counter() - start, repeat(step, 1, clock)
    output = _host_result(state)
    slowest = max(cast("list[float]", bench.rendezvous.say(f"{name}: one step", first_step.median)))
    count = repeats_for(slowest, bench.budget_s)
    progress.phase(f"timing of {name}", 60 + 3 * count * slowest)
    times, memory_held = repeat(step, count, clock), _peak_memory(bench.device)
    del step
    progress.phase(f"classes of {name}", 60 + 20 * slowest)
    step_profile = look_inside(
        subject,
        state,
        clock,
        slowest,
        lambda late: any(bench.rendezvous.say(f"{name}: behind", late)),
    )
    classes, waiting = step_profile.merged(
        bench.rendezvous.say(f"{name}: classes", list(step_profile.messages))
    )
    row = replace(
        _timed_row(subject.case, times, memory_held),
        classes_s=classes,
        classes_by=step_profile.how,
        waiting_s=waiting,
        compile_s=sum(bench.fuser.spent),
        capture_s=capture_s,
        counts={" ".join(map(str, key)): count for key, count in sorted(counts.items())},
        distinct_layers=state.weights.distinct,
        kernels=_kernel_names(state, stage),
    )
    expected = proof.expected_counts(
        replace(state.program, stages=tuple(_stage_loops(state, stage)))
    )
    miscounted = tuple(proof.differences(counts, expected))
    return Ran(
        row=row, miscounted=miscounted, output=output, plain=plain_output, perturbed=moved_outputs
    )


def _timed_row(case: Case, times: RepeatTimes, memory_held: tuple[float, float, float]) -> Measured:
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
    weights = drawn(setting, _distinct_layers(stages, bench.device))
    inputs = inputs_drawn(setting, int(np.asarray(subject.workload.batch)))
    fuser = fuser_for(subject.case.mode, bench.fuser)
    state = proof.state_for(work, bench.comm, setting, weights, inputs, fuser=fuser)
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


def _distinct_layers(stages: Sequence[Loop], device: torch.device) -> int:
    """Layers that can have weights of their own in what memory is free."""
    if device.type != "cuda":
        return 0
    free_bytes = torch.cuda.mem_get_info()[0]
    activation_bytes = max(float(np.max(memory.activations(stage))) for stage in stages)
    layers = max(_layers(stage) for stage in stages)
    return fitting_layers(
        layers,
        memory.weights(stages),
        0.93 * free_bytes - 1.3 * activation_bytes - float(np.max(memory.caches(stages))),
    )


def _layers(loop: Loop) -> int:
    own_count = loop.first + int(np.asarray(loop.count)) if loop.layers else 1
    inner = [_layers(item) for item in loop.body if isinstance(item, Loop)]
    return max([own_count, *inner])


def _run_earlier_stages(stage: str, state: RankState) -> None:
    """Run what comes before the stage that is timed: a text tower, or the prefill of a decode."""
    uncompiled = replace(state, fuser=None)
    routines = make_routines(uncompiled)
    for earlier in ("text_tower", "prefill"):
        if earlier in routines and earlier != stage:
            uncompiled.begin()
            play(routines[earlier], uncompiled)


def _plain_step(stage: str, state: RankState) -> torch.Tensor | None:
    """Take one step with kernels called one by one; what it gave. Nothing of it is counted."""
    uncompiled = replace(state, fuser=None, counts=Counter())
    restore = uncompiled.marked()
    step_of(make_routines(uncompiled)[stage], uncompiled)()
    output = _host_result(uncompiled)
    restore()
    uncompiled.values.clear()
    return output


def _prepare_step(
    subject: Subject, state: RankState, *, first: bool
) -> tuple[torch.Tensor | None, tuple[torch.Tensor, ...]]:
    """Run what comes before a step; of the first case, take it by kernels called one by one too.

    Returns what that gave where the case is another, and what it gave rounded otherwise.
    """
    stage, outputs = subject.case.stage, []
    for seed in range(DRAWS if first else 0):
        moved_state = perturbed(state, seed)
        _run_earlier_stages(stage, moved_state)
        outputs.append(_plain_step(stage, moved_state))
    _run_earlier_stages(stage, state)
    plain_output = _plain_step(stage, state) if first and subject.case.mode != "eager" else None
    return plain_output, tuple(output for output in outputs if output is not None)


def step_of(routine: Routine, state: RankState) -> Callable[[], None]:
    """Make a step that can be taken again: it starts from the same latents and the same cache."""
    restore = state.marked()

    def step() -> None:
        state.begin()
        restore()
        play(routine, state)

    return step


def _issued_counts(step: Callable[[], None], state: RankState, clock: Clock) -> Counter[CountKey]:
    """Take the first step, which compiles, and count what it issues."""
    old_counts = Counter(state.counts)
    step()
    clock.wait()
    return state.counts - old_counts


def _stage_loops(state: RankState, stage: str) -> list[Loop]:
    return [loop for loop in state.program.stages if loop.name == stage]


def _kernel_names(state: RankState, stage: str) -> str:
    """Name the attention kernels of a stage."""
    names = {
        kernel_for(shape_for(op, state.setting))
        for loop in _stage_loops(state, stage)
        for op in loop.walk()
        if isinstance(op, Attention)
    }
    return " ".join(sorted(names))


def _host_result(state: RankState) -> torch.Tensor | None:
    """Bring what a step gave to the host: the change of the latents, or the scores."""
    output = state.program.output
    value = state.values.get(output.name)
    if value is None:
        return None
    if output.name in {tensor.name for tensor in state.program.inputs}:
        value = value.float() - state.given(output, 0).float()
    return value.float().cpu()


def _captured_step(step: Callable[[], None]) -> Callable[[], None]:
    """Record a step as a CUDA graph; the way to replay it."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def _free_memory(device: torch.device) -> None:
    """Give back what an earlier case held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _peak_memory(device: torch.device) -> tuple[float, float, float]:
    """Most bytes of tensors, of PyTorch's pools, and of the device in all."""
    if device.type != "cuda":
        return 0.0, 0.0, 0.0
    free, total = torch.cuda.mem_get_info()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return float(allocated), float(reserved), float(total - free)
