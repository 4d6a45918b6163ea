"""A measured trace of a rank beside the turn that was simulated, and where they part."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from planner.search.estimate import worded
from planner.simulation.measured import OTHER, Steps, Trace, TraceKernel
from planner.simulation.simulation import LEAST_SHARE, Simulation, covered
from topology.base import format_seconds
from topology.base.table import Part, Said, Table, Title
from topology.base.values import dataclass

COMMUNICATION: Final = "communication"
CLASSES: Final = (
    "gemm", "attention", "convolution", "pointwise", "layout", COMMUNICATION, OTHER,
)  # fmt: skip
EXPOSED: Final = "communication_exposed"
IDLE: Final = "idle"
STEP: Final = "step"
ROWS: Final = {
    COMMUNICATION: "communication, hidden too",
    OTHER: "other kernels",
    EXPOSED: "exposed communication",
    IDLE: "idle, between kernels",
    STEP: "the step",
}
SHOWN_KERNELS: Final = 3
"""Kernels of a class that are named, and parts of a step that a sentence names."""
NAME_WIDTH: Final = 56
"""Characters of a kernel's name."""
STEP_RATIO: Final = 4.0
"""Times that a step may be longer or shorter than simulated to be taken for one; a layer is a tenth
of a step at most, a request several."""
TOLD_SHARE: Final = 0.01
"""Part of the simulated step that is worth a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Kernels of one name in a step: how often they ran, and for how long."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a rank did in a step.

    parts_s : seconds of each class, of exposed communication, of nothing, and of the step.
    longest : by class, the kernels that take longest.
    """

    parts_s: Mapping[str, float]
    longest: Mapping[str, Sequence[Work]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """A measured step beside the simulated one of a rank. step : which part of the trace it is."""

    step: str
    rank: int
    measured: Side
    simulated: Side

    @property
    def apart_s(self) -> Mapping[str, float]:
        """Seconds that each part takes more than simulated, what differs most first."""
        measured_s, simulated_s = self.measured.parts_s, self.simulated.parts_s
        differences = {
            part: measured_s.get(part, 0.0) - simulated_s.get(part, 0.0)
            for part in (*CLASSES, EXPOSED, IDLE, STEP)
            if part in measured_s or part in simulated_s
        }
        return dict(sorted(differences.items(), key=lambda item: -abs(item[1])))

    def says(self) -> Iterator[str]:
        """Say which step it is, how far both are apart, and in what."""
        trace_s, simulated_s = self.measured.parts_s[STEP], self.simulated.parts_s[STEP]
        yield (
            f"of the trace: {self.step}, {format_seconds(trace_s)}; simulated: rank {self.rank}, "
            f"{format_seconds(simulated_s)}"
        )
        parts = [
            f"{ROWS.get(part, worded(part))} {_signed_seconds(seconds)}"
            for part, seconds in self.apart_s.items()
            if part not in (STEP, COMMUNICATION) and abs(seconds) > TOLD_SHARE * simulated_s
        ]
        verdict = (
            f"they part in {', '.join(parts[:SHOWN_KERNELS])}"
            if parts
            else "no part differs by 1 %"
        )
        yield f"measured takes {trace_s / simulated_s:.2f} times as long; {verdict}"

    def table(self) -> Table:
        """Put both side by side, and below each class what takes longest."""
        return Table(
            head=("", "measured", "simulated", "difference"),
            rows=[row for part in self._ordered_parts() for row in self._part_rows(part)],
            indent=2,
        )

    def parts(self) -> Iterator[Part]:
        """Say everything that is known of both."""
        yield Title(text="a measured step beside the simulated one")
        yield Said(lines=[*self.says()])
        yield self.table()

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {**asdict(self), "apart_s": dict(self.apart_s)}

    def _ordered_parts(self) -> list[str]:
        return [part for part in (*CLASSES, EXPOSED, IDLE, STEP) if part in self.apart_s]

    def _part_rows(self, part: str) -> Iterator[list[str]]:
        measured_s, simulated_s = (
            self.measured.parts_s.get(part, 0.0),
            self.simulated.parts_s.get(part, 0.0),
        )
        threshold = LEAST_SHARE * self.simulated.parts_s[STEP]
        cells = [
            format_seconds(seconds) if seconds > threshold else "-"
            for seconds in (measured_s, simulated_s)
        ]
        yield [ROWS.get(part, worded(part)), *cells, _signed_seconds(measured_s - simulated_s)]
        for work in self.measured.longest.get(part, ()):
            yield [_work_line(work), format_seconds(work.seconds), "", ""]
        for work in self.simulated.longest.get(part, ()):
            yield [_work_line(work), "", format_seconds(work.seconds), ""]


def _work_line(work: Work) -> str:
    name = work.name.removeprefix("void ")
    return f"- {work.count} x {name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 3] + '...'}"


def _signed_seconds(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def compare(simulation: Simulation, measured: Trace) -> StepComparison:
    """Put one step of a trace beside the turn of the same rank, or of rank 0 if it is not known."""
    rank_known = measured.rank is not None and measured.rank < len(simulation.ranks)
    rank = measured.rank if rank_known and measured.rank is not None else 0
    steps = _chosen_steps(measured, simulation.turn_s)
    simulated = [
        TraceKernel(
            name=event.label.name,
            kind=event.label.kind,
            start_s=event.came_s if event.label.kind == COMMUNICATION else event.start_s,
            end_s=event.end_s,
        )
        for event in simulation.events
        if event.rank == simulation.first[rank]
    ]
    return StepComparison(
        step=steps.words,
        rank=rank,
        measured=_side(measured.during(steps.middle), steps.seconds),
        simulated=_side(simulated, simulation.turn_s),
    )


def _side(kernels: Sequence[TraceKernel], step_s: float) -> Side:
    """Add up what a rank did in a step; a message counts from when the rank came to it."""
    by_class: dict[str, list[TraceKernel]] = defaultdict(list)
    for kernel in kernels:
        by_class[kernel.kind].append(kernel)
    computing = [
        computing_kernel
        for kind, kind_kernels in by_class.items()
        if kind != COMMUNICATION
        for computing_kernel in kind_kernels
    ]
    busy = covered(_spans(kernels))
    return Side(
        parts_s={
            **{kind: _total_seconds(by_class[kind]) for kind in CLASSES if kind in by_class},
            EXPOSED: busy - covered(_spans(computing)),
            IDLE: max(0.0, step_s - busy),
            STEP: step_s,
        },
        longest={kind: _longest_works(by_class[kind]) for kind in CLASSES if kind in by_class},
    )


def _longest_works(kernels: Sequence[TraceKernel]) -> list[Work]:
    by_name: dict[str, list[TraceKernel]] = defaultdict(list)
    for kernel in kernels:
        by_name[kernel.name].append(kernel)
    works = [
        Work(name=name, count=len(named_kernels), seconds=_total_seconds(named_kernels))
        for name, named_kernels in by_name.items()
    ]
    return sorted(works, key=lambda work: -work.seconds)[:SHOWN_KERNELS]


def _total_seconds(kernels: Sequence[TraceKernel]) -> float:
    return sum(end - start for start, end in _spans(kernels))


def _spans(kernels: Sequence[TraceKernel]) -> list[tuple[float, float]]:
    return [(kernel.start_s, kernel.end_s) for kernel in kernels]


def _chosen_steps(measured: Trace, turn_s: float) -> Steps:
    """Choose how to cut a trace: as the profiler was told, where it repeats, or not at all."""
    annotated = [measured.annotated] if measured.annotated else []
    for steps in (*annotated, *measured.repeated()):
        if turn_s / STEP_RATIO <= steps.seconds <= turn_s * STEP_RATIO:
            return steps
    return annotated[0] if annotated else measured.whole
