"""One case on one rank: weights, proof, warm-up, steps against the clock, and a look inside."""

import gc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import numpy as np
import torch

from costmodels import memory
from costmodels.program.ops import Attention, Loop, Program
from topology.base import InputError
from validate.launch import Progress
from validate.plans.cases import Mode, Subject
from validate.torch.attention import kernel_for, shape_for
from validate.torch.fuse import Fuser
from validate.torch.proof import (
    Comm,
    Work,
    differences,
    expected_counts,
    program_of,
    setting_for,
)
from validate.torch.rendezvous import Meeting
from validate.torch.routine import SKIPPED, Routine, make_routines, play
from validate.torch.state import CountKey, Machine, make_groups
from validate.torch.timing import Clock, Times, clock_of, look_inside, repeat, repeats_for
from validate.torch.weights import drawn, fitting, inputs_drawn

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Type of activations at a precision; at fp8 layers multiply in 8 bits."""
COMPILE_S: Final = 300
STEP_S: Final = 120
BUDGET_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What stays the same from case to case on one rank."""

    comm: Comm
    meeting: Meeting
    progress: Progress
    device: torch.device
    fuser: Fuser
    budget_s: float = BUDGET_S
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one rank found.

    output : of a step as it was timed. plain : of the same step with kernels called one by one,
    where that was asked for.
    """

    times: Times
    classes: Mapping[str, float]
    waiting_s: float
    classes_by: str
    memory_bytes: float
    reserved_bytes: float
    process_bytes: float
    compile_s: float
    capture_s: float
    counts: Counter[CountKey]
    miscounted: tuple[str, ...]
    distinct: int
    kernels: str
    output: torch.Tensor | None
    plain: torch.Tensor | None


@torch.no_grad()
def run_case(subject: Subject, bench: Bench, name: str, *, plainly: bool = False) -> Ran:
    """Time one case on this rank; all ranks must call it together.

    Parameters
    ----------
    name : of the case among all, for what the ranks say to each other.
    plainly : take a step with kernels called one by one first, to compare with.
    """
    clock, progress, stage = clock_of(bench.device), bench.progress, subject.case.stage
    progress.phase(f"weights of {name}", STEP_S)
    _collect(bench.device)
    machine = machine_of(subject, bench)
    progress.phase(f"warm-up of {name}", COMPILE_S)
    _ahead_of(stage, machine)
    plain = _plain(stage, machine) if plainly else None
    bench.fuser.begin()
    step = step_of(make_routines(machine)[stage], machine)
    counts = _counted(step, machine, clock)
    _reset_peak(bench.device)
    begun = perf_counter()
    if subject.case.mode == "graph" and bench.device.type == "cuda":
        progress.phase(f"capture of {name}", STEP_S)
        step = _captured(step)
    capture_s, once = perf_counter() - begun, repeat(step, 1, clock)
    output = _result(machine)
    slowest = max(_floats(bench.meeting.say(f"{name}: one step", once.median)))
    count = repeats_for(slowest, bench.budget_s)
    progress.phase(f"timing of {name}", 60 + 3 * count * slowest)
    times, held = repeat(step, count, clock), _memory(bench.device)
    del step
    progress.phase(f"classes of {name}", 60 + 20 * slowest)
    looked = look_inside(
        subject,
        machine,
        clock,
        slowest,
        lambda so: any(bench.meeting.say(f"{name}: behind", so)),
    )
    classes, waiting = looked.merged(bench.meeting.say(f"{name}: classes", looked.words()))
    return Ran(
        times=times,
        classes=classes,
        waiting_s=waiting,
        classes_by=looked.how,
        memory_bytes=held[0],
        reserved_bytes=held[1],
        process_bytes=held[2],
        compile_s=sum(bench.fuser.spent),
        capture_s=capture_s,
        counts=counts,
        miscounted=tuple(differences(counts, _stage_counts(machine.program, stage))),
        distinct=machine.weights.distinct,
        kernels=_kernels(machine, stage),
        output=output,
        plain=plain,
    )


def _floats(words: list[object]) -> list[float]:
    return [float(word) for word in words]  # type: ignore[arg-type]  # what `say` was given


def machine_of(subject: Subject, bench: Bench) -> Machine:
    """Put a rank together, with weights drawn on its device."""
    work = Work(model=subject.model, workload=subject.workload, plan=subject.plan)
    dtype = bench.dtype or dtype_of(subject.case.precision)
    setting = setting_for(work, bench.comm.rank, bench.device, dtype)
    fuser = fuser_for(subject.case.mode, bench.fuser)
    program = program_of(work, bench.comm.rank)
    stages = tuple(stage for stage in program.stages if stage.name not in SKIPPED)
    machine = Machine(
        setting=setting,
        program=program,
        groups=make_groups(work.plan, bench.comm.rank, bench.comm.world, bench.comm.handles),
        weights=drawn(setting, _distinct(stages, bench.device)),
        given=inputs_drawn(setting, int(np.asarray(subject.workload.batch))),
        passes=subject.workload.passes // subject.plan.degree("cfg"),
        fuser=fuser,
        lane=bench.comm.lane,
        tell=bench.comm.tell,
        room=int(np.asarray(subject.workload.output_tokens)),
    )
    machine.weights.prepare(stages)
    return machine


def fuser_for(mode: Mode, fuser: Fuser) -> Fuser | None:
    """Choose what is compiled: nothing, row-wise work that a graph replays, or products too."""
    return None if mode == "eager" else fuser.taking(products=mode == "compile")


def dtype_of(precision: str) -> torch.dtype:
    """Look up the type of activations.

    Raises
    ------
    InputError
        If a precision can be priced but not run.
    """
    if precision not in DTYPES:
        raise InputError(f"precision: got {precision}, wanted {', '.join(DTYPES)} to run")
    return DTYPES[precision]


def _distinct(stages: tuple[Loop, ...], device: torch.device) -> int:
    """Layers that can have weights of their own in what memory is free."""
    if device.type != "cuda":
        return 0
    free = torch.cuda.mem_get_info()[0]
    moving = max(float(np.max(memory.activations(stage))) for stage in stages)
    layers = max(_layers(stage) for stage in stages)
    total = memory.weights(list(stages))
    each = dict.fromkeys(range(layers), total / layers)
    return fitting(each, 0.93 * free - 1.3 * moving - float(np.max(memory.caches(list(stages)))))


def _layers(loop: Loop) -> int:
    own = loop.first + int(np.asarray(loop.count)) if loop.layers else 1
    inner = [_layers(item) for item in loop.body if isinstance(item, Loop)]
    return max([own, *inner])


def _ahead_of(stage: str, machine: Machine) -> None:
    """Run what comes before the stage that is timed: a text tower, or the prefill of a decode."""
    plain = replace(machine, fuser=None)
    routines = make_routines(plain)
    for other in ("text_tower", "prefill"):
        if other in routines and other != stage:
            plain.begin()
            play(routines[other], plain)


def _plain(stage: str, machine: Machine) -> torch.Tensor | None:
    """Take one step with kernels called one by one; what it gave. Nothing of it is counted."""
    plain = replace(machine, fuser=None, counts=Counter())
    lengths = dict(plain.lengths)
    step_of(make_routines(plain)[stage], plain)()
    found = _result(plain)
    plain.lengths.update(lengths)
    plain.values.clear()
    return found


def step_of(routine: Routine, machine: Machine) -> Callable[[], None]:
    """Make a step that can be taken again: it starts from the same latents and the same cache."""
    lengths = dict(machine.lengths)

    def step() -> None:
        machine.begin()
        machine.lengths.update(lengths)
        play(routine, machine)

    return step


def _counted(step: Callable[[], None], machine: Machine, clock: Clock) -> Counter[CountKey]:
    """Take the first step, which compiles, and count what it issues."""
    before = Counter(machine.counts)
    step()
    clock.wait()
    return machine.counts - before


def _stage_counts(program: Program, stage: str) -> Counter[CountKey]:
    stages = tuple(one for one in program.stages if one.name == stage)
    return expected_counts(replace(program, stages=stages))


def _kernels(machine: Machine, stage: str) -> str:
    """Name the attention kernels of a stage."""
    loops = [one for one in machine.program.stages if one.name == stage]
    found = {
        kernel_for(shape_for(op, machine.setting))
        for loop in loops
        for op in loop.walk()
        if isinstance(op, Attention)
    }
    return " ".join(sorted(found))


def _result(machine: Machine) -> torch.Tensor | None:
    """Bring what a step gave to the host: the change of the latents, or the scores."""
    output = machine.program.output
    made = machine.values.get(output.name)
    if made is None:
        return None
    if output.name in {tensor.name for tensor in machine.program.inputs}:
        made = made.float() - machine.given(output, 0).float()
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


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _memory(device: torch.device) -> tuple[float, float, float]:
    """Most bytes of tensors, of PyTorch's pools, and of the device in all."""
    if device.type != "cuda":
        return 0.0, 0.0, 0.0
    free, total = torch.cuda.mem_get_info()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return float(allocated), float(reserved), float(total - free)
