"""From a network's document to a serialised engine: options, progress, and failures with cause."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType

from planner.tensorrt.runner.assemble import assemble
from planner.tensorrt.runner.errors import InputError, RunError
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.library import Document, Foreign, is_rtx

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an engine is built.

    workspace : bytes that a layer may use beside its tensors; 0 for all there are.
    level : optimisation, 0 to 5. streaming : weights may stay on the host, each rank its own.
    cache : timings of earlier builds. capability : such as ``SM120``, to build without a GPU
    (TensorRT-RTX). fused : use TensorRT's attention layer where it has one.
    outside : weights are inputs of the engine, and lie in a file beside it.
    """

    workspace: int = 0
    level: int = 3
    streaming: bool = False
    cache: bytes = b""
    capability: str = ""
    fused: bool = True
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """A serialised engine, empty where it was written as it came; and timings for later builds."""

    plan: bytes
    cache: bytes = b""


Write = Callable[[bytes], object]
"""Takes an engine's next bytes."""


@dataclass(frozen=True, slots=True)
class Log:
    """What the library says; the last errors are the cause of a failure."""

    errors: list[str] = field(default_factory=list)

    def cause(self) -> str:
        """Last error in one line; the first one where several came together."""
        return " ".join((self.errors or ["no reason given"])[-1].split())[:400]


def logger(library: ModuleType, log: Log) -> Foreign:
    """Make a logger of the library's that writes into `log`."""

    class Listener(library.ILogger):  # type: ignore[misc, name-defined]  # known when it runs
        def __init__(self) -> None:
            library.ILogger.__init__(self)

        def log(self, severity: Foreign, message: str) -> None:
            if severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR):
                log.errors.append(message)

    return Listener()


def build(
    library: ModuleType,
    share: Share,
    options: Options,
    tell: Tell = lambda _: None,
    write: Write | None = None,
) -> Built:
    """Build the engine of one rank.

    write : takes the engine piece by piece, so that it never lies in memory whole, where the
    library can do that; the engine is returned where left out.

    Where TensorRT builds nothing of its attention layer, attention is built as two products and a
    softmax. TensorRT-RTX 1.7.1 does so for one query of one head of 256 features.

    Raises `RunError` with the layer and the cause, where TensorRT refuses.
    """
    name = str(share.document["name"])
    outcome = _once(library, share, options, tell, write)
    if isinstance(outcome, str) and options.fused and _may_be_products(share.document):
        tell(f"{name}: nothing is built with TensorRT's attention ({outcome}): as products instead")
        outcome = _once(library, share, replace(options, fused=False), tell, write)
    if isinstance(outcome, str):
        raise RunError(f"{name} of rank {share.rank}: TensorRT built nothing: {outcome}")
    return outcome


def _may_be_products(document: Document) -> bool:
    """Whether there is attention in a network, each of one rank alone."""
    ranks = [layer["ranks"] for layer in document["layers"] if layer["kind"] == "attention"]
    return bool(ranks) and max(ranks) == 1


def _once(
    library: ModuleType, share: Share, options: Options, tell: Tell, write: Write | None
) -> Built | str:
    """Build, or say why TensorRT built nothing."""
    log = Log()
    builder = _builder(library, log)
    flag = library.NetworkDefinitionCreationFlag
    flags = 1 << int(flag.STRONGLY_TYPED) if hasattr(flag, "STRONGLY_TYPED") else 0
    network = builder.create_network(flags)
    name = str(share.document["name"])
    tell(f"{name}: assembling rank {share.rank}")
    assembly = assemble(library, network, share, fused=options.fused, cause=log.cause)
    config = builder.create_builder_config()
    _configure(library, config, options)
    config.progress_monitor = _monitor(library, name, tell)
    cache = _cache(config, options)
    plan = _serialised(library, builder, network, config, write)
    if plan is None:
        return log.cause()
    del assembly
    return Built(plan, bytes(cache.serialize()) if cache is not None else b"")


def _builder(library: ModuleType, log: Log) -> Foreign:
    """Make a builder; bindings raise a TypeError where TensorRT makes none, as without a GPU."""
    try:
        return library.Builder(logger(library, log))
    except TypeError:
        raise RunError(f"TensorRT makes no builder here: {log.cause()}") from None


def _serialised(
    library: ModuleType, builder: Foreign, network: Foreign, config: Foreign, write: Write | None
) -> bytes | None:
    """Build; None where that fails, nothing where the engine went to `write`."""
    if write is None or not hasattr(builder, "build_serialized_network_to_stream"):
        plan = builder.build_serialized_network(network, config)
        if plan is None or write is None:
            return None if plan is None else bytes(plan)
        write(memoryview(plan))  # type: ignore[arg-type]  # files take it
        return b""
    write_errors: list[OSError] = []
    sink = _sink(library, write, write_errors)
    succeeded = builder.build_serialized_network_to_stream(network, config, sink)
    if write_errors:
        raise write_errors[0]
    return b"" if succeeded else None


def _sink(library: ModuleType, write: Write, write_errors: list[OSError]) -> Foreign:
    """Make a writer of the library's; what the disk says is kept, as the library drops it."""

    class Sink(library.IStreamWriter):  # type: ignore[misc, name-defined]  # known when it runs
        def __init__(self) -> None:
            library.IStreamWriter.__init__(self)

        def write(self, piece: bytes) -> int:
            try:
                write(piece)
            except OSError as error:
                write_errors.append(error)
                return 0
            return len(piece)

    return Sink()


def _configure(library: ModuleType, config: Foreign, options: Options) -> None:
    config.builder_optimization_level = options.level
    if options.workspace:
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, options.workspace)
    if options.streaming:
        config.set_flag(library.BuilderFlag.WEIGHT_STREAMING)
    if options.capability:
        config.num_compute_capabilities = 1
        config.set_compute_capability(_capability(library, options.capability), 0)
    config.profiling_verbosity = library.ProfilingVerbosity.DETAILED  # layers keep their names
    preview = getattr(library.PreviewFeature, "MULTIDEVICE_RUNTIME_10_16", None)
    if preview is not None:
        config.set_preview_feature(preview, True)  # noqa: FBT003  # the library's own signature


def _capability(library: ModuleType, name: str) -> Foreign:
    if not is_rtx(library):
        raise InputError("a compute capability is set for TensorRT-RTX only")
    members = library.ComputeCapability.__members__
    if name not in members:
        raise InputError(f"--capability: got {name[:40]!r}, wanted one of {', '.join(members)}")
    return members[name]


def _cache(config: Foreign, options: Options) -> Foreign:
    """Use timings of earlier builds, where the library keeps any."""
    if options.capability:
        return None
    cache = config.create_timing_cache(options.cache)
    config.set_timing_cache(cache, ignore_mismatch=True)
    return cache


def _monitor(library: ModuleType, name: str, tell: Tell) -> Foreign:
    """Report phases of the build at the outermost level."""

    class Monitor(library.IProgressMonitor):  # type: ignore[misc, name-defined]  # as above
        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            if parent is None:
                tell(f"{name}: {phase}, {steps} steps")

        def phase_finish(self, phase: str) -> None:
            del phase

        def step_complete(self, phase: str, step: int) -> bool:
            del phase, step
            return True

    return Monitor()
