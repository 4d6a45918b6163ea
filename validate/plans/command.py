"""``planner validate``: the request becomes cases; these are proved or run, compared, and shown."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from costmodels.tables import profile_for
from planner.command.files import render
from planner.command.options import DONE, NO, Answer
from planner.models import read_model
from planner.request.quantities import read_share
from planner.strategies import parse_plan
from topology.base import IllegalPlanError, InputError, environment
from topology.base.rows import gathered
from topology.base.values import dataclass
from validate.launch import Place, find_place, is_rank
from validate.plans import checks, system
from validate.plans.cases import (
    ENGINES,
    RUNTIMES,
    SERVED_ENGINES,
    SIZES,
    Case,
    Mode,
    Stage,
    look_up,
)
from validate.plans.compare import Comparison, compare, rankings, summarise
from validate.plans.measured import Measured
from validate.plans.restarts import EXECUTED_BY, RunOptions, Work, run, run_as
from validate.tables import own_profile_name

Check = Callable[[Sequence[Case], str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is predicted with, and how many ranks there are.

    place : which rank this process is, where torchrun or mpirun started it.
    """

    hardware: str
    profile: str
    gpus: int
    place: Place | None = None


def validate(
    arguments: argparse.Namespace, work: Work, check: Check | None = None
) -> Answer | None:
    """Take the road: request, cases, proofs or runs, rows, comparison, report.

    Raises InputError if a name, plan or number cannot be right, or this host lacks something.

    Returns exit code 1 where the gate is missed, and None where this is one of several ranks, and
    not the one that answers.

    work : what this process does where it is a rank. check : refuses what an engine cannot run, or
    this host lacks for it.
    """
    cases, gate = checked_cases(arguments), share(arguments.gate)
    setup = _setup(arguments, cases)
    for case in cases:
        objections = look_up(case, setup.hardware).objections
        if objections:
            raise IllegalPlanError(f"plan {case.plan}: {objections}")
    is_proof = arguments.backend == "reference"  # each plan on as many ranks as it has
    if not is_proof or arguments.gpus is not None:
        checks.check_plans([case.plan for case in cases], setup.gpus)
    if is_proof:
        return _proofs_answer(cases, setup, arguments.format)
    if check is not None:
        check(cases, setup.hardware)
    rows = _measured_rows(cases, setup, arguments, work)
    if rows is None:
        return None
    comparisons = compare(rows, setup.hardware, setup.profile)
    passed = len(comparisons) == len(cases) and all(
        comparison.passes(gate) for comparison in comparisons
    )
    return _report(comparisons, gate, arguments.format), DONE if passed else NO


def checked_cases(arguments: argparse.Namespace) -> list[Case]:
    """Return what is asked for, each case once.

    Raises InputError if a number, a mode or a model cannot be right.
    """
    checks.check_gpus(arguments.gpus)
    checks.check_positive("seconds", arguments.seconds)
    sizes = {name: getattr(arguments, name) for name in SIZES}
    engine = ENGINES.get(arguments.backend, "")
    default_mode = "eager" if engine == "diffusers" else "graph"
    modes = [_mode(word) for word in (arguments.mode or default_mode).split(",")]
    stages = _stages(arguments, engine)
    cases = [
        Case(
            model=arguments.model,
            plan=str(parse_plan(plan)),
            mode=mode,
            batch=arguments.batch,
            precision=arguments.precision,
            stage=stage,
            engine=engine,
            **sizes,
        )
        for plan in arguments.plan.split(",")
        for mode in modes
        for stage in stages
    ]
    return list({case.key: case for case in cases}.values())


def _setup(arguments: argparse.Namespace, cases: Sequence[Case]) -> Setup:
    """Look at this machine, where GPUs are used: its kind, and a profile of its own."""
    on_gpus = arguments.device == "cuda" and arguments.backend != "reference"
    hardware, profile = prediction_basis(arguments, system.products() if on_gpus else [])
    env = environment()
    is_ranked = arguments.backend in ("torch", *ENGINES) and is_rank(env)
    place = find_place(env) if is_ranked else None
    largest = max(parse_plan(case.plan).gpus for case in cases)
    gpus = arguments.gpus or (largest if place is None else place.world)
    if place is not None and gpus != place.world:
        raise InputError(f"gpus: got {gpus}, wanted the {place.world} ranks that were started")
    return Setup(hardware=hardware, profile=profile, gpus=gpus, place=place)


def prediction_basis(arguments: argparse.Namespace, products: Sequence[str]) -> tuple[str, str]:
    """Hardware and profile: those asked for, or of the GPUs that are there.

    Raises InputError if there is none of that name, or a profile cannot be read: before anything
    runs.
    """
    hardware = checks.hardware_of(products[0] if products else "", arguments.hardware)
    profile = str(arguments.profile)
    if products and not profile:
        profile = own_profile_name(hardware, products[0], len(products))
    profile_for(hardware, profile)
    return hardware, profile


