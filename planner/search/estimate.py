"""What became of a plan: an estimate, or a reason why not."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from itertools import accumulate
from math import hypot, sqrt
from typing import Any, Final

from costmodels.basis import Basis
from planner.placement.placement import Placement, visible_devices
from planner.request.plan import Plan, TwoPools
from planner.request.request import EXECUTOR
from planner.request.workload import Speculation
from planner.search.clients import Point, Serving
from topology.base import format_bytes, format_interval, format_number, format_seconds
from topology.base.chart import Axis, ChartRow, ChartSpan, spans
from topology.base.rows import as_frame, flat
from topology.base.table import Drawing, Table
from topology.base.values import dataclass

TIME: Final = Axis(title="time of a request", write=format_seconds)
MEMORY: Final = Axis(title="memory of the fullest GPU", write=format_bytes, unit=2.0**30)
UNCERTAINTY: Final = {
    Basis.MEASURED: 0.03,
    Basis.CALIBRATED: 0.08,
    Basis.EXTRAPOLATED: 0.1,
    Basis.DATASHEET: 0.2,
    Basis.ASSUMED: 0.35,
}
"""Relative half-width of an interval that holds about two times in three, by how a part is known.

Calibrated: the median error of the fitted kernel and collective models on figures they were not
fitted to; extrapolated: the same, with what a law carried on may lose; datasheet: that of carrying
a fit to another GPU; assumed: a guess.
"""

PACE: Final = 0.2
"""Relative half-width of the time of a stage whose pace the host sets, in two hosts of three.

FLUX.1 of 1024 pixels in eager code, bound by its host: 112, 133 and 151 ms a step on three machines
of H100; a kernel of diffusers 20 and 26 us on two of H200 (`diffusers.toml`, `xdit.toml`).
"""

BESIDE_PARTS: Final = {"diffusion": 0.07, "decoder": 0.15}
"""Relative half-width of what no part has: the code, the version and the host of who runs a model.

Measured, by kind of model: what makes two in three of 52 and 85 intervals hold published times
that were used for nothing else. Our own executor was measured to be within the parts.
"""

PAIR_HALF_WIDTH: Final = 0.024
"""Relative half-width of the difference of two plans that parts do not explain.

