"""``planner validate``: what is asked for, checked; run by one of the backends; and written."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodels.tables import profile_for
from planner.models import read_model
from planner.request.plan import parse_plan
from planner.search.plans import objections
from topology.base import IllegalPlanError, InputError
from validate.launch import Limits, Place, find_place, is_rank
from validate.plans import files as harness
from validate.plans.asked import (
    check_cases,
    check_gpus,
    check_plans,
    check_positive,
    check_proof,
    hardware_of,
)
from validate.plans.cases import RUNTIMES, Case, Mode, look_up
from validate.plans.compare import Comparison, compare, rankings, summarise
from validate.tables import own_profile_name

Answer = tuple[str, int]
"""Text to print, and the exit code."""
DONE, NO = 0, 1
SIZES: Final = ("height", "width", "frames", "input_tokens", "text_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What is predicted with, and how many ranks there are.

    place : which rank this process is, where torchrun or mpirun started it.
    """

    hardware: str
    profile: str
    gpus: int
    place: Place | None = None


def validate(arguments: argparse.Namespace) -> Answer | None:
    """Run the command: text in the format asked for, and exit code 1 where the gate is missed.

    Returns
    -------
    None where this is one of several ranks, and not the one that answers.

    Raises
    ------
    InputError
        If a name, plan or number cannot be right, or this host lacks something.
    """
    check_gpus(arguments.gpus)
    check_positive("seconds", arguments.seconds)
    cases, gate = cases_of(arguments), share(arguments.gate)
    ground = _ground(arguments, cases)
    _refuse_illegal(cases, ground.hardware)
    check_plans([case.plan for case in cases], ground.gpus)
    if arguments.backend == "reference":
        return _proved(cases, ground, arguments)
    return _timed(cases, ground, gate, arguments)


def _ground(arguments: argparse.Namespace, cases: Sequence[Case]) -> Ground:
    """Look at this machine, where GPUs are used: its kind, and a profile of its own."""
    on_gpus = arguments.device == "cuda" and arguments.backend != "reference"
    hardware, profile = predicted_with(arguments, harness.products() if on_gpus else [])
    env = harness.environment()
    place = find_place(env) if arguments.backend == "torch" and is_rank(env) else None
    largest = max(parse_plan(case.plan).gpus for case in cases)
    gpus = arguments.gpus or (largest if place is None else place.world)
    if place is not None and gpus != place.world:
        raise InputError(f"gpus: got {gpus}, wanted the {place.world} ranks that were started")
    return Ground(hardware=hardware, profile=profile, gpus=gpus, place=place)


def predicted_with(arguments: argparse.Namespace, products: Sequence[str]) -> tuple[str, str]:
    """Hardware and profile: those asked for, or of the GPUs that are there.

    Raises
    ------
    InputError
        If there is none of that name, or a profile cannot be read: before anything runs.
    """
    hardware = hardware_of(products[0] if products else "", arguments.hardware)
    profile = str(arguments.profile)
    if products and not profile:
        profile = own_profile_name(hardware, products[0], len(products))
    profile_for(hardware, profile)
    return hardware, profile


def _timed(
    cases: Sequence[Case], ground: Ground, gate: float, arguments: argparse.Namespace
) -> Answer | None:
    """Run and time cases by PyTorch, on ranks of our own or as one of those that were started."""
    from validate.plans.runs import Options, run, run_as  # noqa: PLC0415  # only where plans are run

    check_cases(cases, ground.gpus, arguments.device)
    options = Options(
        gpus=ground.gpus,
        hardware=ground.hardware,
        device=arguments.device,
        compiler="inductor" if arguments.device == "cuda" else "aot_eager",
        seconds=arguments.seconds,
        limits=Limits(),
        retry=arguments.retry,
    )
    output = Path(arguments.results)
    harness.check_folder(output)
    if arguments.device == "cpu" and (ground.place is None or not ground.place.rank):
        harness.complain(f"measured on a CPU, beside what is predicted for {ground.hardware}")
    if ground.place is None:
        rows = run(cases, options, output)
    else:
        taken = run_as(ground.place, cases, options, output)
        if taken is None:
            return None
        rows = taken
    found = compare(rows, ground.hardware, ground.profile)
    passed = len(found) == len(cases) and all(one.passes(gate) for one in found)
    return _shown(found, gate, arguments.format), DONE if passed else NO


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Return what is asked for, each case once."""
    sizes = {name: getattr(arguments, name) for name in SIZES}
    modes = [_mode(word) for word in arguments.mode.split(",")]
    stage = _stage(arguments)
    found = [
        Case(
            model=arguments.model,
            plan=str(parse_plan(plan)),
            mode=mode,
            batch=arguments.batch,
            precision=arguments.precision,
            stage=stage,  # type: ignore[arg-type]  # checked by Case
            **sizes,
        )
        for plan in arguments.plan.split(",")
        for mode in modes
    ]
    return list({case.key: case for case in found}.values())


def _mode(word: str) -> Mode:
    for mode in RUNTIMES:
        if word.strip() == mode:
            return mode
    raise InputError(f"mode: got {word[:40]!r}, wanted {', '.join(RUNTIMES)}")


def _stage(arguments: argparse.Namespace) -> str:
    model = read_model(arguments.model)
    if model.kind == "diffusion" and arguments.decode:
        raise InputError(f"decode: got {model.name}, wanted a language model")
    if model.kind == "diffusion":
        return "denoise"
    return "decode" if arguments.decode else "prefill"


def share(words: str) -> float:
    """Read ``10%`` or ``0.1``.

    >>> share("10%"), share("0.05")
    (0.1, 0.05)
    """
    number = words.strip().removesuffix("%").strip()
    try:
        value = float(number) / (100 if words.strip().endswith("%") else 1)
    except ValueError:
        raise InputError(f"gate: got {words[:40]!r}, wanted a share such as 10%") from None
    if not 0 < value <= 1:
        raise InputError(f"gate: got {words[:40]!r}, wanted a share such as 10%")
    return value


def _refuse_illegal(cases: Sequence[Case], hardware: str) -> None:
    for case in cases:
        subject = look_up(case, hardware)
        reasons = list(objections(subject.model, subject.workload, subject.plan, subject.plan.gpus))
        if reasons:
            raise IllegalPlanError(f"plan {case.plan}: {'; '.join(reasons)}")


def _proved(cases: Sequence[Case], ground: Ground, arguments: argparse.Namespace) -> Answer:
    from validate.plans.proof import proofs_markdown, proofs_text, prove  # noqa: PLC0415

    check_proof(case.plan for case in cases)
    found = [prove(look_up(case, ground.hardware)) for case in _once(cases)]
    code = DONE if all(one.ok for one in found) else NO
    if arguments.format == "json":
        return _json({"proofs": [one.to_dict() for one in found]}), code
    return (proofs_markdown if arguments.format == "markdown" else proofs_text)(found), code


def _once(cases: Sequence[Case]) -> list[Case]:
    """Cases that differ in more than how they are launched."""
    return list({case.plan: case for case in cases}.values())


def _shown(found: Sequence[Comparison], gate: float, style: str) -> str:
    from validate.plans.report import instrumented, markdown, text  # noqa: PLC0415

    ranked = rankings(found)
    summary = summarise(found, ranked)
    if style == "json":
        return _json(
            {
                "gate": gate,
                "cases": [{**one.to_dict(), "passes": one.passes(gate)} for one in found],
                "rankings": [one.to_dict() for one in ranked],
                "summary": summary.to_dict(),
                "notes": instrumented(found),
            }
        )
    return (markdown if style == "markdown" else text)(found, ranked, summary, gate)


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