def _proofs_answer(cases: Sequence[Case], setup: Setup, style: str) -> Answer:
    """Prove each plan once, however it is launched, by the reference."""
    from validate.plans.report import proof_lines  # noqa: PLC0415
    from validate.reference import prove  # noqa: PLC0415

    checks.check_proof(case.plan for case in cases)
    by_plan = {case.plan: look_up(case, setup.hardware) for case in cases}
    proofs = [prove(subject.model, subject.workload, subject.plan) for subject in by_plan.values()]
    code = DONE if all(proof.ok for proof in proofs) else NO
    data = {"proofs": [proof.to_dict() for proof in proofs]}
    return render(style, lambda: data, lambda: [proof_lines(proofs)]), code


def _measured_rows(
    cases: Sequence[Case], setup: Setup, arguments: argparse.Namespace, work: Work
) -> list[Measured] | None:
    """Run and time cases, on ranks of our own or as one of those that were started.

    An engine's plan has all ranks that are started, so that each number of them is a run.
    """
    checks.check_cases(cases, setup.gpus, arguments.device)
    engine = ENGINES.get(arguments.backend, "")
    of_engine, is_served = bool(engine), engine in SERVED_ENGINES
    options = RunOptions(
        gpus=setup.gpus,
        hardware=setup.hardware,
        device=arguments.device,
        compiler="inductor" if arguments.device == "cuda" else "aot_eager",
        seconds=arguments.seconds,
        retry=arguments.retry,
        processes=1 if is_served else 0,
        module=_module(engine),
    )
    output = Path(arguments.results)
    system.check_folder(output)
    place = setup.place
    if (
        of_engine
        and place is not None
        and any(parse_plan(case.plan).gpus != setup.gpus for case in cases)
    ):
        raise InputError(f"plans: wanted all of the {setup.gpus} ranks that were started")
    if place is not None and place.rank:
        return run_as(place, cases, options, output, work)
    if arguments.device == "cpu":
        system.complain(f"measured on a CPU, beside what is predicted for {setup.hardware}")
    with system.alone_in(output):
        if place is not None:
            return run_as(place, cases, options, output, work)
        return (_by_ranks if of_engine else run)(cases, options, output)


def _module(engine: str) -> str:
    """Name what a rank runs."""
    if not engine:
        return EXECUTED_BY
    return f"validate.engines.{'served' if engine in SERVED_ENGINES else engine}_rank"


def _by_ranks(cases: Sequence[Case], options: RunOptions, output: Path) -> list[Measured]:
    """Run cases of as many ranks together, the fewest first."""
    by_ranks = gathered((parse_plan(case.plan).gpus, case) for case in cases)
    rows = {
        row.key: row
        for ranks, group in sorted(by_ranks.items())
        for row in run(group, replace(options, gpus=ranks), output)
    }
    return [rows[case.key] for case in cases if case.key in rows]


def _mode(word: str) -> Mode:
    mode = next((mode for mode in RUNTIMES if mode == word.strip()), None)
    if mode is None:
        raise InputError(f"mode: got {word[:40]!r}, wanted {', '.join(RUNTIMES)}")
    return mode


def _stages(arguments: argparse.Namespace, engine: str) -> tuple[Stage, ...]:
    """List what is timed: of an engine that serves, the first token and those that follow."""
    stage = _stage(arguments)
    return ("prefill", "decode") if engine in SERVED_ENGINES and stage == "prefill" else (stage,)


def _stage(arguments: argparse.Namespace) -> Stage:
    model = read_model(arguments.model)
    if model.kind == "diffusion" and arguments.decode:
        raise InputError(f"decode: got {model.name}, wanted a language model")
    if model.kind == "diffusion":
        return "denoise"
    return "decode" if arguments.decode else "prefill"


def share(words: str) -> float:
    """Read the largest error that passes."""
    try:
        value = read_share(words)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f"gate: got {words[:40]!r}, wanted a share such as 10%")
    return value


def _report(comparisons: Sequence[Comparison], gate: float, style: str) -> str:
    from validate.plans.report import instrumented_notes, parts  # noqa: PLC0415

    def document() -> dict[str, object]:
        ranked = rankings(comparisons)
        return {
            "gate": gate,
            "cases": [
                {**comparison.to_dict(), "passes": comparison.passes(gate)}
                for comparison in comparisons
            ],
            "rankings": [asdict(ranking) for ranking in ranked],
            "summary": asdict(summarise(comparisons, ranked)),
            "notes": instrumented_notes(comparisons),
        }

    return render(style, document, lambda: parts(comparisons, gate))
