"""``planner validate --backend tensorrt``: a plan as engines, proved, built, run and timed.

What a host lacks is left out and said: without TensorRT a plan is proved on numbers alone; without
GPUs its engines are built by TensorRT-RTX for a GPU that is not there; with both it is run too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import numpy as np

from planner.compose import objections
from planner.export.harness import write_folder
from planner.export.tensorrt import one_token, tensorrt_folder
from planner.lowering.lower import lower
from planner.plan import Plan
from planner.search import Question, price
from planner.tensorrt.document import arrays_of, counts, document_of
from planner.tensorrt.network import Recipe, networks
from planner.tensorrt.obstacles import obstacles
from planner.tensorrt.runner import harness
from planner.tensorrt.runner.build import Options, build
from planner.tensorrt.runner.errors import RunError
from planner.tensorrt.runner.kinds import Share
from planner.tensorrt.runner.library import is_rtx, load, version
from planner.tensorrt.runner.weights import drawn
from planner.tensorrt.schedule import schedule
from planner.tensorrt.sheet import Network
from topology.errors import IllegalPlanError, ModelError
from validate.cases import Case, Subject, look_up
from validate.reference import run_plan
from validate.reference.weights import Array
from validate.small import shrink
from validate.tensorrt_backend.numbers import run_networks
from validate.tensorrt_backend.probe import probe

Tell = Callable[[str], None]
NUMBERS_BOUND: Final = 1 / 2**14
"""Largest relative error on numbers of 64 bits, with weights of 32."""
RUN_BOUNDS: Final[Mapping[str, float]] = {"bf16": 0.05, "fp16": 0.01, "fp8": 0.2, "int8": 0.2}
"""Largest relative error of a run, of the root mean square, that rounding explains."""
LOOSE: Final = 0.5
TIMED: Final = 5
"""Steps at full size."""
TOTAL_S: Final = 1800
"""Seconds that a run may take."""
CAPABILITY: Final = "SM120"
"""What TensorRT-RTX builds for where there is no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found of a plan.

    number_error : of all ranks' layers in numpy. collectives : in its engines, by name.
    engines, engine_bytes : built. error, bound : of a run on GPUs at a small size, both zero where
    there was none. step_s, predicted_s : of a step at full size, zero where it was not timed.
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
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything that was done is right."""
        return self.number_error <= NUMBERS_BOUND and self.error <= self.bound

    def to_dict(self) -> dict[str, object]:
        """Return what ``--format json`` prints."""
        return {**asdict(self), "case": self.case.to_dict(), "passed": self.passed}

    def text(self) -> str:
        """Lines as a terminal shows them."""
        said = [f"{count} x {name}" for name, count in self.collectives.items()]
        lines = [
            f"{self.case.key}",
            f"  layers on numbers, all ranks: largest error {self.number_error:.1e}",
            f"  collectives: {', '.join(said) or 'none'}",
        ]
        if self.engines:
            size = self.engine_bytes / 2**20
            lines.append(f"  engines: {self.engines} built by {self.library}, {size:.1f} MiB")
        if self.bound:
            lines.append(f"  run: error {self.error:.1e}, {self.bound:g} allowed")
        if self.step_s:
            lines.append(f"  step: {self.step_s:.4f} s, predicted {self.predicted_s:.4f} s")
        return "\n".join([*lines, *[f"  left out: {one}" for one in self.left_out]])


def check(case: Case, hardware: str, results: Path, tell: Tell, *, full: bool = False) -> Report:
    """Prove a plan, build its engines where TensorRT is, and run them where GPUs are.

    Parameters
    ----------
    results : folder for engines and logs. full : also time steps at full size.

    Raises
    ------
    IllegalPlanError
        If the plan is illegal for the model, or TensorRT cannot run it.
    ModelError
        If a build or a run fails: the layer or rank, and the cause.
    """
    subject = look_up(case, hardware)
    _refuse(subject)
    model, workload = shrink(subject.model, subject.workload, subject.plan)
    small = replace(subject, model=model, workload=one_token(workload))
    tell(f"{case.key}: proving layers on numbers")
    found = _proved(small)
    try:
        library = load()
    except RunError as error:
        return replace(found, left_out=(f"engines: {error}",))
    try:
        return _built(found, small, subject, library, (results, tell, full))
    except RunError as error:
        raise ModelError(str(error)) from None


def _refuse(subject: Subject) -> None:
    plan, workload = subject.plan, subject.workload
    reasons = [
        *objections(subject.model, workload, plan, plan.gpus),
        *obstacles(subject.model, plan, subject.site.hardware, precision=workload.precision),
    ]
    if reasons:
        raise IllegalPlanError(f"plan {plan}: {'; '.join(reasons)}")


def _written(small: Subject, recipe: Recipe) -> tuple[tuple[Network, ...], dict[str, object]]:
    program = lower(small.model, small.workload, small.plan)
    made = networks(program, recipe)
    return made, schedule(made, program, small.workload, small.plan)


def _proved(small: Subject) -> Report:
    """Compare all ranks' layers with the unsplit model, both in numpy."""
    made, order = _written(small, Recipe(compute="fp32"))
    whole = run_plan(small.model, small.workload, Plan())[0]
    outs = run_networks(made, order)
    worst = max(
        float(np.abs(out - want).max() / np.abs(want).max())
        for out, want in zip(outs, _wanted(whole, order, outs), strict=True)
    )
    found: Counter[str] = Counter()
    for network in made:
        found.update(counts(network))
    return Report(case=small.case, number_error=worst, collectives=dict(found))


