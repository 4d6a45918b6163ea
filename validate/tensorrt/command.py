"""What ``planner validate --backend tensorrt`` is asked for, and what it answers."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from planner.command.files import render
from planner.command.options import DONE, NO, Answer
from planner.strategies import parse_plan
from topology.base import InputError, environment
from validate.launch import Place, find_place, is_rank
from validate.plans import system
from validate.plans.cases import Case
from validate.plans.checks import check_plans, check_proof
from validate.plans.command import checked_cases, prediction_basis, share
from validate.tensorrt.check import How, Report, check, refuse

MODES: Final = ("graph", "eager")


def validate(arguments: argparse.Namespace) -> Answer | None:
    """Prove, build, run and time plans as engines, as far as this machine can.

    Returns None where this is one of several ranks, and not the one that answers. Raises InputError
    if a name, plan or number cannot be right.
    """
    cases, gate = checked_cases(arguments), share(arguments.gate)
    for case in cases:
        if case.mode not in MODES:
            modes = " or ".join(MODES)
            raise InputError(f"mode: got {case.mode}, wanted {modes} for --backend tensorrt")
    check_proof(case.plan for case in cases)
    hardware, how = _setup(arguments, cases)
    for case in cases:
        refuse(case, hardware, how.profile)
    folder = Path(arguments.results)
    system.check_folder(folder)
    reports: list[Report] = []
    for case in cases:
        # what was just found of the same engines, launched in another way
        same_engines = reports and replace(reports[-1].case, mode=case.mode) == case
        previous = reports[-1] if same_engines else None
        reports.append(
            check(case, hardware, folder, system.complain, replace(how, before=previous))
        )
    if how.place is not None and how.place.rank:
        return None
    return answer(reports, gate, arguments.format, numbers_only=how.numbers_only)


def _setup(arguments: argparse.Namespace, cases: Sequence[Case]) -> tuple[str, How]:
    """Look at this machine: its kind, its own profile, and which of its ranks this is."""
    hardware, profile = prediction_basis(arguments, system.products())
    how = How(
        profile=profile,
        gpus=arguments.gpus or 0,
        full=not arguments.small,
        numbers_only=arguments.numbers_only,
        outside=arguments.keep == "file",
        place=place_among(arguments.gpus, [case.plan for case in cases]),
    )
    return hardware, how


def place_among(gpus: int | None, plans: Sequence[str]) -> Place | None:
    """Which rank this is, where a launcher has started as many as every plan wants.

    Raises InputError if plans want another number of GPUs than there are, or of ranks than were
    started.
    """
    if gpus:
        check_plans(plans, gpus)
    env = environment()
    if not is_rank(env):
        return None
    place = find_place(env)
    for plan in plans:
        ranks = parse_plan(plan).gpus
        if ranks != place.world:
            raise InputError(f"ranks: got {place.world} started, wanted the {ranks} of {plan}")
    return place


def answer(
    reports: Sequence[Report], gate: float, style: str, *, numbers_only: bool = False
) -> Answer:
    """Write the reports of plans' engines, and say whether all passed.

    Where nothing was built the answer is no, unless numbers alone were asked for.
    """
    built = all(report.engines for report in reports)
    passed = (built or numbers_only) and all(report.passes(gate) for report in reports)
    rows = [{**report.to_dict(), "within_gate": report.passes(gate)} for report in reports]
    parts = [part for report in reports for part in ("", *report.parts())][1:]
    text = render(style, lambda: {"engines": rows, "gate": gate, "built": built}, lambda: parts)
    return text, DONE if passed else NO
