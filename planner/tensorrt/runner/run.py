"""One rank: loads its engines, meets the others, and runs the schedule.

All ranks hand over their communicators at the same time: that call is a handshake. An engine that
takes none would skip its collectives and give wrong numbers, so it ends the run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from mmap import mmap
from types import ModuleType
from typing import Final, cast

import numpy as np

from planner.tensorrt.runner.connections import Connections
from planner.tensorrt.runner.device import Cuda, Nccl, capsule
from planner.tensorrt.runner.errors import InputError, LateError, RunError
from planner.tensorrt.runner.formats import Bits, Floats, bits, floats, storage
from planner.tensorrt.runner.library import Foreign
from planner.tensorrt.runner.outside import Outside
from planner.tensorrt.runner.processes import Guard

POLL_S: Final = 0.001
PIECE: Final = 2**26
"""Bytes of weights that go to the GPU at once."""
Document = Mapping[str, object]
Given = Callable[[str, int, tuple[int, ...]], Floats]
"""From an input's name, a forward's number and the shape for all samples to numbers."""


def _inside(name: str) -> Outside | None:
    """Say that an engine holds its weights."""
    del name
    return None  # a value, and not the lack of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: to load engines, to meet, to bind communicators, and for one step."""

    load_s: float = 600.0
    meet_s: float = 120.0
    bind_s: float = 120.0
    step_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What this rank runs.

    plan : the whole plan's document. documents : of its networks, in order.
    tables : of a network, this rank's rows. engines : serialised, by network.
    outside : weights that an engine reads as inputs, by network; None where it holds them.
    graph : replay steps as a CUDA graph. steps : how many; the plan's where 0.
    budget : bytes of streamed weights that stay on the GPU, each rank its own; all where negative.
    """

    plan: Document
    rank: int
    documents: Sequence[Document]
    tables: Mapping[str, Mapping[str, Bits]]
    engines: Callable[[str], bytes | mmap]
    given: Given
    outside: Callable[[str], Outside | None] = _inside
    limits: Limits = Limits()
    graph: bool = False
    steps: int = 0
    budget: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a rank runs on."""

    library: ModuleType
    device: Cuda
    nccl: Nccl
    connections: Connections
    guard: Guard
    logger: Foreign = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The output, seconds of every step, and how many engines took a communicator."""

    output: Floats
    seconds: tuple[float, ...]
    bound: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """Engines with their contexts, communicators by their ranks, and buffers by name."""

    job: Job
    parts: Parts
    contexts: dict[str, Foreign]
    communicators: Mapping[tuple[int, ...], Foreign]
    addresses: dict[str, int] = field(default_factory=dict)
    keep: list[Foreign] = field(default_factory=list)


def run(job: Job, parts: Parts) -> Outcome:
    """Run the schedule on this rank.

    Raises
    ------
    RunError
        If an engine cannot be loaded, takes no communicator or fails; LateError where a step
        takes longer than it may.
    """
    loaded = _load(job, parts)
    graph: list[Foreign] = []
    try:
        parts.guard.phase("binding communicators", job.limits.bind_s)
        bound = _bind(loaded)
        _allocate(loaded)
        parts.connections.say("start", job.rank)
        seconds = _play(loaded, graph)
        output = _result(loaded)
        parts.connections.say("done", job.rank)
    except BaseException:
        for communicator in loaded.communicators.values():
            communicator.abort()  # a rank that waits for this one comes back with an error
        raise
    _close(loaded, graph)
    return Outcome(output=output, seconds=tuple(seconds), bound=bound)


def _load(job: Job, parts: Parts) -> _Loaded:
    """Read engines, and make the communicators that they need."""
    parts.guard.phase("loading engines", job.limits.load_s)
    runtime = parts.library.Runtime(parts.logger)
    contexts, keep = {}, [runtime]
    for document in job.documents:
        name = str(document["name"])
        engine = runtime.deserialize_cuda_engine(job.engines(name))
        if engine is None:
            raise RunError(f"{name}: not an engine of this GPU and this TensorRT: build it here")
        if job.budget >= 0:
            engine.weight_streaming_budget_v2 = job.budget
        context = engine.create_execution_context()
        if context is None:
            raise RunError(f"{name}: no memory for an execution context")
        contexts[name] = context
        keep.append(engine)
    parts.guard.phase("joining communicators", job.limits.meet_s)
    made = _communicators(job, parts)
    return _Loaded(job=job, parts=parts, contexts=contexts, communicators=made, keep=keep)


def _members(job: Job, name: str) -> tuple[int, ...]:
    """Ranks that share this rank's communicator of a network; none where it has none."""
    every = cast("Mapping[str, list[list[int]]]", job.plan["communicators"]).get(name, [])
    return next((tuple(group) for group in every if job.rank in group), ())


