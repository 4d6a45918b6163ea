"""``planner validate``: run a plan, prove it, time it, and put it beside what was predicted."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from planner.compose import objections
from planner.plan import parse_plan
from topology.errors import IllegalPlanError, InputError
from validate.cases import RUNTIMES, Case, Mode, look_up
from validate.compare import Comparison, compare, rankings, summarise
from validate.launch import Limits
from validate.proof import Proof, proofs_markdown, proofs_text, prove
from validate.report import markdown, text
from validate.runs import Options, run

Answer = tuple[str, int]
"""Text to print, and the exit code."""
DONE, NO = 0, 1
_SIZES: Final = ("height", "width", "frames", "input-tokens", "text-tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command is told, without ``--format`` and ``--output``."""
    parser.add_argument("--model", required=True, help="a catalogue name, or a config.json")
    parser.add_argument("--plan", required=True, help="plans, joined by commas: tp2,ulysses2")
    parser.add_argument("--gpus", type=int, default=0, help="ranks; the largest plan's if left out")
    parser.add_argument("--backend", choices=["reference", "torch"], default="reference")
    parser.add_argument("--mode", default="graph", help="eager, compile and graph, with commas")
    parser.add_argument("--hardware", default="h100-sxm", help="a catalogue name, to predict with")
    parser.add_argument("--profile", default="", help="a calibration profile, to predict with")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gate", default="10%", help="largest error of a step that passes")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--decode", action="store_true", help="a decoder's decode step")
    parser.add_argument("--seconds", type=float, default=3000, help="for all cases")
    parser.add_argument("--results", metavar="DIR", default="validation", help="for rows and logs")
    for name in _SIZES:
        parser.add_argument(f"--{name}", type=int)


def validate(arguments: argparse.Namespace) -> Answer:
    """Run the command: text in the format asked for, and exit code 1 where the gate is missed.

    Raises
    ------
    InputError
        If a name, plan or number cannot be right, or this host lacks something.
    """
    cases, gate = _cases(arguments), _share(arguments.gate)
    _refuse_illegal(cases, arguments.hardware)
    if arguments.backend == "reference":
        return _proved(cases, arguments)
    options = Options(
        gpus=arguments.gpus or max(parse_plan(case.plan).gpus for case in cases),
        hardware=arguments.hardware,
        device=arguments.device,
        compiler="inductor" if arguments.device == "cuda" else "aot_eager",
        seconds=arguments.seconds,
        limits=Limits(),
    )
    rows = run(cases, options, Path(arguments.results), _tell)
    found = compare(rows, arguments.hardware, arguments.profile)
    passed = len(found) == len(cases) and all(one.passes(gate) for one in found)
    return _shown(found, gate, arguments.format), DONE if passed else NO


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cases(arguments: argparse.Namespace) -> list[Case]:
    sizes = {name: getattr(arguments, name) for name in map(_attribute, _SIZES)}
    modes = [_mode(word) for word in arguments.mode.split(",")]
    stage = _stage(arguments)
    return [
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


def _attribute(option: str) -> str:
    return option.replace("-", "_")


def _mode(word: str) -> Mode:
    for mode in RUNTIMES:
        if word.strip() == mode:
            return mode
    raise InputError(f"mode: got {word[:40]!r}, wanted {', '.join(RUNTIMES)}")


def _stage(arguments: argparse.Namespace) -> str:
    from planner.models import read_model  # noqa: PLC0415  # reads files

    if read_model(arguments.model).kind == "diffusion":
        return "denoise"
    return "decode" if arguments.decode else "prefill"


def _share(words: str) -> float:
    """Read ``10%`` or ``0.1``.

    >>> _share("10%"), _share("0.05")
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


def _proved(cases: Sequence[Case], arguments: argparse.Namespace) -> Answer:
    found = [prove(look_up(case, arguments.hardware)) for case in _once(cases)]
    code = DONE if all(one.ok for one in found) else NO
    if arguments.format == "json":
        return _json({"proofs": [one.to_dict() for one in found]}), code
    return (proofs_markdown if arguments.format == "markdown" else proofs_text)(found), code


def _once(cases: Sequence[Case]) -> list[Case]:
    """Cases that differ in more than how they are launched."""
    return list({case.plan: case for case in cases}.values())


def _shown(found: Sequence[Comparison], gate: float, style: str) -> str:
    ranked = rankings(found)
    summary = summarise(found, ranked)
    if style == "json":
        return _json(
            {
                "gate": gate,
                "cases": [{**one.to_dict(), "passes": one.passes(gate)} for one in found],
                "rankings": [one.to_dict() for one in ranked],
                "summary": summary.to_dict(),
            }
        )
    return (markdown if style == "markdown" else text)(found, ranked, summary, gate)


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


__all__ = ["Answer", "Proof", "add_arguments", "validate"]