Measured: in two of three pairs of plans of one request, the errors of their predicted steps differ
by less (68 pairs on 2 x H100, validate/data/2026-11-28-h100-sxm-x2/plans.jsonl).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """Workers of one kind in a disaggregated deployment.

    memory_bytes : on the fullest GPU, with what `memory_parts_bytes` it is made of. told : sizes
    that each is told of the load, as ``Settings`` names them.
    """

    plan: Plan
    workers: int
    memory_bytes: float
    memory_parts_bytes: Mapping[str, float]
    told: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "plan": str(self.plan),
            "workers": self.workers,
            "gpus": self.workers * self.plan.gpus,
            "memory_bytes": self.memory_bytes,
            "memory_parts_bytes": dict(self.memory_parts_bytes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated:
    """Pools for prompts and for decoding.

    sent_bytes : keys and values of a mean prompt. sent_s : seconds that they take.
    """

    pools: TwoPools
    prefill: WorkerPool
    decode: WorkerPool
    sent_bytes: float
    sent_s: float

    def rows(self) -> list[list[str]]:
        """Make a row of each number that one plan does not have."""
        sent = f"{format_bytes(self.sent_bytes)} a prompt in {format_seconds(self.sent_s)}"
        rows = [["KV sent", sent]]
        for name, pool in (("prefill", self.prefill), ("decode", self.decode)):
            memory_text = format_bytes(pool.memory_bytes)
            rows.append(
                [f"{name} workers", f"{pool.workers} x {pool.plan}, {memory_text} on a GPU"]
            )
        return rows

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
            "sent_bytes": self.sent_bytes,
            "sent_s": self.sent_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """One plan in full; SI units. The parts of `breakdown_s` add up to the latency.

    engine : whose habits are priced, empty for none. notes : where engines part ways over the
    plan. written : tokens of an answer, of a language model. serving : what its clients see, where
    it is served; all else is of one batch that starts and ends together. speculation : of decoding.
    disaggregated : pools of workers, of whom those that decode have `plan`. simulated_s : latency
    as events, where it was asked for. hosted_s : of the stages whose pace the host sets.
    """

    model: str
    hardware: str
    gpus: int
    plan: Plan
    runtime: str
    precision: str
    latency_s: float
    step_s: float
    stages_s: Mapping[str, float]
    breakdown_s: Mapping[str, float]
    communication_hidden_s: float
    memory_bytes: float
    memory_parts_bytes: Mapping[str, float]
    peak_stage: str
    throughput_per_s: float
    known: Mapping[str, Basis]
    engine: str = ""
    placement: Placement | None = None
    notes: tuple[str, ...] = ()
    unproven: bool = False
    written: float = 0.0
    serving: Serving | None = None
    speculation: Speculation | None = None
    disaggregated: Disaggregated | None = None
    simulated_s: float | None = None
    hosted_s: float = 0.0

    @property
    def name(self) -> str:
        """The plan, or both plans and their numbers of workers."""
        return str(self.plan if self.disaggregated is None else self.disaggregated.pools)

    @property
    def told(self) -> Mapping[str, int]:
        """Sizes that an engine is told of the load that it serves."""
        return {} if self.serving is None else self.serving.told

    @property
    def tokens(self) -> tuple[float, float, float]:
        """TTFT and TPOT of a language model in seconds, and tokens/s: under load, if there is one.

        Else of one batch, whose requests start and end together.
        """
        if self.serving is not None:
            served = self.serving
            return served.ttft.mean, served.tpot.mean, served.tokens_per_s
        tpot = self.stages_s["decode"] / self.written if self.written else 0.0
        ttft = self.stages_s["prefill"] + self.stages_s.get("transfer", 0.0)
        return ttft, tpot, self.throughput_per_s * self.written

    @property
    def exposed_s(self) -> float:
        """Seconds of messages that compute does not hide."""
        return self.breakdown_s.get("communication_exposed", 0.0)

    @property
    def gpu_seconds(self) -> float:
        """What a result costs: GPUs times seconds."""
        return self.gpus / self.throughput_per_s

    @property
    def basis(self) -> Basis:
        """How well the time is known: the weakest of the parts that make up most of it."""
        main_bases = [
            self.known.get(name, Basis.MEASURED)
            for name, seconds in self.breakdown_s.items()
            if seconds >= 0.05 * self.latency_s
        ]
        return max(main_bases, default=Basis.MEASURED)

    @property
    def basis_word(self) -> str:
        """The basis in the four words that other programs know."""
        known_basis = Basis.CALIBRATED if self.basis == Basis.EXTRAPOLATED else self.basis
        return known_basis.name.lower()

    @property
    def memory_apart(self) -> str:
        """The part of memory that is not there at the peak: the decode or the transformer's own.

        All other parts add up to `memory_bytes`.
        """
        return "activations" if self.peak_stage == "vae_decode" else "vae_decode"

    @property
    def half_width_s(self) -> float:
        """Half the interval around the latency."""
        kind = "decoder" if "prefill" in self.stages_s else "diffusion"
        unexplained = 0.0 if self.engine == EXECUTOR else BESIDE_PARTS[kind]
        parts = self.half_width_of(self.breakdown_s)
        return hypot(parts, PACE * self.hosted_s, unexplained * self.latency_s)

    @property
    def interval_s(self) -> list[float]:
        """The ends of the interval around the latency."""
        half = self.half_width_s
        return [max(0.0, self.latency_s - half), self.latency_s + half]

    def half_width_of(self, parts: Mapping[str, float]) -> float:
        """Half the interval around a sum of parts, each as well known as it is here."""
        return sqrt(
            sum((UNCERTAINTY[self.known.get(n, Basis.MEASURED)] * s) ** 2 for n, s in parts.items())
        )

    @property
    def bound_by(self) -> str:
        """What takes most of the time, in words."""
        name, seconds = max(self.breakdown_s.items(), key=lambda part: part[1])
        share = 100 * seconds / self.latency_s if self.latency_s else 0.0
        return f"{worded(name)} ({share:.0f} % of the time)"

    def __repr__(self) -> str:
        return (
            f"<PlanEstimate {self.name} of {self.model} on {self.gpus} x {self.hardware}: "
            f"{format_seconds(self.latency_s)}>"
        )

    def _repr_html_(self) -> str:
        from topology.base.page import notebook  # noqa: PLC0415  # for notebooks alone

        time_chart = spans("One request, stage by stage", [self.stage_row()], TIME)
        memory_chart = spans("Memory at its peak", [self.memory_row()], MEMORY)
        return notebook([self.table(), Drawing(svg=time_chart), Drawing(svg=memory_chart)])

    def rows(self) -> list[dict[str, object]]:
        """Return the estimate as a row."""
        return [flat(self.to_dict())]

    def to_frame(self) -> Any:  # noqa: ANN401  # of whichever package is there
        """Return a data frame of pandas or polars; see `as_frame`."""
        return as_frame(self.rows())

    def stage_row(self) -> ChartRow:
        """Put the stages of a request one behind the other."""
        return self._row(self.stages_s.items(), self.latency_s, format_seconds)

    def part_row(self) -> ChartRow:
        """Put the classes of work of a request one behind the other."""
        return self._row(self.breakdown_s.items(), self.latency_s, format_seconds)

    def memory_row(self) -> ChartRow:
        """Put the parts of memory that are there at its peak one behind the other."""
        parts = self.memory_parts_bytes.items()
        peak_parts = [(name, size) for name, size in parts if name != self.memory_apart]
        return self._row(peak_parts, self.memory_bytes, format_bytes)

    def _row(
        self, parts: Iterable[tuple[str, float]], total: float, write: Callable[[float], str]
    ) -> ChartRow:
        drawn_parts = [(worded(name), size) for name, size in parts if size > 0]
        ends = accumulate(size for _, size in drawn_parts)
        return ChartRow(
            name=f"{self.name} on {self.gpus} x {self.hardware}: {write(total)}",
            spans=[
                ChartSpan(
                    start=end - size, end=end, kind=kind, says=f"{write(size)} of {self.name}"
                )
                for (kind, size), end in zip(drawn_parts, ends, strict=True)
            ],
        )

    def table(self) -> Table:
        """Make a row of each number."""
        rows = [["latency", format_interval(self.latency_s, self.half_width_s)]]
        rows += self.token_rows()
        rows += [[f"stage {worded(k)}", format_seconds(v)] for k, v in self.stages_s.items()]
        rows += [[worded(k), format_seconds(v)] for k, v in self.breakdown_s.items()]
        rows += [["memory", f"{format_bytes(self.memory_bytes)} at {worded(self.peak_stage)}"]]
        rows += [
            [f"memory {worded(k)}", format_bytes(v)] for k, v in self.memory_parts_bytes.items()
        ]
        rows += [["bound by", self.bound_by], ["basis", self.basis.name.lower()]]
        if self.placement:
            rows.append(["GPUs", visible_devices(self.placement.devices)])
        return Table(head=[self.name, ""], rows=rows)

    def token_rows(self) -> list[list[str]]:
        """Make rows of what clients of a language model see; none of other models."""
        pool_rows = [] if self.disaggregated is None else self.disaggregated.rows()
        if self.serving is not None:
            return [*self.serving.rows(), *pool_rows]
        if "prefill" not in self.stages_s:
            return []
        ttft, tpot, rate = self.tokens
        rows = [*pool_rows, ["TTFT", format_seconds(ttft)], ["TPOT", format_seconds(tpot)]]
        return [*rows, ["tokens/s", format_number(rate)]] if self.written else rows[:1]

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints for one plan."""
        return {
            "model": self.model,
            "hardware": self.hardware,
            "gpus": self.gpus,
            "plan": self.name,
            "runtime": self.runtime,
            "engine": self.engine,
            "precision": self.precision,
            "latency_s": self.latency_s,
            "latency_interval_s": self.interval_s,
            "step_s": self.step_s,
            "stages_s": dict(self.stages_s),
            "breakdown_s": dict(self.breakdown_s),
            "communication_hidden_s": self.communication_hidden_s,
            "memory_bytes": self.memory_bytes,
            "memory_parts_bytes": dict(self.memory_parts_bytes),
            "peak_stage": self.peak_stage,
            "throughput_per_s": self.throughput_per_s,
            "gpu_seconds_per_result": self.gpu_seconds,
            "basis": self.basis_word,
            "basis_by_part": {name: basis.name.lower() for name, basis in self.known.items()},
            "bound_by": self.bound_by,
            **({"speculation": self.speculation.to_dict()} if self.speculation else {}),
            **({"serving": self.serving.to_dict()} if self.serving else {}),
            **({"pools": self.disaggregated.to_dict()} if self.disaggregated else {}),
            **({} if self.simulated_s is None else {"simulated_s": self.simulated_s}),
            **({"remarks": list(self.notes)} if self.notes else {}),
            **({"placement": self.placement.to_dict()} if self.placement else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Splits of GPUs into two pools that keep what is wanted, best first; or why there is none.

    points : plans and concurrencies of all that were followed.
    """

    plans: tuple[PlanEstimate, ...] = ()
    points: tuple[Point, ...] = ()
    reason: str = ""

    @property
    def best(self) -> PlanEstimate | None:
        return next(iter(self.plans), None)

    def gain(self, lead: PlanEstimate | None) -> float | None:
        """Tokens/s of the best over those of one plan; None where there are not both."""
        lead_serving = None if lead is None else lead.serving
        split_serving = None if self.best is None else self.best.serving
        return (
            split_serving.tokens_per_s / lead_serving.tokens_per_s
            if lead_serving and split_serving
            else None
        )

    def to_dict(self, lead: PlanEstimate | None) -> dict[str, object]:
        """Return what ``--format json`` prints, beside the one plan to run."""
        gain = self.gain(lead)
        return {
            "recommended": None if self.best is None else self.best.name,
            **({} if gain is None else {"tokens_per_s_ratio": gain}),
            "plans": [plan.to_dict() for plan in self.plans],
            **({"reason": self.reason} if self.reason else {}),
        }


WORDS: Final = {
    "gemm": "matrix products",
    "attention": "attention",
    "pointwise": "element-wise work",
    "layout": "moving data on the GPU",
    "convolution": "convolutions",
    "communication_exposed": "communication",
    "launch": "kernel launches",
    "waiting": "waiting for the slowest GPU",
}


def worded(name: str) -> str:
    """Write the name of a stage, or of a part of time or memory, in words.

    >>> worded("communication_exposed"), worded("transformer_weights")
    ('communication', 'transformer weights')
    """
    return WORDS.get(name, name.replace("_", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A plan that cannot run, and why; `short` is what it would be if there were room.

    remedy : a setting under which there is. nearest : how near it comes to times that are wanted.
    """

    plan: Plan
    reason: str
    short: PlanEstimate | None = None
    remedy: str = ""
    nearest: Serving | None = None

    @property
    def explanation(self) -> str:
        """The reason, and what would help."""
        return "; ".join(filter(None, (self.reason, self.remedy)))

    def to_dict(self) -> dict[str, str]:
        """Return what ``--format json`` prints for a rejected plan."""
        return {"plan": str(self.plan), "reason": self.explanation}


Outcome = PlanEstimate | Rejected