def _communicators(job: Job, parts: Parts) -> dict[tuple[int, ...], Foreign]:
    """Join one communicator for every group of ranks that this rank is in."""
    wanted = []
    for document in job.documents:
        members = _members(job, str(document["name"]))
        if members and members not in wanted:
            wanted.append(members)
    made: dict[tuple[int, ...], Foreign] = {}
    for number, members in enumerate(wanted):
        first = members[0] == job.rank
        words = parts.connections.say(
            f"communicator {number}", parts.nccl.unique().hex() if first else ""
        )
        unique = bytes.fromhex(str(words[members[0]]))
        made[members] = parts.nccl.join(len(members), members.index(job.rank), unique)
    return made


def _bind(loaded: _Loaded) -> int:
    """Hand communicators to contexts, on all ranks at once; count those that took one."""
    job, bound = loaded.job, 0
    for document in job.documents:
        name = str(document["name"])
        members = _members(job, name)
        if not members:
            continue
        loaded.parts.connections.say(f"bind {name}", job.rank)
        held = capsule(loaded.communicators[members])
        if not loaded.contexts[name].set_communicator(held):
            raise RunError(
                f"{name}: the engine says that it is not for several devices; "
                "its collectives would be skipped and its numbers wrong"
            )
        bound += 1
    words = cast("list[int]", loaded.parts.connections.say("bound", bound))
    if len(set(words)) > 1:
        raise RunError(f"ranks bound different numbers of communicators: {words}")
    return bound


def _allocate(loaded: _Loaded) -> None:
    """Make all buffers, and fill those that start with something."""
    job, device = loaded.job, loaded.parts.device
    loaded.parts.guard.phase("allocating buffers", job.limits.load_s)
    for name, buffer in cast("Mapping[str, Document]", job.plan["buffers"]).items():
        shape, dtype = tuple(cast("list[int]", buffer["shape"])), str(buffer["dtype"])
        address = device.allocate(prod(shape) * storage(dtype).itemsize)
        loaded.addresses[name] = address
        given = buffer["given"]
        start = _first(job, cast(Document, given), shape) if given else np.zeros(shape, np.float32)
        device.upload(address, bits(start, dtype))
    for document in job.documents:
        _give(loaded, document)


def _give(loaded: _Loaded, document: Document) -> None:
    """Fill what an engine reads at every call alike: its tables, and weights that lie outside."""
    device, name = loaded.parts.device, str(document["name"])
    starts: dict[str, int] = {}
    for table, array in loaded.job.tables.get(name, {}).items():
        starts[table] = device.allocate(array.nbytes)
        device.upload(starts[table], array)
    outside = loaded.job.outside(name)
    if outside is not None:
        first = device.allocate(len(outside.data))
        for place in range(0, len(outside.data), PIECE):
            device.upload(first + place, outside.data[place : place + PIECE])
        starts |= {weight: first + start for weight, start in outside.starts.items()}
    context = loaded.contexts[name]
    _check_read(document, context.engine, starts)
    for tensor, address in starts.items():
        if not context.set_tensor_address(tensor, address):
            raise RunError(f"{name}: its engine has no input {tensor}: build it again")


def _check_read(document: Document, engine: Foreign, given: Mapping[str, int]) -> None:
    """Raise where an engine reads weights that lie nowhere."""
    sides = ("inputs", "outputs")
    values = [one for side in sides for one in cast("list[Document]", document[side])]
    known = {str(one["name"]) for one in values} | set(given)
    reads = [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)]
    missing = [tensor for tensor in reads if tensor not in known]
    if missing:
        raise InputError(
            f"{document['name']}: its engine reads {missing[0]} from a file of weights that is "
            "not beside it: build it again"
        )


