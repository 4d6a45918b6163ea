"""A measured trace of one rank: kernels, and its steps.

PyTorch's profiler writes Chrome's trace events, plain or packed by gzip, with Kineto's categories;
what Nsight Systems exports becomes such events first.
"""

import gzip
import json
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from math import inf
from typing import Any, Final, cast

import numpy as np

from costmodels.kernel_names import class_of
from topology.base import InputError, counted, one_line
from topology.base.values import dataclass

MOST_BYTES: Final = 200_000_000
"""Of a trace, packed or not: its events take some ten times as much as values."""
OTHER: Final = "other"
"""The class of kernels whose names say nothing."""
_GPU_CATEGORIES: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCH_CATEGORIES: Final = frozenset({"cuda_runtime", "cuda_driver"})
_STEP_PREFIX: Final = "ProfilerStep#"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_MOST_PERIODS: Final = 300
_MICROSECONDS: Final = 10**6
_LATEST_US: Final = 10**18  # us


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceKernel:
    """Work of a GPU, and when. kind : its class."""

    name: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A way to cut a trace: when each step begins and ends, in seconds. words : what they are."""

    words: str
    spans: Sequence[tuple[float, float]]

    @property
    def middle(self) -> tuple[float, float]:
        """The step of median length; the last, after which no other begins, only by itself."""
        ordered = sorted(self.spans[:-1] or self.spans, key=lambda span: span[1] - span[0])
        return ordered[(len(ordered) - 1) // 2]

    @property
    def seconds(self) -> float:
        """Length of that step."""
        start, end = self.middle
        return end - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a GPU did, in the order of its starts.

    rank : of those of the run, if the trace says. annotated : steps that the profiler was told of.
    streams : of each kernel.
    """

    kernels: Sequence[TraceKernel]
    streams: Sequence[object]
    rank: int | None
    annotated: Steps | None

    @property
    def whole(self) -> Steps:
        """All of it as one step."""
        ends = (self.kernels[0].start_s, max(kernel.end_s for kernel in self.kernels))
        return Steps(words="the whole trace", spans=[ends])

    def repeated(self) -> Iterator[Steps]:
        """Give stretches that come at least twice in a row on the busiest stream, longest first.

        Kernels repeat where their names do.
        """
        busiest = Counter(self.streams).most_common(1)[0][0]
        stream_kernels = [
            kernel
            for kernel, stream in zip(self.kernels, self.streams, strict=True)
            if stream == busiest
        ]
        numbers: dict[str, int] = {}
        codes = np.array(
            [numbers.setdefault(kernel.name, len(numbers)) for kernel in stream_kernels]
        )
        for period, first, repeats in _repetitions(codes):
            starts = [stream_kernels[first + n * period].start_s for n in range(repeats)]
            end = max(kernel.end_s for kernel in stream_kernels[first : first + repeats * period])
            words = f"a stretch of {counted(period, 'kernel')} that comes {repeats} times"
            yield Steps(words=words, spans=list(pairwise([*starts, end])))

    def during(self, span: tuple[float, float]) -> list[TraceKernel]:
        """Give the kernels that start in a span."""
        return [kernel for kernel in self.kernels if span[0] <= kernel.start_s < span[1]]


def _repetitions(codes: "np.ndarray[Any, Any]") -> Iterator[tuple[int, int, int]]:
    """Find periods of a row of numbers, the longest first, with where and how often they come.

    Candidates are distances between one run of three numbers and its next.
    """
    base = int(codes.max()) + 1
    triples = (codes[:-2] * base + codes[1:-1]) * base + codes[2:]
    order = np.argsort(triples, kind="stable")
    equal_next = triples[order][1:] == triples[order][:-1]
    for period in np.unique(np.diff(order)[equal_next])[::-1][:_MOST_PERIODS].tolist():
        breaks = np.flatnonzero(codes[:-period] != codes[period:])
        edges = np.concatenate(([-1], breaks, [len(codes) - period]))
        longest = int(np.argmax(np.diff(edges)))
        length = int(np.diff(edges)[longest]) - 1
        if length >= period:
            yield period, int(edges[longest]) + 1, length // period + 1


def read_trace(data: bytes) -> Trace:
    """Read a trace of one rank.

    Raises `InputError` if it is none: no JSON, cut off, too large, without work of a GPU, or with
    that of several.
    """
    document = _trace_document(data)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError("got no traceEvents, wanted a trace of PyTorch's profiler")
    spans = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    on_gpu = sorted(
        (event for event in spans if str(event.get("cat")) in _GPU_CATEGORIES), key=_span
    )
    if not on_gpu:
        raise InputError(
            f"got {counted(len(events), 'event')} and none of a GPU, wanted kernels: a profile "
            "with ProfilerActivity.CUDA, or of nsys --trace=cuda"
        )
    gpus = {_event_field(event, "device", "pid") for event in on_gpu}
    if len(gpus) > 1:
        raise InputError(f"got kernels of {len(gpus)} GPUs, wanted those of one rank")
    kernels = [_trace_kernel(event) for event in on_gpu]
    return Trace(
        kernels=kernels,
        streams=[_event_field(event, "stream", "tid") for event in on_gpu],
        rank=_rank(document),
        annotated=_annotated_steps(spans, on_gpu, kernels),
    )