def _wanted(whole: Array, order: Mapping[str, object], outs: Sequence[Array]) -> list[Array]:
    """Take the samples of the unsplit model's output that each rank has."""
    ranks = cast("list[Mapping[str, int]]", order["ranks"])
    return [
        whole[one["sample"] : one["sample"] + len(out)]
        for one, out in zip(ranks, outs, strict=True)
    ]


def _built(
    found: Report,
    small: Subject,
    subject: Subject,
    library: ModuleType,
    how: tuple[Path, Tell, bool],
) -> Report:
    """Build, and run where there are GPUs enough and a TensorRT that runs collectives."""
    results, tell, full = how
    found = replace(found, library=f"{library.__name__} {version(library)}")
    gpus = len(probe({}).gpus)
    if is_rtx(library) or gpus < small.plan.gpus:
        found = _only_built(found, small, library, gpus)
        return replace(found, left_out=(_why_not(library, gpus, small.plan),))
    folder, built = _run(small, results / "small", tell, weights="drawn")
    found = replace(
        found,
        engines=len(built),
        engine_bytes=sum(path.stat().st_size for path in built),
        error=_error(small, folder),
        bound=RUN_BOUNDS.get(small.case.precision, LOOSE),
    )
    if not full:
        return replace(found, left_out=("timing at full size: not asked for",))
    folder, _ = _run(subject, results / "full", tell, weights="filler", steps=TIMED)
    ranks = range(subject.plan.gpus)
    times = [step for rank in ranks for step in harness.result_of(folder.path, rank).seconds[1:]]
    predicted = price(_question(subject), subject.plan).step_s
    return replace(found, step_s=float(np.median(times)), predicted_s=predicted)


def _why_not(library: ModuleType, gpus: int, plan: Plan) -> str:
    if is_rtx(library):
        return "run: TensorRT-RTX builds engines here, and does not run those of several GPUs"
    return f"run: {gpus} GPUs here, wanted {plan.gpus}"


def _only_built(found: Report, small: Subject, library: ModuleType, gpus: int) -> Report:
    if not gpus and not is_rtx(library):
        return found
    recipe = Recipe(precision=small.case.precision)
    capability = "" if gpus else CAPABILITY
    sizes = []
    for network in _written(small, recipe)[0]:
        sizes += [len(one) for one in build_network(network, library, capability)]
    return replace(found, engines=len(sizes), engine_bytes=sum(sizes))


def build_network(network: Network, library: ModuleType, capability: str = "") -> list[bytes]:
    """Build the engines of a network on made-up weights: one, or one a rank."""
    document, arrays = document_of(network), arrays_of(network)
    options = Options(level=0, capability=capability)
    return [
        build(
            library,
            Share(document=document, arrays=arrays, weights=drawn(), rank=rank),
            options,
        ).plan
        for rank in range(1 if network.shared else network.ranks)
    ]


def _question(subject: Subject) -> Question:
    case = subject.case
    return Question(
        request=case.request(subject.site.hardware.name),
        model=subject.model,
        workload=subject.workload,
        site=subject.site,
    )


def _run(
    subject: Subject, path: Path, tell: Tell, *, weights: str, steps: int = 0
) -> tuple[harness.Folder, list[Path]]:
    """Export a plan, build its engines, and run it, one process a GPU."""
    question = _question(subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = tensorrt_folder(question, price(question, subject.plan))
    folder = harness.open_folder(write_folder(files, str(path), force=True))
    made = harness.build_all(folder, harness.weights_from(weights, folder.plan), Options(), tell)
    argv = ["-m", "planner.tensorrt.runner", "run", "--folder", str(folder.path)]
    argv += ["--steps", str(steps)] if steps else []
    failed = harness.start_here(argv, subject.plan.gpus, TOTAL_S)
    if failed:
        raise RunError(f"{subject.case.key}: {failed}")
    return folder, made


def _error(small: Subject, folder: harness.Folder) -> float:
    """Largest error of any rank, of the root mean square of the unsplit model's output."""
    whole = run_plan(small.model, small.workload, Plan())[0]
    ranks = range(small.plan.gpus)
    outs = [harness.result_of(folder.path, rank).output.astype(np.float64) for rank in ranks]
    scale = float(np.sqrt(np.mean(whole**2)))
    return max(
        float(np.sqrt(np.mean((out - want) ** 2))) / scale
        for out, want in zip(outs, _wanted(whole, folder.plan, outs), strict=True)
    )