def _first(job: Job, given: Document, shape: tuple[int, ...]) -> Floats:
    """Take the samples of this rank out of an input, for one of its forwards."""
    mine = cast("list[Mapping[str, int]]", job.plan["ranks"])[job.rank]
    main = given["name"] == job.plan["output"]
    forward = 0 if main else mine["forward"] + cast(int, given["forward"])
    whole = job.given(str(given["name"]), forward, (mine["samples"], *shape[1:]))
    return np.asarray(whole[mine["sample"] : mine["sample"] + shape[0]], np.float32)


def _play(loaded: _Loaded, graph: list[Foreign]) -> list[float]:
    """Run what runs once, then the steps; give the seconds of each step."""
    job, guard = loaded.job, loaded.parts.guard
    each = cast("list[Document]", job.plan["each_step"])
    guard.phase("running ahead of the steps", job.limits.step_s)
    start = time.perf_counter()
    _issue(loaded, cast("list[Document]", job.plan["once"]))
    _wait(loaded, "ahead of the steps")
    if not each:
        return [time.perf_counter() - start]
    seconds = []
    for step in range(job.steps or cast(int, job.plan["steps"])):
        guard.phase(f"step {step}", job.limits.step_s)
        start = time.perf_counter()
        if job.graph and step:
            if not graph:
                loaded.parts.device.capture()
                _issue(loaded, each)
                graph.append(loaded.parts.device.captured())
            loaded.parts.device.launch(graph[0])
        else:
            _issue(loaded, each)
        _wait(loaded, f"step {step}")
        seconds.append(time.perf_counter() - start)
    return seconds


def _issue(loaded: _Loaded, calls: Sequence[Document]) -> None:
    for call in calls:
        if "copy" in call:
            source, target = cast("list[str]", call["copy"])
            buffer = cast("Mapping[str, Document]", loaded.job.plan["buffers"])[source]
            loaded.parts.device.copy(
                loaded.addresses[target], loaded.addresses[source], _size(buffer)
            )
        else:
            _call(loaded, str(call["engine"]), cast("Mapping[str, list[object]]", call["bind"]))


def _size(buffer: Document) -> int:
    return prod(cast("list[int]", buffer["shape"])) * storage(str(buffer["dtype"])).itemsize


def _call(loaded: _Loaded, name: str, bind: Mapping[str, list[object]]) -> None:
    context = loaded.contexts[name]
    for tensor, (buffer, place) in bind.items():
        holder = cast("Mapping[str, Document]", loaded.job.plan["buffers"])[str(buffer)]
        shape = cast("list[int]", holder["shape"])
        step = _size(holder) // shape[0] if buffer == "predictions" and tensor != buffer else 0
        address = loaded.addresses[str(buffer)] + cast(int, place) * step
        context.set_tensor_address(tensor, address)
    if not context.execute_async_v3(loaded.parts.device.stream):
        raise RunError(f"{name}: TensorRT did not start it")


def _wait(loaded: _Loaded, what: str) -> None:
    until = time.monotonic() + loaded.job.limits.step_s
    while not loaded.parts.device.idle():
        if time.monotonic() > until:
            raise LateError(
                f"{what} took more than {loaded.job.limits.step_s:g} s: another rank is missing"
            )
        time.sleep(POLL_S)


def _result(loaded: _Loaded) -> Floats:
    name = str(loaded.job.plan["output"])
    buffer = cast("Mapping[str, Document]", loaded.job.plan["buffers"])[name]
    dtype = str(buffer["dtype"])
    array = np.empty(tuple(cast("list[int]", buffer["shape"])), storage(dtype))
    loaded.parts.device.download(loaded.addresses[name], array)
    return floats(array, dtype)


def _close(loaded: _Loaded, graph: list[Foreign]) -> None:
    """Let go in the order that NCCL needs: graphs, contexts, then communicators."""
    for executable in graph:
        loaded.parts.device.release(executable)
    loaded.contexts.clear()
    for communicator in loaded.communicators.values():
        communicator.destroy()