def _trace_document(data: bytes) -> Any:  # noqa: ANN401  # whatever somebody wrote
    if data.startswith(_GZIP_MAGIC):
        data = _unpacked(data)
    if data.startswith(_SQLITE_MAGIC):
        from planner.simulation.nsight import events_of  # noqa: PLC0415  # few have one

        return events_of(data)
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        opens, closes = data.lstrip()[:1] in (b"{", b"["), data.rstrip()[-1:] in (b"}", b"]")
        if opens and not (closes and error.doc[error.pos :].strip()):
            raise InputError("the JSON is cut off, wanted a whole file") from None
        raise InputError(f"no JSON: {error}") from None
    except (ValueError, RecursionError):
        raise InputError("no JSON, wanted a trace of PyTorch's profiler") from None


def _unpacked(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as file:
            text = file.read(MOST_BYTES + 1)
    except EOFError:
        raise InputError("the gzip is cut off, wanted a whole file") from None
    except (OSError, zlib.error):
        raise InputError("broken gzip, wanted a whole file") from None
    if len(text) > MOST_BYTES:
        raise InputError(f"wanted at most {MOST_BYTES} bytes when unpacked")
    return text


def _trace_kernel(event: Mapping[str, Any]) -> TraceKernel:
    name, kind = _name_and_class(str(event.get("name", "")))
    start, end = _span(event)
    return TraceKernel(name=name, kind=kind, start_s=start, end_s=end)


@lru_cache(maxsize=10_000)
def _name_and_class(name: str) -> tuple[str, str]:
    """Give a kernel's name as it can be shown, and its class."""
    return one_line(name), class_of(name) or OTHER


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    """Read when an event starts and ends, in seconds."""
    start, length = event.get("ts"), event.get("dur", 0)
    start_us, length_us = _number(start), _number(length)
    if not (start_us < inf and 0 <= length_us < inf):
        raise InputError(
            f"{event.get('name')!s:.60}: got ts {start!s:.20} and dur {length!s:.20}, wanted "
            "numbers of microseconds"
        )
    return start_us / _MICROSECONDS, (start_us + length_us) / _MICROSECONDS


def _number(value: object) -> float:
    """Take what JSON has as a number and a clock may show; infinity in place of all else."""
    usable = type(value) in (int, float) and abs(cast(float, value)) < _LATEST_US
    return float(cast(float, value)) if usable else inf


def _event_field(event: Mapping[str, Any], name: str, fallback: str) -> str:
    return str(_arguments(event).get(name, event.get(fallback)))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _rank(document: object) -> int | None:
    run = document.get("distributedInfo") if isinstance(document, dict) else None
    rank = run.get("rank") if isinstance(run, dict) else None
    return rank if isinstance(rank, int) and rank >= 0 else None


def _annotated_steps(
    spans: Sequence[Mapping[str, Any]],
    gpu_events: Sequence[Mapping[str, Any]],
    kernels: list[TraceKernel],
) -> Steps | None:
    """Cut where the first kernel of each step starts that the host launched in the step."""
    step_spans = sorted(
        _span(event)
        for event in spans
        if str(event.get("name", "")).startswith(_STEP_PREFIX)
        and event.get("cat") != "gpu_user_annotation"
    )
    if not step_spans:
        return None
    launch_times = {
        _correlation(event): _span(event)[0]
        for event in spans
        if str(event.get("cat")) in _LAUNCH_CATEGORIES and _correlation(event)
    }
    step_starts = [start for start, _ in step_spans]
    bounds: dict[int, tuple[float, float]] = {}
    for event, kernel in zip(gpu_events, kernels, strict=True):
        moment = launch_times.get(_correlation(event), kernel.start_s)
        step = bisect_right(step_starts, moment) - 1
        if step >= 0 and moment <= step_spans[step][1]:
            step_start, step_end = bounds.get(step, (kernel.start_s, kernel.end_s))
            bounds[step] = min(step_start, kernel.start_s), max(step_end, kernel.end_s)
    if not bounds:
        return None
    ordered = sorted(bounds.values())
    starts = [start for start, _ in ordered]
    words = f"one of {counted(len(ordered), 'step')} that the profiler was told of"
    return Steps(words=words, spans=list(pairwise([*starts, ordered[-1][1]])))


def _correlation(event: Mapping[str, Any]) -> str:
    """Give what a launch and its kernels share; nothing where there is none."""
    return str(_arguments(event).get("correlation", ""))
