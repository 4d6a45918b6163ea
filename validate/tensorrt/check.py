"""``planner validate --backend tensorrt``: a plan as engines, proved, built, run and timed.

What a host lacks is left out and said: without TensorRT a plan is proved on numbers alone; without
GPUs its engines are built by TensorRT-RTX for a GPU that is not there; with both it is run too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import numpy as np

from planner import tensorrt
from planner.engines.tables import allowed
from planner.export.tensorrt import compute_of, tensorrt_folder
from planner.request.plan import Plan
from planner.request.request import Request
from planner.runners.refusal import check_tensorrt
from planner.scenario.scenario import Scenario
from planner.search.evaluate import price
from planner.tensorrt import EngineNetwork, Recipe
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.build import Options, build
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.external_weights import writer
from planner.tensorrt.runner.layers import Share
from planner.tensorrt.runner.library import is_rtx, load, version
from planner.tensorrt.runner.run import Timed
from planner.tensorrt.runner.weights import drawn
from topology.base import IllegalPlanError, InputError, ModelError, Seconds
from topology.base.table import Part, Said, Title
from topology.base.values import dataclass
from validate.launch import Place
from validate.plans.cases import Case, Subject, subject_of
from validate.reference import run_plan, shrink
from validate.tensorrt.evaluate import Array, Document
from validate.tensorrt.numbers import one_token, run_networks, unsplit
from validate.tensorrt.probe import probe
from validate.tensorrt.start import Execution, Judge, RankResult, build_and_run

Tell = Callable[[str], None]
NUMBERS_BOUND: Final = 1 / 2**14
"""Largest relative error on numbers of 64 bits, with weights of 32."""
RUN_BOUNDS: Final[Mapping[str, float]] = {"bf16": 0.05, "fp16": 0.01, "fp8": 0.2, "int8": 0.2}
"""Largest relative error of a run, of the root mean square, that rounding explains."""
LOOSE_BOUND: Final = 0.5
SHOWN_LAYERS: Final = 5
"""Layers that are shown; JSON has all."""
TIMED_STEPS: Final = 5
"""Steps at full size."""
CAPABILITY: Final = "SM120"
"""What TensorRT-RTX builds for where there is no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What is done. profile : to predict with. gpus : most that are used, all where zero.

    full : also time steps at full size. numbers_only : build nothing, TensorRT is not looked for.
    place : which rank this is, where a launcher has started them all. before : what was found of
    the same engines, launched otherwise: they are neither proved nor built again.
    outside : weights are kept in files beside the engines.
    """

    profile: str = ""
    gpus: int = 0
    full: bool = False
    numbers_only: bool = False
    place: Place | None = None
    before: "Report | None" = None
    outside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found of a plan.

    number_error : of all ranks' layers in numpy. collectives : in its engines, by name.
    engines, engine_bytes : built. error, bound : of a run on GPUs at a small size, both zero where
    there was none. step_s, predicted_s : of a step at full size, zero where it was not timed.
    layers : of a rank's engines there, by TensorRT's own profiler: engine, layer and seconds.
    left_out : what could not be done here, and why.
    """

    case: Case
    number_error: float
    collectives: Mapping[str, int]
    library: str = ""
    engines: int = 0
    engine_bytes: int = 0
    error: float = 0.0
    bound: float = 0.0
    step_s: float = 0.0
    predicted_s: float = 0.0
    layers: tuple[Timed, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything that was done is right."""
        return self.number_error <= NUMBERS_BOUND and self.error <= self.bound

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints; nothing is known of what was not done."""
        missing_run = {name: None for name in ("error", "bound") if not self.bound}
        missing_times = {name: None for name in ("step_s", "predicted_s") if not self.step_s}
        values = {**asdict(self), "case": self.case.to_dict(), "passed": self.passed}
        return values | missing_run | missing_times

    def passes(self, gate: float) -> bool:
        """Whether it is right, and a step as long as predicted where one was timed."""
        step_error = abs(self.predicted_s / self.step_s - 1) if self.step_s else 0.0
        return self.passed and step_error <= gate

    def rows(self) -> list[list[str]]:
        """Make a row of each check of a plan's engines: what, and how it ended."""
        collectives = [f"{count} x {name}" for name, count in self.collectives.items()]
        lines = [
            ["layers on numbers, all ranks", f"largest error {self.number_error:.1e}"],
            ["collectives", ", ".join(collectives) or "none"],
        ]
        if self.engines:
            size = self.engine_bytes / 2**20
            lines.append(["engines", f"{self.engines} built by {self.library}, {size:.1f} MiB"])
        if self.bound:
            lines.append(["run", f"error {self.error:.1e}, {self.bound:g} allowed"])
        if self.step_s:
            lines.append(["step", f"{self.step_s:.4f} s, predicted {self.predicted_s:.4f} s"])
        longest = sorted(self.layers, key=lambda layer: -layer[2])[:SHOWN_LAYERS]
        lines += [
            ["longest layer", f"{s:.6f} s, {name} of {engine}"] for engine, name, s in longest
        ]
        return [*lines, *[["left out", reason] for reason in self.left_out]]

    def parts(self) -> list[Part]:
        """Say everything."""
        lines = [f"{name}: {ended}" for name, ended in self.rows()]
        return [Title(text=self.case.key, level=1), Said(lines=lines, indent=2)]


def check(case: Case, hardware: str, results: Path, tell: Tell, how: How | None = None) -> Report:
    """Prove a plan, build its engines where TensorRT is, and run them where GPUs are.

    Raises IllegalPlanError if the plan is illegal for the model, or TensorRT cannot run it. Raises
    ModelError if a build or a run fails: the layer or rank, and the cause.

    results : folder for engines and logs. how : what is done; nothing at full size if left out.
    """
    how = how or How()
    subject = refuse(case, hardware, how.profile)
    model, workload = shrink(subject.model, subject.workload, subject.plan)
    small = replace(subject, model=model, workload=one_token(workload))
    report = Report(case=case, number_error=0.0, collectives={})
    if how.before is not None:
        previous = how.before
        report = replace(
            report, number_error=previous.number_error, collectives=previous.collectives
        )
    elif how.place is None or not how.place.rank:
        tell(f"{case.key}: proving layers on numbers")
        report = _number_report(small)
    if how.numbers_only:
        return replace(report, left_out=("engines: numbers alone were asked for",))
    try:
        load()
    except RunError as error:
        return replace(report, left_out=(f"engines: {error}",))
    try:
        return _engine_report(report, small, subject, how, results, tell)
    except RunError as error:
        raise ModelError(f"{case.key}: {error}") from None


def engines_of(case: Case, hardware: str, profile: str = "") -> Subject:
    """Look a case up as TensorRT's, however its engines are started."""
    return subject_of(case, _request(case, hardware, profile))


def refuse(case: Case, hardware: str, profile: str = "") -> Subject:
    """Look a case up, and refuse one that cannot become engines.

    Raises IllegalPlanError if the plan is illegal for the model, or TensorRT cannot run it.
    """
    subject = engines_of(case, hardware, profile)
    if subject.objections:
        raise IllegalPlanError(f"plan {subject.plan}: {subject.objections}")
    check_tensorrt(_scenario_of(subject, profile), subject.plan)
    return subject


def _networks_of(subject: Subject, recipe: Recipe) -> tuple[tuple[EngineNetwork, ...], Document]:
    return tensorrt.written(subject.model, subject.workload, subject.plan, recipe)


def _number_report(small: Subject) -> Report:
    """Compare all ranks' layers with the unsplit model, both in numpy.

    Of a model that is computed also the layers that are exported, with the same on one rank.
    """
    networks, order = _networks_of(small, Recipe(compute="fp32"))
    reference = run_plan(small.model, small.workload, Plan())[0]
    worst = _largest_error(order, run_networks(networks, order), reference)
    if small.model.numerics is not None:
        recipe = Recipe(compute="fp32", numerics=small.model.numerics)
        networks, order = _networks_of(small, recipe)
        worst = max(
            worst, _largest_error(order, run_networks(networks, order), _unsplit_output(small))
        )
    collectives: Counter[str] = Counter()
    for network in networks:
        collectives.update(tensorrt.counts(network))
    return Report(case=small.case, number_error=worst, collectives=dict(collectives))


def _unsplit_output(small: Subject) -> Array:
    """Compute what one rank gives, by the reference where no network computes the model."""
    if small.model.numerics is None:
        return run_plan(small.model, small.workload, Plan())[0]
    return unsplit(small.model, small.workload)


def _largest_error(order: Document, outputs: Sequence[Array], reference: Array) -> float:
    """Return the largest relative error of all ranks' samples."""
    worst = 0.0
    for rank, output in zip(order["ranks"], outputs, strict=True):
        expected = reference[rank["sample"] : rank["sample"] + len(output)]
        worst = max(worst, float(np.abs(output - expected).max() / np.abs(expected).max()))
    return worst


def _engine_report(
    report: Report, small: Subject, subject: Subject, how: How, results: Path, tell: Tell
) -> Report:
    """Build, and run where there are GPUs enough and a TensorRT that runs collectives."""
    library = load()
    report = replace(report, library=f"{library.__name__} {version(library)}")
    gpus = len(probe({}).gpus)
    gpus = min(gpus, how.gpus) if how.gpus else gpus
    if is_rtx(library) or (how.place is None and gpus < small.plan.gpus):
        if how.place is None or not how.place.rank:
            report = _build_report(report, small, library, gpus, how)
        reason = f"{gpus} GPUs here, wanted {small.plan.gpus}"
        if is_rtx(library):
            reason = "TensorRT-RTX builds engines here, and does not run those of several GPUs"
        return replace(report, left_out=(f"run: {reason}",))
    ranks, engine_files = _run_engines(small, results / "small", how, tell, weights="drawn")
    report = replace(
        report,
        engines=len(engine_files),
        engine_bytes=sum(path.stat().st_size for path in engine_files),
        error=max(rank.error for rank in ranks),
        bound=RUN_BOUNDS.get(small.case.precision, LOOSE_BOUND),
    )
    if not how.full:
        return replace(report, left_out=("timing at full size: not asked for",))
    ranks, _ = _run_engines(
        subject, results / "full", how, tell, weights="filler", steps=TIMED_STEPS
    )
    own_rank = 0 if how.place is None else how.place.rank
    return replace(
        report,
        step_s=median(ranks),
        predicted_s=predicted_step(subject, how.profile),
        layers=ranks[own_rank].layers,
    )


def median(ranks: Sequence[RankResult]) -> float:
    """Seconds of a step behind the first, of which the slowest rank tells."""
    later_steps = [rank.seconds[1:] or rank.seconds for rank in ranks]
    return float(np.median([max(step) for step in zip(*later_steps, strict=True)]))


def predicted_step(subject: Subject, profile: str) -> float:
    """Seconds of a step that the planner says; without a graph, also what waits for the host."""
    step = price(_scenario_of(subject, profile), subject.plan).step_s
    if subject.case.mode == "graph":
        return step
    order = _networks_of(subject, _recipe(subject))[1]
    return step + tensorrt.enqueue(order, Seconds(step), allowed()).exposed


def _build_report(
    report: Report, small: Subject, library: ModuleType, gpus: int, how: How
) -> Report:
    previous = how.before
    if not gpus and not is_rtx(library):
        return report
    if previous is not None:
        return replace(report, engines=previous.engines, engine_bytes=previous.engine_bytes)
    recipe = _recipe(small)
    options = Options(level=0, capability="" if gpus else CAPABILITY, outside=how.outside)
    sizes = []
    for network in _networks_of(small, recipe)[0]:
        sizes += [len(engine) for engine in build_network(network, library, options)]
    return replace(report, engines=len(sizes), engine_bytes=sum(sizes))


def build_network(network: EngineNetwork, library: ModuleType, options: Options) -> list[bytes]:
    """Build the engines of a network on made-up weights: one, or one a rank."""
    document, arrays = tensorrt.document_of(network), tensorrt.arrays_of(network)
    share = Share(document=document, arrays=arrays, weights=drawn())
    engines = []
    for rank in range(1 if network.shared else network.ranks):
        weight_writer = writer(document, len) if options.outside else None  # into no file
        engines.append(
            build(library, replace(share, rank=rank, outside=weight_writer), options).plan
        )
    return engines


def _recipe(subject: Subject) -> Recipe:
    """Write networks down as export does."""
    case = subject.case
    return Recipe(
        compute=compute_of(case.precision),
        precision=case.precision,
        numerics=subject.model.numerics,
    )


def _request(case: Case, hardware: str, profile: str) -> Request:
    """Ask for what export writes: text towers run as often as it lets them, for this TensorRT."""
    request = replace(case, mode="graph").request(hardware, profile)
    return replace(request, text_tower=None, tensorrt_version=_installed_version())


def _installed_version() -> str:
    """Version of the TensorRT that is here, as far as it is known; empty for the newest."""
    try:
        library = load()
        allowed().running(version(library))
    except (RunError, InputError):
        return ""
    return "" if is_rtx(library) else version(library)


def _scenario_of(subject: Subject, profile: str) -> Scenario:
    return Scenario(
        request=_request(subject.case, subject.deployment.hardware.name, profile),
        model=subject.model,
        workload=subject.workload,
        deployment=subject.deployment,
    )


def _run_engines(
    subject: Subject, path: Path, how: How, tell: Tell, *, weights: str, steps: int = 0
) -> tuple[list[RankResult], list[Path]]:
    """Export a plan, build its engines, and run it, one process a GPU."""
    scenario = _scenario_of(subject, how.profile)
    execution = Execution(
        weights=weights,
        steps=steps,
        graph=subject.case.mode == "graph",
        place=how.place,
        again=how.before is not None,
        outside=how.outside,
        layers=steps > 0,
    )
    files = tensorrt_folder(scenario, price(scenario, subject.plan))
    judge = None if weights == "filler" else _rank_judge(subject)  # fillers mean nothing
    return build_and_run(files, path, execution, judge, tell)


def _rank_judge(small: Subject) -> Judge:
    """Make what compares a rank with the unsplit model: error of its root mean square."""
    reference = _unsplit_output(small)
    scale = float(np.sqrt(np.mean(reference**2)))

    def error(folder: harness.Folder, rank: int) -> float:
        output = harness.result_of(folder.path, rank).output.astype(np.float64)
        ranks = cast("list[Document]", folder.plan["ranks"])
        sample = ranks[rank]["sample"]
        return (
            float(np.sqrt(np.mean((output - reference[sample : sample + len(output)]) ** 2)))
            / scale
        )

    return error
