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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.connections import Connections
from planner.tensorrt.runner.device import Cuda, Message, Nccl, capsule
from planner.tensorrt.runner.errors import InputError, LateError, RunError
from planner.tensorrt.runner.external_weights import Outside, WeightPlace
from planner.tensorrt.runner.formats import Bits, Floats, bits, floats, storage
from planner.tensorrt.runner.library import Document, Foreign
from planner.tensorrt.runner.place import buffers_of, members, runs, sends
from planner.tensorrt.runner.processes import Guard
from planner.tensorrt.runner.texts import Follow

POLL_S: Final = 0.001
MILLI: Final = 1000
PIECE: Final = 2**26
"""Bytes of weights that go to the GPU at once."""
Timed = tuple[str, str, float]
Given = Callable[[str, int, tuple[int, ...]], Floats]
"""From an input's name, a forward's number and the shape for all samples to numbers."""


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

    plan : the whole plan's document. documents : of all its networks, in order.
    tables : of a network, this rank's rows. engines : serialised, by network.
    outside : weights that an engine reads as inputs, by network; None where it holds them.
    graph : replay steps as a CUDA graph. steps : how many; the plan's where 0.
    starts : what buffers begin with in place of the plan's numbers. follow : from what a step
    gives to what the next one reads; it ends the run where nothing follows.
    budget : bytes of streamed weights that stay on the GPU, each rank its own; all where negative.
    layers : run one step more, in which TensorRT times each layer.
    """

    plan: Document
    rank: int
    documents: Sequence[Document]
    tables: Mapping[str, Mapping[str, Bits]]
    engines: Callable[[str], bytes | mmap]
    given: Given
    outside: Callable[[str], Outside | None] = lambda _: None
    limits: Limits = Limits()
    graph: bool = False
    steps: int = 0
    budget: int = -1
    starts: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    follow: Follow | None = None
    layers: bool = False

    @property
    def own(self) -> list[Document]:
        """Documents of the networks that this rank runs."""
        return [
            network for network in self.documents if runs(self.plan, network["name"], self.rank)
        ]

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks, where stages of a pipeline send to one another; else none."""
        return tuple(range(len(self.plan["ranks"]))) if sends(self.plan) else ()


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
    """The output, seconds of every step, and how many engines took a communicator.

    layers : name of an engine and a layer of it, and its seconds, in the order of a step.
    """

    output: Floats
    seconds: tuple[float, ...]
    bound: int
    layers: tuple[Timed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """Engines with their contexts, communicators by their ranks, and buffers by name.

    held : addresses of all memory of the GPU. keep : what must not go before the contexts do.
    weights : addresses of those that lie outside, by name and size; engines share what is the same.
    """

    job: Job
    parts: Parts
    contexts: dict[str, Foreign]
    communicators: Mapping[tuple[int, ...], Foreign]
    addresses: dict[str, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    keep: list[Foreign] = field(default_factory=list)
    weights: dict[tuple[str, int], int] = field(default_factory=dict)

    def hold(self, size: int) -> int:
        """Take memory of the GPU until the end."""
        self.held.append(self.parts.device.allocate(size))
        return self.held[-1]


def run(job: Job, parts: Parts) -> Outcome:
    """Run the schedule on this rank.

    Raises `RunError` if an engine cannot be loaded, takes no communicator or fails; LateError where
    a step takes longer than it may.
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
        layers = _timed(loaded) if job.layers else ()
        parts.connections.say("done", job.rank)
    except BaseException:
        for communicator in loaded.communicators.values():
            communicator.abort()  # a rank that waits for this one comes back with an error
        raise
    _close(loaded, graph)
    return Outcome(output=output, seconds=tuple(seconds), bound=bound, layers=layers)


def _load(job: Job, parts: Parts) -> _Loaded:
    """Read engines, and make the communicators that they need."""
    parts.guard.phase("loading engines", job.limits.load_s)
    runtime = parts.library.Runtime(parts.logger)
    contexts, keep = {}, [runtime]
    for document in job.own:
        name = document["name"]
        engine = runtime.deserialize_cuda_engine(job.engines(name))
        if engine is None:
            raise RunError(f"{name}: not an engine of this GPU and this TensorRT: build it here")
        if job.budget >= 0:
            engine.weight_streaming_budget_v2 = job.budget
        context = engine.create_execution_context(_user_managed(parts.library))
        if context is None:
            raise RunError(f"{name}: no memory for an execution context")
        contexts[name] = context
        keep.append(engine)
    parts.guard.phase("joining communicators", job.limits.meet_s)
    communicators = _communicators(job, parts)
    loaded = _Loaded(
        job=job, parts=parts, contexts=contexts, communicators=communicators, keep=keep
    )
    _share_memory(loaded)
    return loaded


def _user_managed(library: ModuleType) -> Foreign:
    return library.ExecutionContextAllocationStrategy.USER_MANAGED


def _share_memory(loaded: _Loaded) -> None:
    """Give engines one piece of memory to work in: they run one after another."""
    contexts = loaded.contexts.values()
    work_bytes = max(int(context.engine.device_memory_size_v2) for context in contexts)
    address = loaded.hold(work_bytes)
    for context in contexts:
        context.set_device_memory(address, work_bytes)


def _communicators(job: Job, parts: Parts) -> dict[tuple[int, ...], Foreign]:
    """Join one communicator for every group of ranks that this rank meets."""
    groups = {name: members(job.plan, name, job.rank) for name in _meeting(job)}
    joined: dict[tuple[int, ...], Foreign] = {}
    for name, group in {**groups, "sends": job.everyone}.items():
        is_new = group and group not in joined
        offered = parts.nccl.unique().hex() if is_new and group[0] == job.rank else ""
        words = parts.connections.say(f"communicator of {name}", offered)
        if is_new:
            unique = bytes.fromhex(str(words[group[0]]))
            joined[group] = parts.nccl.join(len(group), group.index(job.rank), unique)
    return joined


def _meeting(job: Job) -> list[str]:
    """Name the networks in which ranks meet: TensorRT gives no communicator to others."""
    return [document["name"] for document in job.documents if document["collectives"]]


def _bind(loaded: _Loaded) -> int:
    """Hand communicators to contexts, on all ranks at once; count those that took one."""
    job, bound = loaded.job, 0
    for name in _meeting(job):
        group = members(job.plan, name, job.rank)
        loaded.parts.connections.say(f"bind {name}", job.rank)
        if not group:
            continue
        communicator = capsule(loaded.communicators[group])
        if not loaded.contexts[name].set_communicator(communicator):
            raise RunError(
                f"{name}: the engine says that it is not for several devices; "
                "its collectives would be skipped and its numbers wrong"
            )
        bound += 1
    loaded.parts.connections.say("bound", bound)
    return bound


def _allocate(loaded: _Loaded) -> None:
    """Make all buffers, and fill those that start with something."""
    job, device = loaded.job, loaded.parts.device
    loaded.parts.guard.phase("allocating buffers", job.limits.load_s)
    for name in buffers_of(job.plan, job.rank):
        buffer = job.plan["buffers"][name]
        loaded.addresses[name] = loaded.hold(_size(buffer))
        shape, given_input = tuple(buffer["shape"]), buffer["given"]
        default_start = job.starts.get(name, buffer.get("start", 0))
        start = (
            _first(job, given_input, shape)
            if given_input
            else np.full(shape, default_start, np.float32)
        )
        device.upload(loaded.addresses[name], bits(start, buffer["dtype"]))
    for document in job.own:
        _give(loaded, document)


def _give(loaded: _Loaded, document: Document) -> None:
    """Fill what an engine reads at every call alike: its tables, and weights that lie outside."""
    device, name = loaded.parts.device, document["name"]
    tensor_addresses: dict[str, int] = {}
    for table, array in loaded.job.tables.get(name, {}).items():
        tensor_addresses[table] = loaded.hold(array.nbytes)
        device.upload(tensor_addresses[table], array)
    outside = loaded.job.outside(name)
    if outside is not None:
        outside_weights = outside.weights
        tensor_addresses |= {
            weight.name: _weight(loaded, weight, outside.data) for weight in outside_weights
        }
    context = loaded.contexts[name]
    _check_read(document, context.engine, tensor_addresses)
    for tensor, address in tensor_addresses.items():
        if not context.set_tensor_address(tensor, address):
            raise RunError(f"{name}: its engine has no input {tensor}: build it again")


def _weight(loaded: _Loaded, weight: WeightPlace, data: Bits) -> int:
    """Put a weight on the GPU, unless another engine has: a decoder's two have the same."""
    key, end = (weight.name, weight.size), weight.start + weight.size
    if key not in loaded.weights:
        address = loaded.weights[key] = loaded.hold(weight.size)
        for offset in range(weight.start, end, PIECE):
            piece = data[offset : min(offset + PIECE, end)]
            loaded.parts.device.upload(address + offset - weight.start, piece)
    return loaded.weights[key]


def _check_read(document: Document, engine: Foreign, extra_names: Mapping[str, int]) -> None:
    """Raise where an engine reads weights that lie nowhere."""
    known_names = {value["name"] for side in ("inputs", "outputs") for value in document[side]}
    reads = [engine.get_tensor_name(tensor_index) for tensor_index in range(engine.num_io_tensors)]
    missing = [tensor for tensor in reads if tensor not in known_names | set(extra_names)]
    if missing:
        raise InputError(
            f"{document['name']}: its engine reads {missing[0]} from a file of weights that is "
            "not beside it: build it again"
        )


def _first(job: Job, given_input: Document, shape: tuple[int, ...]) -> Floats:
    """Take the samples of this rank out of an input, for one of its forwards."""
    rank_entry, forward_offset = job.plan["ranks"][job.rank], given_input["forward"]
    forward = 0 if forward_offset is None else rank_entry["forward"] + forward_offset
    all_samples = job.given(given_input["name"], forward, (rank_entry["samples"], *shape[1:]))
    return np.asarray(
        all_samples[rank_entry["sample"] : rank_entry["sample"] + shape[0]], np.float32
    )


def _play(loaded: _Loaded, graph: list[Foreign]) -> list[float]:
    """Run what runs once, then the steps; give the seconds of each step."""
    job, guard = loaded.job, loaded.parts.guard
    step_calls = job.plan["each_step"]
    guard.phase("running ahead of the steps", job.limits.step_s)
    start = time.perf_counter()
    _issue(loaded, job.plan["once"])
    _wait(loaded, "ahead of the steps")
    if not step_calls:
        return [time.perf_counter() - start]
    seconds = []
    for step in range(job.steps or job.plan["steps"]):
        if not _goes_on(loaded):
            break
        guard.phase(f"step {step}", job.limits.step_s)
        start = time.perf_counter()
        if job.graph and step:
            if not graph:
                loaded.parts.device.capture()
                _issue(loaded, step_calls)
                graph.append(loaded.parts.device.captured())
            loaded.parts.device.launch(graph[0])
        else:
            _issue(loaded, step_calls)
        _wait(loaded, f"step {step}")
        seconds.append(time.perf_counter() - start)
    else:
        _goes_on(loaded)  # what the last step gave is chosen from too
    return seconds


def _timed(loaded: _Loaded) -> tuple[Timed, ...]:
    """Run a step in which the library times each layer, which takes longer than others do."""
    job, library = loaded.job, loaded.parts.library
    loaded.parts.guard.phase("timing layers", job.limits.step_s)
    layer_times: list[Timed] = []

    class Profiler(library.IProfiler):  # type: ignore[misc, name-defined]  # known when it runs
        def __init__(self, engine: str) -> None:
            library.IProfiler.__init__(self)
            self.engine = engine

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            layer_times.append((self.engine, layer_name, ms / MILLI))

    for name, context in loaded.contexts.items():
        context.profiler = Profiler(name)
    _issue(loaded, job.plan["each_step"] or job.plan["once"])
    _wait(loaded, "timing layers")
    return tuple(layer_times)


def _goes_on(loaded: _Loaded) -> bool:
    """Give the next step what follows from what there is; whether anything does."""
    job = loaded.job
    if job.follow is None:
        return True
    inputs = job.follow(_result(loaded))
    for name, array in (inputs or {}).items():
        if name in loaded.addresses:  # of a pipeline the first stage alone reads tokens
            stored = bits(array, job.plan["buffers"][name]["dtype"])
            loaded.parts.device.upload(loaded.addresses[name], stored)
    return inputs is not None


def _issue(loaded: _Loaded, calls: Sequence[Document]) -> None:
    buffers = loaded.job.plan["buffers"]
    for call in calls:
        if "copy" in call:
            source, target = (loaded.addresses[name] for name in call["copy"])
            loaded.parts.device.copy(target, source, _size(buffers[call["copy"][0]]))
        elif "send" in call:
            _send(loaded, call)
        elif runs(loaded.job.plan, call["engine"], loaded.job.rank):
            _call(loaded, call["engine"], call["bind"])


def _send(loaded: _Loaded, call: Document) -> None:
    """Send a buffer to ranks of other stages, and receive one from such a rank, at one time."""
    job, (source, target) = loaded.job, call["send"]
    size = _size(job.plan["buffers"][source])
    messages = [
        Message(receiver, loaded.addresses[source], size, sends=True)
        for rank, receiver in call["pairs"]
        if rank == job.rank
    ]
    messages += [
        Message(rank, loaded.addresses[target], size, sends=False)
        for rank, receiver in call["pairs"]
        if receiver == job.rank
    ]
    if messages:
        stream = loaded.parts.device.stream
        loaded.parts.nccl.pass_on(loaded.communicators[job.everyone], messages, stream)


def _size(buffer: Document) -> int:
    return prod(buffer["shape"]) * storage(buffer["dtype"]).itemsize


def _call(loaded: _Loaded, name: str, bind: Mapping[str, tuple[str, int]]) -> None:
    context = loaded.contexts[name]
    for tensor, (buffer, place) in bind.items():
        buffer_entry = loaded.job.plan["buffers"][buffer]
        uses_start = buffer != "predictions" or tensor == buffer
        step = 0 if uses_start else _size(buffer_entry) // buffer_entry["shape"][0]
        if not context.set_tensor_address(tensor, loaded.addresses[buffer] + place * step):
            raise RunError(f"{name}: its engine has no tensor {tensor}: build it again")
    if not context.execute_async_v3(loaded.parts.device.stream):
        raise RunError(f"{name}: TensorRT did not start it")


def _wait(loaded: _Loaded, phase: str) -> None:
    deadline = time.monotonic() + loaded.job.limits.step_s
    while not loaded.parts.device.idle():
        if time.monotonic() > deadline:
            raise LateError(
                f"{phase} took more than {loaded.job.limits.step_s:g} s: another rank is missing"
            )
        time.sleep(POLL_S)


def _result(loaded: _Loaded) -> Floats:
    name = loaded.job.plan["output"]
    buffer = loaded.job.plan["buffers"][name]
    array = np.empty(tuple(buffer["shape"]), storage(buffer["dtype"]))
    loaded.parts.device.download(loaded.addresses[name], array)
    return floats(array, buffer["dtype"])


def _close(loaded: _Loaded, graph: list[Foreign]) -> None:
    """Let go in the order that NCCL needs: graphs, contexts, then communicators; then memory."""
    for executable in graph:
        loaded.parts.device.release(executable)
    loaded.contexts.clear()
    for communicator in loaded.communicators.values():
        communicator.destroy()
    loaded.keep.clear()
    for address in loaded.held:
        loaded.parts.device.free(address)
